# pyright: strict
"""Convolution backward ops as torch named them until 1.10: one op per library and gradient.

Each op calls `convolution_backward` with the gradient mask that its name implies. The arguments are those of the old
schemas (module `legacy`).

Gradients are [N, O, *out], inputs [N, C, *in] and weights [O, C / groups, *k]. Weights of transposed convolutions are
[C, O / groups, *k]. Some ops do not receive the input or the weight; a size argument then gives its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes

Sizes = Sequence[int]
Mask = Sequence[bool]
Maybe = Tensor | None
Window = tuple[Sizes, Sizes, Sizes, int]
"""Stride, padding, dilation and groups."""
_INPUT, _WEIGHT = (True, False, False), (False, True, False)


def _backward(
    grad: Tensor, x: Tensor, weight: Tensor, window: Window, mask: Mask, output_padding: Sizes | None = None
) -> tuple[Maybe, Maybe, Maybe]:
    """Return the gradients of input, weight and bias.

    If `output_padding` is given, the convolution is a transposed one.
    """
    stride, padding, dilation, groups = window
    transposed = output_padding is not None
    extra = list(output_padding) if output_padding is not None else [0] * len(stride)
    wanted = [*(bool(m) for m in mask), False][:3]
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]] if wanted[2] else None
    return torch.ops.aten.convolution_backward.default(
        grad, x, weight, bias, stride, padding, dilation, transposed, extra, groups, wanted
    )


def _shaped(like: Tensor, size: Sizes) -> Tensor:
    """Return an uninitialised tensor of the given size in the memory format of `like`; its values are never read."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(like.dim())
    channels_last = last is not None and not like.is_contiguous() and like.is_contiguous(memory_format=last)
    memory_format = torch.contiguous_format if not channels_last or last is None else last
    return torch.empty(list(size), dtype=like.dtype, device=like.device, memory_format=memory_format)


def _asked(mask: Mask, gradients: tuple[Maybe, Maybe, Maybe]) -> tuple[Maybe, ...]:
    return gradients[: len(mask)]


def backward(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of input and weight, and of the bias if the mask has three entries.

    The convolution is transposed if the call has an output padding.
    """
    extra = getattr(c, "output_padding", None)
    window = (c.stride, c.padding, c.dilation, c.groups)
    return _asked(c.output_mask, _backward(c.grad_output, c.self, c.weight, window, c.output_mask, extra))


def slow(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of a convolution without groups. The dilation is 1 if the op has no such argument. Buffers
    of the forward pass are not read.
    """
    return backward(with_changes(c, groups=1, dilation=getattr(c, "dilation", None) or [1] * len(c.stride)))


def depthwise(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of a depthwise convolution, which has one group per channel."""
    return backward(with_changes(c, groups=c.self.shape[1]))


def to_input(c: Call) -> Maybe:
    """Return the gradient of the input, whose size is an argument."""
    x = _shaped(c.grad_output, c.self_size)
    return _backward(c.grad_output, x, c.weight, (c.stride, c.padding, c.dilation, c.groups), _INPUT)[0]


def to_weight(c: Call) -> Maybe:
    """Return the gradient of the weight, whose size is an argument."""
    weight = _shaped(c.self, c.weight_size)
    return _backward(c.grad_output, c.self, weight, (c.stride, c.padding, c.dilation, c.groups), _WEIGHT)[1]


def to_weight_and_bias(c: Call) -> tuple[Maybe, Maybe]:
    """Return the gradient of the weight as `to_weight` does, and of the bias if the convolution has one."""
    weight, mask = _shaped(c.self, c.weight_size), (False, True, c.bias_defined)
    return _backward(c.grad_output, c.self, weight, (c.stride, c.padding, c.dilation, c.groups), mask)[1:]


def to_bias(grad_output: Tensor) -> Tensor:
    """Return the gradient of the bias: [N, O, *] → [O]."""
    return grad_output.sum([0, *range(2, grad_output.dim())])


def _rest(grad: Tensor, x: Tensor, weight_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> list[int]:
    """Return the output padding that makes a transposed convolution of `x` as large as `grad`."""
    return [
        out - ((size - 1) * s - 2 * p + d * (k - 1) + 1)
        for out, size, k, s, p, d in zip(
            grad.shape[2:], x.shape[2:], weight_size[2:], stride, padding, dilation, strict=True
        )
    ]


def transpose_to_input(c: Call) -> Tensor:
    """Return the input gradient of a transposed convolution: the convolution of the output gradient."""
    sizes = (c.stride, c.padding, c.dilation, False, [0] * len(c.stride), c.groups)
    return torch.ops.aten.convolution.default(c.grad_output, c.weight, None, *sizes)


def transpose_to_weight(c: Call) -> Maybe:
    """Return the weight gradient of a transposed convolution; the weight's size is an argument."""
    grad, x = c.grad_output, c.self
    extra = _rest(grad, x, c.weight_size, c.stride, c.padding, c.dilation)
    window = (c.stride, c.padding, c.dilation, c.groups)
    return _backward(grad, x, _shaped(x, c.weight_size), window, _WEIGHT, extra)[1]


def nnpack(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of a convolution with stride 1 and without groups."""
    return _backward(c.grad_output, c.input, c.weight, ([1, 1], c.padding, [1, 1], 1), c.output_mask)


def nnpack_to_input(c: Call) -> Maybe:
    """Return the input gradient of a convolution with stride 1 and without groups."""
    return nnpack(with_changes(c, output_mask=_INPUT))[0]


def nnpack_to_weight(c: Call) -> Maybe:
    """Return the weight gradient of a convolution with stride 1 and without groups."""
    return nnpack(with_changes(c, weight=_shaped(c.input, c.weightsize), output_mask=_WEIGHT))[1]
