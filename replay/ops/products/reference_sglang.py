# pyright: strict
"""SGLang's `sgl_kernel` products."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import scaled_linear


@stands_for("sgl_kernel::fp8_blockwise_scaled_mm", "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm")
def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scales_a: Tensor,
    scales_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """(scales_a · mat_a [M, K]) @ (scales_b · mat_b [K, N]) + bias; scales by row and column or by block."""
    columns = scales_b.t() if scales_b.dim() == 2 and scales_b.shape[1] != 1 else scales_b.flatten()
    return scaled_linear(mat_a, mat_b.t(), scales_a, columns, bias, out_dtype)


@stands_for("sgl_kernel::bmm_fp8")
def bmm_fp8(A: Tensor, B: Tensor, D: Tensor, A_scale: Tensor, B_scale: Tensor) -> None:
    """D [b, M, N] = A_scale · B_scale · A [b, M, K] @ B [b, K, N]."""
    D.copy_(torch.bmm(A.float(), B.float()) * (A_scale * B_scale))
