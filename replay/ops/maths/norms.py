# pyright: strict
"""Mathematics of RMS and layer norms; no ops are declared here.

Statistics are computed in float32, as in all of the libraries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.maths.products import row_blocks


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, *, gemma: bool = False) -> Tensor:
    """Return x [.., d] / rms(x) · weight [d] (1 + weight for Gemma), in x's dtype."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    wide = None if weight is None else (weight.float() + 1.0 if gemma else weight.float())
    source, target = x.flatten(0, -2) if x.dim() > 2 else x, out.flatten(0, -2) if x.dim() > 2 else out
    if x.dim() == 1:
        source, target = source.unsqueeze(0), target.unsqueeze(0)
    for rows in row_blocks(source.shape[0], source.shape[1], x):
        target[rows] = F.rms_norm(source[rows].float(), (x.shape[-1],), wide, epsilon)
    return out


def rms_norm_with_scale(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the RMS norm over the last weight.dim() dims, and its reciprocal root mean square float32 [.., 1, ..]."""
    dims = tuple(range(x.dim() - weight.dim(), x.dim()))
    rstd = torch.rsqrt(x.float().square().mean(dims, keepdim=True) + epsilon)
    return (x.float() * rstd * weight.float()).to(x.dtype), rstd


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight, given the forward's rstd."""
    normed = x.float() * rstd
    scaled = dy.float() * weight.float()
    dims = tuple(range(x.dim() - weight.dim(), x.dim()))
    dx = rstd * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))
    batch = tuple(range(x.dim() - weight.dim()))
    dweight = (dy.float() * normed).sum(batch) if batch else dy.float() * normed
    return dx.to(x.dtype), dweight


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, *, gemma: bool = False
) -> tuple[Tensor, Tensor]:
    """Return (norm(x + residual), x + residual). The sum is rounded to x's dtype before the statistics are computed."""
    total = x + residual
    return rms_norm(total, weight, epsilon, gemma=gemma), total
