# pyright: strict
"""`timeline`: analysis of one step of a trace: what ran, what determines the step's length, and what-ifs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.step_residency import PlannedStep
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.step import StepOnDevice, StepReport
from opreplay.replay.timeline.categories import Categories, categories, without_causes
from opreplay.replay.timeline.changes import Edited, Unmatched, apply_change, slices_with_op_times, with_op_times
from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.graph.model import LAUNCH, STREAM, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, lag_bounds, paced, retimed
from opreplay.replay.timeline.graph.slowed import loss_bounds, with_losses
from opreplay.replay.timeline.graph.transfer import transfer_times
from opreplay.replay.timeline.measured import MeasuredOps, with_measured
from opreplay.replay.timeline.memory import MemoryUse, inferred_memory, memory_of
from opreplay.replay.timeline.modules import module_tree
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.offload import offloaded
from opreplay.replay.timeline.paths import PathPart, Slack, path_modules, path_parts, slack_of_ops
from opreplay.replay.timeline.python_time import idle_notes, python_on_path
from opreplay.replay.timeline.simulated import Host, Predicted, SocStep, predict, step_on
from opreplay.replay.timeline.step import HOST_BOUND_SHARE, step_report
from opreplay.traces import Trace
from opreplay.traces.arrays import Floats
from opreplay.traces.errors import NothingRan
from opreplay.traces.links.collectives import with_host_collectives
from opreplay.traces.links.steps import Step, busy_steps, chosen_step
from opreplay.traces.names import file_name
from opreplay.traces.processes.select import one_process
from opreplay.traces.times.doubts import clock_offset_us

SCHEMA_VERSION = 1
"""Version of the JSON format. History: 1 is the first version."""
MOST_OTHER_STEPS = 4
"""Maximum number of other steps on which a graph is tested. Each test takes as long as the analysis of a step."""
LITTLE_GAIN = 0.5
"""Minimum share of the time removed from the changed work by which the step should get shorter. If it gains less, the
reason is reported.
"""


class EdgeCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of dependencies of one kind."""

    recorded: int
    inferred: int


class OtherSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of this step's graph on other steps.

    The graph is scheduled with the durations of another step. The error is relative to the recorded time of that step.
    """

    steps: int
    median_error: float
    worst_error: float
    """Maximum absolute error, as a share of the other step's time."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """A change with the resulting step length."""

    change: str
    step_us: float
    low_us: float
    high_us: float
    """Upper end of the range of `step_us`.

    The range covers two assumptions: no unexplained waiting, and every possible dependency.
    """
    gain_us: float
    """Time by which the step gets shorter."""
    work_gain_us: float
    """Time removed from the changed work, summed over its ops."""
    matched: int
    """Number of changed device tasks or intervals of host time. 0 means that the change matches nothing in
    this step.
    """
    assumptions: tuple[str, ...] = ()
    socs_us: dict[str, float] = {}
    """Simulated device → step length after the same change."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Analysis of one step. Times are in µs.

    `categories_us` and `critical_path` are recorded times, except under `socs`.
    """

    schema_version: int = SCHEMA_VERSION
    source: str
    step: StepReport
    recorded_step_us: float
    retimed_step_us: float
    """Steady-state length of the step, rescheduled from the graph with recorded durations and latencies."""
    structure_error: float
    """Error of the graph: `retimed_step_us` ÷ recorded length − 1."""
    structure_error_typical: float
    """Like `structure_error`, but with the median latency of each kind instead of recorded latencies.

    It shows how well the graph alone explains the step time.
    """
    other_steps: OtherSteps | None = None
    """Test of the graph on other steps; None if no other step launches work, or if it was not tested."""
    categories_us: Categories
    critical_path: tuple[PathPart, ...]
    critical_path_modules_us: dict[str, float]
    critical_path_python_us: dict[str, float] = {}
    """Time between ops on the critical path, by called Python function or, without stacks, by marked range.

    Empty if the trace names neither.
    """
    slack: tuple[Slack, ...]
    edges: dict[str, EdgeCount]
    unexplained_waits: int
    unexplained_us: float
    """Waiting time that no dependency explains, summed over all streams. Rescheduling keeps it unchanged."""
    dropped_edges: int
    socs: dict[str, SocStep] = {}
    """Results by simulated device."""
    measured_step_us: float | None = None
    """Step length with measured instead of recorded op times; None if no measurements were given."""
    measured_ops: int = 0
    """Number of calls with a measured time."""
    measured_profiler_us: float | None = None
    """Part of the measured step time that the profiler takes for inner ops. Without a profiler, the step is shorter by
    this time.
    """
    memory: MemoryUse | None = None
    """Memory use. None if the trace records no allocations in the step and no plan is given to infer them from."""
    what_if: tuple[WhatIf, ...] = ()
    what_if_together: WhatIf | None = None
    """All changes combined; None for fewer than two changes, or if none matches anything."""
    notes: tuple[str, ...] = ()


class OnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The step on one simulated device, with its schedule."""

    step: SocStep
    graph: StepGraph
    """The recorded graph. For a step that ran on the host, it is a graph with the ops as device tasks."""
    names: Names
    made: Predicted
    schedule: Schedule


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Intermediate results for plotting; not part of the JSON format."""

    timeline: Timeline
    graph: StepGraph
    names: Names
    schedule: Schedule
    simulated: dict[str, OnDevice]
    measured: Schedule | None = None
    """Schedule with measured op times, if any were given."""


def timeline(
    trace: Trace,
    *,
    step: int | None = None,
    what_if: Sequence[str] = (),
    devices: Sequence[DeviceProfile] = (),
    planned: PlannedStep | None = None,
    host_scale: float = 1.0,
    measured: MeasuredOps | None = None,
) -> Study:
    """Analyse one step of a trace that was read with its activity.

    `step` is as in `chosen_step`. `devices` are simulated with the ops of `planned`, which is needed for tasks that no
    kernel table describes. `host_scale` multiplies host times on these devices. `measured` has op times from a run, for
    a step that ran on the host.

    Raises TraceError for a missing step, for text that is not a change, and for `devices` if the step has no device
    work.
    """
    trace = with_host_collectives(trace)
    plan = planned.plan if planned is not None else None
    chosen = chosen_step(trace, step)
    graph = step_graph(trace, chosen)
    names = Names(trace, graph)
    schedule = paced(graph)
    recorded = recorded_schedule(graph)
    times = categories(graph, recorded)
    if graph.on_device and clock_offset_us(trace):
        times = without_causes(times)
    parts, by_row = path_parts(names, graph, schedule)
    error = relative(schedule.step_us, graph.recorded_us)
    typical = relative(paced(graph, lags_us=typical_lags(graph)).step_us, graph.recorded_us)
    simulated = _on_devices(trace, graph, names, devices, planned, max(abs(error), abs(typical)), host_scale)
    with_times = None if measured is None else with_measured(names, graph, measured)
    python = python_on_path(trace, graph, schedule, parts)
    memory = memory_of(trace, chosen, devices, plan)
    if memory is None and plan is not None:
        memory = inferred_memory(plan, devices, on_device=graph.on_device)
    timed = None if with_times is None else with_times.edited.schedule()
    changing = with_losses(trace, graph) if what_if else graph
    changes = tuple(what_if_of(names, changing, change, schedule, simulated) for change in what_if)
    return Study(
        timeline=Timeline(
            source=file_name(trace.info.path),
            step=step_report(
                names,
                schedule,
                times,
                tuple(parts),
                python,
                module_tree(names, graph, {row: us for row, us in by_row.items() if isinstance(row, int)}),
                _steps_on(simulated),
                asked=step is not None,
            ),
            recorded_step_us=graph.recorded_us,
            retimed_step_us=schedule.step_us,
            structure_error=error,
            structure_error_typical=typical,
            categories_us=times,
            critical_path=tuple(parts),
            critical_path_modules_us=path_modules(names, by_row),
            critical_path_python_us={function.name: function.us for function in python},
            slack=tuple(slack_of_ops(names, graph, schedule)),
            edges=edge_counts(graph),
            unexplained_waits=graph.unexplained.waits,
            unexplained_us=graph.unexplained.us,
            dropped_edges=graph.dropped_edges,
            socs={name: on_device.step for name, on_device in simulated.items()},
            memory=memory,
            measured_step_us=None if timed is None else timed.step_us,
            measured_ops=0 if with_times is None else with_times.edited.matched,
            measured_profiler_us=None if with_times is None else with_times.profiler_us,
            what_if=changes,
            what_if_together=_together(names, changing, what_if, schedule, simulated),
            notes=(
                *idle_notes(trace, graph, times, graph.recorded_us),
                *_notes(trace, chosen, graph),
                *(with_times.notes if with_times is not None else ()),
            ),
        ),
        graph=graph,
        names=names,
        schedule=schedule,
        simulated=simulated,
        measured=timed,
    )


def with_other_steps(trace: Trace, study: Study) -> Study:
    """Return the study with its graph tested on other steps of the trace."""
    other_steps = _on_other_steps(with_host_collectives(trace), study.graph)
    return msgspec.structs.replace(study, timeline=msgspec.structs.replace(study.timeline, other_steps=other_steps))


def step_of(
    read: Trace | ReplayPlan,
    *,
    devices: Sequence[DeviceProfile] = (),
    planned: PlannedStep | None = None,
) -> StepReport | None:
    """Return the report that all commands share, for the step with the median length; None if the trace has no times.

    In a merged trace, the step belongs to the busiest process.
    """
    study = study_of(read, devices=devices, planned=planned)
    return None if study is None else study.timeline.step


def study_of(
    read: Trace | ReplayPlan,
    *,
    devices: Sequence[DeviceProfile] = (),
    planned: PlannedStep | None = None,
) -> Study | None:
    """Return the analysis of the step with the median length; None if the trace has no times."""
    if not isinstance(read, Trace) or read.activity is None:
        return None
    read = one_process(read)
    try:
        return timeline(read, devices=devices, planned=planned)
    except NothingRan:
        return study_of(read) if devices else None


def _on_devices(
    trace: Trace,
    graph: StepGraph,
    names: Names,
    devices: Sequence[DeviceProfile],
    planned: PlannedStep | None,
    structure_error: float,
    host_scale: float,
) -> dict[str, OnDevice]:
    ops = {op.id: op for op in planned.plan.ops} if planned is not None else {}
    contents = planned.contents if planned is not None else None
    caches = planned.held(devices) if devices and planned is not None else [None] * len(devices)
    host = Host(scale=host_scale)
    if devices and not graph.on_device:
        trace, host_by_row = offloaded(trace, ops)
        graph = step_graph(trace, graph.step)
        names = Names(trace, graph)
        host_us, _ = with_op_times(names, graph, host_by_row)
        slices_us, _ = slices_with_op_times(names, graph, host_by_row)
        without, _ = with_op_times(names, graph, np.where(np.isnan(host_by_row), np.nan, 0.0))
        host = Host(scale=host_scale, nodes_us=host_us, dispatch_us=host_us - without, slices_us=slices_us)
    out: dict[str, OnDevice] = {}
    for device, resident in zip(devices, caches, strict=True):
        predicted = predict(trace, graph, device, ops, contents=contents, resident=resident, host=host)
        step, schedule = step_on(
            trace, graph, names, device, predicted, structure_error=structure_error, host_scale=host_scale
        )
        out[device.name] = OnDevice(step=step, graph=graph, names=names, made=predicted, schedule=schedule)
    return out


def what_if_of(
    names: Names, graph: StepGraph, change: str, before: Schedule, simulated: Mapping[str, OnDevice] | None = None
) -> WhatIf:
    """Return the effect of one change on the step, with recorded durations and on each simulated device."""
    on_devices = _on_each([change], simulated or {})
    try:
        changed = apply_change(names, graph, change)
    except Unmatched as nothing:
        why = f"{nothing.problem}. {nothing.hint}"
        if simulated and not graph.on_device and change.split()[0] == "fuse":
            # The advice to name a simulated device was followed: what is said there counts.
            why = "changes nothing: the step ran on the CPU" if on_devices.matched else ""
            notes = on_devices.notes.values()
        else:
            notes = on_devices.notes.values() if on_devices.matched else ()
        notes = [f"as recorded, {change!r} {why}" if on_devices.matched else why, *notes]
        changed = Edited.unchanged(graph, matched=on_devices.matched)
        return _what_if(change, before, changed, before, [0.0], filter(None, notes), on_devices)
    after = changed.schedule()
    work_us = float((graph.nodes.dur_us - changed.durations_us).sum())
    others = [named for note, named in on_devices.notes.items() if note not in changed.notes]
    notes = (*changed.notes, *_why_little(graph, before, after, work_us), *others)
    return _what_if(change, before, changed, after, gains_of(graph, changed, before, after), notes, on_devices)


def _what_if(
    change: str,
    before: Schedule,
    changed: Edited,
    after: Schedule,
    gains: Sequence[float],
    notes: Iterable[str],
    on_devices: _OnDevices,
) -> WhatIf:
    return WhatIf(
        change=change,
        step_us=after.step_us,
        low_us=before.step_us - max(gains),
        high_us=before.step_us - min(gains),
        gain_us=before.step_us - after.step_us,
        work_gain_us=float((changed.graph.nodes.dur_us - changed.durations_us).sum()),
        matched=changed.matched,
        assumptions=tuple(dict.fromkeys(notes)),
        socs_us=on_devices.steps_us,
    )


def gains_of(graph: StepGraph, changed: Edited, before: Schedule, after: Schedule) -> list[float]:
    """Return the gains of a change under several assumptions.

    The first gain uses the default assumptions. The others assume different unknown waits and dependencies, or a
    different loss of kernel speed during collectives.
    """
    recorded, bounded = lag_bounds(graph, graph.edges.lag_us), lag_bounds(graph, changed.lags_us)
    bounds = [(r, a) for r, a in zip(recorded, bounded, strict=True) if r is not graph.edges.lag_us]
    others = [paced(graph, None, r).step_us - changed.schedule(a).step_us for r, a in bounds]
    slowed = [msgspec.structs.replace(changed, graph=other).schedule().step_us for other in loss_bounds(changed.graph)]
    return [before.step_us - after.step_us, *others, *(before.step_us - step_us for step_us in slowed)]


def _why_little(graph: StepGraph, before: Schedule, after: Schedule, work_us: float) -> list[str]:
    """Return a line on why the step gains little: less than half of the time removed from the changed work.

    If it gains more, return an empty list.
    """
    gain = before.step_us - after.step_us
    if not graph.on_device or work_us <= 0.0 or gain >= LITTLE_GAIN * work_us:
        return []
    times = categories(graph, after)
    waits = times.idle_for_host
    gain_text = f"only {100 * (max(0.0, gain) / work_us):.0f} % of the time removed from this work shortens the step"
    if after.step_us and waits > HOST_BOUND_SHARE * after.step_us:
        idles = times.host_idle_text(after.step_us)
        return [f"{gain_text}: after the change the device waits for the host and idles {idles}"]
    return [f"{gain_text}: the rest overlaps with other work, or with waits for something else"]


class _OnDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of changes on a step on simulated devices."""

    steps_us: dict[str, float]
    """Step length by device; devices on which no change matches anything are left out."""
    notes: dict[str, str]
    """Assumption → note with the assumption and the names of the devices for which it was made."""
    matched: int


def _all_edits(
    names: Names, graph: StepGraph, changes: Sequence[str], predicted: Predicted | None
) -> tuple[Edited | None, list[str]]:
    """Return (the graph after all applicable changes, hints for the changes that match nothing).

    If `predicted` is given, the changes are applied to its times. The graph is None if no change applies.
    """
    total: Edited | None = None
    lacking: list[str] = []
    before = (
        None
        if predicted is None
        else Edited.unchanged(
            graph,
            predicted.durations_us,
            predicted.lags_us,
            predicted.slices_us,
            offloaded=predicted.dispatch_us is not None,
        )
    )
    for change in changes:
        try:
            total = apply_change(names, graph, change, total or before)
        except Unmatched as nothing:
            lacking.append(nothing.hint)
    return total, lacking


def _on_each(changes: Sequence[str], simulated: Mapping[str, OnDevice]) -> _OnDevices:
    """Return the effects of the changes on the step on each simulated device."""
    steps_us: dict[str, float] = {}
    devices: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    matched = 0
    for name, device in simulated.items():
        changed, lacking = _all_edits(device.names, device.graph, changes, device.made)
        notes |= {hint: f"on {name} the change has no effect: {hint}" for hint in lacking}
        if changed is None or not changed.matched:
            continue
        for note in changed.notes:
            devices.setdefault(note, []).append(name)
            notes[note] = f"on {' and '.join(devices[note])}: {note}"
        matched = max(matched, changed.matched)
        schedule = changed.schedule() if changed.overlap else paced(device.graph, changed.durations_us, changed.lags_us)
        steps_us[name] = schedule.step_us
    return _OnDevices(steps_us=steps_us, notes=notes, matched=matched)


def _together(
    names: Names, graph: StepGraph, changes: Sequence[str], before: Schedule, simulated: Mapping[str, OnDevice]
) -> WhatIf | None:
    changed = _all_edits(names, graph, changes, None)[0] if len(changes) > 1 else None
    if changed is None:
        return None
    after = changed.schedule()
    gains = gains_of(graph, changed, before, after)
    return _what_if(" and ".join(changes), before, changed, after, gains, changed.notes, _on_each(changes, simulated))


def edge_counts(graph: StepGraph) -> dict[str, EdgeCount]:
    """Return how many dependencies of each kind were recorded, and how many inferred."""
    return {kind: EdgeCount(recorded=r, inferred=i) for kind, (r, i) in graph.edge_counts().items()}


def recorded_schedule(graph: StepGraph) -> Schedule:
    """Return the recorded times as a schedule. Only the last dependency of each node comes from rescheduling."""
    nodes = graph.nodes
    again = retimed(graph)
    return Schedule(
        start_us=nodes.start_us,
        end_us=nodes.start_us + nodes.dur_us,
        cause=again.cause,
        cause_kind=again.cause_kind,
        step_us=graph.recorded_us,
        begin_us=graph.begin_us,
    )


def typical_lags(graph: StepGraph) -> Floats:
    """Return the lags with launch latencies and stream gaps replaced by their medians. Other lags stay as recorded."""
    edges = graph.edges
    lags = edges.lag_us.copy()
    launch, stream = edges.kind == LAUNCH, (edges.kind == STREAM) & (edges.lag_us >= 0)
    lags[launch] = graph.launch_latency_us
    lags[stream] = graph.stream_gap_us
    return lags


def relative(value: float, base: float) -> float:
    """Return the difference value ÷ base − 1; 0 for a base of 0."""
    return value / base - 1.0 if base else 0.0


def _steps_on(simulated: Mapping[str, OnDevice]) -> dict[str, StepOnDevice]:
    return {
        name: StepOnDevice(
            step_us=on.step.step_us,
            low_us=on.step.low_us,
            high_us=on.step.high_us,
            predicted_share=on.step.predicted_share,
            host_bound=on.step.host_bound,
        )
        for name, on in simulated.items()
    }


def _on_other_steps(trace: Trace, graph: StepGraph) -> OtherSteps | None:
    """Return the errors of this step's graph on the nearest other steps; None if there are none."""
    steps = [step for step in busy_steps(trace) if step.start_ns != graph.step.start_ns]
    steps = sorted(steps, key=lambda step: abs(step.start_ns - graph.step.start_ns))[:MOST_OTHER_STEPS]
    errors: list[float] = []
    for step in steps:
        other = step_graph(trace, step)
        durations_us, lags_us = transfer_times(graph, other)
        errors.append(abs(relative(paced(graph, durations_us, lags_us).step_us, other.recorded_us)))
    if not errors:
        return None
    return OtherSteps(steps=len(errors), median_error=float(np.median(errors)), worst_error=max(errors))


def _notes(trace: Trace, step: Step, graph: StepGraph) -> list[str]:
    notes: list[str] = []
    if not step.marked:
        notes.append(
            "the trace marks no steps, so the whole trace counts as one step, including start-up and profiler; "
            "call profiler.step() to mark them, or cut one out with `opreplay trim TRACE --between A..B`"
        )
    if graph.begin_us > 0.0:
        notes.append(
            f"the device was still running the previous step for the first {graph.begin_us / 1e3:,.2f} ms (inferred "
            f"from its launches, or from a wait for it); the step's {graph.recorded_us / 1e3:,.2f} ms are the time "
            f"from then until the work of this step was done, or the time of the host if that is longer"
        )
    if before_ns := trace.info.links.launched_before_device_ns:
        share = before_ns / int(trace.kernels.dur_ns.sum(dtype=np.int64))
        notes.append(
            f"{before_ns / 1e6:,.2f} ms of device work were launched before the recording, {100 * share:.1f} % of all "
            "in the file: shares here refer to work that the step launched, in `opreplay simulate` to all device time"
        )
    links = trace.info.links
    if links.launches_without_work:
        notes.append(
            f"{links.launches_without_work:,} of {links.launches:,} launches in the file have no kernel: the profiler "
            f"lost the kernel, or the launch was captured into a graph"
        )
    if graph.recorded_us and graph.unexplained.us > 0.05 * graph.recorded_us:
        notes.append(
            f"{graph.unexplained.waits} tasks waited {graph.unexplained.us / 1e3:,.2f} ms in total for an unrecorded "
            "reason: the waits are kept, and what-ifs give a range for them"
        )
    if graph.blocked_us:
        notes.append(
            f"{graph.blocked_us / 1e3:,.2f} ms in calls that wait for the device count as host work: the trace does "
            "not show what they waited for"
        )
    if not graph.on_device:
        notes.append("no device work: the step consists of its host threads")
    return notes
