# pyright: strict
"""Which ops are replayed with gradients on; how that is done is the executors' concern.

The rule: autograd is known to have recorded half or more of the op's calls, what is called here is one that torch
composes of other ops before autograd sees it (`CompositeImplicitAutograd`), or whose kernel asks for the mode
itself, and it writes to none of its arguments. Where the trace does not tell, gradients are off, and an assumption says
so. Such an op chooses its way by gradients: `linear` of a batch folds the batch into rows
so that its backward is a product too, `embedding_bag` keeps what its backward needs. All other ops do the same work
either way, and autograd's own time of some microseconds would be all that is added.
"""

from __future__ import annotations

from functools import cache

import msgspec

from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.ir.sizes import tensors_of

ASKS_ITSELF = frozenset({"aten::mkldnn_rnn_layer"})
"""Ops with a derivative whose kernel asks for the mode: it keeps a workspace for the backward (mkldnn/RNN.cpp)."""


def with_gradient_mode(op: ReplayOp) -> ReplayOp:
    """The op of a plan, marked where it is to run with gradients on; asks torch's dispatcher."""
    with_gradients, assumed = op.recorded.gradient_calls or 0, op.recorded.gradient_calls_assumed
    if not (with_gradients or assumed) or not _takes_gradients(op):
        return op
    if not with_gradients or 2 * with_gradients < op.count:
        return op if not assumed else _with_note(op, _assumed_off(assumed, op.count))
    calls = "" if with_gradients == op.count else f" in {with_gradients:,} of {op.count:,} calls"
    what = f"gradients on, as recorded{calls}; every floating argument requires them"
    return msgspec.structs.replace(_with_note(op, what), gradients=True)


def _with_note(op: ReplayOp, what: str) -> ReplayOp:
    """The op with one more assumption about all of its arguments."""
    return msgspec.structs.replace(op, assumptions=(*op.assumptions, Assumption(argument="*", what=what)))


def _assumed_off(calls: int, count: int) -> str:
    """What to say of an op of `count` calls, of which `calls` may have been recorded by autograd."""
    of_calls = "" if calls == count else f" for {calls:,} of {count:,} calls"
    return f"gradients assumed off{of_calls}: neither a later call nor a backward node tells whether they were recorded"


def _takes_gradients(op: ReplayOp) -> bool:
    """Whether it is an op of the dispatcher that takes floats, writes to no argument, and goes by the mode."""
    if op.reason is not None or op.resolved_by not in ("jit", "torch.ops", "import"):
        return False
    if any(arg.mutated for arg in op.args) or not any(aliasing.is_floating(meta.dtype) for meta in tensors_of(op)):
        return False
    return depends_on_gradients(op.called, op.overload or "")


@cache
def depends_on_gradients(name: str, overload: str) -> bool:
    """Whether an overload takes another way with gradients on."""
    if name in ASKS_ITSELF:
        return True
    import torch

    full = f"{name}.{overload}" if overload else name
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")  # pyright: ignore
    except RuntimeError:  # torch knows no such op
        return False
