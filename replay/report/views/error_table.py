"""The table of errors over all measurements, for people and as JSON; computes nothing."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.calibrate.error_table import ErrorTable, TableRow, median_of_tables
from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.text import middle, safe
from opreplay.replay.report.views.validation import TITLES, errors_facts

SHIPPED = "shipped devices (fitted to these very rows, where they are the public ones: no test)"


def facts(found: ErrorTable) -> dict[str, Any]:
    """For `--format json`."""
    return {
        "sections": {
            name: {
                "rows": [
                    {"table": row.name, "soc": row.soc, "kind": row.kind, "state": row.state,
                     "fitted_to": row.fitted_to, **errors_facts(row.errors)}
                    for row in rows
                ],
                "median_over_tables": median_of_tables(rows),
            }
            for name, rows in found.sections.items()
        },
        "left_out": found.left_out,
    }  # fmt: skip


def _section(rows: tuple[TableRow, ...]) -> RenderableType:
    table = plain_table()
    table.add_column("table", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for title in ("n", "median", "MAPE", "WAPE", "capped", "≤10", "≤25", "band"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        e = row.errors
        numbers = [f"{100 * value:.1f}" for value in (e.median_ape, e.mape, e.wape, e.capped_wape)]
        shares = [f"{100 * value:.0f}" for value in (e.within_10, e.within_25, e.in_band)]
        table.add_row(Text(safe(middle(row.name, 24))), row.state, str(e.n), *numbers, *shares)
    return table


def render(found: ErrorTable) -> RenderableType:
    """One table a section."""
    note = (
        "errors in percent; capped: WAPE with no kernel above a tenth of its table; ≤10, ≤25: share within 10, 25 %; "
        "band: share in the 80 % band"
    )
    parts: list[RenderableType] = [Text(note, style="dim")]
    for name, rows in found.sections.items():
        title = SHIPPED if name == "shipped" else TITLES[name]
        parts += [Text(), Text(title, style="bold"), _section(rows)]
        parts.append(Text(f"median over tables: {100 * median_of_tables(rows):.1f} %"))
    if found.left_out:
        parts.append(Text())
        named = "; ".join(f"{safe(name)} ({safe(why)})" for name, why in found.left_out.items())
        parts.append(Text(f"not in the table: {named}", style="dim"))
    return Group(*parts)
