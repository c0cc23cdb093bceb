# pyright: strict
"""Normalisations of cuDNN, MIOpen and synchronised batch norm, and the backward of fused RMS norm, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Maybe = Tensor | None


def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As miopen_batch_norm, with an empty reserve as a fourth result."""
    normalised = miopen_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return (*normalised, x.new_empty(0, dtype=torch.uint8))


def miopen_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [N, C, *] → out, saved mean and inverse deviation [C]."""
    return torch.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


def cudnn_batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    eps: float,
    reserve: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    del reserve
    return miopen_batch_norm_backward(x, grad, weight, running_mean, running_var, save_mean, save_var, eps)


def miopen_batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.native_batch_norm_backward.default(
        grad.to(x.dtype), x, weight, running_mean, running_var, save_mean, save_var, True, eps, [True, True, True]
    )


def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe]:
    """With all per-channel tensors in float32: CUDA takes any mix of dtypes, the CPU does not."""
    scale, mean, var, saved, inverse = (
        None if t is None else t.float() for t in (weight, running_mean, running_var, save_mean, save_invstd)
    )
    return torch.ops.aten.native_batch_norm_backward.default(
        grad.to(x.dtype), x, scale, mean, var, saved, inverse, train, eps, list(output_mask)
    )


def _reduced(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _by_channel(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.reshape(1, -1, *[1] * (x.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [N, C, *] → mean and inverse deviation, float32 [C]."""
    variance, mean = torch.var_mean(x.float(), dim=_reduced(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    del eps
    out = (x - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None:
        out = out * _by_channel(weight, x)
    return (out if bias is None else out + _by_channel(bias, x)).to(x.dtype)


def batch_norm_gather_stats(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    counts = torch.full((mean.shape[0],), float(count), device=mean.device)
    return batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts)


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """mean, invstd [ranks, C], counts [ranks] → those of all ranks together, [C]."""
    del x
    weights = counts.reshape(-1, 1).to(mean.dtype)
    total = weights.sum()
    mean_all = (mean * weights).sum(0) / total
    squares = invstd.pow(-2) - eps + (mean - mean_all).square()
    variance = (squares * weights).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean_all.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((variance * total / (total - 1).clamp(min=1)).to(running_var.dtype), momentum)
    return mean_all, (variance + eps).rsqrt()


def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Maybe, input_g: bool, weight_g: bool, bias_g: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    del weight, input_g, weight_g, bias_g
    sum_dy = grad.float().sum(_reduced(x))
    sum_dy_xmu = (grad.float() * (x - _by_channel(mean, x))).sum(_reduced(x))
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Maybe,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    total = count.sum().clamp(min=1)
    scale = invstd if weight is None else invstd * weight
    projected = (x - _by_channel(mean, x)) * _by_channel(sum_dy_xmu / total * invstd.square(), x)
    return ((grad - _by_channel(sum_dy / total, x) - projected) * _by_channel(scale, x)).to(x.dtype)


def fused_rms_norm_backward(
    grad: Tensor, x: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Maybe, output_mask: Sequence[bool]
) -> tuple[Maybe, Maybe]:
    """x [*, *normalized_shape], rstd [*, 1...] → gradients of x and of the weight, each None unless asked for."""
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    scaled = x * rstd
    grad_x = grad_weight = None
    if output_mask[0]:
        inner = grad if weight is None else grad * weight
        grad_x = ((inner - scaled * (inner * scaled).mean(dims, keepdim=True)) * rstd).to(x.dtype)
    if output_mask[1] and weight is not None:
        outer = list(range(x.dim() - len(normalized_shape)))
        grad_weight = (grad * scaled).sum(outer).to(weight.dtype) if outer else (grad * scaled).to(weight.dtype)
    return grad_x, grad_weight
