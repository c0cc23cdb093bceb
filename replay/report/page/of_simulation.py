# pyright: strict
"""The page of a plan on simulated devices."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.report import first_screen
from opreplay.replay.report.page.model import Page
from opreplay.replay.report.page.of_run import roofline, sums
from opreplay.replay.report.page.parts import bars_by_name
from opreplay.replay.report.run.ops import CALL, CALLS, INPUTS, NAME, bound_of, recorded, simulated
from opreplay.replay.report.table import heaviest
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.report.views.simulation import band_text, head_line, results_of


def page(plan: ReplayPlan, steps: Sequence[Step], command: str) -> Page:
    """Everything of a simulation that a page shows."""
    results, clock = results_of(plan, steps), recorded(device=plan.device_us_total > 0)
    times = [clock, *(simulated(step.device) for step in steps)]
    columns = [NAME, INPUTS, CALLS, clock]
    columns += [column for step in steps for column in (simulated(step.device), bound_of(step.device))]
    return Page(
        title=f"Simulated: {plan.source}",
        headline=head_line(plan, steps),
        command=command,
        facts=tuple(
            (
                step.device,
                f"{time_text(step.total_us)}, all calls added up, {band_text(step)} (80 %); "
                f"{share_text(step.uncalibrated_share)} uncalibrated"
                if step.ops
                else band_text(step),
            )
            for step in steps
        ),
        bars=(
            bars_by_name("Time by op, all calls", {column.title: sums(results, column) for column in times}),
            bars_by_name("Time by kernel family", {step.device: step.by_family for step in steps}),
            bars_by_name("Time by what bounds it", {step.device: step.by_bound for step in steps}),
        ),
        rooflines=tuple(roofline(step.device, results) for step in steps),
        tables=(heaviest("Ops, one call", [*columns, CALL], results, lambda r: r.recorded_share),),
        notes=(
            *first_screen.capture_lines(plan),
            "Sums over ops: `opreplay timeline --soc` says what the step takes.",
        ),
    )
