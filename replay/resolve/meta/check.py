# pyright: strict
"""Dry run of ops on meta tensors: checks that each call is accepted and that its results match the recording.

Nothing is computed, and no memory for tensors is allocated. This module compares the results; `outputs` makes the
calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import msgspec

from opreplay.replay.ir.model import Reason, ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.verdicts import MetaCheck
from opreplay.replay.resolve.meta import forked
from opreplay.replay.resolve.meta.outputs import MetaCall, call_on_meta, is_torch_out
from opreplay.replay.resolve.meta.refusals import verdict_on
from opreplay.replay.resolve.policy import Policy
from opreplay.traces.model import TensorMeta

_SCRATCH: dict[str, frozenset[int]] = {
    **dict.fromkeys(("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"), frozenset({1, 2, 3})),
    "mkldnn_rnn_layer": frozenset({3}),
}
"""Results that are not compared, as ATen op → their indices.

They hold data for the backward, and their size depends on the device's kernel. Results with quantized dtypes are not
compared either, because meta tensors do not have these dtypes.
"""
_CHECK = msgspec.msgpack.Decoder(MetaCheck)


def check_plan(plan: ReplayPlan, *, policy: Policy | None = None) -> dict[str, MetaCheck]:
    """Check each resolved op of the plan on meta tensors; return verdicts by op id. Ops with a reason are left out."""
    chosen = Policy() if policy is None else policy
    ops = [op for op in plan.ops if op.reason is None and op.resolved_by is not None]
    return {op.id: check for op, check in zip(ops, check_ops(ops, chosen), strict=True)}


def check_ops(ops: Sequence[ReplayOp], policy: Policy) -> list[MetaCheck]:
    """Check each op on meta tensors. The calls are isolated, so that an op that hangs or crashes does not affect
    others.
    """
    answers = forked.each(_encoded_check, ops, policy)
    return [
        MetaCheck(status="failed", detail=str(answer)) if isinstance(answer, Reason) else _CHECK.decode(answer)
        for answer in answers
    ]


@forked.function
def _encoded_check(op: ReplayOp, policy: Policy) -> bytes:
    return msgspec.msgpack.encode(check_op(op, policy))


def check_op(op: ReplayOp, policy: Policy) -> MetaCheck:
    """Call one op on meta tensors and compare its results with the trace.

    Does not raise, but may hang: use `check_ops` for ops of unknown origin.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call = call_on_meta(op, policy)
        except NotReplayable as stopped:
            # Only users' executors and functions lack a fake; what is missing is then not in the trace.
            lacks_fake = op.resolved_by in ("executor", "python function") and stopped.reason.kind == "metadata missing"
            return MetaCheck(status="no meta kernel" if lacks_fake else "failed", detail=str(stopped.reason))
        except Exception as error:
            return verdict_on(op, error)
    resized = _resized(op, call)
    if resized is not None:
        return MetaCheck(status="differs", detail=resized)
    if op.recorded_outputs is None:
        return MetaCheck(status="ok")
    return compare(call.results, _comparable(op, op.recorded_outputs))


def _comparable(op: ReplayOp, recorded: Sequence[TensorMeta | None]) -> list[TensorMeta | None]:
    """Return the recorded results, with None for those that differ on meta tensors: results in `_SCRATCH` and results
    with quantized dtypes.
    """
    scratch = _SCRATCH.get(op.name.removeprefix("aten::"), frozenset())
    return [
        None if meta is None or number in scratch or meta.dtype.startswith("q") else meta
        for number, meta in enumerate(recorded)
    ]


def compare(results: Sequence[TensorMeta | None], recorded: Sequence[TensorMeta | None]) -> MetaCheck:
    """Compare shapes and dtypes of results with the recorded ones.

    None stands for a result that is not a tensor. Only results that are tensors in both lists are compared. There are
    two reasons: an undefined gradient is not recorded, and a portable equivalent may return fewer results than the
    vendor's op.
    """
    if len(results) != len(recorded):
        results, recorded = [m for m in results if m is not None], [m for m in recorded if m is not None]
    compared = 0
    for index, (ours, theirs) in enumerate(zip(results, recorded, strict=False)):
        if ours is None or theirs is None:
            continue
        compared += 1
        if ours.shape != theirs.shape or (theirs.dtype and ours.dtype != theirs.dtype):
            detail = f"result {index} is {_text(ours)}, but {_text(theirs)} was recorded"
            return MetaCheck(status="differs", detail=detail, results_compared=compared)
    return MetaCheck(status="ok", results_compared=compared)


def _resized(op: ReplayOp, call: MetaCall) -> str | None:
    """Return an error text if the required size of an `out=` argument differs from the recorded one.

    An empty argument is no error, because it may grow.
    """
    for arg in op.args:
        meta = arg.tensors[0] if arg.tensors and is_torch_out(op, arg) else None
        if meta is None or 0 in meta.shape:
            continue
        shape = tuple(call.arguments[arg.name].shape)
        if shape != meta.shape:
            return f"argument {arg.name} needs size {list(shape)}, but {_text(meta)} was recorded"
    return None


def _text(meta: TensorMeta) -> str:
    return f"{meta.dtype}[{','.join(map(str, meta.shape))}]"
