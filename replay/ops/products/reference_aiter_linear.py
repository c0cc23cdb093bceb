"""aiter's matrix products by back-end (asm, CK, ck_tile, hipBLASLt, Triton): the same products as in `gemm`.

Operands are A [M, K] and B [N, K]; pre-shuffled weights are read as plain rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import scaled_linear

_OUT = ("out", "Out", "y")


def _kept(out: Tensor, value: Tensor) -> Tensor:
    """The value, written to out as well, and laid out as it is."""
    return out.copy_(value).clone()


@stands_for("aiter::gemm_a16w16_asm", writes=_OUT, fake=lambda out: torch.empty_like(out))
def gemm_a16w16_asm(A: Tensor, B: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
    """out = A @ Bᵀ + bias, also returned."""
    return _kept(out, linear(A, B, bias, out.dtype))


@stands_for("aiter::gemm_a16w16_", "aiter::gemm_a16w16_atomic_", writes=_OUT)
def gemm_a16w16_triton(
    x: Tensor,
    w: Tensor,
    dtype: torch.dtype | None,
    y: Tensor | None,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """x @ wᵀ + bias, activated, in dtype; also written to y."""
    functions = {"gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu, "relu": F.relu}
    out = linear(x, w, bias, dtype or torch.bfloat16)
    out = functions[activation](out) if activation in functions else out
    if y is not None:
        y.copy_(out)
    return out


@stands_for(
    "aiter::gemm_a8w8_asm",
    "aiter::gemm_a8w8_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
    "aiter::gemm_a8w8_blockscale_cktile",
    writes=_OUT,
    fake=lambda Out: torch.empty_like(Out),
)
def gemm_a8w8_out(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Out = (x_scale · XQ) @ (w_scale · WQ)ᵀ + bias, also returned; scales by row or by block."""
    return _kept(Out, scaled_linear(XQ, WQ, x_scale, w_scale, bias, Out.dtype))


@stands_for(
    "aiter::gemm_a8w8_bpreshuffle_cktile",
    "aiter::flatmm_a8w8_blockscale_asm",
    "aiter::gfx950_a8w8_blockscale_asm",
    "aiter::mi350_a8w8_blockscale_asm",
    writes=_OUT,
    fake=lambda out: torch.empty_like(out),
)
def gemm_a8w8_lower_out(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor) -> Tensor:
    """As gemm_a8w8_out."""
    return _kept(out, scaled_linear(XQ, WQ, x_scale, w_scale, None, out.dtype))


@stands_for("aiter::_flatmm_a8w8_blockscale_asm", "aiter::_gfx950_a8w8_blockscale_asm", writes=_OUT)
def gemm_a8w8_only_written(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor) -> None:
    """As gemm_a8w8_out, nothing returned."""
    out.copy_(scaled_linear(XQ, WQ, x_scale, w_scale, None, out.dtype))


@stands_for("aiter::_gemm_a8w8_asm", writes=_OUT)
def gemm_a8w8_asm_written(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, bias: Tensor | None
) -> None:
    """As gemm_a8w8_out, nothing returned."""
    Out.copy_(scaled_linear(XQ, WQ, x_scale, w_scale, bias, Out.dtype))


@stands_for("aiter::gemm_a8w8_blockscale_bpreshuffle", writes=_OUT)
def gemm_blockscale_bpreshuffle(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """XQ @ WQᵀ with scales by block, in dtype; also written to out."""
    product = scaled_linear(XQ, WQ, x_scale, w_scale, None, dtype)
    if out is not None:
        out.copy_(product)
    return product


@stands_for("aiter::gemm_a8w8_blockscale_bpreshuffle_asm", writes=_OUT, fake=lambda out: torch.empty_like(out))
def gemm_blockscale_asm(
    A: Tensor, B: Tensor, out: Tensor, A_scale: Tensor, B_scale: Tensor, bias: Tensor | None
) -> Tensor:
    """out = A @ Bᵀ with scales by block, + bias; also returned."""
    return _kept(out, scaled_linear(A, B, A_scale, B_scale, bias, out.dtype))


@stands_for("aiter::_gemm_a8w8_blockscale_bpreshuffle_asm", writes=_OUT)
def gemm_blockscale_asm_written(
    A: Tensor, B: Tensor, out: Tensor, A_scale: Tensor, B_scale: Tensor, bias: Tensor | None
) -> None:
    """As the form that returns."""
    out.copy_(scaled_linear(A, B, A_scale, B_scale, bias, out.dtype))


@stands_for("aiter::hipb_mm", writes=())
def hipb_mm(
    mat1: Tensor,
    mat2: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    scaleA: Tensor | None,
    scaleB: Tensor | None,
    scaleOut: Tensor | None,
    use_gelu: bool | None = None,
) -> Tensor:
    """mat1 [M, K] @ mat2 [K, N] with optional scales, + bias; out_dtype defaults to mat1's."""
    dtype = out_dtype or mat1.dtype
    if scaleA is None and scaleB is None and mat1.dtype.itemsize > 1:
        out = linear(mat1, mat2.t(), bias, dtype)
    else:
        scale = scaleB.t() if scaleB is not None and scaleB.dim() == 2 else scaleB
        out = scaled_linear(mat1, mat2.t(), scaleA, scale, bias, dtype)
    out = F.gelu(out, approximate="tanh") if use_gelu else out
    return out if scaleOut is None else (out.float() * scaleOut.float()).to(dtype)


@stands_for("aiter::rocb_mm", writes=())
def rocb_mm(arg0: Tensor, arg1: Tensor) -> Tensor:
    """arg0 [M, K] @ arg1 [K, N]."""
    return linear(arg0, arg1.t())


@stands_for("aiter::LLMM1", "aiter::wvSpltK", "aiter::wv_splitk_small_fp16_bf16", writes=("out_c",))
def skinny_gemm(in_a: Tensor, in_b: Tensor, out_c: Tensor) -> None:
    """out_c [N, M] = in_b [N, K] @ in_a [M, K]ᵀ; in_a is the weight."""
    out_c.copy_(linear(in_b, in_a, None, out_c.dtype))


@stands_for("aiter::wvSplitKQ", writes=("out_c",))
def skinny_gemm_fp8(in_a: Tensor, in_b: Tensor, out_c: Tensor, scale_a: Tensor, scale_b: Tensor) -> None:
    """As skinny_gemm for fp8 operands with one scale each."""
    out_c.copy_(scaled_linear(in_b, in_a, scale_b, scale_a, None, out_c.dtype))


@stands_for("aiter::batched_gemm_bf16", writes=_OUT, fake=lambda out: torch.empty_like(out))
def batched_gemm_bf16(XQ: Tensor, WQ: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
    """out [B, M, N] = XQ [B, M, K] @ WQ [B, N, K]ᵀ + bias [B, 1, N], also returned."""
    parts = [linear(x, w, None, out.dtype) for x, w in zip(XQ, WQ, strict=True)]
    product = torch.stack(parts)
    return _kept(out, product if bias is None else product + bias)


@stands_for("aiter::batched_gemm_a8w8", writes=_OUT, fake=lambda out: torch.empty_like(out))
def batched_gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, out: Tensor, bias: Tensor | None
) -> Tensor:
    """As batched_gemm_bf16 with scales x_scale [B, M, 1] and w_scale [B, 1, N]."""
    product = (XQ.float() @ WQ.float().mT) * x_scale.float().reshape(XQ.shape[0], -1, 1)
    product = product * w_scale.float().reshape(XQ.shape[0], 1, -1)
    return _kept(out, (product if bias is None else product + bias.float()).to(out.dtype))


@stands_for("aiter::deepgemm_ck", writes=("Y",), fake=lambda Y: torch.empty_like(Y))
def deepgemm_ck(
    XQ: Tensor, WQ: Tensor, Y: Tensor, group_layout: Tensor, x_scale: Tensor | None, w_scale: Tensor | None
) -> Tensor:
    """Y [G, M, N]: the first group_layout[g] rows of XQ [G, M, K] times WQ [G, N, K]ᵀ with their scales."""
    for group, rows in enumerate(group_layout.flatten().tolist()):
        scale_x = None if x_scale is None else x_scale[group].reshape(XQ.shape[1], -1)[:rows]
        scale_w = None if w_scale is None else w_scale[group]
        Y[group, :rows] = scaled_linear(XQ[group, :rows], WQ[group], scale_x, scale_w, None, Y.dtype)
    return Y.clone()
