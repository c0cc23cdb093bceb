# pyright: strict
"""What host threads wait for: synchronising calls, blocking copies, full queues, other threads; rules on times.

Each rule says whether the trace records the dependency or the times only suggest it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from opreplay.replay.timeline.graph.model import CROSS_THREAD, QUEUE_FULL, SYNC, Floats
from opreplay.replay.timeline.graph.tasks import HOST_DEVICE, Earlier, Tasks
from opreplay.replay.timeline.graph.threads import HostEvents
from opreplay.traces import Trace
from opreplay.traces.links.steps import Step

LONG_CALL_US = 30.0
"""A call of the runtime that takes longer than this, and ends as a task does, is looked at as a wait."""
BLOCKED_US = 1000.0
"""A blocking call that takes longer than this, while the device works, waits for it."""
_RETURN_US = 25.0
"""From the end of a task to the return of the call that waited for it, at most, where only time links them."""
_SKEW_US = 5.0
"""Host and device clocks of one trace may differ by this much."""
_FULL_QUEUE = 500
"""Launches ahead of the device from which a slow launch counts as held back by a full queue."""
_GAP_US = 100.0
"""A thread idle for longer than this while another one works may be waiting for it."""
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
"""Ops that wait for the device by themselves, for traces that record no calls of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """One thread waits from `start_us` until `until_us` for tasks, or for a point on another thread."""

    track: int
    start_us: float
    until_us: float
    tasks: tuple[int, ...] = ()
    """Positions in `Tasks`, or numbers of `Earlier`."""
    earlier: bool = False
    """For what was launched before the step, when nothing else says when that was done: at `until_us`."""
    thread: tuple[int, float] | None = None
    """(track, time) of the point waited for."""
    kind: int
    recorded: bool


class Launched:
    """The tasks by stream in the order of their launches: which was the last one launched before a given time."""

    def __init__(self, tasks: Tasks, earlier: Earlier) -> None:
        self.tasks, self.earlier = tasks, earlier
        self._by_stream: list[tuple[list[float], list[int]]] = []
        for stream in range(len(tasks.streams)):
            rows = np.flatnonzero((tasks.stream == stream) & ~np.isnan(tasks.launch_us))
            rows = rows[np.lexsort((rows, tasks.launch_us[rows]))]
            self._by_stream.append((tasks.launch_us[rows].tolist(), rows.tolist()))
        known = np.flatnonzero(~np.isnan(tasks.launch_us))
        self._all_launches = np.sort(tasks.launch_us[known]).tolist()
        self._all_starts = np.sort(tasks.start_us[known]).tolist()
        self._order = np.argsort(tasks.end_us, kind="stable").tolist()
        self._sorted_ends: list[float] = tasks.end_us[self._order].tolist() if len(tasks) else []

    def ended_us(self, number: int) -> float:
        """When a task of the step, or one before it, was done."""
        return self.earlier.ended_us(number)

    def last_on(self, stream: int, time_us: float) -> int:
        """Number of the last task launched on a stream before a time; of the step before where this one has none."""
        launches, rows = self._by_stream[stream]
        at = bisect_left(launches, time_us) - 1
        return rows[at] if at >= 0 else self.earlier.number(stream)

    def last_of_all(self, time_us: float) -> list[int]:
        """The last task on each stream of a device that was launched before a time."""
        streams = enumerate(self.tasks.streams)
        return [self.last_on(stream, time_us) for stream, (device, _) in streams if device != HOST_DEVICE]

    def ended_by(self, time_us: float) -> int:
        """The task of the step that ended last before a time, or -1."""
        at = bisect_right(self._sorted_ends, time_us) - 1
        return self._order[at] if at >= 0 else -1

    def waiting(self, time_us: float) -> int:
        """How many tasks were launched but had not started."""
        return bisect_right(self._all_launches, time_us) - bisect_right(self._all_starts, time_us)


def device_waits(
    trace: Trace, threads: list[HostEvents], tasks: Tasks, earlier: Earlier
) -> tuple[list[HostWait], float]:
    """(every wait of a host thread for the device, µs in calls that wait for it and of which nothing says for what)."""
    activity = trace.activity
    assert activity is not None
    if not any(device != HOST_DEVICE for device, _ in tasks.streams):
        return [], 0.0
    launched = Launched(tasks, earlier)
    kinds = np.array([_wait_kind(name) for name in activity.names] or [0])
    within = np.array([_within_device(name) for name in trace.kernel_names] or [False])[tasks.name]
    streams = _recorded_streams(trace, tasks)
    task_of = {int(c): i for i, c in enumerate(tasks.correlation.tolist()) if c >= 0}
    on_device = np.array([device != HOST_DEVICE for device, _ in tasks.streams])[tasks.stream]
    first = float(tasks.start_us[on_device].min(initial=np.inf)) + _SKEW_US
    synchronises = bool(np.isin(kinds, _WAITING).any())
    waits: list[HostWait] = []
    blocked_us = 0.0
    for events in threads:
        calls = np.flatnonzero(events.call >= 0)
        rows = events.call[calls]
        lasting = events.end_us[calls] - events.start_us[calls]
        name_kinds = kinds[activity.calls.name[rows]] if len(calls) else np.empty(0, np.int64)
        runtime = activity.calls.kind[rows] == 0 if len(calls) else np.empty(0, bool)
        for at in calls[runtime & ((name_kinds > 0) | (lasting >= LONG_CALL_US))].tolist():
            row = int(events.call[at])
            start, end = float(events.start_us[at]), float(events.end_us[at])
            correlation, kind = int(activity.calls.correlation[row]), int(kinds[activity.calls.name[row]])
            own = task_of.get(correlation, -1)
            if kind == _COPY and own >= 0 and within[own]:
                continue
            wait = _one_wait(events.track, kind, start, end, own, streams.get(correlation), launched)
            if (
                kind in _WAITING
                and end - start >= LONG_CALL_US
                and end <= first
                and not _ends_within(wait, start, launched)
            ):
                wait = HostWait(
                    track=events.track,
                    start_us=start,
                    until_us=end,
                    tasks=tuple(launched.last_of_all(start)),
                    earlier=True,
                    kind=SYNC,
                    recorded=True,
                )
            if wait is None and end - start >= BLOCKED_US and (kind in _WAITING or (kind == _COPY and own < 0)):
                wait = _last_inside(events.track, start, end, launched)
                blocked_us += end - start if wait is None else 0.0
            if wait is not None:
                waits.append(wait)
        if not runtime.any() or not synchronises:
            told = [wait.until_us for wait in waits if wait.track == events.track]
            more, lost_us = _waits_of_ops(trace, events, launched, told)
            waits += more
            blocked_us += lost_us
    return waits, blocked_us


def _ends_within(wait: HostWait | None, start: float, launched: Launched) -> bool:
    """Whether something that is recorded ended after the wait began."""
    return wait is not None and any(launched.ended_us(task) > start for task in wait.tasks)


def _last_inside(track: int, start: float, end: float, launched: Launched) -> HostWait | None:
    """The wait of a blocking call for the last task that ended inside it; None: nothing did."""
    last = launched.ended_by(end)
    if last < 0 or launched.ended_us(last) <= start:
        return None
    until = launched.ended_us(last)
    return HostWait(track=track, start_us=start, until_us=until, tasks=(last,), kind=SYNC, recorded=False)


_NONE, _STREAM, _DEVICE, _EVENT, _COPY, _NEVER = range(6)
_WAITING = (_STREAM, _DEVICE, _EVENT)


def _wait_kind(name: str) -> int:
    """What a call of a runtime waits for, by its name in any of the runtimes."""
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
    """Whether a copy's name says that no host memory takes part: such a copy never holds the host."""
    text = name.lower().replace(" ", "")
    return "dtod" in text or "device->device" in text or "devicetodevice" in text or "ptop" in text


def _recorded_streams(trace: Trace, tasks: Tasks) -> dict[int, int]:
    """Correlation of a synchronising call → the stream that it waits for, where the trace says so (-1: all)."""
    assert trace.activity is not None
    waits = trace.activity.waits
    numbers = {stream: index for index, (_, stream) in enumerate(tasks.streams)}
    out: dict[int, int] = {}
    rows = zip(waits.correlation.tolist(), waits.stream.tolist(), waits.waits_for_stream.tolist(), strict=True)
    for correlation, stream, waits_for in rows:
        if waits_for < 0 and correlation >= 0:
            out[correlation] = numbers.get(stream, -1)
    return out


def _one_wait(
    track: int, kind: int, start: float, end: float, own: int, stream: int | None, launched: Launched
) -> HostWait | None:
    """The wait that one call is, or None: it waited for nothing that is known."""
    tasks, ended_us = launched.tasks, launched.ended_us
    sources: list[int] = []
    recorded = False
    if kind == _COPY:
        if own >= 0 and start < ended_us(own) <= end:
            sources, recorded = [own], True
    elif kind == _DEVICE:
        sources, recorded = launched.last_of_all(start), True
    elif kind == _STREAM:
        if stream is not None and stream >= 0:
            sources, recorded = [launched.last_on(stream, start)], True
        else:
            sources, recorded = _likely_stream(launched, start, end), len(tasks.streams) == 1
    elif kind == _EVENT:
        last = launched.ended_by(end + _SKEW_US)
        sources = [last] if last >= 0 and tasks.launch_us[last] < start else []
    elif kind == _NONE:
        last = launched.ended_by(end)
        if last >= 0 and ended_us(last) > start and end - ended_us(last) <= _RETURN_US:
            itself = own >= 0 or tasks.launch_track[last] == track
            if tasks.launch_us[last] >= start and last != own and itself:  # the call launched that one
                return None
            if launched.waiting(start) >= _FULL_QUEUE:
                until = ended_us(last)
                return HostWait(
                    track=track, start_us=start, until_us=until, tasks=(last,), kind=QUEUE_FULL, recorded=False
                )
            if own < 0:  # cudaMalloc, cudaFree, cudaHostAlloc: they wait for the device without saying so
                sources = [last]
    sources = [task for task in sources if ended_us(task) <= end + _SKEW_US]
    if not sources:
        return None
    until = min(max(start, *(ended_us(task) for task in sources)), end)
    return HostWait(track=track, start_us=start, until_us=until, tasks=tuple(sources), kind=SYNC, recorded=recorded)


def _likely_stream(launched: Launched, start: float, end: float) -> list[int]:
    """The last task of the stream that a synchronisation most likely waited for: it ended nearest the call's end."""
    done = [task for task in launched.last_of_all(start) if launched.ended_us(task) <= end + _SKEW_US]
    return [max(done, key=launched.ended_us)] if done else []


def _waits_of_ops(
    trace: Trace, events: HostEvents, launched: Launched, told: list[float]
) -> tuple[list[HostWait], float]:
    """(waits within ops that are known to block, in a trace that does not record the calls that do, µs in long ones
    during which no task ended); none where a wait that ends inside is `told`."""
    blocking = np.array([s.name in _BLOCKING_OPS for s in trace.signatures] or [False])
    rows = np.flatnonzero(events.op >= 0)
    rows = rows[blocking[trace.ops.signature[events.op[rows]]]] if len(rows) else rows
    outer = set(events.parent[events.op >= 0].tolist())
    waits: list[HostWait] = []
    blocked_us = 0.0
    for at in rows.tolist():
        start, end = float(events.start_us[at]), float(events.end_us[at])
        if end - start < LONG_CALL_US or at in outer or any(start < until <= end for until in told):
            continue
        wait = _last_inside(events.track, start, end, launched)
        if wait is not None and (end - start >= BLOCKED_US or end - wait.until_us <= 4 * _RETURN_US):
            waits.append(wait)
        elif end - start >= BLOCKED_US:
            blocked_us += end - start
    return waits, blocked_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """The main thread idles from `start_us` to `end_us` while another one works from `first_us` to `last_us`."""

    track: int
    start_us: float
    end_us: float
    first_us: float
    last_us: float


def handovers(main: HostEvents, others: list[HostEvents], begin_us: float, end_us: float) -> list[Handover]:
    """Gaps of the main thread that another thread's work fills: backward, run by autograd's own thread.

    The other thread must have been idle when the gap began and be idle again when it ends.
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
"""A thread goes on this long, at most, after the collective that it waited for: Python runs before its next op."""


def collective_waits(threads: list[HostEvents], tasks: Tasks) -> list[HostWait]:
    """Idle threads that go on just after a collective of the host ends, for which they had nothing else to do."""
    on_host = np.array([device == HOST_DEVICE for device, _ in tasks.streams] or [False])
    rows = np.flatnonzero(on_host[tasks.stream]) if len(tasks) else np.empty(0, np.int64)
    if not len(rows):
        return []
    rows = rows[np.argsort(tasks.end_us[rows], kind="stable")]
    ends = tasks.end_us[rows]
    out: list[HostWait] = []
    for events in threads:
        begins, until = top_level(events)
        if not len(begins):
            continue
        idle_from, idle_to = np.maximum.accumulate(until)[:-1], begins[1:]
        last = np.searchsorted(ends, idle_to, side="right") - 1
        for low, high, at in zip(idle_from.tolist(), idle_to.tolist(), last.tolist(), strict=True):
            if at < 0:
                continue
            task, end = int(rows[at]), float(ends[at])
            asked = np.isnan(tasks.launch_us[task]) or tasks.launch_us[task] <= low
            if asked and end - low >= _ASKED_US and high - end <= _RESUMED_US:
                out.append(
                    HostWait(track=events.track, start_us=low, until_us=end, tasks=(task,), kind=SYNC, recorded=False)
                )
    return out


def as_wait(handover: Handover, main: int) -> HostWait:
    """What the main thread waits for in a handover."""
    return HostWait(
        track=main,
        start_us=handover.start_us,
        until_us=handover.last_us,
        thread=(handover.track, handover.last_us),
        kind=CROSS_THREAD,
        recorded=False,
    )


def queue_arrows(trace: Trace, step: Step, tracks: set[int]) -> dict[tuple[int, float], tuple[int, float]]:
    """(thread, start) of what was taken from an NPU's task queue → (thread, time) at which it was handed in."""
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
    """(starts, ends) of what encloses all else on a thread."""
    top = events.parent < 0
    return events.start_us[top], events.end_us[top]
