# pyright: strict
"""Shrink an op that exceeds its memory budget until it can run, and report the change. Does not use torch.

Three ways are tried in this order. First, a pool that the call hardly uses (a KV cache, an embedding table) gets fewer
rows (`pools`). The work stays the same. Second, a view gets a smaller base tensor. A view moves no data, so the work
stays the same, too. Third, an op with independent slices runs on some of them (`slices`), and its time is scaled up.
The plan keeps the recorded op, which is used for predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.arguments.shrink.pools import (
    dense_strides,
    largest_fitting,
    names,
    resize_tensor,
    with_smaller_pools,
)
from opreplay.replay.arguments.shrink.slices import cut_to_slices
from opreplay.replay.ir.model import Assumption, ReplayArg, ReplayOp
from opreplay.replay.ir.sizes import need_of, readable
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import TensorMeta

SIZED = frozenset({"as_strided", "as_strided_", "view", "_unsafe_view", "_reshape_alias", "expand", "reshape"})
"""View ops that take the size of the result, and possibly its strides, as arguments."""
UNSIZED = frozenset(
    names(
        "transpose permute t unsqueeze squeeze alias detach select slice narrow movedim unbind lift_fresh numpy_T "
        "swapaxes adjoint view_as_real view_as_complex"
    )
)
"""View ops that take dimensions but no sizes."""


def with_smaller_view(op: ReplayOp, limit_bytes: int) -> tuple[ReplayOp, tuple[Assumption, ...]]:
    """Return (view of a smaller tensor that needs at most `limit_bytes`, a note).

    The first dimension that can be cut enough is cut, both in the base tensor and in the sizes that the call requests.
    If none can, return the unchanged op without a note.
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
                what = f"cut to {pieces * unit} of {size} in dimension {dim}, because a view moves no data"
                return cut(pieces), (Assumption(argument=op.args[0].name, what=what),)
    return op, ()


def _places(op: ReplayOp, short: str, base: TensorMeta, dim: int) -> Iterator[tuple[int | None, int]]:
    """Yield ways to cut dimension `dim` of a view's base tensor.

    Each way is (dimension of the requested sizes, divisor). The requested size in that dimension shrinks with `dim`. If
    it is None, no requested size shrinks. The kept size must be a multiple of the divisor.
    """
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
    """Return the call with `pieces` times `unit` entries in dimension `dim` of its base tensor.

    The size that the call requests in dimension `at` shrinks with it.
    """
    length = pieces * unit
    small = resize_tensor(base, (*base.shape[:dim], length, *base.shape[dim + 1 :]))
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


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """An op in a form that can run within the budget."""

    op: ReplayOp
    part: float = 1.0
    """Share of the recorded op's work that remains."""
    assumptions: tuple[Assumption, ...] = ()


def shrink_to_limit(op: ReplayOp, limit_bytes: int, max_flops: float = math.inf) -> Fitted:
    """Shrink `op` to at most `limit_bytes` if possible. If it fits or cannot be shrunk, return it unchanged.

    A product of more than `max_flops` floating-point operations also runs on only some of its slices.
    """
    need, flops = need_of(op).total, product_flops(op)
    if need <= limit_bytes and flops <= max_flops:
        return Fitted(op=op)
    if need <= limit_bytes:
        return _in_part(op, limit_bytes, max_flops, f"the full op has {flops:.2g} floating-point operations")
    smaller, notes = with_smaller_pools(op, limit_bytes)
    if notes:
        return Fitted(op=smaller, assumptions=notes)
    smaller, notes = with_smaller_view(op, limit_bytes)
    if notes:
        return Fitted(op=smaller, assumptions=notes)
    return _in_part(op, limit_bytes, max_flops, f"the full op needs {readable(need)} (limit {readable(limit_bytes)})")


def _in_part(op: ReplayOp, limit_bytes: int, max_flops: float, why: str) -> Fitted:
    """Return `op` restricted to some of its slices; unchanged if it cannot be sliced."""
    best_cut = cut_to_slices(
        op, lambda smaller: need_of(smaller).total <= limit_bytes and product_flops(smaller) <= max_flops
    )
    if best_cut is None:
        return Fitted(op=op)
    part, share, what = best_cut
    said = f"ran on only {what}, because {why}; times are scaled up"
    return Fitted(op=part, part=share, assumptions=(Assumption(argument="size", what=said),))
