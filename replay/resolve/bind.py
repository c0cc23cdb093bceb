# pyright: strict
"""From a matched overload and a recorded call to named arguments, with a note on everything that was filled in.

Owns the forms of values in the IR. Does not own the choice of overload (`match`) nor the guesses themselves
(`guess`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.model import Assumption, Reason, ReplayArg, Value
from opreplay.replay.ir.recorded_call import MISSING, RecordedArg
from opreplay.replay.ir.sizes import absurd_sizes
from opreplay.replay.resolve.match import Match
from opreplay.replay.resolve.policy import refuse_value
from opreplay.replay.resolve.schema import ArgSpec
from opreplay.traces.dtypes import SCALAR_TYPE_CODES
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta, beyond_memory

if TYPE_CHECKING:
    from opreplay.replay.resolve.guess.guess import Context, Guess

LAYOUT_CODES = (
    "torch.strided",
    "torch.sparse_coo",
    "torch.sparse_csr",
    "torch._mkldnn",
    "torch.sparse_csc",
    "torch.sparse_bsr",
    "torch.sparse_bsc",
    "torch.jagged",
)
"""By the integer that stands for a c10::Layout (c10/core/Layout.h)."""
MEMORY_FORMAT_CODES = (
    "torch.contiguous_format",
    "torch.preserve_format",
    "torch.channels_last",
    "torch.channels_last_3d",
)
"""By the integer that stands for a c10::MemoryFormat (c10/core/MemoryFormat.h)."""
_CODES = {
    "ScalarType": tuple(f"torch.{name}" for name in SCALAR_TYPE_CODES),
    "Layout": LAYOUT_CODES,
    "MemoryFormat": MEMORY_FORMAT_CODES,
}
UNSAFE = "unsafe"
"""The flag of `_index_put_impl_` and `segment_reduce`; the policy refuses True in a plan."""
COUNTS = {
    **dict.fromkeys(("offsets", "x_offsets", "y_offsets", "a_offsets"), ("int64", "offsets count rows")),
    "indices": ("int64", "what indexes is a whole number"),
    "state_steps": ("float32", "one step counter a parameter"),
}
"""Lists of tensors that have one element type, whatever the others have, and why."""
MESSAGES = frozenset({"assert_msg", "api_name"})
"""Texts that only an error shows; what a trace has for them is of no use here."""
QUANTIZED = frozenset({"qint8", "quint8", "qint32"})
"""Element types with a scale and a zero point, which no profiler records."""
_INT64 = range(-(2**63), 2**63)


class Unbound(Exception):
    """The call cannot be completed; carries the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


def bind(match: Match, context: Context) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """The arguments of the matched overload by name, in schema order, and what was assumed for them.

    Arguments that the schema has gained since the recording are left out: their defaults apply. Raises Unbound with
    reason "metadata missing", "layout not recorded" or "policy".
    """
    notes: list[Assumption] = _alignment_notes(match)
    pairs = list(zip(match.spec.args, match.recorded, strict=False))
    _refuse_layouts(pairs)
    bound: dict[str, ReplayArg] = {}
    open_: list[tuple[ArgSpec, RecordedArg]] = []
    for arg, rec in pairs:
        made = None if _may_be_a_list(arg, rec, context) else _known(arg, rec)
        if made is None:
            open_.append((arg, rec))
        else:
            bound[arg.name] = checking_bounds(made, notes)
    _complete_dtypes(match.spec.name, bound, pairs, context, notes)
    for arg, rec in open_:
        made, note = _guessed(arg, rec, match, bound, context)
        bound[arg.name] = made
        if note is not None:
            notes.append(Assumption(argument=arg.name, what=note))
    for arg in match.spec.args[len(match.recorded) :]:
        shown = "None" if arg.default is None else repr(arg.default)
        notes.append(Assumption(argument=arg.name, what=f"{shown}: added to the schema after the recording"))
    if any(not rec.strides_recorded and _has_shape(rec) for _, rec in pairs):
        notes.append(Assumption(argument="*", what="contiguous strides"))
    args = tuple(bound[arg.name] for arg, _ in pairs)
    if not all(meta is None or _is_possible(meta) for arg in args for meta in arg.tensors):
        raise Unbound(Reason("metadata missing", "a possible shape: a size or stride is negative or too large"))
    for arg in args:
        refused = refuse_value(arg.name, arg.value)
        if refused is not None:
            raise Unbound(refused)
    alike = aliasing.alike(args)
    if alike:
        notes.append(Assumption(argument="*", what=f"{', '.join(alike)} are taken for different tensors"))
    args, apart = aliasing.settle(args)
    return args, (*notes, *apart)


def _may_be_a_list(arg: ArgSpec, rec: RecordedArg, context: Context) -> bool:
    """Whether an optional list of numbers may have been given although nothing is recorded, as up to torch 1.12."""
    return rec.kind == "absent" and arg.optional and arg.kind.startswith("int[") and not context.number_lists_told


def _refuse_layouts(pairs: Sequence[tuple[ArgSpec, RecordedArg]]) -> None:
    """A tensor without strides where others have them is sparse, which says nothing of how full it is."""
    odd = next((arg.name for arg, rec in pairs if rec.unlike_strided), None)
    if odd is not None:
        raise Unbound(Reason("layout not recorded", f"{odd} has sizes and no strides: it is sparse or opaque"))
    for arg, rec in pairs:
        for meta in (rec.tensor, *(rec.tensors or ())):
            if meta is not None and meta.dtype in QUANTIZED:
                raise Unbound(Reason("metadata missing", f"scale of {arg.name}, a quantized tensor ({meta.dtype})"))


def unnamed_arguments(recorded: Sequence[RecordedArg], float_dtype: str) -> tuple[ReplayArg, ...]:
    """The arguments of a call that is not resolved, as arg0, arg1, ...: for its report and for a simulated device.

    `float_dtype` stands in for an element type that was not recorded. Tensors of impossible metadata, and values that
    were not recorded, are None, so that positions stay those of the call.
    """
    return aliasing.settle(tuple(_unnamed(i, rec, float_dtype) for i, rec in enumerate(recorded)))[0]


def _unnamed(i: int, rec: RecordedArg, float_dtype: str) -> ReplayArg:
    name = f"arg{i}"
    if rec.kind in ("tensor", "tensors"):
        metas = (rec.tensor,) if rec.kind == "tensor" else rec.tensors or ()
        typed = tuple(m if m is None or m.dtype else msgspec.structs.replace(m, dtype=float_dtype) for m in metas)
        if typed and all(m is None or _is_possible(m) for m in typed):
            return ReplayArg(name=name, type="Tensor" if rec.kind == "tensor" else "Tensor[]", tensors=typed)
    value = rec.value if rec.kind in ("scalar", "scalars") and rec.value is not MISSING else None
    if isinstance(value, int) and value not in _INT64:
        value = None
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        known = all(isinstance(one, bool | float | str) or (isinstance(one, int) and one in _INT64) for one in items)
        plain = items if items and known else None
        return ReplayArg(name=name, type=f"{_plain_type(plain[0])}[]" if plain else "Scalar", value=plain)
    return ReplayArg(name=name, type=_plain_type(value), value=value)


def _plain_type(value: object) -> str:
    """The schema type that a recorded value has by itself; "Scalar" for none."""
    if value in ("inf", "-inf", "nan"):
        return "float"
    return type(value).__name__ if isinstance(value, bool | int | float | str) else "Scalar"


def _is_possible(meta: TensorMeta) -> bool:
    numbers = (*meta.shape, *(meta.strides or ()), meta.storage_offset)
    return len(meta.shape) <= MAX_RANK and all(0 <= n < 2**63 for n in numbers) and not beyond_memory(meta)


def refuse_absurd(recorded: Sequence[RecordedArg]) -> None:
    """Raises Unbound for a tensor of more elements than any memory holds."""
    for place, rec in enumerate(recorded):
        for meta in (rec.tensor,) if rec.tensor is not None else rec.tensors or ():
            if meta is not None and beyond_memory(meta):
                raise Unbound(absurd_sizes(f"argument {place}", meta.shape))


def _alignment_notes(match: Match) -> list[Assumption]:
    notes: list[Assumption] = []
    if match.skipped:
        notes.append(
            Assumption(argument="*", what=f"the last {len(match.recorded)} recorded entries are the arguments")
        )
    if match.dropped:
        notes.append(Assumption(argument="*", what=f"the last {match.dropped} recorded entries are no arguments here"))
    return notes


def _has_shape(rec: RecordedArg) -> bool:
    if rec.tensor is not None:
        return bool(rec.tensor.shape)
    return bool(rec.tensors) and any(meta is not None and meta.shape for meta in rec.tensors or ())


def _make(arg: ArgSpec, *, tensors: tuple[TensorMeta | None, ...] = (), value: Value = None) -> ReplayArg:
    return ReplayArg(
        name=arg.name, type=arg.kind, tensors=tensors, value=value, keyword_only=arg.keyword_only, mutated=arg.mutated
    )


def _known(arg: ArgSpec, rec: RecordedArg) -> ReplayArg | None:
    """The argument where the trace says it in full; None where something has to be filled in."""
    if rec.kind == "tensor":
        return _make(arg, tensors=(rec.tensor,)) if arg.kind == "Tensor" else None
    if rec.kind == "tensors":
        if rec.tensors is None:
            return None
        return _make(arg, tensors=rec.tensors, value=None if rec.tensors else ())
    if rec.kind == "scalar" and arg.name in MESSAGES:
        return None
    if rec.kind in ("scalar", "scalars") and rec.value is not MISSING:
        return _make(arg, value=encode(arg, rec.value))
    if rec.kind == "absent" and arg.optional and arg.kind not in ("str", "Device"):
        return _make(arg)
    return None


def encode(arg: ArgSpec, value: Value) -> Value:
    """A recorded plain value in the form that the IR has for this type."""
    codes = _CODES.get(arg.kind)
    if codes is not None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(codes):
            return codes[value]
        return value
    if arg.kind == "bool":
        return bool(value)
    if arg.kind.endswith("[]"):
        items = value if isinstance(value, tuple) else (value,)
        for item in items:
            _check_int(arg, item)
        return items
    _check_int(arg, value)
    if arg.kind == "int" and isinstance(value, bool):
        return int(value)
    return value


def checking_bounds(arg: ReplayArg, notes: list[Assumption]) -> ReplayArg:
    """A flag that lets an op skip its checks of bounds is never set: the same work is done with them."""
    if arg.name != UNSAFE or arg.value is not True:
        return arg
    notes.append(Assumption(argument=UNSAFE, what="False: recorded was True, which leaves out checks of bounds"))
    return msgspec.structs.replace(arg, value=False)


def _check_int(arg: ArgSpec, value: object) -> None:
    if isinstance(value, int) and value not in _INT64:
        raise Unbound(Reason("metadata missing", f"argument {arg.name} is no 64-bit integer"))


def _complete_dtypes(
    name: str,
    bound: dict[str, ReplayArg],
    pairs: Sequence[tuple[ArgSpec, RecordedArg]],
    context: Context,
    notes: list[Assumption],
) -> None:
    """Fill in element types that were not recorded: those of a tensor list are not."""
    # Guesses are many rules, which a plan that is kept needs none of.
    from opreplay.replay.resolve.guess import guess as inference
    from opreplay.replay.resolve.guess import lists

    siblings = [m.dtype for a in bound.values() if a.type == "Tensor" for m in a.tensors if m is not None and m.dtype]
    for arg, rec in pairs:
        made = bound.get(arg.name)
        if made is None or (rec.list_dtypes_known and (rec.tensor is None or rec.tensor.dtype)):
            continue
        shapes = [meta.shape for meta in made.tensors if meta is not None]
        told = None
        if arg.kind == "Tensor[]" and arg.name not in COUNTS and len(shapes) == len(made.tensors):
            told = lists.element_types(shapes, name.partition("::")[2], bound, context)
        if told is not None:
            dtypes, why = told
        else:
            dtype, why = COUNTS.get(arg.name) or inference.list_dtype(siblings, context)
            dtypes = (dtype,) * len(made.tensors)
        bound[arg.name] = _with_dtypes(made, dtypes)
        notes.append(Assumption(argument=arg.name, what=f"{', '.join(dict.fromkeys(dtypes))}: {why}"))


def _guessed(
    arg: ArgSpec, rec: RecordedArg, match: Match, bound: dict[str, ReplayArg], context: Context
) -> tuple[ReplayArg, str | None]:
    """An argument whose value the trace does not hold, and the note on it."""
    from opreplay.replay.resolve.guess import guess as inference
    from opreplay.replay.resolve.guess import lists

    if rec.kind == "absent" and arg.kind == "Tensor" and not arg.optional and arg == match.spec.args[0]:
        raise Unbound(Reason("metadata missing", f"shape of {arg.name} (nested and undefined tensors have none)"))
    guess = None
    if not (arg.optional and arg.kind == "MemoryFormat" and rec.kind == "unknown"):  # it may as well be None
        guess = inference.guess(match.spec, arg, bound, context)
    if guess is None and arg.optional:
        return _make(arg), "None: the recorded value is not known" if rec.value is MISSING else None
    if guess is None:
        what = "shapes of tensor list" if arg.kind == "Tensor[]" else "value of"
        why = f"{lists.TOO_LONG}, and an empty one looks the same; an ExecutionTrace has it: --execution-trace"
        more = f" ({why})" if _is_long(rec, context) else ""
        raise Unbound(Reason("metadata missing", f"{what} {arg.name}{more}"))
    made = _from_guess(arg, guess)
    if _is_long(rec, context):
        guess = replace(guess, why=guess.why + _told_apart(context))
    if all(meta is None or meta.dtype for meta in made.tensors):
        return made, guess.why
    siblings = [m.dtype for a in bound.values() for m in a.tensors if m is not None and m.dtype]
    dtype, why = inference.list_dtype(siblings, context)
    return _with_dtypes(made, (dtype,) * len(made.tensors)), f"{guess.why}; {dtype}: {why}"


def _is_long(rec: RecordedArg, context: Context) -> bool:
    """Whether a list was left out for its length."""
    return rec.kind == "tensors" and rec.tensors is None and context.lists_recorded


def _told_apart(context: Context) -> str:
    if context.calls < 2:
        return ""
    return f"; {context.calls} calls count as this op, whether or not their lists are equal: --execution-trace tells"


def _with_dtypes(arg: ReplayArg, dtypes: Sequence[str]) -> ReplayArg:
    """The argument with `dtypes`, one a tensor, for those whose element type is open."""
    tensors = tuple(
        meta if meta is None or meta.dtype else msgspec.structs.replace(meta, dtype=dtype)
        for meta, dtype in zip(arg.tensors, dtypes, strict=True)
    )
    return msgspec.structs.replace(arg, tensors=tensors)


def _from_guess(arg: ArgSpec, guess: Guess) -> ReplayArg:
    if guess.tensors is not None:
        # A tensor like another one is not the same memory.
        made = tuple(m and msgspec.structs.replace(m, storage=None) for m in guess.tensors)
        return _make(arg, tensors=made, value=None if made else ())
    if arg.kind in ("Tensor", "Tensor[]"):
        return _make(arg)
    return _make(arg, value=encode(arg, guess.value))


def named(kind: str, value: Value) -> Value:
    """A value for an argument of type `kind`: the code of an enumeration by name, all else as it is."""
    codes = _CODES.get(kind)
    return codes[value] if codes is not None and type(value) is int and 0 <= value < len(codes) else value
