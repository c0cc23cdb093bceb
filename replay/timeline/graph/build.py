# pyright: strict
"""Build the execution graph of one step from its threads, tasks and waits. Other modules find these parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import (
    CROSS_THREAD,
    EARLIER,
    HOST,
    LAUNCH,
    NEVER,
    THREAD,
    WOKEN,
    Carried,
    EdgeList,
    Lane,
    Nodes,
    Slices,
    StepGraph,
)
from opreplay.replay.timeline.graph.schedule import host_need, step_length
from opreplay.replay.timeline.graph.streams import TaskEdges, task_edges
from opreplay.replay.timeline.graph.tasks import HOST_DEVICE, Earlier, Tasks, tasks_of
from opreplay.replay.timeline.graph.threads import Blocks, HostEvents, blocks_of, homes, host_events, main_track
from opreplay.replay.timeline.graph.waits import (
    Handover,
    HostWait,
    as_wait,
    collective_waits,
    device_waits,
    handovers,
    queue_arrows,
    top_level,
)
from opreplay.traces import Trace
from opreplay.traces.arrays import Floats, Ints
from opreplay.traces.errors import NothingRan, TraceError
from opreplay.traces.links.steps import Step, busy_steps

_SKEW_US = 5.0
"""Maximum difference of host and device clocks in one trace."""
_WOKEN_US = 1000.0
"""Idle time, in µs, after which a thread is assumed to have waited to be woken. Does not apply to the main thread."""


def step_graph(trace: Trace, step: Step) -> StepGraph:
    """Return the graph of one step of a trace that was read with its activity.

    Raises TraceError if nothing ran in the step.
    """
    if trace.activity is None:
        raise TraceError(
            f"{trace.info.path} does not record what each device task waited for",
            hint=(
                "A timeline needs a profile of torch.profiler: ExecutionTraces, Chakra files and plans "
                "do not record which call launched each device task, even if they have times."
            ),
        )
    main = main_track(trace, step)
    home = homes(trace, main)
    threads = host_events(trace, step, main, home) if main >= 0 else []
    tasks, earlier = tasks_of(trace, step, home)
    if not len(tasks) and not any(len(events.op) for events in threads):
        raise NothingRan(f"nothing ran in {step.name} of {trace.info.path}", hint="Choose another step with --step N.")
    end_us = (step.end_ns - step.start_ns) / 1e3
    device = task_edges(trace, tasks, earlier, step)
    waits, blocked_us = device_waits(trace, threads, tasks, earlier)
    waits += collective_waits(threads, tasks)
    for until in [wait.until_us for wait in waits if wait.earlier]:
        first = int(tasks.stream[np.argmin(np.where(tasks.on_device, tasks.start_us, np.inf))])
        earlier.until_us[first] = max(until, earlier.until_us.get(first, 0.0))
    earlier.until_us.update(device.busy_before_us)
    more, starts = _between_threads(trace, step, threads, end_us)
    waits += more
    host_end_us = end_us if step.marked else None  # what threads did after their last event, nothing says
    near = _Near.of(waits, starts)
    lanes = [_Thread(events, _blocks(events, tasks, near, host_end_us, main)) for events in threads]
    for stream in range(len(tasks.streams) * step.marked):
        earlier.number(stream)
    parts = _parts(lanes, tasks, device, earlier)
    graph = _assemble(trace, step, parts, waits, starts, end_us)
    return msgspec.structs.replace(graph, recorded_us=_recorded_us(trace, graph), blocked_us=blocked_us)


def _recorded_us(trace: Trace, graph: StepGraph) -> float:
    """Return the step's recorded length.

    If the trace shows when the previous step was completed, the length is the time since then. Otherwise, it is the
    larger of the host time and the time from the first to the last device work of the step.
    """
    nodes, step, begin = graph.nodes, graph.step, graph.begin_us
    ends = nodes.start_us + nodes.dur_us
    length_us = step_length(graph, nodes.start_us, ends, begin)
    follows = any(other.end_ns <= step.start_ns for other in busy_steps(trace))
    if follows or begin > 0.0 or not step.marked or not graph.on_device:
        return length_us
    work = nodes.row >= 0
    device_us = float(ends[work].max() - nodes.start_us[work].min())
    return min(length_us, max(device_us, host_need(graph, nodes.start_us, ends, begin)))


class _Start(msgspec.Struct, frozen=True):
    """Start of work at `at_us` on a thread that was idle since `idle_us`.

    The point `source`, (track, time), caused the start.
    """

    track: int
    idle_us: float
    at_us: float
    source: tuple[int, float]
    lag_us: float
    after_previous_us: float | None
    """Lag after the end of the thread's previous work. None if that work cannot delay the start."""
    kind: int
    recorded: bool


class _Thread(msgspec.Struct, frozen=True):
    events: HostEvents
    blocks: Blocks


def _between_threads(
    trace: Trace, step: Step, threads: list[HostEvents], end_us: float
) -> tuple[list[HostWait], list[_Start]]:
    """Return waits of the main thread for other threads, and what made idle threads resume."""
    if not threads:
        return [], []
    main, others = threads[0], threads[1:]
    gaps = handovers(main, others, 0.0, end_us)
    waits = [as_wait(handover, main.track) for handover in gaps]
    released = {(handover.track, handover.first_us): handover for handover in gaps}
    arrows = queue_arrows(trace, step, {events.track for events in threads})
    return waits, [start for events in others for start in _starts_of(events, main.track, arrows, released)]


def _starts_of(
    events: HostEvents,
    main: int,
    arrows: Mapping[tuple[int, float], tuple[int, float]],
    released: Mapping[tuple[int, float], Handover],
) -> Iterator[_Start]:
    """Yield what made a thread resume, for each time that it was idle."""
    begins, ends = top_level(events)
    latest = np.concatenate([[-np.inf], np.maximum.accumulate(ends)])[:-1]
    calls = [arrows.get((events.track, begin)) for begin in begins.tolist()]
    delays = [begin - call[1] for begin, call in zip(begins.tolist(), calls, strict=True) if call is not None]
    typical = float(np.median(delays)) if delays else 0.0
    for begin, previous, call in zip(begins.tolist(), latest.tolist(), calls, strict=True):
        if call is not None:
            delay = begin - call[1]
            by_it = call[1] + typical >= previous
            lag, after = (delay, 0.0) if by_it else (min(delay, typical), begin - previous)
            cause = call, lag, after, CROSS_THREAD, True
        elif (handover := released.get((events.track, begin))) is not None:
            cause = (main, handover.start_us), begin - handover.start_us, 0.0, CROSS_THREAD, False
        elif begin - previous > _WOKEN_US:
            cause = (main, begin), 0.0, None, WOKEN, False
        else:
            continue
        yield _Start(events.track, max(previous, -1.0), begin, *cause)


class _Near(msgspec.Struct, frozen=True):
    """The waits and starts of each thread, and the times at which other threads wait for it; keys are tracks."""

    waits: Mapping[int, Sequence[HostWait]]
    starts: Mapping[int, Sequence[_Start]]
    awaited_us: Mapping[int, Sequence[float]]

    @classmethod
    def of(cls, waits: Iterable[HostWait], starts: Iterable[_Start]) -> _Near:
        """Group the arguments by thread once, because a trace may have thousands of threads."""
        waits_of: defaultdict[int, list[HostWait]] = defaultdict(list)
        starts_of: defaultdict[int, list[_Start]] = defaultdict(list)
        awaited_us: defaultdict[int, list[float]] = defaultdict(list)
        for start in starts:
            starts_of[start.track].append(start)
            awaited_us[start.source[0]].append(start.source[1])
        for wait in waits:
            waits_of[wait.track].append(wait)
            if wait.thread is not None:
                awaited_us[wait.thread[0]].append(wait.thread[1])
        return cls(waits_of, starts_of, awaited_us)


def _blocks(events: HostEvents, tasks: Tasks, near: _Near, end_us: float | None, main: int) -> Blocks:
    """Split one thread at its launches, at its waits, and at the points for which other threads wait.

    The main thread continues until `end_us`, other threads until their last event.
    """
    waits, starts = near.waits.get(events.track, ()), near.starts.get(events.track, ())
    points = [*tasks.launch_us[tasks.launch_track == events.track].tolist(), *near.awaited_us.get(events.track, ())]
    idle = [(wait.start_us, wait.until_us) for wait in waits]
    idle += [(start.idle_us, start.at_us) for start in starts]
    points += [start.at_us for start in starts]
    points += [us for wait in waits for us in (wait.until_us, wait.start_us)]
    begin, end = 0.0, end_us
    if events.track != main:
        starts_here = [*points, *events.start_us.tolist()[:1]]
        begin = min(starts_here, default=0.0)
    if events.track != main or end is None:
        end = max([*points, float(events.end_us.max(initial=begin))], default=begin)
    return blocks_of(events, begin, end, points, idle)


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a graph, with the node numbers of each part before sorting.

    Nodes come in this order: blocks of all threads, tasks of this step, and tasks of the previous step that something
    waits for.
    """

    threads: list[_Thread]
    tasks: Tasks
    device: TaskEdges
    earlier: Earlier
    first_block: dict[int, int]
    """Track → node of its first block."""
    first_task: int
    first_earlier: int
    total: int
    start: Floats
    end: Floats


def _parts(threads: list[_Thread], tasks: Tasks, device: TaskEdges, earlier: Earlier) -> _Parts:
    first_block: dict[int, int] = {}
    host = 0
    for thread in threads:
        first_block[thread.events.track] = host
        host += len(thread.blocks.start_us)
    blocks = [thread.blocks for thread in threads]
    zeros = np.zeros(len(earlier.asked))
    return _Parts(
        threads=threads,
        tasks=tasks,
        device=device,
        earlier=earlier,
        first_block=first_block,
        first_task=host,
        first_earlier=host + len(tasks),
        total=host + len(tasks) + len(earlier.asked),
        start=np.concatenate([*(b.start_us for b in blocks), tasks.start_us, zeros]),
        end=np.concatenate([*(b.end_us for b in blocks), tasks.end_us, zeros]),
    )


def _assemble(
    trace: Trace, step: Step, parts: _Parts, waits: list[HostWait], starts: list[_Start], end_us: float
) -> StepGraph:
    tasks, device, total, first_task = parts.tasks, parts.device, parts.total, parts.first_task
    edges = EdgeList()
    starts_of = _Near.of((), starts).starts
    for thread in parts.threads:
        track = thread.events.track
        _thread_edges(thread, parts.first_block[track], starts_of.get(track, ()), edges)
        _launch_edges(parts, thread, edges)
    edges.join(device.edges, first_task)
    _wait_edges(parts, waits, starts, edges)
    _earlier_edges(parts, edges)
    # Clocks of host and device differ a little: for the order alone, no task starts before its launch.
    key = parts.start.copy()
    key[parts.first_task : parts.first_earlier] = np.fmax(tasks.start_us, tasks.launch_us)
    place = np.lexsort((np.arange(total), parts.end, key))
    rank = np.empty(total, np.int64)
    rank[place] = np.arange(total)
    source, target = np.array(edges.source, np.int64), np.array(edges.target, np.int64)
    forward = rank[source] < rank[target]
    release = np.zeros(total)
    first_earlier, asked = parts.first_earlier, range(len(parts.earlier.asked))
    release[first_earlier:] = [parts.earlier.ended_us(len(tasks) + at) for at in asked]
    binding = forward & np.isnan(np.array(edges.possible_us)) & ((source < first_earlier) | (release[source] > 0.0))
    loose = np.ones(total, bool)
    loose[target[binding]] = False
    loose[parts.first_earlier :] = False
    release[loose] = parts.start[loose]  # nothing is known to have held it back
    picked = np.flatnonzero(forward)[np.lexsort((rank[source[forward]], rank[target[forward]]))]
    nodes = _nodes(parts, place)
    begin = max([0.0, *parts.earlier.until_us.values()])
    follows = len(asked) if step.marked else 0
    alike = [first_task + parts.earlier.alike(len(tasks) + at) for at in asked]
    slices = [thread.blocks.parts for thread in parts.threads]
    return StepGraph(
        step=step,
        nodes=nodes,
        edges=edges.in_order(rank[source], rank[target], picked),
        slices=Slices(
            dur_us=_joined([part.dur_us for part in slices], np.float64),
            op=_joined([part.op for part in slices], np.int64),
            call=_joined([part.call for part in slices], np.int64),
        ),
        lanes=_lanes(trace, parts.threads, tasks),
        main_lane=0 if parts.threads else -1,
        release_us=release[place],
        begin_us=begin,
        recorded_us=0.0,
        host_us=end_us,
        launch_latency_us=device.latency_us,
        stream_gap_us=device.gap_us,
        carried=Carried(node=rank[first_earlier:][:follows], source=rank[np.array(alike[:follows], np.int64)]),
        kernels_take_turns=device.kernels_take_turns,
        unexplained=device.unexplained,
        dropped_edges=int((~forward).sum()),
    )


def _nodes(parts: _Parts, place: Ints) -> Nodes:
    """Return the nodes in order."""
    tasks, streams = parts.tasks, np.array([stream for stream, _ in parts.earlier.asked], np.int64)
    blocks = [thread.blocks for thread in parts.threads]
    base = np.concatenate([[0], np.cumsum([len(b.parts.dur_us) for b in blocks])]).astype(np.int64)
    none, last = np.full(parts.first_task, -1, np.int64), np.full(len(streams), -1, np.int64)
    zeros = np.zeros(parts.total - parts.first_task, np.int64)
    lanes = [np.full(len(b.start_us), lane) for lane, b in enumerate(blocks)]
    lane = np.concatenate([*lanes, len(blocks) + tasks.stream, len(blocks) + streams])
    kind = np.concatenate([np.full(parts.first_task, HOST), tasks.kind, np.full(len(streams), HOST)])
    first = np.concatenate([*(b.first_slice + base[i] for i, b in enumerate(blocks)), zeros])

    def of_tasks(column: Ints) -> Ints:
        return np.concatenate([none, column, last])[place]

    return Nodes(
        kind=kind[place].astype(np.uint8),
        lane=lane[place].astype(np.int64),
        start_us=parts.start[place],
        dur_us=np.maximum(parts.end - parts.start, 0.0)[place],
        name=of_tasks(tasks.name),
        owner=of_tasks(tasks.owner),
        row=of_tasks(tasks.row),
        collective=of_tasks(tasks.collective),
        first_slice=first[place].astype(np.int64),
        slices=np.concatenate([*(b.slices for b in blocks), zeros])[place].astype(np.int64),
    )


def _launch_edges(parts: _Parts, thread: _Thread, edges: EdgeList) -> None:
    """Add an edge to each task that a thread launched, from the block of this thread that ends with the launch."""
    tasks, blocks = parts.tasks, thread.blocks
    launched = np.flatnonzero(tasks.launch_track == thread.events.track)
    # A launch before the thread's first block ends waits for none of it.
    launched = launched[tasks.launch_us[launched] >= blocks.end_us[0]] if len(blocks.end_us) else launched[:0]
    at = np.searchsorted(blocks.end_us, tasks.launch_us[launched], side="right") - 1
    late = tasks.launch_us[launched] - blocks.end_us[at]
    source = parts.first_block[thread.events.track] + at
    lag, unknown = parts.device.launch_lag_us[launched] + late, parts.device.launch_unknown_us[launched]
    target = (parts.first_task + launched).tolist()
    edges.extend(source.tolist(), target, lag.tolist(), LAUNCH, unknown_us=unknown.tolist())


def _wait_edges(parts: _Parts, waits: list[HostWait], starts: list[_Start], edges: EdgeList) -> None:
    """Add edges for the waits of threads, and for what makes idle threads resume."""
    by_track = {thread.events.track: thread for thread in parts.threads}
    first = parts.first_block
    for wait in waits:
        target = _starting_at(by_track[wait.track].blocks, first[wait.track], wait.until_us)
        for task in wait.tasks:
            lag = wait.until_us - parts.earlier.ended_us(task)
            lag = lag if -_SKEW_US < lag < 0.0 else 0.0
            edges.add(parts.first_task + task, target, lag, wait.kind, recorded=wait.recorded)
        if wait.thread is not None:
            source = _ending_at(by_track[wait.thread[0]].blocks, first[wait.thread[0]], wait.thread[1])
            edges.add(source, target, 0.0, wait.kind, recorded=wait.recorded)
    for start in starts:
        target = _starting_at(by_track[start.track].blocks, first[start.track], start.at_us)
        source = _ending_at(by_track[start.source[0]].blocks, first[start.source[0]], start.source[1])
        ended = float(parts.end[source])
        if ended <= start.at_us:  # else the other thread was idle as well: nothing known woke this one
            lag = start.at_us - ended if start.kind == WOKEN else start.lag_us
            edges.add(source, target, lag, start.kind, recorded=start.recorded)


def _earlier_edges(parts: _Parts, edges: EdgeList) -> None:
    """Add edges to the first task of each stream from the stream's last task of the previous step."""
    tasks, device, earlier = parts.tasks, parts.device, parts.earlier
    first_of = dict(zip(*(column.tolist() for column in np.unique(tasks.stream, return_index=True)), strict=True))
    for at, (stream, back) in enumerate(earlier.asked):
        if back == 0 and stream in first_of:
            task = first_of[stream]
            lag = device.gap_us
            ended_us = earlier.ended_us(len(tasks) + at)
            if ended_us > NEVER:
                lag = min(lag, max(0.0, float(tasks.start_us[task]) - ended_us))
            recorded = stream not in device.busy_before_us
            edges.add(parts.first_earlier + at, parts.first_task + task, lag, EARLIER, recorded=recorded)


def _thread_edges(thread: _Thread, base: int, starts: Sequence[_Start], edges: EdgeList) -> None:
    """Add an edge from each block of a thread to the next block.

    A block that another thread woke gets no such edge, because it does not wait for its own thread's work.
    """
    n = len(thread.blocks.start_us)
    if n < 2:
        return
    lags = np.zeros(n - 1)
    keep = np.ones(n - 1, bool)
    for start in starts:
        at = _starting_at(thread.blocks, 0, start.at_us)
        if at > 0:
            if start.after_previous_us is None:
                keep[at - 1] = False
            else:
                lags[at - 1] = start.after_previous_us
    rows = np.flatnonzero(keep)
    edges.extend((base + rows).tolist(), (base + rows + 1).tolist(), lags[rows].tolist(), THREAD)


def _starting_at(blocks: Blocks, base: int, time_us: float) -> int:
    """Return the first block that starts at or after a time."""
    return base + min(int(np.searchsorted(blocks.start_us, time_us - 1e-6)), len(blocks.start_us) - 1)


def _ending_at(blocks: Blocks, base: int, time_us: float) -> int:
    """Return the last block that ends at or before a time; the first block if there is none."""
    return base + max(0, int(np.searchsorted(blocks.end_us, time_us + 1e-6, side="right")) - 1)


def _joined(parts: list[Any], kind: type) -> Any:
    return np.concatenate(parts) if parts else np.empty(0, kind)  # pyright: ignore[reportUnknownVariableType]


def _lanes(trace: Trace, threads: list[_Thread], tasks: Tasks) -> tuple[Lane, ...]:
    several = len({device for device, _ in tasks.streams}) > 1
    out = [
        Lane(device=False, name=f"thread {trace.tracks[thread.events.track][1]}", track=thread.events.track)
        for thread in threads
    ]
    for device, stream in tasks.streams:
        if device == HOST_DEVICE:
            out.append(Lane(device=True, name=f"collectives on thread {trace.tracks[stream][1]}"))
            continue
        out.append(Lane(device=True, name=f"stream {stream}" + (f" of device {device}" if several else "")))
    return tuple(out)
