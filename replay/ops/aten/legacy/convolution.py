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


def cudnn(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """Gradients of input and weight."""
    del benchmark, deterministic, allow_tf32
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, groups, mask))


def miopen(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """Gradients of input, weight and bias."""
    del benchmark, deterministic
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, groups, mask))


def mkldnn(
    x: Tensor, grad: Tensor, weight: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, mask: Mask
) -> tuple[Maybe, ...]:
    """Gradients of input, weight and bias."""
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, groups, mask))


def to_input(
    size: Sizes, grad: Tensor, weight: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: bool
) -> Maybe:
    """The gradient of an input of this size."""
    return _backward(grad, _shaped(grad, size), weight, stride, padding, dilation, groups, _INPUT)[0]


def to_weight(
    size: Sizes, grad: Tensor, x: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: bool
) -> Maybe:
    """The gradient of a weight of this size."""
    return _backward(grad, x, _shaped(x, size), stride, padding, dilation, groups, _WEIGHT)[1]


def to_weight_and_bias(
    size: Sizes,
    grad: Tensor,
    x: Tensor,
    padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    bias_defined: bool,
) -> tuple[Maybe, Maybe]:
    """As to_weight, and of the bias where the convolution has one."""
    mask = (False, True, bias_defined)
    return _backward(grad, x, _shaped(x, size), stride, padding, dilation, groups, mask)[1:]


def to_bias(grad: Tensor) -> Tensor:
    """[N, O, *] → [O]."""
    return grad.sum([0, *range(2, grad.dim())])


def _rest(grad: Tensor, x: Tensor, weight_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> list[int]:
    """The output padding with which a transposed convolution of `x` makes something as large as `grad`."""
    return [
        out - ((size - 1) * s - 2 * p + d * (k - 1) + 1)
        for out, size, k, s, p, d in zip(
            grad.shape[2:], x.shape[2:], weight_size[2:], stride, padding, dilation, strict=True
        )
    ]


def cudnn_transpose(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: Sizes,
    output_padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """As cudnn, of a transposed convolution."""
    del benchmark, deterministic, allow_tf32
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, groups, mask, output_padding))


def miopen_transpose(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: Sizes,
    output_padding: Sizes,
    stride: Sizes,
    dilation: Sizes,
    groups: int,
    benchmark: bool,
    deterministic: bool,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """As miopen, of a transposed convolution."""
    del benchmark, deterministic
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, groups, mask, output_padding))


def transpose_to_input(
    grad: Tensor, weight: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: bool
) -> Tensor:
    """The gradient of a transposed convolution's input is the convolution of the result's."""
    return torch.ops.aten.convolution.default(
        grad, weight, None, stride, padding, dilation, False, [0] * len(stride), groups
    )


def transpose_to_weight(
    size: Sizes, grad: Tensor, x: Tensor, padding: Sizes, stride: Sizes, dilation: Sizes, groups: int, *_: bool
) -> Maybe:
    """As to_weight, of a transposed convolution."""
    extra = _rest(grad, x, size, stride, padding, dilation)
    return _backward(grad, x, _shaped(x, size), stride, padding, dilation, groups, _WEIGHT, extra)[1]


def nnpack(x: Tensor, grad: Tensor, weight: Tensor, padding: Sizes, mask: Mask) -> tuple[Maybe, ...]:
    """Of a convolution of stride 1 without groups."""
    return _backward(grad, x, weight, [1, 1], padding, [1, 1], 1, mask)


def nnpack_to_input(x: Tensor, grad: Tensor, weight: Tensor, padding: Sizes) -> Maybe:
    """As nnpack, one gradient."""
    return _backward(grad, x, weight, [1, 1], padding, [1, 1], 1, _INPUT)[0]


def nnpack_to_weight(x: Tensor, size: Sizes, grad: Tensor, padding: Sizes) -> Maybe:
    """As nnpack, one gradient."""
    return _backward(grad, x, _shaped(x, size), [1, 1], padding, [1, 1], 1, _WEIGHT)[1]


def slow_dilated(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """Gradients of input, weight and bias."""
    del kernel_size
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, 1, mask))


def slow_with_columns(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    columns: Tensor,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """Without dilation; `columns` is what the forward has left behind for this."""
    del columns
    return slow_dilated(grad, x, weight, kernel_size, stride, padding, [1] * len(stride), mask)


def slow_with_scratch(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    columns: Tensor,
    scratch: Tensor,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """As slow_with_columns."""
    del scratch
    return slow_with_columns(grad, x, weight, kernel_size, stride, padding, columns, mask)


def slow_transpose(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    columns: Tensor,
    scratch: Tensor,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """Of a transposed convolution without groups."""
    del kernel_size, columns, scratch
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, 1, mask, output_padding))


def depthwise(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    mask: Mask,
) -> tuple[Maybe, ...]:
    """One group a channel."""
    del kernel_size
    return _asked(mask, _backward(grad, x, weight, stride, padding, dilation, x.shape[1], mask))
