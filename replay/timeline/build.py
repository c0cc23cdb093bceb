"""Trace → the execution graph of one of its steps: threads, tasks and waits put together; owns no rule of its own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from opreplay.replay.timeline.graph import (
    CROSS_THREAD,
    EARLIER,
    HOST,
    LAUNCH,
    THREAD,
    WOKEN,
    Edges,
    Floats,
    Ints,
    Lane,
    Nodes,
    Slices,
    StepGraph,
)
from opreplay.replay.timeline.schedule import step_length
from opreplay.replay.timeline.steps import Step
from opreplay.replay.timeline.streams import TaskEdges, task_edges
from opreplay.replay.timeline.tasks import Tasks, tasks_of
from opreplay.replay.timeline.threads import Blocks, HostEvents, blocks_of, homes, host_events, main_track
from opreplay.replay.timeline.waits import HostWait, as_wait, device_waits, handovers, queue_arrows, top_level
from opreplay.traces import Trace
from opreplay.traces.errors import TraceError

_WOKEN_US = 1000.0
"""A thread other than the main one that did nothing for longer than this was waiting to be woken."""


def step_graph(trace: Trace, step: Step) -> StepGraph:
    """The graph of one step. The trace must have been read with its activity. Raises TraceError: nothing ran in it."""
    if trace.activity is None:
        raise ValueError("read the trace with activity=True")
    main = main_track(trace, step)
    home = homes(trace, main) if main >= 0 else np.full(len(trace.tracks), -1, np.int64)
    threads = host_events(trace, step, main, home) if main >= 0 else []
    tasks, earlier = tasks_of(trace, step, home)
    if not len(tasks) and not any(len(events.op) for events in threads):
        raise TraceError(f"nothing ran in {step.name} of {trace.info.path}", hint="Choose another one with --step N.")
    end_us = (step.end_ns - step.start_ns) / 1e3
    busy_until = {tasks.streams.index(key): us for key, us in earlier.until_us.items() if key in tasks.streams}
    device = task_edges(trace, tasks, busy_until, step)
    waits = device_waits(trace, threads, tasks)
    starts: list[_Start] = []
    if threads:
        more, starts = _between_threads(trace, step, threads, end_us)
        waits += more
    lanes = [_Thread(events, _blocks(events, tasks, waits, starts, end_us, main)) for events in threads]
    return _assemble(trace, step, tasks, device, lanes, waits, starts, busy_until, end_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Another thread begins to work at `at_us` because of a point on a thread; it idled since `idle_us`."""

    track: int
    idle_us: float
    at_us: float
    source: tuple[int, float]
    lag_us: float
    after_previous_us: float | None
    """Lag from the end of its own work before, where that may bind as well."""
    kind: int
    recorded: bool


@dataclass(frozen=True, slots=True)
class _Thread:
    events: HostEvents
    blocks: Blocks


def _between_threads(
    trace: Trace, step: Step, threads: list[HostEvents], end_us: float
) -> tuple[list[HostWait], list[_Start]]:
    """Waits of the main thread for others, and what made the others begin after being idle."""
    main, others = threads[0], threads[1:]
    given = handovers(main, others, 0.0, end_us)
    waits = [as_wait(handover, main.track) for handover in given]
    released = {(handover.track, handover.first_us): handover for handover in given}
    arrows = queue_arrows(trace, step, {events.track for events in threads})
    starts: list[_Start] = []
    for events in others:
        begins, ends = top_level(events)
        if not len(begins):
            continue
        latest = np.concatenate([[-np.inf], np.maximum.accumulate(ends)[:-1]])
        asked = [arrows.get((events.track, begin)) for begin in begins.tolist()]
        delays = [begin - told[1] for begin, told in zip(begins.tolist(), asked, strict=True) if told is not None]
        typical = float(np.median(delays)) if delays else 0.0
        for begin, previous, told in zip(begins.tolist(), latest.tolist(), asked, strict=True):
            idle = max(previous, -1.0)
            handover = released.get((events.track, begin))
            if told is not None:
                bound_by_it = told[1] + typical >= previous
                delay = begin - told[1]
                starts.append(
                    _Start(
                        track=events.track, idle_us=idle, at_us=begin, source=told,
                        lag_us=delay if bound_by_it else min(delay, typical),
                        after_previous_us=0.0 if bound_by_it else begin - previous, kind=CROSS_THREAD, recorded=True,
                    )  # fmt: skip
                )
            elif handover is not None:
                source = (main.track, handover.start_us)
                starts.append(
                    _Start(
                        track=events.track, idle_us=idle, at_us=begin, source=source, lag_us=begin - source[1],
                        after_previous_us=0.0, kind=CROSS_THREAD, recorded=False,
                    )  # fmt: skip
                )
            elif begin - previous > _WOKEN_US:
                starts.append(
                    _Start(
                        track=events.track, idle_us=idle, at_us=begin, source=(main.track, begin), lag_us=0.0,
                        after_previous_us=None, kind=WOKEN, recorded=False,
                    )  # fmt: skip
                )
    return waits, starts


def _blocks(
    events: HostEvents, tasks: Tasks, waits: list[HostWait], starts: list[_Start], end_us: float, main: int
) -> Blocks:
    """One thread cut at its launches, its waits and the points that others wait for."""
    points = tasks.launch_us[tasks.launch_track == events.track].tolist()
    points += [start.source[1] for start in starts if start.source[0] == events.track]
    points += [wait.thread[1] for wait in waits if wait.thread is not None and wait.thread[0] == events.track]
    idle = [(wait.start_us, wait.until_us) for wait in waits if wait.track == events.track]
    idle += [(start.idle_us, start.at_us) for start in starts if start.track == events.track]
    points += [start.at_us for start in starts if start.track == events.track]
    points += [wait.until_us for wait in waits if wait.track == events.track]
    points += [wait.start_us for wait in waits if wait.track == events.track]
    begin, end = 0.0, end_us
    if events.track != main:
        own = [*points, *events.start_us.tolist()[:1]]
        begin = min(own, default=0.0)
        end = max([*points, float(events.end_us.max(initial=begin))], default=begin)
    return blocks_of(events, begin, end, points, idle)


class _Edges:
    """Edges between rows of nodes before these are put in order."""

    def __init__(self) -> None:
        self.source: list[int] = []
        self.target: list[int] = []
        self.lag: list[float] = []
        self.kind: list[int] = []
        self.recorded: list[bool] = []

    def add(self, source: int, target: int, lag: float, kind: int, recorded: bool) -> None:
        self.source.append(source)
        self.target.append(target)
        self.lag.append(lag)
        self.kind.append(kind)
        self.recorded.append(recorded)

    def extend(self, source: Ints, target: Ints, lag: Floats, kind: int, recorded: bool) -> None:
        self.source += source.tolist()
        self.target += target.tolist()
        self.lag += lag.tolist()
        self.kind += [kind] * len(source)
        self.recorded += [recorded] * len(source)


def _assemble(
    trace: Trace, step: Step, tasks: Tasks, device: TaskEdges, threads: list[_Thread], waits: list[HostWait],
    starts: list[_Start], busy_until: dict[int, float], end_us: float,
) -> StepGraph:  # fmt: skip
    busy_until = {**busy_until, **device.busy_before_us}
    first_block: dict[int, int] = {}
    host = 0
    parts: list[Slices] = []
    slice_base, columns = 0, defaultdict(list)
    for lane, thread in enumerate(threads):
        blocks = thread.blocks
        n = len(blocks.start_us)
        first_block[thread.events.track] = host
        columns["start"].append(blocks.start_us)
        columns["end"].append(blocks.end_us)
        columns["lane"].append(np.full(n, lane))
        columns["first"].append(blocks.first_slice + slice_base)
        columns["slices"].append(blocks.slices)
        parts.append(blocks.parts)
        slice_base += len(blocks.parts.dur_us)
        host += n
    n, count = len(tasks), host + len(tasks)
    earlier_base = count
    streams = sorted(busy_until)
    total = count + len(streams)
    start = np.concatenate([*columns["start"], tasks.start_us, np.zeros(len(streams))])
    # Clocks of host and device differ a little: for the order alone, no task starts before its launch.
    order_key = start.copy()
    order_key[host:count] = np.fmax(tasks.start_us, tasks.launch_us)
    end = np.concatenate([*columns["end"], tasks.end_us, np.zeros(len(streams))])
    lane_base = len(threads)
    lane = np.concatenate([*columns["lane"], lane_base + tasks.stream, lane_base + np.array(streams, np.int64)])
    kind = np.concatenate([np.full(host, HOST), tasks.kind, np.full(len(streams), HOST)])
    edges = _Edges()
    for thread in threads:
        base, blocks = first_block[thread.events.track], thread.blocks
        _thread_edges(thread, base, starts, edges)
        launched = np.flatnonzero(tasks.launch_track == thread.events.track)
        source = base + np.maximum(0, np.searchsorted(blocks.end_us, tasks.launch_us[launched], side="right") - 1)
        # The last block that ends by the launch; the thread's final one has no length and would end there too.
        source = np.minimum(source, base + len(blocks.end_us) - 1)
        ends = end[source]
        at_start = tasks.launch_us[launched] < blocks.end_us[0] if len(blocks.end_us) else np.zeros(0, bool)
        lag = device.launch_lag_us[launched] + np.where(at_start, 0.0, tasks.launch_us[launched] - ends)
        keep = ~at_start
        edges.extend(source[keep], host + launched[keep], lag[keep], LAUNCH, True)
    edges.source += [host + s for s in device.source]
    edges.target += [host + t for t in device.target]
    edges.lag += device.lag_us
    edges.kind += device.kind
    edges.recorded += device.recorded
    by_track = {thread.events.track: thread for thread in threads}
    for wait in waits:
        thread = by_track[wait.track]
        target = _starting_at(thread.blocks, first_block[wait.track], wait.until_us)
        for task in wait.tasks:
            edges.add(host + task, target, min(0.0, wait.until_us - float(tasks.end_us[task])), wait.kind, wait.recorded)
        if wait.thread is not None:
            source = _ending_at(by_track[wait.thread[0]].blocks, first_block[wait.thread[0]], wait.thread[1])
            edges.add(source, target, 0.0, wait.kind, wait.recorded)
    for start_ in starts:
        thread = by_track[start_.track]
        target = _starting_at(thread.blocks, first_block[start_.track], start_.at_us)
        source_thread = by_track[start_.source[0]]
        source = _ending_at(source_thread.blocks, first_block[start_.source[0]], start_.source[1])
        if end[source] <= start_.at_us:  # else the other thread was idle as well: nothing known woke this one
            lag = start_.at_us - float(end[source]) if start_.kind == WOKEN else start_.lag_us
            edges.add(source, target, lag, start_.kind, start_.recorded)
    seen: set[int] = set()
    for task in range(n):
        stream = int(tasks.stream[task])
        if stream in busy_until and stream not in seen:
            seen.add(stream)
            lag = max(0.0, float(tasks.start_us[task]) - busy_until[stream])
            told = stream not in device.busy_before_us
            edges.add(earlier_base + streams.index(stream), host + task, min(lag, device.gap_us), EARLIER, told)
    release = np.zeros(total)
    release[earlier_base:] = [busy_until[stream] for stream in streams]
    place = np.lexsort((np.arange(total), end, order_key))
    rank = np.empty(total, np.int64)
    rank[place] = np.arange(total)
    # Work of a step before is done when it is done: it comes first.
    source, target = rank[np.array(edges.source, np.int64)], rank[np.array(edges.target, np.int64)]
    forward = source < target
    loose = np.ones(total, bool)
    loose[np.array(edges.target, np.int64)[forward]] = False
    loose[earlier_base:] = False
    release[loose] = start[loose]
    order = np.lexsort((source[forward], target[forward]))
    picked = np.flatnonzero(forward)[order]
    dur = np.maximum(end - start, 0.0)
    pad = np.full(len(streams), -1, np.int64)
    none = np.full(host, -1, np.int64)
    zeros = np.zeros(n + len(streams), np.int64)
    nodes = Nodes(
        kind=kind[place].astype(np.uint8), lane=lane[place], start_us=start[place], dur_us=dur[place],
        name=np.concatenate([none, tasks.name, pad])[place], owner=np.concatenate([none, tasks.owner, pad])[place],
        row=np.concatenate([none, tasks.row, pad])[place],
        collective=np.concatenate([none, tasks.collective, pad])[place],
        first_slice=np.concatenate([*columns["first"], zeros])[place].astype(np.int64),
        slices=np.concatenate([*columns["slices"], zeros])[place].astype(np.int64),
    )  # fmt: skip
    begin = max([0.0, *busy_until.values()])
    graph = StepGraph(
        step=step, nodes=nodes,
        edges=Edges(
            source=source[picked], target=target[picked], lag_us=np.array(edges.lag, np.float64)[picked],
            kind=np.array(edges.kind, np.uint8)[picked], recorded=np.array(edges.recorded, bool)[picked],
        ),
        slices=Slices(
            dur_us=_joined([part.dur_us for part in parts], np.float64),
            op=_joined([part.op for part in parts], np.int64), call=_joined([part.call for part in parts], np.int64),
        ),
        lanes=_lanes(trace, threads, tasks), main_lane=0 if threads else -1, release_us=release[place],
        begin_us=begin, recorded_us=0.0, host_us=end_us,
        launch_latency_us=device.latency_us, stream_gap_us=device.gap_us, unexplained=device.unexplained,
        dropped_edges=int((~forward).sum()),
    )  # fmt: skip
    return replace(graph, recorded_us=step_length(graph, nodes.start_us, nodes.start_us + nodes.dur_us, begin))


def _thread_edges(thread: _Thread, base: int, starts: list[_Start], edges: _Edges) -> None:
    """Each block after the one before; a thread that was idle and then woken does not wait for its own past."""
    n = len(thread.blocks.start_us)
    if n < 2:
        return
    lags = np.zeros(n - 1)
    keep = np.ones(n - 1, bool)
    for start in starts:
        if start.track == thread.events.track:
            at = _starting_at(thread.blocks, 0, start.at_us)
            if at > 0:
                if start.after_previous_us is None:
                    keep[at - 1] = False
                else:
                    lags[at - 1] = start.after_previous_us
    rows = np.flatnonzero(keep)
    edges.extend(base + rows, base + rows + 1, lags[rows], THREAD, True)


def _starting_at(blocks: Blocks, base: int, time_us: float) -> int:
    """The first block that starts no earlier than a time."""
    return base + min(int(np.searchsorted(blocks.start_us, time_us - 1e-6)), len(blocks.start_us) - 1)


def _ending_at(blocks: Blocks, base: int, time_us: float) -> int:
    """The last block that ends no later than a time, else the first."""
    return base + max(0, int(np.searchsorted(blocks.end_us, time_us + 1e-6, side="right")) - 1)


def _joined(parts: list[Floats] | list[Ints], kind: type) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _lanes(trace: Trace, threads: list[_Thread], tasks: Tasks) -> tuple[Lane, ...]:
    several = len({device for device, _ in tasks.streams}) > 1
    out = [
        Lane(device=False, name=f"thread {trace.tracks[thread.events.track][1]}", track=thread.events.track)
        for thread in threads
    ]
    for device, stream in tasks.streams:
        out.append(Lane(device=True, name=f"stream {stream}" + (f" of device {device}" if several else "")))
    return tuple(out)
