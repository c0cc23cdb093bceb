# pyright: strict
"""Finds ops with a wrong guess by looking for later calls that read their results.

If the sizes of an op's results occur in no later call of the trace, the guessed argument that determines these sizes
must be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from opreplay.replay.ir.model import Assumption, ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import tensors_of
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.traces.model import OpSignature, Trace

Shape = tuple[int, ...]
_SHAPING = ("int", "int[]", "SymInt", "SymInt[]")
"""Argument types whose values determine result sizes; the flag `_KEEPS` does so, too."""
_KEEPS = "keepdim"
SHOWN = 2


def mark_unread(plan: ReplayPlan, trace: Trace) -> ReplayPlan:
    """Return the plan with an assumption on each op that has a guessed size and whose result sizes no later call reads.

    Ops must have the results that `with_outputs` adds. The last call of a trace is skipped, because no later call can
    read its results.
    """
    suspects = [op for op in plan.ops if op.outputs and _is_guessed(op)]
    if not suspects:
        return plan
    last = _last_rows(trace)
    first = _first_rows(trace, {op.id for op in suspects})
    reads: dict[Shape, int] = {}
    for index, signature in enumerate(trace.signatures):
        for shape in _shapes(signature):
            reads[shape] = max(reads.get(shape, -1), int(last[index]))
    ids = {op.id for op in suspects if _is_unread(op, reads, first.get(op.id, len(trace.ops)), len(trace.ops))}
    return msgspec.structs.replace(plan, ops=tuple(_marked(op) if op.id in ids else op for op in plan.ops))


def _is_guessed(op: ReplayOp) -> bool:
    shaping = {arg.name for arg in op.args if arg.type in _SHAPING or arg.name == _KEEPS}
    if any(arg.mutated for arg in op.args) or not any(note.argument in shaping for note in op.assumptions):
        return False
    input_shapes = {meta.shape for meta in tensors_of(op)}
    return not any(meta.shape in input_shapes for meta in filter(None, op.outputs or ()))


def _is_unread(op: ReplayOp, reads: dict[Shape, int], row: int, rows: int) -> bool:
    output_shapes = [meta.shape for meta in op.outputs or () if meta is not None]
    return row < rows - 1 and bool(output_shapes) and all(reads.get(shape, -1) <= row for shape in output_shapes)


def _marked(op: ReplayOp) -> ReplayOp:
    shapes = [list(meta.shape) for meta in op.outputs or () if meta is not None]
    shown = ", ".join(map(str, shapes[:SHOWN])) + (", ..." if len(shapes) > SHOWN else "")
    what = f"no later op reads results of sizes {shown}, so a guessed value may be wrong"
    return msgspec.structs.replace(op, assumptions=(*op.assumptions, Assumption(argument="*", what=what)))


def _shapes(signature: OpSignature) -> Iterator[Shape]:
    for dims in signature.dims or ():
        whole = [n for n in dims if isinstance(n, int)]
        if len(whole) == len(dims):
            yield tuple(whole)
        else:
            yield from (tuple(n for n in inner if isinstance(n, int)) for inner in dims if isinstance(inner, tuple))


def _last_rows(trace: Trace) -> list[int]:
    """Return the row of each signature's last call; -1 if there is none."""
    last = np.full(len(trace.signatures), -1, np.int64)
    last[trace.ops.signature] = np.arange(len(trace.ops))  # the last write of an index stays
    rows: list[int] = last.tolist()
    return rows


def _first_rows(trace: Trace, ids: set[str]) -> dict[str, int]:
    """Map the id of each of these ops to the row of its first call."""
    first = np.full(len(trace.signatures), -1, np.int64)
    first[trace.ops.signature[::-1]] = np.arange(len(trace.ops))[::-1]
    rows: list[int] = first.tolist()
    first_by_id: dict[str, int] = {}
    for signature, row in zip(trace.signatures, rows, strict=True):
        if row >= 0 and (id_ := signature_id(signature)) in ids:
            first_by_id[id_] = min(row, first_by_id.get(id_, row))
    return first_by_id
