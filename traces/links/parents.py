# pyright: strict
"""Nesting of ops in time: which op directly encloses each, per thread; knows intervals, not what ops do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opreplay.traces.model import OpTable, Trace

Rows = npt.NDArray[np.int64]


def innermost_parent(ops: OpTable) -> Rows:
    """Row of the op that directly encloses each op on its track, or -1.

    Intervals on one track nest by construction of the profiler; where a damaged trace has overlapping ones, an op's
    parent is the last one that was opened before it and not closed at its start. What the file itself records wins.
    """
    if ops.parent is not None:
        return ops.parent
    out = np.full(len(ops), -1, np.int64)
    order = np.argsort(ops.track, kind="stable")
    tracks = np.asarray(ops.track)[order]
    bounds = np.flatnonzero(np.diff(tracks)) + 1
    for rows in np.split(order, bounds):
        if len(rows):
            rows, parents = nest(rows, ops.start_ns[rows], ops.dur_ns[rows].astype(np.int64))
            out[rows] = np.where(parents >= 0, rows[parents], -1)
    return out


def without_cycles(parents: Rows) -> tuple[Rows, int]:
    """Parents as a file gives them, with those of rows that never lead to a root taken off; and how many that were."""
    above = parents.copy()
    for _ in range(len(parents).bit_length()):  # each step looks twice as far up
        above[above >= 0] = above[above[above >= 0]]
    endless = above >= 0
    return np.where(endless, -1, parents), int(np.count_nonzero(endless))


def nest(rows: Rows, start: Rows, dur: Rows) -> tuple[Rows, Rows]:
    """(rows by start, outer before inner; position in that order of each one's parent, or -1) of one track."""
    if not bool((start[1:] > start[:-1]).all()):  # a profiler writes most threads in order
        order = np.lexsort((-dur, start))
        rows, start, dur = rows[order], start[order], dur[order]
    end = start + dur
    parents = _by_depth(start, end)
    nested = parents >= 0
    held = parents[nested]
    if not bool(((start[held] <= start[nested]) & (end[held] >= end[nested])).all()):
        parents = _by_stack(start, end)
    return rows, parents


def _by_depth(start: Rows, end: Rows) -> Rows:
    """Parents of properly nested intervals, level by level: the last interval before, one level up."""
    n = len(start)
    position = np.arange(n)
    closed = np.searchsorted(np.sort(end), start, side="right")
    # An empty interval counts as closed at its own start; those from here on (same start) are not before this one.
    empty_from = np.cumsum((end == start)[::-1])[::-1]
    group_end = np.searchsorted(start, start, side="right")
    empty_after = np.append(empty_from, 0)[group_end]
    depth = position - (closed - (empty_from - empty_after))
    parents = np.full(n, -1, np.int64)
    # All positions by depth, in order within one: sorting 16 bits takes a step a row.
    small = depth.astype(np.int16) if n < 1 << 15 or abs(depth).max() < 1 << 15 else depth
    by_depth = np.argsort(small, kind="stable")
    bounds = np.searchsorted(small[by_depth], np.arange(int(depth.max(initial=0)) + 2))
    above = by_depth[bounds[0] : bounds[1]]
    for level in range(1, len(bounds) - 1):
        at = by_depth[bounds[level] : bounds[level + 1]]
        if not len(above):
            break
        found = np.searchsorted(above, at) - 1
        parents[at] = np.where(found >= 0, above[found], -1)
        above = at
    return parents


def _by_stack(start: Rows, end: Rows) -> Rows:
    """Parents of intervals that may overlap."""
    parents = np.full(len(start), -1, np.int64)
    open_: list[int] = []
    starts, ends = start.tolist(), end.tolist()
    for i, begin in enumerate(starts):
        while open_ and (ends[open_[-1]] < begin or (ends[open_[-1]] == begin and ends[i] > begin)):
            open_.pop()
        if open_:
            parents[i] = open_[-1]
        open_.append(i)
    return parents


def innermost_at(times: Rows, rows: Rows, start: Rows, dur: Rows) -> Rows:
    """Row of the innermost interval of one track that holds each time (its ends included), or -1.

    Where intervals overlap it is the last one, outer before inner, that began and has not ended.
    """
    asked = np.sort(times)
    holds = np.searchsorted(asked, start) < np.searchsorted(asked, start + dur, side="right")
    if not holds.any():
        return np.full(len(times), -1, np.int64)
    rows, start, dur = rows[holds], start[holds], dur[holds]  # those that hold no time are most, and no one's answer
    rows_in_order, parents = nest(np.arange(len(rows)), start, dur)
    start, end = start[rows_in_order], (start + dur)[rows_in_order]
    at = np.searchsorted(start, times, side="right") - 1
    while True:
        outside = (at >= 0) & (end[at] < times)
        if not outside.any():
            break
        at[outside] = parents[at[outside]]
    return np.where(at >= 0, rows[rows_in_order[at]], -1)


def parents_of(trace: Trace) -> Rows:
    """Row of the enclosing op of each op, or -1: as recorded, else from the intervals."""
    return trace.ops.parent if trace.ops.parent is not None else innermost_parent(trace.ops)
