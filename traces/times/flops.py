# pyright: strict
"""Compute the floating-point operations of products, attention and convolutions from the sizes of their tensors.

A multiplication with an addition counts as two operations, or as eight for complex numbers (`COMPLEX`). Padding in
products and masked pairs in attention count too, because kernels compute them. Every function returns the operations of
one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

Shape = Sequence[int]
COMPLEX = 4
"""Real multiplications and additions per complex one: adding (a + bi)(c + di) to a sum takes four of each."""


def complex_factor(dtypes: Iterable[str | None]) -> int:
    """Return `COMPLEX` if a tensor of the call has a complex dtype ("complex64"), otherwise 1."""
    return COMPLEX if any(dtype is not None and "complex" in dtype for dtype in dtypes) else 1


def product_flops(first: Shape, second: Shape) -> int:
    """Return the operations of a matrix product: [m, k] x [k, n], vectors, or broadcast batches of these, as
    in matmul.
    """
    if not first or not second:
        return 0
    rows = first[-2] if len(first) > 1 else 1
    columns = second[-1] if len(second) > 1 else 1
    return 2 * prod(_broadcast(first[:-2], second[:-2])) * rows * first[-1] * columns


def bilinear_flops(first: Shape, weight: Shape, second: Shape) -> int:
    """Return the operations of torch's bilinear layer: for each o, the sum over i and j of x[i] w[o, i, j] y[j]. It is
    computed as a product with x [..., i] and then one with y [..., j].
    """
    outputs, width, other = weight
    return 2 * prod(first[:-1]) * outputs * (width + 1) * other if second else 0


def trilinear_flops(shapes: Sequence[Shape], expanded: Sequence[Sequence[int]], summed: Sequence[int]) -> int:
    """Return the operations of torch's `_trilinear`: two consecutive products of three factors.

    Each product is summed over the dimensions that no later factor has. `expanded` lists, for each factor, the
    dimensions that it lacks, in the numbering of all dimensions. `summed` lists the dimensions that are summed over. A
    product without a sum takes one operation per element. Return 0 if the sizes do not match the dimensions.
    """
    rank = len(shapes[0]) + len(expanded[0])
    sizes: list[list[int]] = []
    for shape, lacking in zip(shapes, expanded, strict=True):
        own = [dim for dim in range(rank) if dim not in lacking]
        if len(own) != len(shape):
            return 0
        sizes.append([shape[own.index(dim)] if dim in own else 1 for dim in range(rank)])
    early = [dim for dim in summed if dim in expanded[2]]
    late = [dim for dim in summed if dim not in expanded[2]]
    both = _broadcast(sizes[0], sizes[1])
    between = [1 if dim in early else size for dim, size in enumerate(both)]
    all_three = _broadcast(between, sizes[2])
    return (2 if early else 1) * prod(both) + (2 if late else 1) * prod(all_three)


def _broadcast(first: Shape, second: Shape) -> list[int]:
    rank = max(len(first), len(second))
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in (first, second)]
    return [n if m == 1 else m for n, m in zip(*padded, strict=True)]


def attention_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the operations of attention on tensors [..., heads, tokens, width]. If there are fewer key heads than
    query heads, the key heads are repeated.
    """
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def attention_backward_flops(query: Shape, key: Shape, value: Shape) -> int:
    """Return the operations of the backward pass of attention: the recomputed scores and four gradients."""
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


def convolution_flops(data: Shape, weight: Shape, result: Shape, *, transposed: bool) -> int:
    """Return the operations of a convolution, in which each element of the result uses one filter of one group.

    If transposed, each element of `data` uses one filter instead. The weight's second dimension is the channels of one
    group.
    """
    return 2 * prod(data if transposed else result) * prod(weight[1:])


def convolution_backward_flops(
    gradient: Shape, data: Shape, weight: Shape, *, transposed: bool, wanted: Sequence[bool]
) -> int:
    """Return the operations of the gradients of a convolution.

    Each requested gradient, of the data or of the weight, takes as many operations as the forward pass. `wanted` says
    which of (data, weight, bias) are requested.
    """
    return sum(wanted[:2]) * convolution_flops(data, weight, gradient, transposed=transposed)
