# pyright: strict
"""A table of captured steps of several sizes on several devices."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.table import COUNT, Column, Table, notes_lines, number, terminal
from opreplay.replay.report.text import safe
from opreplay.replay.timeline.served import ServedStep

_MS = number("{:,.2f}")
_FITS = {True: "yes", False: "no", None: "unknown"}


def render(rows: Sequence[ServedStep], notes: Sequence[str], width: int = 80) -> RenderableType:
    """One row a size and device, and what was assumed."""
    column = Column[ServedStep]
    columns = [
        column("batch", lambda row: row.batch, COUNT),
        column("context", lambda row: row.context, COUNT),
        column("device", lambda row: row.soc, style="bold"),
        column("ms a token", lambda row: row.token_ms, _MS),
        column("80 % band", lambda row: f"{row.low_ms:,.2f} to {row.high_ms:,.2f}", right=True, drop=1),
        column("tokens/s", lambda row: row.tokens_per_s, number("{:,.0f}")),
        column("as a graph", lambda row: row.graph_token_ms, _MS),
        column("memory", lambda row: readable(row.memory_bytes), right=True),
        column("fits", lambda row: _FITS[row.fits]),
    ]
    said = [safe(note) for note in notes]
    if missing := max((row.unpredicted_calls for row in rows), default=0):
        said.append(f"up to {missing} calls of a step have no prediction and take no time here")
    return Group(*terminal(Table("Sizes", columns, rows), width), *notes_lines(said))
