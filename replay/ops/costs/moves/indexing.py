# pyright: strict
"""Lowering of gathers, scatters, embeddings, sorts and searches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from opreplay.replay.ir.kernel import UNIFIED_BUFFER, KernelCall, TensorSpec, broadcast, itemsize
from opreplay.replay.ops.costs.host_math import on_host
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.dtypes import MASKS
from opreplay.traces.model import TensorMeta

_INTEGERS = ("int64", "int32")


def _indices(op: OpView, *names: str) -> list[TensorMeta]:
    for name in names:
        arg = op.args.get(name)
        if arg is not None:
            tensors = [t for t in arg.tensors if t is not None]
            if tensors:
                return tensors
    return [t for t in op.tensors if t.dtype in _INTEGERS]


def _index(op: OpView, *names: str) -> TensorMeta:
    indices = _indices(op, *names)
    if not indices:
        raise DoesNotFit("no indices were recorded")
    return indices[0]


@costs("aten::embedding aten::index_select aten::embedding_renorm")
def rows_of_table(op: OpView) -> Iterable[KernelCall]:
    """Return GatherV2, which reads whole rows.

    If a row is shorter than a memory block, return GatherElements instead, which picks single elements in the cores'
    memory.
    """
    table = op.need("weight", "self", at=0)
    index = _indices(op, "indices", "index")
    picked = index[0].shape if index else (1,)
    dim = op.integer("dim", default=0) % max(1, len(table.shape)) if "index_select" in op.op.name else 0
    out = op.output(spec((*table.shape[:dim], *picked, *table.shape[dim + 1 :]), table.dtype))
    moved = elements(out) * itemsize(out.dtype)
    operands = [spec(table.shape, table.dtype), spec(picked, "int64")]
    along = table.shape[dim:]
    if prod(along[1:]) * itemsize(table.dtype) < BLOCK:
        op.note("rows shorter than a block are costed as single elements (never measured)")
        taken = _accesses(elements(out), prod(along), table.dtype, IN_CORE)
        sizes = {"indices": taken, "moved_bytes": moved, "inner": 1, "cols": prod(along)}
        return [kernel("GatherElements", operands, [out], **sizes)]
    runs = prod(picked) * prod(table.shape[:dim])
    return [kernel("GatherV2", operands, [out], indices=runs, moved_bytes=moved)]


@costs("aten::gather aten::take_along_dim aten::take")
def single_elements(op: OpView) -> Iterable[KernelCall]:
    """Return GatherElements, which reads single elements of rows.

    If the indexed dimension is not the last, the data is transposed before and after. The transposes are left out if
    the elements are in fewer memory blocks than the whole table takes.
    """
    table = op.need("self", at=0)
    index = _index(op, "index")
    out = op.output(spec(index.shape, table.dtype))
    n = elements(index)
    moved = n * itemsize(table.dtype)
    source = spec(table.shape, table.dtype)
    span = _span(_along(op, table)[0], _picks(op, table, index), table.dtype)
    taken = _accesses(n, span, table.dtype, IN_CORE)
    if taken > n // IN_CORE + 1:
        op.note("the dimension exceeds a core's memory: the rest is costed element by element (never measured)")
    along = _along(op, table)
    inner = prod(along[1:])
    places = spec(index.shape, index.dtype)
    sizes = {"indices": taken, "moved_bytes": moved, "inner": inner, "cols": along[0]}
    gathered = kernel("GatherElements", [source, places], [out], **sizes)
    if inner == 1 or _is_few(n, table):
        return [gathered]
    dim = len(table.shape) - len(along)
    turned = [_transpose_innermost(tensor, dim, back=False) for tensor in (source, places)]
    return [*turned, gathered, _transpose_innermost(out, dim, back=True)]


def _transpose_innermost(tensor: TensorSpec, dim: int, *, back: bool) -> KernelCall:
    """Return the transpose that makes `dim` innermost, or the reverse transpose if `back` is set.

    Cores that cannot load single elements need it.
    """
    pair, sizes = [tensor, _innermost(tensor, dim)], (tensor.shape[dim], prod(tensor.shape[dim + 1 :]))
    before, after = reversed(pair) if back else pair
    return kernel("Transpose", [before], [after], forward=True, swapped=sizes[::-1] if back else sizes)


def _along(op: OpView, table: TensorMeta) -> tuple[int, ...]:
    """Return the sizes of the indexed dimension and of the dimensions after it.

    For a table that is indexed as if it were flat, return only its total size.
    """
    if not table.shape or op.op.name.split(".")[0].rstrip("_") in ("aten::take", "aten::put"):
        return (prod(table.shape),)
    return table.shape[op.integer("dim", default=0) % len(table.shape) :]


BLOCK = 32
"""Bytes that a core reads from memory at once."""
TOGETHER, IN_CORE = 64, 4096
"""Number of single elements within a core's memory that count as one access.

TOGETHER is the general number (assumed). IN_CORE is the number for GatherElements and ScatterElements, which take
little longer than moving their bytes does. Sources: gather of 8 million and scatter_reduce of 33.5 million elements on
a 910B2 (hicann/cann-bench).
"""


def _accesses(n: int, along: int, dtype: str, together: int = TOGETHER) -> int:
    """Return the number of memory accesses for n single elements.

    The part of the dimension that fits into half of a core's memory (assumed) is read together: `together` of its
    elements count as one access. Every other element needs its own access to device memory.
    """
    outside = 1.0 - UNIFIED_BUFFER / 2 / max(1, along * itemsize(dtype))
    return max(n // together + 1, round(n * outside))


def _picks(op: OpView, table: TensorMeta, index: TensorMeta) -> int:
    """Return how many elements `index` picks along the indexed dimension.

    For a flat table, this is the size of `index`.
    """
    along = _along(op, table)
    is_flat = len(along) != len(table.shape) - op.integer("dim", default=0) % max(1, len(table.shape))
    return elements(index) if is_flat or len(index.shape) != len(table.shape) else index.shape[-len(along)]


def _span(along: int, picks: int, dtype: str) -> int:
    """Return how many elements of a dimension a core must hold to reach `picks` of them.

    Memory is read in blocks. Hence all elements of the blocks count, but at most the dimension's length.
    """
    return min(along, picks * max(1, BLOCK // itemsize(dtype)))


def _is_few(count: int, table: TensorMeta) -> bool:
    """Check whether `count` single elements touch fewer memory blocks than the table has.

    If so, the table is not read as a whole.
    """
    return count * BLOCK < elements(table) * itemsize(table.dtype)


class _Picked(NamedTuple):
    """Elements of a table that an indexed call picks."""

    rows: int
    """Number of picked positions."""
    inner: int
    """Number of elements at each position."""
    nonzeros: list[KernelCall]
    """Kernels that convert masks to indices."""
    numbers: list[TensorSpec]
    """Indices that the kernel receives."""


def _picked(op: OpView, table: TensorMeta) -> _Picked:
    """Return the picked positions and the number of elements at each position.

    A mask covers as many dimensions of the table as it has itself.
    """
    arg = op.args.get("indices")
    places = arg.tensors if arg is not None and any(arg.tensors) else tuple(_indices(op, "indices"))
    covered = _covered(places)
    tensors = [meta for meta in places if meta is not None]
    masks, numbers = [t for t in tensors if t.dtype in MASKS], [t for t in tensors if t.dtype not in MASKS]
    inner = prod(size for dim, size in enumerate(table.shape) if dim not in covered)
    rows = _true_rows(op, masks, inner) if masks or not numbers else prod(broadcast([t.shape for t in numbers]))
    nonzeros = [kernel("NonZero", [spec(m.shape, "bool")], [spec((elements(m), len(m.shape)), "int64")]) for m in masks]
    mask_indices = [spec((rows,), "int64") for mask in masks for _ in mask.shape]
    return _Picked(rows, inner, nonzeros, [*mask_indices, *(spec(t.shape, t.dtype) for t in numbers)])


def _covered(places: Sequence[TensorMeta | None]) -> set[int]:
    """Return the table dimensions that indices and masks cover.

    If no list was recorded, this is the first dimension.
    """
    covered: set[int] = set()
    dim = 0
    for meta in places:
        width = len(meta.shape) if meta is not None and meta.dtype in MASKS else 1
        covered.update(range(dim, dim + width) if meta is not None else ())
        dim += width
    return covered or {0}


def _true_rows(op: OpView, masks: Sequence[TensorMeta], inner: int) -> int:
    """Return the number of True elements of the masks.

    It comes from the size of the result or of the values. If neither is known, half of the elements are assumed to be
    True, and a note is added.
    """
    moved = op.op.outputs[0] if op.op.outputs else None
    if "values" in op.args:
        values = op.meta("values")
        moved = values if values is not None and prod(values.shape) > 1 else None
    if moved is not None:
        return -(-prod(moved.shape) // max(1, inner))
    op.note("number of true elements of the mask not recorded: half of them assumed")
    return max((prod(t.shape) for t in masks), default=2) // 2


@costs("aten::index aten::_unsafe_index aten::_index")
def index(op: OpView) -> Iterable[KernelCall]:
    """Return the Index kernel (advanced indexing), preceded by NonZero kernels for boolean masks."""
    table = op.need("self", at=0)
    picked = _picked(op, table)
    out = op.output(spec((picked.rows, picked.inner), table.dtype))
    moved = elements(out) * itemsize(out.dtype)
    inputs = [spec(table.shape, table.dtype), *picked.numbers]
    return [*picked.nonzeros, kernel("Index", inputs, [out], indices=picked.rows, moved_bytes=moved)]


@costs(
    """
        aten::index_put aten::_index_put_impl_ aten::_unsafe_index_put aten::_index_put_impl
        aten::_unsafe_masked_index_put_accumulate
    """
)
def index_put(op: OpView) -> Iterable[KernelCall]:
    """Return IndexPutV2, which writes values at the indices."""
    table = op.need("self", at=0)
    picked = _picked(op, table)
    moved = picked.rows * picked.inner * itemsize(table.dtype)
    whole = spec(table.shape, table.dtype)
    size = picked.rows * picked.inner
    written = spec((picked.rows, picked.inner), table.dtype) if size < elements(table) else whole
    put = kernel("IndexPutV2", [written, *picked.numbers], [written], indices=picked.rows, moved_bytes=moved)
    return [*copied(op, whole), *picked.nonzeros, put]


def copied(op: OpView, table: TensorSpec) -> list[KernelCall]:
    """Return the kernel by which an out-of-place op copies its target tensor, or an empty list for an in-place op."""
    in_place = op.op.name.split(".")[0].endswith(("_", "_impl")) or any(arg.mutated for arg in op.op.args)
    return [] if in_place else [kernel("TensorMove", [table], [table])]


@costs(
    """
        aten::scatter aten::scatter_add aten::scatter_reduce aten::put aten::_scatter_via_index_put
    """
)
def scatter(op: OpView) -> Iterable[KernelCall]:
    """Return ScatterElements, which writes single elements at an index.

    An out-of-place op copies the table first. Otherwise the rest of the table is not touched.
    """
    table = op.need("self", at=0)
    index = _indices(op, "index")
    source = op.meta("src", "source", "value", "updates")
    n = elements(index[0]) if index else 1
    kind = "InplaceIndexAdd" if "add" in op.op.name else "ScatterElements"
    together = IN_CORE if kind == "ScatterElements" else TOGETHER
    along = _along(op, table)[0]
    picks = _picks(op, table, index[0]) if index else 1
    single = _accesses(n, _span(along, picks, table.dtype), table.dtype, together)
    operands = [spec(tensor.shape, tensor.dtype) for tensor in (*index, source) if tensor is not None]
    moved = (elements(source) if source is not None and source.shape else n) * itemsize(table.dtype)
    moved += sum(elements(tensor) * itemsize(tensor.dtype) for tensor in index)
    touched = spec((n,) if _is_few(n, table) else table.shape, table.dtype)
    write = kernel(kind, [touched, *operands], [touched], indices=single, moved_bytes=moved)
    return [*copied(op, spec(table.shape, table.dtype)), write]


@costs("aten::index_add aten::index_copy aten::index_fill aten::index_reduce")
def rows_put(op: OpView) -> Iterable[KernelCall]:
    """Return ScatterUpdate, which writes rows along a dimension at an index.

    An out-of-place op copies the table first. Otherwise the rest of the table is not touched. Rows shorter than a
    memory block are written one element at a time. If this touches as many blocks as the table has, the table is
    transposed instead. Each row is then contiguous.
    """
    table = op.need("self", at=0)
    index = _indices(op, "index")
    source = op.meta("source", "src", "value", "Src")
    picks = elements(index[0]) if index else 1
    dim = op.integer("dim", default=0) % max(1, len(table.shape))
    outer, along = prod(table.shape[:dim]), _along(op, table)
    rows, inner = outer * picks, prod(along[1:])
    kind = "InplaceIndexAdd" if "add" in op.op.name else "ScatterUpdate"
    operands = [spec(tensor.shape, tensor.dtype) for tensor in (*index, source) if tensor is not None]
    moved = rows * inner * itemsize(table.dtype) + sum(elements(t) * itemsize(t.dtype) for t in index)
    whole = spec(table.shape, table.dtype)
    is_short = bool(dim) and inner * itemsize(table.dtype) < BLOCK
    if is_short and not _is_few(rows * inner, table):
        write = kernel(kind, [whole, *operands], [whole], indices=picks, moved_bytes=moved)
        full = [t for t in operands if len(t.shape) == len(table.shape)]
        turned = [kernel("Transpose", [t], [t], swapped=(outer, t.shape[dim])) for t in (whole, *full)]
        return [*turned, write, kernel("Transpose", [whole], [whole], swapped=(along[0], outer))]
    taken = rows
    if is_short or len(table.shape) < 2:
        taken = _accesses(rows * inner, _span(along[0], picks, table.dtype), table.dtype)
    written = spec((*table.shape[:dim], min(picks, along[0]), *along[1:]), table.dtype) if table.shape else whole
    write = kernel(kind, [written, *operands], [written], indices=taken, moved_bytes=moved)
    return [*copied(op, whole), write]


@costs("aten::masked_scatter")
def masked_scatter(op: OpView) -> Iterable[KernelCall]:
    """Return an AI CPU program that writes source elements where the mask is True. AI cores have no kernel for this."""
    table = op.need("self", at=0)
    work = elements(op.need("mask", at=1)) + prod(table.shape)
    op.assume("it was never measured whether an AI core runs this op")
    return [*copied(op, spec(table.shape, table.dtype)), *on_host(op, work)]


@costs(
    """
        aten::gather_backward aten::index_select_backward aten::masked_select_backward aten::masked_scatter_backward
        aten::_gather_sparse_backward
    """
)
def gather_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels that clear a tensor and then add the gradient to it at the indices."""
    grad = op.need("grad", "grad_output", at=0)
    base = op.meta("self")
    sizes = base.shape if base is not None else op.integers("self_sizes", "sizes") or grad.shape
    out = op.output(spec(sizes, grad.dtype))
    n = elements(grad)
    moved = n * itemsize(grad.dtype)
    rows = n // max(1, grad.shape[-1]) if "index_select" in op.op.name and grad.shape else n // 64 + 1
    add = kernel("InplaceIndexAdd", [out], [out], indices=max(1, rows), moved_bytes=moved)
    return [kernel("ZerosLike", [out], [out]), add]


@costs(
    """
        aten::embedding_dense_backward aten::embedding_backward aten::_embedding_bag_backward
        aten::_embedding_bag_dense_backward
        npu::npu_embedding_dense_backward
    """
)
def embedding_backward(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that sort the indices and clear the table, then EmbeddingDenseGradV2."""
    grad = op.need("grad_output", "grad", at=0)
    index = _index(op, "indices")
    width = grad.shape[-1] if grad.shape else 1
    rows = op.integer("num_weights", default=max(1, elements(index)))
    n = elements(index)
    table = op.output(spec((rows, width), grad.dtype))
    flat = spec((n,), "float32")
    moved = n * width * 4
    source = [spec(grad.shape, grad.dtype), spec((n,), "int32"), spec((n,), "int32")]
    return [
        kernel("Cast", [spec((n,), index.dtype)], [spec((n,), "int32")]),
        kernel("Sort", [flat], [flat, spec((n,), "int32")]),
        kernel("ZerosLike", [table], [table]),
        kernel("EmbeddingDenseGradV2", source, [table], indices=n, moved_bytes=moved),
    ]


@costs("aten::_embedding_bag aten::embedding_bag aten::_embedding_bag_forward_only")
def embedding_bag(op: OpView) -> Iterable[KernelCall]:
    """Return EmbeddingBag, which gathers and sums rows."""
    table = op.need("weight", at=0)
    index = _index(op, "indices")
    width = table.shape[-1] if table.shape else 1
    offsets = op.meta("offsets")
    bags = offsets.shape[0] if offsets is not None and offsets.shape else index.shape[0] if index.shape else 1
    n = elements(index)
    out = op.output(spec((bags, width), table.dtype))
    moved = n * width * itemsize(table.dtype)
    return [kernel("EmbeddingBag", [spec((n,), index.dtype)], [out], indices=n, moved_bytes=moved)]


@costs("aten::_embedding_bag_per_sample_weights_backward")
def bag_weights_backward(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that compute, for each index, the dot product of its row with the gradient of its bag."""
    grad, index = op.need("grad", at=0), _index(op, "indices")
    rows = spec((max(1, elements(index)), grad.shape[-1] if grad.shape else 1), grad.dtype)
    moved = elements(rows) * itemsize(rows.dtype)
    gathered = kernel("GatherV2", [rows], [rows], indices=rows.shape[0], moved_bytes=moved)
    added = kernel("ReduceSum", [rows], [spec(rows.shape[:1], "float32")])
    return [gathered, kernel("Mul", [rows, rows], [rows]), added]


@costs("aten::topk aten::sort aten::argsort aten::msort")
def sort(op: OpView) -> Iterable[KernelCall]:
    """Return Sort or TopKV2 along one dimension. A dimension that is not innermost is transposed first."""
    source = op.packed(op.need("self", "input", at=0))
    rank = max(1, len(source.shape))
    dim = (0 if "msort" in op.op.name else op.integer("dim", default=-1)) % rank
    outs = op.outputs(source, spec(source.shape, "int64"))
    kind = "TopKV2" if "topk" in op.op.name else "Sort"
    if dim == rank - 1:
        return [kernel(kind, [source], outs)]
    turned = _innermost(source, dim)
    sorted_outs = [_innermost(out, dim) if len(out.shape) == rank else out for out in outs]
    back = [kernel("Transpose", [last], [out]) for last, out in zip(sorted_outs, outs, strict=True)]
    return [kernel("Transpose", [source], [turned]), kernel(kind, [turned], sorted_outs), *back]


def _innermost(tensor: TensorSpec, dim: int) -> TensorSpec:
    shape = tensor.shape
    return spec((*shape[:dim], *shape[dim + 1 :], shape[dim]), tensor.dtype)


@costs("aten::nonzero aten::argwhere aten::masked_select aten::nonzero_static aten::nonzero_numpy")
def nonzero(op: OpView) -> Iterable[KernelCall]:
    """Return NonZero. Half of the elements are assumed nonzero, because the number depends on the contents."""
    source = op.need("self", at=0)
    n = elements(source)
    op.note("number of nonzeros not recorded: half of the elements assumed")
    out = spec((n // 2, max(1, len(source.shape))), "int64")
    read = spec(source.shape, source.dtype)
    return [kernel("NonZero", [read], [out], indices=n // 64 + 1, moved_bytes=n * itemsize(source.dtype))]


@costs("aten::one_hot")
def one_hot(op: OpView) -> Iterable[KernelCall]:
    """Return the OneHot kernel."""
    source = op.need("self", at=0)
    classes = max(1, op.integer("num_classes", default=128))
    return [kernel("OneHot", [spec(source.shape, source.dtype)], [op.output(spec((*source.shape, classes), "int64"))])]
