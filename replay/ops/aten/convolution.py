# pyright: strict
"""cuDNN's and MIOpen's convolutions through aten::convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Sizes = Sequence[int]
Number = int | float | None


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    output_padding: Sizes | None = None,
) -> Tensor:
    """x [N, C, *], weight [O, C / groups, *k] (transposed, when output_padding is given: [C, O / groups, *k])."""
    transposed = output_padding is not None
    extra = output_padding if output_padding is not None else [0] * len(stride)
    return torch.ops.aten.convolution.default(x, weight, bias, stride, padding, dilation, transposed, extra, groups)


def convolution_overrideable(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """What a device outside of torch puts in place of aten's convolution."""
    return torch.ops.aten.convolution.default(x, weight, *rest)


def convolution_backward_overrideable(
    grad_output: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """As convolution_overrideable; bias [O] where its gradient is wanted."""
    filters = weight.shape[1] * groups if transposed else weight.shape[0]
    return torch.ops.aten.convolution_backward.default(
        grad_output, x, weight, [filters], stride, padding, dilation, transposed, output_padding, groups, output_mask
    )


def cudnn_convolution(
    x: Tensor, weight: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: bool
) -> Tensor:
    return _convolve(x, weight, None, stride, padding, dilation, groups)


def cudnn_convolution_transpose(
    x: Tensor,
    weight: Tensor,
    padding: Sizes,
    output_padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    *_: bool,
) -> Tensor:
    return _convolve(x, weight, None, stride, padding, dilation, groups, output_padding)


def cudnn_convolution_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    return _convolve(x, weight, bias, stride, padding, dilation, groups).relu_()


def cudnn_convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: Number,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    out = _convolve(x, weight, bias, stride, padding, dilation, groups)
    return out.add_(z, alpha=1 if alpha is None else alpha).relu_()


def miopen_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    *_: bool,
) -> Tensor:
    return _convolve(x, weight, bias, stride, padding, dilation, groups)


miopen_depthwise_convolution = miopen_convolution
miopen_convolution_relu = cudnn_convolution_relu
miopen_convolution_add_relu = cudnn_convolution_add_relu


def miopen_convolution_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Sizes,
    output_padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    *_: bool,
) -> Tensor:
    return _convolve(x, weight, bias, stride, padding, dilation, groups, output_padding)


def conv_depthwise2d(
    x: Tensor, weight: Tensor, kernel_size: Sizes, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Tensor:
    """Also 3-D: one group a channel; the kernel's size is the weight's."""
    del kernel_size
    return _convolve(x, weight, bias, stride, padding, dilation, x.shape[1])


conv_depthwise3d = conv_depthwise2d
