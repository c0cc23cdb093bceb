# pyright: strict
"""Reads kernel tables of the Ascend profiler as kernel calls, for `validate` and `calibrate`.

Computes no costs. `opreplay.traces.dialects.kernel_table` defines the columns and their spellings.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from opreplay.replay.ascend.measured.kernel_shapes import complete_outputs
from opreplay.replay.ir.kernel import KernelCall
from opreplay.traces.dialects.kernel_table import MAX_ROWS, TableRow, open_table

_HOST_CORES = ("AI_CPU", "AICPU")
"""Values of the core column that mean the NPU's control processors."""


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a kernel table."""

    call: KernelCall
    duration_us: float | None
    """Duration in microseconds; None if the table leaves it blank."""
    count: int = 1
    """Number of launches that the row covers."""
    held_out: bool = False
    index: int = 0
    """Position in launch order."""
    communication: bool = False
    has_shapes: bool = True


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel table as read, with counts of the dropped rows."""

    path: str
    rows: tuple[KernelRow, ...]
    dropped: dict[str, int]
    """Reason → number of dropped rows."""
    is_sequence: bool = True
    """Whether the rows are launches in order; False for a table of means."""
    has_held_out: bool = False
    """Whether a column marks held-out rows."""


def read_kernel_table(path: str | Path, *, max_rows: int = MAX_ROWS) -> KernelTable:
    """Read a kernel table in launch order.

    Broken rows are dropped and counted. Raises TraceError if the file cannot be read, Malformed if it is not a kernel
    table, TooLarge for more than `max_rows` rows.
    """
    with open_table(path, max_rows=max_rows) as table:
        rows: list[KernelRow] = []
        # A profile repeats few kernels many times: each is kept once.
        calls: dict[tuple[object, ...], KernelCall] = {}
        for row in table:
            try:
                rows.append(_row(row, calls))
            except (ValueError, OverflowError):  # sizes from which no output follows
                table.dropped["broken row"] += 1
        return KernelTable(
            path=str(path),
            rows=tuple(rows),
            dropped=dict(table.dropped),
            is_sequence="count" not in table.columns,
            has_held_out="held_out" in table.columns,
        )


def _row(row: TableRow, calls: dict[tuple[object, ...], KernelCall]) -> KernelRow:
    on_host = row.core.upper() in _HOST_CORES
    key = (row.type, row.inputs, row.outputs, on_host)
    call = calls.get(key)
    if call is None:
        outputs = row.outputs if row.outputs or not row.inputs else complete_outputs(row.type, row.inputs)
        attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {"core": "AI_CPU"} if on_host else {}
        call = calls[key] = KernelCall(type=row.type, inputs=row.inputs, outputs=outputs, attrs=attrs)
    return KernelRow(
        call=call,
        duration_us=row.duration_us,
        count=row.count,
        held_out=row.held_out,
        index=row.index,
        communication=row.communication,
        has_shapes=bool(row.inputs or row.outputs),
    )


def call_key(call: KernelCall) -> tuple[object, ...]:
    """Return a key that is equal for kernels of the same type, shapes, dtypes and formats."""
    return (
        call.type,
        tuple(None if s is None else (s.shape, s.dtype, s.format) for s in call.inputs),
        tuple(None if s is None else (s.shape, s.dtype, s.format) for s in call.outputs),
    )
