# pyright: strict
"""A comparison as rich tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.columns import Column, OpCell, ops_table
from opreplay.replay.report.run.table import notes_lines
from opreplay.replay.report.text import DASH, time_text
from opreplay.replay.report.views.comparison import interval, notes, precise, rows
from opreplay.replay.results.compare.judge import Comparison, OpComparison

STYLES = {"slower": "red", "lost": "red", "faster": "green", "gained": "green", "unclear": "yellow"}


def render(found: Comparison, *, width: int, everything: bool = False) -> RenderableType:
    """The ops that changed, or all, fitted to `width` characters, and notes; the first line comes before it."""
    shown = rows(found, everything=everything)
    table = (
        [Text(), *ops_table(_columns(shown), [_cell(op, sides=found.sides is not None) for op in shown], width=width)]
        if shown
        else []
    )
    return Group(*table, *notes_lines(notes(found)))


def _columns(shown: Sequence[OpComparison]) -> list[Column]:
    styles = tuple(STYLES.get(op.verdict, "") for op in shown)
    return [
        Column(title="verdict", cells=tuple(op.verdict for op in shown), styles=styles, left=True),
        Column(title="ratio", cells=tuple(precise(op.ratio) for op in shown), styles=styles),
        Column(title="95 %", cells=tuple(interval(op) or DASH for op in shown), style="dim", gives_way=4),
        Column(title="before", cells=tuple(time_text(op.before_us) for op in shown), gives_way=2),
        Column(title="after", cells=tuple(time_text(op.after_us) for op in shown)),
        Column(title="count", cells=tuple(f"{op.count:,}" for op in shown), style="dim", gives_way=8),
    ]


def _cell(op: OpComparison, *, sides: bool) -> OpCell:
    """Of two kinds of times every row has the same few notes, which are counted below."""
    return OpCell(
        name=op.name, detail=(op.inputs or op.note) if sides and op.ratio is not None else op.note or op.inputs
    )
