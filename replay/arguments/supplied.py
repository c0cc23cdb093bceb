# pyright: strict
"""Check, before anything runs, that the tensors of a values file fit the ops of a plan. Does not fill tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

if TYPE_CHECKING:
    from opreplay.initializers.supplied.values import Place, RecordedValues

_NAMED = 8
"""Maximum number of known names that an error lists."""


def check_values(plan: ReplayPlan, values: RecordedValues) -> None:
    """Check that every tensor of the file belongs to an argument of an op in the plan, with its shape and dtype.

    A tensor with an op id as its key applies to that op. A tensor with an op name applies to all ops of that name, and
    must fit each of them that can be replayed. Raises UsageError that says what does not fit.
    """
    for place in values.places:
        ops = [op for op in plan.ops if place.op in (op.id, op.name)]
        if not ops:
            known = _some(f"{op.name} ({op.id})" for op in plan.ops)
            raise UsageError(
                f"{values.path}: {place.key} is for an op that is not in the plan",
                hint=f"Ops of the plan: {known}." if known else "The plan contains no ops.",
            )
        callable_ops = [op for op in ops if op.reason is None]
        if not callable_ops:
            raise UsageError(f"{values.path}: {place.key} is for an op that cannot be replayed: {ops[0].reason}")
        for op in callable_ops:
            _check_one(values, place, op)


def check_values_file(plan: ReplayPlan, path: str) -> None:
    """Open a .safetensors file and check it against a plan. Raises the errors of `check_values`, or FormatError."""
    from opreplay.initializers.supplied.values import RecordedValues

    check_values(plan, RecordedValues(path))


def _check_one(values: RecordedValues, place: Place, op: ReplayOp) -> None:
    meta = _recorded(place, op, str(values.path))
    stored = values.stored(place)
    if stored.shape != meta.shape or stored.dtype != meta.dtype:
        others = "; to select one of several ops, use its id" if place.op == op.name else ""
        raise UsageError(
            f"{values.path}: {place.key} is {stored.dtype}{list(stored.shape)}, but {place.shown} of "
            f"{op.name} ({op.id}) is {meta.dtype}{list(meta.shape)}",
            hint=f"Supply a tensor of the recorded shape and dtype{others}.",
        )


def _recorded(place: Place, op: ReplayOp, path: str) -> TensorMeta:
    """Return the recorded metadata of the tensor that `place` names. Raises UsageError if the op has no such tensor."""
    arg = next((arg for arg in op.args if arg.name == place.argument), None)
    if arg is None or not arg.tensors:
        raise UsageError(
            f"{path}: {op.name} has no tensor argument {place.argument!r}",
            hint=f"Its tensor arguments: {_some(_names(op.args))}.",
        )
    is_list = arg.type.endswith("[]")
    if is_list != (place.index is not None):
        want = f"{place.op}.{place.argument}.0, .1, ..." if is_list else f"{place.op}.{place.argument}"
        raise UsageError(f"{path}: {place.key} does not fit {arg.type} {arg.name} of {op.name}", hint=f"Name {want}.")
    at = place.index or 0
    meta = arg.tensors[at] if at < len(arg.tensors) else None
    if meta is None:
        raise UsageError(
            f"{path}: {place.shown} of {op.name} ({op.id}) is not a tensor: it has {len(arg.tensors)} elements"
        )
    return meta


def _names(args: Iterable[ReplayArg]) -> Iterable[str]:
    return (arg.name for arg in args if arg.tensors)


def _some(names: Iterable[str]) -> str:
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:_NAMED]) + (" ..." if len(listed) > _NAMED else "")
