# pyright: strict
"""aiter's quantisation: per tensor, per row, per group, and SmoothQuant."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    tensor_scale,
    to_quantized,
)


def write_smoothed(normed: Tensor, out: Tensor, xscale: Tensor, yscale: Tensor) -> None:
    """Quantise normed · xscale to 8 bits by rows. The result is written to out, the row scales to yscale."""
    smooth = normed.float() * xscale.float()
    scale = row_scale(smooth, out.dtype)
    yscale.copy_(scale.reshape(yscale.shape))
    out.copy_(to_quantized(smooth, scale, out.dtype))


@stands_for("aiter::smoothquant_fwd", writes=("out", "y_scale"))
def smoothquant(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor) -> None:
    """Quantise input · x_scale by rows."""
    write_smoothed(input, out, x_scale, y_scale)


@stands_for("aiter::moe_smoothquant_fwd", writes=("out", "y_scale"))
def moe_smoothquant(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor) -> None:
    """Quantise input [T, H], smoothed for each selected expert, by rows.

    The smoothing factors are x_scale [E, H]. The result is written to out [k, T, H].
    """
    chosen = x_scale.float()[topk_ids.t().to(torch.int64)]
    smooth = (input.float().unsqueeze(0) * chosen).reshape(-1, input.shape[-1])
    scale = row_scale(smooth, out.dtype)
    y_scale.copy_(scale.reshape(y_scale.shape))
    out.copy_(to_quantized(smooth, scale, out.dtype).reshape(out.shape))


@stands_for("aiter::smooth_per_token_scaled_quant", writes=("out", "scales"))
def smooth_per_token_scaled_quant(c: Call) -> None:
    """Quantise input · smooth_scale, or input · smooth_scale[smooth_scale_map], by rows. Scales are never shuffled."""
    factor = c.smooth_scale if c.smooth_scale_map is None else c.smooth_scale[c.smooth_scale_map.to(torch.int64)]
    write_smoothed(c.input, c.out, factor, c.scales)


@stands_for("aiter::dynamic_per_group_scaled_quant", writes=("out", "scales"))
def dynamic_per_group_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, group_size: int) -> None:
    """Quantise `input` with one scale per group of elements of a row; scales are never shuffled."""
    groups = group_scale(input, group_size, largest(out.dtype))
    scales.flatten()[: groups.numel()].copy_(groups.flatten())
    out.copy_(quantize_groups(input, groups, out.dtype))


@stands_for("aiter::dynamic_per_tensor_quant")
def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """Quantise with one scale, computed from the largest magnitude."""
    whole_scale = tensor_scale(input, out.dtype)
    scale.copy_(whole_scale.reshape(scale.shape))
    out.copy_(to_quantized(input, whole_scale.clamp(min=1e-12), out.dtype))


@stands_for("aiter::per_group_quant_hip")
def per_group_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Return (quantised, scale of each group). If transpose_scale is set, the scale's memory is column-major."""
    groups = group_scale(c.x, c.group_size, largest(c.quant_dtype))
    quantized = quantize_groups(c.x, groups, c.quant_dtype)
    return quantized, groups.t().contiguous().view(groups.shape) if c.transpose_scale else groups
