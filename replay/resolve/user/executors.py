# pyright: strict
"""Users' executors: callables that run recorded ops.

Contains the registration and the binding of their arguments. Executors in the form (inputs, attrs), as in torch_ir's
guide, get tensors as one list and all other arguments by name.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from opreplay.replay.host.dispatcher import parse_schema
from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.call import Call
from opreplay.replay.ir.describe import schema_text
from opreplay.replay.ir.model import BY_PROGRAM, Assumption, Reason, ReplayArg
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg
from opreplay.replay.resolve.bind import NO_ELEMENTS, Unbound, bind, with_dtypes
from opreplay.replay.resolve.guess import lists
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.match import best_match
from opreplay.replay.resolve.schema import OpSpec, compile_schema, specs_of
from opreplay.replay.resolve.user.conversions import DtypeCode, as_recorded
from opreplay.replay.resolve.user.table import OpFunction, OpTable
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])
_DOTTED = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)(?:\.(\w+))?")


class UserExecutor(OpFunction, frozen=True, kw_only=True):
    """A callable registered to run recorded ops."""

    schema: str | None = None
    """The schema that the user gave, such as "(Tensor x, float eps=1e-6) -> Tensor"; None if the user gave none."""
    mutates: tuple[str, ...] = ()
    """Arguments that the callable writes to."""
    fake: Callable[..., Any] | None = None
    """Function that is called in place of the executor on meta tensors, and returns its results."""
    lists: bool = False
    """Whether the callable is a function (inputs, attrs): tensors are passed by position, everything else by name."""
    overloads: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Op → the only overload that the callable was registered for."""
    program: bool = False
    """Whether this is a tile program. Such a program computes values on the CPU, so its time is not the time of a
    kernel.
    """

    @property
    def note(self) -> Assumption:
        """Return a note that tells readers of reports that this callable runs the op."""
        if self.program:
            return Assumption(argument="*", what=f"{BY_PROGRAM} {self.shown}: this is not the time of a real kernel")
        return Assumption(argument="*", what=f"run by the user's executor {self.shown}")


class OtherOverload(Unbound):
    """Raised if a call uses an overload other than the one for which the executor was registered."""


EXECUTORS: OpTable[UserExecutor] = OpTable("executor")


def register_executor(
    *ops: str,
    schema: str | None = None,
    mutates: Sequence[str] = (),
    fake: Callable[..., Any] | None = None,
    override: bool = False,
    program: bool = False,
) -> Callable[[Function], Function]:
    """Decorator: register a callable to run these recorded ops.

    It gets their arguments and may return anything. `ops` are names "namespace::op" or patterns "namespace::op*". The
    callable is used for ops that could not be replayed without it; with `override`, for all calls of these ops. An
    exception fails only that op.

    With a `schema`, "(Tensor x, float eps=1e-6) -> Tensor", the recorded arguments are matched and completed as for any
    op. Keyword-only arguments are passed by name, and `!` marks arguments that are written to. Without a schema, the
    recorded arguments are passed by position and named after the callable's parameters. `mutates` then names the
    parameters that the callable writes to; these are reset between calls.

    `fake` gets the same arguments on meta tensors and returns the results' shapes; the callable itself never gets meta
    tensors. `program` marks a tile program, which reports mention. Raises UsageError for malformed names or schemas and
    duplicates.

    A function (inputs, attrs), as in torch_ir, gets a list of tensors and a dict of everything else by name, and
    returns a list. The names are those of `schema`, or of the op's own schema if torch has the op. The ops of such a
    function may also be named as in torch_ir: "custom.gate", "aten.add.Tensor", "gate".
    """

    if not all(isinstance(cast("object", op), str) for op in ops):
        raise UsageError(
            "register_executor needs the names of the ops that the function runs",
            hint='Write @register_executor("namespace::op") above it.',
        )

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
        _check_mutates(entry, [] if lists else _parameters(function)[0])
        EXECUTORS.add(entry)
        return function

    return register


def _check_mutates(entry: UserExecutor, names: list[str]) -> None:
    """Raise UsageError if `mutates` contains a name that no argument has.

    The arguments are those of the schema or, without a schema, the parameters `names`.
    """
    if entry.schema is not None:
        names = [arg.name for arg in _spec("user::op", entry.schema).args]
    if (unknown := set(entry.mutates) - set(names)) and names:
        raise UsageError(f"{entry.place}: mutates={min(unknown)!r} does not name an argument", hint=f"It has {names}.")


def bind_executor(
    entry: UserExecutor, name: str, recorded: Sequence[RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...], str | None]:
    """Return arguments, assumptions and schema text for a user's callable. Raises Unbound if arguments do not fit."""
    note = entry.note
    specs = schemas_for(entry, name)
    if not specs:
        args, notes = (_inputs if entry.lists else _by_position)(entry, recorded, context, name)
        return args, (*notes, note), None
    match = best_match(specs, recorded)
    if match is None:
        wrong = OtherOverload if name in entry.overloads else Unbound
        raise wrong(
            Reason("failed", f"the recorded arguments do not match {schema_text(specs[0].text)} of {entry.shown}")
        )
    args, notes = bind(match, context, empty_lists=True)
    # A Python callable does not know the schema's defaults.
    for arg in match.spec.args[len(match.recorded) :]:
        args += (ReplayArg(name=arg.name, type=arg.kind, value=arg.default, keyword_only=arg.keyword_only),)
    return (as_lists(args) if entry.lists else args), (*notes, note), match.spec.text


def schemas_for(entry: UserExecutor, name: str) -> list[OpSpec]:
    """Return the schemas that name the arguments.

    They are the registered schema or, for a function (inputs, attrs), torch's schemas of the op. If the function was
    registered for one overload, only that overload is used. For all other callables, the result is empty, because their
    arguments have the names of their parameters.
    """
    if entry.schema is not None:
        return [_spec(name if "::" in name else f"user::{name}", entry.schema)]
    specs = specs_of(name) if entry.lists and "::" in name else ()
    return [spec for spec in specs if entry.overloads.get(name, spec.overload) == spec.overload]


def bind_by_name(
    entry: UserExecutor, positional: Sequence[RecordedArg], by_name: Mapping[str, RecordedArg], context: Context
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Return the arguments and the assumptions made for a call that a conversion returned; it named some of the
    arguments.

    Raises Unbound if a value is missing.
    """
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
    return (*args, *named), (*notes, entry.note)


def as_lists(args: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """Return the arguments for a function (inputs, attrs): all except tensors are passed by name."""
    return tuple(msgspec.structs.replace(arg, keyword_only=not arg.type.startswith("Tensor")) for arg in args)


def _inputs(
    entry: UserExecutor, recorded: Sequence[RecordedArg], context: Context, op: str
) -> tuple[tuple[ReplayArg, ...], list[Assumption]]:
    """Return the tensors for a function (inputs, attrs), in the recorded order, and the assumptions made.

    Raises Unbound if other values were recorded. The function needs their names, which a trace does not give.
    """
    others = [rec.value for rec in recorded if rec.kind in ("scalar", "scalars", "unknown")]
    if others:
        what = f"names of {', '.join(map(str, others[:4]))}, which {entry.shown} needs: register it with schema="
        raise Unbound(Reason("metadata missing", f'{what}"(Tensor x, float scale) -> Tensor"'))
    tensors = [rec for rec in recorded if rec.kind != "absent"]
    args, notes = _by_position(entry, tensors, context, op)
    if len(tensors) < len(recorded):
        notes.append(Assumption(argument="*", what="arguments that are empty in the trace are left out"))
    return args, notes


def _spec(name: str, schema: str) -> OpSpec:
    try:
        return compile_schema(parse_schema(f"{name}{schema.strip()}"))
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"{schema!r} is not a schema: {first}", hint="Write it like (Tensor x, int n=1) -> Tensor."
        ) from None


def _by_position(
    entry: UserExecutor, recorded: Sequence[RecordedArg], context: Context, op: str = ""
) -> tuple[tuple[ReplayArg, ...], list[Assumption]]:
    """Return the arguments in the recorded order under the callable's parameter names, and the assumptions made."""
    parameters = _signature(entry.function) or {}
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    notes: list[Assumption] = []
    args: list[ReplayArg] = []
    for place, (name, rec) in enumerate(zip(_names(entry, len(recorded)), recorded, strict=False)):
        if rec.kind == "absent" and _takes_a_list(op, place, parameters.get(name)):
            args.append(_unrecorded_list(name, args, context, notes))
            continue
        if rec.value is MISSING and isinstance(default := defaults.get(name), bool | int | float | str):
            rec = as_recorded(default)
            notes.append(Assumption(argument=name, what=f"{default!r} (default of {entry.shown})"))
        arg = _argument(name, rec, context, notes)
        args.append(msgspec.structs.replace(arg, mutated=name in entry.mutates))
    if any(rec.metas and not rec.strides_recorded for rec in recorded):
        notes.append(Assumption(argument="*", what="contiguous strides"))
    numbered, apart = aliasing.normalize_sharing(tuple(args))
    return numbered, [*notes, *apart]


def _takes_a_list(op: str, place: int, parameter: inspect.Parameter | None) -> bool:
    """Check whether an argument is a list of tensors that may be None.

    The op's schema shows this. If torch does not have the op, the annotation of the callable's parameter does.
    """
    if "::" in op and (specs := specs_of(op)):
        return any(place < len(spec.args) and spec.args[place].optional_elements for spec in specs)
    annotation: Any = None if parameter is None else parameter.annotation
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return _LIST_OF_OPTIONAL.search(text) is not None and not _OPTIONAL_LIST.search(text)


_LIST_OF_OPTIONAL = re.compile(r"\b(?:list|Sequence|Iterable|tuple)\b.*Tensor", re.IGNORECASE)
_OPTIONAL_LIST = re.compile(r"^\W*(?:typing\.)?Optional\b|\]\s*\|\s*None\W*$")


def _unrecorded_list(name: str, before: Sequence[ReplayArg], context: Context, notes: list[Assumption]) -> ReplayArg:
    """Return a tensor list about which nothing is recorded. It has the tensors that nested calls show, or is empty if
    they show none.
    """
    guess = lists.read_inside(Call({arg.name: arg for arg in before}), context)
    tensors = () if guess is None or guess.tensors is None else guess.tensors
    notes.append(Assumption(argument=name, what=NO_ELEMENTS if guess is None else guess.why))
    arg = ReplayArg(name=name, type="Tensor[]", tensors=tensors, value=None if tensors else ())
    return with_dtypes(arg, [context.float_dtype] * len(tensors))


def _names(entry: UserExecutor, count: int) -> list[str]:
    """Return names for at least `count` positional arguments. Raises Unbound if the callable takes fewer."""
    if entry.lists:
        return [f"input{i}" for i in range(count)]
    names, open_ended = _parameters(entry.function)
    if count > len(names) and not open_ended:
        raise Unbound(Reason("failed", f"{count} arguments were recorded, but {entry.shown} takes {len(names)}"))
    return names + [f"arg{i}" for i in range(len(names), count)]


def _tensor_argument(name: str, rec: RecordedArg, context: Context, notes: list[Assumption]) -> ReplayArg:
    """Return a tensor or tensor list as an argument; an unrecorded dtype becomes the trace's most frequent one."""
    if not all(meta is None or meta.dtype for meta in rec.metas):
        notes.append(Assumption(argument=name, what=f"{context.float_dtype}: the most frequent dtype of the trace"))
    kind = "Tensor" if rec.kind == "tensor" else "Tensor[]"
    arg = ReplayArg(name=name, type=kind, tensors=rec.metas, value=None if rec.metas else ())
    return with_dtypes(arg, [context.float_dtype] * len(rec.metas))


def _argument(name: str, rec: RecordedArg, context: Context, notes: list[Assumption]) -> ReplayArg:
    """Return a recorded argument under the callable's name for the argument. Raises Unbound if its value is missing."""
    if rec.kind == "tensors" and rec.tensors is None:
        raise Unbound(Reason("metadata missing", f"shapes of tensor list {name}"))
    if rec.kind in ("tensor", "tensors"):
        return _tensor_argument(name, rec, context, notes)
    if rec.kind == "absent":
        return ReplayArg(name=name, type="Tensor")
    if rec.value is MISSING:
        raise Unbound(Reason("metadata missing", f"value of {name}"))
    if rec.kind == "scalars":
        return ReplayArg(name=name, type=f"{_common_kind(rec.value)}[]", value=tuple(rec.value))
    return ReplayArg(name=name, type=_kind(rec.value), value=rec.value)


def _common_kind(values: Sequence[Any]) -> str:
    kinds = {_kind(value) for value in values} or {"int"}
    return kinds.pop() if len(kinds) == 1 else "Scalar"


def _kind(value: Any) -> str:
    """Return the IR type of a recorded number or string; complex and non-finite numbers are stored as strings."""
    if isinstance(value, str):
        try:
            complex(value)
        except ValueError:
            return "str"
    kinds: dict[object, str] = {bool: "bool", int: "int", float: "float"}
    return kinds.get(cast("object", type(value)), "Scalar")


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return a callable's parameters by name; None for a callable without a signature, such as a built-in function."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a callable's positional parameters, and whether it also takes any number of arguments."""
    signature = _signature(function)
    if signature is None:
        return [], True
    parameters = signature.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names, any(p.kind is p.VAR_POSITIONAL for p in parameters)


def takes_inputs_and_attrs(function: Callable[..., Any]) -> bool:
    """Check whether a callable takes (inputs, attrs). It must have two parameters, which are called `inputs` and
    `attrs` or of which the second is annotated as a dict.
    """
    signature = _signature(function) or {}
    if len(signature) != 2 or len(_parameters(function)[0]) != 2:
        return False
    if list(signature) == ["inputs", "attrs"]:
        return True
    annotation: Any = list(signature.values())[1].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") + repr(annotation)
    return re.search(r"\b(Dict|dict|Mapping)\b", text) is not None


def called_with_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function (inputs, attrs) so that it is called like other executors: tensors by position, everything else
    by name.

    The function gets all tensors in one list. Tensor lists are flattened, like the inputs of a node, and absent tensors
    are left out. Raises TypeError if the function returns anything but a list of tensors. Otherwise, a single tensor
    would be interpreted as a list of its rows.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **attrs: Any) -> list[Any]:
        present = {name: value for name, value in attrs.items() if value is not None}
        results: Any = function(list(_flat(tensors)), present)
        if not isinstance(results, (list, tuple)):
            raise TypeError(f"{function.__name__} returned {type(results).__name__}, but it must return a list")
        return list(cast("Sequence[Any]", results))

    return call


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(cast("Sequence[Any]", value))
        elif value is not None:
            yield value


def op_and_overload(name: str) -> tuple[str, str | None]:
    """Convert an op name in torch_ir's spelling to (op, overload).

    The overload is None if the name has none. "aten.add.Tensor" is ("aten::add", "Tensor"), "aten.conv2d.default" is
    ("aten::conv2d", ""), "custom.gate" is ("custom::gate", None). "gate" and "custom::gate" are returned as they are,
    with overload None.
    """
    match = _DOTTED.fullmatch(name)
    if match is None:
        return name, None
    return f"{match[1]}::{match[2]}", "" if match[3] == "default" else match[3]
