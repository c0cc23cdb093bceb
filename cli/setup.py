"""From command-line values to a trace, a plan and simulated devices: what `run` and `plan` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.arguments.work.amounts import Contents
    from opreplay.replay.arguments.work.expected import ExpectedContents
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir.model import ReplayOp
    from opreplay.replay.results.records import Simulated


def load_socs(names: Sequence[str], custom_op_dir: str | None = None) -> dict[str, DeviceProfile]:
    """Simulated devices by name, in the order given, after the files of `custom_op_dir` have registered their ops.

    Raises UsageError for unknown devices, two of one name, and custom-op files that fail.
    """
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.custom.estimators import load_custom_ops

    load_custom_ops(custom_op_dir)
    devices: dict[str, DeviceProfile] = {}
    for text in names:
        device = load_device(text)
        if device.name in devices:
            raise UsageError(f"two simulated devices are called {device.name}", hint="Name each --soc once.")
        devices[device.name] = device
    return devices


def use_plugins(names: Sequence[str]) -> None:
    """Load installed plugins and those of --plugin, and say on stderr what they registered. Raises UsageError."""
    from collections import Counter

    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import load_plugins, registrations

    load_plugins(names)
    by_source = Counter((one.source, one.kind) for one in registrations())
    for source in dict.fromkeys(source for source, _ in by_source):
        counts = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for (of, kind), n in by_source.items() if of == source)
        console.narrate(f"{source}: {counts}")


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

    if contents.problems:
        count, first = len(contents.problems), next(iter(contents.problems.values()))
        console.narrate(
            f"contents of {count} op{'s' if count > 1 else ''} cannot be made, so their shapes alone decide: {first}"
        )


def simulate_on(
    op: ReplayOp, devices: dict[str, DeviceProfile], contents: Contents | None = None
) -> dict[str, Simulated]:
    """Predictions for one op on every device; none for a label or an op without arguments, which is not for free."""
    from opreplay.replay.ascend import simulate_op

    made = {name: simulate_op(op, device, contents) for name, device in devices.items()}
    return {} if op.reason is not None and not any(one.kernels for one in made.values()) else made
