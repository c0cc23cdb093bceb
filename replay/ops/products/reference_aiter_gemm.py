# pyright: strict
"""aiter's matrix products (aiter/ops/gemm_op_a8w8.py, aiter/tuned_gemm.py); A is [M, K], B is [N, K].

Pre-shuffled weights are read as plain rows. The bytes and the work are the same, but the values are different.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import dequantize, scaled_linear


@stands_for("aiter::gemm_a16w16")
def gemm_a16w16(c: Call) -> Tensor:
    """Return A [.., K] @ B [N, K]ᵀ + bias in otype (default: A's dtype). The result is divided by scale_c if given."""
    if c.scale_a is None and c.scale_b is None:
        out = linear(c.A, c.B, c.bias, c.otype)
    else:
        rows = scaled_linear(as_rows(c.A), c.B, c.scale_a, c.scale_b, c.bias, c.otype or torch.bfloat16)
        out = rows.reshape(*c.A.shape[:-1], c.B.shape[0])
    return out if c.scale_c is None else (out.float() / c.scale_c).to(out.dtype)


@stands_for("aiter::gemm_a8w8_blockscale_ck", "aiter::gemm_a8w8_ck")
def gemm_a8w8_out(c: Call) -> Tensor:
    """Compute XQ [M, K] @ WQ [N, K]ᵀ with both scales (+ bias), write it to `Out` and return `Out`."""
    return c.Out.copy_(scaled_linear(c.XQ, c.WQ, c.x_scale, c.w_scale, getattr(c, "bias", None), c.Out.dtype))


def dequantized(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return activations [T, H] in `dtype`, multiplied by their scale.

    There is a single scale, or one per row or per block of a row.
    """
    if scale is None:
        return x.to(dtype)
    return dequantize(x, scale, dtype)
