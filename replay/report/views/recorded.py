# pyright: strict
"""The recorded ops of a plan as a table: names, inputs, counts, times and work, whether or not they can be replayed."""

from __future__ import annotations

from collections.abc import Mapping

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.report.run.ops import recorded_title
from opreplay.replay.report.table import COUNT, SHARE, TIME, Column, Table
from opreplay.replay.results.of_plan import recorded_us

Recorded = Column[ReplayOp]


def table(plan: ReplayPlan, inputs: Mapping[str, str]) -> Table[ReplayOp]:
    """Return one row per op, most time first. Times are in microseconds per call. `inputs` maps op ids to tensors."""
    total_us = plan.device_us_total or plan.host_us_total

    def device_us(op: ReplayOp) -> float | None:
        return op.recorded.device_us_total / op.count if op.recorded.on_device else None

    def host_us(op: ReplayOp) -> float | None:
        return None if plan.captured else op.recorded.host_us_total / op.count

    def share(op: ReplayOp) -> float:
        return recorded_us(plan, op) / total_us if total_us else 0.0

    columns = [
        Recorded("id", lambda op: op.id),
        Recorded("op", lambda op: op.name, key="name", form="code"),
        Recorded("inputs", lambda op: inputs[op.id], form="code"),
        Recorded("count", lambda op: op.count, COUNT),
        Recorded(recorded_title(device=True), device_us, TIME, key="recorded_device_us"),
        Recorded(recorded_title(device=False), host_us, TIME, key="recorded_host_us"),
        Recorded("share", share, SHARE, key="recorded_share"),
        Recorded("FLOPs", lambda op: op.flops, COUNT, key="flops"),
        Recorded("bytes", lambda op: op.moved_bytes, COUNT, key="bytes"),
    ]
    return Table("Ops", columns, plan.ops, noun="op", weight=share)
