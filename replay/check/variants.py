# pyright: strict
"""Creates variants of a call: with other sizes, strides and dtypes, and with arguments that an op must refuse.

Variants are metadata only. If the sizes of a variant do not match, the reference refuses it as well. This shows that no
op could accept it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from opreplay.replay.check.cases import Case, Trait, Values, add_defaults, argument, replaced
from opreplay.replay.ir.model import ReplayArg, Value
from opreplay.replay.ir.sizes import extent, itemsize
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.model import TensorMeta, contiguous_strides

PRIMES = ((3, 5, 7, 2), (17, 13, 19, 11), (131, 67, 37, 7), (1009, 31, 5, 3), (5, 257, 1021, 3))
"""Sizes that are not a multiple of any vector width or block. The groups are: small sizes, sizes around a vector, sizes
around a block, long rows, long columns.
"""
AROUND = ((33, 65, 9, 5), (129, 255, 3, 17), (5, 205, 1, 1), (11, 93, 1, 1))
"""Sizes one above or below those that suit kernels, or with 1,025 or 1,023 elements in total."""
BLOCKS = ((64, 128, 32, 16), (128, 256, 8, 4))
"""Sizes that suit kernels: whole blocks without a remainder."""
MULTIPLES = ((63, 105, 21, 15), (26, 99, 22, 9))
"""Multiples of 3, 5, 7, 9, 11 and 13, which are neither primes nor multiples of any block."""
MADE_UP = {"prime sizes": PRIMES, "uneven sizes": AROUND, "whole blocks": BLOCKS, "multiples": MULTIPLES}
"""Kind of generated case → the groups of sizes that cases of this kind get."""
STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Factors that sizes may have to be multiples of: halves of a row, packed bits, quantization groups."""
MOST_INSTEAD = 1 << 22
"""Maximum number of elements of a case's alternative with other sizes, and of generated cases with 3 or more
dimensions.
"""
NEAR_RATIO = 4
"""Maximum ratio of two sizes for which the larger one counts as derived from the smaller one. Examples are halves of a
row, or heads that share keys.
"""
COLUMNS = {"long rows": (256, 1025, 8200), "endless rows": (1025, 8200, 70_001)}
"""Numbers of columns in cases with long rows, in ascending order.

The last number is for the case itself, the others are for its smaller cases. A long row has more elements than a block
has threads, and more than each of these threads keeps. An endless row has more elements than a 16-bit number can count.
"""
MANY_ROWS = 70_001
"""Number of rows of cases with many rows. It exceeds 65,535, which is CUDA's maximum number of blocks along y and z and
the largest 16-bit number.
"""
MANY_BYTES = 16 << 20
"""A case with many rows keeps all columns if all its tensors together have at most this many bytes."""
FEW_COLUMNS = (4, 6, 8, 2)
"""Sizes of the other dimensions in cases with many rows. Most are even, because many ops combine the halves
of a row.
"""
HUGE_ELEMENTS = (1 << 22) + 1
"""Number of elements of the enlarged tensor: more than one block of any kernel, and not a multiple of a block."""
COMPACT_ELEMENTS = 1 << 15
COMPACT = ((32, 64, 48, 16), (16, 32, 8, 24), (64, 128, 256, 32), (128, 128, 128, 128))
"""Sizes that replace large ones in cases that are tried many times."""
MOST_BYTES = 64 << 20
"""Maximum number of bytes of all tensors of a variant together."""
MOST_WORK = 1 << 38
"""Limit for the work of a case. Work is the product of the numbers of elements of its two largest tensors of different
shapes. Above the limit, a convolution takes seconds.
"""
SMALL_SIZE = 4
"""Largest size that is left unchanged in trials that change one element after the other, e.g. gradcheck."""
SMALLEST_SIZE = 3
"""An integer argument that equals a size is changed along with it only if it is at least this large."""

MANY_ELEMENTS = ("huge", "many rows", "many inner rows")
"""Kinds of cases with many elements, which the gradient trials leave out to save time."""

MOST_ARGUED = 48
"""Maximum number of cases with other arguments."""
MOST_PAIRED = 24
"""Maximum number of cases with two changed arguments at once."""
FAR_NUMBER = 129
"""A value that is one more than the usual number of threads in a block (128)."""
AXES = ("dim", "axis")
"""An argument whose name starts with one of these is the number of a dimension."""
WORDS = (
    ("mean", "sum", "none"),
    ("none", "tanh"),
    ("floor", "trunc"),
    ("amax", "amin", "prod", "max", "min"),
    ("constant", "reflect", "replicate", "circular"),
    ("nearest", "bilinear", "bicubic"),
    ("zeros", "border", "reflection"),
)
"""Groups of string values that may replace each other."""
LENGTHS = (1, 3, 5)
"""Lengths of lists of tensors."""
PLACEMENT = ("device", "pin_memory", "layout", "memory_format", "generator", "inplace", "out")
"""Arguments that determine where or how a result is stored, not its values."""

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
    "ties": "equal values",
    "beyond": "values beyond 16 bits",
    "odd": "NaN and infinities",
    "NaN in rows": "NaN in rows",
    "rows of -inf": "rows of -inf",
    "rows far below zero": "rows far below zero",
    "rows of zeros": "rows of zeros",
}
"""Kinds of values that are tried, with their names in reports."""

Change = Callable[[TensorMeta], "TensorMeta | None"]


def vary_sizes(case: Case) -> Iterator[Case]:
    """Yield the case with other sizes: one element, empty, primes, uneven sizes, large sizes."""
    sizes = distinct_sizes(case)
    first = _first(case)
    if not sizes or first is None:
        return
    yield from _mapped(case, "one element", dict.fromkeys(sizes, 1))
    yield from _mapped(case, "empty", dict.fromkeys(sizes, 0), keep_numbers=True)
    if len(sizes) > 1:
        yield from _mapped(case, "no rows", {first.shape[0]: 0}, keep_numbers=True)
        yield from _mapped(case, "no columns", {first.shape[-1]: 0}, keep_numbers=True)
    elif len(first.shape) > 1 and {len(meta.shape) for meta in _tensors(case)} == {len(first.shape)}:
        yield replaced(case, "no rows", _reshaped(case, lambda shape: (0, *shape[1:])))
        yield replaced(case, "no columns", _reshaped(case, lambda shape: (*shape[:-1], 0)))
    for kind, groups in MADE_UP.items():
        for group in groups:
            yield from _resized(case, kind, sizes, group)
    yield from _other_longer(case, first)
    yield from long_rows(case, "long rows")
    yield from many_rows(case)
    yield from huge(case)


def _other_longer(case: Case, first: TensorMeta) -> Iterator[Case]:
    """Yield the case with more rows in all tensors except the first, as for keys and values that are longer than
    queries.
    """
    places = [(a, t) for a, arg in enumerate(case.op.args) for t, meta in enumerate(arg.tensors) if meta is not None]
    longer, args = (
        (*first.shape[:-2], 2 * first.shape[-2] + 1, first.shape[-1]) if first.shape[1:] else (),
        case.op.args,
    )
    for a, t in places[1:] if longer else ():
        if args[a].tensors[t] == first:
            args = _with_tensor(args, (a, t), TensorMeta(shape=longer, dtype=first.dtype))
    if args != case.op.args:
        yield replaced(case, "rows of the first alone", args)


def _resized(case: Case, kind: str, sizes: Sequence[int], group: Sequence[int]) -> Iterator[Case]:
    """Yield the case with new sizes from `group`.

    If some of `sizes` are multiples of each other, one variant keeps these ratios. Another variant, which is always
    yielded, does not keep them. It has alternatives in case it is refused: sizes that keep ratios up to 4, then
    multiples of single sizes (the last size first) and of all sizes together. The smallest multiples come first.
    """
    *_, unrelated = mappings = list(_both_ways(sizes, group))
    for mapping in mappings:
        resized = list(_mapped(case, kind, mapping))
        # A number that equals a size may not be one: where both refuse what follows, it stays.
        alternatives = list(_mapped(case, kind, mapping, keep_numbers=True))
        for multiplied in _multiplied(sizes, group) if mapping is unrelated else ():
            alternatives += _mapped(case, kind, multiplied)
        small = tuple(other for other in alternatives if other not in resized and elements(other) <= MOST_INSTEAD)
        yield from (msgspec.structs.replace(variant, instead=small) for variant in resized if _few(variant))


def _few(case: Case) -> bool:
    """Check whether a generated call is small enough. Calls with fewer than three dimensions always are; with more
    dimensions, the number of elements is limited.
    """
    return elements(case) <= MOST_INSTEAD or max(len(meta.shape) for meta in _tensors(case)) < 3


def _multiplied(sizes: Sequence[int], group: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield mappings from old to new sizes; each keeps ratios of sizes up to 4. The first mapping has plain new sizes;
    in the following ones, new sizes are multiplied by a factor from `STEPS`.
    """
    near = _related(sizes, group, NEAR_RATIO)
    if near != _related(sizes, group, 1):
        yield near
    roots = [size for size in reversed(sizes) if _base(sizes, size, NEAR_RATIO) is None]
    for step in STEPS:
        for some in [*([root] for root in roots), roots][: None if len(roots) > 1 else 1]:
            yield _related(sizes, group, NEAR_RATIO, dict.fromkeys(some, step))


def huge(case: Case) -> Iterator[Case]:
    """Yield the case with so many rows that its first tensor has four million elements, or one million if square."""
    first = _first(case)
    if first is None:
        return
    size, alike = first.shape[0], first.shape.count(first.shape[0])
    rest = max(1, math.prod(first.shape) // max(1, size**alike))
    # A square grows to both sides, and what is multiplied with it as well: a quarter will do.
    wanted = HUGE_ELEMENTS if alike == 1 else HUGE_ELEMENTS // 4
    sizes = [math.ceil((elements / rest) ** (1 / alike)) for elements in (wanted >> 6, wanted >> 4, wanted)]
    yield from _grown(case, "huge", {}, size, sizes)


def long_rows(case: Case, kind: Literal["long rows", "endless rows"]) -> Iterator[Case]:
    """Yield the case with a few long rows.

    If the case is refused, its alternatives are used: their number of columns is rounded up to a multiple of each of
    `STEPS`.
    """
    first = _first(case)
    if first is None or first.shape[-1] <= 1:
        return
    mapping, size, columns = {first.shape[0]: 3}, first.shape[-1], COLUMNS[kind]
    rounded = [[-(-count // step) * step for count in columns] for step in STEPS]
    instead = tuple(other for counts in rounded for other in _grown(case, kind, mapping, size, counts))
    for variant in _grown(case, kind, mapping, size, columns):
        yield msgspec.structs.replace(variant, instead=instead)


def long_columns(case: Case) -> Iterator[Case]:
    """Yield the case with few columns, and as many rows as a "long rows" case has columns."""
    first = _first(case)
    if first is not None and len(first.shape) > 1 and first.shape[0] != first.shape[-1]:
        yield from _grown(case, "long columns", {first.shape[-1]: 3}, first.shape[0], COLUMNS["long rows"])


def many_rows(case: Case) -> Iterator[Case]:
    """Yield the case with more rows than CUDA can launch blocks along y and z.

    The rows are along the first dimension. With more than two dimensions, another variant has them along the
    second-to-last dimension. A matrix is skipped if its "huge" case has at least as many rows.
    """
    first = _first(case)
    if first is None or len(first.shape) < 2 or not math.prod(first.shape):
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
    with_all_columns = list(_grown(case, kind, {}, size, rows))
    if with_all_columns and _bytes(with_all_columns[0].op.args) <= MANY_BYTES:
        yield from with_all_columns
        return
    others = [other for other in distinct_sizes(case) if other != size]
    large = [other for other in others if other > SMALL_SIZE]
    for mapping in ({other: SMALL_SIZE + 1 + i for i, other in enumerate(large)}, *_both_ways(others, FEW_COLUMNS)):
        yield from _grown(case, kind, mapping, size, rows)


def _taller(case: Case, first: TensorMeta, place: int, kind: str) -> Iterator[Case]:
    """Yield the case with more rows in all tensors that have the first tensor's shape. These tensors get fewer columns
    if they would otherwise become too large.
    """

    def with_rows(rows: int, most_columns: int) -> Case:
        shape = [min(size, most_columns) for size in first.shape]
        shape[place] = rows
        return replaced(case, kind, _reshaped(case, lambda old: tuple(shape) if old == first.shape else old))

    for most_columns in (max(first.shape), SMALL_SIZE + 1):
        large = with_rows(MANY_ROWS, most_columns)
        if _bytes(large.op.args) <= MANY_BYTES:
            smaller = with_rows(MANY_ROWS >> 6, most_columns), with_rows(MANY_ROWS >> 4, most_columns)
            yield msgspec.structs.replace(large, smaller=smaller)
            return


def _grown(case: Case, kind: str, mapping: Mapping[int, int], size: int, sizes: Sequence[int]) -> Iterator[Case]:
    """Yield the case with `size` replaced by the last of `sizes`. The other `sizes` are used for its smaller cases."""
    for large in _mapped(case, kind, {**mapping, size: sizes[-1]}):
        smaller = tuple(small for few in sizes[:-1] for small in _mapped(case, kind, {**mapping, size: few}))
        yield msgspec.structs.replace(large, smaller=smaller)


def share_tensors(case: Case) -> Iterator[Case]:
    """Yield the case with one tensor passed for several arguments, as in `x + x`.

    Each pair of tensors with equal shape and dtype is tried, and all tensors of that shape and dtype together. Written
    tensors are left out, because no schema defines the result.
    """
    alike: dict[TensorMeta, list[tuple[int, int]]] = {}
    for a, t, meta in _with_own_memory(case):
        if math.prod(meta.shape) and not case.op.args[a].mutated:
            alike.setdefault(TensorMeta(shape=meta.shape, dtype=meta.dtype), []).append((a, t))
    storage = 1 + max((meta.storage for meta in _tensors(case) if meta.storage is not None), default=-1)
    for meta, places in alike.items():
        pairs = list(itertools.combinations(places, 2))[:MOST_PAIRS]
        for some in (*pairs, tuple(places)) if len(places) > 2 else pairs:
            names = " and ".join(dict.fromkeys(case.op.args[a].name for a, _ in some))
            args = case.op.args
            for place in some:
                args = _with_tensor(args, place, msgspec.structs.replace(meta, storage=storage))
            yield replaced(case, f"one tensor for {names}", args, "one tensor")


MOST_PAIRS = 3
"""Maximum number of pairs of arguments with equal shape and dtype that get the same tensor."""


def vary_ranks(case: Case) -> Iterator[Case]:
    """Yield the case with other ranks in all tensors of the highest rank: one dimension less, no dimension, one more,
    three more.
    """
    rank = max((len(meta.shape) for meta in _tensors(case)), default=0)
    shapes: dict[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
        "one dimension less": lambda shape: shape[1:],
        "no dimension": lambda _: (),
        "one dimension more": lambda shape: (3, *shape),
        "three dimensions more": lambda shape: (2, 1, 3, *shape),
    }
    for kind, change in shapes.items() if rank else ():
        args = _reshaped(case, lambda shape: change(shape) if len(shape) == rank else shape)  # noqa: B023
        if _bytes(args) <= MOST_BYTES:
            yield replaced(case, kind, args)


def small(case: Case) -> Iterator[Case]:
    """Yield the case with few elements, the smallest variant first, for checks that change one element after the other.

    In some variants all sizes become small; in one variant, only the large sizes do. The last one is needed because a
    convolution kernel could otherwise become larger than its image.
    """
    sizes = distinct_sizes(case)
    large = [size for size in sizes if size > SMALL_SIZE]
    mappings = [*_both_ways(sizes, (3, 5, 4, 2)), {size: SMALL_SIZE + 1 + i for i, size in enumerate(large)}]
    variants = [variant for mapping in mappings for variant in _mapped(case, "small", mapping)]
    yield from sorted([*variants, case], key=elements)


def compact(case: Case) -> list[Case]:
    """Return the case if it is small enough for many trials, otherwise smaller candidates in the order in which to try
    them.
    """
    if elements(case) <= COMPACT_ELEMENTS:
        return [case]
    sizes = distinct_sizes(case)
    return [
        variant
        for group in COMPACT
        for mapping in _both_ways(sizes, group)
        for variant in _mapped(case, "small", mapping)
        if elements(variant) <= 4 * COMPACT_ELEMENTS
    ]


def vary_arguments(case: Case, spec: OpSpec, words: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the case with one argument changed at a time, then with two.

    This detects an op that ignores an argument. Numbers, flags, strings, dtypes, optional tensors and lists are
    changed. Calls that the reference refuses show nothing. `words` are strings to try in addition to the common ones.
    """
    changed = [arg for arg in spec.args if arg.name not in PLACEMENT and not arg.mutated and not arg.out]
    alone = {arg.name: list(_with_other(case, spec, arg, words)) for arg in changed}
    yield from itertools.islice(itertools.chain.from_iterable(alone.values()), MOST_ARGUED)
    yield from itertools.islice(_paired(case, spec, alone), MOST_PAIRED)
    yield from _far_numbers(case)
    lists = [arg for arg in case.op.args if arg.type == "Tensor[]" and arg.tensors]
    lengths = {len(arg.tensors) for arg in lists}
    for length in LENGTHS if len(lengths) == 1 else ():
        if length not in lengths:
            args = tuple(
                msgspec.structs.replace(arg, tensors=(arg.tensors * length)[:length]) if arg in lists else arg
                for arg in case.op.args
            )
            yield replaced(case, f"{length} in a list", args)


def _paired(case: Case, spec: OpSpec, alone: Mapping[str, Sequence[Case]]) -> Iterator[Case]:
    """Yield the case with two arguments changed at the same time.

    For each pair of arguments, every changed value of both arguments occurs at least once. Variants of different pairs
    alternate.
    """

    def of_two(first: str, second: str) -> Iterator[Case]:
        ours, theirs = alone[first], alone[second]
        for i in range(max(len(ours), len(theirs)) if ours and theirs else 0):
            one, other = ours[i % len(ours)], theirs[i % len(theirs)]
            by_name = {arg.name: arg for arg in one.op.args}
            by_name |= {arg.name: arg for arg in other.op.args if arg.name == second}
            yield replaced(case, f"{one.kind} and {other.kind}", add_defaults(spec, [*by_name.values()]), "value")

    for turn in itertools.zip_longest(*itertools.starmap(of_two, itertools.combinations(alone, 2))):
        yield from filter(None, turn)


def _far_numbers(case: Case) -> Iterator[Case]:
    """Yield the case with a large value for one integer argument, for each such argument except axes.

    The value is above the number of threads in a block. The rows are made longer still.
    """
    first = _first(case)
    for a, arg in enumerate(case.op.args if first is not None else ()):
        if first is not None and arg.type == "int" and type(arg.value) is int and not arg.name.startswith(AXES):
            for wide in _mapped(case, f"{arg.name}={FAR_NUMBER}", {first.shape[-1]: 2 * FAR_NUMBER}):
                far = msgspec.structs.replace(arg, value=FAR_NUMBER)
                yield replaced(wide, wide.kind, (*wide.op.args[:a], far, *wide.op.args[a + 1 :]), "value")


def other_calls(case: Case, spec: OpSpec, words: Sequence[str] = ()) -> list[Case]:
    """Return variants of the case with other ranks or other argument values, for checks whose outcome may depend on
    these.
    """
    return [*vary_ranks(case), *vary_arguments(case, spec, words), *_with_axes(case, spec)]


def _with_axes(case: Case, spec: OpSpec) -> Iterator[Case]:
    """Yield the case with one more dimension and with other axes. The extra dimension makes axes counted from the start
    differ from axes counted from the end.
    """
    rank = max((len(meta.shape) for meta in _tensors(case)), default=0)
    higher = replaced(
        case, "one dimension more", _reshaped(case, lambda shape: (3, *shape) if len(shape) == rank else shape)
    )
    for arg in spec.args if rank and _bytes(higher.op.args) <= MOST_BYTES else ():
        if arg.kind == "int" and arg.name.startswith(AXES):
            for other in _with_other(higher, spec, arg, ()):
                yield msgspec.structs.replace(other, kind=f"{higher.kind}, {other.kind}")


def _with_other(case: Case, spec: OpSpec, arg: ArgSpec, words: Sequence[str]) -> Iterator[Case]:
    """Yield the case with one argument changed."""
    by_name = {before.name: before for before in case.op.args}
    before = by_name.get(arg.name)

    def with_argument(kind: str, changed: ReplayArg, trait: Trait | None = None) -> Case:
        return replaced(case, kind, add_defaults(spec, [*{**by_name, arg.name: changed}.values()]), trait)

    if arg.kind != "Tensor":
        for value in _other_values(arg, arg.default if before is None else before.value, words):
            shown = str(value).removeprefix("torch.")
            yield with_argument(f"{arg.name}={shown}", argument(arg, value=value), "value")
    elif arg.optional and before is not None and any(before.tensors):
        yield with_argument(f"without {arg.name}", argument(arg))
    elif arg.optional:
        for meta in _optional_tensors(case):
            yield with_argument(f"with {arg.name}", argument(arg, tensors=(meta,)))


def _optional_tensors(case: Case) -> Iterator[TensorMeta]:
    """Yield metadata of tensors to try for an argument that is omitted in the call.

    Their shapes are: the last dimension of the first tensor; its whole shape; its first dimension; and (rows of the
    first tensor, rows of the second tensor).
    """
    tensors = _tensors(case)
    if not tensors:
        return
    first, *others = tensors
    between = [
        (first.shape[-2], other.shape[-2]) for other in others[:1] if min(len(first.shape), len(other.shape)) > 1
    ]
    for shape in dict.fromkeys((first.shape[-1:], first.shape, first.shape[:1], *between)):
        for dtype in (first.dtype, "bool"):
            yield TensorMeta(shape=shape, dtype=dtype)


def _other_values(spec: ArgSpec, now: Value, words: Sequence[str]) -> Sequence[Value]:
    """Return values of an argument's type that differ from its current value."""
    # A negative number is a place from the end, or nothing that anybody means.
    last = (-1, -2) if spec.name.startswith(AXES) else ()
    usual = itertools.chain.from_iterable([some for some in WORDS if now in some] or WORDS)
    tried: dict[str, Sequence[Value]] = {
        "int": (0, 1, 2, *last) if type(now) is not int else (now + 1, 0, 1, *last),
        "Scalar": (2, 0, -1, 2.5),
        "float": (2.5, 0.0, 0.125, -0.75, 1.0),
        "int[]": ((0,), (-1,)),
        "str": tuple(dict.fromkeys([*words, *usual])),
        "ScalarType": ("torch.float64", "torch.float32", "torch.bfloat16"),
    }
    if isinstance(now, bool) or spec.kind == "bool":
        return [not now]
    if spec.kind == "int[]" and isinstance(now, tuple):
        whole = tuple(item for item in now if type(item) is int)
        more, less = tuple(item + 1 for item in whole), tuple(item - 1 for item in whole)
        tried["int[]"] = (more, less, whole[::-1], whole[:1])
    return [value for value in tried.get(spec.kind, ()) if value != now or type(value) is not type(now)]


def vary_values(case: Case) -> Iterator[Case]:
    """Yield the case with other values: large, far from zero, small, zeros of both signs, NaN and infinities."""
    if any("float" in meta.dtype for meta in _tensors(case)):
        for values, kind in VALUES.items():
            yield msgspec.structs.replace(case, kind=kind, values=values)
        args = tuple(_with_power_of_two(arg) for arg in case.op.args)
        yield msgspec.structs.replace(replaced(case, "halves to round", args), values="halves")


def _with_power_of_two(arg: ReplayArg) -> ReplayArg:
    """Replace a float by the next power of two: multiplying by its reciprocal then equals dividing by it."""
    if type(arg.value) is not float or not math.isfinite(arg.value) or arg.value == 0:
        return arg
    value = math.copysign(2.0 ** round(math.log2(abs(arg.value))), arg.value)
    return msgspec.structs.replace(arg, value=value)


def primes_of(case: Case) -> Case:
    """Return the case with prime sizes, or unchanged if it has no sizes. Its alternatives, used if it is refused, keep
    the ratios between sizes.
    """
    sizes = distinct_sizes(case)
    resized = list(_resized(case, "prime sizes", sizes, PRIMES[1])) if sizes else []
    if not resized:
        return case
    *related, unrelated = resized
    return msgspec.structs.replace(unrelated, instead=(*unrelated.instead, *related))


def other_sizes(case: Case, count: int) -> list[Case]:
    """Return the case at several sizes, for properties that must not depend on sizes."""
    sizes = distinct_sizes(case)
    groups = ((5, 9, 7, 3), (11, 6, 13, 4), (20, 18, 10, 8), (37, 24, 14, 12))[:count] if sizes else ()
    return [variant for group in groups for variant in _mapped(case, "other sizes", next(_both_ways(sizes, group)))]


def distinct_sizes(case: Case) -> list[int]:
    """Return the distinct sizes above one in all tensors, ascending."""
    return sorted({size for meta in _tensors(case) for size in meta.shape if size > 1})


def _both_ways(sizes: Sequence[int], group: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield mappings from old to new sizes.

    If some sizes are multiples of others, the first mapping keeps these ratios. The last mapping does not keep them.
    """
    related, unrelated = _related(sizes, group, max(sizes, default=1)), _related(sizes, group, 1)
    if related != unrelated:
        yield related
    yield unrelated


def _related(
    sizes: Sequence[int], group: Sequence[int], ratio: int, steps: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Return a mapping from old to new sizes that keeps small ratios.

    If an old size is a multiple of another one by a factor of at most `ratio`, its new size is the same multiple. All
    other new sizes are taken from `group` and multiplied by their factor in `steps`.
    """
    new_sizes: dict[int, int] = {}
    for index, size in enumerate(sizes):
        base = _base(sizes, size, ratio)
        free = group[index % len(group)] + 2 * (index // len(group))
        new_sizes[size] = free * (steps or {}).get(size, 1) if base is None else new_sizes[base] * (size // base)
    return new_sizes


def _base(sizes: Sequence[int], size: int, ratio: int) -> int | None:
    """Return the largest of `sizes` that divides `size` with a quotient from 2 to `ratio`; None if there is none."""
    return max((s for s in sizes if s < size and size % s == 0 and size // s <= ratio), default=None)


def _mapped(case: Case, kind: str, mapping: Mapping[int, int], *, keep_numbers: bool = False) -> Iterator[Case]:
    """Yield the case with sizes replaced and all tensors contiguous. Nothing is yielded if it would be too large.

    Integer arguments that equal a replaced size change as well. With `keep_numbers`, only lists of integers (such as
    normalized_shape) change.
    """

    def resized(meta: TensorMeta) -> TensorMeta:
        return TensorMeta(shape=tuple(mapping.get(size, size) for size in meta.shape), dtype=meta.dtype)

    following = ("int[]",) if keep_numbers else ("int", "int[]")
    args = tuple(_with_numbers(arg, mapping) if arg.type in following else _each(arg, resized) for arg in case.op.args)
    if args != case.op.args and _bytes(args) <= MOST_BYTES and _work(args) <= MOST_WORK:
        yield replaced(case, kind, args)


def _with_numbers(arg: ReplayArg, mapping: Mapping[int, int]) -> ReplayArg:
    """Replace integers that equal an old size, as in normalized_shape or the sections of a split."""

    def mapped(number: Any) -> Any:
        is_size = type(number) is int and number >= SMALLEST_SIZE
        return mapping.get(number, number) if is_size else number

    value = tuple(map(mapped, arg.value)) if isinstance(arg.value, tuple) else mapped(arg.value)
    return msgspec.structs.replace(arg, value=value)


def vary_strides(case: Case) -> Iterator[Case]:
    """Yield the case with other strides, for each tensor individually and for all tensors together."""
    layouts: dict[str, tuple[Change, Trait | None]] = {
        "transposed": (_transposed, None),
        "sliced with an offset": (_sliced, "inside memory"),
        "with a row pitch": (_pitched, None),
        "outer dimensions swapped": (_outer_swapped, None),
        "expanded": (_expanded, "expanded"),
        "expanded columns": (_expanded_columns, "expanded"),
        "misaligned": (_misaligned, "inside memory"),
        "channels last": (_channels_last, None),
    }
    for kind, (change, trait) in layouts.items():
        alone: dict[tuple[int, int], tuple[ReplayArg, ...]] = {}
        together = case.op.args
        for a, t, meta in _with_own_memory(case):
            changed = change(TensorMeta(shape=meta.shape, dtype=meta.dtype))
            if changed is None or (case.op.args[a].mutated and trait == "expanded"):
                continue
            args = _with_tensor(case.op.args, (a, t), changed)
            if _bytes(args) <= 4 * MOST_BYTES:
                alone[a, t] = args
                together = _with_tensor(together, (a, t), changed)
        if len(alone) > 1 and _bytes(together) <= 4 * MOST_BYTES:
            yield replaced(case, kind, together, trait)
        for (a, _), args in list(alone.items())[:4]:
            name = "" if len(alone) == 1 else f" {case.op.args[a].name}"
            yield replaced(case, f"{kind}{name}", args, trait)


def _transposed(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor with its last two dimensions in column-major order; None if that changes nothing."""
    if len(meta.shape) < 2 or min(meta.shape[-2:]) < 2:
        return None
    swapped = contiguous_strides((*meta.shape[:-2], meta.shape[-1], meta.shape[-2]))
    return msgspec.structs.replace(meta, strides=(*swapped[:-2], swapped[-1], swapped[-2]))


def _sliced(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor as every second column of a wider tensor, from the third row and second column on."""
    if not meta.shape or not math.prod(meta.shape):
        return None
    strides = contiguous_strides((*meta.shape[:-1], 2 * meta.shape[-1] + 3))
    return msgspec.structs.replace(meta, strides=(*strides[:-1], 2), storage_offset=2 * strides[0] + 1)


def _pitched(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor as the first columns of a wider tensor: gaps between rows, contiguous elements in a row."""
    if len(meta.shape) < 2 or min(meta.shape[-2:]) < 2:
        return None
    strides = contiguous_strides((*meta.shape[:-1], meta.shape[-1] + 8))
    return msgspec.structs.replace(meta, strides=strides, storage_offset=4)


def _outer_swapped(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor with its first two dimensions swapped in memory, like batch and heads of attention. Its rows
    stay contiguous.
    """
    if len(meta.shape) < 3 or min(meta.shape[:2]) < 2:
        return None
    swapped = contiguous_strides((meta.shape[1], meta.shape[0], *meta.shape[2:]))
    return msgspec.structs.replace(meta, strides=(swapped[1], swapped[0], *swapped[2:]))


def _expanded_columns(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor with the same column repeated, by a stride of 0."""
    if len(meta.shape) < 2 or meta.shape[-1] < 2:
        return None
    return msgspec.structs.replace(meta, strides=(*contiguous_strides((*meta.shape[:-1], 1))[:-1], 0))


def _expanded(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor with the same row repeated, by a stride of 0."""
    if not meta.shape or meta.shape[0] < 2:
        return None
    return msgspec.structs.replace(meta, strides=(0, *contiguous_strides(meta.shape)[1:]))


def _misaligned(meta: TensorMeta) -> TensorMeta | None:
    """Return the contiguous tensor with a storage offset of one element."""
    return (
        msgspec.structs.replace(meta, strides=contiguous_strides(meta.shape), storage_offset=1) if meta.shape else None
    )


def _channels_last(meta: TensorMeta) -> TensorMeta | None:
    """Return the tensor in torch.channels_last format: in memory, the order is batch, height, width, channel."""
    if len(meta.shape) != 4 or meta.shape[1] < 2:
        return None
    n, c, h, w = meta.shape
    strides = contiguous_strides((n, h, w, c))
    return msgspec.structs.replace(meta, strides=(strides[0], strides[3], strides[1], strides[2]))


def main_dtype(case: Case) -> str | None:
    """Return the dtype of the first floating-point tensor, or of the first tensor if there is none."""
    dtypes = [meta.dtype for meta in _tensors(case)]
    return next((dtype for dtype in dtypes if dtype in DTYPES and "float" in dtype), dtypes[0] if dtypes else None)


def replace_dtype(case: Case, dtype: str, kind: str | None = None) -> Case:
    """Return the case with its main dtype replaced everywhere."""
    main = main_dtype(case)

    def retyped(meta: TensorMeta) -> TensorMeta:
        return msgspec.structs.replace(meta, dtype=dtype) if meta.dtype == main else meta

    variant = replaced(case, kind or dtype, tuple(_each(arg, retyped) for arg in case.op.args))
    return msgspec.structs.replace(variant, instead=tuple(replace_dtype(other, dtype, kind) for other in case.instead))


def broadcast(case: Case) -> Iterator[Case]:
    """Yield the case with one tensor smaller, so that it is broadcast along a dimension.

    Two other kinds of cases are also yielded. In one, tensors are square: their rows and columns are equally long. In
    the other, numbers have a wider dtype, which must not change the result's dtype.
    """
    tensors = [(a, arg, meta) for a, arg, meta in _single_tensors(case) if not arg.mutated]
    square = _reshaped(case, lambda shape: (*shape[:-2], shape[-1], shape[-1]) if len(shape) > 1 else shape)
    for a, arg, meta in tensors if len(tensors) > 1 else ():
        if not meta.shape:
            continue
        shapes = {
            f"one row of {arg.name}": (1, *meta.shape[1:]),
            f"one column of {arg.name}": (*meta.shape[:-1], 1),
            f"{arg.name} without rows": meta.shape[1:],
            f"{arg.name} a single number": (1,) * len(meta.shape),
            f"{arg.name} zero-dimensional": (),
        }
        smaller = {kind: (case.op.args, shape, meta.dtype) for kind, shape in shapes.items() if shape != meta.shape}
        if len({meta.shape for _, _, meta in tensors}) == 1 and len(meta.shape) > 1:
            for kind, shape in (("row", (1, meta.shape[-1])), ("column", (meta.shape[-1], 1))):
                smaller[f"one {kind} of {arg.name}, squares"] = square, (*meta.shape[:-2], *shape), meta.dtype
        if meta.dtype in FLOATS[1:]:
            smaller[f"{arg.name} zero-dimensional, of float64"] = case.op.args, (), "float64"
        for kind, (args, shape, dtype) in smaller.items():
            yield replaced(case, kind, _with_tensor(args, (a, 0), TensorMeta(shape=shape, dtype=dtype)))


def wrong(case: Case) -> Iterator[Case]:
    """Yield the case with an invalid dtype, rank, size or number. The op must refuse it or do the same as its
    reference.
    """
    metas = {a: meta for a, _, meta in _single_tensors(case)}
    for a, arg in enumerate(case.op.args):
        if a in metas:
            yield from _wrong_tensor(case, a, metas[a])
        elif arg.type in ("int", "Scalar", "float") and isinstance(arg.value, int | float):
            for number in (-1_000_003, 1 << 31) if arg.type == "int" else (1e30, -1e30):
                args = (*case.op.args[:a], msgspec.structs.replace(arg, value=number), *case.op.args[a + 1 :])
                yield replaced(case, f"{arg.name}={number:g}", args, "value")


def _wrong_tensor(case: Case, place: int, meta: TensorMeta) -> Iterator[Case]:
    name, shape = case.op.args[place].name, meta.shape
    dtype = "int64" if "float" in meta.dtype else "float32"
    other = _with_tensor(case.op.args, (place, 0), msgspec.structs.replace(meta, dtype=dtype))
    yield replaced(case, f"{name} of {dtype}", other, "dtype")
    shapes: dict[str, tuple[int, ...]] = {"with one more dimension": (1, *shape, 2), "zero-dimensional": ()}
    if shape:
        shapes["too wide"] = (*shape[:-1], shape[-1] + 1)
        shapes["too short"] = (max(0, shape[0] - 1), *shape[1:])
        shapes["empty"] = (0,) * len(shape)
    for kind, other_shape in shapes.items():
        args = _with_tensor(case.op.args, (place, 0), TensorMeta(shape=other_shape, dtype=meta.dtype))
        yield replaced(case, f"{name} {kind}", args)


def _with_tensor(args: tuple[ReplayArg, ...], place: tuple[int, int], meta: TensorMeta) -> tuple[ReplayArg, ...]:
    """Return the arguments with one tensor replaced; `place` is (index of the argument, index of the tensor in it)."""
    a, t = place
    tensors = (*args[a].tensors[:t], meta, *args[a].tensors[t + 1 :])
    return (*args[:a], msgspec.structs.replace(args[a], tensors=tensors), *args[a + 1 :])


def _reshaped(case: Case, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> tuple[ReplayArg, ...]:
    """Return the arguments with `change` applied to all shapes; tensors whose shapes stay keep their strides."""

    def reshaped(meta: TensorMeta) -> TensorMeta:
        shape = change(meta.shape)
        return meta if shape == meta.shape else TensorMeta(shape=shape, dtype=meta.dtype)

    return tuple(_each(arg, reshaped) for arg in case.op.args)


def _each(arg: ReplayArg, change: Callable[[TensorMeta], TensorMeta]) -> ReplayArg:
    return msgspec.structs.replace(arg, tensors=tuple(meta and change(meta) for meta in arg.tensors))


def _tensors(case: Case) -> list[TensorMeta]:
    return [meta for arg in case.op.args for meta in arg.tensors if meta is not None]


def _first(case: Case) -> TensorMeta | None:
    """Return the first tensor that is not a scalar."""
    return next((meta for meta in _tensors(case) if meta.shape), None)


def _single_tensors(case: Case) -> list[tuple[int, ReplayArg, TensorMeta]]:
    """Return (index, argument, metadata) of all arguments that are a single tensor."""
    args = [(a, arg) for a, arg in enumerate(case.op.args) if arg.type == "Tensor"]
    return [(a, arg, meta) for a, arg in args for meta in arg.tensors if meta is not None]


def _with_own_memory(case: Case) -> list[tuple[int, int, TensorMeta]]:
    """Return (argument index, index in the argument, tensor) for all tensors that share no memory with others."""
    tensors = [(a, t, meta) for a, arg in enumerate(case.op.args) for t, meta in enumerate(arg.tensors)]
    return [(a, t, meta) for a, t, meta in tensors if meta is not None and meta.storage is None]


def _bytes(args: Sequence[ReplayArg]) -> int:
    return sum(extent(meta) * itemsize(meta.dtype) for arg in args for meta in arg.tensors if meta is not None)


def elements(case: Case) -> int:
    """Return the total number of elements in all tensors of a call."""
    return sum(math.prod(meta.shape) for meta in _tensors(case))


def _work(args: Sequence[ReplayArg]) -> int:
    shapes = {meta.shape for arg in args for meta in arg.tensors if meta is not None}
    counts = sorted(math.prod(shape) for shape in shapes)
    return counts[-1] * counts[-2] if len(counts) > 1 else 0
