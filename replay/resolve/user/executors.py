# pyright: strict
"""Users' executors: a callable of the user's runs a recorded op; owns registration and the binding of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from opreplay.initializers.user_code import current_source
from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.model import Assumption, Reason, ReplayArg
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg
from opreplay.replay.resolve.bind import Unbound, bind
from opreplay.replay.resolve.guess.guess import Context
from opreplay.replay.resolve.match import best_match
from opreplay.replay.resolve.schema import OpSpec, compile_schema
from opreplay.replay.resolve.user.table import OpTable, UserFunction
from opreplay.traces.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class UserExecutor(UserFunction):
    """One registered callable."""

    schema: str | None = None
    """ "(Tensor x, float eps=1e-6) -> Tensor", where the user gave one."""
    mutates: tuple[str, ...] = ()
    """Arguments that it writes to."""
    fake: Callable[..., Any] | None = None
    """Describes the results on meta tensors."""


EXECUTORS: OpTable[UserExecutor] = OpTable("executor")


def register_executor(
    *ops: str,
    schema: str | None = None,
    mutates: Sequence[str] = (),
    fake: Callable[..., Any] | None = None,
    override: bool = False,
) -> Callable[[Function], Function]:
    """Decorator: let a callable run these recorded ops; it gets their arguments and returns what it likes.

    `ops` are names "namespace::op" or patterns "namespace::op*". With a `schema`, "(Tensor x, float eps=1e-6) ->
    Tensor", the recorded arguments are matched and completed as those of any op, keyword-only ones are given by name,
    and `!` marks what is written to. Without one they are given by position, as recorded, under the names that the
    callable has for them; `mutates` names those that it writes to, which are then reset between calls. `fake` gets the
    same arguments on meta tensors and tells the results' shapes; the callable itself never gets meta tensors. It is
    used for ops that could not be replayed without it, with `override` for all of them. What it raises fails that op
    alone. Raises UsageError for malformed names or schemas and duplicates.
    """

    def register(function: Function) -> Function:
        entry = UserExecutor(
            ops=ops,
            function=function,
            override=override,
            source=current_source(),
            schema=schema,
            mutates=tuple(mutates),
            fake=fake,
        )
        names = [arg.name for arg in _spec("user::op", schema).args] if schema is not None else _parameters(function)[0]
        if (unknown := set(mutates) - set(names)) and names:
            raise UsageError(f"{entry.place}: mutates={min(unknown)!r} is no argument", hint=f"It has {names}.")
        EXECUTORS.add(entry)
        return function

    return register


def bind_executor(
    entry: UserExecutor, name: str, recorded: Sequence[RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...], str | None]:
    """Named arguments for a user's callable, what was assumed, and the schema's text. Raises Unbound."""
    note = Assumption(argument="*", what=f"run by the user's executor {entry.shown}")
    if entry.schema is None:
        args, notes = _by_position(entry, recorded, context)
        return args, (*notes, note), None
    spec = _spec(name, entry.schema)
    match = best_match([spec], recorded)
    if match is None:
        raise Unbound(Reason("failed", f"the recorded arguments do not fit {spec.text} of {entry.shown}"))
    args, notes = bind(match, context)
    # A Python callable does not know the schema's defaults.
    left = spec.args[len(match.recorded) :]
    added = tuple(ReplayArg(name=a.name, type=a.kind, value=a.default, keyword_only=a.keyword_only) for a in left)
    return (*args, *added), (*notes, note), spec.text


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
    names, open_ended = _parameters(entry.function)
    if len(recorded) > len(names) and not open_ended:
        raise Unbound(Reason("failed", f"{len(recorded)} arguments recorded, {entry.shown} takes {len(names)}"))
    notes: list[Assumption] = []
    args: list[ReplayArg] = []
    for i, rec in enumerate(recorded):
        name = names[i] if i < len(names) else f"arg{i}"
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
    """IR type of a recorded number; complex and non-finite ones are held as text."""
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
