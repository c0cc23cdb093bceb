# pyright: strict
"""Lowering of matrix products: plain, batched, with bias, quantised, and vendors' variants."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec, broadcast
from opreplay.replay.ops.op_view import DoesNotFit, OpView, is_contiguous, kernel, promote, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta, contiguous_strides


def operand(op: OpView, meta: TensorMeta) -> tuple[TensorSpec, bool]:
    """Return a matrix operand as it lies in memory, and whether the product reads it transposed.

    A transposed view is read in place. Any other strided view is copied first.
    """
    shape = meta.shape
    if len(shape) < 2 or is_contiguous(meta):
        return spec(shape, meta.dtype), False
    strides = meta.strides or contiguous_strides(shape)
    swapped = (*shape[:-2], shape[-1], shape[-2])
    lying = TensorMeta(shape=swapped, dtype=meta.dtype, strides=(*strides[:-2], strides[-1], strides[-2]))
    if is_contiguous(lying):
        return spec(swapped, meta.dtype), True
    rows_apart = strides[-1] == 1 and strides[-2] >= shape[-1]
    if rows_apart and (len(shape) == 2 or is_contiguous(TensorMeta(shape=shape[:-2], dtype=meta.dtype))):
        return spec(shape, meta.dtype), False
    return op.packed(meta, row_major=True), False


def product(op: OpView, a: TensorMeta, b: TensorMeta, *rest: TensorSpec, weight: bool = False) -> KernelCall:
    """Return the kernel for A @ B, or A @ B^T if B is a layer's `weight`. Leading dimensions are broadcast."""
    a_spec, ta = operand(op, a)
    b_spec, tb = operand(op, b)
    m = prod(a.shape[-2:-1])
    n = b.shape[-2 if weight else -1] if len(b.shape) > 1 else 1
    k = prod(a.shape[-1:])
    if len(b.shape) <= 2 and len(a.shape) > 2 and not ta:
        # One matrix for the whole batch: CANN folds the batch into the rows.
        m = prod(a.shape[:-1])
        a_spec = spec((m, k), a.dtype)
        batch: tuple[int, ...] = ()
    else:
        batch = broadcast([a.shape[:-2], b.shape[:-2]])
    if len(b.shape) == 1:
        b_spec = spec((b.shape[0], 1), b.dtype)
    if len(a.shape) == 1:
        a_spec = spec((1, k), a.dtype)
    dtype = "int32" if a.dtype == "int8" else promote([a.dtype, b.dtype])
    if op.op.outputs and op.op.outputs[0] is not None:
        dtype = op.op.outputs[0].dtype
    kind, out = "BatchMatMulV3" if batch else "MatMulV3", spec((*batch, m, n), dtype)
    return kernel(kind, [a_spec, b_spec, *rest], [out], transpose_a=ta, transpose_b=tb is not weight)


@costs("aten::mm aten::bmm aten::matmul aten::mv aten::dot aten::vdot aten::inner")
def plain(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of A @ B, or of A @ B^T for aten::inner.

    Two vectors are multiplied by the vector cores (Dot).
    """
    a, b = op.need("self", "input", at=0), op.need("mat2", "other", "vec", "tensor", at=1)
    if len(a.shape) == len(b.shape) == 1:
        dtype = promote([a.dtype, b.dtype])
        return [kernel("Dot", [op.packed(a), op.packed(b)], [op.output(spec((), dtype))])]
    return [product(op, a, b, weight=op.op.name == "aten::inner" and len(b.shape) > 1)]


@costs("aten::addmm aten::addmv aten::baddbmm aten::addbmm aten::_addmm_activation aten::sparse_addmm")
def with_addend(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of beta * C + alpha * A @ B. A 1-D C is the product's bias. Any other C is added later."""
    a, b = op.need("mat1", "batch1", "mat", at=1), op.need("mat2", "batch2", "vec", at=2)
    c = op.meta("self", at=0)
    one_dim = c is not None and len(c.shape) == 1 and len(b.shape) == 2
    bias = [spec(c.shape, c.dtype)] if one_dim and c is not None else []
    kernels = [product(op, a, b, *bias)]
    if c is not None and not one_dim and op.number("beta") != 0:
        out = kernels[0].outputs[0]
        kernels.append(kernel("Add", [out, op.packed(c)], [out]))
    return kernels


@costs(
    """
        aten::linear aten::_linear aten::mkldnn_linear aten::fbgemm_linear_fp16_weight
        aten::fbgemm_linear_fp16_weight_fp32_activation
    """
)
def layer(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel of x @ W^T + b; W is stored as (out features, in features)."""
    a, b = op.need("input", "x", "XQ", "A", "in_a", at=0), op.need("weight", "WQ", "B", "in_b", at=1)
    if a.shape and b.shape and a.shape[-1] != b.shape[-1] and len(a.shape) >= 2 and a.shape[0] == b.shape[-1]:
        # LLMM1 and wvSplitK name the weight first.
        a, b = b, a
    bias = op.meta("bias")
    return [product(op, a, b, *([spec(bias.shape, bias.dtype)] if bias is not None else []), weight=True)]


@costs("aten::linear_backward aten::mps_linear_backward aten::mkldnn_linear_backward")
def layer_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the products for the gradients of the input and of the weight."""
    grad, weight = op.need("grad_output", "grad", at=1, rank=1), op.need("weight", at=2, rank=1)
    source = op.need("self", "input", at=0)
    rows, outs, ins = prod(grad.shape[:-1]), grad.shape[-1], weight.shape[-1]
    g, w, x = spec((rows, outs), grad.dtype), spec((outs, ins), weight.dtype), spec((rows, ins), source.dtype)
    return [
        kernel("MatMulV3", [g, w], [x], transpose_a=False, transpose_b=False),
        kernel("MatMulV3", [g, x], [w], transpose_a=True, transpose_b=False),
    ]


@costs("aten::_scaled_mm aten::_scaled_mm_v2 aten::_int_mm")
def quantized(op: OpView) -> Iterable[KernelCall]:
    """Return the product of 8-bit operands. 8-bit floats, which these SoCs lack, are costed at the int8 rate."""
    metas = [t for t in op.tensors if len(t.shape) >= 2 and t.dtype not in ("float32", "bfloat16", "float16")]
    operands = [t for t in (*metas, *op.tensors) if len(t.shape) >= 2]
    if len(operands) < 2:
        raise DoesNotFit("a product needs two matrices")
    return [of_eight_bits(op, *operands[:2])]


def of_eight_bits(op: OpView, a: TensorMeta, b: TensorMeta) -> KernelCall:
    """Return the kernel for A @ B of 8-bit operands, or for A @ B^T if the shapes fit only that product."""
    if "float8" in a.dtype:
        op.note("8-bit floats are not supported on this SoC; costed as int8")
    _, ta = operand(op, TensorMeta(shape=a.shape, dtype="int8", strides=a.strides))
    b_spec, tb = operand(op, TensorMeta(shape=b.shape, dtype="int8", strides=b.strides))
    weight = a.shape[-1] == b.shape[-1] != b.shape[-2]
    n = b.shape[-2 if weight else -1]
    out = op.output(spec((*a.shape[:-1], n), "bfloat16"))
    batch = b.shape[:-2] if a.shape[:-2] == b.shape[:-2] else ()
    rows = prod(a.shape[len(batch) : -1])
    a_size = (a.shape[-1], rows) if ta else (rows, a.shape[-1])
    a_spec, result = spec((*batch, *a_size), "int8"), spec((*batch, rows, n), out.dtype)
    return kernel("QuantBatchMatmulV3", [a_spec, b_spec], [result], transpose_a=ta, transpose_b=tb is not weight)
