# pyright: strict
"""The index tensors of `x[i, :, mask]`, a list that profilers leave out: told by what is called inside and read next.

torch turns a mask into indices with `nonzero`, makes all indices of one size with `expand`, brings the dimensions that
they index to the front with `permute` where those lie apart, and reshapes each (ATen/native/TensorAdvancedIndexing).
Owns the list and the flag `accumulate`, not the numbers in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import msgspec

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg, recorded_args
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Known,
    Relatives,
    Rule,
    Shape,
    first_tensor_of,
    tensor,
)
from opreplay.traces.dtypes import ITEMSIZE_BYTES, MASKS
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta

MAX_MASK_ELEMENTS = 1 << 26
"""Of a mask that is as large as the tensor it is taken of; a larger one is hardly that."""
MAX_RANK = 8
"""Of tensors whose indexed dimensions are searched for."""
NEXT_READERS = 8
BYTES_PER_US = 8e6
"""8 TB/s: no memory moves more; a call that was recorded with less time moved fewer rows."""
_TRUE = re.compile(r"\], (\d+) true: told")
"""In what `_placed` says of a list with masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """What one call of index or index_put shows of its index tensors."""

    given: tuple[TensorMeta, ...]
    """The tensors of the list, without the empty places, in order."""
    width: int
    """Dimensions that they index together: a mask as many as it has."""
    broadcast: Shape
    """The common size of the indices."""
    before: int | None
    """Dimensions in front of the indexed ones, where that is told."""
    dims: tuple[int, ...] | None
    """The indexed dimensions that lie apart from each other, where that is told."""
    apart: bool
    """The indexed dimensions lie apart from each other."""


def told_true(op: ReplayOp) -> int | None:
    """How many elements the masks of an indexed call select, where the calls inside told."""
    matches = (_TRUE.search(note.what) for note in op.assumptions if note.argument == "indices")
    return next((int(match[1]) for match in matches if match), None)


def with_numbers(op: ReplayOp) -> ReplayOp:
    """The same call with the numbers of the selected elements in place of each mask, where it is told how many are.

    The result has the same size, which then follows from sizes alone.
    """
    if (true := told_true(op)) is None:
        return op
    number = TensorMeta(shape=(true,), dtype="int64")
    args: list[ReplayArg] = []
    for arg in op.args:
        if arg.name == "indices":
            masks = [meta is not None and meta.dtype in MASKS for meta in arg.tensors]
            spread = [
                [number] * len(meta.shape) if meta is not None and mask else [meta]
                for meta, mask in zip(arg.tensors, masks, strict=True)
            ]
            arg = msgspec.structs.replace(arg, tensors=tuple(meta for metas in spread for meta in metas))
        args.append(arg)
    return msgspec.structs.replace(op, args=tuple(args))


def index_tensors(known: Known, context: Context) -> Guess | None:
    """The list of index tensors as a Guess; None where self is not known."""
    source = tensor(known, "self")
    if source is None:
        return None
    around = context.relatives()
    calls = _calls_inside(around)
    if (mapped := _mapped(source.shape, around)) is not None:
        return mapped
    if (filled := _masked_fill(source, calls)) is not None:
        return filled
    inside = _inside(source.shape, calls, around.inner)
    values = tensor(known, "values")
    if inside is not None and (placed := _placed(source.shape, inside, values and values.shape, around)) is not None:
        return placed
    if values is not None and values.shape != ():
        return indices_for(source.shape, values.shape)
    if not source.shape:
        return Guess(tensors=(TensorMeta(shape=(), dtype="bool"),), why="a mask")
    if values is not None:
        if math.prod(source.shape) > MAX_MASK_ELEMENTS:
            return None
        return Guess(tensors=(TensorMeta(shape=source.shape, dtype="bool"),), why="a mask of self's shape")
    return _read_next(source.shape, around) or _rows(source, context)


def _calls_inside(around: Relatives) -> tuple[OpSignature, ...]:
    """What the implementation calls: index_put leaves all to `_index_put_impl_`."""
    names = {call.name for call in around.children}
    return around.inner if names & {"aten::_index_put_impl_", "aten::index_put_", around.name} else around.children


def _mapped(shape: Shape, around: Relatives) -> Guess | None:
    """Under `vmap` an index of one row calls that of the batch, with a range for the batch in front of its indices."""
    batch = next((m for call in around.inner if call.name == around.name and (m := first_tensor_of(call))), None)
    ranged = any(call.name == "aten::arange" for call in around.inner)
    if not ranged or batch is None or len(batch.shape) != len(shape) + 1 or batch.shape[1:] != shape:
        return None
    inside = _inside(batch.shape, around.inner)
    if inside is None or len(inside.given) < 2 or inside.apart or inside.broadcast[:1] != batch.shape[:1]:
        return None
    rows = tuple(_index(meta, meta.shape[1:]) for meta in inside.given[1:])
    shown = ", ".join(f"{meta.dtype}{list(meta.shape)}" for meta in rows)
    return Guess(tensors=rows, why=f"x[{shown}]: told by the calls inside, which index a batch of {batch.shape[0]}")


def _masked_fill(source: TensorMeta, calls: Sequence[OpSignature]) -> Guess | None:
    """One mask and one number: torch fills under the mask, which it unsqueezes to the rank of self."""
    filled = next((call for call in calls if call.name == "aten::masked_fill_"), None)
    mask = first_tensor_of(filled, 1) if filled is not None else None
    if filled is None or mask is None:
        return None
    unsqueezed = [meta for call in calls if call.name == "aten::unsqueeze" and (meta := first_tensor_of(call))]
    original = unsqueezed[0] if unsqueezed else mask
    before = max(0, len(source.shape) - len(unsqueezed) - len(original.shape))
    return Guess(tensors=(*(None,) * before, _index(original)), why="the mask of aten::masked_fill_ inside")


def _index(meta: TensorMeta, shape: Shape | None = None, dtype: str | None = None) -> TensorMeta:
    strides = meta.strides if shape is None or shape == meta.shape else None
    return TensorMeta(shape=meta.shape if shape is None else shape, dtype=dtype or meta.dtype, strides=strides)


def _inside(shape: Shape, calls: Sequence[OpSignature], inner: Sequence[OpSignature] = ()) -> _Inside | None:
    """Reads the calls in the order in which torch makes them; None where the indices are not among them.

    `inner`: what `calls` call in turn, and so on.
    """
    reshaped = [(call, meta) for call in calls if call.name == "aten::reshape" and (meta := _integers(call))]
    if not reshaped or len(reshaped) > len(shape):
        return None
    broadcast = reshaped[0][1].shape
    masks = [meta for call in calls if call.name == "aten::nonzero" and (meta := first_tensor_of(call)) is not None]
    expanded = [meta for call in calls if call.name == "aten::expand" and (meta := _integers(call)) is not None]
    narrow = [meta for call in calls if call.name == "aten::to" and (meta := _integers(call)) and meta.dtype != "int64"]
    by_mask = sum(len(mask.shape) for mask in masks)
    plain = [_index(meta) for _, meta in reshaped[by_mask:]]
    # What was expanded has steps of 0, where strides are recorded, and is no longer one piece, so that it has an alias.
    repeated = [at for at, meta in enumerate(plain) if 0 in (meta.strides or ())]
    viewed = [c.name for c in inner if c.name in ("aten::view", "aten::_reshape_alias") and _integers(c) is not None]
    if not repeated and len(viewed) == len(plain) == len(reshaped):
        repeated = [at for at, name in enumerate(viewed) if name == "aten::_reshape_alias"]
    places = repeated if len(repeated) == len(expanded) else range(len(plain))
    for at, meta in zip(places, expanded, strict=False):
        plain[at] = _index(meta)
    if len(narrow) == len(plain) and plain:
        plain = [_index(meta, dtype=cast_from.dtype) for meta, cast_from in zip(plain, narrow, strict=True)]
    permuted = next((call for call in calls if call.name == "aten::permute"), None)
    return _Inside(
        given=(*(_index(mask) for mask in masks), *plain),
        width=len(reshaped),
        broadcast=broadcast,
        before=_ones_before(reshaped[0][0], broadcast),
        dims=_moved_to_front(permuted, len(reshaped)),
        apart=permuted is not None,
    )


def _integers(call: OpSignature) -> TensorMeta | None:
    meta = first_tensor_of(call)
    return meta if meta is not None and meta.dtype.startswith(("int", "uint")) else None


def _argument(call: OpSignature, position: int) -> tuple[int, ...] | None:
    """A list of integers among the recorded arguments of a call."""
    args: Sequence[RecordedArg] = recorded_args(call)
    value = args[position].value if position < len(args) else MISSING
    return value if is_whole_numbers(value) else None


def _ones_before(reshape: OpSignature, broadcast: Shape) -> int | None:
    """An index is reshaped to ones for the dimensions before and after it."""
    size = _argument(reshape, 1)
    if size is None or len(size) < len(broadcast):
        return None
    places = [at for at in range(len(size) - len(broadcast) + 1) if size[at : at + len(broadcast)] == broadcast]
    # Indices of size 1 look like the ones around them.
    return places[0] if len(places) == 1 else None


def _moved_to_front(permute: OpSignature | None, width: int) -> tuple[int, ...] | None:
    dims = _argument(permute, 1) if permute is not None else None
    return None if dims is None or len(dims) < width else dims[:width]


def _placed(shape: Shape, inside: _Inside, values: Shape | None, around: Relatives) -> Guess | None:
    """The list with empty places where dimensions are taken as they are."""
    indexed = _dims(shape, inside, values, around)
    if indexed is None:
        return None
    dims, reader_note = indexed
    places: list[TensorMeta | None] = [None] * (dims[-1] + 1)
    at = 0
    for meta in inside.given:
        if at >= len(dims):
            return None
        width = len(meta.shape) if meta.dtype in MASKS else 1
        places[dims[at]] = meta
        # What a mask covers has no places of its own in the list.
        for covered in range(1, width):
            places[dims[at] + covered] = _COVERED
        at += width
    tensors = tuple(meta for meta in places if meta is not _COVERED)
    shown = ", ".join(":" if meta is None else f"{meta.dtype}{list(meta.shape)}" for meta in tensors)
    rows = ""
    if any(meta.dtype in MASKS for meta in inside.given):
        rows = f", {math.prod(inside.broadcast)} true"
    return Guess(tensors=tensors, why=f"x[{shown}]{rows}: told by the calls inside{reader_note}")


_COVERED = TensorMeta(shape=(), dtype="covered")


def _dims(
    source_shape: Shape, inside: _Inside, values: Shape | None, around: Relatives
) -> tuple[tuple[int, ...], str] | None:
    """The indexed dimensions of self, and what told them where that was not the call itself; None where none can be."""
    rank = len(source_shape)
    if inside.dims is not None and sorted(set(inside.dims)) == list(inside.dims) and inside.dims[-1] < rank:
        candidates = [inside.dims]
    elif inside.before is not None and not inside.apart and inside.before + inside.width <= rank:
        candidates = [tuple(range(inside.before, inside.before + inside.width))]
    else:
        candidates = list(_choices(rank, inside))
    fitting = [dims for dims in candidates if _takes_masks(source_shape, dims, inside)]
    if values is not None:
        # Where gradients are added up, torch makes one index of several, which fits no longer.
        fitting = [dims for dims in fitting if _broadcasts(values, _result(source_shape, dims, inside))]
    if not fitting:
        return None
    if len(fitting) == 1 or values is not None:
        return fitting[0], ""
    for call in around.following[:NEXT_READERS]:
        shapes = [arg.tensor.shape for arg in recorded_args(call) if arg.tensor is not None]
        matching = [dims for dims in fitting if _result(source_shape, dims, inside) in shapes]
        if matching:
            return matching[0], f" and what {call.name} reads next"
    # A batch stays in front in what is made of the result.
    for shape in (meta.shape for call in around.following[:NEXT_READERS] if (meta := first_tensor_of(call))):
        matching = [dims for dims in fitting if _result(source_shape, dims, inside)[:1] == shape[:1]]
        if matching:
            return matching[0], ""
    return fitting[0], ""


def _choices(rank: int, inside: _Inside) -> Iterator[tuple[int, ...]]:
    if rank > MAX_RANK:
        yield tuple(range(inside.width))
        return
    for dims in combinations(range(rank), inside.width):
        if (dims[-1] - dims[0] + 1 != inside.width) == inside.apart:
            yield dims


def _takes_masks(shape: Shape, dims: tuple[int, ...], inside: _Inside) -> bool:
    """Whether each mask is as large as the dimensions that it would index."""
    at = 0
    for meta in inside.given:
        width = len(meta.shape) if meta.dtype in MASKS else 1
        if meta.dtype in MASKS and tuple(shape[d] for d in dims[at : at + width]) != meta.shape:
            return False
        at += width
    return True


def _result(shape: Shape, dims: tuple[int, ...], inside: _Inside) -> Shape:
    rest = tuple(n for d, n in enumerate(shape) if d not in dims)
    at = 0 if inside.apart else dims[0]
    return (*rest[:at], *inside.broadcast, *rest[at:])


def _broadcasts(values: Shape, result: Shape) -> bool:
    if len(values) > len(result):
        return False
    return all(n in (1, m) for n, m in zip(reversed(values), reversed(result), strict=False))


def _read_next(shape: Shape, around: Relatives) -> Guess | None:
    """Without a look inside: one index over the first dimension that gives what one of the next calls reads first."""
    for call in around.following[:NEXT_READERS]:
        meta = first_tensor_of(call)
        if meta is None or meta.shape == shape:
            continue
        tail = len(shape) - 1
        index = meta.shape[: len(meta.shape) - tail]
        if index and meta.shape[len(index) :] == shape[1:]:
            return Guess(
                tensors=(TensorMeta(shape=index, dtype="int64"),),
                why=f"an int64 index of shape {list(index)}: {call.name} reads {list(meta.shape)} next",
            )
    return None


def _rows(source: TensorMeta, context: Context) -> Guess:
    """As many rows as self has, or as could be moved in the recorded time."""
    rows, why = source.shape[0], "nothing in the trace tells it"
    row_bytes = 2 * math.prod(source.shape[1:]) * ITEMSIZE_BYTES.get(source.dtype, 4)
    if context.recorded_us is not None and row_bytes:
        affordable = max(1, int(context.recorded_us * BYTES_PER_US / row_bytes))
        if affordable < rows:
            rows, why = affordable, f"no memory moves more in the recorded {context.recorded_us:.1f} µs"
    return Guess(
        tensors=(TensorMeta(shape=(rows,), dtype="int64"),),
        why=f"one int64 index of {rows} elements over dimension 0: {why}",
    )


def indices_for(shape: Shape, values: Shape) -> Guess | None:
    """`values` = own[:kept] + index shape + own[kept + indexed:]: flat indices first, then as few as possible."""
    options: list[tuple[bool, int, int, Shape]] = []
    for leading in range(len(shape)):
        if shape[:leading] != values[:leading]:
            break
        for indexed in range(1, len(shape) - leading + 1):
            tail = shape[leading + indexed :]
            middle = values[leading : len(values) - len(tail)]
            if middle and values[leading + len(middle) :] == tail:
                options.append((len(middle) != 1, indexed, leading, middle))
    if not options:
        return None
    _, indexed, leading, middle = min(options)
    metas = (*(None,) * leading, *(TensorMeta(shape=middle, dtype="int64"),) * indexed)
    return Guess(tensors=metas, why=f"{indexed} int64 indices of shape {middle}, from self and values")


def _accumulate(known: Known, context: Context) -> Guess | None:
    """The gradient of an indexing adds up what comes from one place."""
    parent = context.relatives().parent
    if parent is not None and "IndexBackward" in parent.name:
        return Guess(value=True, why=f"True: inside {parent.name}")
    return None


_PUTS = ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")

INDEX_RULES: dict[tuple[str, str], Rule] = {
    **{(op, "indices"): index_tensors for op in (*_PUTS, "index", "_unsafe_index", "_unsafe_masked_index")},
    **{(op, "accumulate"): _accumulate for op in _PUTS},
}
"""(op without namespace, argument) → rule."""
