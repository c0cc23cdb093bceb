# pyright: strict
"""torch_npu's quantisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized


@stands_for("npu::npu_dynamic_quant")
def npu_dynamic_quant(
    input: Tensor, smooth_scales: Tensor | None, dst_type: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """(int8, float32 scale of each row [..])."""
    if dst_type not in (None, torch.int8):
        raise ValueError(f"dynamic quantisation to {dst_type} is not implemented")
    x = input if smooth_scales is None else input * smooth_scales
    rows = row_scale(x, torch.int8)
    return to_quantized(x, rows, torch.int8), rows.squeeze(-1)


@stands_for("npu::npu_quantize")
def npu_quantize(
    self: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: torch.dtype, axis: int, div_mode: bool
) -> Tensor:
    """round(self / scales (or · scales) + zero_points), saturated to int8 whatever kind of it dtype is."""
    shape = [1] * self.dim()
    if scales.numel() > 1:
        shape[axis] = -1
    factor = scales.float().reshape(shape)
    scaled = self.float() / factor if div_mode else self.float() * factor
    if zero_points is not None:
        scaled = scaled + zero_points.float().reshape(shape if zero_points.numel() > 1 else [1] * self.dim())
    low, high = (0, 255) if dtype in (torch.uint8, torch.quint8) else (-128, 127)
    kind = torch.uint8 if low == 0 else torch.int32 if dtype in (torch.int32, torch.qint32) else torch.int8
    return scaled.round().clamp(low, high).to(kind)
