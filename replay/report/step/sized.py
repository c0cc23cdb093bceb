# pyright: strict
"""A table of captured steps of the user's own sizes on several devices."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.step.served import FITS
from opreplay.replay.report.table import COUNT, TIME, Column, Table, notes_lines, terminal
from opreplay.replay.report.text import safe, time_text
from opreplay.replay.report.view import View
from opreplay.replay.timeline.sized import SizedStep


def view(rows: Sequence[SizedStep], notes: Sequence[str]) -> View:
    """Return the sizes in every output format."""
    return View(render=lambda width: render(rows, notes, width), facts=lambda: {"rows": rows, "notes": notes})


def render(rows: Sequence[SizedStep], notes: Sequence[str], width: int = 80) -> RenderableType:
    """Render one row per size and device, and the assumptions."""
    column = Column[SizedStep]
    names = list(dict.fromkeys(name for row in rows for name in row.sizes))
    columns = [
        *(column(safe(name), lambda row, name=name: row.sizes.get(name), COUNT) for name in names),
        column("device", lambda row: row.soc, style="bold"),
        column("step", lambda row: row.step_us, TIME),
        column("80 % band", lambda row: f"{time_text(row.low_us)} to {time_text(row.high_us)}", right=True, drop=1),
        column("bound", lambda row: row.bound, drop=5),
        column("graph", lambda row: row.graph_us, TIME, drop=4),
        column("memory", lambda row: readable(row.memory_bytes), right=True, drop=3),
        column("fit", lambda row: FITS[row.fits], drop=2),
    ]
    said = [safe(note) for note in notes]
    if missing := max((row.unpredicted_calls for row in rows), default=0):
        said.append(f"up to {missing} calls of a step have no prediction and take no time here")
    return Group(*terminal(Table("Sizes", columns, rows), width), *notes_lines(said))
