# pyright: strict
"""Apply the durations of one step to the graph of another step of the same program, to test the graph."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np

from opreplay.replay.timeline.graph.model import HOST, LAUNCH, STREAM, StepGraph
from opreplay.traces.arrays import Floats, Ints


def transfer_times(graph: StepGraph, other: StepGraph) -> tuple[Floats, Floats]:
    """Return (durations of `graph`'s nodes, lags of its edges) with the times of `other` instead of the recorded ones.

    Tasks of a stream are matched by kernel and order, and take the times of their match. A task of `other` without a
    match adds its time to the previous task. Host threads take the times between the launches of matched tasks.
    Unexplained waiting comes from `other`; latencies and gaps come from `graph`.
    """
    pairs = _matched_tasks(graph, other)
    durations = np.zeros(len(graph.nodes))
    for lane, theirs in _lanes(graph, other):
        if graph.lanes[lane].device:
            durations += _task_durations(graph, other, lane, theirs, pairs)
        else:
            durations += _host_durations(graph, other, lane, theirs, pairs)
    lags = graph.edges.lag_us - graph.edges.unknown_us
    unknown = np.zeros(len(other.nodes))
    np.maximum.at(unknown, other.edges.target, other.edges.unknown_us)
    binding = np.isin(graph.edges.kind, (LAUNCH, STREAM))
    taken = np.zeros(len(graph.nodes))
    taken[pairs[:, 0]] = unknown[pairs[:, 1]]
    lags[binding] += np.where(graph.edges.unknown_us > 0, taken[graph.edges.target], 0.0)[binding]
    return durations, lags


def _lanes(graph: StepGraph, other: StepGraph) -> list[tuple[int, int]]:
    """Return pairs of threads or streams with the same name in both graphs."""
    number = {lane.name: index for index, lane in enumerate(other.lanes)}
    return [(index, number[lane.name]) for index, lane in enumerate(graph.lanes) if lane.name in number]


def _tasks_of_lane(graph: StepGraph, lane: int) -> Ints:
    return np.flatnonzero((graph.nodes.lane == lane) & (graph.nodes.kind != HOST))


def _matched_tasks(graph: StepGraph, other: StepGraph) -> Ints:
    """Return an array [n, 2] of matching tasks: the same kernel at the same position of its stream in both graphs."""
    pairs: list[tuple[int, int]] = []
    for lane, theirs in _lanes(graph, other):
        ours, their = _tasks_of_lane(graph, lane), _tasks_of_lane(other, theirs)
        names, their_names = graph.nodes.name[ours].tolist(), other.nodes.name[their].tolist()
        for a, b, size in SequenceMatcher(None, names, their_names, autojunk=False).get_matching_blocks():
            pairs += zip(ours[a : a + size].tolist(), their[b : b + size].tolist(), strict=True)
    return np.array(sorted(pairs), np.int64).reshape(-1, 2)


def _task_durations(graph: StepGraph, other: StepGraph, lane: int, theirs: int, pairs: Ints) -> Floats:
    """Return the durations of one stream's tasks, from the matching tasks of `other`."""
    out = np.zeros(len(graph.nodes))
    ours, their = _tasks_of_lane(graph, lane), _tasks_of_lane(other, theirs)
    here = pairs[np.isin(pairs[:, 0], ours)]
    if not len(here):
        if len(ours):
            out[ours[0]] = float(other.nodes.dur_us[their].sum())
        return out
    place = np.maximum(0, np.searchsorted(here[:, 1], their, side="right") - 1)
    np.add.at(out, here[place, 0], other.nodes.dur_us[their])
    return out


def _host_durations(graph: StepGraph, other: StepGraph, lane: int, theirs: int, pairs: Ints) -> Floats:
    """Return the durations of one thread's intervals. They come from the other graph's work between matched
    launches.
    """
    ours, done = _work(graph, lane)
    their, their_done = _work(other, theirs)
    points, their_points = _launches(graph, ours, done, pairs[:, 0]), _launches(other, their, their_done, pairs[:, 1])
    known = ~np.isnan(points) & ~np.isnan(their_points)
    order = np.lexsort((their_points[known], points[known]))
    at, to = points[known][order], np.maximum.accumulate(their_points[known][order])
    total, their_total = (float(done[-1]) if len(done) else 0.0), (float(their_done[-1]) if len(their_done) else 0.0)
    at, to = np.concatenate([[0.0], at, [total]]), np.concatenate([[0.0], to, [max(their_total, *to.tolist(), 0.0)]])
    out = np.zeros(len(graph.nodes))
    if len(ours):
        # Several points at one time of the thread are the launches of one stretch: the last of them ends it.
        last = np.append(np.diff(at) > 0.0, True)
        ends = np.interp(done, at[last], to[last])
        out[ours] = np.diff(np.concatenate([[0.0], ends]))
    return out


def _work(graph: StepGraph, lane: int) -> tuple[Ints, Floats]:
    """Return (the intervals of a thread in order, its accumulated work at the end of each)."""
    nodes = np.flatnonzero(graph.nodes.lane == lane)
    return nodes, np.cumsum(graph.nodes.dur_us[nodes])


def _launches(graph: StepGraph, stretches: Ints, done: Floats, tasks: Ints) -> Floats:
    """Return the thread's accumulated work at the launch of each task; NaN for tasks that it did not launch."""
    edges = graph.edges
    launch = edges.kind == LAUNCH
    source_of = np.full(len(graph.nodes), -1, np.int64)
    source_of[edges.target[launch]] = edges.source[launch]
    place = np.full(len(graph.nodes), -1, np.int64)
    place[stretches] = np.arange(len(stretches))
    source = source_of[tasks]
    at = np.where(source >= 0, place[np.maximum(source, 0)], -1)
    return np.where(at >= 0, done[np.maximum(at, 0)] if len(done) else np.nan, np.nan)
