# pyright: strict
"""Lowering of embedding tables of recommendation models (FBGEMM), generated kernels, and values read by the host."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.pointwise.elementwise import in_rows
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, length, spec
from opreplay.replay.ops.table import costs, costs_like
from opreplay.traces.model import TensorMeta

_INTEGERS = ("int64", "int32")
USUAL_WIDTH = 128
"""Assumed number of columns of an embedding table if the trace does not record this number."""


@costs_like(r"fbgemm::(split|dense)_embedding\w*codegen_lookup_\w+")
def tables(op: OpView) -> Iterable[KernelCall]:
    """Return EmbeddingBag over all tables, which are concatenated: rows are gathered and summed per bag."""
    index = op.meta("indices") or max((t for t in op.tensors if t.dtype in _INTEGERS), key=elements, default=None)
    if index is None:
        raise DoesNotFit("no indices were recorded")
    stored = op.meta("dev_weights", "uvm_weights")
    tables_of = op.meta("weights_offsets", "hash_size_cumsum")
    count = max(1, length(tables_of))
    total = op.integer("total_D", default=0)
    width = -(-total // count) if total > 0 else USUAL_WIDTH
    if total <= 0:
        op.note(f"width of the embeddings not recorded: {USUAL_WIDTH} assumed")
    offsets = op.meta("offsets")
    bags = max(1, length(offsets) - 1)
    n = elements(index)
    moved = n * width * itemsize(stored.dtype if stored is not None else "float32")
    out = op.output(spec((max(1, bags // count), width * count), "float32"))
    return [kernel("EmbeddingBag", [spec((n,), index.dtype)], [out], indices=n, moved_bytes=moved)]


def reorder_segments(op: OpView) -> Iterable[KernelCall]:
    """Return copies that reorder segments of data, one copy per tensor. All data is read and written once."""
    op.note("costed as one copy per tensor, although its segments change places (never measured)")
    moved = [t for t in op.tensors if t.shape and elements(t) * 8 >= max(elements(tensor) for tensor in op.tensors)]
    return [kernel("ConcatD", [spec(t.shape, t.dtype)], [spec(t.shape, t.dtype)]) for t in moved]


def scan_row(op: OpView) -> Iterable[KernelCall]:
    """Return a scan of one long row by a dedicated kernel, which first sums blocks and then scans them.

    NPU libraries for recommendation models have this kernel. CANN's own cumulative sum is sequential and would take
    thousands of times as long.
    """
    source = op.dense(at=0)
    if source is None:
        return []
    op.assume("assumed: all cores scan blocks, which are read twice and written once (never measured)")
    return [kernel("AsynchronousCompleteCumsum", [source, source], [source])]


def check_indices(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that compares every index with the size of its table."""
    index = op.need("indices", at=1)
    source = spec(index.shape, index.dtype)
    return [kernel("Less", [source], [source])]


@costs_like(r"fbgemm::\w*(Quantized|Quantize|ToFloat|ToHalf|ToFP8|ToHFP8|ToFused|Padded)\w*")
def convert_rows(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that converts rows to or from a few bits per element. It makes one read and one write."""
    source = op.widest()
    plain = in_rows(spec(source.shape, source.dtype))
    if source.dtype in ("uint8", "int8"):
        return [kernel("AscendAntiQuantV2", [plain], [in_rows(op.output(spec(source.shape, "float32")))])]
    return [kernel("AscendQuantV2", [plain], [in_rows(op.output(spec(source.shape, "int8")))])]


_INDICES = ("int32", "int64")


@costs_like(r"triton_", r"triton::")
def compiled_kernel(op: OpView) -> Iterable[KernelCall]:
    """Return a compiler-generated kernel. Each tensor in the arguments is moved once. The last tensor is written."""
    metas = op.tensors
    if not metas:
        raise DoesNotFit("needs tensors")
    op.note("a generated kernel: costed by its bytes; the last tensor is assumed to be its result")
    inputs: list[TensorMeta] = metas[:-1] or metas
    read = [
        spec((count_rows_read(op, t, metas), *t.shape[1:]), t.dtype) if t.shape else spec((), t.dtype) for t in inputs
    ]
    return [kernel("TritonKernel", read, [spec(metas[-1].shape, metas[-1].dtype)])]


def count_rows_read(op: OpView, table: TensorMeta, metas: list[TensorMeta]) -> int:
    """Return the number of rows of `table` that are read.

    It is the number of indices if another tensor has one row per index and no other tensor has as many rows as the
    table. Otherwise, all rows of the table count.
    """
    rows = table.shape[0]
    others = [t for t in metas if t is not table]
    row_counts = {elements(t) // max(1, t.shape[-1]) for t in others if len(t.shape) > 1 and t.dtype not in _INDICES}
    if len(table.shape) != 2 or table.dtype in _INDICES or any(rows in t.shape for t in others):
        return rows
    indices = [elements(t) for t in others if t.dtype in _INDICES and t.shape]
    rows_read = max((n for n in indices if n in row_counts and n < rows), default=rows)
    if rows_read < rows:
        op.note(f"{rows_read:,} rows of a table of {rows:,} are read, one per index")
    return rows_read


@costs("aten::_local_scalar_dense aten::item aten::is_nonzero aten::Bool aten::Int aten::Float")
def read_by_host(op: OpView) -> Iterable[KernelCall]:
    """Return no kernel for a copy of one value to the host.

    Waiting for the device costs step time, but no kernel time.
    """
    op.note(
        "returns a value to the host, which waits for it; launches no kernel (`opreplay timeline` shows such waits)"
    )
    return ()
