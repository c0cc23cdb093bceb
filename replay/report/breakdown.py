# pyright: strict
"""Where the time of a trace goes, as a table for a terminal, JSON-safe facts and CSV; sums only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.table import (
    COUNT,
    NUMBER,
    SHARE,
    TEXT,
    TIME,
    Column,
    Table,
    Unit,
    names_room,
    number,
    of_fields,
    terminal,
)
from opreplay.replay.report.text import listed, plural, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.traces.times.breakdown import Breakdown, Row
from opreplay.traces.times.peaks import TF32
from opreplay.traces.times.steps import LaunchTable, StepTable

_OfRow = Column[Row]
COLUMNS: dict[str, Unit] = {
    "name": TEXT,
    "calls": COUNT,
    "time_us": TIME,
    "share": SHARE,
    "median_us": TIME,
    "kind": TEXT,
    "tflops_per_s": NUMBER,
    "gb_per_s": NUMBER,
    "peak_share": SHARE,
    "peak_kind": TEXT,
}


MOST_OF_PEAK = 1.0
"""Above that a rate is not that of the memory or the units that the datasheet speaks of."""
NAMED = 3
_SHORT = {"memory": "mem", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "tf32, float32": "tf32+fp32"}


def facts(table: Breakdown | StepTable | LaunchTable, top: int | None) -> dict[str, Any]:
    """Return the whole breakdown with the first `top` rows, as JSON-safe values."""
    return {
        **msgspec.to_builtins(table),
        "rows": msgspec.to_builtins(table.rows[:top]),
        "all_rows": len(table.rows),
    }


def view(breakdown: Breakdown, top: int | None, shown: int) -> View:
    """Return the breakdown in every form, with the first `top` rows, in a terminal the first `shown`."""
    return View(
        render=lambda width: render(breakdown, top or shown, width=width),
        facts=lambda: facts(breakdown, top),
        table=lambda: file_table(breakdown, top),
    )


def file_table(breakdown: Breakdown, top: int | None) -> Table[Row]:
    """Return the first `top` rows with all CSV columns; times in microseconds, shares from 0 to 1."""
    return of_fields(f"Time by {breakdown.by}", breakdown.rows[:top], COLUMNS)


def render(breakdown: Breakdown, top: int | None, *, width: int) -> RenderableType:
    """Return a table with the first `top` rows, the sum of the rest, and a note."""
    shown = breakdown.rows[:top]
    parts: list[RenderableType] = [Text(f"{time_text(breakdown.total_us)} of {breakdown.clock} time by {breakdown.by}")]
    if shown:
        room = names_room(row.name for row in shown)
        parts += terminal(Table("Rows", columns_of(breakdown, shown), shown), width, room=room)[1:]
    if rest := breakdown.rows[len(shown) :]:
        more = share_text(sum(row.share for row in rest))
        parts.append(Text(f"… {plural(len(rest), 'more row')}, {more} of the time; --top N shows more", style="dim"))
    if peak := _peak_line(breakdown):
        parts.append(Text(peak, style="dim"))
    if beyond := [safe(row.name) for row in shown if (row.peak_share or 0.0) > MOST_OF_PEAK]:
        why = "the byte count is not reliable"
        parts.append(Text(f"! above the peak: {listed(beyond, NAMED)}: {why}"))
    if breakdown.note:
        parts.append(Text(breakdown.note, style="dim"))
    return Group(*parts)


def _peak_line(breakdown: Breakdown) -> str:
    """Return the peak rates of the recorded device; "" if not requested."""
    peak = breakdown.peak
    if peak is None:
        unknown = "no peak is known of the recorded device: --peak NAME (as MI300X) names it"
        return unknown if breakdown.by == "op" and breakdown.clock == "device" else ""
    rates = ", ".join(f"{rate:,g} TFLOP/s of {dtype}" for dtype, rate in peak.tflops.items())
    rates += f"; {peak.gb_per_s:,g} GB/s (datasheet, dense)"
    rates += "; tf32 where kernels' names tell it, else float32" if TF32 in peak.tflops else ""
    return f"peak of {peak.device}: {rates}; GB/s counts arguments and known results once"


def _of_peak(row: Row) -> str:
    return f"{share_text(row.peak_share)} {_SHORT.get(row.peak_kind, row.peak_kind)}".strip()


def columns_of(breakdown: Breakdown, rows: Sequence[Row]) -> list[_OfRow]:
    """Return the columns with data in these rows; the name column gets the remaining width."""
    columns = [
        _OfRow("share", lambda row: row.share, SHARE),
        _OfRow("time", lambda row: row.time_us, TIME, key="time_us"),
        _OfRow("calls", lambda row: row.calls, COUNT, drop=5),
        _OfRow("median", lambda row: row.median_us, TIME, key="median_us", drop=4),
    ]
    maybe = [
        _OfRow("TFLOP/s", lambda row: row.tflops_per_s, number("{:,.3g}"), key="tflops_per_s", drop=3),
        _OfRow("GB/s", lambda row: row.gb_per_s, number("{:,.4g}"), key="gb_per_s", drop=3),
        _OfRow("of peak", lambda row: row.peak_share, SHARE, key="peak_share", text=_of_peak, drop=2),
        _OfRow("kind", lambda row: row.kind or None, drop=6),
    ]
    columns += [column for column in maybe if any(column.value(row) is not None for row in rows)]
    return [*columns, _OfRow(breakdown.by, lambda row: row.name, key="name", form="name")]
