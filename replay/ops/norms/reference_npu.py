# pyright: strict
"""torch_npu's norms (`npu::*`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_backward, rms_norm_with_scale


@stands_for("npu::npu_rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return (norm · gamma, reciprocal root mean square float32 [.., 1])."""
    return rms_norm_with_scale(self, gamma, epsilon)


@stands_for("npu::npu_rms_norm_backward")
def npu_rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dx in self's dtype, dgamma float32)."""
    return rms_norm_backward(dy, self, gamma, rstd)


@stands_for("npu::npu_add_layer_norm")
def npu_add_layer_norm(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (layer norm of x1 + x2, mean, rstd, x1 + x2 or an empty tensor)."""
    total = c.x1 + c.x2
    mean = total.float().mean(-1, keepdim=True)
    rstd = torch.rsqrt(total.float().var(-1, unbiased=False, keepdim=True) + c.epsilon)
    normed = F.layer_norm(total, (total.shape[-1],), c.gamma.to(total.dtype), c.beta.to(total.dtype), c.epsilon)
    return normed, mean, rstd, total if c.additional_output else total.new_empty((0,))


@stands_for("npu::npu_layer_norm_eval")
def npu_layer_norm_eval(c: Call) -> Tensor:
    """Return the layer norm over the last dims."""
    return F.layer_norm(c.input, c.normalized_shape, c.weight, c.bias, c.eps)
