"""The equation of an einsum, a text and so never recorded: told by the calls inside.

torch permutes each operand to one common order of labels, those of the result first, after unsqueezing it to all of
them (ATen/native/Linear.cpp). The permutations are the equation, by their numbers or by the sizes that they give.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import (
    Context,
    Guess,
    Known,
    Shape,
    first_tensor_of,
    first_tensors,
    list_shapes,
    recorded_numbers,
    recorded_shape,
    tensor_shapes,
)
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def equation(known: Known, context: Context) -> Guess | None:
    """A Guess of the text, or None where no operand is known."""
    shapes, around = list_shapes(known, "tensors"), context.relatives()
    if not shapes or sum(map(len, shapes)) > len(LETTERS):
        return None
    text = _permuted(shapes, around.children, around.following)
    return None if text is None else Guess(value=text, why=f"{text!r}: told by the permutations inside")


def _permuted(shapes: list[Shape], calls: Sequence[OpSignature], following: Sequence[OpSignature]) -> str | None:
    """The equation from the order that each operand is brought to, and what is summed then."""
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
    """Where each dimension of each operand is put, by recorded numbers, else by sizes; None where neither tells."""
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
    """The calls that bring each operand to the common order, the last of them its permutation; and all later ones."""
    ends = [at + 1 for at, call in enumerate(calls) if call.name == "aten::permute"][:count]
    groups = [calls[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return groups, calls[ends[-1] :] if len(ends) == count else []


def _places(shape: Shape, group: Sequence[OpSignature], width: int) -> tuple[int, ...] | None:
    """Where each dimension of an operand is put, from the recorded numbers; None where these are not recorded."""
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
    """The place of each dimension of an operand, from those at each place."""
    pairs = ((d, place) for there, place in zip(dims, places, strict=True) for d in there)
    return tuple(place for _, place in sorted(pairs))


def _by_size(shape: Shape, group: Sequence[OpSignature], whole: Shape) -> tuple[int, ...] | None:
    """Where each dimension of an operand is put, from its size in the common order; of equal ones in turn."""
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
    """The size of a single operand in the common order: what is summed, or is read next and has its sizes."""
    if calls:
        return [meta.shape for meta, _ in first_tensors(calls[:1], ("aten::sum",))]
    return [next((size for size in read if sorted(size) == sorted(permuted)), permuted)]


def _brought_to(shapes: list[Shape], calls: Sequence[OpSignature]) -> list[Shape]:
    """The size of each operand in the common order, as the products after show them: each takes what was made so far
    and the next operand, which it permutes once more or multiplies at once, and may sum before."""
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
    """What goes into a product, or what that was before a dimension of it alone was summed."""
    return next((size for size in (side, *summed) if _alike(size, shape)), side)


def _alike(first: Shape, second: Shape) -> bool:
    """Equal but for the order of dimensions, and for those of size 1."""
    return sorted(n for n in first if n != 1) == sorted(n for n in second if n != 1)


def _summed_alone(width: int, calls: Sequence[OpSignature], read: Sequence[Shape]) -> int | None:
    """How many of the labels of a single operand are summed over; None where the calls inside do not say."""
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
    """How many of the labels, the last ones, are summed over; None where the calls inside do not say."""
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
