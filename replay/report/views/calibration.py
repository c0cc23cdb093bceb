# pyright: strict
"""What a calibration changed: errors before and after, as a table and as JSON; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.measured.accuracy import Compared, Errors, errors_by_type, errors_of
from opreplay.replay.report.table import COUNT, Column, Table, Unit, terminal
from opreplay.replay.report.text import safe
from opreplay.replay.report.view import View
from opreplay.replay.report.views.validation import errors_facts

_Row = tuple[str, Errors, Errors]
FEW = 12
"""Kernels below which figures say little."""


def _facts(compared: Sequence[Compared]) -> dict[str, Any] | None:
    if not compared:
        return None
    families = {name: errors_facts(errors) for name, errors in errors_by_type(compared).items()}
    return {"overall": errors_facts(errors_of(compared)), "families": families}


def view(recalibration: Recalibration, *, output: str) -> View:
    """What a calibration came to in every form; `output`: the new device file."""
    return View(
        render=lambda width: render(recalibration, output=output), facts=lambda: facts(recalibration, output=output)
    )


def facts(recalibration: Recalibration, *, output: str) -> dict[str, Any]:
    """The whole report: "before", "after_held_out" (None where nothing could be held out), "after_seen"."""
    return {
        "output": output,
        "device": recalibration.before.name,
        "kernels": len(recalibration.compared_before),
        "prior_width": recalibration.caution,
        "before": _facts(recalibration.compared_before),
        "after_held_out": _facts(recalibration.compared_held_out),
        "after_seen": _facts(recalibration.compared_after),
    }


def verdict(recalibration: Recalibration) -> str:
    """One sentence on what was done."""
    if not recalibration.caution:
        return "nothing was moved: no fit predicted kernels it had not seen better than the device does already"
    if not recalibration.compared_held_out:
        return "too few kernels to hold any out: constants moved a little, and how well is not known"
    return "constants moved; the figures after are of kernels that the fit had not seen (5 folds)"


def render(recalibration: Recalibration, *, output: str) -> RenderableType:
    """Median error and time-weighted error by kernel type, before and after, in percent."""
    after = recalibration.compared_held_out or recalibration.compared_after
    late = errors_by_type(after)
    rows: list[_Row] = [
        (name, early, late[name])
        for name, early in errors_by_type(recalibration.compared_before).items()
        if name in late
    ]
    rows.append(("all", errors_of(recalibration.compared_before), errors_of(after)))
    percent = Unit(lambda value: f"{100 * value:.1f}")
    columns = [
        Column[_Row]("kernel type", lambda row: row[0], chars=30),
        Column[_Row]("n", lambda row: row[1].n, COUNT),
        Column[_Row]("median before", lambda row: row[1].median_ape, percent),
        Column[_Row]("after", lambda row: row[2].median_ape, percent),
        Column[_Row]("WAPE before", lambda row: row[1].wape, percent),
        Column[_Row]("after", lambda row: row[2].wape, percent),
    ]
    parts: list[RenderableType] = [
        Text(f"{safe(recalibration.before.name)} → {safe(output)}", style="bold"),
        Text(verdict(recalibration)),
    ]
    if len(recalibration.compared_before) < FEW:
        parts.append(Text(f"only {len(recalibration.compared_before)} unique kernels: figures this few say little"))
    return Group(*parts, *terminal(Table("Errors", columns, rows)))
