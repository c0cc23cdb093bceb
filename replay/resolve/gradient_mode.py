# pyright: strict
"""Decides which ops are replayed with gradients enabled; the executors enable them.

Gradients are enabled if three conditions hold. First, autograd is known to have recorded at least half of the op's
calls. Second, the function called here is composed of other ops before autograd sees it (`CompositeImplicitAutograd`),
or its kernel checks the gradient mode. Third, the function writes to none of its arguments. If the trace does not show
whether autograd recorded the calls, gradients are off, and an assumption says so.

Such ops choose their implementation by the gradient mode. `linear` on a batch folds the batch into rows so that its
backward is a product, too. `embedding_bag` keeps what its backward needs. All other ops do the same work in both modes.
For them, gradients would only add some microseconds of autograd's own time.
"""

from __future__ import annotations

from functools import cache

import msgspec

from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.model import Assumption, ReplayOp
from opreplay.replay.ir.sizes import tensors_of

ASKS_ITSELF = frozenset({"aten::mkldnn_rnn_layer"})
"""Ops with a derivative whose kernel checks the gradient mode itself. With gradients, `mkldnn_rnn_layer` keeps a
workspace for the backward (mkldnn/RNN.cpp).
"""


def with_gradient_mode(op: ReplayOp) -> ReplayOp:
    """Mark an op of a plan if it should run with gradients enabled, and note why; queries torch's dispatcher."""
    with_gradients, assumed = op.recorded.gradient_calls or 0, op.recorded.gradient_calls_assumed
    if not (with_gradients or assumed) or not _takes_gradients(op):
        return op
    if not with_gradients or 2 * with_gradients < op.count:
        return op if not assumed else _with_note(op, _assumed_off(assumed, op.count))
    calls = "" if with_gradients == op.count else f" in {with_gradients:,} of {op.count:,} calls"
    what = f"gradients on, as recorded{calls}; every floating-point argument requires grad"
    return msgspec.structs.replace(_with_note(op, what), gradients=True)


def _with_note(op: ReplayOp, what: str) -> ReplayOp:
    """Return the op with one more assumption about all of its arguments."""
    return msgspec.structs.replace(op, assumptions=(*op.assumptions, Assumption(argument="*", what=what)))


def _assumed_off(calls: int, count: int) -> str:
    """Return a note for an op with `count` calls; autograd may have recorded `calls` of them."""
    of_calls = "" if calls == count else f" for {calls:,} of {count:,} calls"
    return f"gradients assumed off{of_calls}: no later call or backward node shows whether they were on"


def _takes_gradients(op: ReplayOp) -> bool:
    """Check whether an op is a dispatcher op that takes floats, writes to no argument, and depends on the gradient
    mode.
    """
    if op.reason is not None or op.resolved_by not in ("jit", "torch.ops", "import"):
        return False
    if any(arg.mutated for arg in op.args) or not any(aliasing.is_floating(meta.dtype) for meta in tensors_of(op)):
        return False
    return depends_on_gradients(op.called, op.overload or "")


@cache
def depends_on_gradients(name: str, overload: str) -> bool:
    """Check whether an overload behaves differently with gradients enabled."""
    if name in ASKS_ITSELF:
        return True
    import torch

    full = f"{name}.{overload}" if overload else name
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")  # pyright: ignore
    except RuntimeError:  # torch knows no such op
        return False
