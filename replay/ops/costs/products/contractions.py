"""Lowering of other matrix products: contractions, packed and sparse weights, pairwise distances, chains."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.costs.products.matmul import product
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta


def _pair(op: OpView, *, rank: int = 1) -> tuple[TensorMeta, TensorMeta]:
    metas = [t for t in op.tensors if len(t.shape) >= rank]
    if len(metas) < 2:
        raise DoesNotFit("a product needs two tensors")
    return metas[0], metas[1]


@costs("aten::addr")
def outer_sum(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of A + x y^T: an elementwise product of a column and a row, and a sum."""
    x, y = op.need("vec1", at=1), op.need("vec2", at=2)
    column, row = spec((prod(x.shape), 1), x.dtype), spec((1, prod(y.shape)), y.dtype)
    out = spec((prod(x.shape), prod(y.shape)), x.dtype)
    return [kernel("Mul", [column, row], [out]), kernel("Add", [out, out], [out])]


@costs(
    """
        aten::linalg_matmul aten::__matmul__ aten::smm aten::hspmm aten::_sparse_mm aten::spmm
        aten::_sparse_semi_structured_mm aten::_sparse_mm_reduce_impl
    """
)
def same_as_matmul(op: OpView) -> Iterable[KernelCall]:
    """Return a dense product for A @ B.

    Sparse operands are treated as dense, because these cores have no sparse products.
    """
    a, b = _pair(op)
    if "sparse" in op.op.name or op.op.name in ("aten::smm", "aten::hspmm", "aten::spmm"):
        op.note("this SoC has no sparse matrix products: costed as a dense one")
    return [product(op, a, b)]


@costs(
    """
        aten::_sparse_addmm aten::sspaddmm aten::sparse_sampled_addmm aten::_sparse_semi_structured_addmm
        aten::_cslt_sparse_mm aten::_sparse_semi_structured_linear
    """
)
def sparse_sum(op: OpView) -> Iterable[KernelCall]:
    """Return a dense product for C + A @ B with a sparse operand."""
    op.note("this SoC has no sparse matrix products: costed as a dense one")
    metas = [t for t in op.tensors if len(t.shape) == 2]
    out = op.outputs()
    for a in metas:
        for b in metas:
            if a is not b and a.shape[1] == b.shape[0] and (not out or out[0].shape == (a.shape[0], b.shape[1])):
                return [product(op, a, b)]
    raise DoesNotFit("no two operands have matching sizes")


def _gemm(batch: int, m: int, n: int, k: int, dtype: str) -> KernelCall:
    lead = (batch,) if batch > 1 else ()
    operands = [spec((*lead, m, k), dtype), spec((*lead, k, n), dtype)]
    kind = "BatchMatMulV3" if lead else "MatMulV3"
    return kernel(kind, operands, [spec((*lead, m, n), dtype)], transpose_a=False, transpose_b=False)


EXPONENTIAL_PRODUCTS = 9
"""Number of matrix products of a matrix exponential: five for a Taylor polynomial of degree 18, and four squarings.

The polynomial is that of Bader, Blanes and Casas 2019, which PyTorch uses. The number of squarings depends on the
matrix's contents, so four is an assumption.
"""


@costs("aten::matrix_exp aten::linalg_matrix_exp aten::matrix_exp_backward")
def matrix_exponential(op: OpView) -> Iterable[KernelCall]:
    """Return the products of the matrix with itself that compute its exponential.

    The gradient is a block of the exponential of a matrix of twice the size. Hence its products have twice the size.
    """
    source = op.need("self", at=0, rank=2)
    size = source.shape[-1] * (2 if "backward" in op.op.name else 1)
    op.assume("how often the matrix is squared depends on its contents: four times assumed")
    whole = _gemm(prod(source.shape[:-2]), size, size, size, source.dtype)
    return [msgspec.structs.replace(whole, count=EXPONENTIAL_PRODUCTS)]


@costs("aten::einsum")
def einsum(op: OpView) -> Iterable[KernelCall]:
    """Return products of pairs from left to right, with sizes from the equation if it is recorded."""
    equation = op.value("equation")
    metas = op.metas("tensors" if "tensors" in op.args else "operands")
    if not isinstance(equation, str) or "." in equation:
        return contraction(op)
    terms, _, result = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    if len(letters) != len(metas) or any(len(t.shape) != len(names) for t, names in zip(metas, letters, strict=True)):
        raise DoesNotFit("the equation does not fit the operands")
    sizes: dict[str, int] = {}
    for meta, names in zip(metas, letters, strict=True):
        sizes.update(zip(names, meta.shape, strict=True))
    a, kernels = set(letters[0]), []
    for place, names in enumerate(letters[1:], start=1):
        b, later = set(names), set(result).union(*letters[place + 1 :])
        out = (a | b) & later
        parts = a & b & out, (a - b) & out, (b - a) & out, (a | b) - out
        batch, m, n, k = (prod(sizes[name] for name in part) for part in parts)
        kernels.append(_gemm(batch, m, n, k, metas[0].dtype))
        a = out
    if not kernels:
        source = op.packed(metas[0])
        kernels.append(kernel("ReduceSum", [source], [spec([sizes[name] for name in result], source.dtype)]))
    return kernels


@costs("aten::tensordot")
def tensordot(op: OpView) -> Iterable[KernelCall]:
    """Return one product over the given dimensions, or over the dimension derived from the result's shape."""
    a, b = _pair(op, rank=0)
    dims = [dim for dim in op.integers("dims_self") if -len(a.shape) <= dim < len(a.shape)]
    if not dims and op.outputs():
        return contraction(op)
    inner = max(1, prod(a.shape[dim] for dim in dims))
    return [_gemm(1, prod(a.shape) // inner, prod(b.shape) // inner, inner, a.dtype)]


@costs("aten::bilinear")
def bilinear(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of a bilinear layer.

    First, input1 (N, I) is multiplied by the weights (O, I, J), which gives (N, O, J). This result is multiplied by
    input2, as (N, 1, J), and summed over J.
    """
    a, b, weight = op.need("input1", at=0, rank=1), op.need("input2", at=1), op.need("weight", at=2, rank=3)
    rows, (out, inner, other) = prod(a.shape[:-1]), weight.shape[:3]
    full, result = spec((rows, out, other), a.dtype), spec((rows, out), a.dtype)
    weighted = kernel("Mul", [full, spec((rows, 1, other), b.dtype)], [full])
    return [_gemm(1, rows, out * other, inner, a.dtype), weighted, kernel("ReduceSum", [full], [result])]


@costs("aten::_trilinear")
def contraction(op: OpView) -> Iterable[KernelCall]:
    """Return one product of two operands.

    Leading sizes that are shared with the result are the batch. Inner sizes are summed.
    """
    a, b = _pair(op)
    sizes = op.outputs()
    if not sizes:
        raise DoesNotFit("the result is unknown")
    batch, matrices = 1, max(len(a.shape), len(b.shape)) <= 2  # which are multiplied, not a batch of rows
    for size_a, size_b, size_out in zip(a.shape, b.shape, sizes[0].shape, strict=False):
        if matrices or not size_a == size_b == size_out:
            break
        batch *= size_a
    elements_a, elements_b, elements_out = (max(1, prod(t.shape) // max(1, batch)) for t in (a, b, sizes[0]))
    inner = max(1, round((elements_a * elements_b / elements_out) ** 0.5))
    op.note("the equation is not recorded: costed as one product with the sizes of operands and result")
    return [_gemm(max(1, batch), max(1, elements_a // inner), max(1, elements_b // inner), inner, sizes[0].dtype)]


@costs("aten::chain_matmul aten::linalg_multi_dot")
def chain(op: OpView) -> Iterable[KernelCall]:
    """Return the products of a chain from left to right."""
    metas = [t for t in op.tensors if t.shape]
    if not metas:
        raise DoesNotFit("a chain needs matrices")
    kernels, partial = [], metas[0]
    for right in metas[1:]:
        kernels.append(product(op, partial, right))
        partial = TensorMeta(shape=kernels[-1].outputs[0].shape if kernels[-1].outputs[0] else (), dtype=partial.dtype)
    return kernels


@costs("aten::matrix_power aten::linalg_matrix_power")
def power(op: OpView) -> Iterable[KernelCall]:
    """Return the products of repeated squaring."""
    a = op.need("self", at=0)
    exponent = abs(op.integer("n", default=2))
    count = max(1, exponent.bit_length() - 1 + bin(exponent).count("1") - 1)
    return [product(op, a, a)] * min(count, 128)


@costs("aten::matmul_backward")
def matmul_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the products for the gradients of both operands."""
    grad, a, b = op.meta("grad", at=0), op.meta("self", at=1), op.meta("other", at=2)
    if grad is None or a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        raise DoesNotFit("a gradient and two matrices are needed")
    turned_a, turned_b = (_transposed_meta(t) for t in (a, b))
    return [product(op, grad, turned_b), product(op, turned_a, grad)]


def _transposed_meta(meta: TensorMeta) -> TensorMeta:
    *rest, rows, cols = meta.shape
    steps = [cols * rows * prod(rest[i + 1 :]) for i in range(len(rest))]
    return TensorMeta(shape=(*rest, cols, rows), dtype=meta.dtype, strides=(*steps, 1, cols))


@costs("aten::_foreach_mm")
def list_of_products(op: OpView) -> Iterable[KernelCall]:
    """Return one product for each pair of matrices at the same position of two lists."""
    lhs, rhs = op.metas("self"), op.metas("mat2")
    return [product(op, a, b) for a, b in zip(lhs, rhs, strict=False)]


@costs("aten::_euclidean_dist")
def euclidean(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels for all distances between two sets of rows: one product and one Sqrt."""
    batch, m, n, k, dtype = _rows_compared(op)
    out = spec((*((batch,) if batch > 1 else ()), m, n), dtype)
    return [_gemm(batch, m, n, k, dtype), kernel("Sqrt", [out, out], [out])]


@costs("aten::cdist aten::_cdist_forward aten::pdist aten::_pdist_forward")
def distances(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of Cdist: write out all pairs of rows of the two sets, then sum the differences."""
    batch, m, n, k, dtype = _rows_compared(op)
    pairs = spec((batch, m, n, k), dtype)
    return [*_pairs_written(op, pairs), kernel("ReduceSum", [pairs, pairs], [spec((batch, m, n), dtype)])]


@costs("aten::_cdist_backward aten::_pdist_backward")
def distances_backward(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that write out all pairs of rows, then sum the pairs' gradients over the rows of one set."""
    batch, m, n, k, dtype = _rows_compared(op, at=1)
    pairs, gradient = spec((batch, m, n, k), dtype), spec((batch, m, k), dtype)
    product_of_pairs = kernel("Mul", [pairs, pairs], [pairs])
    return [*_pairs_written(op, pairs), product_of_pairs, kernel("ReduceSum", [pairs], [gradient])]


def _pairs_written(op: OpView, pairs: TensorSpec) -> list[KernelCall]:
    """Return the kernels that write out all pairs of rows: (batch, rows of the first set, rows of the second,
    length).
    """
    op.assume("all pairs of rows are written to memory, as assumed for torch_npu (never measured)")
    batch, m, _, k = pairs.shape
    return [kernel("Tile", [spec((batch, m, 1, k), pairs.dtype)], [pairs])] * 2


def _rows_compared(op: OpView, at: int = 0) -> tuple[int, int, int, int, str]:
    """Return (batch size, row count of the first set, row count of the second set, row length, dtype)."""
    a = op.need("x1", "self", at=at, rank=2)
    b = op.meta("x2", at=at + 1) or a
    if len(b.shape) < 2:
        raise DoesNotFit("needs rows")
    return prod(a.shape[:-2]), a.shape[-2], b.shape[-2], a.shape[-1], a.dtype
