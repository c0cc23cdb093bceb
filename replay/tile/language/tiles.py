"""Tensors in GM, references to parts of them, and tiles: pieces of data in a memory of a core."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opreplay.replay.tile.language.instructions import Buffer
from opreplay.replay.tile.language.places import DTYPE_BYTES, Place, fail
from opreplay.replay.tile.language.positions import ZERO, Expr, Notes, Position, plain
from opreplay.traces.model import contiguous_strides

if TYPE_CHECKING:
    from typing_extensions import Self


class Memory:
    """A tensor in GM: an argument, a result, or scratch memory of a core."""

    __slots__ = (
        "buffers",
        "data",
        "dtype",
        "line_of",
        "lines",
        "name",
        "offset",
        "place",
        "readers",
        "role",
        "shape",
        "stored",
        "strides",
        "turn",
        "writers",
    )

    def __init__(
        self, name: str, shape: Sequence[int], dtype: str, role: str, strides: Sequence[int] | None = None
    ) -> None:
        if dtype not in DTYPE_BYTES:
            raise fail("dtype", f"{name}: tile programs do not support {dtype}")
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.role = role
        """"in", "out", "inout", "sum" or "scratch"."""
        self.strides = tuple(strides) if strides is not None else contiguous_strides(self.shape)
        self.offset = 0
        self.data: Any = None
        """Data of the whole memory as a torch tensor, if values are computed."""
        self.writers: Any = None
        """For each element, the core that wrote it; -1 for none."""
        self.readers: Any = None
        """For a memory that is read and written: core that read each element; -1 for none, -2 for several."""
        self.line_of: Any = None
        """For each element, the index in `lines` of the store that wrote it."""
        self.lines: list[tuple[str, int]] = []
        self.place = -1
        """For scratch memory: place in the source that allocated it."""
        self.turn = 0
        """For scratch memory: number of earlier allocations at the same place."""
        self.buffers = 1
        self.stored: dict[int, tuple[int, int]] = {}
        """Place in the source of a store → lowest and highest element that the store wrote on this core."""

    @property
    def buffer(self) -> Buffer:
        """For scratch memory: its rotating buffer."""
        return self.place, self.turn, self.buffers


class Where(NamedTuple):
    """The position of a block as an expression, for programs without values."""

    number: Expr = ZERO
    """Number of the block."""
    first: Expr = ZERO
    """Start of the block's loop."""
    step: int = 1
    notes: Notes | None = None
    """Records conditions on positions; None if positions are plain numbers."""


NUMBERED = Where()


class Block:
    """A part of a dimension, as yielded by `blocks`, `grid` and `steps`. It indexes tensors like a slice."""

    __slots__ = ("_first", "_index", "_most", "_notes", "_number", "_start", "_step", "_stop", "drop")

    def __init__(
        self,
        start: int,
        stop: int,
        index: int,
        *,
        drop: bool = False,
        where: Where = NUMBERED,
        most: int | None = None,
    ) -> None:
        self._start, self._stop, self._index = start, stop, index
        self.drop = drop
        """Whether this is a single position whose dimension is removed, as with an integer index."""
        self._number, self._first, self._step, self._notes = where
        self._most = most
        # Where its loop ends; None where that is a position itself.

    @property
    def size(self) -> int:
        """Number of elements; at the end of the dimension, it may be smaller than the block size."""
        return self._stop - self._start

    def __len__(self) -> int:
        return self.size

    def _position(self, value: int, expr: Expr) -> int:
        # To programs a position is a number.
        return value if self._notes is None or not expr.parts else Position(value, expr, self._notes)  # pyright: ignore[reportReturnType]

    @property
    def start(self) -> int:
        """First position."""
        return self._position(self._start, self._first.plus(self._number, self._step))

    @property
    def stop(self) -> int:
        """Position after the last one."""
        return self.start + self.size

    @property
    def index(self) -> int:
        """Number of the block, from 0."""
        return self._position(self._index, self._number)

    def __index__(self) -> int:
        if self.size != 1:
            raise fail(
                "shape", f"a block of {self.size} elements is not a single index", hint="Index with the block itself."
            )
        return operator.index(self.start)

    def span(self) -> tuple[int, int]:
        """Return the first position and the position after the last, without recording a condition (internal)."""
        return self._start, self._stop

    def within(self, size: int) -> tuple[Any, int]:
        """Return start and stop within a dimension. The bounds check is recorded if other blocks might fail it."""
        start: Any = self._start if self._most is not None and self._most <= size else self.start
        return start, start + self.size


Index = Any
"""A block, a slice without step, an int, or `...` for all remaining dimensions."""


class Ref:
    """A part of a tensor in GM, for loads and stores."""

    __slots__ = ("memory", "offset", "shape", "strides")

    def __init__(self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
        self.memory, self.shape, self.strides, self.offset = memory, shape, strides, offset

    @property
    def dtype(self) -> str:
        """Name of the dtype in torch."""
        return self.memory.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def T(self) -> Ref:
        """The tensor with the last two dimensions swapped."""
        if self.ndim < 2:
            raise fail(
                "shape", f"{self.memory.name}{list(self.shape)} has one dimension: there is nothing to transpose"
            )
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return Ref(self.memory, shape, (*self.strides[:-2], self.strides[-1], self.strides[-2]), self.offset)

    def permute(self, *dims: int) -> Ref:
        """Return the tensor with its dimensions in another order."""
        if sorted(dims) != list(range(self.ndim)):
            raise fail("shape", f"{dims} is not a permutation of {self.ndim} dimensions")
        return Ref(self.memory, tuple(self.shape[d] for d in dims), tuple(self.strides[d] for d in dims), self.offset)

    def view(self, *shape: int) -> Ref:
        """Return the same elements in another shape; one size may be -1. The elements must be contiguous."""
        count = prod(self.shape)
        known = prod(n for n in shape if n >= 0)
        sizes = tuple(count // max(1, known) if n < 0 else n for n in shape)
        if prod(sizes) != count:
            raise fail("shape", f"{self.memory.name}{list(self.shape)} cannot be viewed as {list(sizes)}")
        expected = contiguous_strides(self.shape)
        if any(n > 1 and s != e for n, s, e in zip(self.shape, self.strides, expected, strict=True)):
            raise fail(
                "stride",
                f"{self.memory.name}{list(self.shape)} with strides {list(self.strides)} "
                f"has gaps, so it cannot change its shape",
                hint="Create views of the whole tensor before indexing it.",
            )
        return Ref(self.memory, sizes, contiguous_strides(sizes), self.offset)

    def __getitem__(self, key: Index) -> Ref:
        keys: list[Any] = list(key) if isinstance(key, tuple) else [key]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        if len(keys) > self.ndim:
            raise fail("bounds", f"{len(keys)} indexes are too many for {self.memory.name}{list(self.shape)}")
        keys += [slice(None)] * (self.ndim - len(keys))
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for dim, (index, size, stride) in enumerate(zip(keys, self.shape, self.strides, strict=True)):
            start, stop, keep = _range(index, size, self, dim)
            offset += start * stride
            if keep:
                shape.append(stop - start)
                strides.append(stride)
        return Ref(self.memory, tuple(shape), tuple(strides), offset)

    def __repr__(self) -> str:
        return f"{self.memory.name}: {self.dtype}{list(self.shape)} in GM"


def _range(index: Any, size: int, ref: Ref, dim: int) -> tuple[int, int, bool]:
    """Return start and stop of an index within a dimension, and whether the dimension is kept. Raises TileError."""
    if isinstance(index, Block):
        start, stop = index.within(size)
        keep = not index.drop
    elif isinstance(index, slice):
        if index.step not in (None, 1):
            raise fail(
                "stride",
                f"a slice with step {index.step}: copies need elements without gaps",
                hint="Load everything and use tile.gather.",
            )
        start = 0 if index.start is None else _whole(index.start)
        stop = size if index.stop is None else _whole(index.stop)
        keep = True
    else:
        start = _whole(index)
        stop, keep = start + 1, False
    if not 0 <= start <= stop <= size or (stop == start and size > 0 and not keep):
        raise fail(
            "bounds",
            f"{ref.memory.name}{list(ref.shape)}: {start}:{stop} is outside dimension {dim} of size {size}",
            hint="tile.blocks and tile.steps stop at the end of the tensor.",
        )
    first, count = plain(start), int(stop - start)
    return first, first + count, keep


def _whole(index: Any) -> Any:
    """Return a position unchanged, and any other value as int."""
    return index if isinstance(index, Position) else int(index)


class Computing(Protocol):
    """The interface of the recording core that a tile's operators need."""

    def elementwise(self, name: str, first: Any, *others: Any) -> Tile: ...
    def convert(self, value: Tile, dtype: str) -> Tile: ...
    def part(self, value: Tile, key: Any) -> Tile: ...
    def reshaped(self, value: Tile, shape: tuple[int, ...]) -> Tile: ...
    def released(self, value: Tile) -> None: ...


class Operators:
    """Python's operators, implemented by vector instructions."""

    __slots__ = ()

    def instruction(self, name: str, *others: Any) -> Self:
        """Apply a vector instruction by name."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        return self.instruction("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        return self.instruction("sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self.instruction("rsubs", other)

    def __mul__(self, other: Any) -> Self:
        return self.instruction("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Self:
        return self.instruction("div", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self.instruction("rdivs", other)

    def __and__(self, other: Any) -> Self:
        return self.instruction("and", other)

    def __or__(self, other: Any) -> Self:
        return self.instruction("or", other)

    def __xor__(self, other: Any) -> Self:
        return self.instruction("xor", other)

    def __lshift__(self, other: Any) -> Self:
        return self.instruction("shl", other)

    def __rshift__(self, other: Any) -> Self:
        return self.instruction("shr", other)

    def __neg__(self) -> Self:
        return self.instruction("neg")


class Tile(Operators):
    """Data in a memory of a core, in rows of its last dimension. Operators are instructions of the vector core."""

    __slots__ = (
        "buffer",
        "core",
        "data",
        "defined",
        "dtype",
        "generation",
        "line",
        "owner",
        "place",
        "reserved",
        "shape",
        "unit",
        "why",
    )

    def __init__(
        self, core: Computing, place: Place, unit: str, shape: tuple[int, ...], dtype: str, buffer: Buffer
    ) -> None:
        self.core, self.unit, self.shape, self.dtype, self.buffer = core, unit, shape, dtype, buffer
        self.place: Place = place
        self.data: Any = None
        """Data of the tile as a torch tensor, if values are computed."""
        self.defined: Any = None
        """Boolean torch tensor of the elements that hold data; None if all do."""
        self.why = ""
        """Reason for elements without data: "mask" for padding, "unwritten" for memory that was only allocated."""
        self.reserved: list[int] = []
        """One-element list of the reserved bytes, 0 once released. [] for parts and loads, because their buffers
        persist.
        """
        self.generation = -1
        """For a loaded tile: number of earlier executions of its place in the source."""
        self.owner: Tile | None = None
        """For a part of a tile: the whole tile."""
        self.line: tuple[str, int] = ("", 0)

    def __del__(self) -> None:
        if self.reserved:
            self.core.released(self)

    def instruction(self, name: str, *others: Any) -> Tile:
        """Apply a vector instruction by name."""
        return self.core.elementwise(name, self, *others)

    def to(self, dtype: Any) -> Tile:
        """Convert to another dtype: a name, a torch dtype or a reference's `dtype`."""
        return self.core.convert(self, str(dtype).removeprefix("torch."))

    def float(self) -> Tile:
        """Convert to float32; return the tile itself if it is float32."""
        return self if self.dtype == "float32" else self.to("float32")

    def half(self) -> Tile:
        """Convert to float16; return the tile itself if it is float16."""
        return self if self.dtype == "float16" else self.to("float16")

    def __getitem__(self, key: Any) -> Tile:
        return self.core.part(self, key)

    def view(self, *shape: int) -> Tile:
        """Return the same data in another shape."""
        return self.core.reshaped(self, shape)

    @property
    def T(self) -> Tile:
        """View of a tile in L1 that a matrix product reads as transposed, at no extra cost."""
        if self.place != "L1":
            raise fail("path", f"a tile in {self.place} has no transposed view", hint="Use tile.transpose(t).")
        transposed = self.core.reshaped(self, (*self.shape[:-2], self.shape[-1], self.shape[-2]))
        if self.data is not None:
            transposed.data = self.data.transpose(-1, -2)
        if self.defined is not None:
            transposed.defined, transposed.why = self.defined.transpose(-1, -2), self.why
        return transposed

    def __bool__(self) -> bool:
        raise fail(
            "program",
            "the values of a tile cannot control the program: its core would have to wait for them",
            hint="tile.where selects by element; compare with None using `is`.",
        )

    def __repr__(self) -> str:
        values = "" if self.data is None else f"\n{self.data}"
        return f"{self.dtype}{list(self.shape)} in {self.place}{values}"
