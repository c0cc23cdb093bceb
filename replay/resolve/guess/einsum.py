"""The equation of an einsum, a text and so never recorded: told by the calls inside.

torch permutes each operand to one common order of labels, those of the result first, after unsqueezing it to all of
them (ATen/native/Linear.cpp). The permutations are the equation, by their numbers or by the sizes that they give.
"""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Shape, first_tensor_of, recorded_shape
from opreplay.traces.model import OpSignature

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def equation(known: Known, context: Context) -> Guess | None:
    """A Guess of the text, or None where no operand is known."""
    listed = known.get("tensors")
    shapes = [meta.shape for meta in listed.tensors if meta is not None] if listed is not None else []
    if not shapes or sum(map(len, shapes)) > len(LETTERS):
        return None
    around = context.relatives()
    if (permuted := _permuted(shapes, around.children, around.following)) is not None:
        return Guess(value=permuted, why=f"{permuted!r}: told by the permutations inside")
    return None


def _permuted(shapes: list[Shape], calls: Sequence[OpSignature], following: Sequence[OpSignature]) -> str | None:
    """The equation from the order that each operand is brought to, and what is summed then."""
    operands, rest = _split(len(shapes), calls)
    if len(operands) < len(shapes):
        return None
    widths = {len(meta.shape) for group in operands if (meta := first_tensor_of(group[-1])) is not None}
    if len(widths) != 1:
        return None
    width = widths.pop()
    seen, placed = _brought_to(shapes, rest), []
    if len(shapes) == 1 and not rest and (meta := first_tensor_of(operands[0][-1])) is not None:
        sizes = (shape for call in following if (shape := recorded_shape(call)) is not None)
        seen = [next((size for size in sizes if sorted(size) == sorted(meta.shape)), meta.shape)]
    for at, (shape, group) in enumerate(zip(shapes, operands, strict=True)):
        places = _places(shape, group, width)
        if places is None and at < len(seen):
            places = _by_size(shape, group, seen[at])
        if places is None:
            return None
        placed.append(places)
    summed = _summed(shapes, placed, width, rest, following)
    return None if summed is None else _from_places(placed, width, summed)


def _split(count: int, calls: Sequence[OpSignature]) -> tuple[list[list[OpSignature]], list[OpSignature]]:
    """The calls that bring each operand to the common order, the last of them its permutation; and all later ones."""
    groups: list[list[OpSignature]] = []
    group: list[OpSignature] = []
    for at, call in enumerate(calls):
        group.append(call)
        if call.name == "aten::permute":
            groups.append(group)
            group = []
        if len(groups) == count:
            return groups, list(calls[at + 1 :])
    return groups, []


def _places(shape: Shape, group: Sequence[OpSignature], width: int) -> tuple[int, ...] | None:
    """Where each dimension of an operand is put, from the recorded numbers; None where these are not recorded."""
    order = _integers(group[-1], 1)
    if order is None or sorted(order) != list(range(width)):
        return None
    dims: list[tuple[int, ...]] = [(d,) for d in range(len(shape))]
    for call in group[:-1]:
        numbers = [arg.value for arg in recorded_args(call)[1:4]]
        if call.name == "aten::unsqueeze" and isinstance(numbers[0], int):
            dims.insert(numbers[0] % (len(dims) + 1), ())
        elif call.name == "aten::diagonal" and all(isinstance(n, int) for n in numbers):
            first, second = numbers[1] % len(dims), numbers[2] % len(dims)
            dims[first] = dims[first] + dims.pop(second)  # moved back to where the first one was
        elif call.name != "aten::movedim":
            return None
    if len(dims) != width:
        return None
    at = {d: order.index(place) for place, operand_dims in enumerate(dims) for d in operand_dims}
    return tuple(at[d] for d in range(len(shape)))


def _by_size(shape: Shape, group: Sequence[OpSignature], whole: Shape) -> tuple[int, ...] | None:
    """Where each dimension of an operand is put, from its size in the common order; of equal ones in turn."""
    dims: list[tuple[int, ...]] = [(d,) for d in range(len(shape))]
    for call in group:
        if call.name == "aten::diagonal":
            pairs = ((i, j) for i in range(len(dims)) for j in range(i + 1, len(dims)))
            alike = next(((i, j) for i, j in pairs if shape[dims[i][0]] == shape[dims[j][0]]), None)
            if alike is None:
                return None
            dims[alike[0]] = dims[alike[0]] + dims.pop(alike[1])
    free, at = list(range(len(whole))), {}
    for operand_dims in dims:
        place = next((place for place in free if whole[place] == shape[operand_dims[0]]), None)
        if place is None:
            return None
        free.remove(place)
        at.update(dict.fromkeys(operand_dims, place))
    return tuple(at[d] for d in range(len(shape))) if all(whole[place] == 1 for place in free) else None


def _brought_to(shapes: list[Shape], calls: Sequence[OpSignature]) -> list[Shape]:
    """The size of each operand in the common order, as the products after show them: each takes what was made so far
    and the next operand, which it permutes once more or multiplies at once, and may sum before."""
    if len(shapes) == 1:
        meta = first_tensor_of(calls[0]) if calls and calls[0].name == "aten::sum" else None
        return [] if meta is None else [meta.shape]
    aligned: list[Shape] = []
    pair: list[Shape] = []
    summed: list[Shape] = []
    turned = 0
    for call in calls:
        if call.name not in ("aten::permute", "aten::mul", "aten::sum") or len(aligned) == len(shapes):
            continue
        metas = [arg.tensor for arg in recorded_args(call)[:2] if arg.tensor is not None]
        if call.name == "aten::sum":
            summed += [meta.shape for meta in metas]
            continue
        turned = (turned + 1) % 3 if call.name == "aten::permute" else turned
        if call.name == "aten::permute" and not turned:  # of the product
            continue
        pair += [meta.shape for meta in metas]
        if len(pair) < 2:
            continue
        expected = shapes[:2] if not aligned else [shapes[len(aligned)]]
        if not _is_seen(pair[-1], expected[-1], summed):  # torch takes the smaller one first
            pair.reverse()
        whole = [_before_summing(*sides, summed) for sides in zip(pair[-len(expected) :], expected, strict=True)]
        aligned, pair, summed = [*aligned, *whole], [], []
    return aligned


def _is_seen(side: Shape, shape: Shape, summed: Sequence[Shape]) -> bool:
    return any(_alike(size, shape) for size in (side, *summed))


def _before_summing(side: Shape, shape: Shape, summed: Sequence[Shape]) -> Shape:
    """What goes into a product, or what that was before a dimension of it alone was summed."""
    return next((size for size in (side, *summed) if _alike(size, shape)), side)


def _alike(first: Shape, second: Shape) -> bool:
    """Equal but for the order of dimensions, and for those of size 1."""
    return sorted(n for n in first if n != 1) == sorted(n for n in second if n != 1)


def _summed(
    shapes: list[Shape],
    placed: list[tuple[int, ...]],
    width: int,
    calls: Sequence[OpSignature],
    following: Sequence[OpSignature],
) -> int | None:
    """How many of the labels, the last ones, are summed over; None where the calls inside do not say."""
    last = calls[-1] if calls else None
    if len(shapes) == 1:
        dims = _integers(last, 1) if last is not None and last.name == "aten::sum" else ()
        if dims is None and last is not None and (whole := first_tensor_of(last)) is not None:
            read = (shape for call in following if (shape := recorded_shape(call)) is not None)
            result_rank = next((n for shape in read for n in range(width) if whole.shape[:n] == shape), None)
            return 1 if result_rank is None else width - result_rank
        return None if dims is None else len(dims)
    if last is None or last.name != "aten::view":  # which takes away what the products have summed
        return 0 if last is not None and last.name in ("aten::permute", "aten::mul") else None
    whole, size = first_tensor_of(last), _integers(last, 1)
    if whole is None or len(whole.shape) != width:
        return None
    if size is not None or (len(recorded_args(last)) > 1 and recorded_args(last)[1].value == ()):
        return width - len(size or ())
    sizes = [1] * width
    for shape, places in zip(shapes, placed, strict=True):
        for n, place in zip(shape, places, strict=True):
            sizes[place] = max(sizes[place], n)
    gone = [place for place in range(width) if whole.shape[place] == 1 and sizes[place] != 1]
    return max(1, width - gone[0]) if gone else 1


def _from_places(placed: list[tuple[int, ...]], width: int, summed: int) -> str | None:
    if width > len(LETTERS):
        return None
    operands = ",".join("".join(LETTERS[place] for place in places) for places in placed)
    return f"{operands}->{LETTERS[: width - summed]}"


def _integers(call: OpSignature, position: int) -> tuple[int, ...] | None:
    args = recorded_args(call)
    numbers = args[position].value if position < len(args) else None
    return numbers if isinstance(numbers, tuple) and all(isinstance(n, int) for n in numbers) else None
