# pyright: strict
"""Adds one op to a plan for each distinct collective of the trace. These ops replace names that one process cannot
call.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np

from opreplay.replay.collectives.mapping import TooFewRanks, map_collective
from opreplay.replay.collectives.model import Collective
from opreplay.replay.ir.model import (
    Assumption,
    Reason,
    Recorded,
    RecordedKernel,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
)
from opreplay.replay.plan.collectives.arguments import PARAMETERS
from opreplay.replay.plan.collectives.recorded import Call, calls_of_comms, collective_calls, same_work
from opreplay.replay.plan.passes import weight_of
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.replay.plan.select import keep_heaviest, keeps_name
from opreplay.replay.plan.selection import OpFilter
from opreplay.replay.plan.step.beside import RequestedCollective, without_calls
from opreplay.traces.collectives.names import kind_of
from opreplay.traces.collectives.tensors import tensors_of
from opreplay.traces.dialects.param_comms import CommsTrace
from opreplay.traces.model import TensorMeta, Trace
from opreplay.traces.names import file_name

WAIT, FUNCTIONAL = "c10d_functional::wait_tensor", "c10d_functional::"
"""`WAIT` is the suffix of the names of ops that wait for a functional collective. `FUNCTIONAL` occurs in the names of
all functional collectives.
"""


def chosen_calls(trace: Trace, filters: OpFilter) -> list[Call]:
    """Return the collectives of a trace whose names the filters keep. The trace must have been read with `activity`."""
    return [call for call in collective_calls(trace) if _passes(call, filters)]


def requested_collectives(trace: Trace, calls: Sequence[Call]) -> list[RequestedCollective]:
    """Return each collective whose request time is recorded, with the times of its request, end and wait."""
    waits = _waits(trace, calls)
    has_device = bool((trace.kernels.owner >= 0).any())
    out: list[RequestedCollective] = []
    for at, call in enumerate(calls):
        if call.asked_ns < 0:
            continue
        host_us = float(trace.ops.dur_ns[call.rows[0]]) / 1e3 if call.rows else 0.0
        out.append(
            RequestedCollective(
                id=_id_of(_key(call)),
                asked_ns=call.asked_ns,
                ended_ns=call.ended_ns,
                on_device=bool(call.kernels),
                blocking=call.collective is not None and call.collective.asynchronous is False,
                waited_ns=waits.get(at),
                us=call.device_us or call.host_us,
                op_us=call.device_us if has_device else host_us,
            )
        )
    return out


def _waits(trace: Trace, calls: Sequence[Call]) -> dict[int, int]:
    """Map the position of each functional collective in `calls` to the start (ns) of its `wait_tensor`.

    This is the next `wait_tensor` whose tensor has as many elements as the collective's output.
    """
    if not len(trace.ops):
        return {}
    waits = np.array([signature.name.endswith(WAIT) for signature in trace.signatures] or [False])
    rows = np.flatnonzero(waits[trace.ops.signature])
    functional = sorted(
        (at for at, call in enumerate(calls) if call.collective and any(FUNCTIONAL in name for name in call.names)),
        key=lambda at: calls[at].asked_ns,
    )
    waited_ns: dict[int, int] = {}
    for row in rows[np.argsort(trace.ops.start_ns[rows], kind="stable")].tolist():
        begun = int(trace.ops.start_ns[row])
        sizes = {sum(n for n, _ in entry) for entry in tensors_of(trace.signatures[int(trace.ops.signature[row])])}
        for at in functional:
            collective = calls[at].collective
            if collective is None or at in waited_ns or calls[at].asked_ns > begun:
                continue
            if collective.out_elements in sizes:
                waited_ns[at] = begun
                break
    return waited_ns


def _host_us(ops: Iterable[ReplayOp]) -> float:
    return sum(op.recorded.host_us_total for op in ops)


def with_collectives(plan: ReplayPlan, calls: Sequence[Call], filters: OpFilter) -> ReplayPlan:
    """Return the plan with these collectives of its trace in place of the ops that launched them.

    An op such as `c10d::allreduce_` is recorded without arguments, so one op of the plan stands for collectives of
    different sizes. Filters by name, share and number are then applied to all ops together. The plan must therefore
    have been made without filters by share and number.
    """
    parts = {name for call in calls for name in call.names} | {PARAMETERS}
    others = [_not_called_collective(op) for op in plan.ops if op.name not in parts or not _is_communication(op)]
    weight = weight_of(plan)
    ops = sorted([*others, *collective_ops(calls)], key=lambda op: -weight(op))
    ops = keep_heaviest(ops, filters, plan.device_us_total or plan.host_us_total, weight)
    sequence = None if plan.sequence is None else without_calls(plan.sequence, {op.id for op in ops})
    if plan.device_us_total > 0:
        return msgspec.structs.replace(plan, ops=tuple(ops), sequence=sequence)
    host_us = plan.host_us_total - _host_us(plan.ops) + _host_us(others) + sum(call.host_us for call in calls)
    return msgspec.structs.replace(plan, ops=tuple(ops), sequence=sequence, host_us_total=max(host_us, 0.0))


NO_SIZES = Reason("collective", "the plan lacks this collective's sizes: make the plan with `opreplay plan --ranks N`")
"""Reason why the collectives of a plan file that was made without sizes cannot be replayed."""


def naming_collectives(plan: ReplayPlan, trace: Trace | ReplayPlan) -> ReplayPlan:
    """Return the plan with a description added to each op that is a collective.

    An op that covers several different collectives gets no description; an example is a name without arguments. A plan
    that was read from a file is returned unchanged.
    """
    if isinstance(trace, ReplayPlan):
        return plan
    work_by_id: defaultdict[str, set[Collective]] = defaultdict(set)
    first: dict[str, Collective] = {}
    for call in collective_calls(trace):
        if call.collective is None:
            continue
        for row in call.rows:
            id_ = signature_id(trace.signatures[int(trace.ops.signature[row])])
            work_by_id[id_].add(same_work(call.collective))
            first.setdefault(id_, call.collective)
    alone = {id_: collective for id_, collective in first.items() if len(work_by_id[id_]) == 1}
    ops = tuple(msgspec.structs.replace(op, collective=alone.get(op.id)) for op in plan.ops)
    return msgspec.structs.replace(plan, ops=ops)


BESIDE = Reason("label, not an op", "only waits for a collective or initializes one, without moving data")


def _not_called_collective(op: ReplayOp) -> ReplayOp:
    """Return the op. If it only waits for a collective or initializes one, it gets a reason that says so."""
    moves_nothing = op.reason == Reason("collective") and kind_of(op.name) is None
    return msgspec.structs.replace(op, reason=BESIDE) if moves_nothing else op


def on_ranks(plan: ReplayPlan, ranks: int | None) -> ReplayPlan:
    """Return the plan for a replay of its collectives on `ranks` ranks. None means that a single process replays it."""
    return msgspec.structs.replace(plan, ops=tuple(_on_ranks(op, ranks) for op in plan.ops))


def _on_ranks(op: ReplayOp, ranks: int | None) -> ReplayOp:
    if op.collective is None:
        return op
    reason: Reason | None = Reason("collective")
    if ranks is not None:
        try:
            map_collective(op.collective, ranks)
            reason = None
        except TooFewRanks as error:
            reason = Reason("collective", f"{error}: --ranks 2")
    return msgspec.structs.replace(op, reason=reason)


def mark_missing_sizes(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with the reason `NO_SIZES` for collectives without sizes. They come from a plan file made without
    sizes.
    """
    return msgspec.structs.replace(
        plan,
        ops=tuple(
            msgspec.structs.replace(op, reason=NO_SIZES)
            if op.collective is None and op.reason == Reason("collective")
            else op
            for op in plan.ops
        ),
    )


def plan_of_comms(comms: CommsTrace) -> ReplayPlan:
    """Return the plan of a trace in PARAM's format, which contains only collectives."""
    ops = collective_ops(calls_of_comms(comms))
    ops.sort(key=lambda op: -op.recorded.host_us_total)
    return ReplayPlan(
        source=file_name(comms.path),
        selection="owner",
        device=None,
        device_us_total=0.0,
        host_us_total=sum(op.recorded.host_us_total for op in ops),
        ops=tuple(ops),
    )


def _is_communication(op: ReplayOp) -> bool:
    return op.name == PARAMETERS or (op.reason is not None and op.reason.kind == "collective")


def _passes(call: Call, filters: OpFilter) -> bool:
    included = OpFilter(include=filters.include)
    excluded = OpFilter(exclude=filters.exclude)
    return any(keeps_name(included, name) for name in call.names) and all(
        keeps_name(excluded, name) for name in call.names
    )


_Key = tuple[str, Collective | None, str]
"""(name, collective, missing facts): calls with the same key are one op."""


def _key(call: Call) -> _Key:
    return call.name, None if call.collective is None else same_work(call.collective), call.lacks


def _id_of(key: _Key) -> str:
    return blake2b(msgspec.json.encode(list(key)), digest_size=6).hexdigest()


def collective_ops(calls: Sequence[Call]) -> list[ReplayOp]:
    """Return one op for each distinct collective, with the recorded times of all its calls."""
    groups: defaultdict[_Key, list[Call]] = defaultdict(list)
    for call in calls:
        groups[_key(call)].append(call)
    return [_collective_op(key, members) for key, members in groups.items()]


def _collective_op(key: _Key, calls: list[Call]) -> ReplayOp:
    name, collective, lacks = key
    host, device = [call.host_us for call in calls], [call.device_us for call in calls if call.device_us > 0]
    recorded = Recorded(
        host_us_total=sum(host),
        host_us_median=statistics.median(host),
        device_us_total=sum(device),
        device_us_median=statistics.median(device) if device else None,
        kernels=_kernels(calls),
    )
    digest = _id_of(key)
    if collective is None:
        reason = Reason("metadata missing", f"the trace does not record {lacks}")
        return ReplayOp(id=digest, name=name, count=len(calls), recorded=recorded, reason=reason)
    first = calls[0]
    return op_of(
        collective,
        name=name,
        id_=digest,
        count=len(calls),
        recorded=recorded,
        assumptions=tuple(_assumption(text) for text in first.assumed),
    )


def op_of(
    collective: Collective,
    *,
    name: str,
    id_: str,
    count: int,
    recorded: Recorded,
    assumptions: tuple[Assumption, ...] = (),
) -> ReplayOp:
    """Return the plan op for a collective. Its reason says that a single process cannot replay it; `on_ranks` changes
    that.
    """
    sizes = {"input": collective.in_elements, "output": collective.out_elements} if collective.kind != "barrier" else {}
    if collective.in_elements == collective.out_elements:
        sizes.pop("output", None)
    return ReplayOp(
        id=id_,
        name=name,
        count=count,
        recorded=recorded,
        resolved_by="process group",
        args=tuple(
            ReplayArg(name=side, type="Tensor", tensors=(TensorMeta(shape=(n,), dtype=collective.dtype),))
            for side, n in sizes.items()
        ),
        outputs=(),
        assumptions=assumptions,
        reason=Reason("collective"),
        ranks=collective.group_size,
        collective=collective,
    )


def _assumption(text: str) -> Assumption:
    argument, _, what = text.partition(": ")
    return Assumption(argument=argument, what=what)


def _kernels(calls: list[Call]) -> tuple[RecordedKernel, ...]:
    totals: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        for name, us in call.kernels:
            totals[name].append(us)
    kernels = [RecordedKernel(name=name, count=len(us), total_us=sum(us)) for name, us in totals.items()]
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_us))
