# pyright: strict
"""Passes over a plan: pure functions, listed in the order in which they run."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Literal

import msgspec

from opreplay.replay.ir.model import Recorded, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import need_of, refuse_floods
from opreplay.replay.plan.step.linking import VIEWS

Pass = Callable[[ReplayPlan], ReplayPlan]


def weight_of(plan: ReplayPlan) -> Callable[[ReplayOp], float]:
    """Return the function that gives the weight of an op in this plan. An op's share of the plan is its share of the
    total weight.

    The weight is the recorded device time, or the host time if the trace has no device. In a captured plan, it is the
    number of bytes that an op reads and writes. Views move nothing, so their weight is 0.
    """
    if plan.captured:
        return moved_bytes
    if plan.device_us_total > 0:
        return lambda op: op.recorded.device_us_total
    return lambda op: op.recorded.host_us_total


Clock = Literal["device", "host"]
"""The recorded clock from which a plan's times and shares are computed."""


def clock_of(plan: ReplayPlan) -> Clock | None:
    """Return the clock of this plan's times: "device" or "host". None if the plan has no recorded times, because it was
    captured or comes from an ExecutionTrace.
    """
    if plan.captured or not total_of(plan):
        return None
    return "device" if plan.device_us_total > 0 else "host"


def total_of(plan: ReplayPlan) -> float:
    """Return the total to which the plan's shares refer. It is recorded time in microseconds, or moved bytes for a
    captured plan.
    """
    if plan.captured:
        return sum(moved_bytes(op) for op in plan.ops)
    return plan.device_us_total or plan.host_us_total


def moved_bytes(op: ReplayOp) -> float:
    """Return the number of bytes of an op's arguments and results, summed over all its calls; 0 for views."""
    return 0.0 if op.name in VIEWS else float(need_of(op).total) * op.count


def merge_same_ids(plan: ReplayPlan) -> ReplayPlan:
    """Merge ops with the same id, and add up their counts and times."""
    parts: dict[str, list[ReplayOp]] = {}
    for op in plan.ops:
        parts.setdefault(op.id, []).append(op)
    if len(parts) == len(plan.ops):
        return plan
    return msgspec.structs.replace(plan, ops=tuple(_together(same) for same in parts.values()))


def _together(parts: Sequence[ReplayOp]) -> ReplayOp:
    """Merge ops with the same id.

    The merged median is the median of the ops' medians, weighted by their numbers of calls. This matters, for example,
    if nine ops have one call each: a slow first call then does not determine the median.
    """
    if len(parts) == 1:
        return parts[0]
    op = reduce(merge_ops, parts)
    busy = [(us, part.count) for part in parts if (us := part.recorded.device_us_median) is not None]
    recorded = msgspec.structs.replace(
        op.recorded,
        host_us_median=_median([(part.recorded.host_us_median, part.count) for part in parts]),
        device_us_median=_median(busy) if busy else None,
    )
    return msgspec.structs.replace(op, recorded=recorded)


def _median(weighted: Sequence[tuple[float, int]]) -> float:
    """Return the weighted median: the mean of the two middle values if there are two."""
    ordered = sorted(weighted)
    up_to = list(accumulate(weight for _, weight in ordered))
    low, high = ordered[bisect_left(up_to, up_to[-1] / 2)], ordered[bisect_right(up_to, up_to[-1] / 2)]
    return (low[0] + high[0]) / 2


def merge_ops(a: ReplayOp, b: ReplayOp) -> ReplayOp:
    """Merge two ops with the same id. Counts, times and kernels are added; medians are those of the op with
    more calls.
    """
    often = a if a.count >= b.count else b
    kernels: dict[str, RecordedKernel] = {k.name: k for k in a.recorded.kernels}
    for kernel in b.recorded.kernels:
        known = kernels.get(kernel.name)
        kernels[kernel.name] = (
            kernel
            if known is None
            else RecordedKernel(
                name=kernel.name,
                count=known.count + kernel.count,
                total_us=known.total_us + kernel.total_us,
                type=known.type or kernel.type,
            )
        )
    recorded = Recorded(
        host_us_total=a.recorded.host_us_total + b.recorded.host_us_total,
        host_us_median=often.recorded.host_us_median,
        device_us_total=a.recorded.device_us_total + b.recorded.device_us_total,
        device_us_median=often.recorded.device_us_median,
        kernels=tuple(kernels.values()),
        gradient_calls=_both(a.recorded.gradient_calls, b.recorded.gradient_calls),
        gradient_calls_assumed=a.recorded.gradient_calls_assumed + b.recorded.gradient_calls_assumed,
        children=b.recorded.children if a.recorded.children is None else a.recorded.children,
    )
    return msgspec.structs.replace(a, count=a.count + b.count, recorded=recorded)


def _both(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def by_recorded_time(plan: ReplayPlan) -> ReplayPlan:
    """Sort ops by weight, heaviest first, then by host time; ties keep the order of first appearance."""
    weight = weight_of(plan)
    ops = sorted(plan.ops, key=lambda op: (-weight(op), -op.recorded.host_us_total))
    return msgspec.structs.replace(plan, ops=tuple(ops))


PASSES: tuple[Pass, ...] = (merge_same_ids, refuse_floods, by_recorded_time)


def run(plan: ReplayPlan) -> ReplayPlan:
    """Run all passes in order."""
    for run_pass in PASSES:
        plan = run_pass(plan)
    return plan
