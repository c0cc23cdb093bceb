# pyright: strict
"""Normalisations of cuDNN, MIOpen and synchronised batch norm, and the backward of fused RMS norm, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes

Maybe = Tensor | None


def cudnn_batch_norm(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the batch norm of input [N, C, *], the saved mean and inverse deviation [C], and an empty reserve."""
    return *miopen_batch_norm(c), c.input.new_empty(0, dtype=torch.uint8)


def miopen_batch_norm(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise input [N, C, *]. Returns the result, and the saved mean and inverse standard deviation, both [C]."""
    running, settings = (c.running_mean, c.running_var), (c.training, c.exponential_average_factor, c.epsilon)
    return torch.native_batch_norm(c.input, c.weight, c.bias, *running, *settings)


def miopen_batch_norm_backward(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias of a batch norm in training."""
    statistics = (c.running_mean, c.running_var, c.save_mean, c.save_var)
    return torch.ops.aten.native_batch_norm_backward.default(
        c.grad_output.to(c.input.dtype), c.input, c.weight, *statistics, True, c.epsilon, [True, True, True]
    )


cudnn_batch_norm_backward = miopen_batch_norm_backward


def native_batch_norm_backward(c: Call) -> tuple[Maybe, Maybe, Maybe]:
    """Compute the gradients of batch norm, with all per-channel tensors in float32.

    The reason is that the CPU, unlike CUDA, does not accept mixed dtypes.
    """
    given = (c.weight, c.running_mean, c.running_var, c.save_mean, c.save_invstd)
    by_channel = [None if t is None else t.float() for t in given]
    of_input, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward.default(
        c.grad_out.to(c.input.dtype), c.input, *by_channel, c.train, c.eps, list(c.output_mask)
    )
    dtype = c.input.dtype if c.weight is None else c.weight.dtype
    of_weight, of_bias = (None if grad is None else grad.to(dtype) for grad in (of_weight, of_bias))
    return of_input, of_weight, of_bias


def _reduced(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _by_channel(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.reshape(1, -1, *[1] * (x.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation of each channel of x [N, C, *], both float32 [C]."""
    variance, mean = torch.var_mean(x.float(), dim=_reduced(x), correction=0)
    return mean, (variance + eps).rsqrt()


def batch_norm_elemt(x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    del eps
    out = (x - _by_channel(mean, x)) * _by_channel(invstd, x)
    if weight is not None:
        out = out * _by_channel(weight, x)
    return (out if bias is None else out + _by_channel(bias, x)).to(x.dtype)


def batch_norm_gather_stats(c: Call) -> tuple[Tensor, Tensor]:
    """Merge per-rank mean and invstd [ranks, C] into mean and invstd [C]. All ranks have the same number of rows."""
    counts = torch.full((c.mean.shape[0],), float(c.count), device=c.mean.device)
    return batch_norm_gather_stats_with_counts(with_changes(c, counts=counts))


def batch_norm_gather_stats_with_counts(c: Call) -> tuple[Tensor, Tensor]:
    """Merge per-rank mean and invstd [ranks, C], weighted by counts [ranks], into mean and invstd [C]."""
    weights = c.counts.reshape(-1, 1).to(c.mean.dtype)
    total = weights.sum()
    mean_all = (c.mean * weights).sum(0) / total
    squares = c.invstd.pow(-2) - c.eps + (c.mean - mean_all).square()
    variance = (squares * weights).sum(0) / total
    if c.running_mean is not None:
        c.running_mean.lerp_(mean_all.to(c.running_mean.dtype), c.momentum)
    if c.running_var is not None:
        c.running_var.lerp_((variance * total / (total - 1).clamp(min=1)).to(c.running_var.dtype), c.momentum)
    return mean_all, (variance + c.eps).rsqrt()


def batch_norm_backward_reduce(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Σ grad and Σ grad · (input − mean) over all dims except channels, then the gradients of weight
    and bias.
    """
    grad, dims = c.grad_out.float(), _reduced(c.input)
    sum_dy, sum_dy_xmu = grad.sum(dims), (grad * (c.input - _by_channel(c.mean, c.input))).sum(dims)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * c.invstd, sum_dy


def batch_norm_backward_elemt(c: Call) -> Tensor:
    """Return the gradient of the input [N, C, *]; sum_dy and sum_dy_xmu are sums over all ranks."""
    x, total = c.input, c.count.sum().clamp(min=1)
    scale = c.invstd if c.weight is None else c.invstd * c.weight
    projected = (x - _by_channel(c.mean, x)) * _by_channel(c.sum_dy_xmu / total * c.invstd.square(), x)
    return ((c.grad_out - _by_channel(c.sum_dy / total, x) - projected) * _by_channel(scale, x)).to(x.dtype)


def fused_rms_norm_backward(
    grad: Tensor, x: Tensor, normalized_shape: Sequence[int], rstd: Tensor, weight: Maybe, output_mask: Sequence[bool]
) -> tuple[Maybe, Maybe]:
    """Return the gradients of x [*, *normalized_shape] and of the weight, each None if not requested.

    rstd is [*, 1...].
    """
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
