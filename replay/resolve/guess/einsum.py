"""Guesses the equation of an einsum from the nested calls, because strings are never recorded.

torch unsqueezes each operand to all labels and permutes it to a common order that starts with the result's labels
(ATen/native/Linear.cpp). The equation follows from these permutations. They are known from recorded numbers or, without
these, from the resulting sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Shape,
    first_tensor_of,
    first_tensors,
    recorded_numbers,
    recorded_shape,
    tensor_shapes,
)
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def equation(known: Call, context: Context) -> Guess | None:
    """Return a Guess of the equation, or None if no operand is known."""
    shapes, around = known.shapes("tensors"), context.relatives()
    if not shapes or sum(map(len, shapes)) > len(LETTERS):
        return None
    text = _permuted(shapes, around.children, around.following)
    return None if text is None else Guess(value=text, why=f"{text!r}: inferred from the permutations inside the op")


def _permuted(shapes: list[Shape], calls: Sequence[OpSignature], following: Sequence[OpSignature]) -> str | None:
    """Return the equation; None if unknown. It is derived from each operand's permutation and from the labels that are
    summed afterwards.
    """
    operands, rest = _split(len(shapes), calls)
    permuted = [meta for meta, _ in first_tensors(group[-1] for group in operands)]
    widths = {len(meta.shape) for meta in permuted}
    if len(operands) < len(shapes) or len(widths) != 1:
        return None
    width, read = widths.pop(), [shape for call in following if (shape := recorded_shape(call)) is not None]
    aligned = _brought_to(shapes, rest) if len(shapes) > 1 else _brought_to_alone(permuted[0].shape, rest, read)
    placed = _placed(shapes, operands, width, aligned)
    if placed is None:
        return None
    summed = _summed(shapes, placed, width, rest) if len(shapes) > 1 else _summed_alone(width, rest, read)
    if summed is None or width > len(LETTERS):
        return None
    text = ",".join("".join(LETTERS[place] for place in places) for places in placed)
    return f"{text}->{LETTERS[: width - summed]}"


def _placed(
    shapes: Sequence[Shape], operands: Sequence[Sequence[OpSignature]], width: int, aligned: Sequence[Shape]
) -> list[tuple[int, ...]] | None:
    """Return the position of each operand's dimensions in the common order; None if unknown.

    Positions come from recorded numbers or, if there are none, from sizes.
    """
    placed: list[tuple[int, ...]] = []
    for at, (shape, group) in enumerate(zip(shapes, operands, strict=True)):
        places = _places(shape, group, width)
        if places is None and at < len(aligned):
            places = _by_size(shape, group, aligned[at])
        if places is None:
            return None
        placed.append(places)
    return placed


def _split(count: int, calls: Sequence[OpSignature]) -> tuple[list[Sequence[OpSignature]], Sequence[OpSignature]]:
    """Return the calls that bring each operand to the common order, and all later calls.

    The calls of an operand end with a permutation.
    """
    ends = [at + 1 for at, call in enumerate(calls) if call.name == "aten::permute"][:count]
    groups = [calls[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return groups, calls[ends[-1] :] if len(ends) == count else []


def _places(shape: Shape, group: Sequence[OpSignature], width: int) -> tuple[int, ...] | None:
    """Return an operand's dimensions as positions in the common order, from recorded numbers; None if not recorded."""
    order = recorded_numbers(group[-1], 1)
    if order is None or sorted(order) != list(range(width)):
        return None
    dims: list[tuple[int, ...]] = [(d,) for d in range(len(shape))]
    for call in group[:-1]:
        numbers = [arg.value for arg in recorded_args(call)[1:4]]
        if call.name == "aten::unsqueeze" and isinstance(numbers[0], int):
            dims.insert(numbers[0] % (len(dims) + 1), ())
        elif call.name == "aten::diagonal" and is_whole_numbers(tuple(numbers)):
            first, second = numbers[1] % len(dims), numbers[2] % len(dims)
            dims[first] = dims[first] + dims.pop(second)  # moved back to where the first one was
        elif call.name != "aten::movedim":
            return None
    return _by_dim(dims, [order.index(place) for place in range(width)]) if len(dims) == width else None


def _by_dim(dims: Sequence[tuple[int, ...]], places: Sequence[int]) -> tuple[int, ...]:
    """Return the position of each dimension of an operand, given the dimensions at each position."""
    pairs = ((d, place) for there, place in zip(dims, places, strict=True) for d in there)
    return tuple(place for _, place in sorted(pairs))


def _by_size(shape: Shape, group: Sequence[OpSignature], whole: Shape) -> tuple[int, ...] | None:
    """Return an operand's dimensions as positions in the common order, from sizes; equal sizes keep their order."""
    dims: list[tuple[int, ...]] = [(d,) for d in range(len(shape))]
    for _ in (call for call in group if call.name == "aten::diagonal"):
        pairs = ((i, j) for i, j in combinations(range(len(dims)), 2) if shape[dims[i][0]] == shape[dims[j][0]])
        if (pair := next(pairs, None)) is None:
            return None
        dims[pair[0]] = dims[pair[0]] + dims.pop(pair[1])
    free = list(range(len(whole)))
    places: list[int] = []
    for operand_dims in dims:
        place = next((place for place in free if whole[place] == shape[operand_dims[0]]), None)
        if place is None:
            return None
        free.remove(place)
        places.append(place)
    return _by_dim(dims, places) if all(whole[place] == 1 for place in free) else None


def _brought_to_alone(permuted: Shape, calls: Sequence[OpSignature], read: Sequence[Shape]) -> list[Shape]:
    """Return the shape of a single operand in the common order.

    It is the shape that the following sum reads. Without a sum, it is that of a later input with the same sizes or, if
    there is none, the permuted shape.
    """
    if calls:
        return [meta.shape for meta, _ in first_tensors(calls[:1], ("aten::sum",))]
    return [next((size for size in read if sorted(size) == sorted(permuted)), permuted)]


def _brought_to(shapes: list[Shape], calls: Sequence[OpSignature]) -> list[Shape]:
    """Return the shape of each operand in the common order, derived from the products that follow.

    Each product takes the result so far and the next operand. This operand is either permuted once more or multiplied
    directly. In both cases, it may be summed before.
    """
    aligned: list[Shape] = []
    pair: list[Shape] = []
    summed: list[Shape] = []
    permutes = 0
    for call in calls:
        sizes = tensor_shapes(call, slice(2))
        permutes += call.name == "aten::permute"
        if call.name == "aten::sum":
            summed += sizes
        elif call.name == "aten::mul" or (call.name == "aten::permute" and permutes % 3):  # the third is of the product
            pair += sizes
            if len(pair) < 2:
                continue
            expected = [shapes[len(aligned)]] if aligned else shapes[:2]
            if not any(_alike(size, expected[-1]) for size in (pair[-1], *summed)):  # torch takes the smaller one first
                pair.reverse()
            sides = zip(pair[-len(expected) :], expected, strict=True)
            aligned += [_before_summing(side, shape, summed) for side, shape in sides]
            if len(aligned) == len(shapes):
                break
            pair, summed = [], []
    return aligned


def _before_summing(side: Shape, shape: Shape, summed: Sequence[Shape]) -> Shape:
    """Return the shape of a product's input before a possible sum over a dimension that only this input has."""
    return next((size for size in (side, *summed) if _alike(size, shape)), side)


def _alike(first: Shape, second: Shape) -> bool:
    """Check whether two shapes have the same sizes, ignoring their order and sizes of 1."""
    return sorted(n for n in first if n != 1) == sorted(n for n in second if n != 1)


def _summed_alone(width: int, calls: Sequence[OpSignature], read: Sequence[Shape]) -> int | None:
    """Return how many labels are summed if there is a single operand; None if the nested calls do not show it."""
    if not calls or calls[-1].name != "aten::sum":
        return 0
    dims, whole = recorded_numbers(calls[-1], 1), first_tensor_of(calls[-1])
    if dims is not None:
        return len(dims)
    if whole is None:
        return None
    ranks = (rank for shape in read for rank in range(width) if whole.shape[:rank] == shape)
    return width - next(ranks, width - 1)


def _summed(shapes: list[Shape], placed: list[tuple[int, ...]], width: int, calls: Sequence[OpSignature]) -> int | None:
    """Return how many of the last labels are summed if there are several operands; None if the nested calls do not show
    it.
    """
    last = calls[-1] if calls else None
    if last is None or last.name != "aten::view":  # which takes away what the products have summed
        return 0 if last is not None and last.name in ("aten::permute", "aten::mul") else None
    whole, size = first_tensor_of(last), recorded_numbers(last, 1)
    if whole is None or len(whole.shape) != width:
        return None
    if size is not None:
        return width - len(size)
    pairs = (pair for columns in zip(shapes, placed, strict=True) for pair in zip(*columns, strict=True))
    wide = {place for n, place in pairs if n > 1}
    return width - next((place for place in range(width) if whole.shape[place] == 1 and place in wide), width - 1)
