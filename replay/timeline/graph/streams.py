# pyright: strict
"""What device tasks wait for: their launch, the task before on their stream, tasks of other streams."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from opreplay.replay.timeline.graph.model import (
    COLLECTIVE,
    CROSS_STREAM,
    SHARED,
    STREAM,
    Bools,
    Floats,
    Ints,
    Unexplained,
)
from opreplay.replay.timeline.graph.tasks import Tasks
from opreplay.traces import Trace
from opreplay.traces.links.steps import Step

_LATENCY_MARGIN_US = 50.0
_GAP_MARGIN_US = 15.0
"""A latency or a gap above the median by more than this (or four times the median) is waiting that asks for a cause."""
_BUSY_BEFORE_US = 1000.0
_FIRST_FEW = 10
"""Tasks of a step that may have run, on other streams, before one that waited for work from before the step."""
_EVENT_US = 2.0
"""From the end of a task to the start of one on another stream that waited for it, at most; more is not that wait's."""
_SKEW_US = 1.0
_STREAM_WAITS = ("streamwaitevent",)


@dataclass(slots=True)
class TaskEdges:
    """Edges into tasks. `launch_*` come from the thread at the task's launch; `source` are positions of tasks."""

    launch_lag_us: Floats
    """Per task; NaN where no launch is known."""
    source: list[int] = field(default_factory=list[int])
    target: list[int] = field(default_factory=list[int])
    lag_us: list[float] = field(default_factory=list[float])
    kind: list[int] = field(default_factory=list[int])
    recorded: list[bool] = field(default_factory=list[bool])
    latency_us: float = 0.0
    gap_us: float = 0.0
    unexplained: Unexplained = field(default_factory=Unexplained)
    busy_before_us: dict[int, float] = field(default_factory=dict[int, float])
    """Stream → until when it must have been busy with work that the file does not hold."""

    def add(self, source: int, target: int, lag_us: float, kind: int, *, recorded: bool) -> None:
        """One more edge between tasks."""
        self.source.append(source)
        self.target.append(target)
        self.lag_us.append(lag_us)
        self.kind.append(kind)
        self.recorded.append(recorded)


def task_edges(trace: Trace, tasks: Tasks, earlier_us: dict[int, float], step: Step) -> TaskEdges:
    """Dependencies of all tasks; `earlier_us` says until when each stream was busy with work from before the step."""
    n = len(tasks)
    out = TaskEdges(launch_lag_us=np.full(n, np.nan))
    if not n:
        return out
    previous = _previous(tasks)
    ended = np.where(previous >= 0, tasks.end_us[previous], np.nan)
    for stream, until in earlier_us.items():
        first = np.flatnonzero((tasks.stream == stream) & (previous < 0))
        ended[first] = until
    if step.marked:
        _busy_before(tasks, previous, ended, out)
    from_launch = tasks.start_us - tasks.launch_us
    from_previous = tasks.start_us - ended
    starved = np.isnan(ended) | (tasks.launch_us > ended)
    known = ~np.isnan(tasks.launch_us)
    first_of_launch = _first_of_launch(tasks)
    # A collective's start waits for other ranks' and other streams' work more often than for its launch alone.
    free = known & starved & first_of_launch & (from_launch >= 0)
    alone = free & (tasks.kind != COLLECTIVE)
    out.latency_us = _median(from_launch[alone if alone.any() else free])
    _recorded_waits(trace, tasks, step.start_ns, out)
    _waits_of_collectives(tasks, out)
    # Two tasks of one stream follow at once where the later one was waiting; a gap that was the fault of a launch or of
    # another stream is not one.
    queued = known & ~np.isnan(ended) & (tasks.launch_us + out.latency_us < ended)
    queued[out.target] = False
    out.gap_us = max(0.0, _median(from_previous[queued]))
    explained = np.full(n, -np.inf)
    for source, target, lag in zip(out.source, out.target, out.lag_us, strict=True):
        explained[target] = max(explained[target], tasks.end_us[source] + lag)
    ready_launch = np.where(known, tasks.launch_us + out.latency_us, -np.inf)
    ready_stream = np.where(np.isnan(ended), -np.inf, ended + out.gap_us)
    by_launch = ready_launch >= ready_stream
    slack = np.where(by_launch, from_launch, from_previous)
    typical = np.where(by_launch, out.latency_us, out.gap_us)
    margin = np.where(by_launch, _LATENCY_MARGIN_US, _GAP_MARGIN_US)
    late = slack > typical + np.maximum(margin, 4 * typical)
    late &= known | ~np.isnan(ended)
    large = late.copy()
    late &= tasks.start_us - explained > np.maximum(margin, 4 * typical)
    waits, lost = 0, 0.0
    finished = np.argsort(tasks.end_us, kind="stable")
    sorted_ends = tasks.end_us[finished]
    for task in np.flatnonzero(late).tolist():
        cause = _cause(tasks, task, finished, sorted_ends, float(max(ready_launch[task], ready_stream[task])))
        ready = float(max(ready_launch[task], ready_stream[task]))
        if cause >= 0:
            lag = max(0.0, float(tasks.start_us[task] - tasks.end_us[cause]))
            out.add(cause, task, lag, CROSS_STREAM, recorded=False)
        elif (cause := _in_the_way(tasks, task, finished, sorted_ends, ready)) >= 0:
            out.add(cause, task, float(tasks.start_us[task] - tasks.end_us[cause]), SHARED, recorded=False)
        elif known[task] or not np.isnan(ended[task]):
            waits += 1
            lost += float(slack[task] - typical[task])
    # What binds keeps its recorded time, within reason; what does not keeps no more than is typical.
    own = np.where(large, typical, slack)
    out.launch_lag_us = np.where(known, np.where(by_launch, own, np.minimum(from_launch, out.latency_us)), np.nan)
    stream_lag = np.where(by_launch, np.minimum(from_previous, out.gap_us), own)
    after = np.flatnonzero(previous >= 0)
    lags = np.maximum(stream_lag[after], -(tasks.end_us[previous[after]] - tasks.start_us[previous[after]]))
    out.source += previous[after].tolist()
    out.target += after.tolist()
    out.lag_us += lags.tolist()
    out.kind += [STREAM] * len(after)
    out.recorded += [True] * len(after)
    out.unexplained = Unexplained(waits=waits, us=lost)
    return out


def _busy_before(tasks: Tasks, previous: Ints, ended: Floats, out: TaskEdges) -> None:
    """Streams whose first task starts long after its launch, while the device does nothing that is recorded."""
    for task in np.flatnonzero((previous < 0) & ~np.isnan(tasks.launch_us)).tolist():
        launch, start = float(np.fmax(tasks.launch_us[task], ended[task])), float(tasks.start_us[task])
        ran = tasks.start_us < start
        busy = float((tasks.end_us - tasks.start_us)[ran & (tasks.end_us > launch)].sum())
        if start - launch > _BUSY_BEFORE_US and ran.sum() <= _FIRST_FEW and busy < (start - launch) / 2:
            ended[task] = start
            out.busy_before_us[int(tasks.stream[task])] = start


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _previous(tasks: Tasks) -> Ints:
    """Per task the one that started before it on its stream, or -1."""
    out = np.full(len(tasks), -1, np.int64)
    order = np.argsort(tasks.stream, kind="stable")
    same = tasks.stream[order][1:] == tasks.stream[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out


def _first_of_launch(tasks: Tasks) -> Bools:
    """Whether each task is the first of its launch: a captured graph is one launch of many."""
    _, first = np.unique(tasks.correlation, return_index=True)
    out = tasks.correlation < 0
    out[first] = True
    return out


def _recorded_waits(trace: Trace, tasks: Tasks, origin_ns: int, out: TaskEdges) -> None:
    """Streams that wait for events: where the trace says of which stream, and where only the call is recorded."""
    activity = trace.activity
    assert activity is not None
    calls, waits = activity.calls, activity.waits
    at = {c: i for i, c in enumerate(calls.correlation.tolist()) if c >= 0} if len(waits) else {}
    numbers = {stream: index for index, (_, stream) in enumerate(tasks.streams)}
    orders = [_launch_order(tasks, stream) for stream in range(len(tasks.streams))]
    told: set[int] = set()
    for correlation, stream, source, record in zip(
        waits.correlation.tolist(),
        waits.stream.tolist(),
        waits.waits_for_stream.tolist(),
        waits.record_correlation.tolist(),
        strict=True,
    ):
        if source < 0 or correlation not in at:
            continue
        told.add(at[correlation])
        if source not in numbers or stream not in numbers or source == stream:
            continue
        asked = (int(calls.start_ns[at[correlation]]) - origin_ns) / 1e3
        marked = (int(calls.start_ns[at[record]]) - origin_ns) / 1e3 if record in at else asked
        _wait_between(tasks, orders[numbers[source]], marked, orders[numbers[stream]], asked, out, recorded=True)
    names = np.array([any(word in name.lower() for word in _STREAM_WAITS) for name in activity.names] or [False])
    rows: list[int] = np.flatnonzero(names[calls.name]).tolist() if len(calls) else []
    if len(tasks.streams) < 2:
        return
    by_time = np.argsort(np.where(np.isnan(tasks.launch_us), np.inf, tasks.launch_us), kind="stable")
    launches = tasks.launch_us[by_time]
    launches = launches[~np.isnan(launches)]
    for row in rows:
        if int(row) in told:
            continue
        when = (int(calls.start_ns[row]) - origin_ns) / 1e3
        place = int(np.searchsorted(launches, when))
        if 0 < place < len(launches):
            before, after = int(by_time[place - 1]), int(by_time[place])
            if tasks.stream[before] != tasks.stream[after]:
                _edge_if_in_order(tasks, before, after, out, recorded=False)


def _launch_order(tasks: Tasks, stream: int) -> tuple[Floats, Ints]:
    rows = np.flatnonzero((tasks.stream == stream) & ~np.isnan(tasks.launch_us))
    rows = rows[np.lexsort((rows, tasks.launch_us[rows]))]
    return tasks.launch_us[rows], rows


def _wait_between(
    tasks: Tasks,
    source: tuple[Floats, Ints],
    marked_us: float,
    target: tuple[Floats, Ints],
    asked_us: float,
    out: TaskEdges,
    *,
    recorded: bool,
) -> None:
    """The last task of one stream launched before the event was recorded → the first of another after the wait."""
    last = int(np.searchsorted(source[0], marked_us)) - 1
    first = int(np.searchsorted(target[0], asked_us))
    if last >= 0 and first < len(target[0]):
        _edge_if_in_order(tasks, int(source[1][last]), int(target[1][first]), out, recorded=recorded)


def _edge_if_in_order(tasks: Tasks, source: int, target: int, out: TaskEdges, *, recorded: bool) -> None:
    delay = float(tasks.start_us[target] - tasks.end_us[source])
    if delay >= -_SKEW_US and tasks.start_us[source] <= tasks.start_us[target] and source < target:
        # A wait that was over before the task could start has no latency of its own to keep.
        out.add(source, target, min(max(delay, 0.0), _EVENT_US), CROSS_STREAM, recorded=recorded)


def _waits_of_collectives(tasks: Tasks, out: TaskEdges) -> None:
    """A collective on a stream of its own waits for what was launched before it: its input."""
    talking = np.flatnonzero((tasks.kind == COLLECTIVE) & ~np.isnan(tasks.launch_us))
    if not len(talking) or len(tasks.streams) < 2:
        return
    order = np.flatnonzero((tasks.kind != COLLECTIVE) & ~np.isnan(tasks.launch_us))
    order = order[np.lexsort((order, tasks.launch_us[order]))]
    launches = tasks.launch_us[order]
    for task in talking.tolist():
        at = int(np.searchsorted(launches, float(tasks.launch_us[task]))) - 1
        if at >= 0 and tasks.stream[order[at]] != tasks.stream[task]:
            _edge_if_in_order(tasks, int(order[at]), task, out, recorded=False)


def _cause(tasks: Tasks, task: int, finished: Ints, sorted_ends: Floats, ready_us: float) -> int:
    """The task of another stream whose end a late start follows, or -1 where none ended just before it."""
    at = int(np.searchsorted(sorted_ends, float(tasks.start_us[task]) + _SKEW_US, side="right")) - 1
    while at >= 0 and tasks.start_us[task] - sorted_ends[at] <= _LATENCY_MARGIN_US and sorted_ends[at] > ready_us:
        found = int(finished[at])
        if tasks.stream[found] != tasks.stream[task] and found < task:
            return found
        at -= 1
    return -1


_COVERED = 0.8
_LOOK_BACK = 200


def _in_the_way(tasks: Tasks, task: int, finished: Ints, sorted_ends: Floats, ready_us: float) -> int:
    """The task of another stream that kept the device busy while this one was ready, or -1.

    Streams share one device: a kernel starts when blocks of another one leave, a little before that one's end. Tasks
    of other streams must have filled most of the wait; the one whose end is nearest to the start is the one.
    """
    start = float(tasks.start_us[task])
    first = int(np.searchsorted(sorted_ends, ready_us))
    found = finished[first : first + _LOOK_BACK + 1]
    found = found[(tasks.stream[found] != tasks.stream[task]) & (tasks.start_us[found] < start) & (found < task)]
    if not len(found) or len(found) > _LOOK_BACK:
        return -1
    order = found[np.argsort(tasks.start_us[found])]
    begins = np.maximum(tasks.start_us[order], ready_us)
    ends = np.minimum(np.maximum.accumulate(tasks.end_us[order]), start)
    covered = np.maximum(0.0, ends - np.maximum(begins, np.concatenate([[ready_us], ends[:-1]]))).sum()
    if covered < _COVERED * (start - ready_us):
        return -1
    nearest = int(order[np.argmin(np.abs(tasks.end_us[order] - start))])
    dur = float(tasks.end_us[nearest] - tasks.start_us[nearest])
    return nearest if abs(float(tasks.end_us[nearest]) - start) <= max(_LATENCY_MARGIN_US, dur / 2) else -1
