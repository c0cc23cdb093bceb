# pyright: strict
"""Completes a call's arguments with the schema's defaults, in schema order. Files of other tools need them."""

from __future__ import annotations

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.names import split_name
from opreplay.replay.resolve.schema import OpSpec, specs_of


def spec_of(op: ReplayOp) -> OpSpec | None:
    """Return the called overload; None if this torch does not have it."""
    parts = split_name(op.called)
    overloads = () if parts is None else specs_of(f"{parts[0]}::{parts[1]}")
    return next((spec for spec in overloads if spec.overload == (op.overload or "")), None)


def whole_arguments(op: ReplayOp) -> tuple[ReplayArg, ...]:
    """Return `op.args` completed with the schema's defaults, which a plan leaves out. If the schema is unknown,
    `op.args` is unchanged.
    """
    spec = spec_of(op)
    if spec is None:
        return op.args
    arguments = {arg.name: arg for arg in op.args}
    return tuple(
        arguments.get(arg.name)
        or ReplayArg(name=arg.name, type=arg.kind, value=arg.default, keyword_only=arg.keyword_only)
        for arg in spec.args
        if arg.name in arguments or not arg.out
    )
