# pyright: strict
"""Floating-point operations of products, attention and convolutions, from the sizes of their tensors.

A multiplication and an addition are two operations. Products with padding count, as do masked pairs of attention:
kernels compute them. Every function returns the operations of one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = Sequence[int]


def product_flops(first: Shape, second: Shape) -> int:
    """Return the operations of a matrix product: [m, k] x [k, n], vectors, or broadcast batches of these, as matmul."""
    if not first or not second:
        return 0
    rows = first[-2] if len(first) > 1 else 1
    columns = second[-1] if len(second) > 1 else 1
    return 2 * prod(_broadcast(first[:-2], second[:-2])) * rows * first[-1] * columns


def _broadcast(first: Shape, second: Shape) -> list[int]:
    rank = max(len(first), len(second))
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in (first, second)]
    return [n if m == 1 else m for n, m in zip(*padded, strict=True)]


def attention_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the operations of attention, [..., heads, tokens, width] each; fewer heads of keys are repeated."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def attention_backward_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the operations of the backward pass of attention: the scores once more, and four gradients."""
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def convolution_flops(data: Shape, weight: Shape, result: Shape, *, transposed: bool) -> int:
    """Return the operations of a convolution: each element of the result meets one filter of one group.

    Of a transposed one each element of `data` does. The weight's second dimension has the channels of one group.
    """
    return 2 * prod(data if transposed else result) * prod(weight[1:])


def convolution_backward_flops(
    gradient: Shape, data: Shape, weight: Shape, *, transposed: bool, wanted: Sequence[bool]
) -> int:
    """Return the operations of a convolution's gradients: as many as forward for that of the data, and for that of the
    weight, where `wanted` (data, weight, bias) asks for it."""
    return sum(wanted[:2]) * convolution_flops(data, weight, gradient, transposed=transposed)
