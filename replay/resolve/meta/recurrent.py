# pyright: strict
"""Recurrent ops on meta tensors: a composite one takes milliseconds a step, so that only a short sequence is run.

Owns the shortening of the call and the lengthening of its results; knows no torch.
"""

from __future__ import annotations

import msgspec

from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.model import TensorMeta

RECURRENT = frozenset(
    {
        "aten::lstm",
        "aten::gru",
        "aten::rnn_tanh",
        "aten::rnn_relu",
        "aten::quantized_lstm",
        "aten::quantized_gru",
        "aten::_cudnn_rnn",
        "aten::miopen_rnn",
    }
)
"""Ops whose first argument and first result are sequences of one length."""
STEPS = 2
"""Steps that are run: two, so that a step that feeds the next one is among them."""


def shortened(op: ReplayOp) -> ReplayOp:
    """The op on `STEPS` steps where it is recurrent and longer than that, else the op itself."""
    dim = _sequence_dim(op)
    meta = op.args[0].tensors[0] if dim is not None else None
    if dim is None or meta is None or meta.shape[dim] <= STEPS:
        return op
    first = msgspec.structs.replace(op.args[0], tensors=(_resized(meta, dim, STEPS),))
    return msgspec.structs.replace(op, args=(first, *op.args[1:]))


def lengthened(op: ReplayOp, results: tuple[TensorMeta | None, ...]) -> tuple[TensorMeta | None, ...]:
    """The results that `op` has, from those of `shortened(op)`."""
    dim = _sequence_dim(op)
    meta = op.args[0].tensors[0] if dim is not None else None
    if dim is None or meta is None or not results or results[0] is None or len(results[0].shape) != len(meta.shape):
        return results
    return (_resized(results[0], dim, meta.shape[dim]), *results[1:])


def _sequence_dim(op: ReplayOp) -> int | None:
    """Dimension of the steps in the first argument; None for an op without, and for a packed sequence."""
    if op.called not in RECURRENT or not op.args or len(op.args[0].tensors) != 1:
        return None
    meta = op.args[0].tensors[0]
    if meta is None or len(meta.shape) != 3:
        return None
    batch_first = next((arg.value for arg in op.args if arg.name == "batch_first"), False)
    return 1 if batch_first else 0


def _resized(meta: TensorMeta, dim: int, size: int) -> TensorMeta:
    shape = (*meta.shape[:dim], size, *meta.shape[dim + 1 :])
    return TensorMeta(shape=shape, dtype=meta.dtype)
