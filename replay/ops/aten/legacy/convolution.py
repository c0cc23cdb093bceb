# pyright: strict
"""Backward of convolutions under the names that torch had for each library and gradient until 1.10.

Each is one `convolution_backward` with the mask of the gradients that its name stands for. Arguments are as in the old
schemas (`legacy`): gradients [N, O, *out], inputs [N, C, *in], weights [O, C / groups, *k], where transposed
[C, O / groups, *k]; sizes of what is not given are those that the call names.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, but

Sizes = Sequence[int]
Mask = Sequence[bool]
Maybe = Tensor | None
_INPUT, _WEIGHT = (True, False, False), (False, True, False)


def _backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    mask: Mask,
    output_padding: Sizes | None = None,
) -> tuple[Maybe, Maybe, Maybe]:
    """`output_padding` given: of a transposed convolution."""
    transposed = output_padding is not None
    extra = list(output_padding) if output_padding is not None else [0] * len(stride)
    wanted = [*(bool(m) for m in mask), False][:3]
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]] if wanted[2] else None
    return torch.ops.aten.convolution_backward.default(
        grad, x, weight, bias, stride, padding, dilation, transposed, extra, groups, wanted
    )


def _shaped(like: Tensor, size: Sizes) -> Tensor:
    """A tensor of which only the size is looked at, in the memory format of another one."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(like.dim())
    channels_last = last is not None and not like.is_contiguous() and like.is_contiguous(memory_format=last)
    memory_format = torch.contiguous_format if not channels_last or last is None else last
    return torch.empty(list(size), dtype=like.dtype, device=like.device, memory_format=memory_format)


def _asked(mask: Mask, gradients: tuple[Maybe, Maybe, Maybe]) -> tuple[Maybe, ...]:
    return gradients[: len(mask)]


def backward(c: Call) -> tuple[Maybe, ...]:
    """Gradients of input and weight, and of the bias where the mask asks for three; with output padding transposed."""
    sizes = (c.stride, c.padding, c.dilation, c.groups, c.output_mask, getattr(c, "output_padding", None))
    return _asked(c.output_mask, _backward(c.grad_output, c.self, c.weight, *sizes))


def slow(c: Call) -> tuple[Maybe, ...]:
    """As backward, without groups, and without dilation where there is none; what the forward has left is not read."""
    return backward(but(c, groups=1, dilation=getattr(c, "dilation", None) or [1] * len(c.stride)))


def depthwise(c: Call) -> tuple[Maybe, ...]:
    """As backward, one group a channel."""
    return backward(but(c, groups=c.self.shape[1]))


def to_input(c: Call) -> Maybe:
    """The gradient of an input of this size."""
    x = _shaped(c.grad_output, c.self_size)
    return _backward(c.grad_output, x, c.weight, c.stride, c.padding, c.dilation, c.groups, _INPUT)[0]


def to_weight(c: Call) -> Maybe:
    """The gradient of a weight of this size."""
    weight = _shaped(c.self, c.weight_size)
    return _backward(c.grad_output, c.self, weight, c.stride, c.padding, c.dilation, c.groups, _WEIGHT)[1]


def to_weight_and_bias(c: Call) -> tuple[Maybe, Maybe]:
    """As to_weight, and of the bias where the convolution has one."""
    weight, mask = _shaped(c.self, c.weight_size), (False, True, c.bias_defined)
    return _backward(c.grad_output, c.self, weight, c.stride, c.padding, c.dilation, c.groups, mask)[1:]


def to_bias(grad_output: Tensor) -> Tensor:
    """[N, O, *] → [O]."""
    return grad_output.sum([0, *range(2, grad_output.dim())])


def _rest(grad: Tensor, x: Tensor, weight_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> list[int]:
    """The output padding with which a transposed convolution of `x` makes something as large as `grad`."""
    return [
        out - ((size - 1) * s - 2 * p + d * (k - 1) + 1)
        for out, size, k, s, p, d in zip(
            grad.shape[2:], x.shape[2:], weight_size[2:], stride, padding, dilation, strict=True
        )
    ]


def transpose_to_input(c: Call) -> Tensor:
    """The gradient of a transposed convolution's input is the convolution of the result's."""
    sizes = (c.stride, c.padding, c.dilation, False, [0] * len(c.stride), c.groups)
    return torch.ops.aten.convolution.default(c.grad_output, c.weight, None, *sizes)


def transpose_to_weight(c: Call) -> Maybe:
    """As to_weight, of a transposed convolution."""
    grad, x = c.grad_output, c.self
    extra = _rest(grad, x, c.weight_size, c.stride, c.padding, c.dilation)
    sizes = (c.stride, c.padding, c.dilation, c.groups, _WEIGHT, extra)
    return _backward(grad, x, _shaped(x, c.weight_size), *sizes)[1]


def nnpack(c: Call) -> tuple[Maybe, ...]:
    """Of a convolution of stride 1 without groups."""
    return _backward(c.grad_output, c.input, c.weight, [1, 1], c.padding, [1, 1], 1, c.output_mask)


def nnpack_to_input(c: Call) -> Maybe:
    """As nnpack, one gradient."""
    return nnpack(but(c, output_mask=_INPUT))[0]


def nnpack_to_weight(c: Call) -> Maybe:
    """As nnpack, one gradient."""
    return nnpack(but(c, weight=_shaped(c.input, c.weightsize), output_mask=_WEIGHT))[1]
