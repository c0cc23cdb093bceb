# pyright: strict
"""Finds the ops that a trace records inside each op of a plan. This needs the trace, and it is done only on request."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from opreplay.replay.ir.call_tree import names_below
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.traces.links.parents import innermost_parent
from opreplay.traces.model import Trace

MAX_BELOW = 512
"""Maximum number of nested ops of one op. Torch ops have far fewer, but a malicious trace could nest a million."""


def with_child_ops(plan: ReplayPlan, trace: Trace) -> ReplayPlan:
    """Return the plan with `recorded.children` (nested ops) and `recorded.below` set for each op, from its first call.

    Both are () if no op is nested. Both stay None for an op with more than `MAX_BELOW` nested ops.
    """
    signature = trace.ops.signature
    used, first = np.unique(signature, return_index=True)
    pairs: Iterable[tuple[int, int]] = zip(used.tolist(), first.tolist(), strict=True)
    rows = {signature_id(trace.signatures[index]): row for index, row in pairs}
    parents = innermost_parent(trace.ops)
    order = np.lexsort((trace.ops.start_ns, parents))
    sorted_parents = parents[order]

    def children_of(row: int) -> list[int]:
        begin, end = np.searchsorted(sorted_parents, (row, row + 1)).tolist()
        return order[begin : min(end, begin + MAX_BELOW + 1)].tolist()

    def name_of(row: int) -> str:
        return trace.signatures[int(signature[row])].name

    ops: list[ReplayOp] = []
    for op in plan.ops:
        row = rows.get(op.id)
        names = None if row is None else names_below(row, children_of, name_of, limit=MAX_BELOW)
        if names is not None:
            recorded = msgspec.structs.replace(op.recorded, children=names[0], below=names[1])
            op = msgspec.structs.replace(op, recorded=recorded)
        ops.append(op)
    return msgspec.structs.replace(plan, ops=tuple(ops))
