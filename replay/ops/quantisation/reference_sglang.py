# pyright: strict
"""SGLang's `sgl_kernel` quantisation to 8 bits."""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import row_scale, tensor_scale, to_quantized


@stands_for("sgl_kernel::sgl_per_tensor_quant_fp8")
def per_tensor_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor, is_static: bool) -> None:
    """Quantise with the scale `output_s`: given if `is_static`, otherwise computed and written there."""
    if not is_static:
        output_s.copy_(tensor_scale(input, output_q.dtype).clamp(min=1e-12).reshape(output_s.shape))
    output_q.copy_(to_quantized(input, output_s, output_q.dtype))


@stands_for("sgl_kernel::sgl_per_token_quant_fp8")
def per_token_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """Quantise with one scale per row."""
    rows = row_scale(input, output_q.dtype)
    output_s.copy_(rows.reshape(output_s.shape))
    output_q.copy_(to_quantized(input, rows, output_q.dtype))
