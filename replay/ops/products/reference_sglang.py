# pyright: strict
"""Matrix products of SGLang's `sgl_kernel`."""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import scaled_linear


@stands_for("sgl_kernel::fp8_blockwise_scaled_mm", "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm")
def scaled_mm(c: Call) -> Tensor:
    """Return (scales_a · mat_a [M, K]) @ (scales_b · mat_b [K, N]) + bias.

    There are scales per row and column, or per block.
    """
    columns = c.scales_b.t() if c.scales_b.dim() == 2 and c.scales_b.shape[1] != 1 else c.scales_b.flatten()
    return scaled_linear(c.mat_a, c.mat_b.t(), c.scales_a, columns, getattr(c, "bias", None), c.out_dtype)
