"""What a trace says of the ops right below each op of a plan; a pass that needs the trace, run only when asked for."""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.build import signature_id
from opreplay.traces.links.parents import parents_of
from opreplay.traces.model import Trace

MAX_CHILDREN = 64
"""Of one op: more are never written out in one of torch, and a hostile trace could nest a million."""


def with_child_ops(plan: ReplayPlan, trace: Trace) -> ReplayPlan:
    """The plan with `recorded.children` of each op, taken from its first call; () for an op without any.

    Stays None for an op with more than `MAX_CHILDREN`.
    """
    signature = trace.ops.signature
    used, first = np.unique(signature, return_index=True)
    pairs = zip(used.tolist(), first.tolist(), strict=True)
    rows = {signature_id(trace.signatures[index]): row for index, row in pairs}
    wanted = np.array(sorted(rows[op.id] for op in plan.ops if op.id in rows), dtype=np.int64)
    parents = parents_of(trace)
    below: dict[int, list[int]] = {row: [] for row in wanted.tolist()}
    for child in np.flatnonzero(np.isin(parents, wanted)).tolist():
        below[int(parents[child])].append(child)
    ops = []
    for op in plan.ops:
        children = below.get(rows.get(op.id, -1))
        if children is not None and len(children) <= MAX_CHILDREN:
            children.sort(key=lambda row: int(trace.ops.start_ns[row]))
            names = tuple(trace.signatures[int(signature[row])].name for row in children)
            op = msgspec.structs.replace(op, recorded=msgspec.structs.replace(op.recorded, children=names))
        ops.append(op)
    return msgspec.structs.replace(plan, ops=tuple(ops))
