"""Views over a memory budget: they move nothing, so that a smaller tensor takes the same time. Knows no torch."""

from __future__ import annotations

import msgspec

from opreplay.replay.budget import need_of
from opreplay.replay.fitting_pools import dense_strides
from opreplay.replay.ir import Assumption, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

SIZED = frozenset({"as_strided", "as_strided_", "view", "_unsafe_view", "_reshape_alias", "expand", "reshape"})
"""Views that are told the sizes of the result, and perhaps its strides."""
UNSIZED = frozenset(
    {
        "transpose", "permute", "t", "unsqueeze", "squeeze", "alias", "detach", "select", "slice", "narrow", "movedim",
        "unbind", "lift_fresh", "numpy_T", "swapaxes", "adjoint", "view_as_real", "view_as_complex",
    }
)  # fmt: skip
"""Views that say which dimensions they mean."""


def with_smaller_view(op: ReplayOp, limit_bytes: int) -> tuple[ReplayOp, tuple[Assumption, ...]]:
    """A view of a smaller tensor that needs `limit_bytes` at most, and a note; else the op as it is.

    The largest dimension that can be is cut, in the tensor and in the sizes that the call asks for.
    """
    short = op.name.removeprefix("aten::")
    base = op.args[0].tensors[0] if op.args and op.args[0].type == "Tensor" and op.args[0].tensors else None
    if base is None or short == op.name or short not in SIZED | UNSIZED or not base.shape:
        return op, ()
    for dim in sorted(range(len(base.shape)), key=lambda d: -base.shape[d]):
        size, low = base.shape[dim], 1
        if _cut(op, base, dim, low) is None or size < 2:
            continue
        high = size
        while high - low > 1:
            middle = (low + high) // 2
            made = _cut(op, base, dim, middle)
            low, high = (middle, high) if made is not None and need_of(made).total <= limit_bytes else (low, middle)
        made = _cut(op, base, dim, low)
        if made is not None and need_of(made).total <= limit_bytes:
            what = f"{low} of {size} in dimension {dim}: a view moves nothing"
            return made, (Assumption(argument=op.args[0].name, what=what),)
    return op, ()


def _cut(op: ReplayOp, base: TensorMeta, dim: int, kept: int) -> ReplayOp | None:
    """The call with `kept` in place of the size of one dimension; None where that would be another call."""
    size = base.shape[dim]
    short = op.name.removeprefix("aten::")
    shape = tuple(kept if d == dim else n for d, n in enumerate(base.shape))
    strides = None if base.strides is None else dense_strides(shape, base.strides)
    small = msgspec.structs.replace(base, shape=shape, strides=strides, storage_offset=0, storage=None)
    values = {arg.name: arg.value for arg in op.args}
    if short in UNSIZED:
        if values.get("dim") in (dim, dim - len(base.shape)):
            return None
        return _with(op, small, {})
    asked = values.get("size", values.get("shape"))
    if not isinstance(asked, tuple) or asked.count(size) != 1 or base.shape.count(size) != 1:
        return None
    sizes = tuple(kept if n == size else n for n in asked)
    changed: dict[str, object] = {"size": sizes, "shape": sizes}
    given = values.get("stride")
    if isinstance(given, tuple) and len(given) == len(asked) and all(isinstance(s, int) for s in given):
        changed["stride"] = dense_strides(sizes, given)  # type: ignore[arg-type]
        changed["storage_offset"] = 0
    return _with(op, small, changed)


def _with(op: ReplayOp, base: TensorMeta, values: dict[str, object]) -> ReplayOp:
    first = msgspec.structs.replace(op.args[0], tensors=(base,))
    rest: tuple[ReplayArg, ...] = tuple(
        msgspec.structs.replace(arg, value=values[arg.name]) if arg.name in values and arg.value is not None else arg
        for arg in op.args[1:]
    )
    # What it gives back lies in what it was given.
    return msgspec.structs.replace(op, args=(first, *rest), outputs=())
