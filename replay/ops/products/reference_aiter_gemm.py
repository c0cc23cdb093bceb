# pyright: strict
"""aiter's matrix products (aiter/ops/gemm_op_a8w8.py, aiter/tuned_gemm.py): A [M, K], B [N, K].

Pre-shuffled weights are read as plain rows: the same bytes and the same work, other values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import dequantize, scaled_linear


@stands_for("aiter::gemm_a16w16")
def gemm_a16w16(
    A: Tensor,
    B: Tensor,
    bias: Tensor | None,
    otype: torch.dtype | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    scale_c: Tensor | None,
) -> Tensor:
    """A [.., K] @ B [N, K]ᵀ + bias in otype (default A's); scale_c divides the result."""
    if scale_a is None and scale_b is None:
        out = linear(A, B, bias, otype)
    else:
        rows = scaled_linear(as_rows(A), B, scale_a, scale_b, bias, otype or torch.bfloat16)
        out = rows.reshape(*A.shape[:-1], B.shape[0])
    return out if scale_c is None else (out.float() / scale_c).to(out.dtype)


@stands_for("aiter::gemm_a8w8", "aiter::gemm_a8w8_blockscale", "aiter::gemm_a8w8_bpreshuffle")
def gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """int8 or fp8 operands; scales by row [M, 1], [N, 1], or by block [M, K/128], [N/128, K/128]."""
    return scaled_linear(XQ, WQ, x_scale, w_scale, bias, dtype)


@stands_for("aiter::gemm_a8w8_blockscale_ck", "aiter::gemm_a8w8_ck")
def gemm_a8w8_out(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, Out: Tensor, bias: Tensor | None = None
) -> Tensor:
    """As gemm_a8w8, written to Out."""
    return Out.copy_(scaled_linear(XQ, WQ, x_scale, w_scale, bias, Out.dtype))


def dequantized(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Activations [T, H] in `dtype`, times their scale (one, by row, or by block of a row)."""
    if scale is None:
        return x.to(dtype)
    return dequantize(x, scale, dtype)
