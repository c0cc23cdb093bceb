"""Values of a program while it is emitted: sizes as expressions, parts of tensors, tiles, blocks.

A size has both an expression in the kernel and a value in the current case. If the launcher knows both sides of a
comparison, the comparison becomes a condition of the kernel. A comparison of block positions becomes a branch, or is
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from operator import floordiv, mod
from pathlib import Path
from typing import Any

import msgspec

from opreplay.replay.tile.language.instructions import VECTOR
from opreplay.replay.tile.language.places import FLOAT8
from opreplay.replay.tile.language.tiles import Operators

TRACER: ContextVar[Any] = ContextVar("TRACER")
"""The `kernel.Tracer` of the program that is being emitted."""
_HERE = str(Path(__file__).parent)
_LANGUAGE = str(Path(_HERE).parent / "language")


class Refused(Exception):
    """Raised for a program that cannot be emitted.

    Attributes: line (int): line in the program's source; reason (str).
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, user_line()[1] if line is None else line


def user_line() -> tuple[str, int]:
    """Return the file and the line that the program is running."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _LANGUAGE, "<")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(frozen=True, slots=True)
class Atom:
    """A name in a kernel, or a non-linear expression, with its value."""

    text: str
    value: Any
    bases: frozenset[str]
    """Launcher arguments that the value depends on."""
    bound: Any = None
    """Upper bound of a block position, as an expression that the launcher knows; None if this is not a position."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Num:
    """A linear combination of atoms."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[Atom, Any], constant: Any = 0) -> None:
        self.terms, self.constant = terms, constant

    @property
    def value(self) -> Any:
        """Value in the current case."""
        return sum((atom.value * times for atom, times in self.terms.items()), self.constant)

    @property
    def known(self) -> bool:
        """Whether the launcher knows the number."""
        return all(atom.bound is None for atom in self.terms)

    @property
    def bases(self) -> frozenset[str]:
        """Launcher arguments that the number depends on."""
        return frozenset[str]().union(*(atom.bases for atom in self.terms))

    def __str__(self) -> str:
        ordered = sorted(self.terms.items(), key=lambda term: term[1] < 0)
        out = ""
        for atom, times in ordered:
            text = atom.text if abs(times) == 1 else f"{atom.text} * {abs(times)}"
            sign = "-" if times < 0 else "+"
            out = f"{out} {sign} {text}" if out else f"-{text}" if times < 0 else text
        if self.constant:
            out += f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}"
        return out

    def _plus(self, other: Any, times: int) -> Any:
        if not isinstance(other, int | float | Num):
            return NotImplemented
        terms = dict(self.terms)
        for atom, factor in other.terms.items() if isinstance(other, Num) else ():
            terms[atom] = terms.get(atom, 0) + factor * times
        terms = {atom: factor for atom, factor in terms.items() if factor}
        constant = self.constant + times * (other.constant if isinstance(other, Num) else other)
        return Num(terms, constant) if terms else constant

    def __add__(self, other: Any) -> Any:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._plus(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return (-self)._plus(other, 1)

    def __neg__(self) -> Any:
        return self * -1

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int | float):
            terms = {atom: times * other for atom, times in self.terms.items()}
            return Num(terms, self.constant * other) if other else 0
        if not isinstance(other, Num):
            return NotImplemented
        return joined(f"{enclosed(self)} * {enclosed(other)}", self.value * other.value, self, other, _times)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, "//", other, floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, "//", self, floordiv)

    def __mod__(self, other: Any) -> Any:
        return _quotient(self, "%", other, mod)

    def __rmod__(self, other: Any) -> Any:
        return _quotient(other, "%", self, mod)

    def _real(self, text: str, value: Any, other: Any) -> Any:
        if not self.known or not plain_known(other):
            raise Refused("a quotient of block positions is not an integer")
        return TRACER.get().hoisted(text, value, self.bases | bases_of(other))

    def __truediv__(self, other: Any) -> Any:
        return self._real(f"{enclosed(self)} / {enclosed(other)}", self.value / value_of(other), other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._real(f"{enclosed(other)} / {enclosed(self)}", value_of(other) / self.value, other)

    def __pow__(self, other: Any) -> Any:
        return self._real(f"{enclosed(self)} ** {enclosed(other)}", self.value ** value_of(other), other)

    def _compared(self, other: Any, how: str) -> bool:
        difference = self - other
        if not isinstance(difference, Num):
            return bool(_HOW[how](difference))
        return TRACER.get().decided(self, how, other, bool(_HOW[how](difference.value)), difference)

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, "<")

    def __le__(self, other: Any) -> bool:
        return self._compared(other, "<=")

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, ">")

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, ">=")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float | Num) and self._compared(other, "==")

    def __bool__(self) -> bool:
        return self._compared(0, "!=")

    def __index__(self) -> int:
        return TRACER.get().fixed(self)

    def __int__(self) -> int:
        return int(TRACER.get().fixed(self))

    def __float__(self) -> float:
        return float(TRACER.get().fixed(self))

    def __hash__(self) -> int:
        return hash(TRACER.get().fixed(self))


_HOW: dict[str, Callable[[Any], bool]] = {
    "<": lambda d: d < 0,
    "<=": lambda d: d <= 0,
    ">": lambda d: d > 0,
    ">=": lambda d: d >= 0,
    "==": lambda d: d == 0,
    "!=": lambda d: d != 0,
}


def atom(text: str, value: Any, bases: frozenset[str] = frozenset(), bound: Any = None) -> Num:
    """Return a number that consists of one name or expression in the kernel."""
    return Num({Atom(text, value, bases, bound): 1})


def value_of(number: Any) -> Any:
    """Return a number's value in the current case."""
    return number.value if isinstance(number, Num) else number


def plain_known(number: Any) -> bool:
    """Check whether the launcher knows a number."""
    return not isinstance(number, Num) or number.known


def bases_of(number: Any) -> frozenset[str]:
    """Return the launcher arguments that a number depends on."""
    return number.bases if isinstance(number, Num) else frozenset()


def same(first: Any, second: Any) -> bool:
    """Check whether two sizes are the same expression, without adding a condition."""
    return str(first) == str(second)


def enclosed(number: Any) -> str:
    """Return a number's text as an operand of a product, in brackets if needed."""
    text = str(number)
    if text.isidentifier() or _in_brackets(text) or (not isinstance(number, Num) and number >= 0):
        return text
    return f"({text})"


def _in_brackets(text: str) -> bool:
    """Check whether the first bracket is closed by the last one. The text then needs no further brackets."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth:
            return sign == ")" and at == len(text) - 1
    return False


def bound_of(number: Any) -> Any:
    """Return an upper bound of a size. The launcher knows the bound even if the size depends on block positions."""
    if plain_known(number):
        return number
    out: Any = number.constant
    for each, times in number.terms.items():
        if each.bound is None:
            out = out + Num({each: times})
        elif times > 0:
            out = out + each.bound * times
    return out


def _times(first: Any, second: Any) -> Any:
    return first * second


def _first(first: Any, _second: Any) -> Any:
    return first


def joined(text: str, value: Any, first: Any, second: Any, bound: Callable[[Any, Any], Any]) -> Num:
    """Return the result of a non-linear operator as a number."""
    limit = None if plain_known(first) and plain_known(second) else bound(bound_of(first), bound_of(second))
    return atom(text, value, bases_of(first) | bases_of(second), limit)


def _quotient(first: Any, sign: str, second: Any, operate: Callable[[Any, Any], Any]) -> Any:
    if sign == "//" and isinstance(second, int) and second == 1:
        return first
    text = f"({enclosed(first)} {sign} {enclosed(second)})"
    return joined(text, operate(value_of(first), value_of(second)), first, second, _first)


def product(numbers: Sequence[Any]) -> Any:
    """Return the product of sizes."""
    return reduce(_times, numbers, 1)


class DType(str):
    """A dtype that the kernel takes from an argument. One kernel then serves all dtypes.

    A comparison with it becomes a condition of the kernel.
    """

    origin: str

    @staticmethod
    def of(name: str, origin: str) -> DType:
        """Return a dtype that comes from the argument `origin`."""
        out = DType(name)
        out.origin = origin
        return out

    def __eq__(self, other: object) -> bool:
        return TRACER.get().of_dtype(self, str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        TRACER.get().of_dtype(self, str.__str__(self))
        return str.__hash__(self)


class Cell(msgspec.Struct):
    """Scratch memory. Data that one half of a core stores and the other half loads becomes one value of the kernel."""

    shape: tuple[Any, ...]
    tile: Tile | None = None

    def check(self, ref: Ref) -> None:
        """Raise Refused if `ref` is only a part of the memory."""
        whole = len(ref.dims) == len(self.shape) and all(map(same, ref.shape, self.shape))
        if not whole or str(ref.offset) != "0":
            raise Refused("a part of tile.scratch: Triton keeps the whole block in registers")


class Ref:
    """A part of a tensor in GM."""

    def __init__(
        self,
        name: str,
        role: str,
        dtype: Any,
        dims: Sequence[tuple[Any, Any]],
        offset: Any = 0,
        cell: Cell | None = None,
    ) -> None:
        self.name, self.role, self.dtype, self.offset = name, role, dtype, offset
        self.dims = tuple(dims)
        """(size, stride) of each dimension."""
        self.cell = cell
        """Contents of the memory, if it is scratch memory."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of the part."""
        return tuple(size for size, _ in self.dims)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    def _with(self, dims: Sequence[tuple[Any, Any]], offset: Any = None) -> Ref:
        return Ref(self.name, self.role, self.dtype, dims, self.offset if offset is None else offset, self.cell)

    @property
    def T(self) -> Ref:
        """The tensor with the last two dimensions swapped."""
        return self._with((*self.dims[:-2], self.dims[-1], self.dims[-2]))

    def permute(self, *order: int) -> Ref:
        """Return the tensor with its dimensions in another order."""
        return self._with([self.dims[at] for at in order])

    def view(self, *shape: Any) -> Ref:
        """Return the same elements in another shape; the tensor must be contiguous."""
        TRACER.get().contiguous(self)
        sizes = list(shape)
        rest = next((at for at, n in enumerate(sizes) if isinstance(n, int) and n < 0), None)
        if rest is not None:
            sizes[rest] = _remaining(list(self.shape), [n for at, n in enumerate(sizes) if at != rest])
        strides = [product(sizes[at + 1 :]) for at in range(len(sizes))]
        return self._with(list(zip(sizes, strides, strict=True)))

    def __getitem__(self, key: Any) -> Ref:
        keys: list[Any] = list(key) if isinstance(key, tuple) else [key]
        if any(index is Ellipsis for index in keys):
            at = next(i for i, index in enumerate(keys) if index is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        keys += [slice(None)] * (self.ndim - len(keys))
        dims: list[tuple[Any, Any]] = []
        offset = self.offset
        for index, (size, stride) in zip(keys, self.dims, strict=True):
            start, length = span(index, size)
            _within(index, start, length, size)
            offset = offset + start * stride
            if length is not None:
                dims.append((length, stride))
        return self._with(dims, offset)


def _within(index: Any, start: Any, length: Any, size: Any) -> None:
    """Require that an index is within its dimension; skip this if the launcher cannot check it."""
    last = index.total if isinstance(index, Block) else start + 1 if length is None else start + length
    TRACER.get().required(last, "<=", size)


def _remaining(sizes: list[Any], others: list[Any]) -> Any:
    """Return the product of `sizes` divided by the product of `others`."""
    divisors: list[Any] = []
    for other in others:
        at = next((i for i, size in enumerate(sizes) if same(size, other)), None)
        if at is None:
            divisors.append(other)
        else:
            sizes.pop(at)
    return product(sizes) // product(divisors) if divisors else product(sizes)


def merged(ref: Ref, count: int) -> Ref:
    """Merge the first `count` dimensions into one with a single index."""
    first = ref.dims[:count]
    return Ref(ref.name, ref.role, ref.dtype, [(product([n for n, _ in first]), first), *ref.dims[count:]], ref.offset)


def span(index: Any, size: Any) -> tuple[Any, Any]:
    """Return (start, length) of an index; the length is None for a single position, which removes the dimension."""
    if isinstance(index, Block):
        return index.start, None if index.drop else index.size
    if isinstance(index, slice):
        if index.step not in (None, 1):
            raise Refused(f"a step of {index.step} in a slice")
        start = 0 if index.start is None else index.start
        return start, (size if index.stop is None else index.stop) - start
    return index, None


class Block:
    """A part of a dimension."""

    def __init__(self, start: Any, size: Any, step: Any, total: Any, *, drop: bool = False) -> None:
        self.start, self.size, self.step, self.total, self.drop = start, size, step, total, drop

    @property
    def stop(self) -> Any:
        """Position after the last one."""
        return self.start + self.size

    @property
    def index(self) -> Any:
        """Number of the block."""
        return self.start // self.step

    def __index__(self) -> int:
        return self.start.__index__()


class Half(Block):
    """All rows, instead of the two halves that a program assigns to the vector cores of a group."""

    @property
    def index(self) -> Any:
        """Always 0, because there is only one half."""
        return 0

    def span(self) -> tuple[Any, Any]:
        """Return the first position, and the position after the last one."""
        return self.start, self.stop


class Value:
    """A name in a kernel, computed by a statement."""

    def __init__(self, name: str) -> None:
        self._name, self.alias = name, None
        self.over = False
        self.constant = False

    alias: Value | None
    over: bool
    """Whether the value is from the first iteration of a finished loop. Later iterations have replaced it."""

    @property
    def name(self) -> str:
        """The current name."""
        return self._name if self.alias is None else self.alias.name

    def call(self, name: str) -> None:
        """Rename the value."""
        self._name = name


class Tile(Operators):
    """Data on a core, with its sizes; it is emitted as a named block of the kernel."""

    def __init__(self, value: Value, shape: Sequence[Any], dtype: str, source: Ref | None = None) -> None:
        self.value, self.shape, self.dtype = value, tuple(shape), dtype
        self.source = source
        """Part of a tensor from which the tile was loaded; None for other tiles."""

    def instruction(self, name: str, *others: Any) -> Tile:
        """Apply a vector instruction by name."""
        form = VECTOR[name].triton
        if "{" in form:
            return TRACER.get().computed(form, (self, *others))
        # Triton has it for float32 only.
        if isinstance(self.dtype, DType) or self.dtype != "float32":
            return TRACER.get().computed(f"{form}({{}}.to(tl.float32)).to({{0}}.dtype)", (self,))
        return TRACER.get().computed(f"{form}({{}})", (self,))

    def to(self, dtype: Any) -> Tile:
        """Convert to another dtype. Raises Refused for float8, which Triton's interpreter rounds incorrectly."""
        if str.__str__(str(dtype)).removeprefix("torch.") in FLOAT8:
            raise Refused("a conversion to float8: the interpreter that checks the kernel rounds it differently")
        if isinstance(dtype, DType):
            return TRACER.get().computed(f"{{}}.to({dtype.origin}_ptr.dtype.element_ty)", (self,), dtype)
        name = str(dtype).removeprefix("torch.")
        if not isinstance(self.dtype, DType) and self.dtype == name:
            return self
        return TRACER.get().computed(f"{{}}.to({triton_dtype(name)})", (self,), name)

    def float(self) -> Tile:
        """Convert to float32."""
        return self.to("float32")

    def half(self) -> Tile:
        """Convert to float16."""
        return self.to("float16")

    def __getitem__(self, key: Any) -> Tile:
        if self.source is None:
            raise Refused("a part of a computed tile: Triton keeps whole blocks in registers")
        return TRACER.get().loaded_again(self.source[key])

    def view(self, *shape: Any) -> Tile:
        """Return the same data in another shape."""
        return TRACER.get().reshaped(self, shape)

    @property
    def T(self) -> Tile:
        """The tile with rows and columns swapped."""
        return TRACER.get().transposed(self)


def triton_dtype(name: str) -> str:
    """Return Triton's name for a dtype."""
    named = {"bool": "int1", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}
    return f"tl.{named.get(name, name)}"
