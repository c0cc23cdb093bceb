# pyright: strict
"""Lowering of data movement: concatenation, stacking, padding, repetition, reversal."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.moves.indexing import copied
from opreplay.replay.ops.op_view import (
    DoesNotFit,
    OpView,
    elements,
    is_contiguous,
    kernel,
    promote,
    spec,
    strided_copy,
)
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta, contiguous_strides


@costs(
    """
        aten::cat aten::_cat aten::concat aten::concatenate aten::hstack aten::vstack aten::flatten_dense_tensors
        aten::block_diag aten::column_stack aten::row_stack aten::_chunk_cat
    """
)
def cat(op: OpView) -> Iterable[KernelCall]:
    """Return the ConcatD kernel."""
    metas = op.metas("tensors")
    if not metas:
        return []
    dim = op.integer("dim", default=0) % max(1, len(metas[0].shape))
    shape = list(metas[0].shape) or [1]
    shape[dim] = sum(m.shape[dim] if len(m.shape) > dim else 0 for m in metas)
    if "flatten" in op.op.name:
        shape = [sum(elements(m) for m in metas)]
    out = op.output(spec(shape, promote([m.dtype for m in metas])))
    inputs = [op.packed(m) for m in metas]
    run = min(prod(s.shape[dim:]) for s in inputs) if inputs and dim < min(len(s.shape) for s in inputs) else 0
    flat = [spec((max(1, elements(s) // run), run), s.dtype) for s in inputs] if run > 0 else inputs
    return [kernel("ConcatD", flat, [spec((elements(out),), out.dtype) if len(flat[0].shape) == 1 else out])]


@costs("aten::stack aten::_stack aten::dstack")
def stack(op: OpView) -> Iterable[KernelCall]:
    """Return the Pack kernel."""
    metas = op.metas("tensors")
    if not metas:
        return []
    shape = metas[0].shape
    out = op.output(spec((len(metas), *shape), metas[0].dtype))
    return [kernel("Pack", [op.packed(m) for m in metas], [out])]


@costs(
    """
        aten::constant_pad_nd aten::pad aten::reflection_pad2d aten::replication_pad2d aten::_pad_circular
        aten::reflection_pad1d aten::replication_pad1d aten::reflection_pad3d aten::replication_pad3d aten::_pad_enum
        aten::zero_pad2d
    """
)
def pad(op: OpView) -> Iterable[KernelCall]:
    """Return the PadV3 kernel."""
    source = op.dense("self", at=0)
    if source is None:
        return []
    widths = op.integers("pad", "padding")
    shape = list(source.shape)
    for i in range(min(len(widths) // 2, len(shape))):
        shape[-1 - i] += widths[2 * i] + widths[2 * i + 1]
    return [kernel("PadV3", [source], [op.output(spec(shape, source.dtype))])]


@costs(*(f"aten::{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def pad_backward(op: OpView) -> Iterable[KernelCall]:
    """Return PadV3Grad, which copies the gradient without its border and adds the border's gradient to it."""
    grad, base = op.dense("grad_output", at=0), op.meta("self", at=1)
    if grad is None or base is None:
        return []
    return [kernel("PadV3Grad", [grad], [spec(base.shape, base.dtype)])]


@costs("aten::repeat aten::tile aten::expand_copy aten::repeat_interleave")
def repeat(op: OpView) -> Iterable[KernelCall]:
    """Return the Tile kernel."""
    source = op.dense("self", "repeats", at=0)
    if source is None:
        return []
    times = op.integers("repeats", "dims") or (2,)
    rank = max(len(times), len(source.shape))
    sizes = (1,) * (rank - len(source.shape)) + source.shape
    shape = tuple(s * t for s, t in zip(sizes, (1,) * (rank - len(times)) + times, strict=True))
    if "interleave" in op.op.name and len(source.shape) > 1:
        shape = (source.shape[0] * max(1, prod(times)), *source.shape[1:])
    return [kernel("Tile", [source], [op.output(spec(shape, source.dtype))])]


@costs(
    """
        aten::flip aten::fliplr aten::flipud aten::roll aten::rot90 aten::channel_shuffle aten::pixel_shuffle
        aten::pixel_unshuffle aten::native_channel_shuffle
    """
)
def reorder_elements(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that copies all elements in another order."""
    source = op.dense("self", at=0)
    if source is None:
        return []
    kind = {"aten::roll": "Roll", "aten::flip": "ReverseV2"}.get(op.op.name, "Transpose")
    if kind == "ReverseV2" and source.shape:
        dims = [d % len(source.shape) for d in op.integers("dims") or (-1,)]
        inner = prod(source.shape[max(dims) + 1 :])
        return [kernel(kind, [source], [op.output(source)], **({"inner": inner} if inner > 1 else {}))]
    return [kernel(kind, [source], [op.output(source)])]


@costs(
    """
        aten::slice_backward aten::select_backward aten::diagonal_backward aten::diag_backward aten::unfold_backward
        aten::trace_backward aten::_nested_select_backward
    """
)
def into_zeros(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels that clear a tensor and then copy the gradient into a part of it."""
    grad = op.meta("grad_output", "src", "grad", at=0)
    if grad is None:
        return []
    sizes = op.integers("input_sizes")
    base = op.meta("self")
    shape = base.shape if base is not None else sizes or grad.shape
    out = op.output(spec(shape, grad.dtype))
    part = spec(grad.shape, grad.dtype)
    return [kernel("ZerosLike", [out], [out]), kernel("ViewCopy", [part], [part])]


@costs("aten::slice_scatter aten::select_scatter aten::as_strided_scatter aten::diagonal_scatter")
def into_copy(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that copy the tensor, then copy into part of the copy."""
    base, part = op.packed(op.need("self", "input", at=0)), op.packed(op.need("src", at=1))
    return [kernel("TensorMove", [base], [op.output(base)]), kernel("ViewCopy", [part], [part])]


@costs("aten::diag aten::diag_embed aten::diagflat")
def diagonal(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that clear a tensor and then copy to its diagonal.

    For `diag` of a matrix, return a Slice that copies the diagonal out.
    """
    source = op.dense("self", "input", at=0)
    if source is None:
        return []
    if "diag_embed" not in op.op.name and "diagflat" not in op.op.name and len(source.shape) == 2:
        return [kernel("Slice", [source], [op.output(spec((min(source.shape),), source.dtype))])]
    batch = source.shape[:-1] if "diag_embed" in op.op.name else ()
    side = elements(source) // max(1, prod(batch)) + abs(op.integer("diagonal", "offset", default=0))
    out = op.output(spec((*batch, side, side), source.dtype))
    return [kernel("ZerosLike", [out], [out]), kernel("ViewCopy", [source], [source])]


@costs(
    """
        aten::slice_copy aten::select_copy aten::view_copy aten::permute_copy aten::transpose_copy aten::as_strided_copy
        aten::split_copy aten::split_with_sizes_copy aten::unbind_copy aten::_copy_strided aten::alias_copy
        aten::detach_copy aten::diagonal_copy aten::narrow_copy aten::squeeze_copy aten::unsqueeze_copy aten::t_copy
        aten::unfold_copy aten::_reshape_copy aten::_reshape_alias_copy aten::view_as_real_copy
        aten::view_as_complex_copy aten::_conj_copy aten::values_copy aten::indices_copy aten::crow_indices_copy
        aten::col_indices_copy aten::ccol_indices_copy aten::row_indices_copy aten::_values_copy aten::_indices_copy
        aten::_fw_primal_copy aten::_make_dual_copy aten::_nested_get_values_copy aten::_nested_view_from_buffer_copy
        aten::_nested_view_from_jagged_copy aten::_sparse_broadcast_to_copy
    """
)
def copied_view(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that copies a view: Transpose for permuted dimensions, Slice for a part."""
    meta = op.meta("self", at=0)
    if meta is None:
        return []
    if (turned := _permuted_view(op, meta)) is not None and not is_contiguous(turned):
        return [strided_copy(turned)]
    parts = op.outputs()
    if parts and sum(map(elements, parts)) < elements(meta):
        return [kernel("Slice", [part], [part]) for part in parts]
    source = op.packed(meta)
    outs = op.outputs(source)
    copied = sum(elements(out) for out in outs)
    if copied > elements(source):
        return [kernel("TensorMove", [source], outs)]  # Windows overlap.
    if copied == elements(source):
        return [kernel("TensorMove", [source], [source])]
    return [kernel("Slice", [source], outs)]


def _permuted_view(op: OpView, meta: TensorMeta) -> TensorMeta | None:
    """Return the view with the dimensions permuted as in the call, or None for other kinds of views."""
    kind, rank = op.op.name.partition(".")[0].removeprefix("aten::"), len(meta.shape)
    order = list(range(rank))
    if kind == "t_copy":
        order.reverse()
    elif kind == "transpose_copy":
        a, b = op.axis("dim0", rank=rank), op.axis("dim1", rank=rank)
        if a is not None and b is not None:
            order[a], order[b] = b, a
    elif kind == "permute_copy":
        order = [dim % max(1, rank) for dim in op.integers("dims")]
    else:
        return None
    if sorted(order) != list(range(rank)):
        raise DoesNotFit(f"dimensions {order} do not fit a tensor of rank {rank}")
    strides = meta.strides or contiguous_strides(meta.shape)
    return TensorMeta(
        shape=tuple(meta.shape[i] for i in order), dtype=meta.dtype, strides=tuple(strides[i] for i in order)
    )


@costs("aten::_foreach_clone")
def clones(op: OpView) -> Iterable[KernelCall]:
    """Return one copy kernel per tensor."""
    return [kernel("TensorMove", [tensor], [tensor]) for tensor in map(op.packed, op.metas("self"))]


def cache_write(op: OpView) -> Iterable[KernelCall]:
    """Return the write of new keys and values to cache slots.

    It writes one row per token, and does not depend on the cache size.
    """
    key = op.meta("key", "k", "updates", at=0)
    if key is None or not key.shape:
        return []
    value = op.meta("value", "v")
    source = spec(key.shape, key.dtype)
    written = [source, *([spec(value.shape, value.dtype)] if value is not None else [])]
    moved = sum(prod(tensor.shape) * itemsize(tensor.dtype) for tensor in written)
    return [kernel("ReshapeAndCacheNdKernel", written, [source], indices=key.shape[0], moved_bytes=moved)]


def slices_written(op: OpView) -> Iterable[KernelCall]:
    """Return Scatter or ScatterNdUpdate, which writes contiguous slices into a tensor at the indices.

    An out-of-place op copies the tensor first. An in-place op does not touch the rest of the tensor.
    """
    table, updates = op.need("self", at=0), op.need("updates", "update")
    index = op.need("indices", "indice")
    if "_nd_" in op.op.name:
        kind, slices = "ScatterNdUpdate", elements(index) // max(1, index.shape[-1] if index.shape else 1)
    else:
        kind, slices = "Scatter", prod(updates.shape[: op.integer("axis", default=-2)])
    written = spec(updates.shape, table.dtype)
    operands = [written, spec(index.shape, index.dtype), spec(updates.shape, updates.dtype)]
    moved = elements(updates) * itemsize(updates.dtype)
    write = kernel(kind, operands, [written], indices=slices, moved_bytes=moved)
    tables = op.metas("self") if "self" in op.args else [table]
    copies = [copy for each in tables for copy in copied(op, spec(each.shape, each.dtype))]
    return [*copies, write]


def cache_copy(op: OpView) -> Iterable[KernelCall]:
    """Return a copy of blocks within or between caches, one block for each row of the block list."""
    whole = [tensor for tensor in op.tensors if tensor.dtype in ("int64", "int32") and len(tensor.shape) == 2]
    pairs = op.meta("block_mapping") or (whole[-1] if whole else None)
    caches = [tensor for tensor in op.tensors if tensor is not pairs and len(tensor.shape) > 1]
    if pairs is None or not pairs.shape or not caches:
        raise DoesNotFit("needs caches and a list of blocks")
    if "swap" in op.op.name:
        caches = caches[:1]  # the other one is written
    blocks = pairs.shape[0]
    size = sum(min(blocks, cache.shape[0]) * prod(cache.shape[1:]) for cache in caches)
    if given := op.integer("block_size_in_bytes", default=0):
        size = blocks * given // itemsize(caches[0].dtype)
    part = spec((size,), caches[0].dtype)
    return [kernel("ViewCopy", [part], [part])]
