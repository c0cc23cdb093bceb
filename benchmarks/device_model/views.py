# pyright: strict
"""Errors over many tables, and of what was left out of fits, as tables for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from benchmarks.device_model.error_table import ErrorTable, TableRow, median_of_tables
from opreplay.replay.ascend.calibrate.validate import Figures
from opreplay.replay.ascend.measured.accuracy import Errors
from opreplay.replay.report.table import COUNT, Column, Table, Unit, names_room, terminal
from opreplay.replay.report.text import safe
from opreplay.replay.report.view import View
from opreplay.replay.report.views.validation import PERCENT, WHOLE_PERCENT, errors_facts, errors_table, figures_facts

TITLES = {
    "folds": "kernels that no fit has seen (5 folds)",
    "unseen_table": "tables that no fit has seen (one left out)",
    "unseen_soc": "SoCs that no fit has seen (one left out)",
    "unseen_op": "ops that nothing was learned of (one left out)",
    "unseen_source": "sources that nothing was learned of (one left out)",
}


def view_of_figures(figures_by_set: Mapping[str, Figures]) -> View:
    """Figures by type and overall, in percent, of each set that was left out of a fit."""
    return View(
        render=lambda width: _render_figures(figures_by_set, width),
        facts=lambda: {name: figures_facts(figures) for name, figures in figures_by_set.items()},
    )


def _render_figures(figures_by_set: Mapping[str, Figures], width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for name, figures in figures_by_set.items():
        rows = [*figures.families.items(), ("all", figures.overall)]
        parts += [Text(), Text(TITLES[name], style="bold"), *terminal(errors_table("kernel type", rows), width)[1:]]
    return Group(*parts)


def view_of_all(table: ErrorTable) -> View:
    """Return errors over many tables in every output format."""
    return View(render=lambda width: render_all(table, width=width), facts=lambda: all_facts(table))


SHIPPED = "shipped devices (fitted to these very rows, where they are the public ones: no test)"


def all_facts(table: ErrorTable) -> dict[str, Any]:
    """Return all errors for `--format json`."""
    return {
        "sections": {
            name: {
                "rows": [
                    {
                        "table": row.name,
                        "soc": row.soc,
                        "kind": row.kind,
                        "state": row.state,
                        "fitted_to": row.fitted_to,
                        **errors_facts(row.errors),
                    }
                    for row in rows
                ],
                "median_over_tables": median_of_tables(rows),
            }
            for name, rows in table.sections.items()
        },
        "left_out": table.left_out,
    }


def _files_table(rows: Sequence[TableRow]) -> Table[TableRow]:
    """Return the table of files: table names get the room, and redundant figures are dropped first."""
    figures: list[tuple[str, Callable[[Errors], float], Unit, float]] = [
        ("median", lambda e: e.median_ape, PERCENT, 0),
        ("MAPE", lambda e: e.mape, PERCENT, 7),
        ("WAPE", lambda e: e.wape, PERCENT, 6),
        ("capped", lambda e: e.capped_wape, PERCENT, 8),
        ("≤10", lambda e: e.within_10, WHOLE_PERCENT, 4),
        ("≤25", lambda e: e.within_25, WHOLE_PERCENT, 3),
        ("band", lambda e: e.in_band, WHOLE_PERCENT, 2),
    ]
    columns = [
        Column[TableRow]("state", lambda row: row.state, drop=9),
        Column[TableRow]("n", lambda row: row.errors.n, COUNT),
        *(Column[TableRow](t, lambda row, of=of: of(row.errors), unit, drop=drop) for t, of, unit, drop in figures),
        Column[TableRow]("table", lambda row: row.name, form="name"),
    ]
    return Table("Tables", columns, rows)


def render_all(table: ErrorTable, *, width: int = 160) -> RenderableType:
    """Render one table per section."""
    note = (
        "errors in percent; capped: WAPE with no kernel above a tenth of its table; ≤10, ≤25: share within 10, 25 %; "
        "band: share in the 80 % band"
    )
    parts: list[RenderableType] = [Text(note, style="dim")]
    for name, rows in table.sections.items():
        title = SHIPPED if name == "shipped" else TITLES[name]
        room = names_room(row.name for row in rows)
        parts += [Text(), Text(title, style="bold"), *terminal(_files_table(rows), width, room=room)[1:]]
        parts.append(Text(f"median over tables: {100 * median_of_tables(rows):.1f} %"))
    if table.left_out:
        parts.append(Text())
        named = "; ".join(f"{safe(name)} ({safe(why)})" for name, why in table.left_out.items())
        parts.append(Text(f"not in the table: {named}", style="dim"))
    return Group(*parts)
