"""aiter's matrix products (aiter/ops/gemm_op_a8w8.py, aiter/tuned_gemm.py): A [M, K], B [N, K].

Pre-shuffled weights are read as plain rows: the same bytes and the same work, other values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.standins.declared.register import reference
from opreplay.replay.standins.maths.products import linear
from opreplay.replay.standins.maths.quantize import dequantize, scaled_linear


@reference(
    "aiter::gemm_a16w16(Tensor A, Tensor B, Tensor? bias=None, ScalarType? otype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, Tensor? scale_c=None) -> Tensor",
    since="2025-10-29",
)
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
        rows = scaled_linear(A.reshape(-1, A.shape[-1]), B, scale_a, scale_b, bias, otype or torch.bfloat16)
        out = rows.reshape(*A.shape[:-1], B.shape[0])
    return out if scale_c is None else (out.float() / scale_c).to(out.dtype)


_SCALED = "Tensor XQ, Tensor WQ, Tensor x_scale, Tensor w_scale"


@reference(
    f"aiter::gemm_a8w8({_SCALED}, Tensor? bias=None, ScalarType dtype=bfloat16, SymInt? splitK=None) -> Tensor",
    since="2025-11-08",
)
@reference(
    f"aiter::gemm_a8w8_bpreshuffle({_SCALED}, Tensor? bias=None, ScalarType dtype=bfloat16, bool check=False) "
    "-> Tensor",
    since="2025-11-08",
)
@reference(
    f"aiter::gemm_a8w8_blockscale({_SCALED}, ScalarType dtype=bfloat16, bool isBpreshuffled=False) -> Tensor",
    since="2025-10-29",
)
def gemm_a8w8(
    XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """int8 or fp8 operands; scales by row [M, 1], [N, 1], or by block [M, K/128], [N/128, K/128]."""
    return scaled_linear(XQ, WQ, x_scale, w_scale, bias, dtype)


@reference(
    f"aiter::gemm_a8w8_ck({_SCALED}, Tensor(a!) Out, Tensor? bias=None, SymInt splitK=0) -> Tensor(a!)",
    since="2025-10-29",
)
@reference(
    f'aiter::gemm_a8w8_blockscale_ck({_SCALED}, Tensor(a!) Out, SymInt splitK=0, str kernelName="") -> Tensor(a!)',
    since="2025-10-29",
)
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
