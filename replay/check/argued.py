# pyright: strict
"""The case with other arguments beside its tensors: numbers, flags, dtypes, tensors that may be left out, lists.

An op that takes an argument and ignores it is right as long as nobody gives another value than the default.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from opreplay.replay.check.cases import Case, Trait, argument, completed, replaced
from opreplay.replay.ir.model import ReplayArg, Value
from opreplay.replay.resolve.schema import ArgSpec, OpSpec
from opreplay.traces.model import TensorMeta

MOST = 48
"""Cases of other arguments."""
LENGTHS = (1, 3, 5)
"""Of lists of tensors."""
_NEVER = ("device", "pin_memory", "layout", "memory_format", "generator", "inplace", "out")
"""Arguments that say where a result lies, not what it is."""


def argued(case: Case, spec: OpSpec) -> Iterator[Case]:
    """The case with one argument after the other changed; what the reference refuses says nothing."""
    changed = [arg for arg in spec.args if arg.name not in _NEVER and not arg.mutated and not arg.out]
    yield from itertools.islice(itertools.chain.from_iterable(_with_other(case, spec, arg) for arg in changed), MOST)
    lists = [arg for arg in case.op.args if arg.type == "Tensor[]" and arg.tensors]
    lengths = {len(arg.tensors) for arg in lists}
    for length in LENGTHS if len(lengths) == 1 else ():
        if length not in lengths:
            args = tuple(
                msgspec.structs.replace(arg, tensors=(arg.tensors * length)[:length]) if arg in lists else arg
                for arg in case.op.args
            )
            yield replaced(case, f"{length} in a list", args)


def _with_other(case: Case, spec: OpSpec, arg: ArgSpec) -> Iterator[Case]:
    """The case with one argument changed."""
    by_name = {before.name: before for before in case.op.args}
    before = by_name.get(arg.name)

    def with_argument(kind: str, changed: ReplayArg, trait: Trait | None = None) -> Case:
        return replaced(case, kind, completed(spec, [*{**by_name, arg.name: changed}.values()]), trait)

    if arg.kind != "Tensor":
        for value in _values(arg, arg.default if before is None else before.value):
            shown = str(value).removeprefix("torch.")
            yield with_argument(f"{arg.name}={shown}", argument(arg, value=value), "value")
    elif arg.optional and before is not None and any(before.tensors):
        yield with_argument(f"without {arg.name}", argument(arg))
    elif arg.optional:
        for meta in _shapes(case):
            yield with_argument(f"with {arg.name}", argument(arg, tensors=(meta,)))


def _shapes(case: Case) -> Iterator[TensorMeta]:
    """What a tensor that was left out may look like: the last dimension of the first one, all of it, its first."""
    first = next((meta for arg in case.op.args for meta in arg.tensors if meta is not None), None)
    if first is None:
        return
    for shape in dict.fromkeys((first.shape[-1:], first.shape, first.shape[:1])):
        for dtype in (first.dtype, "bool"):
            yield TensorMeta(shape=shape, dtype=dtype)


def _values(spec: ArgSpec, now: Value) -> Sequence[Value]:
    """Values of an argument's type that are not the one that it has."""
    # A negative number is a place from the end, or nothing that anybody means.
    last = (-1,) if spec.name.startswith(("dim", "axis")) else ()
    tried: dict[str, Sequence[Value]] = {
        "int": (0, 1, 2, *last) if type(now) is not int else (now + 1, 0, 1, *last),
        "Scalar": (2, 0, -1, 2.5),
        "float": (2.5, 0.0, 0.125, -0.75),
        "int[]": ((0,), (-1,)),
        "ScalarType": ("torch.float64", "torch.float32", "torch.bfloat16"),
    }
    if isinstance(now, bool) or spec.kind == "bool":
        return [not now]
    if spec.kind == "int[]" and isinstance(now, tuple):
        whole = tuple(item for item in now if type(item) is int)
        more, less = tuple(item + 1 for item in whole), tuple(item - 1 for item in whole)
        tried["int[]"] = (more, less, whole[::-1], whole[:1])
    return [value for value in tried.get(spec.kind, ()) if value != now or type(value) is not type(now)]
