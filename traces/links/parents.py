# pyright: strict
"""Compute the nesting of ops in time: which op directly encloses each op, per thread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opreplay.traces.arrays import Bools, Ints
from opreplay.traces.model import OpTable

Rows = Ints
Chosen = Bools


def innermost_parent(ops: OpTable) -> Rows:
    """Return the row of the op that directly encloses each op on its track, or -1.

    Parents recorded in the file take precedence. Intervals on one track nest because of how the profiler records them.
    If they overlap in a damaged trace, an op's parent is the last earlier op that is still open at its start.
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
    """Return (parents, number of changed rows). Rows whose parents lead to a cycle instead of a root are
    changed to -1.
    """
    above = parents.copy()
    for _ in range(len(parents).bit_length()):  # each step looks twice as far up
        above[above >= 0] = above[above[above >= 0]]
    endless = above >= 0
    return np.where(endless, -1, parents), int(np.count_nonzero(endless))


def climbs(parents: Rows) -> Iterator[Rows]:
    """Yield, for 1, 2, 4, 8, ... levels, the row that many levels above each row, or -1, until no row has one.

    Passing a value along these arrays in turn collects it from all levels above in log2(depth) rounds. The parents must
    be acyclic.
    """
    up = parents
    while (alive := up >= 0).any():
        yield up
        up = np.where(alive, up[up], -1)


def depths(parents: Rows) -> Rows:
    """Return the number of rows that enclose each row."""
    out = (parents >= 0).astype(np.int64)
    for up in climbs(parents):
        out += np.where(up >= 0, out[up], 0)
    return out


def rows_inside(parents: Rows) -> Rows:
    """Return the number of rows that each row encloses, at any depth."""
    out = np.ones(len(parents), np.int64)
    for up in climbs(parents):
        below = up >= 0
        out += np.bincount(up[below], weights=out[below], minlength=len(out)).astype(np.int64)
    return out - 1


def among_or_inside(parents: Rows, chosen: Chosen) -> Chosen:
    """Return a mask of rows that are chosen or enclosed by a chosen row."""
    out = chosen.copy()
    for up in climbs(parents):
        out |= (up >= 0) & out[up]
    return out


def among_or_around(parents: Rows, chosen: Chosen) -> Chosen:
    """Return a mask of rows that are chosen or enclose a chosen row."""
    out = chosen.copy()
    for up in climbs(parents):
        out[up[(up >= 0) & out]] = True
    return out


def innermost_of(parents: Rows, chosen: Chosen) -> Rows:
    """Return, for each row, the innermost chosen row around it (which may be the row itself), or -1."""
    out = np.where(chosen, np.arange(len(parents)), -1)
    for up in climbs(parents):
        out = np.where((out < 0) & (up >= 0), out[up], out)
    return out


def outermost_of(parents: Rows, chosen: Chosen) -> Rows:
    """Return, for each row, the outermost chosen row around it (which may be the row itself), or -1."""
    out = np.where(chosen, np.arange(len(parents)), -1)
    for up in climbs(parents):
        above = np.where(up >= 0, out[up], -1)
        out = np.where(above >= 0, above, out)
    return out


def of_rows(rows: Rows, column: Rows) -> Rows:
    """Return the column's value at each row; -1 for row -1."""
    return np.where(rows >= 0, column[rows], -1) if len(column) else np.full(len(rows), -1, np.int64)


def nest(rows: Rows, start: Rows, dur: Rows) -> tuple[Rows, Rows]:
    """Sort the rows of one track by start, outer before inner, and find the parent of each. Return (sorted rows,
    position of each row's parent in that order, or -1).
    """
    if not bool((start[1:] > start[:-1]).all()):  # a profiler writes most threads in order
        order = np.lexsort((-dur, start))
        rows, start, dur = rows[order], start[order], dur[order]
    end = start + dur
    parents = _by_depth(start, end)
    nested = parents >= 0
    enclosing = parents[nested]
    if not bool(((start[enclosing] <= start[nested]) & (end[enclosing] >= end[nested])).all()):
        parents = _by_stack(start, end)
    return rows, parents


def _by_depth(start: Rows, end: Rows) -> Rows:
    """Return the parents of properly nested intervals; a parent is the last earlier interval one level up."""
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
    level = depth[by_depth]
    keys = level * n + by_depth
    before = np.searchsorted(keys, keys - n) - 1
    parents[by_depth] = np.where((before >= 0) & (level[before] == level - 1), by_depth[before], -1)
    return parents


def _by_stack(start: Rows, end: Rows) -> Rows:
    """Return the parent of each interval. Unlike in `_by_depth`, intervals may overlap without nesting."""
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
    """Return, for each time, the row of the innermost interval on one track that contains it (ends included), or -1.

    If intervals overlap without nesting, it is the last open interval in order of start, outer before inner.
    """
    asked = np.sort(times)
    holds = np.searchsorted(asked, start) < np.searchsorted(asked, start + dur, side="right")
    if not holds.any():
        return np.full(len(times), -1, np.int64)
    rows, start, dur = rows[holds], start[holds], dur[holds]  # those that hold no time are most, and no one's answer
    rows_in_order, _ = nest(np.arange(len(rows)), start, dur)
    start, end = start[rows_in_order], (start + dur)[rows_in_order]
    at = _last_reaching(end, np.searchsorted(start, times, side="right") - 1, times)
    return np.where(at >= 0, rows[rows_in_order[at]], -1)


def _last_reaching(end: Rows, until: Rows, times: Rows) -> Rows:
    """Return, for each time, the last position up to `until` whose interval ends at or after that time; -1 for none."""
    at = until.copy()
    seeking = np.flatnonzero(at >= 0)
    seeking = seeking[end[at[seeking]] < times[seeking]]
    latest = [end]
    """Latest end in each block of consecutive intervals, for blocks of 1, 2, 4, ... intervals."""
    while len(latest[-1]) > 1:
        below = latest[-1] if len(latest[-1]) % 2 == 0 else np.append(latest[-1], np.iinfo(np.int64).min)
        latest.append(np.maximum(below[::2], below[1::2]))
    before = at[seeking]  # the first position that is not looked at any more
    at[seeking] = -1
    for size, ends in enumerate(latest):
        odd = before % 2 == 1
        block = np.maximum(before - 1, 0)
        hit = odd & (ends[block] >= times[seeking])
        inside, asked = block[hit], seeking[hit]
        for finer in reversed(latest[:size]):
            right = np.minimum(2 * inside + 1, len(finer) - 1)
            inside = np.where(finer[right] >= times[asked], right, 2 * inside)
        at[asked] = inside
        seeking, before = seeking[~hit], before[~hit] // 2
        if not len(seeking):
            break
    return at
