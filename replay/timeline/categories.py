# pyright: strict
"""Split a step's time by device activity: computing, communication, copies, and idle time by cause.

The times are computed from unions of intervals.
"""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.replay.ir.step import IDLE_CAUSES
from opreplay.replay.timeline.graph.model import COLLECTIVE, COPY, KERNEL, LAUNCH, SET, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule
from opreplay.traces.arrays import Bools, Floats


class Categories(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step by category, in µs. Computing, communication_not_overlapped, copies and idle add up to the step.

    The categories are those of step_trace_time.csv of msprof-analyze. In a step without device work, computing is the
    time in ops on any host thread, and idle is the rest.
    """

    computing: float
    communication: float
    communication_overlapped: float
    """Communication that overlaps with computing."""
    communication_not_overlapped: float
    copies: float
    """Copies and fills that overlap with neither computing nor communication."""
    idle: float
    idle_before_first_task: float = 0.0
    """Time from the start of the step to its first device task."""
    idle_waiting_for_host: float = 0.0
    """Idle time because the next task was launched too late."""
    idle_launch_latency: float = 0.0
    """Idle because the device took time to start the next task after its launch.

    A latency that consecutive launches share delays all tasks equally. Therefore only the increase over the previous
    task's latency counts, unless the host waited for the device meanwhile.
    """
    idle_gaps_between_tasks: float = 0.0
    """Idle because the next task waited for another stream, or because of a gap between tasks of one stream."""
    idle_after_last_task: float = 0.0
    """Idle time from the end of the last device task to the end of the step."""
    idle_unknown_cause: float = 0.0
    """All idle time, if the clocks of host and device differ. The causes are then uncertain."""

    @property
    def idle_for_host(self) -> float:
        """Return the idle time caused by the host: before its first launch, because of late launches, and after the
        last task.
        """
        return self.idle_waiting_for_host + self.idle_before_first_task + self.idle_after_last_task

    def host_idle_text(self, step_us: float) -> str:
        """Return text with `idle_for_host` and its parts as shares of the step, in the terms of the category tables."""
        parts = {
            IDLE_CAUSES[cause]: getattr(self, f"idle_{cause}")
            for cause in ("waiting_for_host", "before_first_task", "after_last_task")
        }
        named = [f"{_percent(us / step_us)} {name}" for name, us in parts.items() if us >= _TOLD * step_us]
        return f"{_percent(self.idle_for_host / step_us)} of the step for the host ({', '.join(named)})"


_TOLD = 0.0005
"""Minimum idle time that is reported, as a share of the step."""


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def categories(graph: StepGraph, schedule: Schedule) -> Categories:
    """Return the time by category of a schedule of the step."""
    step_us, begin = schedule.step_us, schedule.begin_us
    nodes = graph.nodes
    if not graph.on_device:
        return _of_host(graph, schedule, step_us)
    work = device_work(graph)
    # The window ends with the step's completion: work of the step before fills what lies before `begin`.
    until = max(float(schedule.end_us[work].max()), min(begin + step_us, float(schedule.end_us.max())))
    window = (until - step_us, until)

    def busy(kinds: tuple[int, ...]) -> Floats:
        rows = work & np.isin(nodes.kind, kinds)
        return union(schedule.start_us[rows], schedule.end_us[rows], *window)

    computing, talking, copying = busy((KERNEL,)), busy((COLLECTIVE,)), busy((COPY, SET))
    either = merged(computing, talking)
    anything = merged(either, copying)
    compute, talk, both, all_ = length(computing), length(talking), length(either), length(anything)
    overlapped = compute + talk - both
    idle = _idle_causes(graph, schedule, work, anything, window)
    return Categories(
        computing=compute,
        communication=talk,
        communication_overlapped=overlapped,
        communication_not_overlapped=talk - overlapped,
        copies=all_ - both,
        idle=max(0.0, step_us - all_),
        **idle,
    )


def without_causes(times: Categories) -> Categories:
    """Return the categories with all idle time moved to `idle_unknown_cause`."""
    return msgspec.structs.replace(
        times,
        idle_before_first_task=0.0,
        idle_waiting_for_host=0.0,
        idle_launch_latency=0.0,
        idle_gaps_between_tasks=0.0,
        idle_after_last_task=0.0,
        idle_unknown_cause=times.idle,
    )


def device_work(graph: StepGraph) -> Bools:
    """Return a mask of the nodes that are device work: tasks, and collectives of an NPU (one node each)."""
    nodes = graph.nodes
    device = np.array([lane.device for lane in graph.lanes] or [False])[nodes.lane]
    return device & (nodes.row >= 0) | (nodes.collective >= 0) | (nodes.kind == COLLECTIVE)


def _of_host(graph: StepGraph, schedule: Schedule, step_us: float) -> Categories:
    """Return the categories of a step without device work: host ops, collectives on the host, and the rest."""
    nodes, slices = graph.nodes, graph.slices
    starts: list[Floats] = []
    ends: list[Floats] = []
    for node in range(len(nodes)):
        low, count = int(nodes.first_slice[node]), int(nodes.slices[node])
        if not count:
            continue
        lengths = slices.dur_us[low : low + count]
        recorded = float(lengths.sum())
        scale = (float(schedule.end_us[node] - schedule.start_us[node]) / recorded) if recorded else 0.0
        to = schedule.start_us[node] + np.cumsum(lengths) * scale
        inside = slices.op[low : low + count] >= 0
        starts.append((to - lengths * scale)[inside])
        ends.append(to[inside])
    busy = union(np.concatenate(starts), np.concatenate(ends), 0.0, step_us) if starts else np.empty((0, 2))
    rows = nodes.kind == COLLECTIVE
    talking = union(schedule.start_us[rows], schedule.end_us[rows], 0.0, step_us)
    computing, talk, either = length(busy), length(talking), length(merged(busy, talking))
    return Categories(
        computing=computing,
        communication=talk,
        communication_overlapped=computing + talk - either,
        communication_not_overlapped=either - computing,
        copies=0.0,
        idle=max(0.0, step_us - either),
        idle_waiting_for_host=max(0.0, step_us - either),
    )


def _idle_causes(graph: StepGraph, schedule: Schedule, work: Bools, busy: Floats, window: tuple[float, float]):
    """Return the idle time by cause. The cause of an idle interval is what the task after it had waited for."""
    out = {
        "idle_before_first_task": 0.0,
        "idle_waiting_for_host": 0.0,
        "idle_launch_latency": 0.0,
        "idle_gaps_between_tasks": 0.0,
        "idle_after_last_task": 0.0,
    }
    begin, until = window
    if not len(busy):
        out["idle_after_last_task"] = until - begin
        return out
    out["idle_before_first_task"] = float(busy[0, 0]) - begin
    out["idle_after_last_task"] = until - float(busy[-1, 1])
    rows = np.flatnonzero(work)
    rows = rows[np.argsort(schedule.start_us[rows], kind="stable")]
    ended_by = rows[np.minimum(np.searchsorted(schedule.start_us[rows], busy[1:, 0] - 1e-6), len(rows) - 1)]
    first = int(rows[np.argmax(schedule.start_us[rows] >= busy[0, 0] - 1e-6)])
    before = _latency(schedule, first) or 0.0
    for (_, low), (high, _), task in zip(busy[:-1], busy[1:], ended_by, strict=True):
        gap = float(high - low)
        latency = _latency(schedule, int(task))
        if latency is None:
            out["idle_gaps_between_tasks"] += gap
            continue
        waited = _host_waited(graph, schedule, int(task), float(low))
        delay = min(gap, latency if waited else max(0.0, latency - before))
        before = latency
        out["idle_launch_latency"] += delay
        out["idle_waiting_for_host"] += gap - delay
    return out


def _latency(schedule: Schedule, task: int) -> float | None:
    """Return the time from a task's launch to its start; None if the task waited for anything else after its launch."""
    launched_by = int(schedule.cause[task])
    if launched_by < 0 or schedule.cause_kind[task] != LAUNCH:
        return None
    return max(0.0, float(schedule.start_us[task] - schedule.end_us[launched_by]))


def _host_waited(graph: StepGraph, schedule: Schedule, task: int, since_us: float) -> bool:
    """Check whether the host code that launched a task had waited for the device after `since_us`."""
    node = int(schedule.cause[task])
    while schedule.start_us[node] >= since_us and (before := int(schedule.cause[node])) >= 0:
        node = before
        if graph.lanes[int(graph.nodes.lane[node])].device:
            return True
    return False


def union(starts: Floats, ends: Floats, low: float, high: float) -> Floats:
    """Merge intervals, clipped to [low, high]; return them in order as an array [n, 2]."""
    starts, ends = np.clip(starts, low, high), np.clip(ends, low, high)
    inside = ends > starts
    starts, ends = starts[inside], ends[inside]
    if not len(starts):
        return np.empty((0, 2))
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    first = np.append(True, starts[1:] > latest[:-1])
    last = np.append(first[1:], True)
    return np.stack([starts[first], latest[last]], axis=1)


def merged(a: Floats, b: Floats) -> Floats:
    """Return the union of two sets of intervals."""
    both = np.concatenate([a, b])
    return union(both[:, 0], both[:, 1], -np.inf, np.inf) if len(both) else both


def length(intervals: Floats) -> float:
    """Return the total length of non-overlapping intervals."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())
