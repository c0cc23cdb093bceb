# pyright: strict
"""Makes a plan from a trace: groups calls into unique ops, sums recorded times, and resolves each op once.

Owns the order of the steps; `select`, `recorded`, `resolver` and `passes` implement them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from opreplay.replay.ir.model import Assumption, ReplayOp, ReplayPlan
from opreplay.replay.ir.recorded_call import recorded_results
from opreplay.replay.ops.recorded.roofline import works_of
from opreplay.replay.ops.recorded.sizes import CallWork, work_of
from opreplay.replay.plan import passes
from opreplay.replay.plan.collectives.arguments import ranks_of
from opreplay.replay.plan.recorded.groups import (
    CallGroup,
    Rows,
    heaviest_rows,
    owner_among,
    recorded_groups,
    signature_id,
)
from opreplay.replay.plan.select import keep_heaviest, no_such_phase, outermost_us, selected_rows
from opreplay.replay.plan.selection import OpFilter
from opreplay.replay.plan.step.beside import AskedFor
from opreplay.replay.plan.step.order import recorded_sequence
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.resolver import Resolver
from opreplay.traces.errors import TooLarge
from opreplay.traces.links.iterations import BatchIndex, DominantBatch
from opreplay.traces.model import Trace
from opreplay.traces.names import file_name

_NO_FILTER = OpFilter()
_DEFAULT_POLICY = Policy()
MOST_OPS = 100_000
"""Most unique ops in a plan; a real model has a few hundred."""
_HINT_OPS = "Take a part of them: --top N, --set min_share=SHARE or --include PATTERN."


def build_plan(
    trace: Trace,
    *,
    select: str = "owner",
    filters: OpFilter = _NO_FILTER,
    policy: Policy = _DEFAULT_POLICY,
    device: str = "cpu",
    in_order: bool = False,
    collectives: Sequence[AskedFor] = (),
) -> ReplayPlan:
    """Return the unique ops of a trace, heaviest first, each resolved for `device` or with the reason why not.

    `select`: "owner" (ops that own device time; the outermost ops if none does), "leaf", "top" or "all". With
    `in_order`, the plan also holds the calls of one recorded step in order, with the given `collectives`. Imports
    torch, and a vendor library only if `policy` allows it. Raises UsageError for an unknown selection and for a phase
    without iterations; TooLarge if the filters leave more than `MOST_OPS` ops.
    """
    rows = selected_rows(trace, select)
    batches = BatchIndex(trace)
    if filters.phase is not None:
        rows = batches.in_phase(rows, filters.phase)
        if not len(rows):
            raise no_such_phase(batches.contexts, filters.phase)
    # A leaf is a part of a call: what its time is a share of is that of the outermost calls.
    around = _outermost_rows(trace, batches, filters.phase) if select == "leaf" else rows
    empty = _plan_without_ops(trace, around, select, filters)
    total_us = empty.device_us_total or empty.host_us_total
    heaviest = heaviest_rows(trace, rows, select, filters, total_us, on_device=empty.device_us_total > 0)
    if not filters.ops:
        _refuse_too_many(trace, len(np.unique(trace.ops.signature[heaviest])))
    groups = recorded_groups(trace, heaviest, select, batches)
    works = {trace.signatures[index]: work for index, work in works_of(trace).items()}
    grouped_ops = [(group, _unresolved(group, works.get(group.signature), trace.info.world_size)) for group in groups]
    weight = passes.weight_of(empty)
    grouped_ops.sort(key=lambda pair: -weight(pair[1]))
    chosen = keep_heaviest([op for _, op in grouped_ops], filters, total_us, weight)
    _refuse_too_many(trace, len(chosen))
    ids = {op.id for op in chosen}
    resolver = Resolver(trace, policy, device)
    ops = tuple(resolver.resolve(op, group.signature, group.row) for group, op in grouped_ops if op.id in ids)
    plan = passes.run(msgspec.structs.replace(empty, ops=ops))
    if not in_order:
        return plan
    sequence = recorded_sequence(
        trace,
        rows,
        owner_among(trace, rows, select),
        list(map(signature_id, trace.signatures)),
        ids,
        select=select,
        phase=filters.phase,
        collectives=collectives,
    )
    return msgspec.structs.replace(plan, sequence=sequence)


def _outermost_rows(trace: Trace, batches: BatchIndex, phase: str | None) -> Rows:
    """Return the calls outside any other op, in all iterations or only in those of `phase`."""
    rows = selected_rows(trace, "top")
    return rows if phase is None else batches.in_phase(rows, phase)


def _plan_without_ops(trace: Trace, rows: Rows, select: str, filters: OpFilter) -> ReplayPlan:
    """Return the plan without ops: totals, the host time of these rows, and facts about the trace."""
    unowned = trace.kernels.owner < 0
    # Where no op owns any of the device's time, ops can only be weighed by the host's.
    on_device = len(trace.kernels) and not (unowned.all() and len(trace.ops))
    device_us = float(trace.kernels.dur_ns.sum(dtype=np.int64)) / 1e3 if on_device else 0.0
    host_us = float(trace.ops.dur_ns[rows].sum(dtype=np.int64)) / 1e3
    if select != "all" and filters.phase is None and not device_us:
        # What labels spend outside of ops is time of the model as well: generated code, a compiler's wrappers.
        host_us = max(host_us, outermost_us(trace))
    return ReplayPlan(
        source=file_name(trace.info.path),
        selection=select,
        device=next(iter(trace.info.device_names), None),
        device_us_total=device_us,
        host_us_total=host_us,
        ops=(),
        unowned_device_us=float(trace.kernels.dur_ns[unowned].sum(dtype=np.int64)) / 1e3,
        losses=trace.info.report.losses,
    )


def _unresolved(group: CallGroup, recorded: tuple[int, CallWork] | None, world_size: int | None) -> ReplayOp:
    """Return the unresolved op of a group of calls; `recorded`: number of calls with device time, and their work."""
    calls, work = recorded or (1, work_of(group.signature))
    return ReplayOp(
        id=signature_id(group.signature),
        name=group.signature.name,
        count=group.count,
        recorded=group.recorded,
        recorded_outputs=recorded_results(group.signature),
        batch=group.batch and group.batch.context,
        assumptions=_shared_batch(group.batch) + (COUNTER if group.on_host else ()),
        on_host=group.on_host,
        ranks=ranks_of(group.signature, world_size),
        flops=None if work.flops is None else round(work.flops / calls),
        moved_bytes=None if work.bytes is None else round(work.bytes / calls),
        work_dtype=work.dtype,
        work_unknown=work.why,
        work_assumed=work.assumed,
    )


def _refuse_too_many(trace: Trace, ops: int) -> None:
    if ops > MOST_OPS:
        raise TooLarge(
            f"{file_name(trace.info.path)} has {ops:,} different ops; a plan resolves at most {MOST_OPS:,}",
            hint=_HINT_OPS,
        )


COUNTER = (Assumption(argument="device", what="a step counter of an optimizer, which a device leaves to the host"),)


def _shared_batch(batch: DominantBatch | None) -> tuple[Assumption, ...]:
    """Return a note if the calls of one op had several batches: all are replayed with the batch that took most time."""
    if batch is None or not batch.others:
        return ()
    what = f"that of {100 * batch.share:.0f} % of the recorded time; {batch.others} others are not replayed"
    return (Assumption(argument="batch", what=what),)
