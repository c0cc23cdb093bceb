# pyright: strict
"""Device tasks of one step: which tasks the step launched, from which thread and when. Dependencies are in other
modules.
"""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import COLLECTIVE, COPY, KERNEL, NEVER, SET
from opreplay.traces import Trace
from opreplay.traces.arrays import Bools, Floats, Ints, distinct
from opreplay.traces.links.arrows import HOST_TO_DEVICE, QUEUE, ids_with_arrows
from opreplay.traces.links.steps import Step
from opreplay.traces.times.communication import communication_rows

_KIND_OF_CATEGORY = np.array([KERNEL, COPY, SET, KERNEL], np.int64)
_COPY_NAMES = ("memcpy",)
"""Substrings of kernel names that mark copies. They are needed because tasks of an NPU have no category."""
HOST_DEVICE = -(1 << 31)
"""Device number of collectives that run on a host thread without a recorded device.

Their stream number is the thread's track.
"""


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """Device work launched in a step, or running in it with an unknown launch. Sorted by start; times in µs."""

    kind: Ints
    name: Ints
    row: Ints
    """Row of the task in `Trace.kernels`; -1 for a task that stands for a whole collective of an NPU."""
    owner: Ints
    collective: Ints
    stream: Ints
    """Index into `streams`."""
    streams: tuple[tuple[int, int], ...]
    """Pairs (device, stream)."""
    start_us: Floats
    end_us: Floats
    launch_us: Floats
    """Start of the call that launched each task; NaN if unknown."""
    launch_track: Ints
    """Thread of the call that launched each task, as mapped by `homes`; -1 if unknown."""
    correlation: Ints

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def on_device(self) -> Bools:
        """Return a mask of tasks that run on a device, i.e. that are not collectives on a host thread."""
        return np.array([device != HOST_DEVICE for device, _ in self.streams], bool)[self.stream]

    def by_launch(self) -> list[tuple[Floats, Ints]]:
        """Return, for each stream, (launch times, rows) of its tasks with a known launch, in launch order."""
        rows = np.flatnonzero(~np.isnan(self.launch_us))
        rows = rows[np.lexsort((rows, self.launch_us[rows], self.stream[rows]))]
        parts = np.split(rows, np.searchsorted(self.stream[rows], np.arange(1, len(self.streams))))
        return [(self.launch_us[part], part) for part in parts[: len(self.streams)]]


class Earlier:
    """Tasks launched before the step. Each is identified by its stream and by "back", the number of later tasks on that
    stream.

    All steps are assumed to be the same. An earlier task therefore corresponds to the task of this step with the same
    number of later tasks on its stream.
    """

    def __init__(
        self,
        tasks: Tasks,
        launches: dict[tuple[int, int], tuple[Floats, Floats]],
        until_us: dict[tuple[int, int], float],
    ) -> None:
        streams = {key: index for index, key in enumerate(tasks.streams)}
        self.tasks = tasks
        self.until_us = {streams[key]: us for key, us in until_us.items() if key in streams}
        """Stream → end of the work from before the step that was still running in the step."""
        self._launches = {streams[key]: columns for key, columns in launches.items() if key in streams}
        self._numbers: dict[tuple[int, int], int] = {}
        self.asked: list[tuple[int, int]] = []
        """Pairs (stream, `back`) for which `number` has given out an id, in the order of the ids."""

    def number(self, stream: int, back: int = 0) -> int:
        """Return the id that represents an earlier task in edges. Lower ids are positions in `Tasks`."""
        number = self._numbers.setdefault((stream, back), len(self.tasks) + len(self.asked))
        if number == len(self.tasks) + len(self.asked):
            self.asked.append((stream, back))
        return number

    def last_before(self, stream: int, time_us: float) -> int | None:
        """Return the id of a stream's last task launched before the step and before a time; None if none is known."""
        launches = self._launches.get(stream)
        if launches is None or not (before := int(np.searchsorted(launches[0], time_us))):
            return None
        return self.number(stream, len(launches[0]) - before)

    def last_end_us(self, stream: int) -> float | None:
        """Return the end time of a stream's last task from before the step; None if unknown."""
        if stream in self.until_us:
            return self.until_us[stream]
        return float(self._launches[stream][1][-1]) if stream in self._launches else None

    def ended_us(self, number: int) -> float:
        """Return the end time of a task of this step or an earlier one, given by its id; `NEVER` if not recorded."""
        if number < len(self.tasks):
            return float(self.tasks.end_us[number])
        stream, back = self.asked[number - len(self.tasks)]
        if back == 0 and stream in self.until_us:
            return self.until_us[stream]
        ends = self._launches[stream][1] if stream in self._launches else ()
        return float(ends[-1 - back]) if back < len(ends) else NEVER

    def alike(self, number: int) -> int:
        """Return the position in `Tasks` of the task of this step that corresponds to an earlier task."""
        stream, back = self.asked[number - len(self.tasks)]
        rows = np.flatnonzero(self.tasks.stream == stream)
        launch = self.tasks.launch_us[rows]
        rows = rows[np.lexsort((rows, np.where(np.isnan(launch), self.tasks.start_us[rows], launch)))]
        return int(rows[max(0, len(rows) - 1 - back)])


def tasks_of(trace: Trace, step: Step, home: Ints) -> tuple[Tasks, Earlier]:
    """Return the step's device work, and the tasks launched before the step.

    `home` [tracks] is the thread of each track; -1 if the track belongs to another process.
    """
    activity, kernels = trace.activity, trace.kernels
    assert activity is not None
    n, spans = len(kernels), activity.spans
    start = np.concatenate([kernels.start_ns, spans.start_ns]).astype(np.int64)
    dur = np.concatenate([kernels.dur_ns.astype(np.int64), spans.dur_ns.astype(np.int64)])
    correlation = np.concatenate([activity.correlation, spans.correlation])
    name = np.concatenate([kernels.name.astype(np.int64), spans.name.astype(np.int64)])
    collective = np.concatenate([activity.collective, spans.collective])
    row = np.concatenate([np.arange(n), np.full(len(spans), -1)])
    owner = np.concatenate([kernels.owner, np.full(len(spans), -1)])
    device, stream = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    device[:n], stream[:n] = kernels.device, kernels.stream
    parts = np.isin(activity.correlation, spans.correlation[spans.correlation >= 0]) & (activity.correlation >= 0)
    for index in range(len(spans)):  # a handful: the whole runs where its parts do
        of_it = np.flatnonzero(activity.correlation == spans.correlation[index])
        if len(of_it):
            device[n + index], stream[n + index] = device[of_it[0]], stream[of_it[0]]
            owner[n + index] = owner[of_it[0]]
        elif spans.thread[index] >= 0:
            device[n + index], stream[n + index] = HOST_DEVICE, spans.thread[index]
    launch_ns, launch_home = _launches(
        trace, home, ids_with_arrows(trace, correlation, start, stream), start, start + dur
    )
    on_used = _own_device(device, (launch_home >= 0) & (launch_ns >= step.start_ns) & (launch_ns < step.end_ns))
    kind = _kinds(trace, name, collective)
    known = launch_home >= 0
    before = known & (launch_ns < step.start_ns)
    inside = known & (launch_ns >= step.start_ns) & (launch_ns < step.end_ns)
    # Work without a known launch belongs to the step unless it ran before anything that the step launched.
    first = _first_start(device, stream, start, inside)
    loose = ~known & (start >= step.start_ns) & (start < step.end_ns) & on_used & (start >= first)
    unknown_before = ~known & on_used & (start < np.minimum(first, step.end_ns))
    drop = np.concatenate([parts, np.zeros(len(spans), bool)])
    still = ((before & on_used) | unknown_before) & (start + dur > step.start_ns) & ~drop
    until: dict[tuple[int, int], float] = {}
    for at in np.flatnonzero(still).tolist():
        key = (int(device[at]), int(stream[at]))
        until[key] = max(until.get(key, 0.0), (int(start[at] + dur[at]) - step.start_ns) / 1e3)
    ended_us = (start + dur - step.start_ns) / 1e3
    launches = _by_stream(device, stream, (launch_ns - step.start_ns) / 1e3, ended_us, before & on_used & ~drop)
    rows = np.flatnonzero((inside | loose) & ~drop)
    rows = rows[np.lexsort((rows, start[rows] + dur[rows], start[rows]))]
    keys, places = np.unique(np.stack([device[rows], stream[rows]], axis=1), axis=0, return_inverse=True)
    tasks = Tasks(
        kind=kind[rows],
        name=name[rows],
        row=row[rows],
        owner=owner[rows],
        collective=collective[rows],
        stream=places.reshape(-1).astype(np.int64),
        streams=tuple((int(d), int(s)) for d, s in keys),
        start_us=(start[rows] - step.start_ns) / 1e3,
        end_us=(start[rows] + dur[rows] - step.start_ns) / 1e3,
        launch_us=np.where(known[rows], (launch_ns[rows] - step.start_ns) / 1e3, np.nan),
        launch_track=np.where(known[rows], launch_home[rows], -1),
        correlation=correlation[rows],
    )
    return tasks, Earlier(tasks, launches, until)


def _by_stream(
    device: Ints, stream: Ints, launch_us: Floats, end_us: Floats, chosen: Bools
) -> dict[tuple[int, int], tuple[Floats, Floats]]:
    """Map (device, stream) to (launch times, end times) of the chosen tasks, in launch order."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((end_us[rows], launch_us[rows], stream[rows], device[rows]))]
    if not len(rows):
        return {}
    changes = np.flatnonzero((np.diff(device[rows]) != 0) | (np.diff(stream[rows]) != 0)) + 1
    return {
        (int(device[part[0]]), int(stream[part[0]])): (launch_us[part], end_us[part])
        for part in np.split(rows, changes)
    }


def _first_start(device: Ints, stream: Ints, start: Ints, inside: Bools) -> Ints:
    """Return, for each task, the start of the step's first task on the same stream.

    If the step has no task on that stream, its first task on that device counts. If there is none either, the result is
    the lowest integer.
    """
    first = np.full(len(start), np.iinfo(np.int64).min)
    for key in distinct(device[inside]):
        on = device == key
        first[on] = start[on & inside].min()
        for number in distinct(stream[on & inside]):
            here = on & (stream == number)
            first[here] = start[here & inside].min()
    return first


def _own_device(device: Ints, inside: Bools) -> Bools:
    """Return a mask of tasks on a device that the step launched work on (all tasks if it launched nothing)."""
    used = distinct(device[inside])
    return np.isin(device, used) if len(used) else np.ones(len(device), bool)


def _launches(trace: Trace, home: Ints, correlation: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return (time, thread) of the call that launched each task. The thread is -1 if unknown or in another process.

    In merged files, calls far apart can share a correlation id. Then the last call that started before the task counts.
    Otherwise, an outer call takes precedence over the driver call inside it.
    """
    activity = trace.activity
    assert activity is not None
    calls, arrows = activity.calls, activity.arrows
    arrow = (arrows.kind == HOST_TO_DEVICE) & ~arrows.is_end
    key = np.concatenate([calls.correlation, arrows.id[arrow]])
    until = np.concatenate([calls.start_ns + calls.dur_ns, arrows.start_ns[arrow]])
    when = np.concatenate([calls.start_ns, arrows.start_ns[arrow]])
    track = np.concatenate([calls.track, arrows.track[arrow]]).astype(np.int64)
    by_queue = np.concatenate([calls.kind == QUEUE, np.zeros(int(arrow.sum()), bool)])
    usable = (key >= 0) & ~by_queue
    key, when, until, track = key[usable], when[usable], until[usable], track[usable]
    none = np.full(len(correlation), -1, np.int64)
    if not len(key) or not len(correlation):
        return none, none
    order = np.lexsort((when, key))
    key, when, until, track = key[order], when[order], until[order], track[order]
    low, high = np.searchsorted(key, correlation), np.searchsorted(key, correlation, side="right")
    known = (high > low) & (correlation >= 0)
    at = np.minimum(low, len(key) - 1)
    # Of several calls the first, unless they lie far apart: then ids repeat, and the last before the task counts.
    several = np.flatnonzero(known & (high > low + 1))
    for task in several.tolist():
        of_it = when[low[task] : high[task]]
        if of_it[-1] - of_it[0] > _REPEATED_NS:
            at[task] = low[task] + max(0, int(np.searchsorted(of_it, int(start[task]), side="right")) - 1)
    homes = _home_of_launch(trace, home)[track[at]]
    # A call that took long loaded the kernel's module, or waited for room in a queue, and launched at its end.
    # One that ended after its task waited for that.
    slow = (until[at] - when[at] > _SLOW_LAUNCH_NS) & (start >= until[at] - _SKEW_NS) & (end > until[at])
    return np.where(known, np.where(slow, until[at], when[at]), -1), np.where(known, homes, -1)


_SLOW_LAUNCH_NS = 100_000
_SKEW_NS = 5_000
"""Maximum difference of host and device clocks in one trace."""


_REPEATED_NS = 50_000_000
"""Calls with one correlation id that are further apart than this are not nested: the id was reused."""


def _home_of_launch(trace: Trace, home: Ints) -> Ints:
    """Return `home`, extended to threads of processes without ops.

    CANN records threads under another process. These threads are matched with those of `home` by thread id.
    """
    by_thread = {trace.tracks[index][1]: int(home[index]) for index in range(len(trace.tracks)) if home[index] >= 0}
    busy: set[str] = {trace.tracks[int(track)][0] for track in distinct(trace.ops.track)} if len(trace.ops) else set()
    out = home.copy()
    for index, (pid, tid) in enumerate(trace.tracks):
        if home[index] < 0 and pid not in busy and busy:
            out[index] = by_thread.get(tid, -1)
    return out


def _kinds(trace: Trace, name: Ints, collective: Ints) -> Ints:
    """Return the index into `NODE_KINDS` of each task, from its category and name."""
    category = trace.kernels.category.astype(np.int64)
    kind = np.full(len(name), COLLECTIVE, np.int64)
    kind[: len(category)] = _KIND_OF_CATEGORY[category]
    copies = np.array([any(word in text.lower() for word in _COPY_NAMES) for text in trace.kernel_names] or [False])
    if len(name):
        kind[(kind == KERNEL) & copies[name]] = COPY
        talks = np.zeros(len(name), bool)
        talks[: len(category)] = communication_rows(trace)
        kind[(collective >= 0) | talks] = COLLECTIVE
    return kind
