# pyright: strict
"""Predicted against measured kernels, as tables and as JSON; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.calibrate.calibrate import HeldOut
from opreplay.replay.ascend.calibrate.error_table import ErrorTable, TableRow, median_of_tables
from opreplay.replay.ascend.calibrate.validate import Figures, Validation, held_figures
from opreplay.replay.ascend.measured.accuracy import Compared, Errors
from opreplay.replay.ascend.simulate.op import describe
from opreplay.replay.report.columns import Column, OpCell, names_room, ops_table, plain_table
from opreplay.replay.report.text import DASH, middle, safe, time_text

TITLES = {
    "folds": "kernels that no fit has seen (5 folds)",
    "unseen_table": "tables that no fit has seen (one left out)",
    "unseen_soc": "SoCs that no fit has seen (one left out)",
}
WIDEST_SHAPES = 48


def errors_facts(errors: Errors) -> dict[str, float | int | None]:
    """The figures of one set of kernels as fractions; None for what no kernel gives."""
    named = {name: getattr(errors, name) for name in Errors.__struct_fields__}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in named.items()}


def figures_facts(figures: Figures) -> dict[str, Any]:
    """`overall` and `families`."""
    return {
        "overall": errors_facts(figures.overall),
        "families": {name: errors_facts(one) for name, one in figures.families.items()},
    }


def worst_kernels(compared: Sequence[Compared], number: int) -> list[Compared]:
    """The kernels that contribute most to the time-weighted error, worst first."""
    return sorted(compared, key=lambda one: -one.absolute_us)[:number]


def kernel_facts(one: Compared) -> dict[str, Any]:
    """One kernel, with its tensors as text."""
    return {
        "type": one.call.type,
        "inputs": [describe(spec) for spec in one.call.inputs],
        "outputs": [describe(spec) for spec in one.call.outputs],
        "count": one.count,
        "measured_us": one.measured_us,
        "predicted_us": one.predicted_us,
        "low_us": one.low_us,
        "high_us": one.high_us,
        "error": one.predicted_us / one.measured_us - 1,
        "lost_us": one.absolute_us,
    }


def cross_facts(across: Sequence[HeldOut], elsewhere: Sequence[HeldOut]) -> dict[str, Any]:
    """Cross-validated figures: "folds" and "unseen_soc"."""
    return {name: figures_facts(one) for name, one in _cross(across, elsewhere).items()}


def _cross(across: Sequence[HeldOut], elsewhere: Sequence[HeldOut]) -> dict[str, Figures]:
    sets = {"folds": across, "unseen_soc": elsewhere}
    return {name: held_figures(held) for name, held in sets.items() if held}


def render_cross(across: Sequence[HeldOut], elsewhere: Sequence[HeldOut]) -> RenderableType:
    """Cross-validated figures by type and overall, in percent."""
    parts: list[RenderableType] = []
    for name, figures in _cross(across, elsewhere).items():
        rows = [*figures.families.items(), ("all", figures.overall)]
        parts += [Text(TITLES[name], style="bold"), _errors_table("kernel type", rows), Text()]
    return Group(*parts)


def facts(found: Validation, *, worst: int) -> dict[str, Any]:
    """The whole validation for `--format json`."""
    out = figures_facts(found.figures)
    out["socs"] = {name: errors_facts(one) for name, one in found.socs.items()}
    out["rows"] = {"read": found.rows, "measured": found.measured_rows, "dropped": found.dropped}
    out["fitted_to"] = found.fitted_to
    out["worst"] = [kernel_facts(one) for one in worst_kernels(found.compared, worst)]
    if found.cross:
        out["cross_validation"] = {name: figures_facts(one) for name, one in found.cross.items()}
    return out


def _errors_table(first: str, rows: Sequence[tuple[str, Errors]]) -> RenderableType:
    table = plain_table()
    cells = [_error_cells(e) for _, e in rows]
    table.add_column(first, overflow="ellipsis")
    for at, title in enumerate(("n", "MAPE", "median", "p90", "WAPE", "total", "≤10", "≤25", "in band")):
        # A figure that is cut off is another figure: names give way.
        widest = max((len(row[at]) for row in cells), default=0)
        table.add_column(title, justify="right", no_wrap=True, min_width=widest)
    for (name, _), row in zip(rows, cells, strict=True):
        table.add_row(Text(safe(middle(name, 22))), *row)
    return table


def _error_cells(e: Errors) -> list[str]:
    return [
        str(e.n),
        *(f"{100 * value:.1f}" for value in (e.mape, e.median_ape, e.p90_ape, e.wape)),
        f"{100 * e.total_error:+.1f}",
        *(DASH if math.isnan(value) else f"{100 * value:.0f}" for value in (e.within_10, e.within_25, e.in_band)),
    ]


def _worst_table(compared: Sequence[Compared], number: int) -> RenderableType:
    table = plain_table()
    table.add_column("worst kernels", no_wrap=True)
    for title in ("calls", "measured", "predicted"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("inputs", overflow="fold")
    for one in worst_kernels(compared, number):
        tensors = "; ".join(describe(spec) for spec in one.call.inputs)
        table.add_row(
            Text(safe(middle(one.call.type, 24))),
            str(one.count),
            time_text(one.measured_us),
            time_text(one.predicted_us),
            Text(safe(middle(tensors, WIDEST_SHAPES))),
        )
    return table


def render(found: Validation, *, worst: int) -> RenderableType:
    """Figures by type and overall in percent, what cross-validation gives, and the worst kernels."""
    dropped = "".join(f"; {n} dropped: {safe(reason)}" for reason, n in found.dropped.items())
    head = f"{found.figures.overall.n} unique kernels in {found.measured_rows} measured of {found.rows} rows{dropped}"
    overall = [("all", found.figures.overall)]
    socs = list(found.socs.items()) if len(found.socs) > 1 else []
    notes = ["errors in percent; WAPE and total are over all rows, the others over unique kernels"]
    if found.fitted_to:
        notes.append(
            f"the device was fitted to {found.fitted_to} of these kernels: their errors tell nothing of others "
            "(--cross-validate does)"
        )
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        *(Text(note, style="dim") for note in notes),
        Text(),
        _errors_table("kernel type", [*found.figures.families.items(), *socs, *overall]),
    ]
    for name, figures in found.cross.items():
        parts += [Text(), _errors_table(TITLES[name], [*figures.families.items(), ("all", figures.overall)])]
    if worst:
        parts += [Text(), _worst_table(found.compared, worst)]
    return Group(*parts)


SHIPPED = "shipped devices (fitted to these very rows, where they are the public ones: no test)"


def all_facts(found: ErrorTable) -> dict[str, Any]:
    """For `--format json`."""
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
            for name, rows in found.sections.items()
        },
        "left_out": found.left_out,
    }


def _files_table(rows: Sequence[TableRow], width: int) -> list[RenderableType]:
    """The name of a table has the room; figures that say the same in another way go first."""
    errors = [row.errors for row in rows]
    figures = (
        ("median", [e.median_ape for e in errors], 0.0),
        ("MAPE", [e.mape for e in errors], 7.0),
        ("WAPE", [e.wape for e in errors], 6.0),
        ("capped", [e.capped_wape for e in errors], 8.0),
    )
    shares = (
        ("≤10", [e.within_10 for e in errors], 4.0),
        ("≤25", [e.within_25 for e in errors], 3.0),
        ("band", [e.in_band for e in errors], 2.0),
    )
    columns = [
        Column(title="state", cells=tuple(row.state for row in rows), left=True, gives_way=9),
        Column(title="n", cells=tuple(str(e.n) for e in errors)),
        *(Column(title=t, cells=tuple(f"{100 * x:.1f}" for x in values), gives_way=g) for t, values, g in figures),
        *(Column(title=t, cells=tuple(f"{100 * x:.0f}" for x in values), gives_way=g) for t, values, g in shares),
    ]
    names = [OpCell(name=row.name) for row in rows]
    return ops_table(columns, names, width=width, title="table", room=names_room([safe(row.name) for row in rows]))


def render_all(found: ErrorTable, *, width: int = 160) -> RenderableType:
    """One table a section."""
    note = (
        "errors in percent; capped: WAPE with no kernel above a tenth of its table; ≤10, ≤25: share within 10, 25 %; "
        "band: share in the 80 % band"
    )
    parts: list[RenderableType] = [Text(note, style="dim")]
    for name, rows in found.sections.items():
        title = SHIPPED if name == "shipped" else TITLES[name]
        parts += [Text(), Text(title, style="bold"), *_files_table(rows, width)]
        parts.append(Text(f"median over tables: {100 * median_of_tables(rows):.1f} %"))
    if found.left_out:
        parts.append(Text())
        named = "; ".join(f"{safe(name)} ({safe(why)})" for name, why in found.left_out.items())
        parts.append(Text(f"not in the table: {named}", style="dim"))
    return Group(*parts)
