# pyright: strict
"""Predicted and measured times of kernels, as tables and as JSON; errors are computed elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ascend.calibrate.validate import Figures, Validation
from opreplay.replay.ascend.measured.accuracy import Compared, Errors
from opreplay.replay.report.page.model import Answer, Page
from opreplay.replay.report.page.parts import bars_by_name
from opreplay.replay.report.table import COUNT, RATIO, SHARE, TIME, Column, Table, Unit, heaviest, terminal
from opreplay.replay.report.text import DASH, middle, plural, quotient, safe, share_text
from opreplay.replay.report.view import View
from opreplay.traces.model import tensor_text
from opreplay.traces.sums import summed

WIDEST_SHAPES = 48


def errors_facts(errors: Errors) -> dict[str, float | int | None]:
    """Return the errors of one set of kernels as fractions; None for errors that are not defined."""
    named = {name: getattr(errors, name) for name in Errors.__struct_fields__}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in named.items()}


def figures_facts(figures: Figures) -> dict[str, Any]:
    """Return the errors over all kernels as `overall` and by kernel family as `families`."""
    return {
        "overall": errors_facts(figures.overall),
        "families": {name: errors_facts(errors) for name, errors in figures.families.items()},
    }


def worst_kernels(compared: Sequence[Compared], number: int) -> list[Compared]:
    """Return the kernels that contribute most to the time-weighted error, worst first."""
    return sorted(compared, key=lambda kernel: -kernel.absolute_us)[:number]


def kernel_facts(kernel: Compared) -> dict[str, Any]:
    """Return one kernel as JSON facts, with its tensors as text."""
    return {
        "type": kernel.call.type,
        "inputs": [tensor_text(spec) for spec in kernel.call.inputs],
        "outputs": [tensor_text(spec) for spec in kernel.call.outputs],
        "count": kernel.count,
        "measured_us": kernel.measured_us,
        "predicted_us": kernel.predicted_us,
        "low_us": kernel.low_us,
        "high_us": kernel.high_us,
        "error": kernel.predicted_us / kernel.measured_us - 1,
        "lost_us": kernel.absolute_us,
        **({} if kernel.shipped_us is None else {"shipped_us": kernel.shipped_us}),
    }


def view(validation: Validation, *, worst: int) -> View:
    """Return a validation in every output format; `worst` is the number of kernels to list, largest errors first."""
    return View(
        render=lambda width: render(validation, worst=worst, width=width),
        facts=lambda: facts(validation, worst=worst),
        page=lambda command: page(validation, command),
    )


def facts(validation: Validation, *, worst: int) -> dict[str, Any]:
    """Return the whole validation for `--format json`."""
    out = figures_facts(validation.figures)
    out["socs"] = {name: errors_facts(errors) for name, errors in validation.socs.items()}
    out["rows"] = {"read": validation.rows, "measured": validation.measured_rows, "dropped": validation.dropped}
    out["fitted_to"] = validation.fitted_to
    out["predicted_by_other_sources"] = validation.by_others
    out["worst"] = [kernel_facts(kernel) for kernel in worst_kernels(validation.compared, worst)]
    return out


_Errors = tuple[str, Errors]
PERCENT = Unit(lambda value: f"{100 * value:.1f}")
WHOLE_PERCENT = Unit(lambda value: DASH if math.isnan(value) else f"{100 * value:.0f}")


def errors_table(first: str, rows: Sequence[_Errors]) -> Table[_Errors]:
    """Return a table of errors that shortens names, not numbers, because a truncated number would be misread."""
    figures: list[tuple[str, Callable[[Errors], float], Unit]] = [
        ("n", lambda e: e.n, COUNT),
        ("MAPE", lambda e: e.mape, PERCENT),
        ("median", lambda e: e.median_ape, PERCENT),
        ("p90", lambda e: e.p90_ape, PERCENT),
        ("WAPE", lambda e: e.wape, PERCENT),
        ("total", lambda e: e.total_error, Unit(lambda value: f"{100 * value:+.1f}")),
        ("≤10", lambda e: e.within_10, WHOLE_PERCENT),
        ("≤25", lambda e: e.within_25, WHOLE_PERCENT),
        ("in band", lambda e: e.in_band, WHOLE_PERCENT),
    ]
    columns = [Column[_Errors](first, lambda row: row[0], form="name")]
    columns += [Column[_Errors](title, lambda row, of=of: of(row[1]), unit) for title, of, unit in figures]
    return Table(first, columns, rows)


_OfKernel = Column[Compared]


def _inputs(kernel: Compared) -> str:
    return "; ".join(tensor_text(spec) for spec in kernel.call.inputs)


_MEASURED = _OfKernel("measured", lambda kernel: kernel.measured_us, TIME)
_PREDICTED = _OfKernel("predicted", lambda kernel: kernel.predicted_us, TIME)
_LAUNCHES = _OfKernel("calls", lambda kernel: kernel.count, COUNT)


def _worst_table(compared: Sequence[Compared], number: int) -> Table[Compared]:
    columns = [
        _OfKernel("worst kernels", lambda kernel: kernel.call.type, chars=24),
        _LAUNCHES,
        _MEASURED,
        _PREDICTED,
        _OfKernel("inputs", lambda kernel: middle(_inputs(kernel), WIDEST_SHAPES), form="fold"),
    ]
    return Table("Worst kernels", columns, worst_kernels(compared, number))


def kernels_table(validation: Validation) -> Table[Compared]:
    """Return every kernel, sortable on a page."""
    columns = [
        _OfKernel("type", lambda kernel: kernel.call.type),
        _OfKernel("inputs", _inputs),
        _LAUNCHES,
        _MEASURED,
        _PREDICTED,
        _OfKernel("predicted ÷ measured", lambda kernel: quotient(kernel.predicted_us, kernel.measured_us), RATIO),
        _OfKernel("error", lambda kernel: kernel.ape if kernel.measured_us else None, SHARE),
    ]
    return heaviest("Kernels, largest lost time first", columns, validation.compared, lambda kernel: kernel.absolute_us)


def head_line(overall: Errors) -> str:
    """Return how far predictions are from measurements, and how often measurements are within the 80 % band."""
    way = "long" if overall.total_error > 0 else "short"
    return (
        f"median error {share_text(overall.median_ape)}; {share_text(overall.in_band)} of {overall.n:,} kernels lie in "
        f"their 80 % band; the total is predicted {share_text(abs(overall.total_error))} too {way}"
    )


def render(validation: Validation, *, worst: int, width: int) -> RenderableType:
    """Render errors by type and overall in percent, and the worst kernels."""
    dropped = "".join(f"; {n} dropped: {safe(reason)}" for reason, n in validation.dropped.items())
    rows = f"{validation.measured_rows} measured of {validation.rows} rows"
    overall = [("all", validation.figures.overall)]
    socs = list(validation.socs.items()) if len(validation.socs) > 1 else []
    notes = ["errors in percent; WAPE and total are over all rows, the others over unique kernels"]
    if validation.fitted_to or validation.by_others:
        notes.append(
            f"the device was fitted to {validation.fitted_to} of these kernels: their errors do not apply to other "
            "kernels"
            if not validation.by_others
            else f"{validation.by_others} of these calls were used for fitting, so each is predicted from measurements "
            "of other sources"
        )
    parts: list[RenderableType] = [
        Text(head_line(validation.figures.overall), style="bold"),
        Text(f"{validation.figures.overall.n} unique kernels in {rows}{dropped}"),
        *(Text(note, style="dim") for note in notes),
        *terminal(errors_table("kernel type", [*validation.figures.families.items(), *socs, *overall]), width),
    ]
    return Group(*parts, *terminal(_worst_table(validation.compared, worst), width))


def page(validation: Validation, command: str) -> Page:
    """Return the page of a validation."""
    overall = validation.figures.overall
    compared = validation.compared
    times = {
        "measured": summed((kernel.call.type, kernel.total_us) for kernel in compared),
        "predicted": summed((kernel.call.type, kernel.total_us + kernel.signed_us) for kernel in compared),
    }
    return Page(
        title="opreplay: predictions against measured kernels",
        headline=head_line(overall),
        command=command,
        answers=(
            Answer(
                name="average error of a kernel",
                ratio=share_text(overall.mape),
                band=f"{share_text(overall.in_band)} in their 80 % band",
                detail=plural(overall.n, "kernel"),
            ),
        ),
        facts=(
            ("rows", f"{validation.rows:,}, {validation.measured_rows:,} measured"),
            ("in their 80 % band", share_text(overall.in_band)),
            *(
                (soc, f"{plural(errors.n, 'kernel')}, error {share_text(errors.mape)}")
                for soc, errors in validation.socs.items()
            ),
        ),
        bars=(bars_by_name("Time by kernel type, all launches", times, "type"),),
        tables=(kernels_table(validation),),
        notes=(f"{validation.fitted_to:,} of these kernels were used to fit the device.",)
        if validation.fitted_to
        else (),
    )
