# pyright: strict
"""SGLang's `sgl_kernel` quantisation to 8 bits."""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import group_scale, quantize_groups, row_scale, tensor_scale, to_quantized


@stands_for("sgl_kernel::sgl_per_tensor_quant_fp8")
def per_tensor_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor, is_static: bool) -> None:
    """One scale, given (static) or computed and written."""
    if not is_static:
        output_s.copy_(tensor_scale(input, output_q.dtype).clamp(min=1e-12).reshape(output_s.shape))
    output_q.copy_(to_quantized(input, output_s, output_q.dtype))


@stands_for("sgl_kernel::sgl_per_token_quant_fp8")
def per_token_quant_fp8(input: Tensor, output_q: Tensor, output_s: Tensor) -> None:
    """A scale for each row."""
    rows = row_scale(input, output_q.dtype)
    output_s.copy_(rows.reshape(output_s.shape))
    output_q.copy_(to_quantized(input, rows, output_q.dtype))


@stands_for(
    "sgl_kernel::sgl_per_token_group_quant_8bit",
    "sgl_kernel::sgl_per_token_group_quant_fp8",
    "sgl_kernel::sgl_per_token_group_quant_int8",
)
def per_token_group_quant(
    input: Tensor,
    output_q: Tensor,
    output_s: Tensor,
    group_size: int,
    eps: float,
    fp8_max: float,
    scale_ue8m0: bool = False,
) -> None:
    """A scale for each group of neighbours in a row; a column-major output_s is written through its strides."""
    groups = group_scale(input, group_size, fp8_max, eps=eps, power_of_two=scale_ue8m0)
    output_s.copy_(groups.reshape(output_s.shape))
    output_q.copy_(quantize_groups(input, groups, output_q.dtype))
