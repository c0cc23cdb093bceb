# pyright: strict
"""Restricts a plan to one recorded step, with the step's counts and times."""

from __future__ import annotations

import math
from statistics import median

import msgspec

from opreplay.replay.ir.model import Recorded, RecordedSequence, ReplayOp, ReplayPlan
from opreplay.replay.plan.passes import by_recorded_time
from opreplay.traces.errors import UsageError


def lacks_order(plan: ReplayPlan, option: str) -> UsageError:
    """Return the error for a plan that lacks the order of its ops, which the option needs."""
    return UsageError(
        f"{plan.source} does not record the order of its ops",
        hint=f"{option} needs a trace, or a plan written by this version's `opreplay plan TRACE --output`.",
    )


def step_plan(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan restricted to its step: only the ops that the step calls, with the step's counts, times and
    totals.

    An op keeps its kernels only if all its calls are in the step. Otherwise it is unknown which of its kernels belong
    to the step. Raises UsageError for a plan without the order of its ops.
    """
    sequence = plan.sequence
    if sequence is None:
        raise lacks_order(plan, "--mode sequence")
    host, device = _times(sequence, sequence.host_us), _times(sequence, sequence.device_us)
    on_device = bool(sequence.device_us)
    for collective in sequence.collectives:
        host.setdefault(collective.id, []).append(0.0 if on_device else collective.us)
        device.setdefault(collective.id, []).append(collective.us if on_device else 0.0)
    beside_us = sum(collective.us - collective.op_us for collective in sequence.collectives)
    ops = tuple(_of_step(op, host[op.id], device.get(op.id, [])) for op in plan.ops if op.id in host)
    return by_recorded_time(
        msgspec.structs.replace(
            plan,
            ops=ops,
            device_us_total=sequence.device_us_total + (beside_us if on_device else 0.0),
            host_us_total=max(0.0, sequence.host_us_total + (0.0 if on_device else beside_us)),
            unowned_device_us=sequence.unowned_device_us,
        )
    )


def _times(sequence: RecordedSequence, times_us: tuple[float, ...]) -> dict[str, list[float]]:
    """Return the times of each op's calls in the step, by op id; empty if the step has no recorded times."""
    by_op: dict[str, list[float]] = {}
    for index, time_us in zip(sequence.calls, times_us, strict=False):
        by_op.setdefault(sequence.ids[index], []).append(time_us)
    return by_op


def _of_step(op: ReplayOp, host_us: list[float], device_us: list[float]) -> ReplayOp:
    """Return the op with the times of its calls in the step."""
    busy = [time_us for time_us in device_us if time_us > 0]
    recorded = Recorded(
        host_us_total=math.fsum(host_us),
        host_us_median=median(host_us),
        device_us_total=math.fsum(device_us),
        device_us_median=median(busy) if busy else None,
        kernels=op.recorded.kernels if op.count == len(host_us) else (),
        children=op.recorded.children,
    )
    return msgspec.structs.replace(op, count=len(host_us), recorded=recorded)
