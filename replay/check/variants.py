# pyright: strict
"""Variants of a call: the same one with other sizes, strides and dtypes, and with arguments that it must refuse.

Values only: a variant that no op could take (sizes that belong together and no longer fit) is found when the reference
refuses it, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from opreplay.replay.check.cases import Case, Values, replaced
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.sizes import extent, itemsize
from opreplay.traces.model import TensorMeta, contiguous_strides

PRIMES = ((3, 5, 7, 2), (17, 13, 19, 11), (131, 67, 37, 7), (1009, 31, 5, 3), (5, 257, 1021, 3))
"""Sizes that no vector width and no block divides: small, around a vector, around a block, long rows, long columns."""
AROUND = ((33, 65, 9, 5), (129, 255, 3, 17))
"""Sizes right beside those that kernels like."""
BLOCKS = ((64, 128, 32, 16), (128, 256, 8, 4))
"""Whole blocks: sizes that kernels like, without a rest."""
MULTIPLES = ((63, 105, 21, 15), (26, 99, 22, 9))
"""Multiples of 3, 5, 7, 9, 11 and 13, which are no primes and no multiples of any block."""
MADE_UP = {"prime sizes": PRIMES, "uneven sizes": AROUND, "whole blocks": BLOCKS, "multiples": MULTIPLES}
"""Groups of sizes by what the cases of them are called."""
STEPS = (2, 4, 8, 16, 32, 64, 128)
"""What sizes may have to be multiples of: halves of a row, packed bits, groups of a quantization."""
MOST_INSTEAD = 1 << 22
"""Elements of a case that is tried in place of another."""
NEAR_RATIO = 4
"""Of two sizes of which the larger may be made of the smaller one: halves of a row, heads that share keys."""
LONG_ROW, ENDLESS_ROW = 8200, 70_001
"""Columns of long rows: more than the threads of a block and what one of them keeps; more than 16 bits count."""
MANY_ROWS = 70_001
"""Rows: more than 65,535, the most blocks that CUDA launches along y and z, and than 16 bits count."""
MANY_BYTES = 16 << 20
"""Of all tensors up to which rows become many without columns becoming fewer."""
FEW_COLUMNS = (4, 6, 8, 2)
"""Other sizes where rows are many; even ones, as halves of a row belong together in many ops."""
HUGE_ELEMENTS = (1 << 22) + 1
"""Of the tensor that is made large: more than one block of any kernel, and no multiple of a block."""
COMPACT_ELEMENTS = 1 << 15
COMPACT = ((32, 64, 48, 16), (16, 32, 8, 24), (64, 128, 256, 32), (128, 128, 128, 128))
"""Sizes in place of large ones, for what is tried many times."""
MOST_BYTES = 64 << 20
"""Of all tensors of a variant."""
MOST_WORK = 1 << 38
"""Product of the elements of the two largest tensors of different shapes: more is seconds of a convolution."""
SMALL_SIZE = 4
"""Sizes that need not be smaller for what is tried element by element."""
SMALLEST_SIZE = 3
"""Whole numbers among the arguments that equal a size, and are at least as large, follow it."""

MANY_ELEMENTS = ("huge", "many rows", "many inner rows")
"""Kinds of cases that are tried where time does not matter."""

FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (
    *FLOATS,
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""Dtypes that are tried."""

VALUES: dict[Values, str] = {
    "large": "large values",
    "far": "values far from zero",
    "small": "small values",
    "denormal": "denormal numbers",
    "zeros": "zeros of both signs",
    "odd": "NaN and infinities",
}
"""Kinds of values that are tried, and what they are called."""

Change = Callable[[TensorMeta], "TensorMeta | None"]


def sized(case: Case) -> Iterator[Case]:
    """The case with other sizes: one element, none, primes, uneven, large."""
    sizes = distinct_sizes(case)
    if not sizes:
        return
    first = next((meta for meta in _tensors(case) if meta.shape), None)
    yield from _mapped(case, "one element", dict.fromkeys(sizes, 1))
    yield from _mapped(case, "empty", dict.fromkeys(sizes, 0), keep_numbers=True)
    if first is not None:
        for place, size in ((0, first.shape[0]), (-1, first.shape[-1])):
            name = "no rows" if place == 0 else "no columns"
            if len(sizes) > 1:
                yield from _mapped(case, name, {size: 0}, keep_numbers=True)
    for kind, groups in MADE_UP.items():
        for group in groups:
            yield from _resized(case, kind, sizes, group)
    yield from long_rows(case)
    yield from many_rows(case)
    yield from huge(case)


def _resized(case: Case, kind: str, sizes: Sequence[int], group: Sequence[int]) -> Iterator[Case]:
    """The case with these sizes, both ways; in place of those without ratios, where they are refused, such as keep
    ratios up to 4, and multiples, the smallest first: of each size by itself, from the last, and of all of them."""
    ways = list(_both_ways(sizes, group))
    for mapping in ways:
        # A number that equals a size may not be one: where both refuse what follows, it stays.
        others = [(mapping, True), *((one, False) for one in _multiplied(sizes, group) if mapping is ways[-1])]
        made = list(_mapped(case, kind, mapping))
        instead = [
            one for other, keep in others for one in _mapped(case, kind, other, keep_numbers=keep) if one not in made
        ]
        small = tuple(one for one in instead if elements(one) <= MOST_INSTEAD)
        yield from (dataclasses.replace(one, instead=small) for one in made if _few(one))


def _few(case: Case) -> bool:
    """Whether a made-up call is no long one: with three dimensions and more sizes multiply."""
    return elements(case) <= MOST_INSTEAD or max(len(meta.shape) for meta in _tensors(case)) < 3


def _multiplied(sizes: Sequence[int], group: Sequence[int]) -> Iterator[dict[int, int]]:
    """New sizes for old ones, in which ratios up to 4 are kept, and multiples of them."""
    near = _related(sizes, group, NEAR_RATIO)
    alone = _related(sizes, group, 1)
    if near != alone:
        yield near
    roots = [size for size in reversed(sizes) if _base(sizes, size, NEAR_RATIO) is None]
    for step in STEPS:
        for some in [*([one] for one in roots), roots][: None if len(roots) > 1 else 1]:
            yield _related(sizes, group, NEAR_RATIO, dict.fromkeys(some, step))


def huge(case: Case) -> Iterator[Case]:
    """The case with so many rows that its first tensor has four million elements."""
    first = next((meta for meta in _tensors(case) if meta.shape), None)
    if first is None:
        return
    size, alike = first.shape[0], first.shape.count(first.shape[0])
    rest = max(1, _count(first.shape) // max(1, size**alike))
    # A square grows to both sides, and what is multiplied with it as well: a quarter will do.
    wanted = HUGE_ELEMENTS if alike == 1 else HUGE_ELEMENTS // 4
    sizes = [math.ceil((elements / rest) ** (1 / alike)) for elements in (wanted >> 6, wanted >> 4, wanted)]
    yield from _grown(case, "huge", {}, size, sizes)


def endless_rows(case: Case) -> Iterator[Case]:
    """The case with few rows of more columns than 16 bits count."""
    first = next((meta for meta in _tensors(case) if meta.shape), None)
    if first is not None and first.shape[-1] > 1:
        columns = (LONG_ROW >> 3, LONG_ROW, ENDLESS_ROW)
        yield from _grown_in_steps(case, "endless rows", {first.shape[0]: 3}, first.shape[-1], columns)


def many_rows(case: Case) -> Iterator[Case]:
    """The case with more rows than CUDA launches blocks along y and z: along the first dimension, and where there are
    more than two also along the last but one. Not where the huge case has as many."""
    first = next((meta for meta in _tensors(case) if meta.shape), None)
    if first is None or len(first.shape) < 2 or not _count(first.shape):
        return
    alone = first.shape.count(first.shape[0]) == 1
    if len(first.shape) != 2 or not alone or HUGE_ELEMENTS // first.shape[1] < MANY_ROWS:
        yield from _many(case, first, 0, "many rows")
    if len(first.shape) > 2:
        yield from _many(case, first, len(first.shape) - 2, "many inner rows")


def _many(case: Case, first: TensorMeta, place: int, kind: str) -> Iterator[Case]:
    size = first.shape[place]
    if first.shape.count(size) > 1:
        # By its size a square would grow to both sides: only tensors that look like the first get more rows.
        yield from _taller(case, first, place, kind)
        return
    rows = (MANY_ROWS >> 6, MANY_ROWS >> 4, MANY_ROWS)
    kept = list(_grown(case, kind, {}, size, rows))
    if kept and _bytes(kept[0].op.args) <= MANY_BYTES:
        yield from kept
        return
    others = [one for one in distinct_sizes(case) if one != size]
    large = [one for one in others if one > SMALL_SIZE]
    for mapping in ({one: SMALL_SIZE + 1 + i for i, one in enumerate(large)}, *_both_ways(others, FEW_COLUMNS)):
        yield from _grown(case, kind, mapping, size, rows)


def _taller(case: Case, first: TensorMeta, place: int, kind: str) -> Iterator[Case]:
    """The case with more rows of all tensors that have the sizes of the first one; where those are too large, with
    fewer columns."""

    def of(rows: int, most: int) -> Case:
        kept = [min(size, most) for size in first.shape]
        shape = (*kept[:place], rows, *kept[place + 1 :])
        args = tuple(
            _each(arg, lambda meta: TensorMeta(shape=shape, dtype=meta.dtype) if meta.shape == first.shape else meta)
            for arg in case.op.args
        )
        return replaced(case, kind, args)

    for most in (max(first.shape), SMALL_SIZE + 1):
        large = of(MANY_ROWS, most)
        if _bytes(large.op.args) <= MANY_BYTES:
            yield dataclasses.replace(large, smaller=(of(MANY_ROWS >> 6, most), of(MANY_ROWS >> 4, most)))
            return


def _grown(case: Case, kind: str, mapping: Mapping[int, int], size: int, sizes: Sequence[int]) -> Iterator[Case]:
    """The case with one size replaced by the last of these, beside those with the ones before it."""
    for large in _mapped(case, kind, {**mapping, size: sizes[-1]}):
        smaller = tuple(one for few in sizes[:-1] for one in _mapped(case, kind, {**mapping, size: few}))
        yield dataclasses.replace(large, smaller=smaller)


def _grown_in_steps(
    case: Case, kind: str, mapping: Mapping[int, int], size: int, sizes: Sequence[int]
) -> Iterator[Case]:
    """The case with one size replaced, and where that is refused by the next multiple."""
    rounded = [[-(-few // step) * step for few in sizes] for step in STEPS]
    instead = [one for some in rounded for one in _grown(case, kind, mapping, size, some)]
    for one in _grown(case, kind, mapping, size, sizes):
        yield dataclasses.replace(one, instead=tuple(instead))


def long_rows(case: Case) -> Iterator[Case]:
    """The case with few rows of many columns."""
    first = next((meta for meta in _tensors(case) if meta.shape), None)
    if first is not None and first.shape[-1] > 1:
        columns = (LONG_ROW >> 5, LONG_ROW >> 3, LONG_ROW)
        yield from _grown_in_steps(case, "long rows", {first.shape[0]: 3}, first.shape[-1], columns)


def shared(case: Case) -> Iterator[Case]:
    """The case with one tensor given for two arguments, as in `x + x`: each pair that looks alike, and all that do.

    None that is written to: what that means no schema says.
    """
    places = [
        (a, t)
        for a, arg in enumerate(case.op.args)
        for t, meta in enumerate(arg.tensors)
        if meta is not None and meta.storage is None and _count(meta.shape) and not arg.mutated
    ]
    alike: dict[TensorMeta, list[tuple[int, int]]] = {}
    for a, t in places:
        alike.setdefault(_plain(case.op.args[a].tensors[t]), []).append((a, t))
    taken = {meta.storage for meta in _tensors(case) if meta.storage is not None}
    number = max(taken, default=-1) + 1
    for group in alike.values():
        pairs = list(itertools.combinations(group, 2))[:MOST_PAIRS]
        for some in (*pairs, tuple(group)) if len(group) > 2 else pairs:
            names = " and ".join(dict.fromkeys(case.op.args[a].name for a, _ in some))
            args = list(case.op.args)
            for a, t in some:
                one = msgspec.structs.replace(_plain(args[a].tensors[t]), storage=number)
                tensors = (*args[a].tensors[:t], one, *args[a].tensors[t + 1 :])
                args[a] = msgspec.structs.replace(args[a], tensors=tensors)
            yield replaced(case, f"{SHARED} for {names}", tuple(args))


SHARED = "one tensor"
"""How the kind of a case begins whose arguments are one tensor."""
MOST_PAIRS = 3
"""Of arguments that look alike which are given one tensor."""


def _plain(meta: TensorMeta | None) -> TensorMeta:
    """A tensor's sizes and dtype, contiguous."""
    assert meta is not None
    return TensorMeta(shape=meta.shape, dtype=meta.dtype)


def ranked(case: Case) -> Iterator[Case]:
    """The case with one dimension less, one more and three more, of all tensors that have as many as any."""
    most = max((len(meta.shape) for meta in _tensors(case)), default=0)
    kinds: dict[str, Change] = {
        "one dimension less": lambda meta: TensorMeta(shape=meta.shape[1:], dtype=meta.dtype),
        "one dimension more": lambda meta: TensorMeta(shape=(3, *meta.shape), dtype=meta.dtype),
        "three dimensions more": lambda meta: TensorMeta(shape=(2, 1, 3, *meta.shape), dtype=meta.dtype),
    }
    for kind, change in kinds.items() if most else ():
        args = tuple(
            _each(arg, lambda meta: (change(meta) or meta) if len(meta.shape) == most else meta)  # noqa: B023
            for arg in case.op.args
        )
        if _bytes(args) <= MOST_BYTES:
            yield replaced(case, kind, args)


def small(case: Case) -> Iterator[Case]:
    """The case with few elements, for what is found by moving one element after the other, the fewest first: all sizes
    small, or those that are not yet (where all are, a kernel is larger than its image)."""
    sizes = distinct_sizes(case)
    large = [size for size in sizes if size > SMALL_SIZE]
    mappings = [*_both_ways(sizes, (3, 5, 4, 2)), {size: SMALL_SIZE + 1 + i for i, size in enumerate(large)}]
    yield from sorted([*(one for mapping in mappings for one in _mapped(case, "small", mapping)), case], key=elements)


def compact(case: Case) -> list[Case]:
    """The case small enough to be tried many times: itself, or candidates of which an op takes the first or none."""
    if sum(_count(meta.shape) for meta in _tensors(case)) <= COMPACT_ELEMENTS:
        return [case]
    sizes = distinct_sizes(case)
    made: list[Case] = []
    for group in COMPACT:
        for mapping in _both_ways(sizes, group):
            made += _mapped(case, "small", mapping)
    return [one for one in made if sum(_count(meta.shape) for meta in _tensors(one)) <= 4 * COMPACT_ELEMENTS]


def valued(case: Case) -> Iterator[Case]:
    """The case with other values: large, far from zero, small ones, zeros of both signs, NaN and infinities."""
    if any("float" in meta.dtype for meta in _tensors(case)):
        for values, kind in VALUES.items():
            yield dataclasses.replace(case, kind=kind, values=values)


def primes_of(case: Case) -> Case:
    """The case with prime sizes, or in place of them with such as keep ratios of sizes; the case itself where it has
    no sizes."""
    sizes = distinct_sizes(case)
    found = list(_resized(case, "prime sizes", sizes, PRIMES[1])) if sizes else []
    if not found:
        return case
    *kept, alone = found
    return dataclasses.replace(alone, instead=(*alone.instead, *kept))


def other_sizes(case: Case, count: int) -> list[Case]:
    """The case at several sizes, for what must not depend on them."""
    sizes = distinct_sizes(case)
    groups = ((5, 9, 7, 3), (11, 6, 13, 4), (20, 18, 10, 8), (37, 24, 14, 12))
    made: list[Case] = []
    for group in groups[:count] if sizes else ():
        made += list(_mapped(case, "other sizes", next(iter(_both_ways(sizes, group)))))[:1]
    return made


def distinct_sizes(case: Case) -> list[int]:
    """Sizes above one of all tensors, ascending."""
    return sorted({size for meta in _tensors(case) for size in meta.shape if size > 1})


def _both_ways(sizes: Sequence[int], group: Sequence[int]) -> Iterator[dict[int, int]]:
    """New sizes for old ones: keeping that one is a multiple of another, and then without."""
    kept, alone = _related(sizes, group, max(sizes, default=1)), _related(sizes, group, 1)
    if kept != alone:
        yield kept
    yield alone


def _related(
    sizes: Sequence[int], group: Sequence[int], ratio: int, steps: Mapping[int, int] | None = None
) -> dict[int, int]:
    """New sizes for old ones, in which what is a multiple of another, up to a ratio, stays one; the others are those
    of the group, times their steps."""
    made: dict[int, int] = {}
    for index, size in enumerate(sizes):
        base = _base(sizes, size, ratio)
        free = group[index % len(group)] + 2 * (index // len(group))
        made[size] = free * (steps or {}).get(size, 1) if base is None else made[base] * (size // base)
    return made


def _base(sizes: Sequence[int], size: int, ratio: int) -> int | None:
    """The largest smaller size that one is a multiple of, up to a ratio."""
    smaller = [one for one in sizes if one < size and size % one == 0 and size // one <= ratio]
    return max(smaller, default=None)


def _mapped(case: Case, kind: str, mapping: Mapping[int, int], *, keep_numbers: bool = False) -> Iterator[Case]:
    """The case with sizes replaced, contiguous, where it is not too large."""

    def resized(meta: TensorMeta) -> TensorMeta:
        shape = tuple(mapping.get(size, size) for size in meta.shape)
        return TensorMeta(shape=shape, dtype=meta.dtype)

    args = tuple(_with_numbers(_each(arg, resized), {} if keep_numbers else mapping) for arg in case.op.args)
    if keep_numbers:
        args = tuple(_with_zeroed(arg, mapping) for arg in args)
    if args != case.op.args and _bytes(args) <= MOST_BYTES and _work(args) <= MOST_WORK:
        yield replaced(case, kind, args)


def _with_numbers(arg: ReplayArg, mapping: Mapping[int, int]) -> ReplayArg:
    """Whole numbers that are sizes follow them: normalized_shape, sections of a split."""
    if arg.type not in ("int", "int[]"):
        return arg
    mapped = {old: new for old, new in mapping.items() if old >= SMALLEST_SIZE}
    if isinstance(arg.value, tuple):
        items = tuple(mapped.get(item, item) if type(item) is int else item for item in arg.value)
        return msgspec.structs.replace(arg, value=items)
    if type(arg.value) is int:
        return msgspec.structs.replace(arg, value=mapped.get(arg.value, arg.value))
    return arg


def _with_zeroed(arg: ReplayArg, mapping: Mapping[int, int]) -> ReplayArg:
    """Lists of sizes follow empty tensors as well: normalized_shape has to fit."""
    return _with_numbers(arg, mapping) if arg.type == "int[]" else arg


def laid_out(case: Case) -> Iterator[Case]:
    """The case with other strides: of each tensor alone, and of all of them."""
    layouts: dict[str, Change] = {
        "transposed": _transposed,
        "sliced with an offset": _sliced,
        "with a row pitch": _pitched,
        "outer dimensions swapped": _outer_swapped,
        "expanded": _expanded,
        "expanded columns": _expanded_columns,
        "misaligned": _misaligned,
        "channels last": _channels_last,
    }
    places = [
        (a, t)
        for a, arg in enumerate(case.op.args)
        for t, meta in enumerate(arg.tensors)
        if meta is not None and meta.storage is None
    ]
    for kind, change in layouts.items():
        changed = [place for place in places if _change_at(case, [place], change, kind) is not None]
        if len(changed) > 1:
            made = _change_at(case, changed, change, kind)
            if made is not None:
                yield made
        for place in changed[:4]:
            name = case.op.args[place[0]].name
            made = _change_at(case, [place], change, kind if len(changed) == 1 else f"{kind} {name}")
            if made is not None:
                yield made


def _change_at(case: Case, places: Sequence[tuple[int, int]], change: Change, kind: str) -> Case | None:
    """The case with some tensors changed; None where one of them cannot be."""
    args = list(case.op.args)
    for a, t in places:
        arg, meta = args[a], args[a].tensors[t]
        if meta is None or (arg.mutated and change in (_expanded, _expanded_columns)):
            return None
        made = change(TensorMeta(shape=meta.shape, dtype=meta.dtype))
        if made is None:
            return None
        args[a] = msgspec.structs.replace(arg, tensors=(*arg.tensors[:t], made, *arg.tensors[t + 1 :]))
    return replaced(case, kind, tuple(args)) if _bytes(args) <= 4 * MOST_BYTES else None


def _transposed(meta: TensorMeta) -> TensorMeta | None:
    """Memory in the order of columns."""
    if len(meta.shape) < 2 or min(meta.shape[-2:]) < 2:
        return None
    swapped = contiguous_strides((*meta.shape[:-2], meta.shape[-1], meta.shape[-2]))
    return msgspec.structs.replace(meta, strides=(*swapped[:-2], swapped[-1], swapped[-2]))


def _sliced(meta: TensorMeta) -> TensorMeta | None:
    """Every second column of a wider tensor, from its third row on."""
    if not meta.shape or not _count(meta.shape):
        return None
    strides = contiguous_strides((*meta.shape[:-1], 2 * meta.shape[-1] + 3))
    return msgspec.structs.replace(meta, strides=(*strides[:-1], 2), storage_offset=2 * strides[0] + 1)


def _pitched(meta: TensorMeta) -> TensorMeta | None:
    """The first columns of a wider tensor: rows lie apart, their elements side by side."""
    if len(meta.shape) < 2 or min(meta.shape[-2:]) < 2:
        return None
    strides = contiguous_strides((*meta.shape[:-1], meta.shape[-1] + 8))
    return msgspec.structs.replace(meta, strides=strides, storage_offset=4)


def _outer_swapped(meta: TensorMeta) -> TensorMeta | None:
    """Memory in the order of the second dimension, rows as they are: batch and heads of attention."""
    if len(meta.shape) < 3 or min(meta.shape[:2]) < 2:
        return None
    swapped = contiguous_strides((meta.shape[1], meta.shape[0], *meta.shape[2:]))
    return msgspec.structs.replace(meta, strides=(swapped[1], swapped[0], *swapped[2:]))


def _expanded_columns(meta: TensorMeta) -> TensorMeta | None:
    """The same column again and again."""
    if len(meta.shape) < 2 or meta.shape[-1] < 2:
        return None
    return msgspec.structs.replace(meta, strides=(*contiguous_strides((*meta.shape[:-1], 1))[:-1], 0))


def _expanded(meta: TensorMeta) -> TensorMeta | None:
    """The same row again and again: a stride of 0."""
    if not meta.shape or meta.shape[0] < 2:
        return None
    return msgspec.structs.replace(meta, strides=(0, *contiguous_strides(meta.shape)[1:]))


def _misaligned(meta: TensorMeta) -> TensorMeta | None:
    """Contiguous, but beginning one element late."""
    return (
        msgspec.structs.replace(meta, strides=contiguous_strides(meta.shape), storage_offset=1) if meta.shape else None
    )


def _channels_last(meta: TensorMeta) -> TensorMeta | None:
    """torch.channels_last: batch, height, width, channel in memory."""
    if len(meta.shape) != 4 or meta.shape[1] < 2:
        return None
    n, c, h, w = meta.shape
    strides = contiguous_strides((n, h, w, c))
    return msgspec.structs.replace(meta, strides=(strides[0], strides[3], strides[1], strides[2]))


def main_dtype(case: Case) -> str | None:
    """The dtype of the first tensor of floats, else of the first tensor."""
    dtypes = [meta.dtype for meta in _tensors(case)]
    return next((dtype for dtype in dtypes if dtype in DTYPES and "float" in dtype), dtypes[0] if dtypes else None)


def typed(case: Case, dtype: str, kind: str | None = None) -> Case:
    """The case with its main dtype replaced, wherever it stands."""
    main = main_dtype(case)

    def retyped(meta: TensorMeta) -> TensorMeta:
        return msgspec.structs.replace(meta, dtype=dtype) if meta.dtype == main else meta

    args = tuple(_each(arg, retyped) for arg in case.op.args)
    made = replaced(case, kind or dtype, args)
    return dataclasses.replace(made, instead=tuple(typed(one, dtype, kind) for one in case.instead))


def broadcast(case: Case) -> Iterator[Case]:
    """The case with one tensor smaller, so that it has to be repeated along a dimension."""
    places = [
        (a, arg) for a, arg in enumerate(case.op.args) if arg.type == "Tensor" and arg.tensors and not arg.mutated
    ]
    if len([1 for _, arg in places if arg.tensors[0] is not None]) < 2:
        return
    for a, arg in places:
        meta = arg.tensors[0]
        if meta is None or not meta.shape:
            continue
        rank = len(meta.shape)
        shapes = {
            f"one row of {arg.name}": (1, *meta.shape[1:]),
            f"one column of {arg.name}": (*meta.shape[:-1], 1),
            f"{arg.name} without rows": meta.shape[1:],
            f"{arg.name} a single number": (1,) * rank,
            f"{arg.name} zero-dimensional": (),
        }
        for kind, shape in shapes.items():
            if shape != meta.shape:
                yield _with_tensor(case, kind, a, TensorMeta(shape=shape, dtype=meta.dtype))


def wrong(case: Case) -> Iterator[Case]:
    """The case with arguments that an op must refuse, or take as its reference does: dtype, rank, sizes, numbers."""
    for a, arg in enumerate(case.op.args):
        meta = arg.tensors[0] if arg.type == "Tensor" and arg.tensors else None
        if meta is not None:
            other = "int64" if "float" in meta.dtype else "float32"
            yield _with_tensor(case, f"{arg.name} of {other}", a, msgspec.structs.replace(meta, dtype=other))
            yield _with_tensor(
                case, f"{arg.name} with one more dimension", a, TensorMeta(shape=(1, *meta.shape, 2), dtype=meta.dtype)
            )
            yield _with_tensor(case, f"{arg.name} zero-dimensional", a, TensorMeta(shape=(), dtype=meta.dtype))
            if meta.shape:
                longer = (*meta.shape[:-1], meta.shape[-1] + 1)
                shorter = (max(0, meta.shape[0] - 1), *meta.shape[1:])
                yield _with_tensor(case, f"{arg.name} too wide", a, TensorMeta(shape=longer, dtype=meta.dtype))
                yield _with_tensor(case, f"{arg.name} too short", a, TensorMeta(shape=shorter, dtype=meta.dtype))
                yield _with_tensor(
                    case, f"{arg.name} empty", a, TensorMeta(shape=(0,) * len(meta.shape), dtype=meta.dtype)
                )
        elif arg.type in ("int", "Scalar", "float") and isinstance(arg.value, int | float):
            for number in (-1_000_003, 1 << 31) if arg.type == "int" else (float("1e30"), -1e30):
                value = number if arg.type == "int" else float(number)
                changed = msgspec.structs.replace(arg, value=value)
                args = (*case.op.args[:a], changed, *case.op.args[a + 1 :])
                yield replaced(case, f"{arg.name}={value:g}", args)


def _with_tensor(case: Case, kind: str, place: int, meta: TensorMeta) -> Case:
    args = list(case.op.args)
    args[place] = msgspec.structs.replace(args[place], tensors=(meta,))
    return replaced(case, kind, tuple(args))


def _each(arg: ReplayArg, change: Callable[[TensorMeta], TensorMeta]) -> ReplayArg:
    if not arg.tensors:
        return arg
    return msgspec.structs.replace(arg, tensors=tuple(meta and change(meta) for meta in arg.tensors))


def _tensors(case: Case) -> list[TensorMeta]:
    return [meta for arg in case.op.args for meta in arg.tensors if meta is not None]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _bytes(args: Sequence[ReplayArg]) -> int:
    return sum(extent(meta) * itemsize(meta.dtype) for arg in args for meta in arg.tensors if meta is not None)


def elements(case: Case) -> int:
    """Elements of all tensors of a call."""
    return sum(_count(meta.shape) for meta in _tensors(case))


def _work(args: Sequence[ReplayArg]) -> int:
    counts = sorted(_count(shape) for shape in {meta.shape for arg in args for meta in arg.tensors if meta is not None})
    return counts[-1] * counts[-2] if len(counts) > 1 else 0
