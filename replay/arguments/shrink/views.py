# pyright: strict
"""Views over a memory budget: they move nothing, so that a smaller tensor takes the same time. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from opreplay.replay.arguments.shrink.pools import dense_strides, largest_fitting, names, resized
from opreplay.replay.ir.model import Assumption, ReplayArg, ReplayOp
from opreplay.replay.ir.sizes import need_of
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

SIZED = frozenset({"as_strided", "as_strided_", "view", "_unsafe_view", "_reshape_alias", "expand", "reshape"})
"""Views that are told the sizes of the result, and perhaps its strides."""
UNSIZED = frozenset(
    names(
        "transpose permute t unsqueeze squeeze alias detach select slice narrow movedim unbind lift_fresh numpy_T "
        "swapaxes adjoint view_as_real view_as_complex"
    )
)
"""Views that say which dimensions they mean."""


def with_smaller_view(op: ReplayOp, limit_bytes: int) -> tuple[ReplayOp, tuple[Assumption, ...]]:
    """A view of a smaller tensor that needs `limit_bytes` at most, and a note; else the op as it is.

    The outermost dimension that suffices is cut, in the tensor and in the sizes that the call asks for.
    """
    short = op.name.removeprefix("aten::")
    base = op.args[0].tensors[0] if op.args and op.args[0].type == "Tensor" and op.args[0].tensors else None
    if base is None or short == op.name or short not in SIZED | UNSIZED:
        return op, ()
    for dim, size in enumerate(base.shape):
        for at, unit in _places(op, short, base, dim):
            # Sizes stay whole: what is cut is a number of equal pieces of the dimension.
            cut = partial(_cut, op, base, dim, at, unit)
            pieces = largest_fitting(0, size // unit, cut, lambda smaller: need_of(smaller).total <= limit_bytes)
            if pieces:
                what = f"{pieces * unit} of {size} in dimension {dim}: a view moves nothing"
                return cut(pieces), (Assumption(argument=op.args[0].name, what=what),)
    return op, ()


def _places(op: ReplayOp, short: str, base: TensorMeta, dim: int) -> Iterator[tuple[int | None, int]]:
    """(dimension of the asked sizes that shrinks with `dim` or None, what the size kept must be a multiple of)."""
    size, values = base.shape[dim], op.values
    if size < 2:
        return
    if short in UNSIZED:
        if values.get("dim") not in (dim, dim - len(base.shape)):
            yield None, 1
        return
    asked = values.get("size", values.get("shape"))
    if not isinstance(asked, tuple):
        return
    if short == "expand":
        at = dim + len(asked) - len(base.shape)
        if asked[at] in (size, -1):
            yield at, 1
        return
    for at, wanted in enumerate(asked):
        shared = math.gcd(size, wanted) if isinstance(wanted, int) and wanted > 1 else 1
        if shared > 1:
            yield at, size // shared


def _cut(op: ReplayOp, base: TensorMeta, dim: int, at: int | None, unit: int, pieces: int) -> ReplayOp:
    """The call with `pieces` of `unit` in dimension `dim`, and what is asked for at `at` smaller alike."""
    length = pieces * unit
    small = resized(base, (*base.shape[:dim], length, *base.shape[dim + 1 :]))
    if at is None:
        return _with(op, small, {})
    values = op.values
    asked: Any = values.get("size", values.get("shape"))
    sizes = tuple(n * length // base.shape[dim] if d == at and n > 0 else n for d, n in enumerate(asked))
    changed: dict[str, Any] = {"size": sizes, "shape": sizes}
    strides = values.get("stride")
    if is_whole_numbers(strides) and len(strides) == len(asked):
        changed |= {"stride": dense_strides(sizes, strides), "storage_offset": 0}
    return _with(op, small, changed)


def _with(op: ReplayOp, base: TensorMeta, values: dict[str, Any]) -> ReplayOp:
    first = msgspec.structs.replace(op.args[0], tensors=(base,))
    rest: tuple[ReplayArg, ...] = tuple(
        msgspec.structs.replace(arg, value=values[arg.name]) if arg.name in values and arg.value is not None else arg
        for arg in op.args[1:]
    )
    # What it gives back lies in what it was given.
    return msgspec.structs.replace(op, args=(first, *rest), outputs=())
