"""Instructions of the vector cores: elementwise, along rows and columns, conversions, transposes, gathers, sorting."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

from opreplay.replay.tile.language import instructions as table
from opreplay.replay.tile.language.instructions import VEC, VECTOR, Spec
from opreplay.replay.tile.language.memory import check_defined, check_numbers
from opreplay.replay.tile.language.places import DTYPE_BYTES, UB, check_float8, fail, rows_and_columns, up
from opreplay.replay.tile.language.positions import Position
from opreplay.replay.tile.language.recording import Core, NeedsCube, current
from opreplay.replay.tile.language.tiles import Operators, Tile

_WITH_NUMBER = {"add": "adds", "sub": "subs", "mul": "muls", "div": "divs", "max": "maxs", "min": "mins"}


class TileCore(Core):
    """A core whose tiles support operators."""

    def elementwise(self, name: str, first: Any, *others: Any) -> Tile:
        """Apply an elementwise instruction. Dimensions of size 1 of the second source are broadcast."""
        spec, operands, numbers = _operands(name, first, others)
        tiles = [self.operand(t, spec.name) for t in operands]
        dtype = _common_dtype(spec, tiles)
        shape = _broadcast(tiles)
        tile = self.new_tile(shape, dtype)
        cycles = self.cycles(spec.start, spec.slope, _elements(shape, tiles), dtype)
        for source in tiles:
            if source.shape[-1:] == (1,) and shape[-1] > 1:
                cycles += table.EXPAND_START + table.EXPAND_ROW * rows_and_columns(shape)[0]
        self.vector(spec.name, cycles, tiles, tile)
        if self.values:
            import torch

            values = [t.data for t in tiles]
            tile.data = torch.broadcast_to(spec.compute(*values, *numbers), shape).to(getattr(torch, dtype))
            _inherit(tile, tiles)
        return tile

    def convert(self, value: Tile, dtype: str) -> Tile:
        """Convert a tile to another dtype; instruction TCVT."""
        self.operand(value, "conversion")
        if dtype not in DTYPE_BYTES:
            raise fail("dtype", f"tiles cannot have dtype {dtype}")
        if dtype == value.dtype:
            return value
        if (value.dtype, dtype) not in table.CONVERSIONS:
            first = (by for source, by in table.CONVERSIONS if source == value.dtype)
            ways = sorted(by for by in first if (by, dtype) in table.CONVERSIONS)
            hint = f"Convert through {ways[0]}: t.to(torch.{ways[0]}).to(torch.{dtype})." if ways else ""
            raise fail("dtype", f"no conversion from {value.dtype} to {dtype}", hint=hint)
        check_float8(self.device, value.dtype, dtype)
        wider = DTYPE_BYTES[dtype] > DTYPE_BYTES[value.dtype]
        tile = self.new_tile(value.shape, dtype, *([value] if wider else []))
        wide = max(value.dtype, dtype, key=DTYPE_BYTES.__getitem__)
        elements = _elements(value.shape, [value])
        self.vector("convert", self.cycles(table.CONVERT_START, table.CONVERT_SLOPE, elements, wide), [value], tile)
        if self.values:
            import torch

            tile.data = value.data.to(getattr(torch, dtype))
            _inherit(tile, [value])
        return tile

    def part(self, value: Tile, key: Any) -> Tile:
        """Return a part of a tile in the same memory: rows or columns starting at a multiple of 32 bytes."""
        keys: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
        keys += [slice(None)] * (len(value.shape) - len(keys))
        if len(keys) > len(value.shape):
            raise fail("bounds", f"{len(keys)} indexes are too many for a tile of {list(value.shape)}")
        spans: list[slice] = []
        for index, size in zip(keys, value.shape, strict=True):
            start, stop = _span(index, size)
            if not 0 <= start <= stop <= size:
                raise fail("bounds", f"{start}:{stop} is outside a tile of {list(value.shape)}")
            spans.append(slice(start, stop))
        if value.place == UB and spans[-1].start * DTYPE_BYTES[value.dtype] % 32:
            raise fail(
                "stride",
                f"column {spans[-1].start} of a {value.dtype} tile does not begin at a multiple of 32 bytes",
                hint="Instructions read from multiples of 32 bytes: choose other columns, or use tile.gather.",
            )
        tile = self._same(value, tuple(s.stop - s.start for s in spans))
        if value.data is not None:
            tile.data = value.data[tuple(spans)]
        if value.defined is not None:
            tile.defined, tile.why = value.defined[tuple(spans)], value.why
        return tile

    def reshaped(self, value: Tile, shape: Sequence[int]) -> Tile:
        """Return the same data in another shape."""
        sizes = tuple(shape)
        if -1 in sizes:
            known = prod(n for n in sizes if n >= 0)
            sizes = tuple(prod(value.shape) // max(1, known) if n < 0 else n for n in sizes)
        if prod(sizes) != prod(value.shape):
            raise fail("shape", f"{list(value.shape)} cannot be viewed as {list(sizes)}")
        tile = self._same(value, sizes)
        if value.data is not None:
            tile.data = value.data.reshape(sizes)
        if value.defined is not None and sizes != value.shape:
            tile.defined, tile.why = value.defined.reshape(sizes), value.why
        return tile

    def _same(self, value: Tile, shape: tuple[int, ...]) -> Tile:
        tile = Tile(self, value.place, value.unit, shape, value.dtype, value.buffer)
        tile.owner = value if value.owner is None else value.owner
        tile.line = value.line
        return tile

    # For the functions of this module

    def operand(self, value: Any, what: str) -> Tile:
        """Check that a tile is in UB of this vector core and has data, and return it. Raises TileError otherwise."""
        self.in_ub(value, what)
        if value.why == "unwritten":
            check_defined(value, what)
        return value

    def in_ub(self, value: Any, what: str) -> None:
        """Raise TileError unless the value is a tile in UB of this vector core whose memory has not been reused."""
        if not isinstance(value, Tile):
            raise fail("program", f"{what} of {type(value).__name__}", hint="Use tile.load to bring tensors into UB.")
        if self.kind == "vector" and value.place != UB:
            raise NeedsCube
        if value.place != UB:
            raise fail(
                "path",
                f"{what} of a tile in {value.place}: vector instructions need tiles in UB",
                hint=(
                    "Move data from L0C through GM: tile.store to tile.scratch, then tile.load inside "
                    "`for half in tile.vectors(rows)`."
                ),
            )
        if self.unit == "cube":
            raise fail(
                "path", f"{what} does not run on the cube core", hint="Put it inside `for half in tile.vectors(rows)`."
            )
        if value.unit != self.unit:
            raise fail(
                "path", f"{what} runs on {self.unit}, but its tile is on {value.unit}", hint="Each half has its own UB."
            )
        self.check_fresh(value)

    def new_tile(self, shape: Sequence[int], dtype: str, *beside: Tile) -> Tile:
        """Return a new tile for this place in the source, in memory that does not overlap the operands `beside`."""
        place = self.here()
        tile = Tile(self, UB, self.unit, tuple(map(operator.index, shape)), dtype, self.next_slot(place, 2))
        tile.line = self.line(place)
        self.reserve_tile(tile, beside)
        return tile

    def cycles(self, start: float, slope: float, elements: float, dtype: str) -> float:
        """Return the cycles of a vector instruction that processes this number of elements."""
        return start + slope * elements * DTYPE_BYTES[dtype] / 4 / self.device.vector_width

    def vector(self, name: str, cycles: float, reads: Sequence[Tile], tile: Tile) -> None:
        """Emit one vector instruction."""
        self.emit(name, VEC, cycles, tile.buffer[0], reads=[t.buffer for t in reads], writes=[tile.buffer])


def _span(index: Any, size: int) -> tuple[int, int]:
    """Return the start and the stop of an index into a tile."""
    if hasattr(index, "span"):
        return index.span()
    if not isinstance(index, slice):
        return int(index), int(index) + 1
    if index.step not in (None, 0, 1):
        raise fail(
            "stride",
            f"a slice of a tile has step {index.step}, but instructions need contiguous elements",
            hint="tile.gather",
        )
    return int(index.start or 0), size if index.stop is None else int(index.stop)


def core() -> TileCore:
    """Return the running core."""
    return cast(TileCore, current())


def _operands(name: str, first: Any, others: Sequence[Any]) -> tuple[Spec, list[Any], list[Any]]:
    if len(others) == 1 and isinstance(others[0], int | float | Position) and not isinstance(others[0], bool):
        return VECTOR[_WITH_NUMBER.get(name, name)], [first], [others[0]]
    if name == "rsubs":
        raise fail("program", f"a tile cannot be subtracted from {type(others[0]).__name__}")
    return VECTOR[name], [first, *others], []


def _common_dtype(spec: Spec, tiles: Sequence[Tile]) -> str:
    dtypes = [t.dtype for t in tiles]
    if spec.name == "select":
        dtypes = dtypes[1:]
    if len(set(dtypes)) > 1:
        raise fail("dtype", f"{spec.name} cannot combine {' and '.join(dtypes)}", hint="Convert one with .to().")
    if dtypes[0] not in spec.dtypes:
        raise fail(
            "dtype",
            f"no {spec.name} of {dtypes[0]} on the vector cores, only of {', '.join(spec.dtypes)}",
            hint="Use .float() before and .to() after it." if dtypes[0] == "bfloat16" else "Convert it with .to().",
        )
    return dtypes[0]


def _broadcast(tiles: Sequence[Tile]) -> tuple[int, ...]:
    shape: list[int] = []
    rank = max(len(t.shape) for t in tiles)
    for dim in range(-rank, 0):
        sizes = {t.shape[dim] for t in tiles if len(t.shape) >= -dim} - {1}
        if len(sizes) > 1:
            shapes = " and ".join(str(list(t.shape)) for t in tiles)
            raise fail(
                "shape", f"tiles of {shapes} cannot be combined", hint="Sizes must be equal, or 1 to be broadcast."
            )
        shape.append(sizes.pop() if sizes else 1)
    return tuple(shape)


def _elements(shape: tuple[int, ...], tiles: Sequence[Tile]) -> float:
    """Return the number of elements that an instruction processes.

    Rows that are not contiguous start new repeats of 256 bytes.
    """
    rows, columns = rows_and_columns(shape)
    size = DTYPE_BYTES[tiles[0].dtype]
    dense = all(t.shape == shape for t in tiles) and (columns * size % 32 == 0 or rows == 1 or columns == 1)
    if dense:
        return rows * columns
    return rows * min(up(columns, 256 // size), up(columns * size, 32) // size + 8)


def _inherit(tile: Tile, tiles: Sequence[Tile]) -> None:
    """Mark the result's padding according to the padding of its sources."""
    import torch

    for source in tiles:
        if source.defined is not None:
            defined = torch.broadcast_to(source.defined, tile.shape).clone()
            tile.defined = defined if tile.defined is None else tile.defined & defined
            tile.why = "mask"


def _elementwise(name: str, first: Any, *others: Any) -> Tile:
    """Apply a vector instruction to tiles of a running program, or of a program that is being emitted."""
    if isinstance(first, Operators):
        tile: Any = first.instruction(name, *others)
        return tile
    return core().elementwise(name, first, *others)


def _unary(name: str, text: str) -> Callable[[Tile], Tile]:
    def function(t: Tile) -> Tile:
        return _elementwise(name, t)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{text}. {VECTOR[name].pto}."
    return function


exp = _unary("exp", "e to the power of each element")
ln = _unary("ln", "Natural logarithm")
sqrt = _unary("sqrt", "Square root")
rsqrt = _unary("rsqrt", "One over the square root")
reciprocal = _unary("reciprocal", "One over each element")
abs = _unary("abs", "Absolute value")
relu = _unary("relu", "The larger of 0 and each element")
round = _unary("round", "To the nearest whole number, halves to even")
floor = _unary("floor", "To the next whole number below")
copy = _unary("copy", "A copy in other memory of UB")


def tanh(t: Tile) -> Tile:
    """Return tanh as 1 - 2 / (exp(2 t) + 1), in five instructions."""
    return 1.0 - 2.0 / (exp(t * 2.0) + 1.0)


def maximum(a: Tile, b: Tile | float) -> Tile:
    """Return the elementwise maximum; instructions TMAX, TMAXS."""
    return _elementwise("max", a, b)


def minimum(a: Tile, b: Tile | float) -> Tile:
    """Return the elementwise minimum; instructions TMIN, TMINS."""
    return _elementwise("min", a, b)


def sigmoid(t: Tile) -> Tile:
    """Return 1 / (1 + exp(-t)), in four instructions."""
    return reciprocal(exp(-t) + 1.0)


def silu(t: Tile) -> Tile:
    """Return t / (1 + exp(-t)), in four instructions."""
    return t / (exp(-t) + 1.0)


def compare(a: Tile, how: str, b: Tile | float) -> Tile:
    """Return a bool mask of `a how b`; `how` is <, <=, >, >=, == or !=. Instruction TCMP."""
    if how not in table.COMPARE:
        raise fail("program", f"{how!r} compares nothing", hint=f"Use one of {' '.join(table.COMPARE)}.")
    on = core()
    operands = [on.operand(t, "comparison") for t in (a, b) if isinstance(t, Tile)]
    dtype = _common_dtype(VECTOR["compare"], operands)
    shape = _broadcast(operands)
    tile = on.new_tile(shape, "bool")
    spec = VECTOR["compare"]
    on.vector("compare", on.cycles(spec.start, spec.slope, _elements(shape, operands), dtype), operands, tile)
    if on.values:
        tile.data = table.COMPARE[how](a.data, b.data if isinstance(b, Tile) else b)
        _inherit(tile, operands)
    return tile


def where(mask: Tile, a: Tile, b: Tile | float) -> Tile:
    """Return `a` where the mask is True, otherwise `b`; instruction TSEL."""
    on = core()
    if mask.dtype != "bool":
        raise fail("dtype", f"a mask must be bool, not {mask.dtype}", hint="tile.compare makes a bool tile.")
    other = b if isinstance(b, Tile) else full((1, 1) if len(a.shape) > 1 else (1,), b, a.dtype)
    return on.elementwise("select", mask, a, other)


def full(shape: Sequence[int], value: float, dtype: Any = "float32") -> Tile:
    """Return a tile in UB filled with one number; instruction TEXPANDS."""
    on = _on_vector("full")
    name = _named(dtype)
    tile = on.new_tile(shape, name)
    spec = VECTOR["fill"]
    if name not in spec.dtypes:
        raise fail("dtype", f"vector cores cannot fill a tile of {name}", hint="Fill a float32 tile and convert it.")
    on.vector("fill", on.cycles(spec.start, spec.slope, prod(tile.shape), name), [], tile)
    if on.values:
        import torch

        tile.data = torch.full(tile.shape, value, dtype=getattr(torch, name))
    return tile


def tril(shape: Sequence[int], dtype: Any = "float32", *, diagonal: int = 0) -> Tile:
    """Return a tile in UB with ones where column <= row + `diagonal`, and zeros elsewhere."""
    rows, columns = shape
    lower = compare(arange(columns, "float32"), "<=", arange(rows, "float32", start=diagonal).view(-1, 1))
    return where(lower, full((1, 1), 1.0), 0.0).to(dtype)


def zeros(shape: Sequence[int], dtype: Any = "float32") -> Tile:
    """Return a tile of zeros in UB."""
    return full(shape, 0, dtype)


def arange(count: int, dtype: Any = "int32", *, start: Any = 0) -> Tile:
    """Return start, start + 1, ... in one row of `count` elements; instruction TCI."""
    on = _on_vector("arange")
    name = _named(dtype)
    if name not in ("int32", "int16", "float32", "float16"):
        raise fail("dtype", f"no arange of {name}")
    tile = on.new_tile((1, count), name)
    on.vector("arange", on.cycles(40.0, table.TWO, count, name), [], tile)
    if on.values:
        import torch

        first = int(start)
        tile.data = torch.arange(first, first + count).to(getattr(torch, name)).reshape(1, count)
    return tile


def empty(shape: Sequence[int], dtype: Any = "float32") -> Tile:
    """Return uninitialized memory in UB; use `insert` to write parts of it."""
    on = _on_vector("empty")
    tile = on.new_tile(shape, _named(dtype))
    if on.values:
        import torch

        kind = getattr(torch, tile.dtype)
        tile.data = torch.full(tile.shape, float("nan") if kind.is_floating_point else 0, dtype=kind)
        tile.defined, tile.why = torch.zeros(tile.shape, dtype=torch.bool), "unwritten"
    return tile


def insert(into: Tile, t: Tile, *, row: int = 0, column: int = 0) -> None:
    """Write a tile into a part of another tile; instruction TINSERT."""
    on = core()
    on.operand(t, "insert")
    on.in_ub(into, "insert")
    if into.dtype != t.dtype:
        raise fail("dtype", f"a {t.dtype} tile cannot be written into a {into.dtype} tile")
    rows, columns = rows_and_columns(t.shape)
    all_rows, all_columns = rows_and_columns(into.shape)
    if row < 0 or column < 0 or row + rows > all_rows or column + columns > all_columns:
        raise fail("bounds", f"{[rows, columns]} at {[row, column]} does not fit into a tile of {list(into.shape)}")
    if column * DTYPE_BYTES[into.dtype] % 32:
        raise fail("stride", f"column {column} of {into.dtype} does not begin at a multiple of 32 bytes")
    spec = VECTOR["copy"]
    cycles = on.cycles(spec.start, spec.slope, _elements(t.shape, [t]), t.dtype)
    place = on.here()
    on.emit("insert", VEC, cycles, place, reads=[t.buffer], writes=[into.buffer])
    if on.values:
        import torch

        at = (slice(row, row + rows), slice(column, column + columns))
        into.data.view(all_rows, all_columns)[at] = t.data.reshape(rows, columns)
        if into.defined is None and t.defined is not None:
            into.defined = torch.ones(into.shape, dtype=torch.bool)
        if into.defined is not None:
            into.defined.view(all_rows, all_columns)[at] = True if t.defined is None else t.defined.view(rows, columns)
            into.why = into.why if t.defined is None else "mask"
            if bool(into.defined.all()):
                into.defined, into.why = None, ""


def _on_vector(what: str) -> TileCore:
    on = core()
    if on.unit == "cube":
        raise fail(
            "path", f"{what} does not run on the cube core", hint="Put it inside `for half in tile.vectors(rows)`."
        )
    return on


def _named(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise fail("dtype", f"tiles cannot have dtype {name}")
    return name


def _statistic(name: str) -> Callable[[Tile], Tile]:
    spec = table.STATISTICS[name]

    def function(t: Tile) -> Tile:
        on = core()
        on.operand(t, name)
        if t.dtype not in ("float32", "float16"):
            raise fail("dtype", f"no {name} of {t.dtype} on the vector cores", hint=".float() first.")
        if len(t.shape) < 1 or prod(t.shape) == 0:
            raise fail("shape", f"{name} does not accept a tile of {list(t.shape)}")
        rows, columns = rows_and_columns(t.shape)
        lanes = 256 // DTYPE_BYTES[t.dtype]
        if spec.axis:
            shape = (*t.shape[:-1], 1)
            steps = -(-columns // lanes) - 1
            cycles = table.ROW_START + rows * (table.ROW_LINE + table.ROW_STEP * steps / on.device.vector_width)
        else:
            shape = (1, columns)
            cycles = on.cycles(table.ROW_START, table.COLUMN_STEP, rows * up(columns, lanes), t.dtype)
        tile = on.new_tile(shape, t.dtype, t)
        on.vector(name, cycles, [t], tile)
        if on.values:
            check_defined(t, name)
            tile.data = spec.compute(t.data.float().reshape(rows, columns), spec.axis).to(t.data.dtype).reshape(shape)
        return tile

    function.__name__ = function.__qualname__ = name
    function.__doc__ = spec.text
    return function


row_sum, row_max, row_min = _statistic("row_sum"), _statistic("row_max"), _statistic("row_min")
col_sum, col_max = _statistic("col_sum"), _statistic("col_max")


def row_cumsum(t: Tile) -> Tile:
    """Return the cumulative sum of each row: [r, c] to [r, c]. It adds the row shifted by 1, 2, 4 and so on."""
    on = core()
    on.operand(t, "row_cumsum")
    dtype = _common_dtype(VECTOR["exp"], [t])
    tile = on.new_tile(t.shape, dtype, t)
    spec, steps = VECTOR["add"], (t.shape[-1] - 1).bit_length()
    on.vector("row_cumsum", steps * on.cycles(spec.start, spec.slope, _elements(t.shape, [t]), dtype), [t], tile)
    if on.values:
        check_defined(t, "row_cumsum")
        tile.data = t.data.float().cumsum(-1).to(t.data.dtype)
    return tile


def row_expand(t: Tile, columns: int) -> Tile:
    """Repeat a column along rows: [r, 1] to [r, columns]. Instruction TROWEXPAND."""
    on = core()
    on.operand(t, "row_expand")
    if t.shape[-1] != 1:
        raise fail("shape", f"row_expand does not accept a tile of {list(t.shape)}", hint="It must have one column.")
    tile = on.new_tile((*t.shape[:-1], columns), t.dtype, t)
    rows = rows_and_columns(t.shape)[0]
    cycles = on.cycles(table.EXPAND_START + table.EXPAND_ROW * rows, table.ONE, rows * up(columns, 64), t.dtype)
    on.vector("row_expand", cycles, [t], tile)
    if on.values:
        tile.data = t.data.expand(tile.shape).clone()
        _inherit(tile, [t])
    return tile


def col_expand(t: Tile, rows: int) -> Tile:
    """Repeat a row: [1, c] to [rows, c]. Instruction TCOLEXPAND."""
    on = core()
    on.operand(t, "col_expand")
    if prod(t.shape[:-1]) != 1:
        raise fail("shape", f"col_expand does not accept a tile of {list(t.shape)}", hint="It must have one row.")
    tile = on.new_tile((rows, t.shape[-1]), t.dtype, t)
    on.vector("col_expand", on.cycles(20.0, table.ONE, rows * up(t.shape[-1], 64), t.dtype), [t], tile)
    if on.values:
        tile.data = t.data.reshape(1, -1).expand(tile.shape).clone()
        _inherit(tile, [t])
    return tile


def transpose(t: Tile) -> Tile:
    """Swap rows and columns of a matrix in UB; instruction TTRANS."""
    on = core()
    on.operand(t, "transpose")
    if len(t.shape) != 2:
        raise fail("shape", f"transpose does not accept a tile of {list(t.shape)}", hint="It must be a matrix.")
    if DTYPE_BYTES[t.dtype] not in (2, 4):
        raise fail("dtype", f"no transpose of {t.dtype} in UB")
    tile = on.new_tile((t.shape[1], t.shape[0]), t.dtype, t)
    elements = up(t.shape[0], 16) * up(t.shape[1], 16)
    on.vector("transpose", on.cycles(table.TRANSPOSE_START, table.TRANSPOSE_SLOPE, elements, t.dtype), [t], tile)
    if on.values:
        tile.data = t.data.T.contiguous()
        if t.defined is not None:
            tile.defined, tile.why = t.defined.T, t.why
    return tile


def gather(t: Tile, index: Tile) -> Tile:
    """Return elements of each row by index: out[i, j] = t[i, index[i, j]]. Instruction TGATHER.

    A single row of indices applies to all rows.
    """
    on = core()
    on.operand(t, "gather")
    on.operand(index, "gather")
    if index.dtype != "int32":
        raise fail("dtype", f"gather needs int32 numbers, not {index.dtype}")
    rows, columns = rows_and_columns(t.shape)
    if rows_and_columns(index.shape)[0] not in (1, rows):
        raise fail("shape", f"gather cannot index {list(t.shape)} with numbers of shape {list(index.shape)}")
    tile = on.new_tile((*t.shape[:-1], index.shape[-1]), t.dtype, t, index)
    cycles = on.cycles(table.GATHER_START, table.GATHER_SLOPE, rows * index.shape[-1], "float32")
    on.vector("gather", cycles, [t, index], tile)
    if on.values:
        at = index.data.long().expand(tile.shape)
        check_defined(index, "gather")
        check_numbers(at, columns, f"gather: there is no column {{}} in a tile of {columns} columns")
        tile.data = t.data.gather(-1, at)
        if t.defined is not None:
            tile.defined, tile.why = t.defined.gather(-1, at), t.why
    return tile


def sort32(keys: Tile, numbers: Tile) -> tuple[Tile, Tile]:
    """Sort each run of 32 keys of a row in descending order, and reorder the int32 numbers of the keys in the same way.

    Takes a row of n keys. The last run may be shorter. `merge4` merges the runs. Instruction TSORT32.
    """
    return _sorted(keys, numbers, 32, "sort32", table.SORT_START, table.SORT_SLOPE)


def merge4(keys: Tile, numbers: Tile, run: int) -> tuple[Tile, Tile]:
    """Merge up to four adjacent sorted runs of length `run` into one of 4 * run. Instruction TMRGSORT."""
    on = core()
    if on.values and keys.data is not None:
        row = keys.data.reshape(-1)
        for at in range(0, row.numel(), run):
            piece = row[at : at + run]
            if bool((piece[1:] > piece[:-1]).any()):
                raise fail(
                    "program",
                    f"merge4 needs sorted runs of {run}, but a run is not sorted",
                    hint="sort32 sorts runs of 32.",
                )
    return _sorted(keys, numbers, 4 * run, "merge4", table.MERGE_START, table.MERGE_SLOPE)


def _sorted(keys: Tile, numbers: Tile, run: int, name: str, start: float, slope: float) -> tuple[Tile, Tile]:
    on = core()
    on.operand(keys, name)
    on.operand(numbers, name)
    if keys.dtype not in ("float32", "float16") or numbers.dtype not in ("int32", "uint32"):
        raise fail("dtype", f"{name} needs floats with int32 numbers, not {keys.dtype} with {numbers.dtype}")
    if keys.shape != numbers.shape or prod(keys.shape[:-1]) != 1:
        raise fail(
            "shape", f"{name} needs one row of keys and one of numbers, not {list(keys.shape)}, {list(numbers.shape)}"
        )
    first = on.new_tile(keys.shape, keys.dtype, keys, numbers)
    on.vector(name, start + slope * keys.shape[-1], [keys, numbers], first)
    place = on.here("numbers")
    second = Tile(on, UB, on.unit, numbers.shape, numbers.dtype, on.next_slot(place, 2))
    second.line = on.line(place)
    on.reserve_tile(second, [numbers])
    on.emit(name, VEC, 0.0, place, reads=[first.buffer], writes=[second.buffer])
    if on.values:
        check_defined(keys, name)
        import torch

        flat, ids = keys.data.reshape(-1), numbers.data.reshape(-1)
        values, marks = [], []
        for at in range(0, flat.numel(), run):
            order = torch.sort(flat[at : at + run], descending=True, stable=True)
            values.append(order.values)
            marks.append(ids[at : at + run][order.indices])
        first.data = torch.cat(values).reshape(keys.shape)
        second.data = torch.cat(marks).reshape(numbers.shape)
    return first, second
