"""The equation of an einsum, a text and so never recorded: told by the batched product inside, else by equal sizes.

Owns equations of one and of two operands; those of more are products over the last dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Known, Shape

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MAX_RANK = 6
"""Of operands whose dimensions are paired by search."""
MAX_TRIES = 20_000
Sides = tuple[int, int, int, int]
"""Batch, rows, summed, columns of a batched product."""


def equation(known: Known, context: Context) -> Guess | None:
    """A Guess of the text, or None where no operand is known."""
    listed = known.get("tensors")
    shapes = [meta.shape for meta in listed.tensors if meta is not None] if listed is not None else []
    if not shapes or any(not shape for shape in shapes) or sum(map(len, shapes)) > len(LETTERS):
        return None
    text = None
    if len(shapes) == 2:
        product = _product_inside(context)
        text = _paired(shapes[0], shapes[1], product) if product is not None else None
        text = text or _outer(shapes[0], shapes[1], context)
    text = text or _over_the_last(shapes)
    return None if text is None else Guess(value=text, why=f"{text!r}: strings are not recorded")


def _product_inside(context: Context) -> Sides | None:
    """Sizes of the bmm that torch turns an einsum of two operands into."""
    around = context.relatives()
    for call in (*around.children, *around.inner):
        if call.name != "aten::bmm":
            continue
        metas = [arg.tensor for arg in recorded_args(call)[:2]]
        if len(metas) == 2 and all(meta is not None and len(meta.shape) == 3 for meta in metas):
            left, right = (meta.shape for meta in metas if meta is not None)
            return left[0], left[1], left[2], right[2]
    return None


def _paired(left: Shape, right: Shape, product: Sides) -> str | None:
    """The pairing of dimensions that gives the product's sizes; the order of dimensions is kept where possible."""
    if len(left) > MAX_RANK or len(right) > MAX_RANK:
        return None
    for tries, (batch, summed) in enumerate(_pairings(left, right)):
        if tries > MAX_TRIES:
            break
        used_left, used_right = {i for i, _ in (*batch, *summed)}, {j for _, j in (*batch, *summed)}
        rows = math.prod(n for i, n in enumerate(left) if i not in used_left)
        columns = math.prod(n for j, n in enumerate(right) if j not in used_right)
        sizes = (math.prod(left[i] for i, _ in batch), math.prod(left[i] for i, _ in summed))
        if (sizes[0], sizes[1]) == (product[0], product[2]) and sorted((rows, columns)) == sorted(product[1::2]):
            return _spelled(left, right, batch, summed)
    return None


Pairs = tuple[tuple[int, int], ...]


def _pairings(
    left: Shape, right: Shape, at: int = 0, taken: frozenset[int] = frozenset()
) -> Iterator[tuple[Pairs, Pairs]]:
    """Every way to call a dimension of the left one's own, one of a batch, or summed; equal sizes first."""
    if at == len(left):
        yield (), ()
        return
    partners = [j for j, n in enumerate(right) if n == left[at] and j not in taken]
    for j in partners:
        for batch, summed in _pairings(left, right, at + 1, taken | {j}):
            yield ((at, j), *batch), summed
        for batch, summed in _pairings(left, right, at + 1, taken | {j}):
            yield batch, ((at, j), *summed)
    yield from _pairings(left, right, at + 1, taken)


def _spelled(left: Shape, right: Shape, batch: Pairs, summed: Pairs) -> str:
    first = LETTERS[: len(left)]
    shared = {j: first[i] for i, j in (*batch, *summed)}
    free = iter(LETTERS[len(left) :])
    second = "".join(shared.get(j) or next(free) for j in range(len(right)))
    gone = {first[i] for i, _ in summed}
    return (
        f"{first},{second}->{''.join(c for c in first if c not in gone)}{''.join(c for c in second if c not in first)}"
    )


def _outer(left: Shape, right: Shape, context: Context) -> str | None:
    """Two vectors of different lengths have nothing to be summed over, nor those that are only multiplied."""
    if len(left) != 1 or len(right) != 1:
        return None
    multiplied = any(call.name == "aten::mul" for call in context.relatives().children)
    return "a,b->ab" if multiplied or left != right else "a,a->"


def _over_the_last(shapes: list[Shape]) -> str | None:
    """A product over the last dimension that all operands have in common; equal leading dimensions are a batch."""
    summed = shapes[0][-1]
    batch = 0
    while all(len(shape) > batch + 1 for shape in shapes) and len({shape[batch] for shape in shapes}) == 1:
        batch += 1
    if any(shape[-1] != summed for shape in shapes) or any(len(shape) < 2 for shape in shapes):
        return None
    # With two dimensions on each side, equal rows are no batch: they are what a product of matrices has.
    batch = min(batch, *(len(shape) - 2 for shape in shapes))
    letters = iter(LETTERS)
    shared, last = "".join(next(letters) for _ in range(batch)), next(letters)
    own = ["".join(next(letters) for _ in shape[batch:-1]) for shape in shapes]
    return ",".join(shared + rest + last for rest in own) + "->" + shared + "".join(own)
