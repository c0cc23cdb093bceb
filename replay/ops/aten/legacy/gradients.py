# pyright: strict
"""Gradient ops of torch 1.8 to 1.13 that torch removed or whose arguments it changed, with their old schemas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Sizes = Sequence[int]
Maybe = Tensor | None
_MEAN = 1
"""Value of the reduction "mean" in torch."""


def softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, source: Tensor) -> Tensor:
    """Return the gradient of softmax, cast to the dtype of `source`, the softmax's input (e.g. to 16 bits)."""
    grad = torch.ops.aten._softmax_backward_data.default(grad_output, output, dim, grad_output.dtype)
    return grad if grad.dtype == source.dtype else grad.to(source.dtype)


def log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, source: Tensor) -> Tensor:
    """Return the gradient of log_softmax, with the arguments of softmax_backward_data."""
    grad = torch.ops.aten._log_softmax_backward_data.default(grad_output, output, dim, grad_output.dtype)
    return grad if grad.dtype == source.dtype else grad.to(source.dtype)


def batch_norm_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Maybe, mean_dy: Tensor, mean_dy_xmu: Tensor
) -> Tensor:
    """Return the gradient of x [N, C, *].

    All other tensors except `grad` are [C]. mean_dy is the mean of the gradient; mean_dy_xmu is the mean of gradient ·
    (x − mean).
    """
    shape = [1, -1, *[1] * (x.dim() - 2)]
    scale = invstd if weight is None else invstd * weight
    projected = (x - mean.reshape(shape)) * (mean_dy_xmu * invstd.square()).reshape(shape)
    return ((grad - mean_dy.reshape(shape) - projected) * scale.reshape(shape)).to(x.dtype)


def cumprod_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return the gradient of cumprod; the cumulative product is recomputed."""
    return torch.ops.aten.cumprod_backward.default(grad, x, dim, x.cumprod(dim))


def _resampled(op: str, corners: bool) -> Callable[..., Tensor]:
    """Return the backward function of a resampling op.

    The op's scales are None, or a list with an entry for each spatial dimension.
    """

    def backward(grad: Tensor, output_size: Sizes | None, input_size: Sizes, *rest: Any) -> Tensor:
        scales = rest[-1]
        space = len(input_size) - 2
        each = [None] * space if scales is None else list(scales)
        overload = getattr(torch.ops.aten, op).default
        align = rest[:1] if corners else ()
        return overload(grad, list(output_size or grad.shape[2:]), list(input_size), *align, *each)

    return backward


upsample_linear1d_backward = _resampled("upsample_linear1d_backward", True)
upsample_bilinear2d_backward = _resampled("upsample_bilinear2d_backward", True)
upsample_bicubic2d_backward = _resampled("upsample_bicubic2d_backward", True)
upsample_trilinear3d_backward = _resampled("upsample_trilinear3d_backward", True)
upsample_bilinear2d_aa_backward = _resampled("_upsample_bilinear2d_aa_backward", True)
upsample_bicubic2d_aa_backward = _resampled("_upsample_bicubic2d_aa_backward", True)
upsample_nearest1d_backward = _resampled("upsample_nearest1d_backward", False)
upsample_nearest2d_backward = _resampled("upsample_nearest2d_backward", False)
upsample_nearest3d_backward = _resampled("upsample_nearest3d_backward", False)
upsample_nearest_exact1d_backward = _resampled("_upsample_nearest_exact1d_backward", False)
upsample_nearest_exact2d_backward = _resampled("_upsample_nearest_exact2d_backward", False)
upsample_nearest_exact3d_backward = _resampled("_upsample_nearest_exact3d_backward", False)


def _reduced(grad: Tensor, x: Tensor, reduction: int) -> Tensor:
    return grad / x.numel() if reduction == _MEAN else grad


def binary_cross_entropy_with_logits_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Maybe = None,
    pos_weight: Maybe = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Return (sigmoid(x) - target) · gradient, with the positive class weighted if `pos_weight` is given."""
    if pos_weight is None:
        grad = (x.sigmoid() - target).mul_(grad_output)
    else:
        positive = pos_weight * target
        grad = ((positive + 1).sub_(target).mul_(x.sigmoid()).sub_(positive)).mul_(grad_output)
    grad = grad if weight is None else grad.mul_(weight)
    return grad.div_(x.numel()) if reduction == _MEAN else grad


def kl_div_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int = _MEAN, *, log_target: bool = False
) -> Tensor:
    """Return -target · gradient, or 0 where target <= 0. With log_target, return -exp(target) · gradient."""
    if log_target:
        return _reduced(-target.exp() * grad_output, x, reduction)
    return _reduced(torch.where(target > 0, -target * grad_output, torch.zeros_like(target)), x, reduction)


def l1_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """Return sign(x - target) · gradient."""
    return (x - target).sign_().mul_(_reduced(grad_output, x, reduction))


def prelu_backward(grad_output: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of x [N, C, *] and weight [C] or [1]."""
    shape = [1, -1, *[1] * (x.dim() - 2)] if weight.numel() > 1 else [1] * x.dim()
    wide = weight.reshape(shape)
    grad_x, each = torch.ops.aten._prelu_kernel_backward.default(grad_output, x, wide.expand_as(x))
    return grad_x, each.sum_to_size(wide.shape).reshape(weight.shape)


def col2im_backward(grad: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Tensor:
    """Return the gradient of col2im: [N, C, H, W] → [N, C k k, L]."""
    return torch.ops.aten.im2col.default(grad, kernel_size, dilation, padding, stride)


def im2col_backward(
    grad: Tensor, input_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    """Return the gradient of im2col: [N, C k k, L] → [N, C, H, W]."""
    return torch.ops.aten.col2im.default(grad, input_size, kernel_size, dilation, padding, stride)


def diag_backward(grad: Tensor, input_sizes: Sizes, diagonal: int) -> Tensor:
    """Return the gradient of diag.

    If the input was a vector, this is the diagonal of grad. Otherwise it is a matrix that is 0 off the diagonal.
    """
    if len(input_sizes) == 1:
        return grad.diag(diagonal)
    matrix = grad.new_zeros(list(input_sizes))
    matrix.diagonal(diagonal).copy_(grad)
    return matrix


def take_backward(grad: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """Return zeros shaped like `x`, with each element of `grad` added at its index."""
    return torch.ops.aten.put_.default(torch.zeros_like(x), index, grad, True)


def _unpooled(grad: Tensor, x: Tensor, indices: Tensor, output_size: Sizes, *window: Sizes, space: int) -> Tensor:
    del output_size, window
    places = indices.flatten(-space)
    return torch.gather(grad.flatten(-space), -1, places).view(x.shape)


max_unpool2d_backward = partial(_unpooled, space=2)
max_unpool3d_backward = partial(_unpooled, space=3)


def linear_to_input(input_size: Sizes, grad_output: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the input: [*, O] and [O, I] → [*, I]."""
    del input_size
    return torch.matmul(grad_output, weight)


def linear_to_weights(grad: Tensor, x: Tensor, weight: Tensor, bias_defined: bool) -> tuple[Tensor, Maybe]:
    """Return the gradients of the weight [O, I] and of the bias [O], if there is one.

    `grad` is [*, O] and `x` is [*, I].
    """
    rows = grad.reshape(-1, weight.shape[0])
    return rows.t().mm(x.reshape(-1, weight.shape[1])), rows.sum(0) if bias_defined else None


def linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool]) -> tuple[Maybe, Maybe, Maybe]:
    """Return the gradients of input, weight and bias."""
    to_x = linear_to_input(x.shape, grad, weight) if mask[0] else None
    to_weight, to_bias = linear_to_weights(grad, x, weight, mask[2]) if mask[1] or mask[2] else (None, None)
    return to_x, to_weight if mask[1] else None, to_bias


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1),
    ceil_mode: bool = False,
) -> Tensor:
    """Return the gradient of max_pool2d; the indices of the maxima are recomputed."""
    window = (list(kernel_size), list(stride), list(padding), list(dilation), ceil_mode)
    _, indices = functional.max_pool2d_with_indices(x, window[0], window[1] or None, *window[2:])
    return torch.ops.aten.max_pool2d_with_indices_backward.default(grad, x, *window, indices)
