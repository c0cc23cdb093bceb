# pyright: strict
"""Dependencies of device tasks on their launch, on the previous task of their stream, and on tasks of other streams."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import COLLECTIVE, CROSS_STREAM, KERNEL, SHARED, STREAM, EdgeList, Unexplained
from opreplay.replay.timeline.graph.tasks import Earlier, Tasks
from opreplay.traces import Trace
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.links.steps import Step

_LATENCY_MARGIN_US = 50.0
_GAP_MARGIN_US = 15.0
"""Margin, in µs, by which a latency or gap must exceed the median to count as a wait with another cause. It must also
exceed four times the median.
"""
_FEW = 5
"""Minimum number of gaps of a stream for a meaningful median."""
_BUSY_BEFORE_US = 1000.0
_FIRST_FEW = 10
"""Maximum number of tasks that may run before a task for which a wait for work from before the step is assumed."""
_EVENT_US = 2.0
"""Maximum delay, in µs, of a task after the end of the task that it waits for on another stream. A longer delay has
another cause.
"""
_FOLLOWS_US = 8.0
"""Time, in µs, after the end of another stream's task. A ready task that starts within this time is assumed to wait for
that task.
"""
_SKEW_US = 1.0
_FEW_STREAMS = 4
"""Maximum number of streams to search for the two streams of a wait. They are searched for if only the call of the wait
is recorded.
"""
_NEAR = 32
"""Number of launches before and after a wait call that are searched for its streams."""
_STREAM_WAITS = ("streamwaitevent",)
_EVENT_RECORDS = ("eventrecord",)


class TaskEdges(msgspec.Struct):
    """Dependencies of tasks; ids of source tasks are numbered as in `Earlier.number`."""

    launch_lag_us: Floats
    """Lag from each task's launch to its start; NaN if the launch is unknown."""
    launch_unknown_us: Floats
    """Part of each launch lag that no recorded dependency explains."""
    edges: EdgeList = msgspec.field(default_factory=EdgeList)
    latency_us: float = 0.0
    gap_us: float = 0.0
    kernels_take_turns: bool = False
    unexplained: Unexplained = msgspec.field(default_factory=Unexplained)
    busy_before_us: dict[int, float] = msgspec.field(default_factory=dict[int, float])
    """Stream → time until which it must have run work that the trace does not contain."""


def task_edges(trace: Trace, tasks: Tasks, earlier: Earlier, step: Step) -> TaskEdges:
    """Return the dependencies of all tasks of a step, including dependencies on work of the previous step."""
    n = len(tasks)
    out = TaskEdges(launch_lag_us=np.full(n, np.nan), launch_unknown_us=np.zeros(n))
    if not n:
        return out
    previous = _previous(tasks)
    ended = np.where(previous >= 0, tasks.end_us[previous], np.nan)
    for stream, until in earlier.until_us.items():
        first = np.flatnonzero((tasks.stream == stream) & (previous < 0))
        ended[first] = until
    if step.marked:
        _busy_before(tasks, previous, ended, earlier, out)
    from_launch = tasks.start_us - tasks.launch_us
    from_previous = tasks.start_us - ended
    starved = np.isnan(ended) | (tasks.launch_us > ended)
    known = ~np.isnan(tasks.launch_us)
    first_of_launch = _first_of_launch(tasks)
    # A collective's start waits for other ranks' and other streams' work more often than for its launch alone.
    free = known & starved & first_of_launch & (from_launch >= 0)
    alone = free & (tasks.kind != COLLECTIVE)
    out.latency_us = _median(from_launch[alone if alone.any() else free])
    waits = _StreamWaits(trace, tasks, earlier, ended, step.start_ns, out)
    waits.add_all()
    _waits_of_collectives(tasks, out)
    # Two tasks of one stream follow at once where the later one was waiting; a gap that was the fault of a launch or of
    # another stream is not one.
    queued = known & ~np.isnan(ended) & (tasks.launch_us + out.latency_us < ended)
    queued[out.edges.target] = False
    turns = _waited_for_kernels(tasks, np.fmax(tasks.launch_us + out.latency_us, ended))
    out.kernels_take_turns = bool(turns.any())
    queued &= ~turns
    out.gap_us = max(0.0, _median(from_previous[queued]))
    if queued.sum() < _FEW:  # a wait may be one of so few
        out.gap_us = min(out.gap_us, _GAP_MARGIN_US)
    explained = np.full(n, -np.inf)
    for source, target, lag in zip(out.edges.source, out.edges.target, out.edges.lag_us, strict=True):
        explained[target] = max(explained[target], earlier.ended_us(source) + lag)
    ready_launch = np.where(known, tasks.launch_us + out.latency_us, -np.inf)
    ready_stream = np.where(np.isnan(ended), -np.inf, ended + out.gap_us)
    by_launch = ready_launch >= ready_stream
    slack = np.where(by_launch, from_launch, from_previous)
    typical = np.where(by_launch, out.latency_us, out.gap_us)
    margin = np.where(by_launch, _LATENCY_MARGIN_US, _GAP_MARGIN_US)
    late = slack > typical + np.maximum(margin, 4 * typical)
    late &= known | ~np.isnan(ended)
    late |= turns
    explained[turns] = np.inf
    lag_us = np.where(late, typical, slack)  # what binds keeps its recorded time, where that is plausible
    unknown = np.zeros(n)
    late &= tasks.start_us - explained > np.maximum(margin, 4 * typical)
    ends = _Ends(tasks, earlier)
    for task in np.flatnonzero(late).tolist():
        ready = float(max(ready_launch[task], ready_stream[task]))
        if (cause := ends.just_before(task, ready)) >= 0:
            lag = max(0.0, float(tasks.start_us[task]) - earlier.ended_us(cause))
            out.edges.add(cause, task, lag, CROSS_STREAM, recorded=False)
        elif (cause := ends.in_the_way(task, ready)) >= 0:
            out.edges.add(cause, task, float(tasks.start_us[task] - tasks.end_us[cause]), SHARED, recorded=False)
        else:
            # Kept, for something held it back; what waits beside another known cause keeps what that leaves.
            unknown[task] = max(0.0, float(tasks.start_us[task]) - max(ready, float(explained[task])))
            lag_us[task] = slack[task]
    out.unexplained = Unexplained(waits=int((unknown > 0).sum()), us=float(unknown.sum()))
    out.launch_lag_us = np.where(known, np.where(by_launch, lag_us, np.minimum(from_launch, out.latency_us)), np.nan)
    out.launch_unknown_us = np.where(by_launch, unknown, 0.0)
    stream_lag = np.where(by_launch, np.minimum(from_previous, out.gap_us), lag_us)
    after = np.flatnonzero(previous >= 0)
    lags = np.maximum(stream_lag[after], -(tasks.end_us[previous[after]] - tasks.start_us[previous[after]]))
    unknown = np.where(by_launch, 0.0, unknown)[after].tolist()
    out.edges.extend(previous[after].tolist(), after.tolist(), lags.tolist(), STREAM, unknown_us=unknown)
    waits.add_unrecorded()
    return out


def _busy_before(tasks: Tasks, previous: Ints, ended: Floats, earlier: Earlier, out: TaskEdges) -> None:
    """Mark streams as busy with unrecorded work before their first task.

    A stream is busy if its first task starts long after its launch, although the device has hardly any recorded work
    meanwhile.
    """
    for task in np.flatnonzero((previous < 0) & ~np.isnan(tasks.launch_us)).tolist():
        launch, start = float(np.fmax(tasks.launch_us[task], ended[task])), float(tasks.start_us[task])
        if any(launch < until <= start + _SKEW_US for until in earlier.until_us.values()):
            continue  # another stream's work of the step before may be the cause
        ran = tasks.start_us < start
        busy = float((tasks.end_us - tasks.start_us)[ran & (tasks.end_us > launch)].sum())
        if start - launch > _BUSY_BEFORE_US and ran.sum() <= _FIRST_FEW and busy < (start - launch) / 2:
            ended[task] = start
            out.busy_before_us[int(tasks.stream[task])] = start


_TURNS = 3
_BESIDE = 0.02


def _waited_for_kernels(tasks: Tasks, ready_us: Floats) -> Bools:
    """Return a mask of kernels that were ready but started only when a kernel of another stream ended.

    The mask is empty if the device runs several kernels at once. The device counts as running one kernel at a time if
    some kernels waited in this way and kernels hardly ever overlapped.
    """
    waited = np.zeros(len(tasks), bool)
    rows = np.flatnonzero(tasks.kind == KERNEL)
    if len(tasks.streams) < 2 or len(rows) < 2:
        return waited
    ends = tasks.end_us[rows]
    latest = np.maximum.accumulate(ends)
    last = np.maximum.accumulate(np.where(ends >= latest, np.arange(len(rows)), 0))[:-1]
    later, before = rows[1:], rows[last]
    delay = tasks.start_us[later] - tasks.end_us[before]
    other = tasks.stream[later] != tasks.stream[before]
    held_us = tasks.end_us[before] - ready_us[later]
    turn = other & (held_us > _SKEW_US) & (delay >= -_SKEW_US) & (delay <= _FOLLOWS_US)
    beside_us = float(np.maximum(0.0, -delay).sum())
    if turn.sum() < _TURNS or beside_us > _BESIDE * float(held_us[turn].sum()):
        return waited
    waited[later[turn]] = True
    return waited


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _previous(tasks: Tasks) -> Ints:
    """Return, for each task, the previous task on its stream, or -1."""
    out = np.full(len(tasks), -1, np.int64)
    order = np.argsort(tasks.stream, kind="stable")
    same = tasks.stream[order][1:] == tasks.stream[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out


def _first_of_launch(tasks: Tasks) -> Bools:
    """Return a mask of the first task of each launch. A captured graph launches many tasks at once."""
    _, first = np.unique(tasks.correlation, return_index=True)
    out = tasks.correlation < 0
    out[first] = True
    return out


class _StreamWaits:
    """Waits of streams for events of other streams. Some traces record the other stream, others only the wait call."""

    def __init__(
        self, trace: Trace, tasks: Tasks, earlier: Earlier, ended: Floats, origin_ns: int, out: TaskEdges
    ) -> None:
        assert trace.activity is not None
        self.activity, self.tasks, self.earlier, self.out = trace.activity, tasks, earlier, out
        self.ready_us = np.fmax(np.where(np.isnan(ended), -np.inf, ended), tasks.launch_us + out.latency_us)
        self.call_us = (self.activity.calls.start_ns - origin_ns) / 1e3
        self.launches = tasks.by_launch()
        known = np.flatnonzero(~np.isnan(tasks.launch_us))
        known = known[np.argsort(tasks.launch_us[known], kind="stable")]
        self.all_launches = (tasks.launch_us[known], known)

    def add_all(self) -> None:
        """Add the edges of all waits."""
        if len(self.tasks.streams) > 1:
            recorded = self._recorded()
            self._inferred(recorded)

    def _recorded(self) -> set[int]:
        """Add an edge for each wait with a recorded other stream. Return the rows of these wait calls."""
        calls, waits = self.activity.calls, self.activity.waits
        row_of = {c: i for i, c in enumerate(calls.correlation.tolist()) if c >= 0} if len(waits) else {}
        numbers = {stream: index for index, (_, stream) in enumerate(self.tasks.streams)}
        rows: set[int] = set()
        columns = (waits.correlation, waits.stream, waits.waits_for_stream, waits.record_correlation)
        for correlation, stream, source, record in np.stack(columns, axis=1)[waits.waits_for_stream >= 0].tolist():
            row = row_of.get(correlation)
            if row is None:
                continue
            rows.add(row)
            if not {source, stream} <= numbers.keys() or source == stream or self.call_us[row] < 0.0:
                continue
            before = self._last(numbers[source], float(self.call_us[row_of.get(record, row)]))
            after = self._first(numbers[stream], float(self.call_us[row]))
            if before is not None and after is not None and self._in_order(before, after):
                # A wait that was over before the task could start has no latency of its own to keep.
                self.out.edges.add(before, after, self._lag(before, after), CROSS_STREAM, recorded=True)
        return rows

    def _inferred(self, recorded: set[int]) -> None:
        """Add the edges of waits that are recorded only as calls.

        If the times show the dependency of a wait, only this dependency is added. Otherwise, all possible ones are
        added.
        """
        waiting, marking = self._calls(_STREAM_WAITS), self._calls(_EVENT_RECORDS)
        marks_us = np.sort(self.call_us[marking])
        for row in waiting:
            when = float(self.call_us[row])
            if row in recorded or when < 0.0:
                continue
            at = int(np.searchsorted(marks_us, when, side="right")) - 1
            pairs = self._pairs(float(marks_us[at]) if at >= 0 else when, when)
            shown = [pair for pair in pairs if self._shown(*pair)]
            if shown:
                before, after = min(shown, key=lambda pair: self._delay_us(*pair))
                self.out.edges.add(before, after, self._lag(before, after), CROSS_STREAM, recorded=False)
                continue
            for before, after in pairs:
                self.out.edges.add(before, after, self._lag(before, after), CROSS_STREAM, recorded=False, possible=True)

    def add_unrecorded(self) -> None:
        """Add possible dependencies, at most one per task, for a profile that records no waits.

        The candidates for a task are the last tasks launched on the other streams. The task depends on the candidate
        that ended last, if the times permit it. If several tasks of a stream could wait for the same task, only the
        first of them does. These dependencies delay nothing. They count only in the ranges of what-ifs.
        """
        if len(self.tasks.streams) < 2 or self._calls((*_STREAM_WAITS, *_EVENT_RECORDS, "synchronize")):
            return
        joined: set[tuple[int, int]] = set()
        latest = _LatestEnds(self.tasks, self.earlier)
        for after in latest.order:
            before = latest.before(after)
            stream = int(self.tasks.stream[after])
            if before is not None and (before, stream) not in joined:
                joined.add((before, stream))
                lag_us = self._lag(before, after)
                self.out.edges.add(before, after, lag_us, CROSS_STREAM, recorded=False, possible=True)

    def _calls(self, words: tuple[str, ...]) -> list[int]:
        """Return the rows of calls whose names contain one of the words, sorted by time."""
        names = np.array([any(w in name.lower() for w in words) for name in self.activity.names] or [False])
        calls = self.activity.calls
        rows = np.flatnonzero(names[calls.name]) if len(calls) else np.empty(0, np.int64)
        return rows[np.argsort(self.call_us[rows], kind="stable")].tolist()

    def _pairs(self, marked_us: float, asked_us: float) -> list[tuple[int, int]]:
        """Return the pairs of tasks that one event may connect and whose times permit it.

        A pair is (last task of a stream before the event was recorded, first task of another stream after the wait
        call).
        """
        before = [(s, task) for s in self._near(marked_us, -1) if (task := self._last(s, marked_us)) is not None]
        after = [(s, task) for s in self._near(asked_us, 1) if (task := self._first(s, asked_us)) is not None]
        return [(a, b) for s, a in before for t, b in after if s != t and self._in_order(a, b)]

    def _near(self, time_us: float, direction: int) -> Sequence[int]:
        """Return the streams of the next launches after a time. If `direction` is -1, return those of the last launches
        before it.

        If there are few streams, return all.
        """
        count = len(self.tasks.streams)
        if count <= _FEW_STREAMS:
            return range(count)
        launches, rows = self.all_launches
        at = int(np.searchsorted(launches, time_us))
        near = rows[at : at + _NEAR] if direction > 0 else rows[max(0, at - _NEAR) : at][::-1]
        return list(dict.fromkeys(self.tasks.stream[near].tolist()))[:_FEW_STREAMS]

    def _last(self, stream: int, time_us: float) -> int | None:
        """Return the id of the last task of a stream that was launched before a time, in this or an earlier step; None
        if unknown.
        """
        launches, rows = self.launches[stream]
        at = int(np.searchsorted(launches, time_us)) - 1
        return int(rows[at]) if at >= 0 else self.earlier.last_before(stream, time_us)

    def _first(self, stream: int, time_us: float) -> int | None:
        """Return a stream's first task that was launched at or after a time; None if there is none."""
        launches, rows = self.launches[stream]
        at = int(np.searchsorted(launches, time_us))
        return int(rows[at]) if at < len(rows) else None

    def _delay_us(self, before: int, after: int) -> float:
        return float(self.tasks.start_us[after]) - self.earlier.ended_us(before)

    def _lag(self, before: int, after: int) -> float:
        return min(max(self._delay_us(before, after), 0.0), _EVENT_US)

    def _in_order(self, before: int, after: int) -> bool:
        """Check whether the recorded times permit that `after` waits for `before`."""
        return self._delay_us(before, after) >= -_SKEW_US and (before >= len(self.tasks) or before < after)

    def _shown(self, before: int, after: int) -> bool:
        """Check whether `after` was ready earlier, but did not start until `before` ended."""
        follows = self._delay_us(before, after) <= _FOLLOWS_US
        return follows and float(self.ready_us[after]) < self.earlier.ended_us(before) - _SKEW_US


class _LatestEnds:
    """The last launched task of each stream, sorted by end. Tasks are added in launch order."""

    def __init__(self, tasks: Tasks, earlier: Earlier) -> None:
        self.tasks, self.earlier = tasks, earlier
        known = np.flatnonzero(~np.isnan(tasks.launch_us))
        self.order: list[int] = known[np.lexsort((known, tasks.launch_us[known]))].tolist()
        """Tasks whose launch is known, in launch order."""
        self._launched = 0
        self._ends: list[tuple[float, int, int]] = []
        """Tuples (end, stream, task) sorted by end; the task is -1 if it is from before the step."""
        self._of_stream: dict[int, tuple[float, int, int]] = {}
        for stream in range(len(tasks.streams)):
            if (end_us := earlier.last_end_us(stream)) is not None:
                self._put((end_us, stream, -1))

    def _put(self, entry: tuple[float, int, int]) -> None:
        old = self._of_stream.get(entry[1])
        if old is not None:
            del self._ends[bisect_left(self._ends, old)]
        insort(self._ends, entry)
        self._of_stream[entry[1]] = entry

    def before(self, task: int) -> int | None:
        """Return the task of another stream that ended last before this task started; None if there is none.

        Only tasks launched before this task count. Must be called for tasks in launch order.
        """
        launch_us, stream = float(self.tasks.launch_us[task]), int(self.tasks.stream[task])
        while float(self.tasks.launch_us[self.order[self._launched]]) < launch_us:
            launched = self.order[self._launched]
            self._put((float(self.tasks.end_us[launched]), int(self.tasks.stream[launched]), launched))
            self._launched += 1
        until = (float(self.tasks.start_us[task]) + _SKEW_US, len(self.tasks.streams), -1)
        for at in range(bisect_right(self._ends, until) - 1, -1, -1):
            _, other, number = self._ends[at]
            if other != stream and number < task:
                return number if number >= 0 else self.earlier.last_before(other, launch_us)
        return None


def _waits_of_collectives(tasks: Tasks, out: TaskEdges) -> None:
    """Make each collective on its own stream wait for the last task launched before it, which computes its input."""
    talking = np.flatnonzero((tasks.kind == COLLECTIVE) & ~np.isnan(tasks.launch_us))
    if len(tasks.streams) < 2:
        return
    order = np.flatnonzero((tasks.kind != COLLECTIVE) & ~np.isnan(tasks.launch_us))
    order = order[np.lexsort((order, tasks.launch_us[order]))]
    launches = tasks.launch_us[order]
    for task in talking.tolist():
        at = int(np.searchsorted(launches, float(tasks.launch_us[task]))) - 1
        if at >= 0 and tasks.stream[order[at]] != tasks.stream[task]:
            _input_of(tasks, int(order[at]), task, out)


def _input_of(tasks: Tasks, source: int, target: int, out: TaskEdges) -> None:
    delay = float(tasks.start_us[target] - tasks.end_us[source])
    if delay >= -_SKEW_US and tasks.start_us[source] <= tasks.start_us[target] and source < target:
        out.edges.add(source, target, min(max(delay, 0.0), _EVENT_US), CROSS_STREAM, recorded=False)


_COVERED = 0.8
_LOOK_BACK = 200


class _Ends:
    """Ends of all tasks in order. They serve to find the task on another stream that a late task may have
    waited for.
    """

    def __init__(self, tasks: Tasks, earlier: Earlier) -> None:
        self.tasks, self.earlier = tasks, earlier
        self.finished = np.argsort(tasks.end_us, kind="stable")
        self.sorted_us = tasks.end_us[self.finished]

    def just_before(self, task: int, ready_us: float) -> int:
        """Return the task of another stream that ended just before this task's late start, or -1."""
        start = float(self.tasks.start_us[task])
        at = int(np.searchsorted(self.sorted_us, start + _SKEW_US, side="right")) - 1
        cause, latest = -1, max(ready_us, start - _LATENCY_MARGIN_US)
        while at >= 0 and self.sorted_us[at] > latest:
            other = int(self.finished[at])
            if self.tasks.stream[other] != self.tasks.stream[task] and other < task:
                cause, latest = other, float(self.sorted_us[at])
            at -= 1
        for stream, until in self.earlier.until_us.items():
            if stream != self.tasks.stream[task] and latest < until <= start + _SKEW_US:
                cause, latest = self.earlier.number(stream), until
        return cause

    def in_the_way(self, task: int, ready_us: float) -> int:
        """Return the task of another stream that kept the device busy while this task was ready; -1 if there is none.

        Streams share one device: a kernel starts when blocks of another kernel finish, a little before that kernel
        ends. Tasks of other streams must have filled most of the wait. The result is the task with the end nearest to
        this task's start.
        """
        tasks, start = self.tasks, float(self.tasks.start_us[task])
        first = int(np.searchsorted(self.sorted_us, ready_us))
        others = self.finished[first : first + _LOOK_BACK + 1]
        others = others[(tasks.stream[others] != tasks.stream[task]) & (tasks.start_us[others] < start)]
        others = others[others < task]
        if not len(others) or len(others) > _LOOK_BACK:
            return -1
        order = others[np.argsort(tasks.start_us[others])]
        begins = np.maximum(tasks.start_us[order], ready_us)
        ends = np.minimum(np.maximum.accumulate(tasks.end_us[order]), start)
        covered = np.maximum(0.0, ends - np.maximum(begins, np.concatenate([[ready_us], ends[:-1]]))).sum()
        if covered < _COVERED * (start - ready_us):
            return -1
        nearest = int(order[np.argmin(np.abs(tasks.end_us[order] - start))])
        dur = float(tasks.end_us[nearest] - tasks.start_us[nearest])
        return nearest if abs(float(tasks.end_us[nearest]) - start) <= max(_LATENCY_MARGIN_US, dur / 2) else -1
