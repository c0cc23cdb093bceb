# pyright: strict
"""Completes calls that were recorded before autocast cast their arguments, using the dtypes that autocast chose.

The profiler sees a call before autocast casts its arguments. A linear layer may therefore show a float32 weight with a
bfloat16 input. Plans usually contain the casts and the inner call in place of the recorded call. This module therefore
matters only for `--select all` and for files without the inner call. It knows which ops autocast lowers to a narrower
dtype. The casts are separate calls and not repeated here.
"""

from __future__ import annotations

from itertools import chain

from msgspec.structs import replace

from opreplay.replay.ir.model import Assumption, ReplayArg
from opreplay.replay.resolve.guess.values import Context, names
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.model import TensorMeta

LOWERED: frozenset[str] = frozenset(
    f"aten::{op}"
    for op in names(
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution "
        "prelu addmm addmv addr matmul einsum mm mv bmm linalg_vecdot baddbmm addbmm linear chain_matmul "
        "linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
        "lstm gru rnn_tanh rnn_relu scaled_dot_product_attention _native_multi_head_attention"
    )
)
"""Ops that autocast runs in lower precision. They are those in AT_FORALL_LOWER_PRECISION_FP of ATen/autocast_mode.h,
and recurrent networks, for which autocast has a separate function.
"""
NARROW = ("bfloat16", "float16")
CAST = "autocast had cast it from float32; the recorded time includes the cast, replay and prediction do not"


def apply_autocast(
    name: str, args: tuple[ReplayArg, ...], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Return the arguments after autocast's casts, with a note on each cast.

    Autocast was on if arguments that must have one dtype have several, or if a nested call has a narrower dtype. If it
    was off, the arguments are unchanged.
    """
    narrow = _narrow_type(args, context) if name in LOWERED else None
    if narrow is None:
        return args, ()
    cast = tuple(replace(arg, tensors=tuple(meta and _cast(meta, narrow) for meta in arg.tensors)) for arg in args)
    changed = (arg.name for arg, recorded in zip(cast, args, strict=True) if arg.tensors != recorded.tensors)
    return cast, tuple(Assumption(argument=name, what=f"{narrow}: {CAST}") for name in changed)


def _narrow_type(args: tuple[ReplayArg, ...], context: Context) -> str | None:
    """Return the dtype to which autocast lowered float32 arguments; None if nothing shows that autocast was on."""
    dtypes = {meta.dtype for arg in args for meta in arg.tensors if meta is not None}
    if "float32" not in dtypes:
        return None
    inside = (torch_dtype_name(spelled) for call in context.relatives().children for spelled in call.types or ())
    return next(chain((d for d in NARROW if d in dtypes), (d for d in inside if d in NARROW)), None)


def _cast(meta: TensorMeta, narrow: str) -> TensorMeta:
    return replace(meta, dtype=narrow) if meta.dtype == "float32" else meta
