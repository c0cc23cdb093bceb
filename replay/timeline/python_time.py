# pyright: strict
"""Python time between ops: the time that a host thread spends outside ops, by called function or marked range.

A trace names functions if stacks were recorded (`with_stack=True`). Otherwise, `record_function` ranges are used, e.g.
those of the DataLoader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from opreplay.replay.ir.step import IDLE_CAUSES, PYTHON, PythonTime
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.graph.model import NO_OP, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path
from opreplay.replay.timeline.names import Ranges, named_ranges
from opreplay.replay.timeline.paths import PathPart
from opreplay.traces import Trace
from opreplay.traces.activity import CALL_KINDS
from opreplay.traces.arrays import Bools, Ints, distinct
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.links.parents import innermost_at

FRAMES = tuple(CALL_KINDS.index(kind) for kind in ("frame", "python"))
LEAST_IDLE = 0.05
"""Minimum idle time at the start or end of a step for a note about it, as a share of the step."""
LOADER, LOADER_FILES = "enumerate(DataLoader)", "torch/utils/data/"
"""Prefix of the range in which torch's DataLoader makes a batch, and the folder of the DataLoader's code."""
LEAST_NAMED = 0.3
"""Minimum share of the idle time that a function must take to be named in the note."""


def python_on_path(
    trace: Trace, graph: StepGraph, schedule: Schedule, parts: Sequence[PathPart]
) -> tuple[PythonTime, ...]:
    """Return the time between ops on the critical path by function or range, longest first.

    The listed functions and ranges may not cover all of that time. The result is empty if the trace names no function
    or range.
    """
    total = sum(part.us for part in parts if part.name == PYTHON)
    path, _ = critical_path(graph, schedule)
    track, begin, end = _between_ops(graph, path[graph.nodes.slices[path] > 0])
    us_by_name = _by_name(trace, track, begin, end)
    spent = sum(us_by_name.values())
    if not any(us_by_name) or spent <= 0.0:
        return ()
    inside = _in_loader(trace, track, begin, end)
    loading = _by_name(trace, track[inside], begin[inside], end[inside])
    named = [
        PythonTime(
            name=name, us=us * total / spent, data_loading=LOADER_FILES in name or loading.get(name, 0.0) > us / 2
        )
        for name, us in us_by_name.items()
        if name
    ]
    return tuple(sorted(named, key=lambda function: (-function.us, function.name)))


def idle_notes(trace: Trace, graph: StepGraph, times: Categories, step_us: float) -> list[str]:
    """Return notes on the main thread's Python work before the device's first task and after its last task."""
    device = np.array([lane.device for lane in graph.lanes] or [False])[graph.nodes.lane]
    tasks = np.flatnonzero(device & (graph.nodes.row >= 0))
    if not len(tasks) or step_us <= 0.0:
        return []
    starts = graph.nodes.start_us[tasks]
    first, last = float(starts.min()), float((starts + graph.nodes.dur_us[tasks]).max())
    rows = np.flatnonzero((graph.nodes.lane == graph.main_lane) & (graph.nodes.slices > 0))
    track, begin, end = _between_ops(graph, rows)
    notes: list[str] = []
    for where, idle_us, low, high in (
        (IDLE_CAUSES["before_first_task"], times.idle_before_first_task, first - times.idle_before_first_task, first),
        (IDLE_CAUSES["after_last_task"], times.idle_after_last_task, last, last + times.idle_after_last_task),
    ):
        if idle_us < LEAST_IDLE * step_us:
            continue
        us_by_name = _by_name(trace, track, *_within(graph, begin, end, low, high))
        name, us = max(us_by_name.items(), key=lambda item: (bool(item[0]), item[1]), default=("", 0.0))
        if name and us >= LEAST_NAMED * idle_us:
            notes.append(
                f"the device idles {100 * idle_us / step_us:.1f} % of the step {where}, with the host mostly in "
                f"{name} ({us / 1e3:,.2f} of {idle_us / 1e3:,.2f} ms)"
            )
    return notes


def slice_spans(graph: StepGraph, nodes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return (row in `graph.slices`, track, begin, end) of host intervals' slices, in ns on the trace's clock."""
    counts = graph.nodes.slices[nodes]
    ahead = np.cumsum(counts) - counts
    rows = np.repeat(graph.nodes.first_slice[nodes] - ahead, counts) + np.arange(int(counts.sum()))
    lengths = graph.slices.dur_us[rows]
    until = np.cumsum(lengths)
    before = np.append(0.0, until)[ahead] if len(nodes) else np.empty(0)
    end_us = until - np.repeat(before, counts) + np.repeat(graph.nodes.start_us[nodes], counts)
    tracks = np.array([lane.track for lane in graph.lanes] or [-1])[graph.nodes.lane[nodes]]
    end = graph.step.start_ns + np.round(1e3 * end_us).astype(np.int64)
    return rows, np.repeat(tracks, counts), end - np.round(1e3 * lengths).astype(np.int64), end


def _between_ops(graph: StepGraph, nodes: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (track, begin, end), in ns on the trace's clock, of the parts of host intervals outside ops."""
    rows, track, begin, end = slice_spans(graph, nodes)
    outside = (graph.slices.op[rows] == NO_OP) & (end > begin)
    return track[outside], begin[outside], end[outside]


def _in_loader(trace: Trace, track: Ints, begin: Ints, end: Ints) -> Bools:
    """Return a mask of the intervals with their middle inside a range in which the DataLoader makes a batch."""
    out, notes = np.zeros(len(track), bool), trace.annotations
    if not isinstance(notes, AnnotationTable) or not len(notes):
        return out
    rows = np.flatnonzero(np.array([name.startswith(LOADER) for name in notes.names])[notes.name])
    middle = begin + (end - begin) // 2
    for at in distinct(track).tolist():
        mine, ranges = np.flatnonzero(track == at), rows[notes.track[rows] == at]
        if len(ranges):
            out[mine] = innermost_at(middle[mine], ranges, notes.start_ns[ranges], notes.dur_ns[ranges]) >= 0
    return out


def _within(graph: StepGraph, begin: Ints, end: Ints, low_us: float, high_us: float) -> tuple[Ints, Ints]:
    """Clip intervals (ns) to a window in µs after the step's start. Intervals outside the window get zero length."""
    low, high = (graph.step.start_ns + round(1e3 * us) for us in (low_us, high_us))
    begin = np.clip(begin, low, high)
    return begin, np.maximum(begin, np.clip(end, low, high))


def _by_name(trace: Trace, track: Ints, begin: Ints, end: Ints) -> dict[str, float]:
    """Return µs by function for the given intervals.

    Functions that are called in an interval get their own time. The rest counts for the function around the interval,
    or for "" if there is none.
    """
    out: defaultdict[str, float] = defaultdict(float)
    everything = named_ranges(trace, FRAMES)
    for at in distinct(track).tolist():
        mine = np.flatnonzero((track == at) & (end > begin))
        named = everything.of(at)
        ends = named.start_ns + named.dur_ns
        rest: list[tuple[int, int]] = []
        for a, b in zip(begin[mine].tolist(), end[mine].tolist(), strict=True):
            cursor = a
            for row in range(*np.searchsorted(named.start_ns, [a, b]).tolist()):
                start, stop = int(named.start_ns[row]), int(ends[row])
                if start >= cursor and stop <= b:
                    rest.append((cursor, start))
                    out[named.names[int(named.label[row])]] += (stop - start) / 1e3
                    cursor = stop
            rest.append((cursor, b))
        _around(out, rest, named)
    return dict(out)


def _around(out: defaultdict[str, float], rest: Sequence[tuple[int, int]], named: Ranges) -> None:
    """Add the time of intervals without a call of a named function to the innermost function at the middle of each."""
    pairs = np.array([pair for pair in rest if pair[1] > pair[0]], np.int64).reshape(-1, 2)
    if not len(pairs):
        return
    inner = np.full(len(pairs), -1, np.int64)
    if len(named.label):
        middle = pairs[:, 0] + (pairs[:, 1] - pairs[:, 0]) // 2
        inner = innermost_at(middle, np.arange(len(named.label)), named.start_ns, named.dur_ns)
    for row, us in zip(inner.tolist(), ((pairs[:, 1] - pairs[:, 0]) / 1e3).tolist(), strict=True):
        out[named.names[int(named.label[row])] if row >= 0 else ""] += us
