# pyright: strict
"""Makes a plan from a trace: finds its unique ops, resolves each once, and adds the order of a step.

This module determines only the order of these stages; `recorded`, `resolver` and `passes` implement them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan import passes
from opreplay.replay.plan.recorded.groups import owner_among, signature_id, signature_of
from opreplay.replay.plan.recorded.ops import recorded_ops
from opreplay.replay.plan.selection import OpFilter
from opreplay.replay.plan.step.beside import RequestedCollective
from opreplay.replay.plan.step.order import recorded_sequence
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.resolver import Resolver
from opreplay.traces.model import Trace

_NO_FILTER = OpFilter()
_DEFAULT_POLICY = Policy()


def build_plan(
    trace: Trace,
    *,
    select: str = "owner",
    filters: OpFilter = _NO_FILTER,
    policy: Policy = _DEFAULT_POLICY,
    device: str = "cpu",
    in_order: bool = False,
    collectives: Sequence[RequestedCollective] = (),
) -> ReplayPlan:
    """Return a plan with the unique ops of a trace, heaviest first.

    Each op is resolved for `device`; if that fails, it holds the reason. `select`: "owner" (ops with device time; the
    outermost ops if there are none), "leaf", "top" or "all". `in_order` adds the calls of one recorded step in order,
    with the given `collectives`. Imports torch; imports a vendor library only if `policy` allows it. Raises UsageError
    for an unknown selection and for a phase without iterations, TooLarge if the filters keep more than `MOST_OPS` ops.
    """
    recorded = recorded_ops(trace, select=select, filters=filters)
    resolver = Resolver(trace, policy, device)
    ops = tuple(resolver.resolve(op, signature_of(trace, row), row) for row, op in recorded.ops)
    plan = passes.run(msgspec.structs.replace(recorded.shell, ops=ops))
    if not in_order:
        return plan
    sequence = recorded_sequence(
        trace,
        recorded.rows,
        owner_among(trace, recorded.rows, select),
        list(map(signature_id, trace.signatures)),
        {op.id for op in ops},
        select=select,
        phase=filters.phase,
        collectives=collectives,
    )
    return msgspec.structs.replace(plan, sequence=sequence)
