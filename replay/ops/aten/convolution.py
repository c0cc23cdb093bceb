# pyright: strict
"""cuDNN's and MIOpen's convolutions, computed by aten::convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes


def convolution_overrideable(c: Call) -> Tensor:
    """Convolve; out-of-tree devices implement this op instead of aten's convolution."""
    sizes = (c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups)
    return torch.ops.aten.convolution.default(c.input, c.weight, c.bias, *sizes)


def convolution_backward_overrideable(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of convolution_overrideable; the bias gradient, if requested, is [O]."""
    filters = c.weight.shape[1] * c.groups if c.transposed else c.weight.shape[0]
    sizes = (c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups, c.output_mask)
    return torch.ops.aten.convolution_backward.default(c.grad_output, c.input, c.weight, [filters], *sizes)


def cudnn_convolution(c: Call) -> Tensor:
    """Convolve self [N, C, *] with weight [O, C / groups, *k].

    If the call has an output padding, the convolution is transposed and the weight is [C, O / groups, *k].
    """
    extra = getattr(c, "output_padding", None)
    sizes = (c.stride, c.padding, c.dilation, extra is not None, [0] * len(c.stride) if extra is None else extra)
    return torch.ops.aten.convolution.default(c.self, c.weight, getattr(c, "bias", None), *sizes, c.groups)


miopen_convolution = miopen_depthwise_convolution = cudnn_convolution
cudnn_convolution_transpose = miopen_convolution_transpose = cudnn_convolution


def cudnn_convolution_relu(c: Call) -> Tensor:
    """Return relu(cudnn_convolution)."""
    return cudnn_convolution(c).relu_()


def cudnn_convolution_add_relu(c: Call) -> Tensor:
    """Return relu(cudnn_convolution + alpha · z)."""
    return cudnn_convolution(c).add_(c.z, alpha=1 if c.alpha is None else c.alpha).relu_()


miopen_convolution_relu = cudnn_convolution_relu
miopen_convolution_add_relu = cudnn_convolution_add_relu


def conv_depthwise2d(c: Call) -> Tensor:
    """Return the depthwise convolution (2-D or 3-D): one group per channel, with the kernel size of the weight."""
    return cudnn_convolution(with_changes(c, groups=c.self.shape[1]))


conv_depthwise3d = conv_depthwise2d
