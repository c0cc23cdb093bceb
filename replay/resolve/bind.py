# pyright: strict
"""Binds a recorded call to the named arguments of a matched overload, and notes each value that was filled in.

Defines how values are represented in the IR. `match` chooses the overload, `guess` makes the guesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from opreplay.replay.ir import shared_memory as aliasing
from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import Assumption, Reason, ReplayArg, Value
from opreplay.replay.ir.reasons import IMPOSSIBLE_SHAPE
from opreplay.replay.ir.recorded_call import CODES, MISSING, RecordedArg
from opreplay.replay.ir.sizes import absurd_sizes
from opreplay.replay.resolve.match import Match
from opreplay.replay.resolve.policy import refuse_value
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.dtypes import QUANTIZED
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta, beyond_memory

if TYPE_CHECKING:
    from opreplay.replay.resolve.guess.guess import Context, Guess

UNSAFE = "unsafe"
"""Flag of `_index_put_impl_` and `segment_reduce` that skips bounds checks; the policy forbids True in a plan."""
COUNTS = {
    **dict.fromkeys(("offsets", "x_offsets", "y_offsets", "a_offsets"), ("int64", "offsets count rows")),
    "indices": ("int64", "indices are integers"),
    "state_steps": ("float32", "one step counter per parameter"),
}
"""Dtypes of the tensor lists whose dtype does not depend on other arguments, as name → (dtype, reason)."""
MESSAGES = frozenset({"assert_msg", "api_name"})
"""Text arguments that appear only in error messages. For this reason, their recorded values are not needed."""
_INT64 = range(-(2**63), 2**63)


class Unbound(Exception):
    """Raised if the arguments of a call cannot be completed; carries the reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


NO_ELEMENTS = "[]: torch's profiler does not record the elements of a list that may hold None"


def bind(
    match: Match, context: Context, *, empty_lists: bool = False
) -> tuple[tuple[ReplayArg, ...], tuple[Assumption, ...]]:
    """Return the arguments of the matched overload in schema order, and the assumptions made for them.

    Arguments that were added to the schema after the recording are left out, so that their defaults apply. With
    `empty_lists`, a `Tensor?[]` is assumed to be empty if nothing is known about it. Raises Unbound with reason
    "metadata missing", "layout not recorded" or "policy".
    """
    notes: list[Assumption] = _alignment_notes(match)
    pairs = list(zip(match.spec.args, match.recorded, strict=False))
    _refuse_layouts(pairs)
    bound = Call()
    for arg, rec in pairs:
        recorded = None if _may_be_a_list(arg, rec, context) else _known(arg, rec)
        if recorded is not None:
            bound[arg.name] = checking_bounds(recorded, notes)
    _complete_dtypes(match.spec, bound, context, notes)
    for arg, rec in pairs:
        if arg.name not in bound:
            try:
                bound[arg.name], note = _guessed(arg, rec, match, bound, context)
            except Unbound:
                if not empty_lists or not (arg.kind == "Tensor[]" and arg.optional_elements):
                    raise
                bound[arg.name], note = _with_tensors(arg, ()), NO_ELEMENTS
            if note is not None:
                notes.append(Assumption(argument=arg.name, what=note))
    notes += _defaults_and_strides(match)
    args = tuple(bound[arg.name] for arg, _ in pairs)
    _refuse_values(args)
    alike = aliasing.possibly_same_tensor(args)
    if alike:
        notes.append(Assumption(argument="*", what=f"{', '.join(alike)} are assumed to be different tensors"))
    args, apart = aliasing.normalize_sharing(args)
    return args, (*notes, *apart)


def _may_be_a_list(arg: ArgSpec, rec: RecordedArg, context: Context) -> bool:
    """Check whether an optional list of numbers may have been passed although none is recorded. Traces of torch up to
    1.12 do not record such lists.
    """
    return rec.kind == "absent" and arg.optional and arg.kind.startswith("int[") and not context.number_lists_told


def _refuse_layouts(pairs: Sequence[tuple[ArgSpec, RecordedArg]]) -> None:
    """Raise Unbound for tensors whose layout is not recorded.

    A tensor without strides among tensors with strides is sparse, and its number of elements is unknown. The scale of a
    quantized tensor is not recorded.
    """
    odd = next((arg.name for arg, rec in pairs if rec.unlike_strided), None)
    if odd is not None:
        raise Unbound(Reason("layout not recorded", f"{odd} has sizes but no strides: it is sparse or opaque"))
    for arg, rec in pairs:
        for meta in rec.metas:
            if meta is not None and meta.dtype in QUANTIZED:
                raise Unbound(Reason("metadata missing", f"scale of {arg.name}, a quantized tensor ({meta.dtype})"))


def _refuse_values(args: Sequence[ReplayArg]) -> None:
    """Raise Unbound for a tensor with impossible metadata or a value that the policy does not allow."""
    if not all(_is_possible(meta) for arg in args for meta in arg.tensors):
        raise Unbound(Reason("metadata missing", f"{IMPOSSIBLE_SHAPE}: a size or stride is negative or too large"))
    for arg in args:
        if (reason := refuse_value(arg.name, arg.value)) is not None:
            raise Unbound(reason)


def unnamed_arguments(recorded: Sequence[RecordedArg], float_dtype: str) -> tuple[ReplayArg, ...]:
    """Return the arguments of an unresolved call as arg0, arg1, ..., for reports and simulated devices.

    `float_dtype` replaces a dtype that was not recorded. Tensors with impossible metadata and unrecorded values become
    None. They are not left out, so that the numbers in the names are the recorded positions.
    """
    return aliasing.normalize_sharing(tuple(_unnamed(i, rec, float_dtype) for i, rec in enumerate(recorded)))[0]


def _unnamed(i: int, rec: RecordedArg, float_dtype: str) -> ReplayArg:
    name = f"arg{i}"
    if rec.metas and all(_is_possible(meta) for meta in rec.metas):
        arg = ReplayArg(name=name, type="Tensor" if rec.kind == "tensor" else "Tensor[]", tensors=rec.metas)
        return with_dtypes(arg, [float_dtype] * len(rec.metas))
    value = cast("Value", rec.value)
    items = value if isinstance(value, tuple) else (value,)
    types = [_plain_type(item) for item in items]
    if not types or "" in types:
        return ReplayArg(name=name, type="Scalar")
    return ReplayArg(name=name, type=f"{types[0]}[]" if isinstance(value, tuple) else types[0], value=value)


def _plain_type(value: object) -> str:
    """Return the schema type of a single recorded value.

    It is "" for MISSING, for nested lists, and for integers that are too large.
    """
    if value in ("inf", "-inf", "nan"):
        return "float"
    is_plain = isinstance(value, bool | float | str) or (isinstance(value, int) and value in _INT64)
    return type(value).__name__ if is_plain else ""


def _is_possible(meta: TensorMeta | None) -> bool:
    if meta is None:
        return True
    numbers = (*meta.shape, *(meta.strides or ()), meta.storage_offset)
    return len(meta.shape) <= MAX_RANK and all(0 <= n < 2**63 for n in numbers) and not beyond_memory(meta)


def refuse_absurd(recorded: Sequence[RecordedArg]) -> None:
    """Raise Unbound for a tensor with more elements than any memory holds."""
    for place, rec in enumerate(recorded):
        for meta in rec.metas:
            if meta is not None and beyond_memory(meta):
                raise Unbound(absurd_sizes(f"argument {place}", meta.shape))


def _alignment_notes(match: Match) -> list[Assumption]:
    notes: list[Assumption] = []
    if match.skipped:
        notes.append(
            Assumption(argument="*", what=f"the last {len(match.recorded)} recorded entries are the arguments")
        )
    if match.dropped:
        notes.append(
            Assumption(argument="*", what=f"the last {match.dropped} recorded entries are not arguments of this op")
        )
    return notes


def _defaults_and_strides(match: Match) -> list[Assumption]:
    """Return notes on arguments added to the schema after the recording, and on strides that were not recorded."""
    notes = [
        Assumption(argument=arg.name, what=f"{arg.default!r}: added to the schema after the recording")
        for arg in match.spec.args[len(match.recorded) :]
    ]
    metas = (meta for rec in match.recorded if not rec.strides_recorded for meta in rec.metas)
    if any(meta is not None and meta.shape for meta in metas):
        notes.append(Assumption(argument="*", what="contiguous strides"))
    return notes


def argument_of(
    arg: ArgSpec, *, kind: str | None = None, tensors: tuple[TensorMeta | None, ...] = (), value: Value = None
) -> ReplayArg:
    """Return the IR argument for a schema argument; `kind` is its IR type if that differs from the schema's."""
    return ReplayArg(
        name=arg.name,
        type=kind or arg.kind,
        tensors=tensors,
        value=value,
        keyword_only=arg.keyword_only,
        mutated=arg.mutated,
    )


def _with_tensors(arg: ArgSpec, tensors: tuple[TensorMeta | None, ...]) -> ReplayArg:
    """Return the IR argument with these tensors; an empty list has the value (), an absent one None."""
    return argument_of(arg, tensors=tensors, value=None if tensors else ())


def _known(arg: ArgSpec, rec: RecordedArg) -> ReplayArg | None:
    """Return the IR argument if the trace records it completely; None if something must be filled in."""
    if rec.kind == "tensor":
        return _with_tensors(arg, rec.metas) if arg.kind == "Tensor" else None
    if rec.kind == "tensors":
        return None if rec.tensors is None else _with_tensors(arg, rec.tensors)
    if rec.kind == "absent":
        return argument_of(arg) if arg.optional and arg.kind not in ("str", "Device") else None
    return None if rec.value is MISSING or arg.name in MESSAGES else argument_of(arg, value=encode(arg, rec.value))


def encode(arg: ArgSpec, value: Value) -> Value:
    """Encode a recorded plain value in the IR's form for this type. Raises Unbound for an integer beyond 64 bits."""
    if arg.kind in CODES:
        return decode_enum(arg.kind, value)
    if arg.kind == "bool":
        return bool(value)
    items = value if isinstance(value, tuple) else (value,)
    if any(isinstance(item, int) and item not in _INT64 for item in items):
        raise Unbound(Reason("metadata missing", f"argument {arg.name} is not a 64-bit integer"))
    if arg.kind.endswith("[]"):
        return items
    return int(value) if arg.kind == "int" and isinstance(value, bool) else value


def decode_enum(kind: str, value: Value) -> Value:
    """Return a value for an argument of type `kind`: enumeration codes become names, other values stay unchanged."""
    codes = CODES.get(kind, ())
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(codes):
        return codes[value]
    return value


def checking_bounds(arg: ReplayArg, notes: list[Assumption]) -> ReplayArg:
    """Clear a flag that lets an op skip its bounds checks, and add a note. The op does the same work with the
    checks.
    """
    if arg.name != UNSAFE or arg.value is not True:
        return arg
    notes.append(Assumption(argument=UNSAFE, what="False: the recorded True skips bounds checks"))
    return msgspec.structs.replace(arg, value=False)


def _complete_dtypes(spec: OpSpec, bound: Call, context: Context, notes: list[Assumption]) -> None:
    """Fill in the dtypes that were not recorded, e.g. of a tensor list, and add notes."""
    # Guesses are many rules, which a plan that is kept needs none of.
    from opreplay.replay.resolve.guess import guess as inference
    from opreplay.replay.resolve.guess import lists

    siblings = _known_dtypes(arg for arg in bound.values() if arg.type == "Tensor")
    for name, arg in bound.items():
        if _has_dtypes(arg):
            continue
        shapes = [meta.shape for meta in arg.tensors if meta is not None]
        by_shapes = None
        if arg.type == "Tensor[]" and name not in COUNTS and len(shapes) == len(arg.tensors):
            by_shapes = lists.element_types(shapes, spec, name, bound, context)
        if by_shapes is not None:
            dtypes, why = by_shapes
        else:
            dtype, why = COUNTS.get(name) or inference.list_dtype(name, siblings, context)
            dtypes = (dtype,) * len(arg.tensors)
        bound[name] = with_dtypes(arg, dtypes)
        notes.append(Assumption(argument=name, what=f"{', '.join(dict.fromkeys(dtypes))}: {why}"))


def _known_dtypes(args: Iterable[ReplayArg]) -> list[str]:
    return [meta.dtype for arg in args for meta in arg.tensors if meta is not None and meta.dtype]


def _has_dtypes(arg: ReplayArg) -> bool:
    return all(meta is None or meta.dtype for meta in arg.tensors)


def _guessed(
    arg: ArgSpec, rec: RecordedArg, match: Match, bound: Call, context: Context
) -> tuple[ReplayArg, str | None]:
    """Return a guess for an argument whose value is not in the trace, and a note on the guess.

    Raises Unbound if the value cannot be guessed.
    """
    from opreplay.replay.resolve.guess import guess as inference

    if arg == match.spec.args[0] and _is_undefined(arg, rec):
        raise Unbound(Reason("metadata missing", f"shape of {arg.name} (nested and undefined tensors have none)"))
    guess = None
    if not (arg.optional and arg.kind == "MemoryFormat" and rec.kind == "unknown"):  # it may as well be None
        guess = inference.guess(match.spec, arg, bound, context)
    if guess is None:
        return _not_guessed(arg, rec, context)
    completed, why = _from_guess(arg, guess), guess.why
    if _is_long(rec, context) and context.calls > 1:
        calls = f"{context.calls} calls are grouped as this op"
        why += f"; {calls}, although their lists may differ; an ExecutionTrace records the lists (--execution-trace)"
    if _has_dtypes(completed):
        return completed, why
    dtype, why_dtype = inference.list_dtype(arg.name, _known_dtypes(bound.values()), context)
    return with_dtypes(completed, (dtype,) * len(completed.tensors)), f"{why}; {dtype}: {why_dtype}"


def _is_undefined(arg: ArgSpec, rec: RecordedArg) -> bool:
    """Check whether nothing is recorded for a required tensor argument."""
    return rec.kind == "absent" and arg.kind == "Tensor" and not arg.optional


def _not_guessed(arg: ArgSpec, rec: RecordedArg, context: Context) -> tuple[ReplayArg, str | None]:
    """Return None as the value of an optional argument, and a note on this value. Raises Unbound for a required
    argument.
    """
    from opreplay.replay.resolve.guess import lists

    if arg.optional:
        return argument_of(arg), "None: the recorded value is unknown" if rec.value is MISSING else None
    what = "shapes of tensor list" if arg.kind == "Tensor[]" else "value of"
    why = f"{lists.TOO_LONG}, and an empty one looks the same; an ExecutionTrace records it: --execution-trace"
    more = f" ({why})" if _is_long(rec, context) else ""
    raise Unbound(Reason("metadata missing", f"{what} {arg.name}{more}"))


def _is_long(rec: RecordedArg, context: Context) -> bool:
    """Check whether the recording lacks a tensor list because the list is too long."""
    return rec.kind == "tensors" and rec.tensors is None and context.lists_recorded


def with_dtypes(arg: ReplayArg, dtypes: Sequence[str]) -> ReplayArg:
    """Return the argument with unknown dtypes of its tensors filled in from `dtypes`, one per tensor."""
    tensors = tuple(
        meta if meta is None or meta.dtype else msgspec.structs.replace(meta, dtype=dtype)
        for meta, dtype in zip(arg.tensors, dtypes, strict=True)
    )
    return msgspec.structs.replace(arg, tensors=tensors)


def _from_guess(arg: ArgSpec, guess: Guess) -> ReplayArg:
    if guess.tensors is not None:
        # A tensor like another one is not the same memory.
        return _with_tensors(arg, tuple(meta and msgspec.structs.replace(meta, storage=None) for meta in guess.tensors))
    if arg.kind in ("Tensor", "Tensor[]"):
        return argument_of(arg)
    return argument_of(arg, value=encode(arg, guess.value))
