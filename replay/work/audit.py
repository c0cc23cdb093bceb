"""Whether the data-dependent ops of a plan get contents that make them work, and those of the iterations' batches.

Everything is made on stand-ins, see `expected`; nothing is executed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from opreplay.initializers.base import InitializerError
from opreplay.initializers.paged_attention import PagedAttentionInit
from opreplay.initializers.registry import Registry
from opreplay.replay.build import signature_id
from opreplay.replay.ir import ReplayOp, ReplayPlan
from opreplay.replay.reference.registry import canonical_name
from opreplay.replay.work.amounts import Work
from opreplay.replay.work.expected import MAX_ELEMENTS, ExpectedContents, fill_stand_ins, stand_ins
from opreplay.replay.work.registry import counted_ops, work_of
from opreplay.traces.annotations import BatchContext
from opreplay.traces.iterations import BatchIndex
from opreplay.traces.model import Trace


class OpAudit(NamedTuple):
    """One data-dependent op."""

    op: ReplayOp
    initializer: str | None
    work: Work | None
    """None where this call has no argument that its work depends on, or where the arguments cannot be made."""
    problem: str | None
    """Why the arguments cannot be made."""


class IterationAudit(NamedTuple):
    """One attention op in one distinct batch of a trace; tokens of all sequences together, None where not told."""

    context: BatchContext
    name: str | None
    """None where no attention op ran in any iteration of this batch."""
    told: tuple[int | None, int | None]
    """(query tokens, context tokens) of the annotation."""
    encoded: tuple[int | None, int | None]
    """The same of the arguments."""

    @property
    def equal(self) -> bool:
        """Whether the arguments encode what the annotation tells, as far as it does."""
        pairs = zip(self.told, self.encoded, strict=True)
        return self.name is None or all(said is None or said == held for said, held in pairs)


def audit_ops(plan: ReplayPlan, registry: Registry, *, seed: int = 0, most: int = MAX_ELEMENTS) -> list[OpAudit]:
    """Every op of the plan whose work its values decide and that can be called.

    Of an op with a tensor of more than `most` whole numbers only the initializer is told.
    """
    known = set(counted_ops())
    found = [
        _audit(op, registry, seed, most) for op in plan.ops if op.reason is None and canonical_name(op.called) in known
    ]
    # A call without mask, lengths or indices is no data-dependent one, whatever its name.
    return [one for one in found if one.initializer is not None or one.work is not None or one.problem is not None]


def _audit(op: ReplayOp, registry: Registry, seed: int, most: int) -> OpAudit:
    try:
        filled = fill_stand_ins(op, registry, seed, most=most)
    except InitializerError as error:
        return OpAudit(op, None, None, str(error))
    if filled is None:
        rule = registry.find(stand_ins(op, seed, whole=False))
        return OpAudit(op, None if rule is None else rule.name, None, "too large to be made here")
    return OpAudit(op, filled.initializer, work_of(filled.context, filled.lengths), None)


def audit_iterations(trace: Trace, plan: ReplayPlan, registry: Registry, *, seed: int = 0) -> list[IterationAudit]:
    """Each attention op of the plan in each distinct batch that the trace annotates and the op ran in."""
    index = BatchIndex(trace)
    found: list[IterationAudit] = []
    attention = [op for op in plan.ops if canonical_name(op.called) in PagedAttentionInit.op_patterns and op.args]
    for number, context in enumerate(index.contexts):
        signatures = np.unique(trace.ops.signature[index.of_row == number])
        ran = {signature_id(trace.signatures[int(i)]) for i in signatures}
        told = _sum(context.prefill_tokens, context.decode_tokens), _sum(context.prefill_k, context.decode_k)
        inside = [op for op in attention if op.id in ran]
        for op in inside:
            made = ExpectedContents(registry, seed)(msgspec.structs.replace(op, batch=context))
            encoded = (None, None) if made is None else (made.query_tokens, made.context_tokens)
            found.append(IterationAudit(context, op.name, told, encoded))
        if not inside:
            found.append(IterationAudit(context, None, told, (None, None)))
    return found


def _sum(prefill: int | None, decode: int | None) -> int | None:
    return None if prefill is None or decode is None else prefill + decode
