"""The functions of the tile language in the versions used while a program is emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from opreplay.replay import tile as language_module
from opreplay.replay.tile import vocabulary as language
from opreplay.replay.tile.emit.values import TRACER, Block, Cell, Half, Ref, Refused, Tile, triton_dtype
from opreplay.replay.tile.language.instructions import COMPARE, STATISTICS, VECTOR, Statistic
from opreplay.replay.tile.language.memory import Each


def _compare(a: Tile, how: str, b: Any) -> Tile:
    if how not in COMPARE:
        raise Refused(f"{how!r} compares nothing")
    return TRACER.get().computed(f"{{}} {how} {{}}", (a, b), "bool")


def _where(mask: Tile, a: Tile, b: Any) -> Tile:
    return TRACER.get().computed(VECTOR["select"].triton, (mask, a, b), a.dtype)


def _full(shape: Sequence[Any], value: Any, dtype: Any = "float32") -> Tile:
    tracer = TRACER.get()
    named = f"{dtype.origin}_ptr.dtype.element_ty" if hasattr(dtype, "origin") else triton_dtype(_named(dtype))
    text = f"tl.full({tracer.shape_text(shape)}, {value}, {named})"
    return Tile(tracer.note((text,)), shape, dtype if hasattr(dtype, "origin") else _named(dtype))


def _zeros(shape: Sequence[Any], dtype: Any = "float32") -> Tile:
    return _full(shape, 0, dtype)


def _arange(count: Any, dtype: Any = "int32", *, start: Any = 0) -> Tile:
    tracer = TRACER.get()
    index = tracer.index(count, 1, 2)
    text = index if str(start) == "0" else f"({index} + {start})"
    return Tile(tracer.note((f"{text}.to({triton_dtype(_named(dtype))})",)), (1, count), _named(dtype))


def _tril(shape: Sequence[Any], dtype: Any = "float32", *, diagonal: Any = 0) -> Tile:
    tracer = TRACER.get()
    text = f"({tracer.index(shape[1], 1, 2)} <= {tracer.index(shape[0], 0, 2)} + {diagonal})"
    return Tile(tracer.note((f"{text}.to({triton_dtype(_named(dtype))})",)), shape, _named(dtype))


def _named(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _statistic(spec: Statistic) -> Callable[[Tile], Tile]:
    def function(t: Tile) -> Tile:
        if spec.axis == 0 and len(t.shape) != 2:
            raise Refused("a column reduction of a tile that is not a matrix")
        return TRACER.get().reduced(spec.triton, t, spec.axis % len(t.shape), spec.neutral)

    return function


def _row_cumsum(t: Tile) -> Tile:
    return TRACER.get().computed(f"tl.cumsum({{}}, axis={len(t.shape) - 1})", (t,))


def _expand(t: Tile, dim: int, count: Any) -> Tile:
    shape = list(t.shape)
    shape[dim] = count
    text = f"tl.broadcast_to({{}}, {TRACER.get().shape_text(shape)})"
    out = TRACER.get().computed(text, (t,))
    return Tile(out.value, shape, t.dtype)


def _load(
    ref: Any,
    *,
    to: Any = None,
    buffers: int = 2,
    shape: Sequence[Any] | None = None,
    fill: float | None = None,
    rows: Tile | None = None,
) -> Tile:
    if not isinstance(ref, Ref):
        raise Refused("the loaded value is not a part of a tensor")
    if rows is not None:
        return TRACER.get().gathered(ref, rows)
    return TRACER.get().loaded(ref, fill=fill, shape=shape)


def _scalar(ref: Any, *, most: Any, expected: Any = None) -> Any:
    if not isinstance(ref, Ref) or ref.cell is not None:
        raise Refused("tile.scalar of a value that is not an input")
    return TRACER.get().scalar(ref, most, most if expected is None else expected)


def _store(ref: Any, tile: Any, *, add: bool = False, relu: bool = False, rows: Tile | None = None) -> None:
    if not isinstance(ref, Ref) or not isinstance(tile, Tile):
        raise Refused("the stored value is not a tile")
    if rows is not None:
        raise Refused("a store to rows that are selected by number")
    TRACER.get().stored(ref, tile, add=add, relu=relu)


def _matmul(a: Tile, b: Tile, acc: Tile | None = None, *, bias: Tile | None = None) -> Tile:
    if a.dtype.__class__ is str and a.dtype == "int8":
        raise Refused("a matrix product of int8")
    tracer = TRACER.get()
    out = tracer.product(a, b, acc)
    return out if bias is None else tracer.computed("{} + {}.to(tl.float32)", (out, bias), "float32")


def _to_l1(t: Tile, dtype: Any, *, relu: bool = False) -> Tile:
    return (TRACER.get().computed("tl.maximum({}, 0)", (t,)) if relu else t).to(dtype)


def _grid(shape: Sequence[Any], sizes: Sequence[Any]) -> Iterator[tuple[Block, ...]]:
    steps = [1 if isinstance(size, Each) else size for size in sizes]
    yield from TRACER.get().dealt(shape, steps, [isinstance(size, Each) for size in sizes])


def _blocks(total: Any, size: Any) -> Iterator[Block]:
    for (block,) in _grid((total,), (size,)):
        yield block


def _steps(total: Any, size: Any) -> Iterator[Block]:
    first, last = total if isinstance(total, tuple) else (0, total)
    drop = isinstance(size, Each)
    yield from TRACER.get().turns(first, last, 1 if drop else size, drop=drop)


def _scratch(shape: Sequence[Any], dtype: Any = "float32", *, buffers: int = 2) -> Ref:
    named = dtype if hasattr(dtype, "origin") else _named(dtype)
    return Ref("scratch", "scratch", named, [(size, 1) for size in shape], 0, Cell(tuple(shape)))


def _vectors(rows: Any) -> Iterator[Half]:
    yield Half(0, rows, rows, rows)


def _refused(what: str) -> Callable[..., Any]:
    def function(*_arguments: Any, **_named: Any) -> Any:
        raise Refused(what)

    return function


FUNCTIONS: dict[str, Any] = {
    "EACH": language.EACH,
    "L0C": language.L0C,
    "L1": language.L1,
    "UB": language.UB,
    "Block": Block,
    "Ref": Ref,
    "Tile": Tile,
    "arange": _arange,
    "blocks": _blocks,
    "col_expand": lambda t, rows: _expand(t, 0, rows),
    "compare": _compare,
    "core_count": _refused("the number of cores"),
    "core_id": _refused("the number of the core"),
    "empty": _zeros,
    "full": _full,
    "gather": _refused("tile.gather"),
    "grid": _grid,
    "insert": _refused("tile.insert: Triton keeps whole blocks in registers"),
    "load": _load,
    "matmul": _matmul,
    "merge4": _refused("tile.merge4: Triton has no merge of sorted runs"),
    "row_cumsum": _row_cumsum,
    "row_expand": lambda t, columns: _expand(t, len(t.shape) - 1, columns),
    "scalar": _scalar,
    "scratch": _scratch,
    "sort32": _refused("tile.sort32: Triton has no sort of runs"),
    "steps": _steps,
    "store": _store,
    "to_l1": _to_l1,
    "transpose": lambda t: TRACER.get().transposed(t),
    "tril": _tril,
    "vectors": _vectors,
    "where": _where,
    "zeros": _zeros,
    **{name: _statistic(spec) for name, spec in STATISTICS.items()},
}
"""Name → function, without the functions generated from the instruction table. Unsupported functions raise Refused."""


def rebuilt(function: Any) -> Any:
    """Return a copy of a function that calls the functions of this module instead of those of the tile language.

    Other functions of its file that it calls are copied in the same way.
    """
    swapped = {id(getattr(language, name)): FUNCTIONS[name] for name in FUNCTIONS}
    namespace = SimpleNamespace(**{name: getattr(language, name) for name in language.__all__} | FUNCTIONS)
    modules = (language, language_module)
    scope: dict[str, Any] = {}

    def of(value: Any) -> Any:
        if isinstance(value, ModuleType) and (value in modules or value.__name__ == "opreplay.tile"):
            return namespace
        if id(value) in swapped:
            return swapped[id(value)]
        if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
            return _copied(value, scope)
        return value

    scope.update({name: of(value) for name, value in function.__globals__.items()})
    return _copied(function, scope)


def _copied(function: FunctionType, scope: dict[str, Any]) -> FunctionType:
    out = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    out.__kwdefaults__ = function.__kwdefaults__
    return out
