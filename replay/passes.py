"""Pure passes over a plan, listed in the order in which `build` runs them."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from opreplay.replay.ir import Reason, Recorded, RecordedKernel, ReplayOp, ReplayPlan

Pass = Callable[[ReplayPlan], ReplayPlan]

MAX_PIECES = 65_536
"""Results that one op may return; `split` by 1 of a huge dimension would make billions."""
_SPLITTERS = frozenset(
    {
        "aten::split", "aten::split_with_sizes", "aten::unbind", "aten::chunk", "aten::tensor_split", "aten::hsplit",
        "aten::vsplit", "aten::dsplit", "aten::unsafe_split", "aten::unsafe_chunk", "aten::unsafe_split_with_sizes",
        "aten::split_copy", "aten::unbind_copy", "aten::split_with_sizes_copy",
    }
)  # fmt: skip


def weight_of(plan: ReplayPlan) -> Callable[[ReplayOp], float]:
    """What shares of this plan refer to: recorded device time, or host time where the trace has no device."""
    if plan.device_us_total > 0:
        return lambda op: op.recorded.device_us_total
    return lambda op: op.recorded.host_us_total


def merge_same_ids(plan: ReplayPlan) -> ReplayPlan:
    """One op an id: counts and times of ops that are the same are added."""
    merged: dict[str, ReplayOp] = {}
    for op in plan.ops:
        first = merged.get(op.id)
        merged[op.id] = op if first is None else added(first, op)
    return plan if len(merged) == len(plan.ops) else msgspec.structs.replace(plan, ops=tuple(merged.values()))


def added(a: ReplayOp, b: ReplayOp) -> ReplayOp:
    """One op for two that are called the same way: counts, times and kernels added."""
    kernels: dict[str, RecordedKernel] = {k.name: k for k in a.recorded.kernels}
    for kernel in b.recorded.kernels:
        known = kernels.get(kernel.name)
        kernels[kernel.name] = kernel if known is None else RecordedKernel(
            name=kernel.name, count=known.count + kernel.count, total_us=known.total_us + kernel.total_us,
            type=known.type or kernel.type,
        )  # fmt: skip
    heavier = a if a.count >= b.count else b
    recorded = Recorded(
        host_us_total=a.recorded.host_us_total + b.recorded.host_us_total,
        host_us_median=heavier.recorded.host_us_median,
        device_us_total=a.recorded.device_us_total + b.recorded.device_us_total,
        device_us_median=heavier.recorded.device_us_median,
        kernels=tuple(kernels.values()),
        children=b.recorded.children if a.recorded.children is None else a.recorded.children,
    )
    return msgspec.structs.replace(a, count=a.count + b.count, recorded=recorded)


def by_recorded_time(plan: ReplayPlan) -> ReplayPlan:
    """Heaviest first; ops without device time by host time; ties by id, so that the order is always the same."""
    weight = weight_of(plan)
    ops = sorted(plan.ops, key=lambda op: (-weight(op), -op.recorded.host_us_total, op.id))
    return msgspec.structs.replace(plan, ops=tuple(ops))


def refuse_floods(plan: ReplayPlan) -> ReplayPlan:
    """Stop ops that would return more tensors than anyone needs."""
    return msgspec.structs.replace(plan, ops=tuple(_without_flood(op) for op in plan.ops))


def _without_flood(op: ReplayOp) -> ReplayOp:
    reason = flood(op) if op.reason is None else None
    return op if reason is None else msgspec.structs.replace(op, reason=reason)


def flood(op: ReplayOp) -> Reason | None:
    """Why an op would return more tensors than anyone needs, or None."""
    pieces = _pieces(op) if op.called in _SPLITTERS else 0
    return Reason("budget", f"would return {pieces} tensors, limit {MAX_PIECES}") if pieces > MAX_PIECES else None


def _pieces(op: ReplayOp) -> int:
    """An upper bound of the number of results."""
    shape = next((m.shape for arg in op.args for m in arg.tensors if m is not None), ())
    values = {arg.name: arg.value for arg in op.args}
    dim = values.get("dim", 0)
    size = shape[dim] if shape and isinstance(dim, int) and -len(shape) <= dim < len(shape) else max(shape, default=0)
    step = values.get("split_size")
    if isinstance(step, int) and not isinstance(step, bool) and step > 0:
        return math.ceil(size / step)
    for name in ("chunks", "sections"):
        if isinstance(pieces := values.get(name), int):
            return min(size, pieces) if name == "chunks" else pieces
    for name in ("split_sizes", "indices", "split_size"):
        if isinstance(parts := values.get(name), tuple):
            return len(parts) + 1
    return size


PASSES: tuple[Pass, ...] = (merge_same_ids, refuse_floods, by_recorded_time)


def run(plan: ReplayPlan) -> ReplayPlan:
    """All passes, in order."""
    for one in PASSES:
        plan = one(plan)
    return plan
