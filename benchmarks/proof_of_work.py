"""Which data-dependent ops of traces get contents that make them work, and whether these add up to the batches told.

    python benchmarks/proof_of_work.py [TRACE ...]

Bars: every data-dependent op has an initializer, and none is idle; query and context tokens of each annotated iteration
equal those that the arguments encode. Without traces, the public ones beside the checkout are read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from opreplay.initializers.amounts import Work, work_text
from opreplay.initializers.base import InitializerError
from opreplay.initializers.registry import Registry
from opreplay.initializers.rules.paged_attention import PagedAttentionInit
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.register import canonical_name
from opreplay.replay.ops.table import counter_of, work_of
from opreplay.replay.ops.work.expected import MAX_ELEMENTS, ExpectedContents, fill_stand_ins, stand_ins
from opreplay.replay.plan.build import build_plan, signature_id
from opreplay.traces import read_trace
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.links.iterations import BatchIndex
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
        return self.name is None or all(said is None or said == encoded for said, encoded in pairs)


def audit_ops(plan: ReplayPlan, registry: Registry, *, seed: int = 0, most: int = MAX_ELEMENTS) -> list[OpAudit]:
    """Every op of the plan whose work its values decide and that can be called.

    Of an op with a tensor of more than `most` whole numbers only the initializer is told.
    """
    ops = [op for op in plan.ops if op.reason is None and counter_of(canonical_name(op.called)) is not None]
    found = [_audit(op, registry, seed, most) for op in ops]
    # A call without mask, lengths or indices is no data-dependent one, whatever its name.
    return [one for one in found if one.initializer is not None or one.work is not None or one.problem is not None]


def _audit(op: ReplayOp, registry: Registry, seed: int, most: int) -> OpAudit:
    try:
        filled = fill_stand_ins(op, registry, seed, limit=most)
    except InitializerError as error:
        return OpAudit(op, None, None, str(error))
    if filled is None:
        rule = registry.find(stand_ins(op, seed, whole=False))
        return OpAudit(op, None if rule is None else rule.name, None, "too large to be made here")
    return OpAudit(op, filled.initializer, work_of(filled.context, filled.lengths), None)


def audit_iterations(trace: Trace, plan: ReplayPlan, registry: Registry, *, seed: int = 0) -> list[IterationAudit]:
    """Each attention op of the plan in each distinct batch that the trace annotates and the op ran in."""
    index = BatchIndex(trace)
    audits: list[IterationAudit] = []
    ops = registry[PagedAttentionInit.name].op_patterns
    attention = [op for op in plan.ops if canonical_name(op.called) in ops and op.args]
    for number, context in enumerate(index.contexts):
        signatures = np.unique(trace.ops.signature[index.of_row == number])
        ran = {signature_id(trace.signatures[int(i)]) for i in signatures}
        annotated = _sum(context.prefill_tokens, context.decode_tokens), _sum(context.prefill_k, context.decode_k)
        inside = [op for op in attention if op.id in ran]
        for op in inside:
            contents = ExpectedContents(registry, seed)(msgspec.structs.replace(op, batch=context))
            encoded = (None, None) if contents is None else (contents.query_tokens, contents.context_tokens)
            audits.append(IterationAudit(context, op.name, annotated, encoded))
        if not inside:
            audits.append(IterationAudit(context, None, annotated, (None, None)))
    return audits


def _sum(prefill: int | None, decode: int | None) -> int | None:
    return None if prefill is None or decode is None else prefill + decode


PUBLIC = Path(__file__).parent.parent.parent / "shared" / "traces"


def main() -> None:
    """Print one line a trace, its offenders and its iterations; exit with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description="Proof of work over traces.")
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--verbose", action="store_true", help="print the work of every op")
    options = parser.parse_args()
    missed = 0
    registry = built_in()
    for path in options.traces or sorted(PUBLIC.glob("*.json.gz")):
        trace = read_trace(path)
        plan = build_plan(trace, select="all")
        ops = audit_ops(plan, registry)
        lacking = [audit for audit in ops if audit.initializer is None]
        idle = [audit for audit in ops if audit.work is not None and (audit.work.idle or audit.work.warnings)]
        counted = sum(audit.work is not None for audit in ops)
        print(
            f"{path.name}: {len(ops)} data-dependent ops, {len(ops) - len(lacking)} with an initializer, "
            f"{counted} counted, {counted - len(idle)} at work"
        )
        for audit in (*lacking, *idle, *(ops if options.verbose else ())):
            said = audit.problem or (work_text(audit.work) if audit.work is not None else "")
            print(f"    {audit.op.name}: {audit.initializer or 'no initializer'} {said}")
        missed += len(lacking) + len(idle)
        for iteration in audit_iterations(trace, plan, registry):
            print(
                f"    iteration {iteration.told} {'=' if iteration.equal else '≠'} {iteration.encoded} "
                f"{iteration.name or 'no attention op inside'}"
            )
            missed += not iteration.equal
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
