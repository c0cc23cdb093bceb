# pyright: strict
"""Drop duplicate events from the tables of a scan; they occur if a merging tool read a file twice."""

from __future__ import annotations

from collections import Counter

import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.losses import COPIED_OPS, COPIED_WORK
from opreplay.traces.model import KERNEL_CATEGORIES
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.columns import Columns

_TASK = KERNEL_CATEGORIES.index("task")
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier of a 64-bit hash: 2^64 divided by the golden ratio."""
_US = 1000
"""Nanoseconds per microsecond."""


def drop_copies(got: Collector) -> Counter[str]:
    """Drop host ops and device work that the file contains twice, and return how many of each were dropped.

    A copy has the same name, arguments, times, ids and thread or stream as an earlier event. An op must also have an
    id, which a process uses once, or times finer than a microsecond. In whole microseconds, a call inside another call
    of the same name may have the same times. Device work must have a duration, since a stream runs one task at a time.
    An NPU's tasks may nest, so they must have an id. If there are copies, copies of launches, annotations, flow events
    and other events are dropped too, without being counted.
    """
    ops, work = _copied_ops(got.ops), _copied_work(got.kernels)
    counts = Counter({COPIED_OPS: len(ops), COPIED_WORK: len(work)})
    if not counts.total():
        return Counter()
    for table in got.tables.values():
        rows = ops if table is got.ops else work if table is got.kernels else _copied_others(table)
        if len(rows):
            kept = np.ones(len(table), bool)
            kept[rows] = False
            table.keep(kept)
    return +counts


def _copied_ops(table: Columns) -> Array:
    rows = _rows_of_repeated_starts(table)
    if not len(rows):
        return rows
    start, dur, ext = (table.peek(name)[rows].astype(np.int64) for name in ("start", "dur", "ext"))
    return _copies(table, rows[(ext > 0) | ((dur > 0) & ((start % _US != 0) | (dur % _US != 0)))])


def _copied_work(table: Columns) -> Array:
    rows = _rows_of_repeated_starts(table)
    if not len(rows):
        return rows
    start, has_id = table.peek("start")[rows], table.peek("corr")[rows] >= 0
    needs_id = (start == 0) | (table.peek("category")[rows] == _TASK)
    return _copies(table, rows[(table.peek("dur")[rows] > 0) & (has_id | ~needs_id)])


def _copied_others(table: Columns) -> Array:
    rows = _rows_of_repeated_starts(table) if "start" in table.kinds else np.arange(len(table))
    return _copies(table, rows)


def _rows_of_repeated_starts(table: Columns) -> Array:
    """Return the rows that have the same start as another row of the table."""
    start = table.peek("start")
    ordered = np.sort(start)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(repeated, start), len(repeated) - 1)
    return np.flatnonzero(repeated[at] == start)


def _copies(table: Columns, rows: Array) -> Array:
    """Return those of the rows for which an earlier row has the same values in all columns."""
    if len(rows) < 2:
        return rows[:0]
    key = np.zeros(len(rows), np.uint64)
    for name in table.kinds:
        key = (key ^ table.peek(name)[rows].astype(np.int64).view(np.uint64)) * _MIX
        key ^= key >> np.uint64(32)
    order = np.argsort(key, kind="stable")
    same = key[order][1:] == key[order][:-1]
    for name in table.kinds:  # equal keys of different rows are rare, not impossible
        column = table.peek(name)[rows[order]]
        same &= column[1:] == column[:-1]
    return rows[order[1:][same]]
