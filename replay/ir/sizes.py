# pyright: strict
"""Computes from metadata how many bytes an op needs, before anything is allocated.

Sizes are logical: a tensor expanded by stride 0 counts with its full size. An op that reads such a tensor may write it
out in full: `empty_strided((2**40,), (0,)) + 1` requests 4 TB. Independent of torch and devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp, ReplayPlan, Value
from opreplay.replay.ir.names import names_in
from opreplay.replay.ir.reasons import IMPOSSIBLE_SHAPE, refuses_arguments
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorMeta, beyond_memory

SIZE_ARGUMENTS = frozenset({"size", "sizes", "output_size", "new_size"})
"""Names of int[] arguments that give the shape of the tensor to be created."""
FLAG = "--set max_op_memory"
ABSURD = "sizes larger than any memory"
"""Start of the detail in the reason of ops with a tensor larger than any memory. These ops cannot be called, so no time
is predicted for them.
"""
SIZES_SHOWN = 4
"""Maximum number of dimensions that a message shows."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes needed by one call."""

    inputs: int
    outputs: int
    outputs_known: bool
    """Whether `outputs` is exact; False if it is an estimate from the inputs."""

    @property
    def total(self) -> int:
        return self.inputs + self.outputs


def itemsize(dtype: str) -> int:
    """Return the bytes of one element of a torch dtype. An unknown dtype counts as 8 bytes, to avoid an
    underestimate.
    """
    return ITEMSIZE_BYTES.get(dtype, 8)


def extent(meta: TensorMeta) -> int:
    """Return the number of storage elements that the tensor spans, including offset and gaps; 0 for an empty tensor."""
    if math.prod(meta.shape) == 0:
        return 0
    if meta.strides is None:
        return meta.storage_offset + math.prod(meta.shape)
    return meta.storage_offset + 1 + sum((d - 1) * s for d, s in zip(meta.shape, meta.strides, strict=True))


def base_elements(op: ReplayOp) -> int:
    """Return the number of elements that the storage of the first argument must have; 0 if the argument's own metadata
    suffices.

    `aten::as_strided` may access any part of a storage, but the profiler records only the shape of one view of it.
    """
    if not op.name.startswith("aten::as_strided"):
        return 0
    base = next(tensors_of(op), None)
    values = op.values
    size, strides, offset = _sizes(values.get("size")), _sizes(values.get("stride")), values.get("storage_offset")
    if base is None or size is None or strides is None or len(size) != len(strides):
        return 0
    offset = offset if isinstance(offset, int) else base.storage_offset
    return extent(TensorMeta(shape=size, dtype=base.dtype, strides=strides, storage_offset=offset))


def _sizes(value: Value) -> tuple[int, ...] | None:
    """Return the value if it is a list of integers >= 0; otherwise None."""
    if not isinstance(value, tuple):
        return None
    sizes = tuple(size for size in value if isinstance(size, int) and size >= 0)
    return sizes if len(sizes) == len(value) else None


def tensor_bytes(meta: TensorMeta) -> int:
    """Return the larger of two numbers of bytes: for the logical size, and for the spanned storage."""
    return max(math.prod(meta.shape), extent(meta)) * itemsize(meta.dtype)


def tensors_of(op: ReplayOp) -> Iterator[TensorMeta]:
    """Yield all tensors among the arguments, with lists flattened and absent ones left out."""
    return (meta for arg in op.args for meta in arg.tensors if meta is not None)


def need_of(op: ReplayOp) -> Need:
    """Return the bytes that one call needs for inputs and outputs.

    Inputs are computed from metadata. Outputs are taken from the plan if it contains them. Otherwise they are estimated
    as the largest of three sizes: the largest input, the requested size, and all tensors broadcast together.
    """
    metas = list(tensors_of(op))
    inputs = _input_bytes(metas)
    if metas:
        inputs = max(inputs, base_elements(op) * itemsize(metas[0].dtype))
    if is_in_place(op):
        return Need(inputs=inputs, outputs=0, outputs_known=True)
    if op.outputs is not None:
        outputs = sum(tensor_bytes(meta) for meta in op.outputs if meta is not None)
        outputs = max(0, outputs - _given_back_bytes(op))
        return Need(inputs=inputs, outputs=outputs, outputs_known=True)
    largest = max((math.prod(meta.shape) * itemsize(meta.dtype) for meta in metas), default=0)
    width = max((itemsize(meta.dtype) for meta in metas), default=4)
    elements = max(map(_elements_asked_for, op.args), default=0)
    outputs = max(largest, width * max(elements, _broadcast_elements(metas)))
    return Need(inputs=inputs, outputs=outputs, outputs_known=False)


def _input_bytes(metas: list[TensorMeta]) -> int:
    """Return the total number of bytes of all tensors. Of tensors that share memory, only the largest counts."""
    shared: dict[int, int] = {}
    total = 0
    for meta in metas:
        if meta.storage is None:
            total += tensor_bytes(meta)
        else:
            shared[meta.storage] = max(shared.get(meta.storage, 0), tensor_bytes(meta))
    return total + sum(shared.values())


def is_in_place(op: ReplayOp) -> bool:
    """Check whether the op returns its input. Torch marks such ops with a trailing underscore; the schema must confirm
    it.
    """
    return op.name.endswith("_") and any(arg.mutated for arg in op.args)


def _given_back_bytes(op: ReplayOp) -> int:
    """Return the bytes of arguments that the op writes to and returns (`out=`), according to its schema."""
    if "!" not in (op.schema or "").rpartition("->")[2]:
        return 0
    return _input_bytes([meta for arg in op.args if arg.mutated for meta in arg.tensors if meta is not None])


def over_budget(op: ReplayOp, limit_bytes: int) -> Reason | None:
    """Return why the op does not fit into `limit_bytes`, or None if it does."""
    need = need_of(op)
    if need.total <= limit_bytes:
        return None
    about = "" if need.outputs_known else "about "
    return Reason("budget", f"needs {about}{readable(need.total)}, limit {readable(limit_bytes)} ({FLAG})")


def readable(size_bytes: int) -> str:
    """Format bytes with a decimal unit, as used for drives and traces: 3200000000 → "3.2 GB"."""
    try:
        value = float(size_bytes)
    except OverflowError:
        return f"{_magnitude(size_bytes)} B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def absurd_sizes(which: str, shape: Sequence[int]) -> Reason:
    """Return the reason for an op with a tensor that is larger than any memory."""
    shown = " x ".join(_magnitude(n) for n in shape[:SIZES_SHOWN])
    more = " x ..." if len(shape) > SIZES_SHOWN else ""
    return Reason("metadata missing", f"{ABSURD}: {which} of {shown}{more}")


def _magnitude(number: int) -> str:
    """Format a number with three digits, or as a power of two if it exceeds the float range."""
    try:
        return f"{number:.3g}"
    except OverflowError:
        return f"{'-' if number < 0 else ''}2^{number.bit_length() - 1}"


def is_impossible(op: ReplayOp) -> bool:
    """Check whether an op cannot run on any device. The cause is the size of its tensors, or arguments that do not
    match.
    """
    reason = op.reason
    if reason is None:
        return False
    refused = op.resolved_by is not None and refuses_arguments(reason)
    return refused or reason.detail.startswith((ABSURD, IMPOSSIBLE_SHAPE))


def absurd_results(op: ReplayOp) -> Reason | None:
    """Return why an op's planned results are impossibly large; None if they are not."""
    for place, meta in enumerate(op.outputs or ()):
        if meta is not None and beyond_memory(meta):
            return absurd_sizes(f"result {place}", meta.shape)
    return None


def _elements_asked_for(arg: ReplayArg) -> int:
    """Return the number of elements that a size argument requests. Negative entries, which torch infers, count as 1."""
    if arg.type != "int[]" or arg.name not in SIZE_ARGUMENTS or not isinstance(arg.value, tuple):
        return 0
    return math.prod(max(1, n) for n in arg.value if isinstance(n, int))


def _broadcast_elements(metas: list[TensorMeta]) -> int:
    """Return the number of elements of all tensors broadcast together; 0 if their shapes do not broadcast."""
    sizes: list[int] = []
    for meta in metas:
        shape = meta.shape[::-1]
        sizes += [1] * (len(shape) - len(sizes))
        for dim, size in enumerate(shape):
            if sizes[dim] == 1:
                sizes[dim] = size
            elif size not in (1, sizes[dim]):
                return 0
    return math.prod(sizes) if metas else 0


MAX_PIECES = 65_536
"""Maximum number of results of one op. `split` by 1 of a huge dimension would create billions."""
_SPLITTERS = names_in(
    """
    split split_with_sizes unbind chunk tensor_split hsplit vsplit dsplit unsafe_split unsafe_chunk
    unsafe_split_with_sizes split_copy unbind_copy split_with_sizes_copy
    """,
    "aten::",
)


def flood(op: ReplayOp) -> Reason | None:
    """Return why an op would return too many tensors; None if it would not."""
    pieces = _pieces(op) if op.called in _SPLITTERS else 0
    return Reason("budget", f"would return {pieces} tensors, limit {MAX_PIECES}") if pieces > MAX_PIECES else None


def _pieces(op: ReplayOp) -> int:
    """Return an upper bound for the number of results."""
    first = next(tensors_of(op), None)
    shape = () if first is None else first.shape
    values = op.values
    dim = values.get("dim", 0)
    size = shape[dim] if isinstance(dim, int) and -len(shape) <= dim < len(shape) else max(shape, default=0)
    chunks, sections, step = (values.get(name) for name in ("chunks", "sections", "split_size"))
    if isinstance(step, int) and step > 0:
        return math.ceil(size / step)
    if isinstance(chunks, int):
        return min(size, chunks)
    if isinstance(sections, int):
        return sections
    parts = values.get("split_sizes", values.get("indices", step))
    return len(parts) + 1 if isinstance(parts, tuple) else size


def refuse_floods(plan: ReplayPlan) -> ReplayPlan:
    """Mark each op that would return too many tensors as not replayable."""
    return msgspec.structs.replace(plan, ops=tuple(_without_flood(op) for op in plan.ops))


def _without_flood(op: ReplayOp) -> ReplayOp:
    reason = flood(op) if op.reason is None else None
    return op if reason is None else msgspec.structs.replace(op, reason=reason)
