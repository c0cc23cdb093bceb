# pyright: strict
"""The effect of a calibration: errors before and after, as a table and as JSON. Computes only medians."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from statistics import median
from typing import Any, NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.calibrate.own_calls import OwnError, OwnFit, median_error
from opreplay.replay.ascend.calibrate.recalibrate import Recalibration
from opreplay.replay.ascend.measured.accuracy import Compared, Errors, errors_by_type, errors_of
from opreplay.replay.report.table import COUNT, RATIO, Column, Table, Unit, terminal
from opreplay.replay.report.text import plural, safe
from opreplay.replay.report.view import View
from opreplay.replay.report.views.validation import errors_facts

_Row = tuple[str, Errors, Errors]
MOST_CONTRADICTED = 5
"""Maximum number of listed calls whose measured times contradict the other calls."""
MIN_KERNELS_FOR_ERRORS = 12
"""Number of kernels below which errors are not meaningful."""


def _facts(compared: Sequence[Compared]) -> dict[str, Any] | None:
    if not compared:
        return None
    families = {name: errors_facts(errors) for name, errors in errors_by_type(compared).items()}
    return {"overall": errors_facts(errors_of(compared)), "families": families}


def view(recalibration: Recalibration, *, output: str) -> View:
    """Return the result of a calibration in every output format. `output` is the path of the new device file."""
    return View(
        render=lambda width: render(recalibration, output=output), facts=lambda: facts(recalibration, output=output)
    )


def facts(recalibration: Recalibration, *, output: str) -> dict[str, Any]:
    """Return the whole report, with errors "before", "after_held_out" (None if no kernels could be held out),
    "after_seen".
    """
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
    """Return one sentence on whether constants were changed, and how that was validated."""
    if not recalibration.caution:
        return "device unchanged: no fit predicted unseen kernels better than the current device"
    if not recalibration.compared_held_out:
        return "constants changed slightly; the benefit is unknown, because there are too few kernels to hold some out"
    return "constants changed; errors after calibration are for held-out kernels (5 folds)"


def render(recalibration: Recalibration, *, output: str) -> RenderableType:
    """Render median error and time-weighted error by kernel type in percent, before and after calibration."""
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
        Text(
            f"{safe(recalibration.before.name)} → {safe(output)}: median error "
            f"{100 * rows[-1][1].median_ape:.1f} % before, {100 * rows[-1][2].median_ape:.1f} % after",
            style="bold",
        ),
        Text(verdict(recalibration)),
    ]
    if len(recalibration.compared_before) < MIN_KERNELS_FOR_ERRORS:
        parts.append(Text(f"only {len(recalibration.compared_before)} unique kernels, too few for reliable errors"))
    return Group(*parts, *terminal(Table("Errors", columns, rows)))


def view_of_calls(fit: OwnFit, *, output: str) -> View:
    """Return the result of a calibration to measured calls in every output format. `output` is the new device file."""
    return View(
        render=lambda width: render_calls(fit, output=output, width=width),
        facts=lambda: facts_of_calls(fit, output=output),
    )


def facts_of_calls(fit: OwnFit, *, output: str) -> dict[str, Any]:
    """Return the whole report. Errors are fractions. `held_out_error` is for calls predicted from the other calls."""
    return {
        "output": output,
        "device": fit.before.name,
        "rows": fit.rows,
        "dropped": fit.dropped,
        "median_error_before": median_error([error.before for error in fit.errors]),
        "median_error_held_out": median_error([error.held_out for error in fit.errors]),
        "calls": [
            {
                **msgspec.to_builtins(error.row),
                "error_before": median_error([error.before]),
                "error_held_out": median_error([error.held_out]),
                "contradicted": error.contradicted,
            }
            for error in fit.errors
        ],
    }


def _contradicted(errors: Sequence[OwnError]) -> list[Text]:
    """Return lines on the calls that the other calls contradict, largest error first."""
    off = sorted((error for error in errors if error.contradicted), key=lambda error: -abs(error.held_out))
    lines = [
        f"{safe(error.row.call)}, {error.row.l2}: measured {exp(error.held_out):.3g}x the prediction from the other "
        "calls"
        for error in off[:MOST_CONTRADICTED]
    ]
    head = (
        f"Check {plural(len(off), 'measured time')} that contradict the other calls (not used for other predictions):"
    )
    return [Text(head), *map(Text, lines)] if off else []


class _OwnOp(NamedTuple):
    """The measured calls of one op."""

    name: str
    errors: tuple[OwnError, ...]


_WORSE = (
    "calls that were not measured are predicted worse than before: measure more calls, or check the largest factors"
)


def render_calls(fit: OwnFit, *, output: str, width: int) -> RenderableType:
    """Render a line per measured op: factor, error before calibration, and error when predicted from other calls."""
    by_op: dict[str, list[OwnError]] = {}
    for error in fit.errors:
        by_op.setdefault(error.row.call.partition("(")[0], []).append(error)
    ops = [_OwnOp(name, tuple(errors)) for name, errors in by_op.items()]
    percent = Unit(lambda value: f"{100 * value:.1f}")
    columns = [
        Column[_OwnOp]("op", lambda op: op.name, chars=40),
        Column[_OwnOp]("n", lambda op: len(op.errors), COUNT),
        Column[_OwnOp]("÷ pred.", lambda op: median(exp(error.before) for error in op.errors), RATIO),
        Column[_OwnOp]("error", lambda op: median_error([error.before for error in op.errors]), percent),
        Column[_OwnOp]("left out", lambda op: median_error([error.held_out for error in op.errors]), percent),
    ]
    times = plural(len(fit.errors), "measured time")
    before, held_out = (median_error(logs) for logs in zip(*((e.before, e.held_out) for e in fit.errors), strict=True))
    parts: list[RenderableType] = [
        Text(
            f"{safe(fit.before.name)} → {safe(output)}: median error {100 * before:.1f} % before; "
            f"{100 * held_out:.1f} % after, predicting each of {times} from the others",
            style="bold",
        ),
        *([Text(_WORSE)] if held_out > before else []),
        *_contradicted(fit.errors),
        *(Text(f"not used: {plural(count, 'row')}: {safe(reason)}") for reason, count in fit.dropped.items()),
    ]
    told = (
        "÷ pred.: measured ÷ predicted; error: error of the prediction in percent; left out: error if "
        "predicted from the other calls"
    )
    return Group(*parts, *terminal(Table("Errors", columns, ops), width), Text(told, style="dim"))
