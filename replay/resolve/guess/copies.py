# pyright: strict
"""Guesses arguments of ops that copy a tensor piece by piece, from the views that `repeat` and `roll` make.

`views` and `inside` handle other views.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Relatives, Rule, Shape, listed_tensors, recorded_shape
from opreplay.traces.model import OpSignature

WHY_REPEATED = "as in aten::repeat"


def _repeated(around: Relatives) -> Shape | None:
    """Return the input shape of the enclosing `repeat`; None if the enclosing op is another one."""
    return recorded_shape(around.parent) if around.parent and around.parent_name == "aten::repeat" else None


def _widened(source: Shape, rank: int) -> Shape | None:
    return (1,) * (rank - len(source)) + source if rank > 0 and len(source) <= rank else None


def window(shape: Shape, around: Relatives) -> tuple[int, int, int] | None:
    """Return (dimension, size, step) of an `unfold` that `repeat` calls; None if something else calls it.

    `repeat` unfolds one dimension of its result after another, into windows as wide as the repeated tensor.
    """
    source, place = _repeated(around), around.places[0] if around.places else 0
    sizes = None if source is None else _widened(source, len(shape) - place)
    if sizes is None or place >= len(sizes):
        return None
    return place, sizes[place], max(1, sizes[place])


def expanded(around: Relatives) -> Shape | None:
    """Return the input shape of `repeat`, with leading dimensions of size 1 added up to the rank of its result."""
    source = _repeated(around)
    views = (call for call, level in zip(around.following, around.levels, strict=True) if level == 0)
    whole = next((recorded_shape(call) for call in views if call.name == "aten::unfold"), None)
    return None if source is None or whole is None else _widened(source, len(whole))


def interleaved(shape: Shape, around: Relatives) -> tuple[int, ...] | None:
    """Return the permutation with which `repeat` interleaves repeat counts and sizes; None outside a `repeat`."""
    half = len(shape) // 2
    if _repeated(around) is None or 2 * half != len(shape):
        return None
    return tuple(d for pair in zip(range(half), range(half, 2 * half), strict=True) for d in pair)


def _turns(calls: Sequence[OpSignature]) -> list[tuple[int, int]]:
    """Return (dimension, shift) of each roll. torch implements a roll as a `cat` of the tensor's end with its
    beginning.
    """
    turns: list[tuple[int, int]] = []
    for call in calls:
        parts = listed_tensors(call) if call.name == "aten::cat" else ()
        shapes = [part.shape for part in parts if part is not None]
        if len(shapes) != 2 or len(parts) != 2:
            continue
        recorded_dims = (arg.value for arg in recorded_args(call)[1:2] if isinstance(arg.value, int))
        differing = (d for d, (n, m) in enumerate(zip(*shapes, strict=False)) if n != m)
        dim = next(chain(differing, recorded_dims), 0)
        turns.append((dim, shapes[0][dim]) if all(shapes) else (0, 0))
    return turns


def _rolled(which: str) -> Rule:
    """Return the rule that guesses the `shifts` or `dims` of a `roll`. `dims` is empty if the tensor is flattened
    first.
    """

    def rule(known: Call, context: Context) -> Guess | None:
        source, around = known.tensor("self"), context.relatives()
        turns = _turns((*around.children, *around.inner))
        if source is None or not turns:
            return None
        first = around.children[0].name if around.children else ""
        if first in ("aten::view", "aten::flatten", "aten::reshape") and len(turns) == 1 and len(source.shape) != 1:
            turns = [(-1, turns[0][1])]
        dims = tuple(dim for dim, _ in turns if dim >= 0)
        return Guess(
            value=dims if which == "dims" else tuple(n for _, n in turns), why="the pieces joined inside the op"
        )

    return rule


COPY_RULES: dict[tuple[str, str], Rule] = {("roll", name): _rolled(name) for name in ("dims", "shifts")}
"""(op without namespace, argument) → rule that guesses the argument."""
