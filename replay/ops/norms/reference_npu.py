# pyright: strict
"""torch_npu's norms (`npu::*`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_backward, rms_norm_with_scale


@stands_for("npu::npu_rms_norm")
def npu_rms_norm(self: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(norm · gamma, reciprocal root mean square float32 [.., 1])."""
    return rms_norm_with_scale(self, gamma, epsilon)


@stands_for("npu::npu_rms_norm_backward")
def npu_rms_norm_backward(dy: Tensor, self: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """(dx in self's dtype, dgamma float32)."""
    return rms_norm_backward(dy, self, gamma, rstd)


@stands_for("npu::npu_add_rms_norm")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(norm of the sum, rstd float32, x1 + x2)."""
    total = x1 + x2
    normed, rstd = rms_norm_with_scale(total, gamma, epsilon)
    return normed, rstd, total


@stands_for("npu::npu_add_layer_norm")
def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, additional_output: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(layer norm of x1 + x2, mean, rstd, x1 + x2 or an empty tensor)."""
    total = x1 + x2
    mean = total.float().mean(-1, keepdim=True)
    rstd = torch.rsqrt(total.float().var(-1, unbiased=False, keepdim=True) + epsilon)
    normed = F.layer_norm(total, (total.shape[-1],), gamma.to(total.dtype), beta.to(total.dtype), epsilon)
    return normed, mean, rstd, total if additional_output else total.new_empty((0,))


@stands_for("npu::npu_layer_norm_eval")
def npu_layer_norm_eval(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Layer norm over the last dims."""
    return F.layer_norm(input, normalized_shape, weight, bias, eps)
