# pyright: strict
"""Resolves one call given as text (with values and tensor metadata) to an op of the IR, with its overload and its
arguments by name.

Chooses the overload and converts values to arguments. `ir.notation` parses the text; `sweep` handles several calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TypeVar

import msgspec

from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import (
    NOT_RECORDED,
    Assumption,
    PlainValue,
    Reason,
    ReplayArg,
    ReplayOp,
    ReplayPlan,
)
from opreplay.replay.ir.names import split_name
from opreplay.replay.ir.notation import CallText, CallValue, TorchName
from opreplay.replay.ir.recorded_call import RecordedArg, plain_number
from opreplay.replay.ops.catalog import LIBRARIES
from opreplay.replay.ops.kin import kin_of
from opreplay.replay.resolve.bind import Unbound, argument_of
from opreplay.replay.resolve.by_argument_name import resolve_named
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.names import candidates, near_names
from opreplay.replay.resolve.policy import Policy
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, specs_of
from opreplay.replay.resolve.user.conversions import (
    CONVERSIONS,
    Conversion,
    ConversionFailed,
    DtypeCode,
    RecordedCall,
    as_recorded,
    convert,
    in_schema_order,
)
from opreplay.replay.resolve.user.executors import EXECUTORS, UserExecutor, bind_by_name, bind_executor, schemas_for
from opreplay.replay.resolve.user.python_functions import PythonFunction, refused_text
from opreplay.replay.resolve.user.table import OpFunction
from opreplay.replay.resolve.written.unfit import Unfit, name_arguments, nearest, published_specs, unknown
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

Meta = TypeVar("Meta", TensorMeta, TensorMeta | None)
SHOWN = 3
"""Maximum number of schemas listed in an error."""
_BY_NAME = ("ScalarType", "Layout", "MemoryFormat")
"""Argument types whose values are written as names in torch, e.g. torch.float32."""


class NotCallable(UsageError):
    """Raised for a call that cannot run here as written. `reason` is the reason that reports give for its op."""

    def __init__(self, message: str, *, hint: str, reason: Reason) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


def op_of_written(call: CallText, policy: Policy, *, device: str = "cpu") -> ReplayOp:
    """Return the op of a written call, with its arguments, for `device`.

    A call that cannot run here is returned unresolved with the reason, so that its time can be predicted; see
    `_op_to_predict`. Users' conversions and executors apply as for a trace. Those with `override` come first. The
    others are used if the op does not exist here.

    Raises UsageError for text that cannot be a call of a known op. Raises NotCallable if the call has no tensor or the
    op's name is probably misspelled.
    """
    try:
        return _callable_op(call, policy, device)
    except NotCallable as error:
        if (op := _op_to_predict(call, policy, device, error)) is None:
            raise
        return op


def _callable_op(call: CallText, policy: Policy, device: str) -> ReplayOp:
    parts = split_name(call.name)
    if parts is None:
        raise UsageError(f"{call.name} cannot be called: it is not an op", hint="Write an op as in a trace: aten::mm.")
    base = f"{parts[0]}::{parts[1]}"
    if (op := _by_user(base, call, policy, device, override=True)) is not None:
        return op
    overloads = candidates(call.name, policy)
    if overloads.reason is not None:
        if (op := _by_user(base, call, policy, device, override=False)) is not None:
            return op
        near = ", ".join(near_names(base))
        hint = f"Did you mean {near}?" if near else "Write an op as in a trace: aten::mm."
        raise NotCallable(f"{call.name} cannot be called: {overloads.reason}", hint=hint, reason=overloads.reason)
    if overloads.function is not None:
        return _executed(overloads.function, base, call, device)
    return msgspec.structs.replace(_of_overload(overloads.specs, call, policy, device), name=base)


def _op_to_predict(call: CallText, policy: Policy, device: str, error: NotCallable) -> ReplayOp | None:
    """Return the op of a call that cannot run here.

    It is unresolved and has the reason, so that its time can be predicted. If a published schema accepts the call, the
    op gets that schema. Otherwise it is `ReplayOp.unfit` and gets the argument names of the nearest schema, e.g. of the
    op with the most similar name. There is one exception: if only flags are missing, or one tensor is given for a list,
    the call is completed and can run.

    Returns None in three cases: a call without tensors that fits no schema, an overload that the op does not have, and
    a name that a user registered or that nearly equals a name of torch or a user.
    """
    parts = split_name(call.name)
    if parts is None:
        return None
    base = f"{parts[0]}::{parts[1]}"
    specs = candidates(base, policy).specs or specs_of(base)  # what may not run may be predicted
    if _is_anothers(base, known=bool(specs)) or (
        specs and parts[2] not in {None, *(spec.torch_name for spec in specs)}
    ):
        return None
    fit, is_own = _nearest_to(base, call, specs, policy)
    fits = is_own and fit.spec is not None and not fit.misfits and not fit.absent
    if not fits and not any(map(_has_tensors, fit.values.values())):
        return None
    if fit.spec in specs and (op := _completed_op(base, fit, policy, device)) is not None:
        return op
    args = _arguments_of(fit)
    return ReplayOp(
        id=_identity(call.name, args),
        name=base,
        count=1,
        recorded=NOT_RECORDED,
        args=args,
        schema=fit.spec.text if fits and fit.spec is not None else None,
        reason=error.reason,
        unfit=not fits,
    )


def named_to_predict(name: str, args: Sequence[ReplayArg], policy: Policy) -> tuple[ReplayArg, ...] | None:
    """Name the arguments of a recorded call that cannot run here as `op_of_written` would name them.

    Returns None if no schema is known for the op or for an op with a similar name.
    """
    values = tuple(map(_written_value, args))
    fit, _ = _nearest_to(name, CallText(name=name, args=values), specs_of(name), policy)
    if fit.spec is None:
        return None
    with suppress(UsageError):
        return _arguments_of(fit)
    return None


def _written_value(arg: ReplayArg) -> CallValue:
    """Return the value of an unnamed argument as a written call would contain it."""
    if arg.tensors and not arg.type.endswith("[]"):
        return arg.tensors[0]
    listed = arg.tensors or arg.value
    if not isinstance(listed, tuple):
        return listed
    return [item if not isinstance(item, tuple) else list[CallValue](item) for item in listed]


def _arguments_of(fit: Unfit) -> tuple[ReplayArg, ...]:
    """Return a call's arguments under the names of the nearest schema. Raises UsageError for a list that no
    op accepts.
    """
    named = (_argument(_named(fit.spec, name), value) for name, value in fit.values.items())
    # In the order of the call, which an unresolved op keeps: nothing is passed by name.
    return tuple(msgspec.structs.replace(arg, keyword_only=False) for arg in named)


def _named(spec: OpSpec | None, name: str) -> ArgSpec:
    """Return the schema's argument with this name. If there is none, return an argument of unknown type."""
    args = () if spec is None else spec.args
    return next((arg for arg in args if arg.name == name), None) or unknown(name)


def _is_anothers(base: str, *, known: bool) -> bool:
    """Check whether an op name without a schema is a user's, or probably misspells a name of torch or a user."""
    if known:
        return False
    namespace = base.partition("::")[0]
    is_typo = namespace not in LIBRARIES and (namespace == "aten" or bool(near_names(base)))
    return is_typo or CONVERSIONS.find(base) is not None or EXECUTORS.find(base) is not None


def _nearest_to(base: str, call: CallText, specs: Sequence[OpSpec], policy: Policy) -> tuple[Unfit, bool]:
    """Return the call with the argument names of the nearest schema, and whether this schema belongs to the op itself.

    If not, the schema belongs to an op with a similar name.
    """
    own = (*specs, *published_specs(base))
    kin = kin_of(base) if not own else None
    of_kin = () if kin is None else (*candidates(kin, policy).specs, *published_specs(kin))
    return nearest(call, own or of_kin), kin is None


def _completed_op(base: str, fit: Unfit, policy: Policy, device: str) -> ReplayOp | None:
    """Return the op of a call that only lacks flags or gives one tensor for a list; None if anything else is wrong."""
    whole = name_arguments(fit)
    if whole is None or fit.spec is None:
        return None
    with suppress(UsageError):
        op = _of_overload([fit.spec], whole, policy, device)
        what = ", ".join(f"{name}=False" for name in fit.absent) or "its arguments are in another order or form"
        note = Assumption(argument="*", what=f"assumed to be a call of {fit.spec.full_name}: {what}")
        return msgspec.structs.replace(op, name=base, assumptions=(*op.assumptions, note))
    return None


def _has_tensors(value: CallValue) -> bool:
    return any(isinstance(item, TensorMeta) for item in (value if isinstance(value, list) else [value]))


def _by_user(base: str, call: CallText, policy: Policy, device: str, *, override: bool) -> ReplayOp | None:
    """Return the op that a user's conversion or executor makes of the call; None if none is registered.

    Only conversions and executors that were registered with this value of `override` count.
    """
    conversion, executor = CONVERSIONS.find(base), EXECUTORS.find(base)
    if conversion is not None and conversion.override == override:
        op = _converted(conversion, base, call, policy, device)
        if op is not None:
            return op
    return _executed(executor, base, call, device) if executor is not None and executor.override == override else None


def _of_overload(specs: Sequence[OpSpec], call: CallText, policy: Policy, device: str) -> ReplayOp:
    """Return the op of the first overload that accepts the call's arguments. Raises NotCallable if none does."""
    reasons: list[Reason] = []
    for spec in specs:
        args = argument_forms(spec, call)
        if args is None:
            continue
        op = ReplayOp(
            id=_identity(spec.full_name, args), name=spec.full_name, count=1, recorded=NOT_RECORDED, args=args
        )
        resolved = resolve_named(_alone(op), policy, device=device).ops[0]
        if resolved.reason is None:
            return resolved
        reasons.append(resolved.reason)
    shown = "; ".join(schema_text(spec.text) for spec in specs[:SHOWN])
    refused = next((reason for reason in reasons if reason.kind != "metadata missing"), None)
    raise NotCallable(
        f"no overload of {call.name} accepts these arguments" + (f": {reasons[0]}" if reasons else ""),
        hint=f"It is {shown}.",
        reason=refused
        or Reason("metadata missing", f"no overload of {call.name} accepts these arguments; its schema: {shown}"),
    )


def _alone(op: ReplayOp) -> ReplayPlan:
    return ReplayPlan(source="call", selection="all", device_us_total=0.0, host_us_total=0.0, ops=(op,))


def _identity(name: str, args: tuple[ReplayArg, ...]) -> str:
    return blake2b(msgspec.json.encode([name, args]), digest_size=6).hexdigest()


def values_by_name(spec: OpSpec, call: CallText) -> dict[str, CallValue] | None:
    """Return the call's values by argument name.

    Returns None if the call has arguments that the schema lacks, or lacks arguments that the schema requires.
    """
    positional = [arg.name for arg in spec.args if not arg.keyword_only]
    values = dict(zip(positional, call.args, strict=False))
    if len(call.args) > len(positional) or not call.kwargs.keys() <= {arg.name for arg in spec.args} - values.keys():
        return None
    values.update(call.kwargs)
    return None if any(not arg.has_default and arg.name not in values for arg in spec.args) else values


def argument_forms(spec: OpSpec, call: CallText) -> tuple[ReplayArg, ...] | None:
    """Return the call's arguments in the schema's order; None if they do not match the schema."""
    values = values_by_name(spec, call)
    if values is None:
        return None
    if any(arg.kind in _BY_NAME and isinstance(values.get(arg.name), (int, float)) for arg in spec.args):
        return None  # a number may stand for a dtype in a trace; whoever writes one means a number
    return tuple(_argument(arg, values[arg.name]) for arg in spec.args if arg.name in values)


def _argument(arg: ArgSpec, value: CallValue) -> ReplayArg:
    """Return the IR argument for a written value. Raises UsageError for a list that no op accepts as an argument."""
    if value is None:
        return argument_of(arg)
    if isinstance(value, TensorMeta):
        return argument_of(arg, kind="Tensor", tensors=(_with_strides(value),))
    if not isinstance(value, list):
        return argument_of(arg, kind=_kind(arg, value), value=_plain(value))
    if not value:
        return argument_of(arg, value=())
    metas = tuple(_with_strides(item) for item in value if isinstance(item, TensorMeta | None))
    if not any(metas) and (arg.kind != "Tensor[]" or len(metas) < len(value)):
        return argument_of(arg, kind=f"{_kind(arg, value[0])}[]", value=tuple(map(_plain, value)))
    if len(metas) < len(value):
        raise UsageError(f"the list {arg.name} contains tensors and other values", hint="Give tensors or None.")
    return argument_of(arg, kind="Tensor[]", tensors=metas)


def _with_strides(meta: Meta) -> Meta:
    """Return the tensor with contiguous strides if it has none; None stays None."""
    if meta is None or meta.strides is not None:
        return meta
    return msgspec.structs.replace(meta, strides=contiguous_strides(meta.shape))


def _kind(arg: ArgSpec, value: CallValue) -> str:
    """Return the type, in the IR, of a plain value that is passed for an argument."""
    wanted = arg.kind.removesuffix("[]")
    if isinstance(value, TorchName):
        return wanted if wanted in _BY_NAME else "ScalarType"
    if isinstance(value, str):
        return "Device" if wanted == "Device" else "str"
    kinds: dict[type, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}
    return kinds.get(type(value), wanted)


def _plain(value: CallValue) -> PlainValue:
    """Return the IR form of a written value. Raises UsageError for a list within a list."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, complex)):
        return plain_number(value)
    raise UsageError(
        "no op takes a list like this", hint="Give tensors, numbers, strings, dtypes, or lists of one of these."
    )


def _recorded(value: CallValue) -> RecordedArg:
    """Convert a written value to the form of a recorded argument, in which users' functions get it."""
    if isinstance(value, TensorMeta):
        return as_recorded(_with_strides(value))
    if isinstance(value, TorchName) and value.removeprefix("torch.") in SCALAR_TYPE_CODES:
        return RecordedArg(kind="scalar", value=DtypeCode(SCALAR_TYPE_CODES.index(value.removeprefix("torch."))))
    if isinstance(value, list):
        return as_recorded([_with_strides(item) if isinstance(item, TensorMeta) else item for item in value])
    return as_recorded(str(value) if isinstance(value, TorchName) else value)


def _call_value(arg: RecordedArg) -> CallValue:
    """Convert a recorded argument to the value of a written call; the reverse of `_recorded`."""
    if arg.kind == "tensor":
        return arg.tensor
    if arg.kind in ("tensors", "scalars"):
        return list(arg.metas if arg.kind == "tensors" else arg.value)
    if isinstance(arg.value, DtypeCode):
        return TorchName(f"torch.{SCALAR_TYPE_CODES[arg.value]}")
    return arg.value


def _in_order(call: CallText, specs: list[OpSpec]) -> tuple[RecordedArg, ...] | None:
    """Return the arguments in the order of the first schema that has their names; None if no schema has them."""
    args, by_name = _all_recorded(call)
    if not by_name:
        return tuple(args)
    orders = (in_schema_order(spec, args, by_name) for spec in specs)
    return next((order for order in orders if order is not None), None)


def _all_recorded(call: CallText) -> tuple[list[RecordedArg], dict[str, RecordedArg]]:
    return [_recorded(arg) for arg in call.args], {name: _recorded(arg) for name, arg in call.kwargs.items()}


def _executed(entry: UserExecutor, name: str, call: CallText, device: str) -> ReplayOp:
    """Return the op as a call of a user's executor. Raises UsageError if the arguments do not fit."""
    context = Context(device=device)
    is_function = isinstance(entry, PythonFunction)
    text = None
    try:
        ordered = _in_order(call, schemas_for(entry, name))
        if ordered is not None:
            args, notes, text = bind_executor(entry, name, ordered, context)
        else:
            args, notes = bind_by_name(entry, *_all_recorded(call), context)
    except Unbound as stopped:
        raise UsageError(f"{name} cannot be called: {stopped.reason}", hint=f"{entry.shown} runs it.") from None
    if is_function and (refusal := refused_text(args)) is not None:
        raise UsageError(f"{name} cannot be called: {refusal}", hint="Ops of register_executor accept any string.")
    return ReplayOp(
        id=_identity(name, args),
        name=name,
        count=1,
        recorded=NOT_RECORDED,
        resolved_by="python function" if is_function else "executor",
        schema=text,
        args=args,
        assumptions=notes,
    )


def _converted(entry: OpFunction, name: str, call: CallText, policy: Policy, device: str) -> ReplayOp | None:
    """Return the op from a user's conversion of the call; None if it does not apply. Raises UsageError."""
    executor = EXECUTORS.find(name)
    ordered = _in_order(call, [] if executor is None else schemas_for(executor, name))
    if ordered is None and executor is not None:
        return None  # recorded calls have no names: the executor's is what a conversion returned, as --explain shows it
    if ordered is None:
        raise UsageError(
            f"{name} is converted by {entry.shown}, which gets no argument names",
            hint="Give its arguments by position.",
        )
    try:
        converted = convert(entry, RecordedCall(name=name, args=ordered))
    except ConversionFailed as failed:
        raise UsageError(str(failed)) from None
    if converted is None:
        return None
    op = _op_of_target(entry, name, converted, policy, device)
    base = converted.op.partition(".")[0]
    to = "" if base == name else f" to {converted.op}"
    note = Assumption(argument="*", what=f"{name} converted{to} by {entry.shown}: {converted.note}")
    via = op.via or (base if base != name else None)
    return msgspec.structs.replace(op, name=name, via=via, assumptions=(note, *op.assumptions))


def _op_of_target(entry: OpFunction, name: str, converted: Conversion, policy: Policy, device: str) -> ReplayOp:
    """Return the op for the call that a conversion of `name` returned. Raises UsageError for an invalid call."""
    kwargs: dict[str, CallValue] = {key: _call_value(arg) for key, arg in converted.kwargs.items()}
    target = CallText(name=converted.op, args=tuple(map(_call_value, converted.args)), kwargs=kwargs)
    base = converted.op.partition(".")[0]
    executor = EXECUTORS.find(base)
    if executor is not None and (executor.override or "::" not in base):
        return _executed(executor, base, target, device)
    if base == name:
        raise UsageError(f"{entry.shown} converts {name} to itself", hint="Also register an executor for it.")
    return _callable_op(_by_schema(target, policy), policy, device)


def _by_schema(call: CallText, policy: Policy) -> CallText:
    """Return a conversion's call with all arguments by name if any argument has a name.

    Positional arguments then get the names in the schema's order. Other calls are returned unchanged.
    """
    if not call.kwargs:
        return call
    for spec in candidates(call.name, policy).specs:
        ordered = _in_order(call, [spec])
        if ordered is not None:
            values = {arg.name: _call_value(rec) for arg, rec in zip(spec.args, ordered, strict=True)}
            kwargs: dict[str, CallValue] = {name: value for name, value in values.items() if value is not None}
            return CallText(name=f"{spec.name}.{spec.torch_name}", kwargs=kwargs)
    return call
