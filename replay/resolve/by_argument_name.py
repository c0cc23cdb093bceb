# pyright: strict
"""Chooses overloads for ops whose arguments a file lists by name only; `policy` decides what may run.

TraceLens's files are of this kind. If a trace gives arguments by position, `match` chooses the overload instead.
"""

from __future__ import annotations

import msgspec

from opreplay.replay.ir.model import Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.ir.verify import verify_argument
from opreplay.replay.resolve.bind import Unbound, decode_enum
from opreplay.replay.resolve.kernels import way_on
from opreplay.replay.resolve.names import candidates, find_overload
from opreplay.replay.resolve.policy import Policy, refuse_arguments, refuse_name, refuse_value
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, named_after_gaps
from opreplay.replay.resolve.user.executors import EXECUTORS, as_lists
from opreplay.replay.resolve.user.python_functions import PythonFunction, refused_text
from opreplay.traces.errors import FormatError, UsageError

_WIDENS = {
    "Scalar": ("int", "float", "bool", "complex"),
    "float": ("int",),
    "complex": ("int", "float"),
    "ScalarType": ("int",),
    "Layout": ("int",),
    "MemoryFormat": ("int",),
    "int[]": ("int",),
    "Scalar[]": ("int[]", "float[]", "bool[]"),
    "float[]": ("int[]",),
}
"""Type in the schema → other types that a file may give for such an argument."""


def resolve_named(plan: ReplayPlan, policy: Policy, *, device: str = "cpu") -> ReplayPlan:
    """Add an overload for `device` to each op of a plan that has neither an overload nor a reason. If there is no
    overload, add the reason.

    Other ops stay unchanged, with two exceptions: ops for which this process has a user's executor, and ops whose
    library is not installed.
    """
    ops = tuple(
        _callable_here(_executed(op, policy), policy) if op.reason or op.resolved_by else _resolved(op, policy, device)
        for op in map(_asked_again, plan.ops)
    )
    return msgspec.structs.replace(plan, ops=ops)


OF_A_PLACE = frozenset({"policy", "library missing"})
"""Kinds of reasons that depend on what is installed and allowed on the machine where a plan is read."""


def _asked_again(op: ReplayOp) -> ReplayOp:
    """Remove the reason from a resolved op if it only concerned the machine on which the plan was written."""
    is_of_a_place = op.resolved_by is not None and op.reason is not None and op.reason.kind in OF_A_PLACE
    return msgspec.structs.replace(op, reason=None) if is_of_a_place else op


def _callable_here(op: ReplayOp, policy: Policy) -> ReplayOp:
    """Add the reason why an op cannot run if its function or library is missing on this machine."""
    if op.reason is not None or op.collective is not None:
        return op
    try:
        find_overload(op, policy)
    except NotReplayable as stopped:
        return msgspec.structs.replace(op, reason=stopped.reason)
    return op


def _executed(op: ReplayOp, policy: Policy) -> ReplayOp:
    """Return the op as a call of a user's executor if the executor overrides torch, or if the op's library is not
    installed.
    """
    is_missing = op.reason is not None and op.reason.kind == "library missing"
    if op.resolved_by == "executor" or (op.reason is not None and not is_missing):
        return op
    try:
        entry = EXECUTORS.find(op.name)
        if entry is None or not (_overrides(op.name) or is_missing or candidates(op.name, policy).reason is not None):
            return op
        return _by_user(msgspec.structs.replace(op, reason=None), Reason("failed", "no executor"))
    except UsageError as error:
        return msgspec.structs.replace(op, reason=Reason("failed", error.problem))
    except Unbound as stopped:
        return msgspec.structs.replace(op, reason=stopped.reason)


def _resolved(op: ReplayOp, policy: Policy, device: str) -> ReplayOp:
    try:
        return _resolve(op, policy, device)
    except Unbound as stopped:
        return msgspec.structs.replace(op, reason=stopped.reason)


def _resolve(op: ReplayOp, policy: Policy, device: str) -> ReplayOp:
    """Return the op with its overload, or as a call of a user's registration. Raises Unbound if neither is possible."""
    parts = split_name(op.name)
    if parts is None:
        raise Unbound(Reason("label, not an op"))
    if (reason := refuse_name(op.name, policy)) is not None:
        raise Unbound(reason)
    if _overrides(op.name):
        return _by_user(op, Reason("failed", "no executor"))
    name = f"{parts[0]}::{parts[1]}"
    overloads = candidates(name, policy)
    if overloads.reason is not None:
        return _by_user(op, overloads.reason)
    if overloads.function is not None:
        return _called_by_position(op, overloads.function)
    overload = op.overload if parts[2] is None else parts[2]
    spec = _cheapest([spec for spec in overloads.specs if overload in (None, spec.overload)], op.args)
    _refuse(spec, op.args)
    args = _adopted(spec, op.args)
    dtypes = {arg.name: meta.dtype for arg in args if arg.type == "Tensor" for meta in arg.tensors if meta}
    sizes = {arg.name: meta.shape for arg in args if arg.type == "Tensor" for meta in arg.tensors if meta}
    way = way_on(device, name, spec, overloads, dtypes, {**msgspec.structs.replace(op, args=args).values, **sizes})
    if way.reason is not None:
        return _by_user(op, way.reason)
    return msgspec.structs.replace(
        op, args=args, resolved_by=way.resolved_by, via=way.via, overload=spec.overload, schema=spec.text
    )


def _overrides(name: str) -> bool:
    """Check whether a user's executor takes precedence over torch.

    True also if two patterns match the name; `_by_user` then reports this.
    """
    try:
        entry = EXECUTORS.find(name)
    except UsageError:
        return True
    return entry is not None and entry.override and name not in entry.overloads


def _by_user(op: ReplayOp, reason: Reason) -> ReplayOp:
    """Return the op as a call of a user's executor, with the arguments listed in the file. Raises Unbound if there is
    no executor.
    """
    try:
        entry = EXECUTORS.find(op.name)
    except UsageError as error:
        raise Unbound(Reason("failed", error.problem)) from None
    if entry is None:
        raise Unbound(reason)
    args = tuple(msgspec.structs.replace(arg, mutated=arg.mutated or arg.name in entry.mutates) for arg in op.args)
    args = as_lists(args) if entry.lists else args
    note = entry.note
    return msgspec.structs.replace(op, args=args, resolved_by="executor", assumptions=(*op.assumptions, note))


def _called_by_position(op: ReplayOp, function: PythonFunction) -> ReplayOp:
    """Return the op as a call of a Python function without a schema, with the arguments in the order of the file."""
    if (reason := refused_text(op.args)) is not None:
        raise Unbound(reason)
    args = tuple(msgspec.structs.replace(arg, keyword_only=False) for arg in op.args)
    notes = (*op.assumptions, function.note)
    return msgspec.structs.replace(op, args=args, resolved_by="python function", assumptions=notes)


def _refuse(spec: OpSpec, args: tuple[ReplayArg, ...]) -> None:
    """Raise Unbound for an overload or a value that the policy does not allow."""
    reason = refuse_arguments(spec.name, [(arg.name, arg.type_text) for arg in spec.args])
    for arg in args:
        reason = reason or refuse_value(arg.name, arg.value)
    if reason is not None:
        raise Unbound(reason)


def _cheapest(specs: list[OpSpec], args: tuple[ReplayArg, ...]) -> OpSpec:
    """Return the overload that omits or widens the fewest arguments. Raises Unbound if none accepts the arguments."""
    fits = [spec for spec in specs if _fits(spec, args)]
    if not fits:
        raise Unbound(Reason("metadata missing", "no overload accepts arguments of these names and types"))
    return min(fits, key=lambda spec: _cost(spec, args))


def _fits(spec: OpSpec, args: tuple[ReplayArg, ...]) -> bool:
    """Check whether an overload has all of these arguments, and defaults for all its other arguments."""
    wanted = {arg.name: arg for arg in spec.args}
    if any(arg.name not in wanted or not _takes(wanted[arg.name], arg) for arg in args):
        return False
    names = {arg.name for arg in args}
    return all(arg.name in names or arg.has_default for arg in spec.args)


def _takes(wanted: ArgSpec, arg: ReplayArg) -> bool:
    if arg.value is None and not arg.tensors:
        return wanted.optional or (wanted.kind == "Tensor[]" and arg.type == "Tensor[]")
    return wanted.kind == arg.type or arg.type in _WIDENS.get(wanted.kind, ())


def _cost(spec: OpSpec, args: tuple[ReplayArg, ...]) -> int:
    """Return the number of omitted arguments, plus twice the number of arguments with a wider type in the overload."""
    kinds = {arg.name: arg.kind for arg in spec.args}
    return len(spec.args) - len(args) + 2 * sum(kinds[arg.name] != arg.type for arg in args)


def _adopted(spec: OpSpec, args: tuple[ReplayArg, ...]) -> tuple[ReplayArg, ...]:
    """Return the arguments in the schema's order and form. Raises Unbound if a value does not fit its type."""
    by_name = {arg.name: arg for arg in args}
    adopted = [_adopt(by_name[wanted.name], wanted) for wanted in spec.args if wanted.name in by_name]
    try:
        for arg in adopted:
            verify_argument(f"argument {arg.name}", arg)
    except FormatError as error:
        raise Unbound(Reason("metadata missing", error.problem)) from None
    return named_after_gaps(spec, adopted)


def _adopt(arg: ReplayArg, wanted: ArgSpec) -> ReplayArg:
    """Return the argument with the schema's type and mutability. A single number becomes a list if the schema requires
    one.
    """
    value = decode_enum(wanted.kind, arg.value)
    if wanted.kind == "int[]" and isinstance(value, int):
        value = (value,)
    return msgspec.structs.replace(
        arg, type=wanted.kind, value=value, keyword_only=wanted.keyword_only, mutated=wanted.mutated
    )
