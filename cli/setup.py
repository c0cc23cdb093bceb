# pyright: strict
"""Prepare commands: load user code, make plans, and report on stderr what could not be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from opreplay.traces.errors import UsageError
from opreplay.traces.names import plural

if TYPE_CHECKING:
    from opreplay.initializers.registry import Registry
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.capture.serving.form import Fused
    from opreplay.replay.ir.model import ReplayOp, ReplayPlan
    from opreplay.replay.job.job import Job, Source
    from opreplay.replay.job.settings import Settings
    from opreplay.replay.ops.work.expected import ExpectedContents
    from opreplay.replay.plan.kept import CachedContents
    from opreplay.replay.plan.selection import Selection


T = TypeVar("T")
UNUSED_SHOWN = 5
"""Maximum number of unused registrations that are reported individually."""


def use_plugins(names: Sequence[str]) -> tuple[str, ...]:
    """Load installed plugins and those of --plugin; report on stderr what they registered.

    Returns the files and modules that the user named, so that other processes can load them. Raises UsageError if a
    plugin cannot be loaded.
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


def open_job(
    source: Source,
    selection: Selection | None,
    settings: Settings,
    socs: Sequence[str],
) -> Job:
    """Load user code, then open the job.

    `settings.plugins` holds names as the user gave them. The job's settings get the files and modules for these names.
    Raises UsageError and FormatError for invalid input of the user.
    """
    import msgspec

    from opreplay.replay.job.job import Job

    named = use_plugins(settings.plugins)
    return Job.open(source, selection, msgspec.structs.replace(settings, plugins=named), socs)


def prepare(job: Job, plugins: Sequence[str]) -> ReplayPlan:
    """Return the plan after checking the initializers and values that the user gave for its ops.

    Raises UsageError for initializers and values that fit no op, and the errors of `Job.plan`.
    """
    from opreplay.cli.terminal import console

    plan, settings = job.plan, job.settings
    if job.unfused:
        console.narrate(f"opreplay: --fused ascend: {plan.source} contains no calls that one kernel can replace")
    if not job.keeps or settings.init_args or settings.values is not None:
        refuse_unused_initializers(job.registry, plan.ops, plugins, settings.init_args)
    if settings.values is not None:
        from opreplay.replay.arguments.supplied import check_values_file

        check_values_file(plan, settings.values)
    return plan


def warn_of_small_cluster(job: Job) -> None:
    """Warn on stderr if process groups of collectives are larger than the simulated cluster."""
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.simulate.devices import ranks_without_dies

    if (small := ranks_without_dies(job.plan.ops, job.devices.values())) is not None:
        console.narrate(f"opreplay: warning: {small}")


def finish_predictions(job: Job, *, unused: bool = True) -> None:
    """Finish the predictions. Report on stderr what could not be predicted, and store what the next run can reuse."""
    contents = job.contents
    _tell_problems(contents)
    if (keep := getattr(contents, "store_new", None)) is not None:
        keep()
    if unused:
        tell_unused(job.devices, job.plan.ops)


def apply_fusion(read: T, fused: Fused | None) -> T | ReplayPlan:
    """Return a captured plan with the fused kernels that `fused` requests.

    If nothing changes, `read` itself is returned. For "ascend", a message on stderr then says that no calls can be
    fused. Raises UsageError if fusion is requested for anything but a captured plan.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.job.job import with_fused_kernels

    plan = with_fused_kernels(read, fused)
    if plan is read and fused == "ascend":
        name = plan.source if isinstance(plan, ReplayPlan) else "it"
        console.narrate(f"opreplay: --fused {fused}: {name} contains no calls that one kernel can replace")
    return plan


def refuse_unused_initializers(
    registry: Registry, ops: Sequence[ReplayOp], plugins: Sequence[str], init_args: Sequence[str]
) -> None:
    """Raise UsageError if the user named initializers that apply to no op of the plan.

    This checks the --plugin files that register only initializers, and the initializers of the setting init_arg.
    """
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
            refuse(patterns, f"--plugin {name}: none of its initializers is for an op of the plan", "They are for")
    for setting in init_args:
        rule = registry[setting.partition(".")[0]]
        message = f"--set init_arg={setting}: no op of the plan is initialized by {rule.name}"
        refuse(rule.op_patterns, message, "The initializer is for")


def _tell_problems(contents: ExpectedContents | CachedContents) -> None:
    """Report on stderr how many ops have inputs that affect predictions but are uncertain or not generated."""
    from opreplay.cli.terminal import console

    for why, text in (
        (contents.impossible, "arguments of {} are too small for the batch that the trace records: {}"),
        (contents.unrecorded, "{} may have done more work than is predicted: {}"),
        (contents.problems, "inputs of {} could not be generated, so only shapes affect the prediction: {}"),
    ):
        if why:
            console.narrate(text.format(plural(len(why), "op"), next(iter(why.values()))))


def tell_unused(devices: Mapping[str, DeviceProfile], ops: Sequence[ReplayOp]) -> None:
    """Report on stderr which of the user's registered functions were not used, and why.

    These are conversions, executors, estimators, properties and lowering rules.
    """
    from opreplay.cli.terminal import console
    from opreplay.replay.ascend.custom.estimators import unused_registrations
    from opreplay.replay.plugins import unused_functions

    lines = [*unused_functions(ops), *unused_registrations(tuple(devices), frozenset(op.name for op in ops))]
    for line in lines[:UNUSED_SHOWN]:
        console.narrate(line)
    if len(lines) > UNUSED_SHOWN:
        console.narrate(f"also not used: {plural(len(lines) - UNUSED_SHOWN, 'more registration')}")
