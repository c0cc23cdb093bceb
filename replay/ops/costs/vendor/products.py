# pyright: strict
"""Lowering of other vendor products: jagged rows, lists, quantisation before the product, gradients, whole layers."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.costs.layers.moe import ASSUMED_TOP_K, grouped, routed
from opreplay.replay.ops.costs.products.matmul import product
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, length, spec
from opreplay.traces.model import TensorMeta


def jagged_rows(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedMatmul of jagged rows (T, K) with one matrix (K, N) per sequence."""
    x, y = op.need("x_values", at=0, rank=2), op.need("y", at=2, rank=3)
    return [grouped(op, x.shape[0], y, x.shape[1], y.shape[2])]


def sums_by_sequence(op: OpView) -> Iterable[KernelCall]:
    """Return (T, M)^T @ (T, N) as one product per sequence. The results are added to the argument `self` if given."""
    x, y = op.need("x_values", "x", rank=2), op.need("y_values", "weight", rank=2)
    offsets, total = op.meta("x_offsets", "group_list"), op.meta("self")
    steps = length(offsets)
    groups = max(1, steps - 1 if "x_offsets" in op.args else steps)
    share = -(-x.shape[0] // groups)
    op.note(f"lengths are unknown: {x.shape[0]} rows assumed to be spread evenly over {groups} groups")
    lhs, rhs = spec((groups, x.shape[1], share), x.dtype), spec((groups, share, y.shape[1]), x.dtype)
    out = spec((groups, x.shape[1], y.shape[1]), x.dtype)
    call = kernel("GroupedMatmul", [lhs, rhs], [out], transpose_a=False, transpose_b=False)
    if total is None:
        return [call]
    summed = spec(total.shape, total.dtype)
    return [call, kernel("Add", [summed, summed], [summed])]


def lists_of_products(op: OpView) -> Iterable[KernelCall]:
    """Return one product per pair of rows (M, K) and weights (N, K). 8-bit floats are costed at the int8 rate."""
    names = ("X", "W") if "X" in op.args else ("XQ", "WQ")
    lhs, rhs = ([_eight_bit(t) for t in op.metas(name)] for name in names)
    if not lhs or len(lhs) != len(rhs) or any(len(t.shape) < 2 for t in (*lhs, *rhs)):
        raise DoesNotFit("two lists of matrices are needed")
    return [product(op, a, b, weight=True) for a, b in zip(lhs, rhs, strict=True)]


def _eight_bit(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(shape=meta.shape, dtype="int8" if "float8" in meta.dtype else meta.dtype, strides=meta.strides)


def dynamic_quant_matmul(op: OpView) -> Iterable[KernelCall]:
    """Return DynamicQuant of x (M, K), then the product with 8-bit weights at the int8 rate.

    The weights may be transposed.
    """
    x, weight = op.need("input", "x", at=0, rank=2), op.need("weight", "quantized_weight", at=1, rank=2)
    rows, inner = prod(x.shape[:-1]), x.shape[-1]
    turned = weight.shape[-1] == inner
    cols = weight.shape[-2 if turned else -1]
    narrow = spec((rows, inner), "int8")
    return [
        kernel("DynamicQuant", [spec((rows, inner), x.dtype)], [narrow, spec((rows,), "float32")]),
        kernel(
            "QuantBatchMatmulV3",
            [narrow, spec(weight.shape[-2:], "int8")],
            [spec((rows, cols), x.dtype)],
            transpose_a=False,
            transpose_b=turned,
        ),
    ]


def summed_over_batch(op: OpView) -> Iterable[KernelCall]:
    """Return int8 products summed over the batch as one product with an inner dimension of batch · K."""
    a, b = op.need("x1", at=0, rank=3), op.need("x2", at=1, rank=3)
    inner = a.shape[0] * a.shape[2]
    operands = [spec((a.shape[1], inner), "int8"), spec((inner, b.shape[2]), "int8")]
    out = spec((a.shape[1], b.shape[2]), "bfloat16")
    return [kernel("QuantBatchMatmulV3", operands, [out], transpose_a=False, transpose_b=False)]


def permuted_product(op: OpView) -> Iterable[KernelCall]:
    """Return a batched product that permutes its operands' dimensions while it reads them."""
    a, b = op.need("input", at=0, rank=3), op.need("weight", at=1, rank=3)
    return [product(op, _permuted(a, op.integers("perm_x1")), _permuted(b, op.integers("perm_x2")))]


def _permuted(meta: TensorMeta, order: tuple[int, ...]) -> TensorMeta:
    if not order:
        return meta
    if sorted(order) != list(range(len(meta.shape))):
        raise DoesNotFit(f"dimensions {order} do not fit a tensor of rank {len(meta.shape)}")
    return TensorMeta(shape=tuple(meta.shape[i] for i in order), dtype=meta.dtype)


def batched_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the product for the gradient of the first matrix, grad @ B^T, or of the second, A^T @ grad."""
    grad = op.need("grad", at=0, rank=2)
    if "mat1_backward" in op.op.name:
        return [product(op, grad, op.need("mat2", at=2, rank=2), weight=True)]
    a = op.need("mat1", at=1, rank=2)
    return [product(op, TensorMeta(shape=(*a.shape[:-2], a.shape[-1], a.shape[-2]), dtype=a.dtype), grad)]


def feed_forward(op: OpView) -> Iterable[KernelCall]:
    """Return two products, grouped ones if there are experts, with the activation between them."""
    x, w1, w2 = op.need("x", at=0, rank=2), op.need("weight1", at=1, rank=2), op.need("weight2", at=2, rank=2)
    rows, (width, wide), inner = prod(x.shape[:-1]), w1.shape[-2:], w2.shape[-2]
    kind = "SwiGlu" if wide == 2 * inner else "Gelu"
    if len(w1.shape) == 3:
        up, down = grouped(op, rows, w1, width, wide), grouped(op, rows, w2, inner, w2.shape[-1])
    else:
        up = product(op, TensorMeta(shape=(rows, width), dtype=x.dtype), w1)
        down = product(op, TensorMeta(shape=(rows, inner), dtype=x.dtype), w2)
    return [up, kernel(kind, [spec((rows, wide), x.dtype)], [spec((rows, inner), x.dtype)]), down]


def ungated_experts(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of experts without gating: routing, GroupedMatmul, Gelu, GroupedMatmul, sum over experts.

    Weights are gate (E, I, H) and down (E, H, I), both int8.
    """
    x = op.need("input", at=1, rank=2)
    gate, down = op.need("gate", at=2, rank=3), op.need("down", at=3, rank=3)
    rows = x.shape[0] * max(1, op.integer("topk", default=ASSUMED_TOP_K))
    width, inner = x.shape[-1], gate.shape[1]
    half = spec((rows, inner), "float16")
    products = (
        grouped(op, rows, gate, width, inner),
        kernel("Gelu", [half], [half]),
        grouped(op, rows, down, inner, width),
    )
    return routed(rows, width, x.dtype, *products, out_dtype="float16")
