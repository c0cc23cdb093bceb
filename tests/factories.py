"""Values that tests build again and again: what a trace knows of tensors, arguments, ops of a plan."""

from __future__ import annotations

from typing import Any, cast

from opreplay.replay.ir.model import Recorded, ReplayArg, ReplayOp, Value
from opreplay.traces.model import TensorMeta

RECORDED = Recorded(host_us_total=1.0, host_us_median=1.0)


def meta(*shape: int, dtype: str = "float32", **more: Any) -> TensorMeta:
    """A tensor's metadata; `more` are its strides, offset and storage."""
    return TensorMeta(shape=shape, dtype=dtype, **more)


def tensor(
    name: str, *shape: int, dtype: str = "float32", mutated: bool = False, keyword_only: bool = False, **layout: Any
) -> ReplayArg:
    """A tensor argument; `layout` as for `meta`."""
    made = meta(*shape, dtype=dtype, **layout)
    return ReplayArg(name=name, type="Tensor", tensors=(made,), mutated=mutated, keyword_only=keyword_only)


def value(name: str, kind: str, value: Value = None, keyword_only: bool = False) -> ReplayArg:
    """An argument that is no tensor, of an IR type as "int[]"."""
    return ReplayArg(name=name, type=kind, value=value, keyword_only=keyword_only)


def op(name: str, *args: ReplayArg, id_: str = "0" * 12, count: int = 1, **more: Any) -> ReplayOp:
    """An op that was recorded for 1 us."""
    return ReplayOp(id=id_, name=name, count=count, args=args, **{"recorded": RECORDED, **more})


def jit_op(name: str, *args: ReplayArg, **more: Any) -> ReplayOp:
    """The same, resolved as an op of torch's."""
    return op(name, *args, **{"resolved_by": "jit", "overload": "", **more})


def op_of(
    name: str, *, outputs: tuple[TensorMeta, ...] | None = None, ranks: int | None = None, **args: Any
) -> ReplayOp:
    """The same of arguments by name: metadata of tensors, lists of them, and values."""
    made: list[ReplayArg] = []
    for key, argument in args.items():
        if isinstance(argument, TensorMeta):
            made.append(ReplayArg(name=key, type="Tensor", tensors=(argument,)))
        elif isinstance(argument, list):
            made.append(ReplayArg(name=key, type="Tensor[]", tensors=tuple(cast("list[TensorMeta]", argument))))
        else:
            made.append(value(key, "Scalar", argument))
    return op(name, *made, outputs=outputs, ranks=ranks)


def fake_op(name: str, index: int = 0) -> ReplayOp:
    """An op of the fake executor, which runs as its name says: "fake::10us"."""
    return op(f"fake::{name}", id_=f"{index:012x}")
