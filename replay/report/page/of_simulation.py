# pyright: strict
"""The page of a plan on simulated devices."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.report import first_screen
from opreplay.replay.report.page.model import Cell, Column, Page, Roofline, Table
from opreplay.replay.report.page.parts import bars_by_name, count_cell, heaviest, numbers, point_of, time_cell
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.report.views.simulation import band_text, head_line


def page(plan: ReplayPlan, steps: Sequence[Step], command: str) -> Page:
    """Everything of a simulation that a page shows."""
    by_id = {op.id: op for op in plan.ops}
    found = [{one.id: one for one in step.ops} for step in steps]
    device = plan.device_us_total > 0

    def recorded(id_: str) -> float:
        told = by_id[id_].recorded
        return told.device_us_total if device else told.host_us_total

    clock = "recorded" if device else "recorded (host)"
    series = {clock: _by_name({op.id: recorded(op.id) for op in plan.ops}, plan)}
    for step in steps:
        series[step.device] = _by_name({one.id: one.simulated.time_us * one.count for one in step.ops}, plan)
    order = [plan.ops[i] for i in heaviest([recorded(op.id) for op in plan.ops])]
    rows: list[tuple[Cell, ...]] = []
    for op in order:
        cells = [Cell(text=op.name), Cell(text=describe_inputs(op)), count_cell(op.count)]
        cells.append(time_cell(recorded(op.id) / op.count if op.count else None))
        for one in found:
            made = one.get(op.id)
            cells.append(time_cell(made.simulated.time_us if made else None))
            cells.append(Cell(text=f"{made.simulated.bound}, {made.simulated.confidence}" if made else ""))
        rows.append(tuple(cells))
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
            bars_by_name("Time by op, all calls", series),
            bars_by_name("Time by kernel family", {step.device: step.by_family for step in steps}),
            bars_by_name("Time by what bounds it", {step.device: step.by_bound for step in steps}),
        ),
        rooflines=tuple(
            Roofline(
                device=step.device,
                points=tuple(
                    point_of(
                        by_id[one.id].name,
                        describe_inputs(by_id[one.id]),
                        one.simulated,
                        one.simulated.time_us * one.count / (step.total_us or 1.0),
                    )
                    for one in step.ops
                ),
            )
            for step in steps
        ),
        tables=(
            Table(
                title="Ops, one call",
                rows=tuple(rows),
                left_out=len(plan.ops) - len(order),
                columns=(
                    Column(title="op"),
                    Column(title="inputs"),
                    *numbers("calls", clock),
                    *(c for step in steps for c in (*numbers(step.device), Column(title="bound, confidence"))),
                ),
            ),
        ),
        notes=(
            *first_screen.capture_lines(plan),
            "Sums over ops: `opreplay timeline --soc` says what the step takes.",
        ),
    )


def _by_name(us: dict[str, float], plan: ReplayPlan) -> dict[str, float]:
    names = {op.id: op.name for op in plan.ops}
    out: dict[str, float] = {}
    for id_, one in us.items():
        out[names[id_]] = out.get(names[id_], 0.0) + one
    return out
