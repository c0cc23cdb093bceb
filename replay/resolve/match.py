# pyright: strict
"""Finds the overload that fits a recorded call best.

It is the one with the lowest sum of argument costs, not the first that matches. Defines the costs. `bind` determines
the argument values for the chosen overload.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from opreplay.replay.ir.recorded_call import CODES, MISSING, RecordedArg
from opreplay.replay.resolve.schema import ArgSpec, OpSpec

DEFAULTED_ARGUMENT = 0.5
"""Cost of an argument that was added to the schema since the recording."""
CHANGED_ARITY = 5.0
"""Cost of any difference in the number of arguments. It is so high that an overload with the recorded number wins if it
fits at all.
"""
SKIPPED_ARGUMENT = 0.1
"""Cost of a recorded entry before the first argument. Because of it, the longer one of two overloads that match the
last entries wins.
"""
SKIPPED_TO_OUT = 20.0
"""Cost of using an entry of an interpreter's stack as `out=`. It is high, because an entry before the first argument is
rarely an `out=`.
"""
DROPPED_ARGUMENT = 8.0
"""Cost of a recorded argument that the schema does not have."""

_COMPLEX = re.compile(r"[-+0-9.einfa]+j")
_DEVICE = re.compile(r"[a-z]+(:\d{1,3})?")
_CODES = {**{kind: len(names) for kind, names in CODES.items()}, "bool": 2}
"""Schema type → number of its codes. An integer is valid for the type if it is below this number."""
_SCALAR_LISTS = ("int[]", "float[]", "bool[]", "Scalar[]", "complex[]")
_IMPOSSIBLE = None


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """An overload and the cost of using it for a recorded call; 0 is an exact fit."""

    spec: OpSpec
    cost: float
    recorded: tuple[RecordedArg, ...]
    """The recorded arguments that belong to the overload, in its order; possibly fewer than it has."""
    skipped: int = 0
    """Number of recorded entries before the overload's first argument; they are skipped. TorchScript's interpreter
    records its whole stack, where the arguments come last.
    """
    dropped: int = 0
    """Number of recorded entries after the overload's last argument; they are dropped."""


def best_match(specs: Sequence[OpSpec], recorded: Sequence[RecordedArg], overload: str | None = None) -> Match | None:
    """Return the overload that fits best, or None if none fits.

    Of overloads with equal cost, it is the first in the dispatcher's order. `overload` is the overload name if the
    trace records it (an ExecutionTrace). If that overload fits, it is returned.
    """
    best: Match | None = None
    for spec in specs:
        match = match_overload(spec, recorded)
        if match is None:
            continue
        if overload is not None and spec.overload == overload:
            return match
        if best is None or match.cost < best.cost:
            best = match
    return best


def unknown_code(match: Match | None, specs: Sequence[OpSpec], recorded: Sequence[RecordedArg]) -> str | None:
    """Return why a recorded number is not a known code of a dtype, layout or memory format; None if the call has no
    unknown code.

    Newer versions of torch have more codes. A call with such a code matches the wrong overload: one that takes the
    number as a size or another number. An unknown code is recognised by this: if it were known, an overload with a code
    argument would fit better than `match`.
    """
    for spec in specs:
        codes = [
            (place, arg, rec.value)
            for place, (arg, rec) in enumerate(zip(spec.args, recorded, strict=False))
            if arg.kind in CODES and type(rec.value) is int and rec.value >= len(CODES[arg.kind])
        ]
        valid = list(recorded)
        for place, _, _ in codes:
            valid[place] = msgspec.structs.replace(valid[place], value=0)
        fit = match_overload(spec, valid) if codes else None
        if fit is not None and not fit.skipped and (match is None or fit.cost < match.cost):
            _, arg, code = codes[0]
            known = f"the last known code is {len(CODES[arg.kind]) - 1}"
            return f"{arg.name} is {code}, which is not a known {arg.kind} code ({known})"
    return None


def stack_rival(match: Match, specs: Sequence[OpSpec], recorded: Sequence[RecordedArg]) -> Match | None:
    """Return an alternative to a match with `out=`: an overload without `out=` that fits the last entries.

    An alternative may exist because TorchScript records its stack. A tensor before the first argument then looks like
    one more argument. Returns None if there is no alternative.
    """
    if match.skipped or not match.spec.has_out:
        return None
    rival = best_match([spec for spec in specs if not spec.has_out], recorded)
    return rival if rival is not None and rival.skipped else None


def text_rival(match: Match, specs: Sequence[OpSpec]) -> ArgSpec | None:
    """Return the unrecorded argument that is a string in another overload; None if no other overload has such a string.

    The two overloads cannot be told apart, because None and a string look the same in a trace.
    """
    for spec in specs:
        if spec == match.spec or len(spec.args) != len(match.spec.args) or _sum(spec, match.recorded) is None:
            continue
        for arg, other, rec in zip(match.spec.args, spec.args, match.recorded, strict=False):
            if rec.kind == "absent" and arg.kind != "str" and other.kind == "str":
                return arg
    return None


def match_overload(spec: OpSpec, recorded: Sequence[RecordedArg]) -> Match | None:
    """Match an overload to the recorded arguments; None if it does not fit.

    If fewer arguments were recorded than the overload has, they are its first ones. If more were recorded, the last
    ones are matched. If these do not fit and no tensor would be dropped, the first ones are matched.
    """
    wanted = len(spec.args)
    extra = len(recorded) - wanted
    if extra == 0:
        return _matched(spec, recorded, 0.0)
    if extra < 0:
        may_lack = all((arg.has_default or arg.optional) and not arg.out for arg in spec.args[extra:])
        return _matched(spec, recorded, CHANGED_ARITY - DEFAULTED_ARGUMENT * extra) if may_lack else None
    to_out = SKIPPED_TO_OUT * spec.has_out
    match = _matched(spec, recorded[extra:], CHANGED_ARITY + SKIPPED_ARGUMENT * extra + to_out, skipped=extra)
    # A dropped tensor would make another op of it.
    if match is not None or any(rec.kind in ("tensor", "tensors") for rec in recorded[wanted:]):
        return match
    return _matched(spec, recorded[:wanted], CHANGED_ARITY + DROPPED_ARGUMENT * extra, dropped=extra)


def _matched(
    spec: OpSpec, recorded: Sequence[RecordedArg], surcharge: float, *, skipped: int = 0, dropped: int = 0
) -> Match | None:
    cost = _sum(spec, recorded)
    if cost is None:
        return None
    return Match(spec=spec, cost=cost + surcharge, recorded=tuple(recorded), skipped=skipped, dropped=dropped)


def _sum(spec: OpSpec, recorded: Sequence[RecordedArg]) -> float | None:
    total = 0.0
    for arg, rec in zip(spec.args, recorded, strict=False):
        cost = _COSTS[rec.kind](arg, rec)
        if cost is None:
            return None
        total += cost
    return total


def _tensor_cost(arg: ArgSpec, rec: RecordedArg) -> float | None:
    if arg.kind == "Tensor":
        return 0.0
    # A wrapped number: Python's 2.0 became a 0-dim tensor on the way to a Tensor overload; a Scalar one also exists.
    if arg.kind == "Scalar" and rec.tensor is not None and rec.tensor.shape == ():
        return 6.0
    return _IMPOSSIBLE


def _tensors_cost(arg: ArgSpec, rec: RecordedArg) -> float | None:
    if arg.kind != "Tensor[]":
        return _IMPOSSIBLE
    if arg.size is not None and rec.tensors is not None and len(rec.tensors) != arg.size:
        return _IMPOSSIBLE
    return 0.5 if arg.optional_elements else 0.0


def _scalar_cost(arg: ArgSpec, rec: RecordedArg) -> float | None:
    kind, value = arg.kind, rec.value
    if value is MISSING:
        return _UNREAD_SCALAR.get(kind)
    if isinstance(value, bool):
        return {"bool": 0.0, "Scalar": 1.0, "int": 4.0}.get(kind, _IMPOSSIBLE)
    if isinstance(value, int):
        return _INT.get(kind, _IMPOSSIBLE) if kind not in _CODES or 0 <= value < _CODES[kind] else _IMPOSSIBLE
    if isinstance(value, float) or value in ("inf", "-inf", "nan"):
        return {"float": 0.0, "Scalar": 0.0, "complex": 2.0}.get(kind, _IMPOSSIBLE)
    return _text_cost(kind, value) if isinstance(value, str) else _IMPOSSIBLE


def _text_cost(kind: str, text: str) -> float | None:
    """Return the cost of passing a recorded string. The string is a complex number, or a device or string of an
    ExecutionTrace.
    """
    if kind in ("complex", "Scalar"):
        return {"complex": 0.0, "Scalar": 1.0}[kind] if text.endswith("j") and _COMPLEX.fullmatch(text) else None
    if kind == "Device":
        return 0.0 if _DEVICE.fullmatch(text) else _IMPOSSIBLE
    return 0.0 if kind == "str" else _IMPOSSIBLE


_INT: dict[str, float] = {
    **dict.fromkeys(("int", "ScalarType", "Layout", "MemoryFormat"), 0.0),
    "Scalar": 0.5,
    "float": 1.5,
    "bool": 3.0,
    "complex": 3.0,
    "int[]": 6.0,
}
"""Schema type → cost of passing a recorded integer."""
_UNREAD_SCALAR: dict[str, float] = {
    **dict.fromkeys(("int", "Scalar", "float", "bool", "ScalarType"), 0.0),
    "Layout": 0.2,
    "MemoryFormat": 0.2,
    "complex": 1.0,
}
"""Schema type → cost of passing a Scalar whose text was not recorded, so that its type is unknown."""


def _scalars_cost(arg: ArgSpec, rec: RecordedArg) -> float | None:
    kind, value = arg.kind, rec.value
    if kind == "Tensor[]" and value == ():
        return 1.0  # an empty list shows no type
    if value is MISSING or not value:
        return 0.0 if kind in _SCALAR_LISTS else _IMPOSSIBLE
    if all(isinstance(item, bool) for item in value):
        return {"bool[]": 0.0, "Scalar[]": 2.0}.get(kind, _IMPOSSIBLE)
    if all(isinstance(item, int) for item in value):  # int[2] is no fixed size: any length that fits the input will do
        return {"int[]": 0.0, "float[]": 1.0, "Scalar[]": 0.5, "complex[]": 2.0}.get(kind, _IMPOSSIBLE)
    return {"float[]": 0.0, "Scalar[]": 0.5, "complex[]": 2.0}.get(kind, _IMPOSSIBLE)


_ABSENT_COST: dict[str, float] = {
    **dict.fromkeys(("Generator", "str", "Device"), 0.0),
    **dict.fromkeys(("Layout", "MemoryFormat"), 0.5),
    "str[]": 1.0,
    "int[]": 2.0,
    "ScalarType": 4.0,
    "opaque": 5.0,
    **dict.fromkeys(("float[]", "bool[]", "Scalar[]", "complex[]"), 3.0),
    **dict.fromkeys(("Tensor", "Tensor[]"), 6.0),
    **dict.fromkeys(("int", "float", "bool", "Scalar", "complex"), 12.0),
}
"""Costs of matching an empty entry to an argument that does not accept None, by schema type.

An empty entry is likely for strings, devices and lists of more than 30 elements, which are never recorded. An undefined
tensor also looks like an empty entry. An empty number is unlikely.
"""


def _absent_cost(arg: ArgSpec, _rec: RecordedArg) -> float | None:
    if arg.optional:
        return 0.0
    if arg.kind == "Tensor[]" and arg.optional_elements:
        return 0.0
    return _ABSENT_COST.get(arg.kind, _IMPOSSIBLE)


def _unknown_cost(arg: ArgSpec, _rec: RecordedArg) -> float | None:
    return 1.0 if arg.kind in ("Tensor", "Tensor[]") and not arg.optional else 0.0


_COSTS: dict[str, Callable[[ArgSpec, RecordedArg], float | None]] = {
    "tensor": _tensor_cost,
    "tensors": _tensors_cost,
    "scalar": _scalar_cost,
    "scalars": _scalars_cost,
    "absent": _absent_cost,
    "unknown": _unknown_cost,
}
