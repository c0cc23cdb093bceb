# pyright: strict
"""Steps of the user's own code in several sizes on devices: time, memory, and limit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.report.page.model import Answer
from opreplay.replay.report.step.sizes import (
    curves_over,
    device_column,
    file_columns,
    fits_text,
    memory_columns,
    missing_text,
    notes_of,
    view_of,
)
from opreplay.replay.report.table import COUNT, TIME, Column, Table
from opreplay.replay.report.text import listed, safe, time_text
from opreplay.replay.report.view import View
from opreplay.replay.timeline.sized import SizedStep, SizedSteps


def view(sized: SizedSteps) -> View:
    """Return the results for all sizes in every output format."""
    rows = sized.rows
    shown = table(rows)
    sizes = [column for column in shown.columns if column.key == SIZE]
    named = [msgspec.structs.replace(column, key=column.title) for column in sizes]
    return view_of(
        [headline(sized)],
        shown,
        Table("Sizes", [*named, *file_columns(SizedStep, FIELDS)], rows),
        notes_of(sized.notes, rows),
        {"headline": headline(sized), **msgspec.to_builtins(sized)},
        _answers(rows),
        (
            *curves_over(rows, _sizes, "Time of the step", "µs", lambda row: row.step_us),
            *curves_over(
                rows,
                _sizes,
                "Memory",
                "GB",
                lambda row: row.memory_bytes / 1e9,
                lambda row: None if row.hbm_bytes is None else row.hbm_bytes / 1e9,
            ),
        ),
    )


SIZE = "size"
FIELDS = (
    "soc",
    "step_us",
    "low_us",
    "high_us",
    "graph_us",
    "memory_bytes",
    "hbm_bytes",
    "fits",
    "limit",
    "unpredicted_calls",
)


def _sizes(row: SizedStep) -> dict[str, int]:
    return row.sizes


def headline(sized: SizedSteps) -> str:
    """Return a line with the shortest and the longest step, and how many sizes do not fit in memory."""
    rows = sized.rows
    low, high = (time_text(end(row.step_us for row in rows)) for end in (min, max))
    socs = listed([safe(soc) for soc in dict.fromkeys(row.soc for row in rows)], 3)
    took = low if low == high else f"{low} to {high}"
    return f"{safe(sized.source)} on {socs}: {took} a step{missing_text(rows)}; {fits_text(rows)}"


def table(rows: Sequence[SizedStep]) -> Table[SizedStep]:
    """Return one row per size and device."""
    column = Column[SizedStep]
    names = list(dict.fromkeys(name for row in rows for name in row.sizes))
    columns = [
        *(column(safe(name), lambda row, name=name: row.sizes.get(name), COUNT, key=SIZE) for name in names),
        device_column(SizedStep, rows),
        column("step", lambda row: row.step_us, TIME),
        column("80 % band", lambda row: f"{time_text(row.low_us)} to {time_text(row.high_us)}", right=True, drop=1),
        column("as a graph", lambda row: row.graph_us, TIME, drop=5),
        *memory_columns(SizedStep),
    ]
    return Table("Sizes", columns, rows, noun="size")


def _answers(rows: Sequence[SizedStep]) -> tuple[Answer, ...]:
    """Return the shortest and the longest step."""
    ends = (("shortest", min(rows, key=_step_us)), ("longest", max(rows, key=_step_us)))
    return tuple(
        Answer(
            name=f"step, {which}",
            ratio=time_text(row.step_us),
            band=f"{time_text(row.low_us)} to {time_text(row.high_us)} (80 %)",
            detail=", ".join(
                [*(f"{name} {size:,}" for name, size in row.sizes.items()), row.soc, f"limit: {row.limit}"]
            ),
        )
        for which, row in ends[: len(rows)]
    )


def _step_us(row: SizedStep) -> float:
    return row.step_us
