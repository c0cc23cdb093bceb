# pyright: strict
"""Users' conversions: a recorded op becomes a call of another op, with other arguments, and a note that says so.

Owns the registration and what user code sees and returns. Does not resolve the op that comes out (`build`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from opreplay.initializers.user_code import failed_at
from opreplay.replay.ir.recorded_call import ABSENT, RecordedArg
from opreplay.replay.resolve.schema import OpSpec
from opreplay.replay.resolve.user.table import OpFunction, OpTable
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.links.annotations import BatchContext
from opreplay.traces.literals import plain_float
from opreplay.traces.model import TensorMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """What a conversion gets: one recorded op."""

    name: str
    """ "namespace::op"."""
    args: tuple[RecordedArg, ...]
    """In the order of the recording; () where the trace holds no shapes."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels that the recorded calls started, most time first."""
    batch: BatchContext | None = None
    """The batch of the iteration that the op ran in, where the trace says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a conversion returns: the op to call in place of the recorded one."""

    op: str
    """ "namespace::op" or "namespace::op.overload"; resolved, and checked against the policy, as a recorded name is."""
    args: Sequence[Any]
    """In the order of that op's schema: entries of `RecordedCall.args`, TensorMeta, numbers, bools, strings, dtypes,
    None, and lists of one of these."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments by name; `args` then fill, in order, those of the schema that are not among them."""
    note: str
    """What differs from the recorded call; stored with the result and shown in the report."""


class DtypeCode(int):
    """The integer that stands for a dtype in a trace."""


class ConversionFailed(Exception):
    """User code raised or returned something else than a Conversion; the message says where."""


Converter = TypeVar("Converter", bound=Callable[[RecordedCall], Conversion | None])

Recorded = tuple[RecordedArg, ...]

CONVERSIONS: OpTable[OpFunction] = OpTable("conversion")


def register_conversion(*ops: str, override: bool = False) -> Callable[[Converter], Converter]:
    """Decorator: let a function (RecordedCall) -> Conversion | None say what is called for these recorded ops.

    `ops` are names "namespace::op" or patterns "namespace::op*". The function is used for ops that could not be
    replayed as recorded; with `override` for all of them, before torch, vendor libraries and opreplay's references.
    None means: not this call. What it raises fails that op alone. Raises UsageError for malformed names and duplicates.
    """

    def register(function: Converter) -> Converter:
        CONVERSIONS.add(OpFunction(ops=ops, function=function, override=override))
        return function

    return register


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A conversion with its arguments in the form that recorded ones have."""

    op: str
    args: tuple[RecordedArg, ...]
    by_name: dict[str, RecordedArg]
    note: str


def convert(entry: OpFunction, call: RecordedCall) -> Converted | None:
    """What a registered function makes of a call; None where it does not apply. Raises ConversionFailed."""
    try:
        made = entry.function(call)
        if made is None:
            return None
        told: tuple[object, ...] = (made.op, made.note) if isinstance(made, Conversion) else (None,)
        if not isinstance(made, Conversion) or not all(isinstance(text, str) for text in told):
            raise TypeError(f"it returned {type(made).__name__} in place of a Conversion of an op with a note")
        return Converted(
            op=made.op,
            args=tuple(as_recorded(value) for value in made.args),
            by_name={name: as_recorded(value) for name, value in made.kwargs.items()},
            note=made.note,
        )
    except Exception as error:  # user code may raise anything
        where = failed_at(error, (__file__,)) or entry.place
        raise ConversionFailed(f"conversion {entry.shown}: {type(error).__name__}: {error} ({_tail(where)})") from error


def in_schema_order(spec: OpSpec, args: Sequence[RecordedArg], by_name: Mapping[str, RecordedArg]) -> Recorded | None:
    """Arguments of which some are named, in a schema's order and with its defaults; None where they do not go with it.

    A list of tensors takes all that are left where nothing after it takes a tensor.
    """
    left, made = list(args), list[RecordedArg]()
    open_ = [arg for arg in spec.args if arg.name not in by_name]
    if not by_name.keys() <= {arg.name for arg in spec.args}:
        return None
    for arg in spec.args:
        if arg.name in by_name:
            made.append(by_name[arg.name])
            continue
        open_ = open_[1:]
        last = not any(one.kind.startswith("Tensor") for one in open_)
        if arg.kind == "Tensor[]" and last and left and all(one.kind == "tensor" for one in left):
            made.append(RecordedArg(kind="tensors", tensors=tuple(one.tensor for one in left)))
            left = []
        elif left and (left[0].kind.startswith("tensor") == arg.kind.startswith("Tensor") or left[0].kind == "absent"):
            made.append(left.pop(0))
        elif arg.has_default:
            made.append(as_recorded(arg.default))
        else:
            return None
    return None if left else tuple(made)


def _tail(place: str) -> str:
    return place.replace("\\", "/").rpartition("/")[2]


def as_recorded(value: Any) -> RecordedArg:
    """A value of the user's in the form that recorded ones have. Raises TypeError."""
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
    if any(metas):
        if len(metas) < len(items):
            raise TypeError("a list of tensors holds something else")
        known = all(meta is None or meta.dtype for meta in metas)
        return RecordedArg(kind="tensors", tensors=metas, list_dtypes_known=known)
    return RecordedArg(kind="scalars", value=tuple(_plain(value) for value in values))


def _plain(value: Any) -> Any:
    """A number, string or dtype as recorded ones are held: dtypes as the integer that stands for them."""
    if isinstance(value, float):
        return plain_float(value)
    if isinstance(value, complex):
        return str(value).strip("()")
    if isinstance(value, bool | int | str):
        return value
    name = str(value).removeprefix("torch.")
    if type(value).__name__ == "dtype" and name in SCALAR_TYPE_CODES:
        return DtypeCode(SCALAR_TYPE_CODES.index(name))
    raise TypeError(
        f"{value!r} can be no argument: give a RecordedArg, TensorMeta, number, string, dtype, None or list"
    )
