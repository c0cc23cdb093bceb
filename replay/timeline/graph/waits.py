# pyright: strict
"""Find waits of host threads for synchronizing calls, blocking copies, full queues and other threads.

The rules use recorded times. Each rule tells whether the trace records the dependency or the times only suggest it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import CROSS_THREAD, QUEUE_FULL, SYNC
from opreplay.replay.timeline.graph.tasks import HOST_DEVICE, Earlier, Tasks
from opreplay.replay.timeline.graph.threads import HostEvents
from opreplay.traces import Trace
from opreplay.traces.arrays import Floats
from opreplay.traces.links.steps import Step

LONG_CALL_US = 30.0
"""A runtime call longer than this that returns when a task ends may have waited for that task."""
BLOCKED_US = 1000.0
"""A blocking call that takes longer than this while the device is busy is assumed to wait for the device."""
_RETURN_US = 25.0
"""Maximum time from the end of a task to the return of the call that waited for it. Used if only the times link the
two.
"""
_SKEW_US = 5.0
"""Maximum difference of host and device clocks in one trace."""
_FULL_QUEUE = 500
"""Number of launches waiting for the device from which a slow launch counts as blocked by a full queue."""
_GAP_US = 100.0
"""Idle time of a thread, in µs. A thread that is idle for longer while another thread works may be waiting for that
thread.
"""
_BLOCKING_OPS = (
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::is_nonzero",
    "aten::copy_",
    "aten::_to_copy",
    "aten::equal",
    "aten::masked_select",
    "aten::unique",
)
"""Ops that always wait for the device. Used for traces that do not record runtime calls."""


class HostWait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait of one thread from `start_us` until `until_us` for tasks, or for a point on another thread."""

    track: int
    start_us: float
    until_us: float
    tasks: tuple[int, ...] = ()
    """Tasks that the thread waits for: positions in `Tasks`, or ids from `Earlier.number`."""
    earlier: bool = False
    """Whether the thread waits for work from before the step, with an end that is not recorded. The work is assumed to
    end at `until_us`.
    """
    thread: tuple[int, float] | None = None
    """Point (track, time) on another thread that this thread waits for."""
    kind: int
    recorded: bool


class Launched:
    """Finds tasks by time: the last task launched or ended before a given time."""

    def __init__(self, tasks: Tasks, earlier: Earlier) -> None:
        self.tasks, self.earlier = tasks, earlier
        by_stream = tasks.by_launch()
        self._by_stream: list[tuple[list[float], list[int]]] = [(us.tolist(), rows.tolist()) for us, rows in by_stream]
        known = np.flatnonzero(~np.isnan(tasks.launch_us))
        self._all_launches = np.sort(tasks.launch_us[known]).tolist()
        self._all_starts = np.sort(tasks.start_us[known]).tolist()
        self._order = np.argsort(tasks.end_us, kind="stable").tolist()
        self._sorted_ends: list[float] = tasks.end_us[self._order].tolist() if len(tasks) else []

    def ended_us(self, number: int) -> float:
        """Return the end time of a task of this step or an earlier one, given by its id."""
        return self.earlier.ended_us(number)

    def last_on(self, stream: int, time_us: float) -> int:
        """Return the last task launched on a stream before a time. If this step has none, return the previous step's
        last task.
        """
        launches, rows = self._by_stream[stream]
        at = bisect_left(launches, time_us) - 1
        return rows[at] if at >= 0 else self.earlier.number(stream)

    def last_of_all(self, time_us: float) -> list[int]:
        """Return, for each stream of a device, the last task launched before a time."""
        streams = enumerate(self.tasks.streams)
        return [self.last_on(stream, time_us) for stream, (device, _) in streams if device != HOST_DEVICE]

    def ended_by(self, time_us: float) -> int:
        """Return the task of the step with the latest end at or before a time, or -1."""
        at = bisect_right(self._sorted_ends, time_us) - 1
        return self._order[at] if at >= 0 else -1

    def waiting(self, time_us: float) -> int:
        """Return how many tasks were launched but not started at a time."""
        return bisect_right(self._all_launches, time_us) - bisect_right(self._all_starts, time_us)


def device_waits(
    trace: Trace, threads: list[HostEvents], tasks: Tasks, earlier: Earlier
) -> tuple[list[HostWait], float]:
    """Return (every wait of a host thread for the device, unexplained time).

    The unexplained time, in µs, is that of blocking calls for which no task was found.
    """
    if not tasks.on_device.any():
        return [], 0.0
    of_trace = _DeviceWaits(trace, tasks, earlier)
    for events in threads:
        of_trace.add(events)
    return of_trace.waits, of_trace.blocked_us


class _Call(msgspec.Struct, frozen=True):
    """A runtime call that may wait for the device."""

    track: int
    kind: int
    start: float
    end: float
    copied: int
    """Task that the call launched, or -1."""
    stream: int | None
    """Stream that the call waits for, if recorded; -1: all streams; None: unknown."""

    @property
    def waits(self) -> bool:
        """Whether this kind of call always waits."""
        return self.kind in _WAITING

    @property
    def blocks(self) -> bool:
        """Whether the call took so long that it must have waited."""
        return self.end - self.start >= BLOCKED_US and (self.waits or (self.kind == _COPY and self.copied < 0))


class _DeviceWaits:
    """Collects the waits of host threads for the device."""

    def __init__(self, trace: Trace, tasks: Tasks, earlier: Earlier) -> None:
        assert trace.activity is not None
        self.trace, self.activity = trace, trace.activity
        self.launched = Launched(tasks, earlier)
        self.kinds = np.array([_wait_kind(name) for name in self.activity.names] or [0])
        self.within = np.array([_within_device(name) for name in trace.kernel_names] or [False])[tasks.name]
        self.streams = _recorded_streams(trace, tasks)
        self.task_of = {int(c): i for i, c in enumerate(tasks.correlation.tolist()) if c >= 0}
        self.first = float(tasks.start_us[tasks.on_device].min(initial=np.inf)) + _SKEW_US
        self.synchronises = bool(np.isin(self.kinds, _WAITING).any())
        self.waits: list[HostWait] = []
        self.blocked_us = 0.0

    def add(self, events: HostEvents) -> None:
        """Add the waits of one thread."""
        at = np.flatnonzero(events.call >= 0)
        calls, rows = self.activity.calls, events.call[at]
        runtime = calls.kind[rows] == 0
        lasting = events.end_us[at] - events.start_us[at]
        for place in at[runtime & ((self.kinds[calls.name[rows]] > 0) | (lasting >= LONG_CALL_US))].tolist():
            row = int(events.call[place])
            correlation, kind = int(calls.correlation[row]), int(self.kinds[calls.name[row]])
            start, end = float(events.start_us[place]), float(events.end_us[place])
            copied = self.task_of.get(correlation, -1)
            if kind != _COPY or copied < 0 or not self.within[copied]:
                self._add_call(_Call(events.track, kind, start, end, copied, self.streams.get(correlation)))
        if not runtime.any() or not self.synchronises:
            known = [wait.until_us for wait in self.waits if wait.track == events.track]
            more, lost_us = _waits_of_ops(self.trace, events, self.launched, known)
            self.waits += more
            self.blocked_us += lost_us

    def _add_call(self, call: _Call) -> None:
        wait = _one_wait(call, self.launched)
        lasting = call.end - call.start
        ran = wait is not None and any(self.launched.ended_us(task) > call.start for task in wait.tasks)
        if call.waits and lasting >= LONG_CALL_US and call.end <= self.first and not ran:
            wait = HostWait(
                track=call.track,
                start_us=call.start,
                until_us=call.end,
                tasks=tuple(self.launched.last_of_all(call.start)),
                earlier=True,
                kind=SYNC,
                recorded=True,
            )
        if wait is None and call.blocks:
            wait = _last_inside(call.track, call.start, call.end, self.launched)
            self.blocked_us += lasting if wait is None else 0.0
        self.waits += filter(None, [wait])


def _last_inside(track: int, start: float, end: float, launched: Launched) -> HostWait | None:
    """Return the wait of a blocking call for the last task that ended during it; None if no task did."""
    last = launched.ended_by(end)
    if last < 0 or launched.ended_us(last) <= start:
        return None
    until = launched.ended_us(last)
    return HostWait(track=track, start_us=start, until_us=until, tasks=(last,), kind=SYNC, recorded=False)


_NONE, _STREAM, _DEVICE, _EVENT, _COPY, _NEVER = range(6)
_WAITING = (_STREAM, _DEVICE, _EVENT)


def _wait_kind(name: str) -> int:
    """Return what a runtime call waits for, from its name in CUDA, HIP or CANN."""
    text = name.lower()
    if "synchronize" in text:
        if "event" in text:
            return _EVENT
        return _STREAM if "stream" in text else _DEVICE
    if "memcpy" in text:
        return _COPY
    if any(word in text for word in ("graphinstantiate", "moduleload", "getdevicecount", "compileandexecute")):
        return _NEVER
    return _NONE


def _within_device(name: str) -> bool:
    """Check whether a copy's name says that both ends are on a device. Copies between devices never block the host."""
    text = name.lower().replace(" ", "")
    return "dtod" in text or "device->device" in text or "devicetodevice" in text or "ptop" in text


def _recorded_streams(trace: Trace, tasks: Tasks) -> dict[int, int]:
    """Map the correlation id of a synchronizing call to the stream that it waits for (-1: all streams), if recorded."""
    assert trace.activity is not None
    waits = trace.activity.waits
    numbers = {stream: index for index, (_, stream) in enumerate(tasks.streams)}
    out: dict[int, int] = {}
    rows = zip(waits.correlation.tolist(), waits.stream.tolist(), waits.waits_for_stream.tolist(), strict=True)
    for correlation, stream, waits_for in rows:
        if waits_for < 0 and correlation >= 0:
            out[correlation] = numbers.get(stream, -1)
    return out


def _one_wait(call: _Call, launched: Launched) -> HostWait | None:
    """Return the wait of one call; None if no task that it may have waited for is known."""
    sources, recorded = _SOURCES[call.kind](call, launched)
    full = call.kind == _NONE and bool(sources) and launched.waiting(call.start) >= _FULL_QUEUE
    if call.kind == _NONE and not full and call.copied >= 0:
        return None
    sources = [task for task in sources if launched.ended_us(task) <= call.end + _SKEW_US]
    if not sources:
        return None
    until = min(max(call.start, *(launched.ended_us(task) for task in sources)), call.end)
    kind = QUEUE_FULL if full else SYNC
    return HostWait(
        track=call.track, start_us=call.start, until_us=until, tasks=tuple(sources), kind=kind, recorded=recorded
    )


def _of_copy(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    waited = call.copied >= 0 and call.start < launched.ended_us(call.copied) <= call.end
    return ([call.copied] if waited else []), waited


def _of_device(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    return launched.last_of_all(call.start), True


def _of_stream(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    if call.stream is not None and call.stream >= 0:
        return [launched.last_on(call.stream, call.start)], True
    return _likely_stream(launched, call.start, call.end), len(launched.tasks.streams) == 1


def _of_event(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    last = launched.ended_by(call.end + _SKEW_US)
    return ([last] if last >= 0 and launched.tasks.launch_us[last] < call.start else []), False


def _of_times(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    """Return the task at whose end the call returned.

    Used for calls that do not synchronize: cudaMalloc, cudaFree, cudaHostAlloc, launches.
    """
    last, tasks = launched.ended_by(call.end), launched.tasks
    if last < 0 or launched.ended_us(last) <= call.start or call.end - launched.ended_us(last) > _RETURN_US:
        return [], False
    itself = call.copied >= 0 or tasks.launch_track[last] == call.track
    by_it = tasks.launch_us[last] >= call.start and last != call.copied and itself
    return ([] if by_it else [last]), False


def _of_nothing(call: _Call, launched: Launched) -> tuple[list[int], bool]:
    return [], False


_SOURCES = {
    _NONE: _of_times,
    _STREAM: _of_stream,
    _DEVICE: _of_device,
    _EVENT: _of_event,
    _COPY: _of_copy,
    _NEVER: _of_nothing,
}
"""Function for each kind of call. It returns the tasks that the call may wait for, and whether the trace records the
wait.
"""


def _likely_stream(launched: Launched, start: float, end: float) -> list[int]:
    """Return the last task of the stream for which a synchronization most likely waited.

    It is the task with the end nearest to the call's end.
    """
    done = [task for task in launched.last_of_all(start) if launched.ended_us(task) <= end + _SKEW_US]
    return [max(done, key=launched.ended_us)] if done else []


def _waits_of_ops(
    trace: Trace, events: HostEvents, launched: Launched, known: list[float]
) -> tuple[list[HostWait], float]:
    """Return, for one thread, (waits in ops that always block, total µs of long ops in which no task ended).

    Used if the trace does not record the blocking calls. Ops in which one of the `known` waits ends are skipped.
    """
    blocking = np.array([s.name in _BLOCKING_OPS for s in trace.signatures], bool)
    rows = np.flatnonzero(events.op >= 0)
    rows = rows[blocking[trace.ops.signature[events.op[rows]]] & ~np.isin(rows, events.parent[rows])]
    rows = rows[events.end_us[rows] - events.start_us[rows] >= LONG_CALL_US]
    waits: list[HostWait] = []
    blocked_us = 0.0
    for at in rows.tolist():
        start, end = float(events.start_us[at]), float(events.end_us[at])
        if any(start < until <= end for until in known):
            continue
        wait, long = _last_inside(events.track, start, end, launched), end - start >= BLOCKED_US
        if wait is not None and (long or end - wait.until_us <= 4 * _RETURN_US):
            waits.append(wait)
        elif long:
            blocked_us += end - start
    return waits, blocked_us


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """An interval in which the main thread is idle while another thread works.

    The main thread is idle from `start_us` to `end_us`. The other thread works from `first_us` to `last_us`.
    """

    track: int
    start_us: float
    end_us: float
    first_us: float
    last_us: float


def handovers(main: HostEvents, others: list[HostEvents], begin_us: float, end_us: float) -> list[Handover]:
    """Return the gaps of the main thread that another thread's work fills, e.g. backward on autograd's thread.

    The other thread must be idle when the gap starts, and idle again when it ends.
    """
    out: list[Handover] = []
    top = main.parent < 0
    starts, ends = main.start_us[top], main.end_us[top]
    gap_from = np.concatenate([[begin_us], np.maximum.accumulate(ends)]) if len(ends) else np.array([begin_us])
    gap_to = np.append(starts, end_us)
    long = np.flatnonzero(gap_to - gap_from >= _GAP_US)
    for other in others:
        tops = other.parent < 0
        from_, to = other.start_us[tops], other.end_us[tops]
        if not len(from_):
            continue
        latest = np.maximum.accumulate(to)
        for at in long.tolist():
            low, high = float(gap_from[at]), float(gap_to[at])
            first = int(np.searchsorted(from_, low))
            last = int(np.searchsorted(from_, high)) - 1
            if last < first or (first > 0 and latest[first - 1] > low) or latest[last] > high:
                continue
            # Work that fills hardly any of the gap did not make the thread wait for it.
            if (to[first : last + 1] - from_[first : last + 1]).sum() < _GAP_US / 2:
                continue
            out.append(
                Handover(
                    track=other.track,
                    start_us=low,
                    end_us=high,
                    first_us=float(from_[first]),
                    last_us=float(latest[last]),
                )
            )
    return out


_ASKED_US = 50.0
_RESUMED_US = 500.0
"""Maximum time from the end of a collective until the thread that waited for it runs an op. Python runs in between."""


def collective_waits(threads: list[HostEvents], tasks: Tasks) -> list[HostWait]:
    """Return waits of idle threads that resume just after a collective on the host ends."""
    rows = np.flatnonzero(~tasks.on_device)
    rows = rows[np.argsort(tasks.end_us[rows], kind="stable")]
    ends = tasks.end_us[rows]
    out: list[HostWait] = []
    for events in threads:
        begins, until = top_level(events)
        idle_from, idle_to = np.maximum.accumulate(until)[:-1], begins[1:]
        last = np.searchsorted(ends, idle_to, side="right") - 1
        after = last >= 0
        for low, high, at in np.stack([idle_from, idle_to, last], axis=1)[after].tolist():
            task, end = int(rows[int(at)]), float(ends[int(at)])
            asked = not tasks.launch_us[task] > low
            if asked and end - low >= _ASKED_US and high - end <= _RESUMED_US:
                out.append(
                    HostWait(track=events.track, start_us=low, until_us=end, tasks=(task,), kind=SYNC, recorded=False)
                )
    return out


def as_wait(handover: Handover, main: int) -> HostWait:
    """Return the main thread's wait for the other thread of a handover."""
    return HostWait(
        track=main,
        start_us=handover.start_us,
        until_us=handover.last_us,
        thread=(handover.track, handover.last_us),
        kind=CROSS_THREAD,
        recorded=False,
    )


def queue_arrows(trace: Trace, step: Step, tracks: set[int]) -> dict[tuple[int, float], tuple[int, float]]:
    """Map work taken from an NPU's task queue to the point at which it was queued.

    The work is given as (thread, start), the point as (thread, time).
    """
    assert trace.activity is not None
    arrows = trace.activity.arrows
    rows = np.flatnonzero((arrows.kind == 1) & (arrows.start_ns >= step.start_ns) & (arrows.start_ns < step.end_ns))
    begun: dict[int, tuple[int, float]] = {}
    out: dict[tuple[int, float], tuple[int, float]] = {}
    for row in sorted(rows.tolist(), key=lambda r: (arrows.start_ns[r], arrows.is_end[r])):
        track, at = int(arrows.track[row]), (int(arrows.start_ns[row]) - step.start_ns) / 1e3
        if track not in tracks:
            continue
        if not arrows.is_end[row]:
            begun[int(arrows.id[row])] = (track, at)
        elif int(arrows.id[row]) in begun:
            out[track, at] = begun[int(arrows.id[row])]
    return out


def top_level(events: HostEvents) -> tuple[Floats, Floats]:
    """Return (starts, ends) of the outermost events on a thread."""
    top = events.parent < 0
    return events.start_us[top], events.end_us[top]
