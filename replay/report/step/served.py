# pyright: strict
"""A table of captured steps of several sizes on several devices."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.table import COUNT, Column, Table, notes_lines, number, terminal
from opreplay.replay.report.text import fusing, safe
from opreplay.replay.report.view import View
from opreplay.replay.timeline.served import SERVER_BAND, ServedStep

FITS = {True: "yes", False: "no", None: "?"}
"""Whether memory holds a step, as a word."""


def view(rows: Sequence[ServedStep], notes: Sequence[str]) -> View:
    """Return the sizes in every output format."""
    return View(render=lambda width: render(rows, notes, width), facts=lambda: {"rows": rows, "notes": notes})


def render(rows: Sequence[ServedStep], notes: Sequence[str], width: int = 80) -> RenderableType:
    """Render one row per size and device, and the assumptions."""
    column = Column[ServedStep]
    columns = [
        column("batch", lambda row: row.batch, COUNT),
        column("context", lambda row: row.context, COUNT),
        column("device", lambda row: row.soc, style="bold"),
        column(
            f"ms a token{fusing(rows[0].fused, rows[0].unfused) if rows else ''}",
            lambda row: _ms(row.token_ms) + f" ({_ms(row.low_ms, 2)}–{_ms(row.high_ms, 2)})",
            right=True,
        ),
        column("tokens/s", lambda row: row.tokens_per_s, number("{:,.0f}"), drop=3),
        column("graph", lambda row: _ms(row.graph_token_ms, 2), right=True, drop=4),
        column("memory", lambda row: readable(row.memory_bytes), right=True, drop=2),
        column("fit", lambda row: FITS[row.fits], drop=1),
    ]
    said = [safe(note) for note in notes]
    if server_ms := max((row.server_ms for row in rows), default=0.0):
        said.append(
            f"a server's host takes {server_ms:.2g} ms between two tokens (of vLLM's own profile on an H100, and what "
            f"hosts of NPUs take longer), within a factor of {SERVER_BAND:g}: all times have it, servers that schedule "
            "ahead hide it"
        )
    if missing := max((row.unpredicted_calls for row in rows), default=0):
        said.append(f"up to {missing} calls of a step have no prediction and take no time here")
    return Group(*terminal(Table("Sizes", columns, rows), width), *notes_lines(said))


def _ms(value: float, digits: int = 3) -> str:
    """Format with this many digits: 0.0123, 1.23, 12.3; integers above 100: 1,230."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"
