"""From a trace to a plan: groups recorded calls into unique ops, sums what was measured, and resolves each once.

Owns the grouping and the order of the steps. The steps themselves are `select`, `op_resolver` and `passes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePath

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.replay.ir.model import Assumption, Recorded, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.ir.recorded_call import recorded_results
from opreplay.replay.plan import passes
from opreplay.replay.plan.collectives.ranks import ranks_of
from opreplay.replay.plan.select import OpFilter, keep_heaviest, keeps_name, no_such_phase, selected_rows
from opreplay.replay.plan.step.order import recorded_sequence
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.resolver import Resolver
from opreplay.traces.links.iterations import BatchIndex, DominantBatch
from opreplay.traces.links.parents import parents_of
from opreplay.traces.model import OpSignature, Trace

Rows = npt.NDArray[np.int64]
_NO_FILTER = OpFilter()
_DEFAULT_POLICY = Policy()


_ARITHMETIC = (
    "aten::_foreach_add",
    "aten::_foreach_sub",
    "aten::_foreach_mul",
    "aten::_foreach_div",
    "aten::_foreach_lerp",
    "aten::_fused_adam",
    "aten::_fused_sgd",
    "aten::_fused_adagrad",
    "aten::addcdiv",
    "aten::addcmul",
    "aten::lerp",
)
"""Beginnings of the names of ops of optimizers, whose numbers change from step to step."""
_FLOAT = r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e))(?:e[-+]?\d+)?"
_FLOATS = re.compile(rf"\[?{_FLOAT}(?:, {_FLOAT})*\]?")
"""A floating number or a list of such, as a trace writes them."""


def build_plan(
    trace: Trace,
    *,
    select: str = "owner",
    filters: OpFilter = _NO_FILTER,
    policy: Policy = _DEFAULT_POLICY,
    device: str = "cpu",
    in_order: bool = False,
) -> ReplayPlan:
    """The unique ops of a trace, each resolved for `device` or with the reason why not, heaviest first.

    `select`: "owner" (ops that own device time; the outermost ops where none does), "leaf", "top" or "all". With
    `in_order` the plan holds the calls of one recorded step in their order.
    Imports torch, and a vendor library only where `policy` allows it. Raises UsageError for an unknown selection, and
    for a phase that no iteration is in.
    """
    rows = selected_rows(trace, select)
    batches = BatchIndex(trace)
    if filters.phase is not None:
        rows = batches.in_phase(rows, filters.phase)
        if not len(rows):
            raise no_such_phase(batches.contexts, filters.phase)
    groups = _group(trace, rows, select, batches)
    unowned = trace.kernels.owner < 0
    # Where no op owns any of the device's time, ops can only be weighed by the host's.
    on_device = len(trace.kernels) and not (unowned.all() and len(trace.ops))
    device_us = float(trace.kernels.dur_ns.sum(dtype=np.int64)) / 1e3 if on_device else 0.0
    host_us = float(sum(group.recorded.host_us_total for group in groups))
    shell = ReplayPlan(
        source=PurePath(trace.info.path).name,
        selection=select,
        device=next(iter(trace.info.device_names), None),
        device_us_total=device_us,
        host_us_total=host_us,
        ops=(),
        unowned_device_us=float(trace.kernels.dur_ns[unowned].sum(dtype=np.int64)) / 1e3,
    )
    kept = [
        (
            group,
            ReplayOp(
                id=signature_id(group.signature),
                name=group.signature.name,
                count=group.count,
                recorded=group.recorded,
                recorded_outputs=recorded_results(group.signature),
                batch=group.batch and group.batch.context,
                assumptions=_shared_batch(group.batch),
                ranks=ranks_of(group.signature, trace.info.world_size),
            ),
        )
        for group in groups
        if keeps_name(filters, group.signature.name)
    ]
    weight = passes.weight_of(shell)
    kept.sort(key=lambda pair: -weight(pair[1]))
    chosen = keep_heaviest([op for _, op in kept], filters, device_us or host_us, weight)
    ids = {op.id for op in chosen}
    resolver = Resolver(trace, policy, device)
    ops = tuple(resolver.resolve(op, group.signature, group.row) for group, op in kept if op.id in ids)
    plan = passes.run(msgspec.structs.replace(shell, ops=ops))
    if not in_order:
        return plan
    sequence = recorded_sequence(
        trace,
        rows,
        _selected_owner(trace, rows, select),
        [signature_id(one) for one in trace.signatures],
        ids,
        select=select,
        phase=filters.phase,
    )
    return msgspec.structs.replace(plan, sequence=sequence)


def signature_id(signature: OpSignature) -> str:
    """Stable 12-hex-digit hash of a recorded signature.

    Floating numbers that values are only multiplied with or added to are no part of it: Adam corrects its bias by
    other ones in each step, and the work is the same.
    """
    concrete = signature.concrete
    if concrete is not None and signature.name.startswith(_ARITHMETIC):
        concrete = tuple("float" if _FLOATS.fullmatch(text) else text for text in concrete)
    parts = [signature.name, signature.dims, signature.types, signature.strides, concrete]
    if signature.overload is not None or signature.list_types is not None or signature.storage is not None:
        parts += [signature.overload, signature.list_types, signature.storage]
    return blake2b(msgspec.json.encode(parts), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """All selected calls of one signature."""

    signature: OpSignature
    row: int
    """One of them, for what surrounds it."""
    count: int
    recorded: Recorded
    batch: DominantBatch | None = None


def _shared_batch(batch: DominantBatch | None) -> tuple[Assumption, ...]:
    """Says so when the calls of one op worked on several batches: all are replayed on the one with most time."""
    if batch is None or not batch.others:
        return ()
    what = f"that of {100 * batch.share:.0f} % of the recorded time; {batch.others} others are not replayed"
    return (Assumption(argument="batch", what=what),)


def _group(trace: Trace, rows: Rows, select: str, batches: BatchIndex) -> list[_Group]:
    """One group a signature, in order of first appearance."""
    if not len(rows):
        return []
    owner = _selected_owner(trace, rows, select)
    owned = owner >= 0
    device_ns = np.bincount(owner[owned], weights=trace.kernels.dur_ns[owned], minlength=len(trace.ops))
    kernels = _kernels_by_signature(trace, owner)
    signature = trace.ops.signature[rows].astype(np.int64)
    order = np.argsort(signature, kind="stable")
    bounds = np.flatnonzero(np.diff(signature[order])) + 1
    groups: list[_Group] = []
    for part in np.split(rows[order], bounds):
        index = int(trace.ops.signature[part[0]])
        host, on_device = trace.ops.dur_ns[part] / 1e3, device_ns[part] / 1e3
        busy = on_device[on_device > 0]
        recorded = Recorded(
            host_us_total=float(host.sum()),
            host_us_median=float(np.median(host)),
            device_us_total=float(on_device.sum()),
            device_us_median=float(np.median(busy)) if len(busy) else None,
            kernels=kernels.get(index, ()),
        )
        groups.append(
            _Group(
                signature=trace.signatures[index],
                row=int(part[0]),
                count=len(part),
                recorded=recorded,
                batch=batches.dominant(part, on_device),
            )
        )
    groups.sort(key=lambda group: group.row)
    return groups


def _selected_owner(trace: Trace, rows: Rows, select: str) -> Rows:
    """The selected row that each kernel's time counts for, or -1: its owner, or the owner's outermost op for "top"."""
    owner = trace.kernels.owner.astype(np.int64)
    chosen = np.zeros(len(trace.ops) + 1, dtype=bool)
    chosen[rows] = True
    if select in ("top", "leaf"):
        parents = parents_of(trace)
        outside = (owner >= 0) & ~chosen[owner]
        while select == "top" and outside.any():
            owner[outside] = parents[owner[outside]]
            outside = (owner >= 0) & ~chosen[owner]
    return np.where((owner >= 0) & chosen[owner], owner, -1)


def _kernels_by_signature(trace: Trace, owner: Rows) -> dict[int, tuple[RecordedKernel, ...]]:
    owned = np.flatnonzero(owner >= 0)
    signature = trace.ops.signature[owner[owned]].astype(np.int64)
    kinds = _kernel_types(trace)
    key = signature * max(1, len(trace.kernel_names)) + trace.kernels.name[owned]
    unique, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    totals = np.bincount(inverse, weights=trace.kernels.dur_ns[owned], minlength=len(unique)) / 1e3
    made: dict[int, list[RecordedKernel]] = {}
    for which, count, total in zip(unique.tolist(), counts.tolist(), totals.tolist(), strict=True):
        index, name = divmod(which, max(1, len(trace.kernel_names)))
        made.setdefault(index, []).append(
            RecordedKernel(name=trace.kernel_names[name], count=count, total_us=total, type=kinds.get(name))
        )
    return {index: tuple(sorted(found, key=lambda k: -k.total_us)) for index, found in made.items()}


def _kernel_types(trace: Trace) -> dict[int, str]:
    """CANN type by index of a kernel's name, where a kernel table was joined; kernels of one name are of one type."""
    if trace.details is None:
        return {}
    described = np.flatnonzero(trace.details.kind >= 0)
    names, kinds = trace.kernels.name[described].tolist(), trace.details.kind[described].tolist()
    return {name: trace.details.kinds[kind].type for name, kind in zip(names, kinds, strict=True)}
