# pyright: strict
"""The case with other arguments beside its tensors: numbers, flags, dtypes, tensors that may be left out, lists.

An op that takes an argument and ignores it is right as long as nobody gives another value than the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from opreplay.replay.check.cases import Case, completed, replaced
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
    made = 0
    given = {arg.name: arg for arg in case.op.args}
    for one in spec.args:
        if one.name in _NEVER or one.mutated or one.out:
            continue
        for kind, arg in _others(one, given.get(one.name), case):
            args = completed(spec, list({**given, one.name: arg}.values()))
            yield replaced(case, kind, args)
            made += 1
            if made == MOST:
                return
    lists = [arg for arg in case.op.args if arg.type == "Tensor[]" and arg.tensors]
    for length in LENGTHS if lists and len({len(arg.tensors) for arg in lists}) == 1 else ():
        if length != len(lists[0].tensors):
            yield replaced(case, f"{length} in a list", tuple(_of_length(arg, length) for arg in case.op.args))


def _of_length(arg: ReplayArg, length: int) -> ReplayArg:
    if arg.type != "Tensor[]" or not arg.tensors:
        return arg
    metas = (arg.tensors * length)[:length]
    # Memory that the first ones share is theirs alone.
    return msgspec.structs.replace(arg, tensors=metas)


def _others(spec: ArgSpec, given: ReplayArg | None, case: Case) -> Iterator[tuple[str, ReplayArg]]:
    """Other values for one argument, with what they are called."""
    if spec.kind == "Tensor":
        if not spec.optional:
            return
        if given is not None and given.tensors and given.tensors[0] is not None:
            yield f"without {spec.name}", ReplayArg(name=spec.name, type=spec.kind, keyword_only=spec.keyword_only)
            return
        for meta in _shapes(case):
            made = ReplayArg(name=spec.name, type=spec.kind, tensors=(meta,), keyword_only=spec.keyword_only)
            yield f"with {spec.name}", made
        return
    now = given.value if given is not None else spec.default
    for value in _values(spec, now):
        shown = str(value).removeprefix("torch.")
        yield (
            f"{spec.name}={shown}",
            ReplayArg(name=spec.name, type=spec.kind, value=value, keyword_only=spec.keyword_only),
        )


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
    tried: Sequence[Value]
    if spec.kind == "bool" or isinstance(now, bool):
        tried = (not now,)
    elif spec.kind == "int":
        # A negative number is a place from the end, or nothing that anybody means.
        last = (-1,) if spec.name.startswith(("dim", "axis")) else ()
        tried = (0, 1, 2, *last) if type(now) is not int else (now + 1, 0, 1, *last)
    elif spec.kind == "Scalar":
        tried = (2, 0, -1, 2.5)
    elif spec.kind == "float":
        tried = (2.5, 0.0, 0.125, -0.75)
    elif spec.kind == "int[]" and isinstance(now, tuple):
        whole = tuple(item for item in now if type(item) is int)
        tried = (
            tuple(item + 1 for item in whole),
            tuple(item - 1 for item in whole),
            tuple(reversed(whole)),
            whole[:1],
        )
    elif spec.kind == "int[]":
        tried = ((0,), (-1,))
    elif spec.kind == "ScalarType":
        tried = ("torch.float64", "torch.float32", "torch.bfloat16")
    else:
        tried = ()
    return [value for value in tried if value != now or type(value) is not type(now)]
