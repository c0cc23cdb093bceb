# pyright: strict
"""vLLM's `_C` quantisation ops (csrc/quantization/w8a8): fp8 and int8 per tensor, row and group."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import (
    expand_scale,
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    tensor_scale,
    to_quantized,
)


@stands_for("_C::static_scaled_fp8_quant")
def static_scaled_fp8_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """Quantise input / scale, with one scale for the whole tensor or one per group.

    The scale's shape determines the group shape.
    """
    rows = input.flatten(0, -2) if input.dim() > 1 else input.unsqueeze(0)
    by_row = expand_scale(scale, rows.shape[0], rows.shape[1])
    result.copy_(to_quantized(rows, by_row, result.dtype).reshape(input.shape))


@stands_for("_C::dynamic_scaled_fp8_quant")
def dynamic_scaled_fp8_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """Quantise with one scale, computed from the largest magnitude. An all-zero input has scale 0 and gives zeros."""
    new_scale = tensor_scale(input, result.dtype)
    scale.copy_(new_scale.reshape(scale.shape))
    result.copy_(to_quantized(input, new_scale.clamp(min=torch.finfo(torch.float32).tiny), result.dtype))


@stands_for("_C::dynamic_per_token_scaled_fp8_quant")
def dynamic_per_token_scaled_fp8_quant(c: Call) -> None:
    """Quantise with one scale per row [.., 1]."""
    rows = row_scale(c.input, c.result.dtype, getattr(c, "scale_ub", None))
    c.scale.copy_(rows.reshape(c.scale.shape))
    c.result.copy_(to_quantized(c.input, rows, c.result.dtype))


@stands_for("_C::static_scaled_int8_quant")
def static_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None = None) -> None:
    """Write round(input / scale) + zero point, saturated, to result."""
    scaled = (input.float() / scale).round()
    result.copy_((scaled if azp is None else scaled + azp).clamp(-128, 127))


@stands_for("_C::dynamic_scaled_int8_quant")
def dynamic_scaled_int8_quant(result: Tensor, input: Tensor, scale: Tensor, azp: Tensor | None = None) -> None:
    """Quantise with one scale per row.

    With azp, each row also gets a zero point, and its min..max maps to −128..127.
    """
    if azp is None:
        rows = row_scale(input, torch.int8)
        scale.copy_(rows.reshape(scale.shape))
        result.copy_(to_quantized(input, rows, torch.int8))
        return
    low, high = (bound.float() for bound in input.aminmax(dim=-1, keepdim=True))
    rows = ((high - low) / 255.0).clamp(min=1e-12)
    zero = (-128.0 - low / rows).round()
    scale.copy_(rows.reshape(scale.shape))
    azp.copy_(zero.reshape(azp.shape))
    result.copy_(((input.float() / rows).round() + zero).clamp(-128, 127))


@stands_for("_C::per_token_group_fp8_quant")
def per_token_group_fp8_quant(c: Call) -> None:
    """Quantise with one scale per group of consecutive elements in a row. A column-major output_s keeps its strides."""
    groups = group_scale(c.input, c.group_size, c.fp8_max, eps=c.eps, power_of_two=getattr(c, "scale_ue8m0", False))
    c.output_s.copy_(groups.reshape(c.output_s.shape))
    c.output_q.copy_(quantize_groups(c.input, groups, c.output_q.dtype))


FP8 = torch.float8_e4m3fn
"""dtype of fp8 results if no argument gives it."""


@stands_for("vllm::rocm_aiter_group_fp8_quant")
def group_fp8_quant(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return (`x` quantised to fp8, float32 scales [.., groups])."""
    scale = group_scale(x, group_size, largest(FP8))
    return quantize_groups(x, scale, FP8), scale


@stands_for("vllm::rocm_aiter_per_tensor_quant")
def per_tensor_quant(x: Tensor, quant_dtype: torch.dtype, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (quantised `x`, scale [1]); the scale is computed if it is not given."""
    whole_scale = tensor_scale(x, quant_dtype).clamp(min=1e-12) if scale is None else scale.clone()
    return to_quantized(x, whole_scale, quant_dtype), whole_scale.reshape(1)


@stands_for("vllm::rocm_aiter_per_token_quant")
def per_token_quant(x: Tensor, quant_dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return (quantised `x`, scale of each row [.., 1])."""
    row_scales = row_scale(x, quant_dtype) if scale is None else scale.clone()
    return to_quantized(x, row_scales, quant_dtype), row_scales
