# pyright: strict
"""Users' conversions: functions that replace a recorded op by a call of another op, with other arguments and a note.

Contains the registration, and what user code receives and returns. `resolver` resolves the resulting op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from opreplay.initializers.user_code import failed_at
from opreplay.replay.ir.recorded_call import ABSENT, RecordedArg, plain_number
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.replay.resolve.user.table import OpFunction, OpTable
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.model import TensorMeta


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a conversion: one recorded op."""

    name: str
    """Name of the recorded op, "namespace::op"."""
    args: tuple[RecordedArg, ...]
    """Arguments in recorded order; () if the trace holds no shapes."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels launched by the recorded calls, in descending order of time."""
    batch: BatchContext | None = None
    """Batch of the iteration that the op ran in, if the trace records it."""


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a conversion: the op to call instead of the recorded one."""

    op: str
    """Op to call, as "namespace::op" or "namespace::op.overload". It is resolved and checked against the policy like a
    recorded name.
    """
    args: Sequence[Any]
    """Arguments in the order of the schema of `op`. Each is an entry of `RecordedCall.args`, a TensorMeta, a number, a
    bool, a string, a dtype, None, or a list of one of these.
    """
    kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Arguments by name; `args` fill the remaining arguments of the schema in order."""
    note: str
    """Text that says how the call differs from the recorded call; stored with the result and shown in the report."""


class DtypeCode(int):
    """The integer code of a dtype in a trace."""


class ConversionFailed(Exception):
    """Raised if user code raised or did not return a Conversion. The message says where."""


Converter = TypeVar("Converter", bound=Callable[[RecordedCall], Conversion | None])

Recorded = tuple[RecordedArg, ...]

CONVERSIONS: OpTable[OpFunction] = OpTable("conversion")


def register_conversion(*ops: str, override: bool = False) -> Callable[[Converter], Converter]:
    """Decorator: register a function (RecordedCall) -> Conversion | None that chooses the call for these recorded ops.

    `ops` are names "namespace::op" or patterns "namespace::op*". The function is used for ops that could not be
    replayed as recorded. With `override`, it is used for all these ops, before torch, vendor libraries and opreplay's
    references. The function returns None for a call to which it does not apply. An exception fails only that op.

    Raises UsageError for malformed names and duplicates.
    """

    def register(function: Converter) -> Converter:
        CONVERSIONS.add(OpFunction(ops=ops, function=function, override=override))
        return function

    return register


def convert(entry: OpFunction, call: RecordedCall) -> Conversion | None:
    """Return a user's conversion of a call, with its arguments in the form of recorded ones.

    None if the function does not apply to the call. Raises ConversionFailed if the function fails.
    """
    try:
        conversion = entry.function(call)
        if conversion is None:
            return None
        texts: tuple[object, ...] = (conversion.op, conversion.note) if isinstance(conversion, Conversion) else (None,)
        if not isinstance(conversion, Conversion) or not all(isinstance(text, str) for text in texts):
            raise TypeError(
                f"the function returned {type(conversion).__name__} instead of a Conversion with an op and a note"
            )
        return Conversion(
            op=conversion.op,
            args=tuple(as_recorded(value) for value in conversion.args),
            kwargs={name: as_recorded(value) for name, value in conversion.kwargs.items()},
            note=conversion.note,
        )
    except Exception as error:  # user code may raise anything
        where = failed_at(error, (__file__,)) or entry.place
        raise ConversionFailed(f"conversion {entry.shown}: {type(error).__name__}: {error} ({_tail(where)})") from error


def in_schema_order(spec: OpSpec, args: Sequence[RecordedArg], by_name: Mapping[str, RecordedArg]) -> Recorded | None:
    """Return positional and named arguments in a schema's order; None if they do not fit the schema.

    Missing arguments get the schema's defaults. A tensor list takes all remaining tensors if no later argument takes a
    tensor.
    """
    if not by_name.keys() <= {arg.name for arg in spec.args}:
        return None
    queue = list(args)
    tensor_arguments = [arg.name for arg in spec.args if arg.kind.startswith("Tensor") and arg.name not in by_name]
    ordered: list[RecordedArg] = []
    for arg in spec.args:
        takes_all = arg.kind == "Tensor[]" and arg.name in tensor_arguments[-1:]
        entry = by_name[arg.name] if arg.name in by_name else _next_argument(arg, queue, takes_all)
        if entry is None:
            return None
        ordered.append(entry)
    return None if queue else tuple(ordered)


def _next_argument(arg: ArgSpec, queue: list[RecordedArg], takes_all: bool) -> RecordedArg | None:
    """Remove the value for a schema's argument from the front of the queue, and return it.

    If the queue has no such value, the argument's default is returned; None if it has no default.
    """
    if takes_all and queue and all(rec.kind == "tensor" for rec in queue):
        tensors = RecordedArg(kind="tensors", tensors=tuple(rec.tensor for rec in queue))
        queue.clear()
        return tensors
    if queue and (queue[0].kind.startswith("tensor") == arg.kind.startswith("Tensor") or queue[0].kind == "absent"):
        return queue.pop(0)
    return as_recorded(arg.default) if arg.has_default else None


def _tail(place: str) -> str:
    return place.replace("\\", "/").rpartition("/")[2]


def as_recorded(value: Any) -> RecordedArg:
    """Convert a user's value to the form of a recorded argument. Raises TypeError for an unknown type."""
    if isinstance(value, RecordedArg):
        return value
    if value is None:
        return ABSENT
    if isinstance(value, TensorMeta):
        return RecordedArg(kind="tensor", tensor=value, strides_recorded=value.strides is not None)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return _list(list(items))
    return RecordedArg(kind="scalar", value=_plain(value))


def _list(values: list[Any]) -> RecordedArg:
    items = [value.tensor if isinstance(value, RecordedArg) and value.kind == "tensor" else value for value in values]
    metas = tuple(item for item in items if item is None or isinstance(item, TensorMeta))
    if not any(metas):
        return RecordedArg(kind="scalars", value=tuple(_plain(value) for value in values))
    if len(metas) < len(items):
        raise TypeError("a list of tensors contains other values")
    return RecordedArg(kind="tensors", tensors=metas)


def _plain(value: Any) -> Any:
    """Convert a number, string or dtype to its form in a recorded argument: dtypes become their integer codes."""
    if isinstance(value, bool | int | float | complex | str):
        return plain_number(value)
    name = str(value).removeprefix("torch.")
    if type(value).__name__ == "dtype" and name in SCALAR_TYPE_CODES:
        return DtypeCode(SCALAR_TYPE_CODES.index(name))
    raise TypeError(
        f"{value!r} cannot be an argument: give a RecordedArg, TensorMeta, number, string, dtype, None or list"
    )
