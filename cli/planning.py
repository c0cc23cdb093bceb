"""From command-line values to a trace, a plan and simulated devices: what `run` and `plan` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from opreplay.cli.progress import ReadProgress
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.ir import ReplayOp, ReplayPlan
    from opreplay.replay.results import MetaCheck, Simulated
    from opreplay.replay.work.contents import Contents
    from opreplay.replay.work.expected import ExpectedContents
    from opreplay.traces import Limits, Trace
    from opreplay.traces.annotations import Phase


UNUSED_SHOWN = 5
"""Unused registrations that are told one by one."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What the selection options say."""

    select: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    top: int | None
    min_share: float | None
    allow_imports: dict[str, str]
    phase: Phase | None = None


def open_trace(
    text: str, limits: Sequence[tuple[str, str]], *, kernel_details: str | None = None, activity: bool = False
) -> Trace:  # fmt: skip
    """Read the one profile that the TRACE argument means, with progress on stderr, and an NPU's kernel table with it.

    `activity`: with what else ran when.

    Raises UsageError for a glob that matches several, TraceError for what cannot be read.
    """
    from opreplay.cli.kernel_tables import with_kernel_table
    from opreplay.traces import read_trace

    path = the_one_path(text)
    with ReadProgress() as progress:
        trace = read_trace(path, limits=parse_limits(limits), progress=progress, activity=activity)
    return with_kernel_table(trace, kernel_details)


def the_one_path(text: str) -> str:
    """The one file that a path or glob means. Raises UsageError for none or several."""
    from opreplay.traces import expand_paths

    paths = expand_paths([text])
    if len(paths) != 1:
        raise UsageError(f"{text} matches {len(paths)} files, e.g. {paths[0]}" if paths else f"{text} matches no file",
                         hint="Name one of them.")  # fmt: skip
    return paths[0]


def parse_limits(pairs: Sequence[tuple[str, str]]) -> Limits:
    """Limits of the reader with those of --limit. Raises UsageError that lists the names for an unknown one."""
    from opreplay.cli.options import ByteSize
    from opreplay.traces import Limits

    known = {name: getattr(Limits(), name) for name in Limits.__dataclass_fields__}
    chosen: dict[str, int] = {}
    for name, text in pairs:
        if name not in known:
            raise UsageError(f"no limit is called {name!r}", hint=f"Limits are {', '.join(sorted(known))}.")
        chosen[name] = ByteSize().convert(text, None, None)
    return Limits(**chosen)


def load_socs(names: Sequence[str]) -> dict[str, DeviceProfile]:
    """Simulated devices by name, in the order given.

    Raises UsageError for unknown devices, two of one name, and registrations for a device that is none.
    """
    from opreplay.replay.ascend import load_device
    from opreplay.replay.ascend.custom import refuse_unknown_devices

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

    from opreplay.cli import console
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
    from opreplay.initializers.recorded_values import RecordedValues
    from opreplay.replay.work.expected import ExpectedContents

    supplied = None if values is None else RecordedValues(values)
    return ExpectedContents(open_registry(init_modules, init_args), seed, supplied)


def tell_problems(contents: ExpectedContents) -> None:
    """Say on stderr for how many ops the initializers could not make what predictions depend on."""
    from opreplay.cli import console

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
    from opreplay.cli import console
    from opreplay.replay.ascend.custom import unused_registrations

    lines = unused_registrations(tuple(devices), frozenset(op.name for op in ops))
    for line in lines[:UNUSED_SHOWN]:
        console.narrate(line)
    if len(lines) > UNUSED_SHOWN:
        console.narrate(f"and {len(lines) - UNUSED_SHOWN} more registrations made no prediction")


def make_plan(trace: Trace, selection: Selection, *, device: str, in_order: bool = False) -> ReplayPlan:
    """The plan for the selected ops with their outputs filled in, and `in_order` with the calls of one step."""
    from opreplay.replay.build import build_plan
    from opreplay.replay.outputs import with_outputs
    from opreplay.replay.policy import Policy
    from opreplay.replay.select import OpFilter

    filters = OpFilter(
        include=selection.include, exclude=selection.exclude, top=selection.top, min_share=selection.min_share,
        phase=selection.phase,
    )  # fmt: skip
    policy = Policy(allow_imports=selection.allow_imports)
    plan = build_plan(
        trace, select=selection.select, filters=filters, policy=policy, device=device, in_order=in_order
    )  # fmt: skip
    return with_outputs(plan, policy=policy)


def check_on_meta(plan: ReplayPlan, selection: Selection) -> dict[str, MetaCheck]:
    """What calls on meta tensors say of the plan's ops, by id."""
    from opreplay.replay.meta_run import check_plan
    from opreplay.replay.policy import Policy

    return check_plan(plan, policy=Policy(allow_imports=selection.allow_imports))


def find_ops(plan: ReplayPlan, wanted: str) -> list[ReplayOp]:
    """Ops that a name, a glob or the start of an id means, heaviest first. Raises UsageError when there are none."""
    exact = [op for op in plan.ops if op.name == wanted]
    found = exact or [op for op in plan.ops if fnmatchcase(op.name, wanted) or op.id.startswith(wanted)]
    if not found:
        names = ", ".join(dict.fromkeys(op.name for op in plan.ops[:8]))
        hint = f"The heaviest ops are {names}." if names else "The selection holds no ops: try --select all."
        raise UsageError(f"no selected op matches {wanted!r}", hint=hint)
    return found
