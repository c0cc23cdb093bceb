# pyright: strict
"""Data movement and work distribution: loads, stores, scratch memory, blocks, grids, loops, halves of a group."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from opreplay.replay.tile.language.instructions import FIXP, MTE2, MTE3, SCALAR, Buffer
from opreplay.replay.tile.language.places import (
    DTYPE_BYTES,
    L1,
    UB,
    Place,
    fail,
    padded_bytes,
)
from opreplay.replay.tile.language.positions import (
    ZERO,
    Atom,
    Compared,
    Computed,
    Expr,
    Trail,
    combined,
    expr_of,
    plain,
    remainder,
    whole_part,
)
from opreplay.replay.tile.language.recording import UNITS, Core, NeedsCube, current
from opreplay.replay.tile.language.tiles import Block, Memory, Ref, Tile, Where
from opreplay.traces.names import plural


class Each:
    """Block size for `grid` and `steps` that yields one position at a time and removes the dimension."""


EACH = Each()


def blocks(total: int, size: int) -> Iterator[Block]:
    """Yield the blocks of `size` elements of a dimension with `total` elements, distributed round-robin to the cores.

    The last block may be smaller. Blocks index tensors like slices. Raises TileError for a size below 1.
    """
    for (block,) in grid((total,), (size,)):
        yield block


def grid(shape: Sequence[int], sizes: Sequence[int | Each]) -> Iterator[tuple[Block, ...]]:
    """Yield the blocks of several dimensions, distributed round-robin to the cores.

    The last dimension changes fastest. In a dimension with size EACH, each block is a single position.
    """
    core = current()
    if len(shape) != len(sizes):
        raise fail("shape", f"{len(sizes)} block sizes do not fit {len(shape)} dimensions")
    shape = tuple(map(operator.index, shape))
    steps = tuple(1 if isinstance(size, Each) else _positive(operator.index(size)) for size in sizes)
    drops = tuple(isinstance(size, Each) for size in sizes)
    counts = tuple(-(-total // step) for total, step in zip(shape, steps, strict=True))
    core.recording.deals.append((shape, steps))
    partial = [total % step > 0 for total, step in zip(shape, steps, strict=True)]

    def placed(places: Sequence[int], numbers: Sequence[Expr]) -> tuple[Block, ...]:
        notes = None if core.values else core.notes
        return tuple(
            Block(
                at * step,
                min(total, (at + 1) * step),
                at,
                drop=drop,
                where=Where(number, step=step, notes=notes),
                most=total,
            )
            for at, total, step, drop, number in zip(places, shape, steps, drops, numbers, strict=True)
        )

    if core.survey is not None and core.at_top:
        yield from core.surveyed(core.survey, counts, partial, placed)
        return
    mine = range(core.number, prod(counts), core.cores)
    variable = Atom()
    # The last dimension is the fastest.
    below = [prod(counts[dim + 1 :]) for dim in range(len(counts))]
    numbers = _numbers(Expr(((variable, core.cores),), core.number), counts, below)

    def places_of(i: int) -> list[int]:
        return [mine[i] // each % count for each, count in zip(below, counts, strict=True)]

    def cut(i: int) -> object:
        return tuple(at == count - 1 and p for at, count, p in zip(places_of(i), counts, partial, strict=True))

    yield from core.loop(
        len(mine),
        lambda i: placed(places_of(i), numbers),
        Trail(variable, Expr((), len(mine))),
        cut if any(partial) else None,
        dealt=True,
    )


def _numbers(number: Expr, counts: Sequence[int], below: Sequence[int]) -> list[Expr]:
    """Return the block number in each dimension, from the block's position in the order of all blocks."""
    if len(counts) == 1:
        return [number]
    each = [Expr(((Computed(whole_part, number, Expr((), n)), 1),)) for n in below]
    return [Expr(((Computed(remainder, one, Expr((), n)), 1),)) for one, n in zip(each, counts, strict=True)]


def steps(total: int | tuple[int, int], size: int | Each) -> Iterator[Block]:
    """Yield the blocks of a dimension one after the other on this core, e.g. for a loop over K, keys or columns.

    `total` is the size of the dimension, or (start, stop).
    """
    core = current()
    first, last = total if isinstance(total, tuple) else (0, total)
    step = 1 if isinstance(size, Each) else _positive(int(size))
    drop = isinstance(size, Each)
    variable = Atom()
    begin, end, number, start = plain(first), plain(last), Expr(((variable, 1),)), expr_of(first)
    length = combined(whole_part, last - first + (step - 1), step)

    def item(i: int) -> Block:
        at = begin + i * step
        stop = min(end, at + step)
        if stop == end:
            # Where the loop ends depends on others: so does the size of its last block.
            core.notes.note(
                Compared(expr_of(last).plus(start, -1).plus(number, -step).plus(expr_of(stop - at), -1), "==", True)
            )
        return Block(
            at,
            stop,
            i,
            drop=drop,
            where=Where(number, start, step, None if core.values else core.notes),
            most=None if expr_of(last).parts else last,
        )

    count = plain(length) if length > 0 else 0
    yield from core.loop(count, item, Trail(variable, expr_of(length) if count else ZERO))


def _positive(size: int) -> int:
    if size < 1:
        raise fail("shape", f"blocks of {size}", hint="Blocks have at least one element.")
    return size


class Half(Block):
    """The rows for one of the two vector cores of a group."""

    __slots__ = ()

    @property
    def index(self) -> int:
        """Number of the vector core: 0 or 1."""
        return self._index


def vectors(rows: int) -> Iterator[Half]:
    """Yield the two vector cores of the group, each with its half of `rows`. The loop body runs on the yielded core.

    If only the time is needed, only the first half is run, because both halves do the same work.
    """
    core = current()
    if core.kind == "vector":
        raise NeedsCube
    if core.unit != "cube":
        raise fail("cores", "tile.vectors cannot be nested: a group has one cube core and two vector cores")
    rows = operator.index(rows)
    first = -(-rows // 2)
    halves = [(0, first, 0)] if not core.values or rows == 1 else [(0, first, 0), (first, rows, 1)]
    try:
        for start, stop, number in halves:
            core.unit = f"vec{number}"
            yield Half(start, stop, number)
    finally:
        core.unit = "cube"


def core_id() -> int:
    """Return the number of the core that runs the program, from 0."""
    core = current()
    core.differs = True
    return core.number


def core_count() -> int:
    """Return the number of cores that blocks are distributed to."""
    return current().cores


def scratch(shape: Sequence[int], dtype: Any = "float32", *, buffers: int = 2) -> Ref:
    """Allocate GM memory of this core or group, through which its cube core and vector cores pass data to each other.

    Executing the same source line again returns the next of `buffers` rotating buffers. Storing to a buffer discards
    its old data.
    """
    core = current()
    place = core.here("scratch")
    _, turn, _ = core.next_slot(place, _positive(buffers))
    memory = Memory("scratch", tuple(map(operator.index, shape)), str(dtype).removeprefix("torch."), "scratch")
    memory.place = place
    memory.turn = turn
    memory.buffers = buffers
    if core.values:
        prepare(memory, None)
    return Ref(memory, memory.shape, memory.strides, 0)


def prepare(memory: Memory, data: Any) -> None:
    """Initialize a memory's data and the record of its writers. Without data, the memory counts as unwritten."""
    import torch

    dtype = getattr(torch, memory.dtype)
    if data is None:
        fill: Any = float("nan") if dtype.is_floating_point else 0
        if memory.role == "sum":
            fill = 0
        memory.data = torch.full((max(1, prod(memory.shape)),), fill, dtype=dtype)
    else:
        # The memory below, with its gaps, so that references see strides.
        flat = torch.zeros(_extent(memory), dtype=data.dtype)
        flat.as_strided(memory.shape, memory.strides, memory.offset).copy_(data)
        memory.data = flat
    if memory.role != "in":
        memory.writers = torch.full(memory.data.shape, -1, dtype=torch.int32)
        memory.line_of = torch.full(memory.data.shape, -1, dtype=torch.int32)
    if memory.role in ("inout", "sum"):
        memory.readers = torch.full(memory.data.shape, -1, dtype=torch.int32)


def _extent(memory: Memory) -> int:
    return 1 if 0 in memory.shape else _last(memory) + 1


def _last(ref: Ref | Memory) -> int:
    """Return the position in the memory of the last element of `ref`."""
    return ref.offset + sum((n - 1) * s for n, s in zip(ref.shape, ref.strides, strict=True))


def runs_of(ref: Ref) -> tuple[int, int]:
    """Return (number of contiguous runs, elements per run) of a part of a tensor in memory.

    Raises TileError if the elements of this part do not form runs.
    """
    dims = [(n, s) for n, s in zip(ref.shape, ref.strides, strict=True) if n != 1]
    if not dims:
        return 1, 1
    if dims[-1][1] != 1 and ref.shape[-1] == 1:
        # Runs of single elements.
        return prod(n for n, _ in dims), 1
    if dims[-1][1] != 1:
        raise fail(
            "stride",
            f"{ref.memory.name}{list(ref.shape)} has a stride of {dims[-1][1]} along its last dimension: a copy takes "
            f"contiguous elements",
            hint="Load the rows in memory order, then use tile.transpose, or .T of a tile in L1."
            if any(stride == 1 for _, stride in dims)
            else "Load the elements in between as well, and select with tile.gather.",
        )
    run, count = dims[-1][0], 1
    joined = True
    for size, stride in reversed(dims[:-1]):
        if joined and stride == run:
            run *= size
        else:
            joined = False
            count *= size
    return count, run


def load(
    ref: Any,
    *,
    to: Place | None = None,
    buffers: int = 2,
    shape: Sequence[int] | None = None,
    fill: float | None = None,
    rows: Tile | None = None,
) -> Tile:
    """Copy a part of a tensor from GM to UB, or to L1 on the cube core.

    `buffers` is the number of rotating buffers of this source line. The n-th load waits until nothing reads the data of
    load n - `buffers` any more. `shape` pads the tile at the end of its dimensions, with the value `fill`. Without
    `fill`, the padding must not be used. `rows` is a tile of row numbers: row i of the tile is row rows[i] of `ref`.
    """
    core = current()
    if not isinstance(ref, Ref):
        raise fail(
            "path", f"{ref!r} is not a part of a tensor in GM", hint="Load arguments, or parts of them such as x[rows]."
        )
    place_to = _load_place(core, to)
    want = tuple(shape) if shape is not None else None
    source = _selected(core, ref, rows)
    _check_turn(core, ref.memory)
    made_shape = want or source.shape or (1,)
    if want and (len(want) != len(source.shape) or any(w < n for w, n in zip(want, source.shape, strict=True))):
        raise fail("shape", f"{list(source.shape)} is not padded to {list(want)}")
    swapped = rows is None and place_to == L1 and _is_swapped(source)
    runs, _ = _runs(source.T if swapped else source, rows)
    place = core.here()
    buffer = core.next_slot(place, _positive(buffers))
    size = padded_bytes(made_shape, ref.dtype, place_to)
    core.reserve(place, place_to, min(buffers, core.uses(place)), size)
    moved = prod(source.shape) * DTYPE_BYTES[ref.dtype]
    reads = _written_before(core, source) if rows is None else [*_written_before(core, ref), rows.buffer]
    path, cycles = _read_path(core, place_to, runs, moved)
    core.emit("load", MTE2, cycles, place, reads=reads, writes=[buffer], moves=(path, moved, ref.memory.name))
    tile = Tile(core, place_to, core.unit, made_shape, ref.dtype, buffer)  # pyright: ignore[reportArgumentType]
    tile.generation = buffer[1]
    tile.line = core.line(place)
    if core.values:
        _read(core, tile, source, rows, want, fill)
    return tile


def scalar(ref: Any, *, most: int, expected: int | None = None) -> int:
    """Read an integer from 0 to `most` from an input for use in the program itself, such as a page, a row or a count.

    The scalar unit reads it from GM, and everything after it on this core waits for it. If only the time is needed, the
    value is `expected` if given, otherwise `most`.
    """
    core = current()
    if not isinstance(ref, Ref) or prod(ref.shape) != 1:
        raise fail("shape", f"scalar of {ref!r}", hint="It takes one element: tile.scalar(lengths[b], most=n).")
    name = ref.memory.name
    if ref.dtype not in ("int32", "int64"):
        raise fail("dtype", f"scalars are int32 or int64, {name} is {ref.dtype}", hint="Load it as a tile instead.")
    if ref.memory.role != "in":
        raise fail(
            "path",
            f"a scalar cannot be read from {name}, which the program writes",
            hint="The scalar unit's cache does not see stores: read scalars only from inputs.",
        )
    place, size = core.here(), DTYPE_BYTES[ref.dtype]
    core.emit("scalar", SCALAR, 0.0, place, moves=("gm_to_scalar", size, name))
    if not core.values:
        return most if expected is None else expected
    value = int(ref.memory.data[ref.offset])
    if not 0 <= value <= most:
        raise fail(
            "bounds",
            f"{name} has {value}, which is not from 0 to {most}",
            hint="Set most= to the largest possible value.",
        )
    return value


def _load_place(core: Core, to: Place | None) -> Place:
    """Return the memory that the core loads to: L1 for a cube core, UB for a vector core.

    Raises TileError if `to` is another memory.
    """
    kind, reachable = ("cube", L1) if core.unit == "cube" else ("vector", UB)
    if to == L1 and core.kind == "vector":
        raise NeedsCube
    if to not in (None, reachable):
        raise fail(
            "path",
            f"a {kind} core cannot load from GM to {to}, only to {reachable}",
            hint=("In programs that use both core types, vector code must be inside `for half in tile.vectors(rows)`."),
        )
    return reachable


def _is_swapped(ref: Ref) -> bool:
    """Check whether a matrix is stored in column-major order, in which a matrix product can read it directly."""
    return len(ref.shape) == 2 and ref.strides[1] != 1 and ref.strides[0] == 1 and min(ref.shape) > 1


def _check_turn(core: Core, memory: Memory) -> None:
    """Raise TileError if the scratch memory's buffer has since been reused for a later iteration."""
    last = core.rings.get((memory.place, memory.turn % memory.buffers), memory)
    if memory.role == "scratch" and last is not memory:
        raise fail(
            "stale",
            f"the scratch memory of line {core.line(memory.place)[1]} was overwritten by a later iteration: it has "
            f"only {plural(memory.buffers, 'buffer')}",
            hint="Give that scratch memory more buffers, or load it earlier.",
        )


def _selected(core: Core, ref: Ref, rows: Tile | None) -> Ref:
    if rows is None:
        return ref
    if rows.dtype not in ("int32", "int64") or ref.ndim < 1:
        raise fail("dtype", f"row numbers must be int32 or int64, not {rows.dtype}")
    if rows.place != UB or rows.unit != core.unit:
        raise fail(
            "path",
            f"row numbers in {rows.place} of {rows.unit} cannot control a copy of {core.unit}: each core has its own "
            "memories",
            hint=(
                "Load the rows on the vector core that has their numbers; tile.scratch passes them to the cube core."
            ),
        )
    core.check_fresh(rows)
    check_defined(rows, "a copy by row numbers")
    return Ref(ref.memory, (prod(rows.shape), *ref.shape[1:]), ref.strides, ref.offset)


def _runs(ref: Ref, rows: Tile | None) -> tuple[int, int]:
    """Return (number of contiguous runs, elements per run). If `rows` selects rows by number, each row is a separate
    run.
    """
    if rows is None:
        return runs_of(ref)
    count, run = runs_of(Ref(ref.memory, ref.shape[1:], ref.strides[1:], ref.offset))
    return count * ref.shape[0], run


def _row_numbers(rows: Tile, memory: Memory) -> Any:
    """Return row numbers as torch indices. Raises TileError for a row that the memory does not have."""
    at = rows.data.reshape(-1).long()
    check_numbers(at, memory.shape[0], f"row {{}} of {memory.name}{list(memory.shape)}")
    return at


def check_numbers(at: Any, size: int, message: str) -> None:
    """Raise TileError if a number is outside 0 to `size` - 1. `{}` in `message` stands for the first such number."""
    wrong = at[(at < 0) | (at >= size)]
    if wrong.numel():
        raise fail("bounds", message.format(int(wrong[0])))


def _read_path(core: Core, to: Place, runs: int, moved: int) -> tuple[str, float]:
    """Return the field of `Pipes` with a load's rate, and the load's cycles in addition to those for moving bytes."""
    pipes = core.device.pipes
    if to == L1:
        return "gm_to_l1", max(0.0, runs * pipes.l1_row - moved / pipes.gm_to_l1)
    return "gm_to_ub", (runs - 1) * pipes.burst


def _written_before(core: Core, ref: Ref) -> list[Buffer]:
    """Return the buffers written by this core's earlier stores that a load from `ref` must wait for."""
    memory = ref.memory
    if memory.role == "scratch":
        return [memory.buffer]
    if not memory.stored:
        return []
    core.stored_read = True
    last = _last(ref)
    return [(place, 0, 1) for place, (low, high) in memory.stored.items() if low <= last and ref.offset <= high]


def _read(
    core: Core, tile: Tile, ref: Ref, rows: Tile | None, want: tuple[int, ...] | None, fill: float | None
) -> None:
    """Load the values of a tile. Raises TileError for unwritten values, or values written by another core."""
    import torch

    memory = ref.memory

    def part(of: Any) -> Any:
        if rows is None:
            return of.as_strided(ref.shape or (1,), ref.strides or (1,), ref.offset)
        whole = of.as_strided(memory.shape, memory.strides, memory.offset)
        return whole[_row_numbers(rows, memory)].reshape(ref.shape)

    if memory.writers is not None:
        _check_read(core, memory, part)
    data = part(memory.data).clone()
    if want and want != tuple(data.shape):
        whole = torch.full(
            want, float("nan") if fill is None and data.is_floating_point() else fill or 0, dtype=data.dtype
        )
        inside = tuple(slice(0, n) for n in data.shape)
        whole[inside] = data
        if fill is None:
            tile.defined, tile.why = torch.zeros(want, dtype=torch.bool), "mask"
            tile.defined[inside] = True
        data = whole
    tile.data = data


def _check_read(core: Core, memory: Memory, part: Any) -> None:
    writers = part(memory.writers)
    if memory.role in ("out", "scratch") and bool((writers < 0).any()):
        raise fail(
            "unwritten",
            f"{memory.name} is read before it was written: {int((writers < 0).sum())} of {writers.numel()} elements",
            hint="Results and scratch memory are empty at first.",
        )
    other = (writers >= 0) & _unordered(core, writers)
    if bool(other.any()):
        index = int(part(memory.line_of)[other][0])
        writer = int(writers[other][0])
        line = f" at line {memory.lines[index][1]}" if index >= 0 else ""
        raise fail(
            "race",
            f"{memory.name}: {_named(core.me)} reads what {_named(writer)} writes{line}, and their order is undefined",
            hint="Split the program into two kernels, or let one core write and read."
            if writer // 3 != core.number
            else "Let one half write and read, or let the cube core pass the data.",
        )
    if memory.readers is not None:
        before = part(memory.readers)
        before.copy_(before.where(before == core.me, before.new_tensor(-2)).where(before != -1, core.me))


def _named(me: int) -> str:
    """Return the name of a core, with its name in the group: "core 3 (vec1)"."""
    return f"core {me // 3}" + (f" ({UNITS[me % 3]})" if me % 3 else "")


def _unordered(core: Core, others: Any) -> Any:
    """Return a mask of cores without a defined order relative to this core: other groups, and the other vector core."""
    return (others // 3 != core.number) | ((others % 3 > 0) & (others != core.me) & (core.me % 3 > 0))


def store(ref: Any, tile: Any, *, add: bool = False, relu: bool = False, rows: Tile | None = None) -> None:
    """Copy a tile from UB or L0C to a part of a tensor in GM with the same shape.

    A tile from L0C is converted to the tensor's dtype on the way. With `relu`, negative values become 0 before that.
    With `add`, the tile is added to the existing values. All cores may do this, in any order, and the result must be a
    `tile.Sum`. `rows` is a tile of row numbers: row i of the tile goes to row rows[i].
    """
    core = current()
    if not isinstance(ref, Ref) or not isinstance(tile, Tile):
        raise fail("path", "store needs a part of a tensor and a tile: tile.store(y[rows], t)")
    memory = ref.memory
    if memory.role == "in":
        raise fail("path", f"{memory.name} is an input and cannot be stored to", hint="Annotate it with tile.Out.")
    if add != (memory.role == "sum") and memory.role != "scratch":
        raise fail(
            "race",
            f"{memory.name} is {'no' if add else 'a'} result that is added to",
            hint="store(..., add=True) needs an argument annotated with tile.Sum.",
        )
    core.check_fresh(tile)
    target = _selected(core, ref, rows)
    _check_store(core, target, tile, relu)
    place = core.here()
    runs, _run = _runs(target, rows)
    moved = prod(target.shape) * DTYPE_BYTES[memory.dtype]
    if tile.place == UB:
        pipe, path, cycles = MTE3, "ub_to_gm", (runs - 1) * core.device.pipes.burst
        if tile.generation < 0 and tile.owner is None and core.uses(tile.buffer[0]) > 1:
            # What is stored while the next one is computed takes a second buffer.
            core.reserve(tile.buffer[0], UB, 1, padded_bytes(tile.shape, tile.dtype, UB))
    else:
        pipe, path, cycles = FIXP, "l0c_to_gm", 0.0
    written = [memory.buffer] if memory.role == "scratch" else [(place, 0, 1)]
    reads = [tile.buffer] if rows is None else [tile.buffer, rows.buffer]
    if memory.role == "scratch":
        core.rings[memory.place, memory.turn % memory.buffers] = memory
    else:
        low, high = ref.offset, _last(ref)
        before = memory.stored.get(place, (low, high))
        memory.stored[place] = min(before[0], low), max(before[1], high)
    core.emit("store", pipe, cycles, place, reads=reads, writes=written, moves=(path, moved, memory.name))
    if core.values:
        _write(core, target, tile, add=add, relu=relu, rows=rows, place=place)


def _check_store(core: Core, ref: Ref, tile: Tile, relu: bool) -> None:
    if tile.place not in (UB, "L0C"):
        raise fail("path", f"a tile in {tile.place} cannot be stored to GM")
    if tile.unit != core.unit:
        raise fail("path", f"a tile of {tile.unit} is stored by {core.unit}, but each core has its own memories")
    if relu and tile.place == UB:
        raise fail("path", "relu= works only for results of products", hint="Use tile.relu(t) for tiles in UB.")
    wanted = ref.shape or (1,)
    if not _fits(wanted, tile.shape):
        raise fail(
            "shape",
            f"a tile of shape {list(tile.shape)} is stored to shape {list(wanted)} of {ref.memory.name}",
            hint="Partial blocks are smaller: index the result with the same block as the loaded tile.",
        )
    if tile.place == UB and tile.dtype != ref.dtype:
        raise fail(
            "dtype",
            f"a {tile.dtype} tile is stored to {ref.dtype} {ref.memory.name}",
            hint=f"t.to({ref.memory.name}.dtype)",
        )
    if tile.place == "L0C" and ref.dtype not in OUT_OF_L0C.get(tile.dtype, ()):
        raise fail("dtype", f"results of {tile.dtype} cannot be stored as {ref.dtype}")


OUT_OF_L0C = {"float32": ("float32", "float16", "bfloat16"), "int32": ("int32", "float16", "int8")}
"""Dtype in L0C → dtypes to which data can be converted while it leaves L0C."""


def _fits(wanted: Sequence[int], shape: Sequence[int]) -> bool:
    """Check whether shapes without sizes of 1 are equal, or become equal if one is flattened to rows of its last
    dimension.
    """
    wanted_sizes, tile_sizes = _squeezed(wanted), _squeezed(shape)
    if wanted_sizes == tile_sizes:
        return True
    return (
        min(len(wanted_sizes), len(tile_sizes)) == 2
        and wanted_sizes[-1] == tile_sizes[-1]
        and prod(wanted_sizes) == prod(tile_sizes)
    )


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _write(core: Core, ref: Ref, tile: Tile, *, add: bool, relu: bool, rows: Tile | None, place: int) -> None:
    """Store the values of a tile. Raises TileError if an element is written twice, or padding is written."""
    import torch

    memory = ref.memory
    if tile.defined is not None and not bool(tile.defined.all()):
        raise fail("mask" if tile.why == "mask" else "unwritten", f"{_undefined(tile)} are stored to {memory.name}")
    at: Any = ... if rows is None else _row_numbers(rows, memory)
    if rows is not None and not add and len(set(at.tolist())) < at.numel():
        raise fail(
            "race", f"a row of {memory.name} is written twice by one store", hint="Row numbers must be distinct."
        )
    target = ref if rows is None else Ref(memory, memory.shape, memory.strides, memory.offset)

    def view(of: Any) -> Any:
        return of.as_strided(target.shape or (1,), target.strides or (1,), target.offset)

    data = tile.data.clamp_min(0) if relu else tile.data
    data = data.to(getattr(torch, memory.dtype)).reshape(ref.shape or (1,))
    if memory.readers is not None:
        readers = view(memory.readers)[at]
        if bool(((readers == -2) | ((readers >= 0) & _unordered(core, readers))).any()):
            raise fail("race", f"{memory.name}: {_named(core.me)} writes what another core reads")
    if add:
        sums = view(memory.data)
        sums.copy_(sums + data) if rows is None else sums.index_add_(0, at, data)
    else:
        _check_order(core, memory, view(memory.writers)[at], view(memory.line_of)[at])
        memory.lines.append(core.line(place))
        view(memory.data)[at] = data
        view(memory.line_of)[at] = len(memory.lines) - 1
    view(memory.writers)[at] = core.me


def _check_order(core: Core, memory: Memory, writers: Any, lines: Any) -> None:
    """Raise TileError if a core without a defined order relative to this core already wrote the stored elements."""
    clash = (writers >= 0) & _unordered(core, writers)
    if bool(clash.any()):
        raise fail(
            "race",
            f"{memory.name}: {_named(core.me)} writes {int(clash.sum())} elements that "
            f"{_named(int(writers[clash][0]))} wrote at line {memory.lines[int(lines[clash][0])][1]}",
            hint="Assign each element to one core; for sums over several cores use tile.Sum with add=True.",
        )


def _undefined(tile: Tile) -> str:
    missing = tile.defined.numel() - int(tile.defined.sum())
    kind = "elements of padding" if tile.why == "mask" else "unwritten elements"
    return f"{missing} {kind} (tile of line {tile.line[1]})"


def check_defined(tile: Tile, what: str) -> None:
    """Raise TileError if an instruction over whole rows or columns would use padding or unwritten elements."""
    if tile.defined is not None and not bool(tile.defined.all()):
        limit = "mask" if tile.why == "mask" else "unwritten"
        hint = "Load with fill=, or leave the padding out." if limit == "mask" else "Fill it first."
        raise fail(limit, f"{what} uses {_undefined(tile)}", hint=hint)
