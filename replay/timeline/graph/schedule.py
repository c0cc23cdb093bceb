# pyright: strict
"""List scheduling of a step's graph: the start of each node, its last dependency, and its slack."""

from __future__ import annotations

import heapq

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import HOST, KERNEL, SHARED, StepGraph
from opreplay.traces.arrays import Floats, Ints

MOST_COPIES = 8
STEADY = 1e-3
"""Copies of a step are scheduled until two consecutive copies differ in length by at most this share."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Times of all nodes of a graph, µs after the step's start on the host."""

    start_us: Floats
    end_us: Floats
    cause: Ints
    """The node that each node waited for last; -1 if there is none."""
    cause_kind: Ints
    """Index into `EDGE_KINDS` of the dependency on `cause`."""
    step_us: float
    """Length of the step as in `step_length`. In steady state, it is the time since the completion of the previous
    step.
    """
    begin_us: float
    """Completion time of the previous step, in µs, if it is after this step's start on the host. Otherwise 0."""


def completion(graph: StepGraph, end_us: Floats) -> float:
    """Return the time at which the thread that marks the step and all device work of the step are complete."""
    nodes = graph.nodes
    if graph.main_lane < 0:
        return float(end_us.max(initial=0.0))
    device = np.array([lane.device for lane in graph.lanes], bool)[nodes.lane] & (nodes.kind != HOST)
    return float(end_us[device | (nodes.lane == graph.main_lane)].max(initial=0.0))


def host_need(graph: StepGraph, start_us: Floats, end_us: Floats, begin_us: float) -> float:
    """Return the time that the thread marking the step needs. Its wait for the previous step's device work does not
    count.
    """
    main = np.flatnonzero(graph.nodes.lane == graph.main_lane)
    if graph.main_lane < 0 or not len(main):
        return 0.0
    waited_from = np.minimum(np.append(0.0, end_us[main][:-1]), begin_us)
    waited = np.maximum(0.0, np.minimum(start_us[main], begin_us) - waited_from).sum()
    return float(end_us[main].max()) - float(waited)


def step_length(graph: StepGraph, start_us: Floats, end_us: Floats, begin_us: float) -> float:
    """Return the length, in µs, of a step in a sequence of identical, consecutive steps.

    It is the larger of two times. The first is the time that the thread marking the step needs, without its wait until
    `begin_us` for the device to finish the previous step. The second is the time from the completion of the previous
    step to the completion of this step. Without work of a previous step, the length is the time until everything in the
    step has ended.
    """
    nodes = graph.nodes
    if not len(nodes):
        return 0.0
    if begin_us <= 0.0:
        return float(end_us.max())
    device = np.array([lane.device for lane in graph.lanes])[nodes.lane]
    completed = float(end_us[device].max(initial=begin_us)) - begin_us
    return max(completed, host_need(graph, start_us, end_us, begin_us))


class _Scheduler:
    """Schedules one graph with given durations and lags, for different release times."""

    def __init__(self, graph: StepGraph, durations_us: Floats | None, lags_us: Floats | None) -> None:
        nodes, edges = graph.nodes, graph.edges
        self.graph = graph
        self.durations: list[float] = (nodes.dur_us if durations_us is None else durations_us).tolist()
        self.lags: list[float] = (edges.lag_us if lags_us is None else lags_us).tolist()
        self.bounds: list[int] = np.searchsorted(edges.target, np.arange(len(nodes) + 1)).tolist()
        self.sources: list[int] = edges.source.tolist()
        self.kinds: list[int] = edges.kind.tolist()

    def schedule(self, release_us: Floats) -> tuple[Floats, Floats, Ints, Ints]:
        """Return (starts, ends, nodes and edge kinds of the last dependencies) from `times` or `times_in_turns`."""
        return self.times_in_turns(release_us) if self.graph.kernels_take_turns else self.times(release_us)

    def times(self, release_us: Floats) -> tuple[Floats, Floats, Ints, Ints]:
        """Return (starts, ends, node and edge kind of the last dependency of each node). No node starts before its
        release time.
        """
        durations, lags, sources, bounds, kinds = self.durations, self.lags, self.sources, self.bounds, self.kinds
        start: list[float] = release_us.tolist()
        end = [0.0] * len(start)
        cause, kind = [-1] * len(start), [0] * len(start)
        for node in range(len(start)):
            begin = start[node]
            for edge in range(bounds[node], bounds[node + 1]):
                ready = end[sources[edge]] + lags[edge]
                if ready > begin:
                    begin, cause[node], kind[node] = ready, sources[edge], kinds[edge]
            start[node] = begin
            end[node] = begin + durations[node]
        return np.array(start, np.float64), np.array(end, np.float64), np.array(cause), np.array(kind)

    def times_in_turns(self, release_us: Floats) -> tuple[Floats, Floats, Ints, Ints]:
        """Return the same tuple as `times`, but let kernels run one at a time, in the order in which they
        become ready.
        """
        graph = self.graph
        takes_turns = (graph.nodes.kind == KERNEL).tolist()
        start: list[float] = release_us.tolist()
        end = [0.0] * len(start)
        cause, kind = [-1] * len(start), [0] * len(start)
        by_source = np.argsort(graph.edges.source, kind="stable")
        leaving: list[int] = np.searchsorted(graph.edges.source[by_source], np.arange(len(start) + 1)).tolist()
        edges: list[int] = by_source.tolist()
        targets: list[int] = graph.edges.target.tolist()
        missing: list[int] = np.diff(self.bounds).tolist()
        ready = [(begin, node) for node, begin in enumerate(start) if not missing[node]]
        heapq.heapify(ready)
        running, free = -1, -np.inf
        while ready:
            begin, node = heapq.heappop(ready)
            if takes_turns[node] and begin < free:
                begin, cause[node], kind[node] = free, running, SHARED
            start[node], end[node] = begin, begin + self.durations[node]
            if takes_turns[node]:
                running, free = node, end[node]
            for at in range(leaving[node], leaving[node + 1]):
                edge = edges[at]
                target = targets[edge]
                if (since := end[node] + self.lags[edge]) > start[target]:
                    start[target], cause[target], kind[target] = since, node, self.kinds[edge]
                missing[target] -= 1
                if not missing[target]:
                    heapq.heappush(ready, (start[target], target))
        return np.array(start, np.float64), np.array(end, np.float64), np.array(cause), np.array(kind)


def retimed(graph: StepGraph, durations_us: Floats | None = None, *, lags_us: Floats | None = None) -> Schedule:
    """Return the schedule with the earliest possible starts.

    `durations_us` [nodes] and `lags_us` [edges] replace the recorded durations and lags. The state of the device after
    the previous step is as recorded.
    """
    scheduler = _Scheduler(graph, durations_us, lags_us)
    starts, ends, cause, kind = scheduler.schedule(graph.release_us)
    return Schedule(
        start_us=starts,
        end_us=ends,
        cause=cause,
        cause_kind=kind,
        step_us=step_length(graph, starts, ends, graph.begin_us),
        begin_us=graph.begin_us,
    )


def paced(graph: StepGraph, durations_us: Floats | None = None, lags_us: Floats | None = None) -> Schedule:
    """Return the schedule of a step in steady state: schedule copies of the step until their length is constant.

    Each copy starts from the device state after the previous copy. The first copy starts from the recorded state. For a
    trace without marked steps, return the same schedule as `retimed`.
    """
    carried = graph.carried
    schedule = retimed(graph, durations_us, lags_us=lags_us)
    if not len(carried.node):
        return schedule
    scheduler = _Scheduler(graph, durations_us, lags_us)
    release = graph.release_us.copy()
    main = graph.nodes.lane == graph.main_lane
    # Of kernels that run one at a time those of other steps are in the way, too, which no copy knows of.
    in_turns_us = float(np.array(scheduler.durations)[graph.nodes.kind == KERNEL].sum())
    least_us = in_turns_us if graph.kernels_take_turns else 0.0
    for _ in range(MOST_COPIES):
        before = schedule
        host_us = float(before.end_us[main].max(initial=0.0))
        release[carried.node] = before.end_us[carried.source] - host_us
        starts, ends, cause, kind = scheduler.schedule(release)
        # A lane that still works off what it was behind is faster than the slowest one only for a while.
        later = (ends - before.end_us)[carried.source] + host_us
        pace_us = max(float(ends[main].max(initial=0.0)), float(later.max()), least_us)
        begin_us = completion(graph, ends) - pace_us
        schedule = Schedule(
            start_us=starts, end_us=ends, cause=cause, cause_kind=kind, step_us=pace_us, begin_us=begin_us
        )
        if abs(pace_us - before.step_us) <= STEADY * before.step_us:
            break
    return schedule


def lag_bounds(graph: StepGraph, lags_us: Floats) -> tuple[Floats, Floats]:
    """Return two variants of the lags: without unexplained waiting, and with every possible dependency.

    A variant that would not differ is `lags_us` itself. Compute the gain of a change with both variants and with
    `lags_us`: the true gain lies between the results.
    """
    edges = graph.edges
    possible = ~np.isnan(edges.possible_us)
    explained_us = np.maximum(lags_us - edges.unknown_us, np.minimum(lags_us, 0.0))
    return (
        explained_us if edges.unknown_us.any() else lags_us,
        np.where(possible, edges.possible_us, lags_us) if possible.any() else lags_us,
    )


def critical_path(graph: StepGraph, schedule: Schedule) -> tuple[Ints, Floats]:
    """Return the path of nodes that determines when the last node ends.

    The result is (nodes, wait of each node after the end of the node before it).
    """
    if not len(graph.nodes):
        return np.empty(0, np.int64), np.empty(0)
    node = int(np.argmax(schedule.end_us))
    path: list[int] = []
    waits: list[float] = []
    while True:
        path.append(node)
        source = int(schedule.cause[node])
        if source < 0:
            waits.append(float(schedule.start_us[node]))
            break
        waits.append(float(schedule.start_us[node] - schedule.end_us[source]))
        node = source
    return np.array(path[::-1], np.int64), np.array(waits[::-1])


def slack_us(graph: StepGraph, schedule: Schedule, lags_us: Floats | None = None) -> Floats:
    """Return how much longer each node could take without lengthening the step, if all other durations stay
    the same.

    A stream cannot work longer than the step in each step, even where the host runs several steps ahead.
    """
    edges = graph.edges
    finish = float(schedule.end_us.max(initial=0.0))
    latest = [finish] * len(graph.nodes)
    bounds = np.searchsorted(edges.target, np.arange(len(graph.nodes) + 1)).tolist()
    sources = edges.source.tolist()
    lags = (edges.lag_us if lags_us is None else lags_us).tolist()
    durations = (schedule.end_us - schedule.start_us).tolist()
    for node in range(len(graph.nodes) - 1, -1, -1):
        start = latest[node] - durations[node]
        for edge in range(bounds[node], bounds[node + 1]):
            until = start - lags[edge]
            if until < latest[sources[edge]]:
                latest[sources[edge]] = until
    device = np.array([lane.device for lane in graph.lanes], bool)
    busy_us = np.bincount(graph.nodes.lane, schedule.end_us - schedule.start_us, minlength=len(graph.lanes))
    room_us = np.where(device, schedule.step_us - busy_us, np.inf)[graph.nodes.lane]
    return np.maximum(0.0, np.minimum(np.array(latest) - schedule.end_us, room_us))
