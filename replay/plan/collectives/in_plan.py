# pyright: strict
"""A plan with one op for each distinct collective of its trace, where it had names that one process cannot call."""

from __future__ import annotations

import statistics
from collections import defaultdict
from hashlib import blake2b
from pathlib import PurePath

import msgspec

from opreplay.replay.collectives.mapping import TooFewRanks, mapped
from opreplay.replay.collectives.model import Collective
from opreplay.replay.collectives.names import kind_of
from opreplay.replay.ir.model import (
    Assumption,
    Reason,
    Recorded,
    RecordedKernel,
    RecordedSequence,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
)
from opreplay.replay.plan.collectives.recorded import Call, calls_of_comms, collective_calls, same_work
from opreplay.replay.plan.collectives.told import PARAMETERS
from opreplay.replay.plan.passes import weight_of
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.replay.plan.select import OpFilter, keep_heaviest, keeps_name
from opreplay.traces.dialects.param_comms import CommsTrace
from opreplay.traces.model import TensorMeta, Trace


def with_collectives(plan: ReplayPlan, trace: Trace, filters: OpFilter) -> ReplayPlan:
    """The plan with every collective of a trace that was read with its activity, whatever was selected.

    Ops of the plan that are part of one are left out: names without arguments stand for many collectives. Filters by
    name, share and number apply to all ops together; the plan was made without the latter two.
    """
    calls = [call for call in collective_calls(trace) if _kept(call, filters)]
    parts = {name for call in calls for name in call.names} | {PARAMETERS}
    others = [_beside(op) for op in plan.ops if op.name not in parts or not _is_communication(op)]
    weight = weight_of(plan)
    ops = sorted([*others, *collective_ops(calls)], key=lambda op: (-weight(op), op.id))
    ops = keep_heaviest(ops, filters, plan.device_us_total or plan.host_us_total, weight)
    sequence = None if plan.sequence is None else _without(plan.sequence, {op.id for op in ops})
    if plan.device_us_total > 0:
        return msgspec.structs.replace(plan, ops=tuple(ops), sequence=sequence)
    own_us = sum(op.recorded.host_us_total for op in plan.ops) - sum(op.recorded.host_us_total for op in others)
    host_us = plan.host_us_total - own_us + sum(call.host_us for call in calls)
    return msgspec.structs.replace(plan, ops=tuple(ops), sequence=sequence, host_us_total=max(host_us, 0.0))


NO_SIZES = Reason("collective", "this plan does not tell its sizes: make it with `opreplay plan --ranks N`")
"""Of collectives in a plan file that was made without them."""


def naming_collectives(plan: ReplayPlan, trace: Trace | ReplayPlan) -> ReplayPlan:
    """The plan with what its own ops say of collectives, each in its place among the others; a given plan as it is.

    An op that stands for several, as a name without arguments does, says none.
    """
    if isinstance(trace, ReplayPlan):
        return plan
    found: defaultdict[str, set[Collective]] = defaultdict(set)
    first: dict[str, Collective] = {}
    for call in collective_calls(trace):
        if call.collective is None:
            continue
        for row in call.rows:
            id_ = signature_id(trace.signatures[int(trace.ops.signature[row])])
            found[id_].add(same_work(call.collective))
            first.setdefault(id_, call.collective)
    alone = {id_: one for id_, one in first.items() if len(found[id_]) == 1}
    ops = tuple(msgspec.structs.replace(op, collective=alone.get(op.id)) for op in plan.ops)
    return msgspec.structs.replace(plan, ops=ops)


BESIDE = Reason("label, not an op", "waits for a collective, or sets one up: moves nothing itself")


def _beside(op: ReplayOp) -> ReplayOp:
    """An op that is no collective, with a reason that does not call it one."""
    moves_nothing = op.reason == Reason("collective") and kind_of(op.name) is None
    return msgspec.structs.replace(op, reason=BESIDE) if moves_nothing else op


def on_ranks(plan: ReplayPlan, ranks: int | None) -> ReplayPlan:
    """The plan where `ranks` are there to replay its collectives; None where one process is alone."""
    return msgspec.structs.replace(plan, ops=tuple(_on_ranks(op, ranks) for op in plan.ops))


def _on_ranks(op: ReplayOp, ranks: int | None) -> ReplayOp:
    if op.collective is None:
        return op
    reason: Reason | None = Reason("collective")
    if ranks is not None:
        try:
            mapped(op.collective, ranks)
            reason = None
        except TooFewRanks as error:
            reason = Reason("collective", f"{error}: --ranks 2")
    return msgspec.structs.replace(op, reason=reason)


def with_sizes_missing(plan: ReplayPlan) -> ReplayPlan:
    """A plan from a file, with what its collectives lack where it was made without them."""
    return msgspec.structs.replace(
        plan,
        ops=tuple(
            msgspec.structs.replace(op, reason=NO_SIZES)
            if op.collective is None and op.reason == Reason("collective")
            else op
            for op in plan.ops
        ),
    )


def plan_of_comms(found: CommsTrace) -> ReplayPlan:
    """The plan of PARAM's list of collectives, which holds nothing else."""
    ops = collective_ops(calls_of_comms(found))
    ops.sort(key=lambda op: (-op.recorded.host_us_total, op.id))
    return ReplayPlan(
        source=PurePath(found.path).name,
        selection="owner",
        device=None,
        device_us_total=0.0,
        host_us_total=sum(op.recorded.host_us_total for op in ops),
        ops=tuple(ops),
    )


def _is_communication(op: ReplayOp) -> bool:
    return op.name == PARAMETERS or (op.reason is not None and op.reason.kind == "collective")


def _kept(call: Call, filters: OpFilter) -> bool:
    included = OpFilter(include=filters.include)
    excluded = OpFilter(exclude=filters.exclude)
    return any(keeps_name(included, name) for name in call.names) and all(
        keeps_name(excluded, name) for name in call.names
    )


def collective_ops(calls: list[Call]) -> list[ReplayOp]:
    """One op for each distinct collective, with what was recorded of all its calls."""
    groups: defaultdict[tuple[str, Collective | None, str], list[Call]] = defaultdict(list)
    for call in calls:
        one = None if call.collective is None else same_work(call.collective)
        groups[call.name, one, call.lacks].append(call)
    return [_op(name, one, lacks, members) for (name, one, lacks), members in groups.items()]


def _op(name: str, one: Collective | None, lacks: str, calls: list[Call]) -> ReplayOp:
    host, device = [call.host_us for call in calls], [call.device_us for call in calls if call.device_us > 0]
    recorded = Recorded(
        host_us_total=sum(host),
        host_us_median=statistics.median(host),
        device_us_total=sum(device),
        device_us_median=statistics.median(device) if device else None,
        kernels=_kernels(calls),
    )
    digest = blake2b(msgspec.json.encode([name, one, lacks]), digest_size=6).hexdigest()
    if one is None:
        reason = Reason("metadata missing", f"the trace does not say {lacks}")
        return ReplayOp(id=digest, name=name, count=len(calls), recorded=recorded, reason=reason)
    first = calls[0]
    return op_of(
        one,
        name=name,
        id_=digest,
        count=len(calls),
        recorded=recorded,
        assumptions=tuple(_assumption(text) for text in first.assumed),
    )


def op_of(
    one: Collective,
    *,
    name: str,
    id_: str,
    count: int,
    recorded: Recorded,
    assumptions: tuple[Assumption, ...] = (),
) -> ReplayOp:
    """An op of a plan that is a collective: not to be replayed by one process, see `on_ranks`."""
    sizes = {"input": one.in_elements, "output": one.out_elements} if one.kind != "barrier" else {}
    if one.in_elements == one.out_elements:
        sizes.pop("output", None)
    return ReplayOp(
        id=id_,
        name=name,
        count=count,
        recorded=recorded,
        resolved_by="process group",
        args=tuple(
            ReplayArg(name=side, type="Tensor", tensors=(TensorMeta(shape=(n,), dtype=one.dtype),))
            for side, n in sizes.items()
        ),
        outputs=(),
        assumptions=assumptions,
        reason=Reason("collective"),
        ranks=one.group_size,
        collective=one,
    )


def _assumption(text: str) -> Assumption:
    argument, _, what = text.partition(": ")
    return Assumption(argument=argument, what=what)


def _kernels(calls: list[Call]) -> tuple[RecordedKernel, ...]:
    totals: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        for name, us in call.kernels:
            totals[name].append(us)
    made = [RecordedKernel(name=name, count=len(us), total_us=sum(us)) for name, us in totals.items()]
    return tuple(sorted(made, key=lambda kernel: -kernel.total_us))


def _without(sequence: RecordedSequence, known: set[str]) -> RecordedSequence:
    """The sequence without calls of ops that the plan no longer has: collectives are no part of the compute stream."""
    kept = [i for i, which in enumerate(sequence.calls) if sequence.ids[which] in known]
    if len(kept) == len(sequence.calls):
        return sequence
    ids = tuple(id_ for id_ in sequence.ids if id_ in known)
    place = {id_: i for i, id_ in enumerate(ids)}
    return msgspec.structs.replace(
        sequence,
        ids=ids,
        calls=tuple(place[sequence.ids[sequence.calls[i]]] for i in kept),
        host_us=tuple(sequence.host_us[i] for i in kept),
        device_us=tuple(sequence.device_us[i] for i in kept) if sequence.device_us else (),
        memories=tuple(sequence.memories[i] for i in kept) if sequence.memories else (),
    )
