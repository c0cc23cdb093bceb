# pyright: strict
"""Breakdown of a trace's time as a terminal table, JSON-safe facts and CSV. Computes only sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.table import (
    COUNT,
    SHARE,
    TEXT,
    TIME,
    Column,
    Table,
    Unit,
    names_room,
    of_fields,
    terminal,
)
from opreplay.replay.report.text import plural, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.traces.times.breakdown import Breakdown, Row
from opreplay.traces.times.steps import LaunchTable, StepTable

_OfRow = Column[Row]
COLUMNS: dict[str, Unit] = {
    "name": TEXT,
    "calls": COUNT,
    "time_us": TIME,
    "share": SHARE,
    "median_us": TIME,
    "kind": TEXT,
}


def facts(table: Breakdown | StepTable | LaunchTable, top: int | None) -> dict[str, Any]:
    """Return the breakdown as JSON-safe values, with its first `top` rows and the number of all rows in `all_rows`."""
    return {
        **msgspec.to_builtins(table),
        "rows": msgspec.to_builtins(table.rows[:top]),
        "all_rows": len(table.rows),
    }


def view(breakdown: Breakdown, top: int | None, shown: int) -> View:
    """Return the breakdown in every output format.

    Every format has the first `top` rows. If `top` is None, a terminal shows `shown` rows, and other formats have all.
    """
    return View(
        lines=[f"{time_text(breakdown.total_us)} of {breakdown.clock} time by {breakdown.by}"],
        render=lambda width: render(breakdown, top or shown, width=width),
        facts=lambda: facts(breakdown, top),
        table=lambda: file_table(breakdown, top),
    )


def file_table(breakdown: Breakdown, top: int | None) -> Table[Row]:
    """Return a table of the first `top` rows with all CSV columns. Times are in microseconds, shares from 0 to 1."""
    return of_fields(f"Time by {breakdown.by}", breakdown.rows[:top], COLUMNS)


def render(breakdown: Breakdown, top: int | None, *, width: int) -> RenderableType:
    """Return a table with the first `top` rows, followed by the share of the rows left out and the breakdown's note."""
    shown = breakdown.rows[:top]
    parts: list[RenderableType] = []
    if shown:
        room = names_room(row.name for row in shown)
        parts += terminal(Table("Rows", columns_of(breakdown, shown), shown), width, room=room)[1:]
    if rest := breakdown.rows[len(shown) :]:
        more = share_text(sum(row.share for row in rest))
        parts.append(Text(f"… {plural(len(rest), 'more row')}, {more} of the time; for more, use --top N", style="dim"))
    if breakdown.note:
        parts.append(Text(breakdown.note, style="dim"))
    return Group(*parts)


def columns_of(breakdown: Breakdown, rows: Sequence[Row]) -> list[_OfRow]:
    """Return the columns that have data in `rows`; the name column gets the remaining width."""
    columns = [
        _OfRow("share", lambda row: row.share, SHARE),
        _OfRow("time", lambda row: row.time_us, TIME, key="time_us"),
        _OfRow("calls", lambda row: row.calls, COUNT, drop=5),
        _OfRow("median", lambda row: row.median_us, TIME, key="median_us", drop=4),
    ]
    if any(row.kind for row in rows):
        columns.append(_OfRow("kind", lambda row: row.kind, drop=6))
    return [*columns, _OfRow(breakdown.by, lambda row: row.name, key="name", form="name")]
