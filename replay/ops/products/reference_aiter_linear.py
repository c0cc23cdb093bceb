"""aiter's matrix products by back-end (asm, CK, ck_tile, hipBLASLt, Triton).

The mathematics is that of `reference_aiter_gemm`. Operands are A [M, K] and B [N, K]. Pre-shuffled weights are read as
plain rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import scaled_linear

_OUT = ("out", "Out", "y")


def _kept(out: Tensor, value: Tensor) -> Tensor:
    """Copy `value` into `out`; return another copy, in the layout of `out`."""
    return out.copy_(value).clone()


@stands_for("aiter::gemm_a16w16_", "aiter::gemm_a16w16_atomic_", writes=_OUT)
def gemm_a16w16_triton(c: Call) -> Tensor:
    """Return activation(x @ wᵀ + bias) in `dtype`; write it to `y` as well, if given."""
    activation = getattr(c, "activation", None)
    functions = {"gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu, "relu": F.relu}
    out = linear(c.x, c.w, getattr(c, "bias", None), c.dtype or torch.bfloat16)
    out = functions[activation](out) if activation in functions else out
    if c.y is not None:
        c.y.copy_(out)
    return out


@stands_for("aiter::gemm_a8w8_blockscale_bpreshuffle", writes=_OUT)
def gemm_blockscale_bpreshuffle(c: Call) -> Tensor:
    """Return XQ @ WQᵀ with block scales, in `dtype`; write it to `out` as well, if given."""
    out = getattr(c, "out", None)
    product = scaled_linear(c.XQ, c.WQ, c.x_scale, c.w_scale, None, c.dtype)
    if out is not None:
        out.copy_(product)
    return product


@stands_for("aiter::hipb_mm", writes=())
def hipb_mm(c: Call) -> Tensor:
    """Return mat1 [M, K] @ mat2 [K, N] + bias, with optional scales. out_dtype defaults to mat1's dtype."""
    scaleB = c.scaleB
    dtype = c.out_dtype or c.mat1.dtype
    if c.scaleA is None and scaleB is None and c.mat1.dtype.itemsize > 1:
        out = linear(c.mat1, c.mat2.t(), c.bias, dtype)
    else:
        scale = scaleB.t() if scaleB is not None and scaleB.dim() == 2 else scaleB
        out = scaled_linear(c.mat1, c.mat2.t(), c.scaleA, scale, c.bias, dtype)
    out = F.gelu(out, approximate="tanh") if getattr(c, "use_gelu", None) else out
    return out if c.scaleOut is None else (out.float() * c.scaleOut.float()).to(dtype)


@stands_for("aiter::batched_gemm_bf16", writes=_OUT, fake=lambda out: torch.empty_like(out))
def batched_gemm_bf16(XQ: Tensor, WQ: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
    """Write XQ [B, M, K] @ WQ [B, N, K]ᵀ + bias [B, 1, N] to `out` [B, M, N]; return a copy of `out`."""
    parts = [linear(x, w, None, out.dtype) for x, w in zip(XQ, WQ, strict=True)]
    product = torch.stack(parts)
    return _kept(out, product if bias is None else product + bias)


@stands_for("aiter::batched_gemm_a8w8", writes=_OUT, fake=lambda out: torch.empty_like(out))
def batched_gemm_a8w8(c: Call) -> Tensor:
    """Write XQ [B, M, K] @ WQ [B, N, K]ᵀ · x_scale [B, M, 1] · w_scale [B, 1, N] (+ bias) to out, and return it."""
    product = (c.XQ.float() @ c.WQ.float().mT) * c.x_scale.float().reshape(c.XQ.shape[0], -1, 1)
    product = product * c.w_scale.float().reshape(c.XQ.shape[0], 1, -1)
    return _kept(c.out, (product if c.bias is None else product + c.bias.float()).to(c.out.dtype))


@stands_for("aiter::deepgemm_ck", writes=("Y",), fake=lambda Y: torch.empty_like(Y))
def deepgemm_ck(c: Call) -> Tensor:
    """Write the first group_layout[g] rows of XQ [G, M, K] @ WQ [G, N, K]ᵀ, with their scales, to Y [G, M, N]."""
    for group, rows in enumerate(c.group_layout.flatten().tolist()):
        scale_x = None if c.x_scale is None else c.x_scale[group].reshape(c.XQ.shape[1], -1)[:rows]
        scale_w = None if c.w_scale is None else c.w_scale[group]
        c.Y[group, :rows] = scaled_linear(c.XQ[group, :rows], c.WQ[group], scale_x, scale_w, None, c.Y.dtype)
    return c.Y.clone()
