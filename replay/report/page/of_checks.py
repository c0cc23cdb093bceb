# pyright: strict
"""The pages of `compare` and `validate`: what changed between runs, and how far predictions are from measurements."""

from __future__ import annotations

from opreplay.replay.ascend.calibrate.validate import Validation
from opreplay.replay.report.page.model import Page
from opreplay.replay.report.page.parts import bars_by_name
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.report.views.comparison import classes_table, first_line, notes, page_table, side_lines
from opreplay.replay.report.views.validation import kernels_table
from opreplay.replay.results.compare.judge import Comparison


def of_comparison(found: Comparison, command: str) -> Page:
    """Everything of a comparison that a page shows."""
    series: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for op in found.ops:
        for name, us in (("before", op.before_us), ("after", op.after_us)):
            if us is not None:
                series[name][op.name] = series[name].get(op.name, 0.0) + us * op.count
    return Page(
        title="opreplay: two sides compared" if found.sides else "opreplay: two runs compared",
        headline=first_line(found),
        command=command,
        facts=(
            *((line.partition(": ")[0], line.partition(": ")[2]) for line in side_lines(found)),
            ("before", time_text(found.before_us)),
            ("after", time_text(found.after_us)),
            ("an op counts as changed from", share_text(found.applied)),
        ),
        bars=(bars_by_name("Time by op, all calls", series),),
        tables=(page_table(found), classes_table(found)),
        notes=tuple(notes(found)),
    )


def of_validation(found: Validation, command: str) -> Page:
    """Everything of a validation that a page shows."""
    overall = found.figures.overall
    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for one in found.compared:
        measured[one.call.type] = measured.get(one.call.type, 0.0) + one.total_us
        predicted[one.call.type] = predicted.get(one.call.type, 0.0) + one.total_us + one.signed_us
    return Page(
        title="opreplay: predictions against measured kernels",
        headline=f"{overall.n:,} unique kernels: error {share_text(overall.mape)} on average, "
        f"{share_text(overall.median_ape)} in the middle, {share_text(overall.wape)} weighted by time",
        command=command,
        facts=(
            ("rows", f"{found.rows:,}, {found.measured_rows:,} measured"),
            ("in their 80 % band", share_text(overall.in_band)),
            *((soc, f"{errors.n:,} kernels, error {share_text(errors.mape)}") for soc, errors in found.socs.items()),
        ),
        bars=(bars_by_name("Time by kernel type, all launches", {"measured": measured, "predicted": predicted}),),
        tables=(kernels_table(found),),
        notes=(f"{found.fitted_to:,} of these kernels were measured neighbours that the device was fitted to.",)
        if found.fitted_to
        else (),
    )
