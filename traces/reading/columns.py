# pyright: strict
"""Growing tables of compact columns, which are filled from Python values and read as small NumPy arrays. This module
knows about times and ids, but not about events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, cast

import numpy as np

from opreplay.traces.arrays import Array

Kind = Literal["index", "time", "span", "id"]

FLUSH_ROWS = 1 << 12
EXACT_LIMIT_US = float(2**43)
"""Time in µs (102 days) from which adjacent float64 values are over a nanosecond apart. Unix times are larger."""
_ROUNDS_ONCE_US = float(2**41)
_MAX_US = 9_223_372_036_854_775
INVALID = -(2**63)
"""Placeholder for an unreadable time until the row is dropped."""


def to_ns(values: list[Any]) -> Array:
    """Convert microseconds (int, float, Decimal or text) to int64 nanoseconds; a missing or bad time becomes INVALID.

    The result for a value does not depend on the other values of the block.
    """
    types = set(map(type, values))
    if types <= {int, float}:
        try:
            array = np.fromiter(values, np.float64, len(values))
        except OverflowError:  # an int beyond float64
            return np.fromiter(map(_ns, values), np.int64, len(values))
        largest = max(array.max(initial=0), -array.min(initial=0))
        if largest < _ROUNDS_ONCE_US:
            return np.rint(array * 1000.0).astype(np.int64)
        if largest < EXACT_LIMIT_US:
            # Times 1000 at once would round twice: wrong by 1 ns where a microsecond's float is just fine enough.
            whole = np.floor(array)
            apart = whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000.0).astype(np.int64)
            return np.where(abs(array) < _ROUNDS_ONCE_US, np.rint(array * 1000.0).astype(np.int64), apart)
        if largest < 2**53 and types == {int}:
            return array.astype(np.int64) * 1000
    return np.fromiter(map(_ns, values), np.int64, len(values))


def _ns(value: Any) -> int:
    kind = cast("type[object]", type(value))
    if kind is int:
        return value * 1000 if abs(value) <= _MAX_US else INVALID
    if kind is str:
        if len(value) > 64:
            return INVALID
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return INVALID
    elif kind is not float and kind is not Decimal:
        return INVALID
    finite = math.isfinite(value) if kind is float else value.is_finite()
    if not finite or not -_MAX_US <= value <= _MAX_US:  # abs() of a Decimal rounds, and overflows beyond 1e999999
        return INVALID
    near = float(value)
    if abs(near) < _ROUNDS_ONCE_US:
        return round(near * 1000.0)
    if kind is float or abs(near) < EXACT_LIMIT_US:
        whole = math.floor(near)
        return whole * 1000 + round((near - whole) * 1000.0)
    return int((value * 1000).to_integral_value())


def to_ids(values: list[Any]) -> Array:
    """Convert ids (int, text of an int, whole float, or absent) to int64.

    An absent id becomes -1, and an unsigned 64-bit id wraps around. The result for a value does not depend on the other
    values of the block.
    """
    if set(map(type, values)) <= {int}:
        try:
            return np.fromiter(values, np.int64, len(values))
        except OverflowError:
            pass
    return np.fromiter(map(_id, values), np.int64, len(values))


def _id(value: Any) -> int:
    kind = cast("type[object]", type(value))
    if kind is str and len(value) <= 22:
        whole = value[:-2] if value.endswith(".0") else value
        try:
            value = int(whole, 16) if whole[:2].lower() == "0x" else int(whole)
        except ValueError:
            return -1
    elif kind is float or kind is Decimal:  # the same number either way
        value = float(value)
        value = int(value) if value.is_integer() and abs(value) < 2**63 else -1
    elif kind is not int:
        return -1
    if not -(2**63) <= value < 2**64:
        return -1
    return value if value < 2**63 else value - 2**64


def smallest(array: Array, kinds: Iterable[Any]) -> Array:
    """Convert the array to the first of the integer types that holds all its values, or return it unchanged."""
    if not len(array):
        return array.astype(next(iter(kinds)))
    low, high = int(array.min()), int(array.max())
    for kind in kinds:
        info = np.iinfo(kind)
        if info.min <= low and high <= info.max:
            return array.astype(kind)
    return array


def distinct(array: Array) -> Array:
    """Return the sorted distinct values; unlike np.unique, the first call does not spend 20 ms on an import."""
    array = np.sort(array)
    return array[np.append(True, array[1:] != array[:-1])] if len(array) else array


_TYPES: dict[str, tuple[Any, ...]] = {
    "index": (np.uint16, np.uint32),
    "time": (np.int64,),
    "span": (np.uint32,),
    "id": (np.int32,),
}
"""Kind of column → integer types to try for each added array; int64 if none of them holds all its values."""


class _Growing:
    """A column that grows in place: the allocator remaps large arrays instead of copying them."""

    def __init__(self, kind: Any) -> None:
        self._array: Array = np.empty(0, kind)
        self._rows = 0

    def extend(self, values: Array) -> None:
        """Append values, widening the type if necessary."""
        if values.dtype != self._array.dtype:
            wider = np.promote_types(values.dtype, self._array.dtype)
            if wider != self._array.dtype:
                self._array = self._array.astype(wider)
        rows = self._rows + len(values)
        if rows > len(self._array):
            self._array.resize(rows + max(FLUSH_ROWS, rows // 8), refcheck=False)
        self._array[self._rows : rows] = values
        self._rows = rows

    def view(self) -> Array:
        """Return the column without copying it."""
        return self._array[: self._rows]

    def take(self) -> Array:
        """Return the column and leave it empty."""
        array, rows = self._array, self._rows
        self._array, self._rows = np.empty(0, array.dtype), 0
        array.resize(rows, refcheck=False)
        return array


class Columns:
    """A table whose rows are collected in lists and moved to arrays periodically."""

    def __init__(self, **kinds: Kind) -> None:
        self.kinds = kinds
        self.pending: dict[str, list[Any]] = {name: [] for name in kinds}
        self._columns = {name: _Growing(_TYPES[kind][0]) for name, kind in kinds.items()}
        self.rows = 0
        self.dropped = 0
        """Number of rows dropped because their time is unreadable."""
        self.zeroed = 0
        """Number of rows whose duration is unreadable or negative, and counts as 0."""
        self.inexact = False
        """Whether at least one time was a floating-point number too large to be exact."""
        self._first = next(iter(kinds))

    def __len__(self) -> int:
        return self.rows + len(self.pending[self._first])

    def flush(self) -> None:
        """Convert pending values to arrays."""
        n = len(self.pending[self._first])
        if not n:
            return
        arrays = {name: self._array(kind, self.pending[name]) for name, kind in self.kinds.items()}
        self.pending = {name: [] for name in self.kinds}
        times = [arrays[name] for name, kind in self.kinds.items() if kind == "time"]
        unreadable = [array == INVALID for array in times if array.min() == INVALID]
        keep = ~np.logical_or.reduce(unreadable) if unreadable else None
        for name, kind in self.kinds.items():
            array = arrays[name] if keep is None else arrays[name][keep]
            self._columns[name].extend(smallest(array, _TYPES[kind]))
        readable = n if keep is None else int(keep.sum())
        self.rows += readable
        self.dropped += n - readable

    def _array(self, kind: Kind, values: list[Any]) -> Array:
        """Convert values to their stored form; an unreadable time becomes INVALID."""
        if kind == "id":
            return to_ids(values)
        if kind == "index":
            return np.fromiter(values, np.uint32, len(values))
        array = to_ns(values)
        if array.max() >= EXACT_LIMIT_US * 1000:
            self.inexact |= any(type(value) is float and abs(value) >= EXACT_LIMIT_US for value in values)
        return self._durations(array) if kind == "span" else array

    def append(self, arrays: dict[str, Array]) -> None:
        """Add rows that another process read and that are already in arrays."""
        self.flush()
        for name, array in arrays.items():
            self._columns[name].extend(self._durations(array) if self.kinds[name] == "span" else array)
        self.rows += len(arrays[self._first])

    def absorb(self, other: Columns, maps: dict[str, Array]) -> None:
        """Move all rows of another table with the same columns into this table.

        `maps` gives new values for some columns: `maps[column][old value]`.
        """
        self.flush()
        other.flush()
        for name in self.kinds:
            array = other.take(name)
            self._columns[name].extend(maps[name][array] if name in maps and len(array) else array)
        self.rows += other.rows
        other.rows = 0
        self.dropped += other.dropped
        self.zeroed += other.zeroed
        self.inexact |= other.inexact

    def _durations(self, array: Array) -> Array:
        """Return durations, with missing, unreadable and negative values replaced by 0."""
        bad = array < 0
        if not bad.any():
            return array
        self.zeroed += int(bad.sum())
        return smallest(np.where(bad, 0, array), _TYPES["span"])

    def append_integers(self, columns: Array) -> None:
        """Add integer columns in the order of `kinds`; times are in nanoseconds and all readable."""
        known = zip(self.kinds.items(), columns, strict=False)
        self.append({name: smallest(column, _TYPES[kind]) for (name, kind), column in known})

    def peek(self, name: str) -> Array:
        """Return one whole column. It stays in the table, so it must not be modified."""
        self.flush()
        return self._columns[name].view()

    def put(self, name: str, values: Array) -> None:
        """Replace the values of a column by equally many new ones."""
        self.flush()
        column = _Growing(_TYPES[self.kinds[name]][0])
        column.extend(smallest(values, _TYPES[self.kinds[name]]))
        self._columns[name] = column

    def keep(self, rows: Array) -> None:
        """Keep only the rows in a mask."""
        self.flush()
        for name, column in self._columns.items():
            kept = _Growing(column.view().dtype)
            kept.extend(column.view()[rows])
            self._columns[name] = kept
        self.rows = int(rows.sum())

    def take(self, name: str) -> Array:
        """Return one whole column and remove its data from the table."""
        self.flush()
        return self._columns[name].take()
