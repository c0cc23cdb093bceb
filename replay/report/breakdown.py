# pyright: strict
"""Where the time of a trace goes, as a table for a terminal, JSON-safe facts and CSV; sums alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.columns import Column, OpCell, names_room, ops_table
from opreplay.replay.report.run.csv_ import cell
from opreplay.replay.report.text import DASH, plural, safe, share_text, time_text
from opreplay.traces.times.breakdown import Breakdown, Row
from opreplay.traces.times.peaks import TF32, Peak

COLUMNS = (
    "name",
    "calls",
    "time_us",
    "share",
    "median_us",
    "kind",
    "tflops_per_s",
    "gb_per_s",
    "peak_share",
    "peak_kind",
)


MOST_OF_PEAK = 1.0
"""Above that a rate is not that of the memory or the units that the datasheet speaks of."""
NAMED = 3
_SHORT = {"memory": "mem", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "tf32, float32": "tf32+fp32"}


def facts(found: Breakdown, top: int | None) -> dict[str, Any]:
    """All of it, the first `top` rows."""
    return {**msgspec.to_builtins(found), "rows": msgspec.to_builtins(found.rows[:top]), "all_rows": len(found.rows)}


def csv_text(found: Breakdown, top: int | None) -> str:
    """One row each; times in microseconds, shares from 0 to 1."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found.rows[:top]:
        values = [getattr(row, name) for name in COLUMNS]
        writer.writerow([cell(value) if isinstance(value, str) else value for value in values])
    return out.getvalue()


def render(found: Breakdown, top: int | None, *, width: int) -> RenderableType:
    """A table with the first `top` rows, what the rest amounts to, and a note."""
    shown = found.rows[:top]
    parts: list[RenderableType] = [Text(f"{time_text(found.total_us)} of {found.clock} time by {found.by}")]
    if shown:
        room = names_room([safe(row.name) for row in shown])
        cells = [OpCell(name=row.name) for row in shown]
        parts += ops_table(_columns(shown), cells, width=width, title=found.by, room=room)
    if rest := found.rows[len(shown) :]:
        more = share_text(sum(row.share for row in rest))
        parts.append(Text(f"… {plural(len(rest), 'more row')}, {more} of the time; --top N shows more", style="dim"))
    if found.peak is not None:
        parts.append(Text(f"peak of {found.peak.device}: {_peak_text(found.peak)}", style="dim"))
    elif found.by == "op" and found.clock == "device":
        parts.append(Text("no peak is known of the recorded device: --peak NAME (as MI300X) names it", style="dim"))
    beyond = [row for row in shown if (row.peak_share or 0.0) > MOST_OF_PEAK]
    if beyond:
        named = ", ".join(safe(row.name) for row in beyond[:NAMED])
        more = f" and {len(beyond) - NAMED} more" if len(beyond) > NAMED else ""
        parts.append(
            Text(f"! above the peak: {named}{more}: data that stayed in caches, or other sizes than those of the work")
        )
    if found.note:
        parts.append(Text(found.note, style="dim"))
    return Group(*parts)


def _peak_text(peak: Peak) -> str:
    rates = ", ".join(f"{rate:,g} TFLOP/s of {dtype}" for dtype, rate in peak.tflops.items())
    told = "; tf32 where kernels' names tell it, else float32" if TF32 in peak.tflops else ""
    return f"{rates}; {peak.gb_per_s:,g} GB/s (datasheet, dense){told}; GB/s counts arguments and known results once"


def _columns(rows: Sequence[Row]) -> list[Column]:
    made = [
        Column(title="share", cells=tuple(share_text(row.share) for row in rows)),
        Column(title="time", cells=tuple(time_text(row.time_us) for row in rows)),
        Column(title="calls", cells=tuple(f"{row.calls:,}" for row in rows), gives_way=5),
        Column(title="median", cells=tuple(time_text(row.median_us) for row in rows), gives_way=4),
    ]
    rates = (
        ("TFLOP/s", [row.tflops_per_s for row in rows], "{:,.3g}"),
        ("GB/s", [row.gb_per_s for row in rows], "{:,.4g}"),
    )
    for title, values, form in rates:
        if any(value is not None for value in values):
            cells = tuple(DASH if value is None else form.format(value) for value in values)
            made.append(Column(title=title, cells=cells, gives_way=3))
    if any(row.peak_share is not None for row in rows):
        cells = tuple(
            f"{share_text(row.peak_share)} {_SHORT.get(row.peak_kind, row.peak_kind)}".strip() for row in rows
        )
        made.append(Column(title="of peak", cells=cells, gives_way=2))
    if any(row.kind for row in rows):
        made.append(Column(title="kind", cells=tuple(row.kind for row in rows), left=True, gives_way=6))
    return made
