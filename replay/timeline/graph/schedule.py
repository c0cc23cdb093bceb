# pyright: strict
"""List scheduling over a step's graph: when each node starts, what it waited for last, and how late it could be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opreplay.replay.timeline.graph.model import Floats, Ints, StepGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Times of all nodes of a graph, µs after the step's start on the host."""

    start_us: Floats
    end_us: Floats
    cause: Ints
    """The edge that each node waited for last; -1: for none."""
    step_us: float
    """Length of the step, by `step_length`."""


def step_length(graph: StepGraph, start_us: Floats, end_us: Floats, begin_us: float) -> float:
    """How long one such step takes when steps follow each other, µs.

    The longer of two: what the marking thread needs, without what it waited while the device was still at work on the
    step before (`begin_us`); and what passes between the completion of that work and of this step's. Without work
    from before that is the time until the last thing of the step has ended.
    """
    nodes = graph.nodes
    if not len(nodes):
        return 0.0
    if begin_us <= 0.0:
        return float(end_us.max())
    device = np.array([lane.device for lane in graph.lanes])[nodes.lane]
    completed = float(end_us[device].max(initial=begin_us)) - begin_us
    own = np.flatnonzero(nodes.lane == graph.main_lane)
    if graph.main_lane < 0 or not len(own):
        return completed
    waited_from = np.minimum(np.append(0.0, end_us[own][:-1]), begin_us)
    waited = np.maximum(0.0, np.minimum(start_us[own], begin_us) - waited_from).sum()
    return max(completed, float(end_us[own].max()) - float(waited))


def retimed(
    graph: StepGraph,
    durations_us: Floats | None = None,
    *,
    lags_us: Floats | None = None,
    release_us: Floats | None = None,
    begin_us: float | None = None,
) -> Schedule:
    """When everything starts if each node takes `durations_us` (default: as recorded) and starts as soon as it may.

    `lags_us` replaces those of the edges, `release_us` and `begin_us` those of the graph. Shapes: nodes, edges, nodes.
    """
    nodes, edges = graph.nodes, graph.edges
    durations: list[float] = (nodes.dur_us if durations_us is None else durations_us).tolist()
    lags: list[float] = (edges.lag_us if lags_us is None else lags_us).tolist()
    start: list[float] = (graph.release_us if release_us is None else release_us).tolist()
    bounds = np.searchsorted(edges.target, np.arange(len(nodes) + 1)).tolist()
    sources: list[int] = edges.source.tolist()
    end = [0.0] * len(nodes)
    cause = [-1] * len(nodes)
    edge = 0
    for node in range(len(nodes)):
        begin, why = start[node], -1
        for edge in range(bounds[node], bounds[node + 1]):
            ready = end[sources[edge]] + lags[edge]
            if ready > begin:
                begin, why = ready, edge
        start[node] = begin
        end[node] = begin + durations[node]
        cause[node] = why
    starts, ends = np.array(start, np.float64), np.array(end, np.float64)
    origin = graph.begin_us if begin_us is None else begin_us
    return Schedule(
        start_us=starts,
        end_us=ends,
        cause=np.array(cause, np.int64),
        step_us=step_length(graph, starts, ends, origin),
    )


def critical_path(graph: StepGraph, schedule: Schedule) -> tuple[Ints, Floats]:
    """(nodes from first to last, wait of each after the end of the one before): why the last node ends when it does."""
    if not len(graph.nodes):
        return np.empty(0, np.int64), np.empty(0)
    node = int(np.argmax(schedule.end_us))
    path: list[int] = []
    waits: list[float] = []
    while True:
        path.append(node)
        edge = int(schedule.cause[node])
        if edge < 0:
            waits.append(float(schedule.start_us[node]))
            break
        source = int(graph.edges.source[edge])
        waits.append(float(schedule.start_us[node] - schedule.end_us[source]))
        node = source
    return np.array(path[::-1], np.int64), np.array(waits[::-1])


def slack_us(graph: StepGraph, schedule: Schedule, lags_us: Floats | None = None) -> Floats:
    """How much longer each node could take without the step taking longer, all else being as scheduled."""
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
    return np.maximum(0.0, np.array(latest) - schedule.end_us)
