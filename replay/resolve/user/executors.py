# pyright: strict
"""Users' executors: a callable of the user's runs a recorded op; owns registration and the binding of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import BY_PROGRAM, Assumption, Reason, ReplayArg
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg
from opreplay.replay.resolve.bind import Unbound, bind
from opreplay.replay.resolve.guess.guess import Context
from opreplay.replay.resolve.match import best_match
from opreplay.replay.resolve.schema import OpSpec, compile_schema, specs_of
from opreplay.replay.resolve.user.conversions import DtypeCode, as_recorded
from opreplay.replay.resolve.user.inputs_and_attrs import called_with_lists, op_and_overload, takes_inputs_and_attrs
from opreplay.replay.resolve.user.table import OpFunction, OpTable
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserExecutor(OpFunction):
    """One registered callable."""

    schema: str | None = None
    """ "(Tensor x, float eps=1e-6) -> Tensor", where the user gave one."""
    mutates: tuple[str, ...] = ()
    """Arguments that it writes to."""
    fake: Callable[..., Any] | None = None
    """Describes the results on meta tensors."""
    lists: bool = False
    """It was written as (inputs, attrs): tensors come by position, all else by name."""
    overloads: Mapping[str, str] = field(default_factory=dict[str, str])
    """Op → the one overload that it was registered for."""
    program: bool = False
    """A tile program's: it computes values on the CPU, and its time is no kernel's."""

    @property
    def note(self) -> Assumption:
        """That it runs the op, for reports."""
        if self.program:
            return Assumption(argument="*", what=f"{BY_PROGRAM} {self.shown}: its time is no kernel's")
        return Assumption(argument="*", what=f"run by the user's executor {self.shown}")


class OtherOverload(Unbound):
    """The call is of another overload than the executor was registered for."""


EXECUTORS: OpTable[UserExecutor] = OpTable("executor")


def register_executor(
    *ops: str,
    schema: str | None = None,
    mutates: Sequence[str] = (),
    fake: Callable[..., Any] | None = None,
    override: bool = False,
    program: bool = False,
) -> Callable[[Function], Function]:
    """Decorator: let a callable run these recorded ops; it gets their arguments and returns what it likes.

    `ops` are names "namespace::op" or patterns "namespace::op*". With a `schema`, "(Tensor x, float eps=1e-6) ->
    Tensor", the recorded arguments are matched and completed as those of any op, keyword-only ones are given by name,
    and `!` marks what is written to. Without one they are given by position, as recorded, under the names that the
    callable has for them; `mutates` names those that it writes to, which are then reset between calls. `fake` gets the
    same arguments on meta tensors and tells the results' shapes; the callable itself never gets meta tensors.
    `program` says that it is a tile program's, which reports tell. It is used for ops that could not be replayed
    without it, with `override` for all of them. What it raises fails that op alone. Raises
    UsageError for malformed names or schemas and duplicates.

    A function (inputs, attrs), as torch_ir has them, gets a list of tensors and a dict of everything else by name, and
    returns a list; the names are those of `schema`, or of the op's own where torch has it. Its ops may also be named as
    there: "custom.gate", "aten.add.Tensor", "gate".
    """

    def register(function: Function) -> Function:
        lists = takes_inputs_and_attrs(function)
        named = [op_and_overload(op) if lists else (op, None) for op in ops]
        entry = UserExecutor(
            ops=tuple(op for op, _ in named),
            function=called_with_lists(function) if lists else function,
            override=override,
            program=program,
            bare=lists,
            schema=schema,
            mutates=tuple(mutates),
            fake=called_with_lists(fake) if fake is not None and takes_inputs_and_attrs(fake) else fake,
            lists=lists,
            overloads={op: overload for op, overload in named if overload is not None},
        )
        names = [] if lists else _parameters(function)[0]
        if schema is not None:
            names = [arg.name for arg in _spec("user::op", schema).args]
        if (unknown := set(mutates) - set(names)) and names:
            raise UsageError(f"{entry.place}: mutates={min(unknown)!r} is no argument", hint=f"It has {names}.")
        EXECUTORS.add(entry)
        return function

    return register


def bind_executor(
    entry: UserExecutor, name: str, recorded: Sequence[RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...], str | None]:
    """Named arguments for a user's callable, what was assumed, and the schema's text. Raises Unbound."""
    note = entry.note
    specs = schemas_for(entry, name)
    if not specs:
        args, notes = (_inputs if entry.lists else _by_position)(entry, recorded, context)
        return args, (*notes, note), None
    match = best_match(specs, recorded)
    if match is None:
        wrong = OtherOverload if name in entry.overloads else Unbound
        raise wrong(
            Reason("failed", f"the recorded arguments do not fit {schema_text(specs[0].text)} of {entry.shown}")
        )
    args, notes = bind(match, context)
    # A Python callable does not know the schema's defaults.
    left = match.spec.args[len(match.recorded) :]
    added = tuple(ReplayArg(name=a.name, type=a.kind, value=a.default, keyword_only=a.keyword_only) for a in left)
    whole = (*args, *added)
    return (as_lists(whole) if entry.lists else whole), (*notes, note), match.spec.text


def schemas_for(entry: UserExecutor, name: str) -> list[OpSpec]:
    """What names the arguments: the registration's schema; for a function (inputs, attrs) also what torch says of the
    op, of one overload where it was registered for that. None for other callables, which name them themselves.
    """
    if entry.schema is not None:
        return [_spec(name if "::" in name else f"user::{name}", entry.schema)]
    specs = specs_of(name) if entry.lists and "::" in name else ()
    return [spec for spec in specs if entry.overloads.get(name, spec.overload) == spec.overload]


def bind_by_name(
    entry: UserExecutor, positional: Sequence[RecordedArg], by_name: Mapping[str, RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Arguments of which a conversion has named some, and what was assumed. Raises Unbound."""
    args, notes = _by_position(entry, positional, context)
    named = tuple(
        msgspec.structs.replace(
            ReplayArg(name=name, type="ScalarType", value=f"torch.{SCALAR_TYPE_CODES[rec.value]}")
            if isinstance(rec.value, DtypeCode)
            else _argument(name, rec, context, notes),
            keyword_only=True,
            mutated=name in entry.mutates,
        )
        for name, rec in by_name.items()
    )
    note = entry.note
    return (*args, *named), (*notes, note)


def as_lists(args: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """The arguments for a function (inputs, attrs): all but tensors are given by name."""
    return tuple(msgspec.structs.replace(arg, keyword_only=not arg.type.startswith("Tensor")) for arg in args)


def _inputs(
    entry: UserExecutor, recorded: Sequence[RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], list[Assumption]]:
    """Tensors in the recorded order. Raises Unbound where there are other values: a trace does not name them."""
    others = [rec.value for rec in recorded if rec.kind in ("scalar", "scalars", "unknown")]
    if others:
        what = (
            f"names of {', '.join(map(str, others[:4]))}, which {entry.shown} takes by name: register it with schema="
        )
        raise Unbound(Reason("metadata missing", f'{what}"(Tensor x, float scale) -> Tensor"'))
    given = [rec for rec in recorded if rec.kind != "absent"]
    args, notes = _by_position(entry, given, context)
    if len(given) < len(recorded):
        notes.append(Assumption(argument="*", what="arguments that are empty in the trace are left out"))
    return args, notes


def _spec(name: str, schema: str) -> OpSpec:

    try:
        return compile_schema(parse_schema(f"{name}{schema.strip()}"))
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{schema!r} is no schema: {first}", hint="Write it like (Tensor x, int n=1) -> Tensor."
        ) from None


def _by_position(
    entry: UserExecutor, recorded: Sequence[RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], list[Assumption]]:
    """Arguments in the recorded order, named as the callable names them."""
    defaults = _defaults(entry.function)
    names, open_ended = (
        ([f"input{i}" for i in range(len(recorded))], True) if entry.lists else _parameters(entry.function)
    )
    if len(recorded) > len(names) and not open_ended:
        raise Unbound(Reason("failed", f"{len(recorded)} arguments recorded, {entry.shown} takes {len(names)}"))
    notes: list[Assumption] = []
    args: list[ReplayArg] = []
    for i, rec in enumerate(recorded):
        name = names[i] if i < len(names) else f"{'input' if entry.lists else 'arg'}{i}"
        if rec.value is MISSING and isinstance(default := defaults.get(name, MISSING), bool | int | float | str):
            rec = as_recorded(default)
            notes.append(Assumption(argument=name, what=f"{default!r} (default of {entry.shown})"))
        arg = _argument(name, rec, context, notes)
        args.append(msgspec.structs.replace(arg, mutated=name in entry.mutates))
    if any(rec.kind in ("tensor", "tensors") and not rec.strides_recorded for rec in recorded):
        notes.append(Assumption(argument="*", what="contiguous strides"))
    settled, apart = aliasing.settle(tuple(args))
    return settled, [*notes, *apart]


def _argument(name: str, rec: RecordedArg, context: Context, notes: list[Assumption]) -> ReplayArg:
    if rec.kind in ("tensor", "tensors"):
        metas = (rec.tensor,) if rec.kind == "tensor" else rec.tensors
        if metas is None:
            raise Unbound(Reason("metadata missing", f"shapes of tensor list {name}"))
        if any(meta is not None and not meta.dtype for meta in metas):
            notes.append(Assumption(argument=name, what=f"{context.float_dtype}: the most frequent type of the trace"))
            metas = tuple(
                m and (m if m.dtype else msgspec.structs.replace(m, dtype=context.float_dtype)) for m in metas
            )
        if rec.kind == "tensor":
            return ReplayArg(name=name, type="Tensor", tensors=metas)
        return ReplayArg(name=name, type="Tensor[]", tensors=metas, value=None if metas else ())
    if rec.kind == "absent":
        return ReplayArg(name=name, type="Tensor")
    if rec.value is MISSING:
        raise Unbound(Reason("metadata missing", f"value of {name}"))
    if rec.kind == "scalars":
        kinds = {_kind(item) for item in rec.value}
        kind = kinds.pop() if len(kinds) == 1 else "Scalar" if kinds else "int"
        return ReplayArg(name=name, type=f"{kind}[]", value=tuple(rec.value))
    return ReplayArg(name=name, type=_kind(rec.value), value=rec.value)


def _kind(value: Any) -> str:
    """IR type of a recorded number or text; complex and non-finite numbers are held as text."""
    if isinstance(value, str):
        try:
            complex(value)
        except ValueError:
            return "str"
    kinds: dict[object, str] = {bool: "bool", int: "int", float: "float"}
    return kinds.get(cast("object", type(value)), "Scalar")


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Names of a callable's positional parameters, and whether it takes any number of them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions have no signature
        return [], True
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names, any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Values that a callable takes for parameters that are left out."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions have no signature
        return {}
    return {one.name: one.default for one in parameters if one.default is not one.empty}
