"""From command-line values to a trace, a plan and simulated devices: what `run` and `plan` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.arguments.work.amounts import Contents
    from opreplay.replay.arguments.work.expected import ExpectedContents
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.results.records import Simulated


UNUSED_SHOWN = 5
"""Unused registrations that are told one by one."""


def load_socs(names: Sequence[str]) -> dict[str, DeviceProfile]:
    """Simulated devices by name, in the order given.

    Raises UsageError for unknown devices, two of one name, and registrations for a device that is none.
    """
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.custom.estimators import refuse_unknown_devices

    devices: dict[str, DeviceProfile] = {}
    for text in names:
        device = load_device(text)
        if device.name in devices:
            raise UsageError(f"two simulated devices are called {device.name}", hint="Name each --soc once.")
        devices[device.name] = device
    refuse_unknown_devices()
    return devices


def use_plugins(names: Sequence[str], custom_op_dir: str | None = None) -> tuple[str, ...]:
    """Load installed plugins, those of --plugin and the files of --custom-op-dir; say on stderr what they registered.

    Gives the names of all that the user named, for other processes to load. Raises UsageError.
    """
    from collections import Counter

    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import custom_op_files, load_plugins, registrations

    load_plugins(names, custom_op_dir=custom_op_dir)
    by_source = Counter((one.source, one.kind) for one in registrations())
    for source in dict.fromkeys(source for source, _ in by_source):
        counts = ", ".join(
            f"{n} {kind}{'s' if n > 1 and kind != 'properties' else ''}"
            for (of, kind), n in by_source.items() if of == source
        )  # fmt: skip
        console.narrate(f"{source}: {counts}")
    return (*names, *custom_op_files(custom_op_dir))


def expected_contents(
    init_modules: Sequence[str] = (), init_args: Sequence[str] = (), *, seed: int = 0, values: str | None = None
) -> ExpectedContents:
    """What the arguments of an op will hold in a run with these initializers, settings, seed and file of values.

    Raises UsageError for modules and settings that cannot be used, FormatError for an unsound file.
    """
    from opreplay.initializers.extensions import open_registry
    from opreplay.initializers.supplied.values import RecordedValues
    from opreplay.replay.arguments.work.expected import ExpectedContents

    supplied = None if values is None else RecordedValues(values)
    return ExpectedContents(open_registry(init_modules, init_args), seed, supplied)


def tell_problems(contents: ExpectedContents) -> None:
    """Say on stderr for how many ops the initializers could not make what predictions depend on."""
    from opreplay.cli.terminal import console

    if contents.impossible:
        count, first = len(contents.impossible), next(iter(contents.impossible.values()))
        console.narrate(f"{count} op{'s' if count > 1 else ''} cannot hold the batch that the trace tells: {first}")
    if contents.problems:
        count, first = len(contents.problems), next(iter(contents.problems.values()))
        console.narrate(
            f"contents of {count} op{'s' if count > 1 else ''} cannot be made, so their shapes alone decide: {first}"
        )


def simulate_on(
    op: ReplayOp, devices: dict[str, DeviceProfile], contents: Contents | None = None
) -> dict[str, Simulated]:
    """Predictions for one op on every device; none for a label or an op without arguments, which is not for free."""
    from opreplay.replay.ascend import is_predicted, simulate_op

    made = {name: simulate_op(op, device, contents) for name, device in devices.items()}
    return {name: one for name, one in made.items() if is_predicted(op, one)}


def tell_unused(devices: Mapping[str, DeviceProfile], ops: Sequence[ReplayOp]) -> None:
    """Say on stderr which of the user's estimators, properties and rules made no prediction, and why."""
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.custom.estimators import unused_registrations

    lines = unused_registrations(tuple(devices), frozenset(op.name for op in ops))
    for line in lines[:UNUSED_SHOWN]:
        console.narrate(line)
    if len(lines) > UNUSED_SHOWN:
        console.narrate(f"and {len(lines) - UNUSED_SHOWN} more registrations made no prediction")
