# pyright: strict
"""A comparison as rich tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.columns import Column, OpCell, ops_table, plain_table
from opreplay.replay.report.run.table import notes_lines
from opreplay.replay.report.text import DASH, time_text
from opreplay.replay.report.views.comparison import detail_of, interval, level, notes, precise, rows
from opreplay.replay.results.compare.judge import Comparison, OpComparison

STYLES = {"slower": "red", "lost": "red", "faster": "green", "gained": "green", "unclear": "yellow"}


def render(found: Comparison, *, width: int, everything: bool = False) -> RenderableType:
    """The ops that changed, or all, fitted to `width` characters, and notes; the first line comes before it."""
    shown = rows(found, everything=everything)
    table = (
        [
            Text(),
            *ops_table(
                _columns(shown, level(found)),
                [OpCell(name=op.name, detail=detail_of(found, op)) for op in shown],
                width=width,
            ),
        ]
        if shown
        else []
    )
    return Group(*table, *_classes(found), *notes_lines(notes(found)))


def _classes(found: Comparison) -> list[RenderableType]:
    """Totals by class of work; nothing where all is of one class."""
    if len(found.classes) < 2:
        return []
    table = plain_table()
    table.add_column("class of work", no_wrap=True)
    for title in ("before", "after", "ops on both", "ratio of these"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in found.classes:
        times = (time_text(one.before_us or None), time_text(one.after_us or None))
        table.add_row(Text(one.name), *times, f"{one.matched_ops:,}", precise(one.ratio))
    return [Text(), table]


def _columns(shown: Sequence[OpComparison], level: str) -> list[Column]:
    styles = tuple(STYLES.get(op.verdict, "") for op in shown)
    return [
        Column(title="verdict", cells=tuple(op.verdict for op in shown), styles=styles, left=True),
        Column(title="ratio", cells=tuple(precise(op.ratio) for op in shown), styles=styles),
        Column(title=level, cells=tuple(interval(op) or DASH for op in shown), style="dim", gives_way=4),
        Column(title="before", cells=tuple(time_text(op.before_us) for op in shown), gives_way=2),
        Column(title="after", cells=tuple(time_text(op.after_us) for op in shown)),
        Column(title="count", cells=tuple(f"{op.count:,}" for op in shown), style="dim", gives_way=8),
    ]
