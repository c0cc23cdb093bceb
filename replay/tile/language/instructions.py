"""The instructions: on which pipe, for which dtypes, in how many cycles; each number with its source.

A vector instruction takes `start + slope * elements` cycles; `slope` is for float32 on a core whose instructions are
128 bytes wide in and out; 2-byte types take half of it. Numbers come from the public cost models of PTO-ISA and
asc-devkit unless stated otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Buffer = tuple[int, int, int]
"""Place of the source, how often that was come by before, and how many buffers take turns there."""
Pipe = str
"""MTE2 (GM to L1 or UB), MTE1 (L1 to L0A, L0B), CUBE, FIXP (L0C to GM or L1), VEC, MTE3 (UB to GM), S (scalar)."""
MTE2, MTE1, CUBE, FIXP, VEC, MTE3, SCALAR = "MTE2", "MTE1", "CUBE", "FIXP", "VEC", "MTE3", "S"

Unit = str
"""Core of a group: "cube", "vec0", "vec1"; "vec0" alone in programs of vector cores."""


class Instruction(NamedTuple):
    """One instruction of a core, the unit of a schedule. Equal instructions take the same time for the same data."""

    name: str
    unit: Unit
    pipe: Pipe
    cycles: float
    """On the pipe, without bytes that come from or go to GM."""
    path: str
    """Of `Pipes`, for what moves from or to GM; else ""."""
    size: int
    """Bytes that move so."""
    memory: str
    """Tensor of GM that it reads or writes; else ""."""
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    place: int
    """Of the source; `Recording.lines` has the line."""


Advance = tuple[tuple[int, int], ...]
"""By place of the source: by how much later its buffers are."""


class Repeat(NamedTuple):
    """The preceding `length` steps of the list, including nested repetitions, are repeated `times` more times.

    Each time the buffers move on by `advance`.
    """

    length: int
    times: int
    advance: Advance


class Part:
    """The steps of one block, with the count of each repetition for this block."""

    __slots__ = ("advance", "steps", "times", "whole")

    def __init__(self, steps: list[Step], times: tuple[int, ...], advance: Advance) -> None:
        self.steps = steps
        """Shared by blocks that do the same; buffers are counted from the begin of the block."""
        self.times = times
        """Of the repetitions, in order."""
        self.advance = advance
        self.whole: list[Step] | None = None

    def written_out(self) -> list[Step]:
        """Return the steps with their repetition counts filled in."""
        if self.whole is None:
            times = iter(self.times)
            self.whole = [s._replace(times=next(times)) if isinstance(s, Repeat) else s for s in self.steps]
        return self.whole


Step = Instruction | Repeat | Part


def instructions(steps: Sequence[Step]) -> Iterator[Instruction]:
    """Yield each instruction once."""
    for step in steps:
        if isinstance(step, Part):
            yield from instructions(step.steps)
        elif isinstance(step, Instruction):
            yield step


class Spec(NamedTuple):
    """One row of the table of vector instructions."""

    name: str
    pto: str
    """PTO-ISA's name."""
    dtypes: tuple[str, ...]
    start: float
    """Cycles."""
    slope: float
    """Cycles an element of float32."""
    compute: Callable[..., Any]
    """Of torch tensors."""
    triton: str
    """In Triton, `{}` or `{0}` the operands; a name alone is a function that it has for float32 only."""
    source: str


_FLOATS = ("float32", "float16")
_WHOLE = ("int32", "int16")
_NUMBERS = (*_FLOATS, *_WHOLE)
_PTO = "PTO-ISA and asc-devkit"


def _divide(a: Any, b: Any) -> Any:
    return a / b


def _where(c: Any, a: Any, b: Any) -> Any:
    import torch

    return torch.where(c, a, b)


def _maximum(a: Any, b: Any) -> Any:
    import torch

    if not isinstance(b, torch.Tensor):
        return torch.clamp_min(a, b)
    return torch.maximum(a, b)


def _minimum(a: Any, b: Any) -> Any:
    import torch

    if not isinstance(b, torch.Tensor):
        return torch.clamp_max(a, b)
    return torch.minimum(a, b)


ONE, TWO = 1 / 64, 2 / 64
"""Cycles an element of float32 with one and with two source operands."""

VECTOR: dict[str, Spec] = {
    row[0]: Spec(*row)
    for row in (
        ("add", "TADD", _NUMBERS, 20, TWO, lambda a, b: a + b, "{} + {}", _PTO),
        ("sub", "TSUB", _NUMBERS, 20, TWO, lambda a, b: a - b, "{} - {}", _PTO),
        ("mul", "TMUL", _NUMBERS, 20, TWO, lambda a, b: a * b, "{} * {}", _PTO),
        ("div", "TDIV", _FLOATS, 20, 0.075, _divide, "{} / {}", _PTO + ": .07 to .08"),
        ("max", "TMAX", _NUMBERS, 20, TWO, _maximum, "tl.maximum({}, {})", _PTO),
        ("min", "TMIN", _NUMBERS, 20, TWO, _minimum, "tl.minimum({}, {})", _PTO),
        ("adds", "TADDS", _NUMBERS, 20, ONE, lambda a, b: a + b, "{} + {}", _PTO),
        ("subs", "TSUBS", _NUMBERS, 20, ONE, lambda a, b: a - b, "{} - {}", _PTO),
        ("rsubs", "TSUBS", _NUMBERS, 20, ONE, lambda a, b: b - a, "{1} - {0}", _PTO),
        ("muls", "TMULS", _NUMBERS, 20, ONE, lambda a, b: a * b, "{} * {}", _PTO),
        ("divs", "TDIVS", _FLOATS, 20, ONE, _divide, "{} / {}", _PTO + ": a product with the reciprocal"),
        ("rdivs", "TDIVS", _FLOATS, 20, 0.075, lambda a, b: b / a, "{1} / {0}", _PTO + ": .07 to .08"),
        ("maxs", "TMAXS", _NUMBERS, 20, ONE, _maximum, "tl.maximum({}, {})", _PTO),
        ("mins", "TMINS", _NUMBERS, 20, ONE, _minimum, "tl.minimum({}, {})", _PTO),
        ("exp", "TEXP", _FLOATS, 26, 0.031, lambda a: a.exp(), "tl.exp", _PTO),
        ("ln", "TLOG", _FLOATS, 26, 0.031, lambda a: a.log(), "tl.log", _PTO),
        ("sqrt", "TSQRT", _FLOATS, 26, 0.031, lambda a: a.sqrt(), "tl.sqrt", _PTO),
        ("rsqrt", "TRSQRT", _FLOATS, 26, 0.062, lambda a: a.rsqrt(), "tl.rsqrt", _PTO + ": a root and a division"),
        ("reciprocal", "TRECIP", _FLOATS, 20, 0.031, lambda a: a.reciprocal(), "1.0 / {}", _PTO),
        ("abs", "TABS", _FLOATS, 20, ONE, lambda a: a.abs(), "tl.abs({})", _PTO),
        ("neg", "TNEG", _NUMBERS, 20, ONE, lambda a: -a, "-{}", _PTO),
        ("relu", "TRELU", ("float32", "float16", "int32"), 20, ONE, lambda a: a.relu(), "tl.maximum({}, 0)", _PTO),
        ("round", "TCVT", _FLOATS, 20, ONE, lambda a: a.round(), "round_half_even", _PTO + ": a conversion in place"),
        ("floor", "TCVT", _FLOATS, 20, ONE, lambda a: a.floor(), "tl.floor", _PTO + ": a conversion in place"),
        ("and", "TAND", _WHOLE, 20, TWO, operator.and_, "{} & {}", _PTO),
        ("or", "TOR", _WHOLE, 20, TWO, operator.or_, "{} | {}", _PTO),
        ("xor", "TXOR", _WHOLE, 20, TWO, operator.xor, "{} ^ {}", _PTO),
        ("shl", "TSHL", _WHOLE, 20, TWO, operator.lshift, "{} << {}", _PTO),
        ("shr", "TSHR", _WHOLE, 20, TWO, operator.rshift, "{} >> {}", _PTO),
        ("compare", "TCMP", _NUMBERS, 24, TWO, lambda a, b, how: how(a, b), "", _PTO),
        ("select", "TSEL", _FLOATS, 24, TWO, _where, "tl.where({}, {}, {})", _PTO),
        ("copy", "TMOV", tuple(_NUMBERS), 20, ONE, lambda a: a.clone(), "{}", _PTO),
        ("fill", "TEXPANDS", _NUMBERS, 16, ONE, lambda a: a, "", _PTO),
    )
}
"""Elementwise instructions."""

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


class Statistic(NamedTuple):
    """An instruction along rows, [r, c] to [r, 1], or columns, to [1, c]."""

    text: str
    axis: int
    compute: Callable[..., Any]
    """Of a torch tensor, along an axis that stays."""
    triton: str
    neutral: str
    """In Triton, in place of what has no data."""


def _sum(a: Any, axis: int) -> Any:
    return a.sum(axis, keepdim=True)


def _largest(a: Any, axis: int) -> Any:
    return a.amax(axis, keepdim=True)


def _smallest(a: Any, axis: int) -> Any:
    return a.amin(axis, keepdim=True)


STATISTICS = {
    "row_sum": Statistic("Sum of each row: [r, c] to [r, 1]. TROWSUM.", -1, _sum, "tl.sum", "0"),
    "row_max": Statistic("Largest of each row. TROWMAX.", -1, _largest, "tl.max", 'float("-inf")'),
    "row_min": Statistic("Smallest of each row. TROWMIN.", -1, _smallest, "tl.min", 'float("inf")'),
    "col_sum": Statistic("Sum of each column: [r, c] to [1, c]. TCOLSUM.", 0, _sum, "tl.sum", "0"),
    "col_max": Statistic("Largest of each column. TCOLMAX.", 0, _largest, "tl.max", 'float("-inf")'),
}

CONVERT_START, CONVERT_SLOPE = 20.0, ONE
"""TCVT, by elements of the wider type."""
CONVERSIONS: frozenset[tuple[str, str]] = frozenset(
    pair
    for one, other in (
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float32", "int32"),
        ("float32", "int16"),
        ("float16", "int32"),
        ("float16", "int16"),
        ("float16", "int8"),
        ("float16", "uint8"),
        ("float32", "int64"),
        ("int32", "int64"),
        ("int32", "int16"),
        ("bfloat16", "int32"),
        ("float32", "float8_e4m3fn"),
        ("float32", "float8_e5m2"),
    )
    for pair in ((one, other), (other, one))
)
"""Pairs that TCVT has; others go by way of a third (asc-devkit's table of Cast for A2 and A3, float8 for A5)."""

ROW_START, ROW_LINE, ROW_STEP = 30.0, 5.0, 2.0
"""Row sums and maxima: cycles to start, of a row, and of each further 64 float32 of a row: .055 an element at 128
columns (PTO-ISA)."""
EXPAND_START, EXPAND_ROW = 30.0, 1.0
"""Repeating one number of each row along it, before an instruction that reads it as second source."""
COLUMN_STEP = TWO
"""Column sums and maxima add rows to each other."""
SORT_START, SORT_SLOPE = 40.0, 1.2
"""TSORT32, an element: fitted with MERGE_SLOPE to top-k of 1024 columns (5,500 cycles a row)."""
MERGE_START, MERGE_SLOPE = 60.0, 1.4
"""TMRGSORT, an element of one merge of up to four lists."""
GATHER_START, GATHER_SLOPE = 40.0, 0.25
"""TGATHER, an element by index (assumed: a quarter of a cycle of 4-byte elements)."""
TRANSPOSE_START, TRANSPOSE_SLOPE = 40.0, 0.07
"""TTRANS: 16 rows of 32 bytes at a time."""
