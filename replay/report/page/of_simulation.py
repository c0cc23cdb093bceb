# pyright: strict
"""The page of a plan on simulated devices."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ascend.simulate.step import Step
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.report import first_screen
from opreplay.replay.report.page.model import Page, Roofline
from opreplay.replay.report.page.parts import bars_by_name, point_of
from opreplay.replay.report.run.ops import recorded_title
from opreplay.replay.report.table import COUNT, TIME, Column, heaviest
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.report.views.simulation import band_text, head_line


def page(plan: ReplayPlan, steps: Sequence[Step], command: str) -> Page:
    """Everything of a simulation that a page shows."""
    by_id = {op.id: op for op in plan.ops}
    device = plan.device_us_total > 0
    clock = recorded_title(device=device)

    def recorded(id_: str) -> float:
        times = by_id[id_].recorded
        return times.device_us_total if device else times.host_us_total

    series = {clock: _by_name({op.id: recorded(op.id) for op in plan.ops}, plan)}
    for step in steps:
        series[step.device] = _by_name({one.id: one.simulated.time_us * one.count for one in step.ops}, plan)
    columns = [
        Column[ReplayOp]("op", lambda op: op.name),
        Column[ReplayOp]("inputs", describe_inputs),
        Column[ReplayOp]("count", lambda op: op.count, COUNT),
        Column[ReplayOp](clock, lambda op: recorded(op.id) / op.count if op.count else None, TIME),
        *(column for step in steps for column in _predicted(step)),
    ]
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
        tables=(heaviest("Ops, one call", columns, plan.ops, lambda op: recorded(op.id)),),
        notes=(
            *first_screen.capture_lines(plan),
            "Sums over ops: `opreplay timeline --soc` says what the step takes.",
        ),
    )


def _predicted(step: Step) -> list[Column[ReplayOp]]:
    """The time on a device, and what bounds it."""
    found = {one.id: one.simulated for one in step.ops}

    def bound(op: ReplayOp) -> str:
        return f"{found[op.id].bound}, {found[op.id].confidence}" if op.id in found else ""

    return [
        Column(step.device, lambda op: found[op.id].time_us if op.id in found else None, TIME),
        Column("bound, confidence", bound),
    ]


def _by_name(us: dict[str, float], plan: ReplayPlan) -> dict[str, float]:
    names = {op.id: op.name for op in plan.ops}
    out: dict[str, float] = {}
    for id_, one in us.items():
        out[names[id_]] = out.get(names[id_], 0.0) + one
    return out
