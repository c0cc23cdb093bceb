# pyright: strict
"""What commands do before they begin, users' code and plans, and what predictions could not do, told on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.cli.options.source import Source
    from opreplay.initializers.registry import Registry
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.ir.step import StepReport
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.plan.kept import KeptContents
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.timeline.simulated import ContentsOf
    from opreplay.traces import Trace


T = TypeVar("T")
UNUSED_SHOWN = 5
"""Unused registrations that are told one by one."""


def use_plugins(names: Sequence[str]) -> tuple[str, ...]:
    """Load installed plugins and those of --plugin; say on stderr what they registered.

    Gives the files and modules that the user named, for other processes to load. Raises UsageError.
    """
    from collections import Counter

    from opreplay.cli.terminal import console
    from opreplay.replay.plugins import load_plugins, plugin_files, registrations

    load_plugins(names)
    by_source = Counter((registration.source, registration.kind) for registration in registrations())
    for source in dict.fromkeys(source for source, _ in by_source):
        counts = ", ".join(
            f"{n} {kind}{'s' if n > 1 and kind != 'properties' else ''}"
            for (of, kind), n in by_source.items()
            if of == source
        )
        console.narrate(f"{source}: {counts}")
    return plugin_files(names)


class SetUp(NamedTuple):
    """What a command that measures and predicts has before it reads a trace."""

    plugins: tuple[str, ...]
    """All that the user named, for other processes to load."""
    contents: ExpectedContents
    devices: dict[str, DeviceProfile]


def set_up(
    plugins: Sequence[str],
    init_args: Sequence[str],
    *,
    seed: int,
    values: str | None,
    socs: tuple[str, ...],
    cluster: str | None = None,
) -> SetUp:
    """Users' code, what arguments will hold, and the simulated devices. Raises UsageError and FormatError for each."""
    from opreplay.replay.ascend.simulate.devices import load_socs

    named = use_plugins(plugins)
    contents = _expected(init_args, seed=seed, values=values)
    return SetUp(named, contents, load_socs(socs, cluster))


class Planned(NamedTuple):
    """What a command that can predict without measuring has before it does."""

    plan: ReplayPlan
    contents: ExpectedContents | KeptContents
    devices: dict[str, DeviceProfile]
    plugins: tuple[str, ...]

    def conclude(self, *, unused: bool = True) -> None:
        """Once all is predicted: say on stderr what could not be, and keep what the next run can have."""
        _tell_problems(self.contents)
        if (keep := getattr(self.contents, "keep", None)) is not None:
            keep()
        if unused:
            tell_unused(self.devices, self.plan.ops)


def planned(
    make: Callable[[bool], tuple[ReplayPlan, T]],
    *,
    plugins: Sequence[str],
    socs: tuple[str, ...],
    init_args: Sequence[str],
    seed: int,
    keep: bool,
    values: str | None = None,
    cluster: str | None = None,
) -> tuple[Planned, T]:
    """Users' code, the simulated devices, a plan and what its arguments will hold, and what `make` gives beside the
    plan; it is told whether the plan may be kept between runs: with `keep`, where nothing of the user's decides on it.

    Raises UsageError and FormatError for each of what the user gave, before the plan is made where that can be.
    """
    from opreplay.replay.ascend.simulate.devices import load_socs
    from opreplay.replay.plan.kept import KeptContents

    named = use_plugins(plugins)
    devices = load_socs(socs, cluster)
    keep = keep and not named and not _has_extensions()
    contents: ExpectedContents | KeptContents | None = None
    if init_args or values is not None:
        contents = _expected(init_args, seed=seed, values=values)
    plan, beside = make(keep)
    if contents is None:
        contents = KeptContents(partial(_expected, seed=seed), plan, seed) if keep else _expected(seed=seed)
    if not isinstance(contents, KeptContents):
        refuse_unused_initializers(contents.registry, plan.ops, plugins, init_args)
    if values is not None:
        from opreplay.replay.arguments.supplied import check_values_file

        check_values_file(plan, values)
    return Planned(plan, contents, devices, named), beside


def plan_of_source(
    source: Source,
    selection: Selection,
    *,
    in_order: bool,
    device: str = "cpu",
    ranks: int | None = None,
    cluster: str | None = None,
    activity: bool = False,
    fused: Fused | None = "none",
    one_process: bool = False,
) -> Callable[[bool], tuple[ReplayPlan, Trace | ReplayPlan]]:
    """The `make` of `planned` for a trace: its plan, on ranks or for a cluster with its collectives, and what was
    read, `fused` as `fused_as_asked` has it. With `one_process` a merged trace is its busiest process."""

    def make(keep: bool) -> tuple[ReplayPlan, Trace | ReplayPlan]:
        from opreplay.cli.opening import busiest_of
        from opreplay.replay.ir.model import ReplayPlan
        from opreplay.replay.plan.collectives.in_plan import on_ranks
        from opreplay.replay.plan.inputs import plan_of
        from opreplay.replay.plan.kept import kept_plan_of

        collectives = ranks is not None or cluster is not None
        read = fused_as_asked(source.open(activity=activity or collectives), fused)
        if one_process and not isinstance(read, ReplayPlan):
            read = busiest_of(read)
        if keep:
            return kept_plan_of(read, selection, device=device, in_order=in_order), read
        plan = plan_of(read, selection, device=device, in_order=in_order, collectives=collectives)
        return on_ranks(plan, ranks), read

    return make


def fused_as_asked(read: T, fused: Fused | None) -> T | ReplayPlan:
    """Return what was read, a captured plan with the fused kernels that `fused` asks for, else as `as_served` has it.

    Says on stderr where there are none. Raises UsageError for what was not captured.
    """
    from opreplay.replay.ir.model import ReplayPlan

    if not isinstance(read, ReplayPlan) or not read.captured:
        if fused != "ascend":
            return read
        raise UsageError(
            "--fused is for a captured plan, which says what each call takes and gives",
            hint="`opreplay capture` writes one. Of a trace: `opreplay timeline --what-if 'fuse aten::add,aten::mul'`.",
        )
    from opreplay.cli.terminal import console
    from opreplay.replay.capture.serving.form import as_served

    plan = as_served(read, fused)
    if plan is read and fused == "ascend":
        console.narrate(f"opreplay: --fused {fused}: {read.source} holds no calls that one kernel stands for")
    return plan


def _has_extensions() -> bool:
    """Whether users' code or installed plugins may decide on plans."""
    from importlib.metadata import entry_points

    from opreplay.initializers import extensions
    from opreplay.replay import plugins

    groups = (plugins.ENTRY_POINTS, extensions.ENTRY_POINTS)
    return bool(plugins.registrations()) or any(entry_points(group=group) for group in groups)


def _expected(init_args: Sequence[str] = (), *, seed: int, values: str | None = None) -> ExpectedContents:
    """What arguments will hold; imports torch, which a kept plan does not need."""
    from opreplay.replay.ops.work.expected import expected_contents

    return expected_contents((), init_args, seed=seed, values=values)


def refuse_unused_initializers(
    registry: Registry, ops: Sequence[ReplayOp], plugins: Sequence[str], init_args: Sequence[str]
) -> None:
    """Raises UsageError for a file of --plugin that has nothing but initializers, and for a setting init_arg, where
    none of them names an op of the plan."""
    from opreplay.replay.ops.register import canonical_name
    from opreplay.replay.plan.select import nearest
    from opreplay.replay.plugins import registrations

    names = [name for op in ops for name in (op.name, op.called)]
    known = {*names, *(canonical_name(name) for name in names)}
    if not known:
        return

    def refuse(patterns: Sequence[str], message: str, verb: str) -> None:
        if not known.intersection(patterns):
            raise UsageError(message, hint=f"{verb} {', '.join(patterns[:4])}. {nearest(patterns, names)}")

    for name in plugins:
        of_file = [entry for entry in registrations() if entry.source == f"--plugin {name}"]
        if {entry.kind for entry in of_file} == {"initializer"}:
            patterns = [pattern for entry in of_file for pattern in entry.ops]
            refuse(patterns, f"--plugin {name}: none of its initializers names an op of the plan", "They name")
    for setting in init_args:
        rule = registry[setting.partition(".")[0]]
        message = f"--set init_arg={setting}: no op of the plan is initialized by {rule.name}"
        refuse(rule.op_patterns, message, "It is for")


def _tell_problems(contents: ExpectedContents | KeptContents) -> None:
    """Say on stderr for how many ops the initializers could not make what predictions depend on."""
    from opreplay.cli.terminal import console

    for why, text in (
        (contents.impossible, "{} cannot hold the batch that the trace tells: {}"),
        (contents.unrecorded, "{} may have done more than is predicted: {}"),
        (contents.problems, "contents of {} cannot be made, so their shapes alone decide: {}"),
    ):
        if why:
            console.narrate(text.format(f"{len(why)} op{'s' * (len(why) > 1)}", next(iter(why.values()))))


def tell_unused(devices: Mapping[str, DeviceProfile], ops: Sequence[ReplayOp]) -> None:
    """Say on stderr which of the user's conversions, executors, estimators, properties and rules were not used, and
    why."""
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.custom.estimators import unused_registrations
    from opreplay.replay.plugins import unused_functions

    lines = [*unused_functions(ops), *unused_registrations(tuple(devices), frozenset(op.name for op in ops))]
    for line in lines[:UNUSED_SHOWN]:
        console.narrate(line)
    if len(lines) > UNUSED_SHOWN:
        console.narrate(f"and {len(lines) - UNUSED_SHOWN} more registrations were not used")


def recorded_step(
    read: Trace | ReplayPlan,
    selection: Selection,
    plan: ReplayPlan,
    devices: Sequence[DeviceProfile],
    contents: ContentsOf,
) -> StepReport | None:
    """The step of the trace as `timeline` has it on the same devices; none of a part of its ops, which `plan` holds."""
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan.inputs import plan_of
    from opreplay.replay.plan.selection import Selection
    from opreplay.replay.timeline.timeline import step_of

    if isinstance(read, ReplayPlan) or selection.narrows:
        return None
    every = Selection(select="owner", allow_imports=selection.allow_imports)
    whole = plan if selection == every else plan_of(read, every, device="cpu", in_order=True)
    return step_of(read, devices=devices, plan=whole, contents=contents)
