# pyright: strict
"""Guesses the index tensors of `x[i, :, mask]` from nested and following calls, because profilers do not record this
list.

torch turns a mask into indices with `nonzero`, and brings all indices to one size with `expand`. If the indexed
dimensions are not adjacent, it moves them to the front with `permute`. It then reshapes each index
(ATen/native/TensorAdvancedIndexing). The list and the flag `accumulate` are guessed, but not the numbers in the index
tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations

import msgspec
from msgspec.structs import replace

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Relatives,
    Rule,
    Shape,
    broadcast,
    first_tensor_of,
    first_tensors,
    metas_of,
    recorded_numbers,
    tensor_shapes,
)
from opreplay.traces.dtypes import ITEMSIZE_BYTES, MASKS
from opreplay.traces.model import OpSignature, TensorMeta

MAX_MASK_ELEMENTS = 1 << 26
"""Maximum number of elements of a tensor that is assumed to be a mask. Larger masks are unlikely."""
MAX_RANK = 8
"""Maximum rank of a tensor for which all combinations of indexed dimensions are tried."""
NEXT_READERS = 8
_INTEGERS = ("int", "uint")
BYTES_PER_US = 8e6
"""Rate in bytes per microsecond (8 TB/s) that no memory exceeds. It limits the number of rows that a call can have
moved in its recorded time.
"""
_TRUE = re.compile(r"\], (\d+) true: inferred")
"""Matches the number of true elements in the note that `_shown_list` writes for a list with masks."""


class _ShownIndices(msgspec.Struct, frozen=True, kw_only=True):
    """What nested calls show about the index tensors of an index or index_put call."""

    tensors: tuple[TensorMeta, ...]
    """Index tensors in list order, without the empty entries."""
    width: int
    """Number of dimensions that all index tensors index together. A mask indexes as many dimensions as it has."""
    broadcast: Shape
    """Shape to which the indices are broadcast."""
    before: int | None
    """Number of dimensions in front of the indexed ones; None if unknown."""
    dims: tuple[int, ...] | None
    """The indexed dimensions, if they are not adjacent. None if they are adjacent or unknown."""
    apart: bool
    """Whether the indexed dimensions are not adjacent."""


def with_numbers(op: ReplayOp) -> ReplayOp:
    """Replace each mask of an indexing call by integer indices of the selected elements, if the number of these is
    known.

    The result has the same shape as before, but its shape no longer depends on values.
    """
    matches = (_TRUE.search(note.what) for note in op.assumptions if note.argument == "indices")
    count = next((int(match[1]) for match in matches if match), None)
    return op if count is None else replace(op, args=tuple(_numbered(arg, count) for arg in op.args))


def _numbered(arg: ReplayArg, count: int) -> ReplayArg:
    """Replace each mask in a list of index tensors by one tensor of `count` integers per dimension of the mask."""
    if arg.name != "indices":
        return arg
    numbers = TensorMeta(shape=(count,), dtype="int64")
    spread = ((numbers,) * len(m.shape) if m is not None and m.dtype in MASKS else (m,) for m in arg.tensors)
    return replace(arg, tensors=tuple(chain.from_iterable(spread)))


def index_tensors(known: Call, context: Context) -> Guess | None:
    """Guess the list of index tensors; None if the argument `self` is unknown."""
    source, values, around = known.tensor("self"), known.shape("values"), context.relatives()
    if source is None:
        return None
    calls, shape = _calls_inside(around), source.shape
    shown = (
        _index_of_sample(source, around, context)
        or _masked_fill(source, calls)
        or _shown_list(shape, calls, values, around)
    )
    if shown is not None:
        return shown
    if values:
        return indices_for(shape, values)
    if not shape:
        return Guess(tensors=(TensorMeta(shape=(), dtype="bool"),), why="a mask")
    if values is None:
        return _read_next(shape, around) or _rows(source, context)
    if math.prod(shape) > MAX_MASK_ELEMENTS:
        return None
    return Guess(tensors=(TensorMeta(shape=shape, dtype="bool"),), why="a mask of self's shape")


def _calls_inside(around: Relatives) -> tuple[OpSignature, ...]:
    """Return the nested calls that do the work; index_put delegates everything to `_index_put_impl_`."""
    names = {call.name for call in around.children}
    return around.inner if names & {"aten::_index_put_impl_", "aten::index_put_", around.name} else around.children


def _index_of_sample(source: TensorMeta, around: Relatives, context: Context) -> Guess | None:
    """Guess the indices of one sample from the batched call that `vmap` makes within the call for one sample.

    In front of its indices, the batched call has an `arange` over the batch. The `arange` is missing if all samples
    have the same indices. Indices that differ between samples have as many dimensions as the `arange`. Indices that are
    the same for all samples have fewer.
    """
    inside = around.batched() if around.batched is not None else None
    metas = tuple(metas_of(inside[0])) if inside is not None else ()
    if inside is None or not metas or metas[0].shape[1:] != source.shape or not metas[0].shape:
        return None
    count, (signature, inner) = metas[0].shape[0], inside
    known = Call({"self": ReplayArg(name="self", type="Tensor", tensors=metas[:1])})
    if len(metas) > 1 and any(put in signature.name for put in ("put", "masked_index")):
        known["values"] = ReplayArg(name="values", type="Tensor", tensors=metas[1:2])
    batch = index_tensors(known, msgspec.structs.replace(context, relatives=lambda: inner))
    if batch is None or batch.tensors is None or len(batch.tensors) < 2:
        return None
    front = batch.tensors[0]
    if front is not None and (
        front.shape[:1] != (count,) or all(call.name != "aten::arange" for call in around.children)
    ):
        return None
    rank = None if front is None else len(front.shape)
    rows = tuple(
        meta if meta is None or len(meta.shape) != rank else _index(meta, meta.shape[1:]) for meta in batch.tensors[1:]
    )
    names = ", ".join(":" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in rows)
    return Guess(tensors=rows, why=f"x[{names}]: inferred from the calls inside the op, which index a batch of {count}")


def _masked_fill(source: TensorMeta, calls: Sequence[OpSignature]) -> Guess | None:
    """Guess one mask from the nested `masked_fill_`. torch unsqueezes the mask of this call to the rank of self."""
    filled = next((call for call in calls if call.name == "aten::masked_fill_"), None)
    mask = first_tensor_of(filled, 1) if filled is not None else None
    if mask is None:
        return None
    unsqueezed = [meta for meta, _ in first_tensors(calls, ("aten::unsqueeze",))]
    recorded = unsqueezed[0] if unsqueezed else mask
    before = max(0, len(source.shape) - len(unsqueezed) - len(recorded.shape))
    return Guess(tensors=(*(None,) * before, _index(recorded)), why="the mask of aten::masked_fill_ inside the op")


def _index(meta: TensorMeta, shape: Shape | None = None, dtype: str | None = None) -> TensorMeta:
    strides = meta.strides if shape is None or shape == meta.shape else None
    return TensorMeta(shape=meta.shape if shape is None else shape, dtype=dtype or meta.dtype, strides=strides)


def _integers(calls: Iterable[OpSignature], op: str) -> list[TensorMeta]:
    """Return the integer tensors that are the first argument of a call of `op`."""
    return [meta for meta, _ in first_tensors(calls, (op,)) if meta.dtype.startswith(_INTEGERS)]


def _shown_indices(shape: Shape, calls: Sequence[OpSignature], around: Relatives) -> _ShownIndices | None:
    """Return what the nested calls, in torch's order, show about the indices; None if they do not handle indices."""
    reshaped = _integers(calls, "aten::reshape")
    if not 0 < len(reshaped) <= len(shape):
        return None
    masks = [_index(meta) for meta, _ in first_tensors(calls, ("aten::nonzero",))]
    by_mask = sum(len(mask.shape) for mask in masks)
    first = next(call for call in calls if _integers((call,), "aten::reshape"))
    permute = next((call for call in calls if call.name == "aten::permute"), None)
    permuted = None if permute is None else recorded_numbers(permute, 1)
    return _ShownIndices(
        tensors=(*masks, *_before_expanding(reshaped, by_mask, calls, around)),
        width=len(reshaped),
        broadcast=reshaped[0].shape,
        before=_ones_before(first, reshaped[0].shape),
        dims=None if permuted is None or len(permuted) < len(reshaped) else permuted[: len(reshaped)],
        apart=permute is not None,
    )


def _before_expanding(
    reshaped: Sequence[TensorMeta], by_mask: int, calls: Sequence[OpSignature], around: Relatives
) -> list[TensorMeta]:
    """Return the index tensors that do not come from a mask, as they were before torch expanded and cast them."""
    indices, expanded = [_index(meta) for meta in reshaped[by_mask:]], _integers(calls, "aten::expand")
    # What was expanded has steps of 0, where strides are recorded, and is no longer one piece, so that it has an alias.
    repeated = [at for at, meta in enumerate(indices) if 0 in (meta.strides or ())]
    views = first_tensors(around.inner, ("aten::view", "aten::_reshape_alias"))
    viewed = [name for meta, name in views if meta.dtype.startswith(_INTEGERS)]
    if not repeated and len(viewed) == len(indices) == len(reshaped):
        repeated = [at for at, name in enumerate(viewed) if name == "aten::_reshape_alias"]
    # The range that vmap puts in front of the indices has all dimensions: what was expanded first and has fewer is
    # another one.
    keeps_range = bool(expanded) and len(expanded[0].shape) < len(reshaped[0].shape) and _is_batch_with_range(around)
    open_places = range(int(keeps_range and not by_mask), len(indices))
    shown = dict(zip(repeated if len(repeated) == len(expanded) else open_places, expanded, strict=False))
    indices = [_index(shown.get(at, meta)) for at, meta in enumerate(indices)]
    narrow = [meta.dtype for meta in _integers(calls, "aten::to") if meta.dtype != "int64"]
    if len(narrow) == len(indices):
        return [_index(meta, dtype=dtype) for meta, dtype in zip(indices, narrow, strict=True)]
    # Those that were expanded show their own types; what else was cast are the others.
    for meta in shown.values():
        if meta.dtype in narrow:
            narrow.remove(meta.dtype)
    others = [at for at in open_places if at not in shown]
    types = dict(zip(others, narrow, strict=True)) if len(narrow) == len(others) else {}
    return [_index(meta, dtype=types.get(at)) for at, meta in enumerate(indices)]


def _is_batch_with_range(around: Relatives) -> bool:
    """Check whether vmap makes this call for a batch, with an `arange` in front of the indices."""
    levels = [] if around.above is None else [around.above(number) for number in range(min(2, len(around.ancestors)))]
    return any(
        level.name.removesuffix("_") == around.name.removesuffix("_").replace("_index_put_impl", "index_put")
        and any(call.name == "aten::arange" for call in level.children)
        for level in levels
    )


def _ones_before(reshape: OpSignature, broadcast: Shape) -> int | None:
    """Return the number of size-1 dimensions in front of an index's own dimensions; None if unknown.

    torch adds a size-1 dimension for each unindexed dimension before and after the indexed ones.
    """
    size, rank = recorded_numbers(reshape, 1), len(broadcast)
    if size is None:
        return None
    places = [at for at in range(len(size) - rank + 1) if size[at : at + rank] == broadcast]
    # Indices of size 1 look like the ones around them.
    return places[0] if len(places) == 1 else None


def _shown_list(shape: Shape, calls: Sequence[OpSignature], values: Shape | None, around: Relatives) -> Guess | None:
    """Guess the list of index tensors from the nested calls, with an empty entry for each unindexed dimension."""
    shown = _shown_indices(shape, calls, around)
    if shown is None or (indexed := _indexed_dims(shape, shown, values, around)) is None:
        return None
    dims, reader_note = indexed
    by_dim: dict[int, TensorMeta] = {}
    covered: set[int] = set()
    for at, width, meta in _positions(shown.tensors):
        if at >= len(dims):
            return None
        by_dim[dims[at]] = meta
        covered |= {dims[at] + n for n in range(1, width)}  # by a mask, which has one place in the list
    tensors = tuple(by_dim.get(d) for d in range(dims[-1] + 1) if d not in covered)
    names = ", ".join(":" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in tensors)
    masked = any(meta.dtype in MASKS for meta in shown.tensors)
    rows = f", {math.prod(shown.broadcast)} true" * masked
    return Guess(tensors=tensors, why=f"x[{names}]{rows}: inferred from the calls inside the op{reader_note}")


def _positions(tensors: Iterable[TensorMeta]) -> Iterator[tuple[int, int, TensorMeta]]:
    """Yield (position among the indexed dimensions, number of dimensions, index tensor) for each tensor.

    A mask indexes as many dimensions as it has; an integer index indexes one.
    """
    at = 0
    for meta in tensors:
        width = len(meta.shape) if meta.dtype in MASKS else 1
        yield at, width, meta
        at += width


def _indexed_dims(
    shape: Shape, shown: _ShownIndices, values: Shape | None, around: Relatives
) -> tuple[tuple[int, ...], str] | None:
    """Return the indexed dimensions of self, and a note; None if no dimensions fit.

    The note names the evidence if the evidence is outside the call.
    """
    results = {
        dims: _result_shape(shape, dims, shown)
        for dims in _possible_dims(len(shape), shown)
        if _takes_masks(shape, dims, shown)
    }
    if values is not None:
        # Where gradients are added up, torch makes one index of several, which fits no longer.
        results = {dims: result for dims, result in results.items() if broadcast([values, result]) == result}
    if not results or values is not None or len(results) == 1:
        return next(((dims, "") for dims in results), None)
    return _read_dims(results, around)


def _read_dims(results: Mapping[tuple[int, ...], Shape], around: Relatives) -> tuple[tuple[int, ...], str]:
    """Return the indexed dimensions that give a result which a following call reads, with a note on that call.

    `results` maps possible dimensions to the result's shape. If no following call reads such a result, the first
    possible dimensions are returned with an empty note. Dimensions that leave the batch in front are preferred.
    """
    following = around.following[:NEXT_READERS]
    for call in following:
        read = tensor_shapes(call)
        dims = next((dims for dims, result in results.items() if result in read), None)
        if dims is not None:
            return dims, f" and from the sizes that {call.name} reads next"
    # A batch stays in front in what is made of the result.
    batches = (meta.shape[:1] for meta, _ in first_tensors(following))
    in_front = (dims for batch in batches for dims, result in results.items() if result[:1] == batch)
    return next(in_front, next(iter(results))), ""


def _possible_dims(rank: int, shown: _ShownIndices) -> Iterable[tuple[int, ...]]:
    """Return the combinations of dimensions that may be indexed."""
    dims, before, width = shown.dims, shown.before, shown.width
    if dims is not None and sorted(set(dims)) == list(dims) and dims[-1] < rank:
        return [dims]
    if before is not None and not shown.apart and before + width <= rank:
        return [tuple(range(before, before + width))]
    if rank > MAX_RANK:
        return [tuple(range(width))]
    return (d for d in combinations(range(rank), width) if (d[-1] - d[0] + 1 != width) == shown.apart)


def _takes_masks(shape: Shape, dims: tuple[int, ...], shown: _ShownIndices) -> bool:
    """Check whether the shape of each mask equals the sizes of the dimensions that it would index."""
    masks = ((dims[at : at + width], meta) for at, width, meta in _positions(shown.tensors) if meta.dtype in MASKS)
    return all(tuple(shape[d] for d in masked) == mask.shape for masked, mask in masks)


def _result_shape(shape: Shape, dims: tuple[int, ...], shown: _ShownIndices) -> Shape:
    rest = tuple(n for d, n in enumerate(shape) if d not in dims)
    at = 0 if shown.apart else dims[0]
    return (*rest[:at], *shown.broadcast, *rest[at:])


def _read_next(shape: Shape, around: Relatives) -> Guess | None:
    """Guess one index over the first dimension, for a call without nested calls. A following call must read a matching
    result.
    """
    for meta, reader in first_tensors(around.following[:NEXT_READERS]):
        index = meta.shape[: len(meta.shape) - len(shape) + 1]
        if index and meta.shape != shape and meta.shape[len(index) :] == shape[1:]:
            why = f"an int64 index of shape {list(index)}: {reader} reads sizes {list(meta.shape)} next"
            return Guess(tensors=(TensorMeta(shape=index, dtype="int64"),), why=why)
    return None


def _rows(source: TensorMeta, context: Context) -> Guess:
    """Guess as many rows as self has, or fewer if memory cannot move that many in the recorded time."""
    rows, why = source.shape[0], "the trace does not show the value"
    row_bytes = 2 * math.prod(source.shape[1:]) * ITEMSIZE_BYTES.get(source.dtype, 4)
    if context.recorded_us is not None and row_bytes:
        affordable = max(1, int(context.recorded_us * BYTES_PER_US / row_bytes))
        if affordable < rows:
            rows, why = affordable, f"as many as memory can move in the recorded {context.recorded_us:.1f} µs"
    return Guess(
        tensors=(TensorMeta(shape=(rows,), dtype="int64"),),
        why=f"one int64 index of {rows} elements over dimension 0: {why}",
    )


def indices_for(shape: Shape, values: Shape) -> Guess | None:
    """Guess the index tensors from the shape of `values`: shape[:leading] + index shape + shape[leading + indexed:].

    Flat indices are preferred, then the fewest indexed dimensions.
    """
    options: list[tuple[bool, int, int, Shape]] = []
    for leading, end in combinations(range(len(shape) + 1), 2):
        tail = shape[end:]
        middle = values[leading : len(values) - len(tail)]
        if middle and values == (*shape[:leading], *middle, *tail):
            options.append((len(middle) != 1, end - leading, leading, middle))
    if not options:
        return None
    _, indexed, leading, middle = min(options)
    metas = (*(None,) * leading, *(TensorMeta(shape=middle, dtype="int64"),) * indexed)
    return Guess(tensors=metas, why=f"{indexed} int64 indices of shape {middle}, from self and values")


def _accumulate(known: Call, context: Context) -> Guess | None:
    """Guess True inside the backward of an indexing op, which adds up contributions to the same element."""
    parent = context.relatives().parent
    if parent is not None and "IndexBackward" in parent.name:
        return Guess(value=True, why=f"True: inside {parent.name}")
    return None


_PUTS = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")

INDEX_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "indices"): index_tensors for op in (*_PUTS, "index", "_unsafe_index", "_unsafe_masked_index")},
    **{(op, "accumulate"): _accumulate for op in _PUTS},
}
"""(op without namespace, argument) → rule that guesses the argument."""
