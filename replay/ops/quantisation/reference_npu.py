# pyright: strict
"""torch_npu's quantisation."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized


@stands_for("npu::npu_dynamic_quant")
def npu_dynamic_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Return (values quantised to int8, float32 scale of each row [..])."""
    if c.dst_type not in (None, torch.int8):
        raise ValueError(f"dynamic quantisation to {c.dst_type} is not implemented")
    x = c.input if c.smooth_scales is None else c.input * c.smooth_scales
    rows = row_scale(x, torch.int8)
    return to_quantized(x, rows, torch.int8), rows.squeeze(-1)


@stands_for("npu::npu_quantize")
def npu_quantize(c: Call) -> Tensor:
    """Return round(self / scales (or · scales) + zero_points), saturated to int8 for every 8-bit dtype."""
    shape = [1] * c.self.dim()
    if c.scales.numel() > 1:
        shape[c.axis] = -1
    factor = c.scales.float().reshape(shape)
    scaled = c.self.float() / factor if c.div_mode else c.self.float() * factor
    if c.zero_points is not None:
        scaled = scaled + c.zero_points.float().reshape(shape if c.zero_points.numel() > 1 else [1] * c.self.dim())
    low, high = (0, 255) if c.dtype in (torch.uint8, torch.quint8) else (-128, 127)
    kind = torch.uint8 if low == 0 else torch.int32 if c.dtype in (torch.int32, torch.qint32) else torch.int8
    return scaled.round().clamp(low, high).to(kind)
