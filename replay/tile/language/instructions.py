"""Pipe, dtypes and cycles of each instruction, with the source of each number.

A vector instruction takes `start + slope * elements` cycles. `slope` is for float32 on a core whose vector instructions
read and write 128 bytes at a time. For 2-byte types, half of it is used. Unless stated otherwise, numbers come from the
public cost models of PTO-ISA and asc-devkit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Buffer = tuple[int, int, int]
"""Buffer of a place in the source: (place, number of its earlier executions, number of its rotating buffers)."""
Pipe = str
"""MTE2 (GM to L1 or UB), MTE1 (L1 to L0A, L0B), CUBE, FIXP (L0C to GM or L1), VEC, MTE3 (UB to GM) or S (scalar)."""
MTE2, MTE1, CUBE, FIXP, VEC, MTE3, SCALAR = "MTE2", "MTE1", "CUBE", "FIXP", "VEC", "MTE3", "S"

Unit = str
"""Core of a group: "cube", "vec0", "vec1"; programs on vector cores only have "vec0"."""


class Instruction(NamedTuple):
    """One instruction of a core, the unit of a schedule. Equal instructions take the same time for the same data."""

    name: str
    unit: Unit
    pipe: Pipe
    cycles: float
    """Cycles on the pipe, without the time to move bytes from or to GM."""
    path: str
    """Field of `Pipes` with the rate of transfers from or to GM; "" if the instruction transfers no data."""
    size: int
    """Bytes moved from or to GM."""
    memory: str
    """Tensor in GM that the instruction reads or writes; "" if none."""
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    place: int
    """Id of the place in the source; `Recording.lines` holds the place's line."""


Advance = tuple[tuple[int, int], ...]
"""Pairs (place in the source, number of uses by which this place's rotating buffers move on)."""


class Repeat(NamedTuple):
    """A step that repeats the preceding `length` steps of the list `times` more times, including nested repetitions.

    `advance` holds, for each place in the source, by how many uses its rotating buffers move on per repetition.
    """

    length: int
    times: int
    advance: Advance


class Part:
    """The steps of one block, with the repetition counts that hold for this block."""

    __slots__ = ("advance", "steps", "times", "whole")

    def __init__(self, steps: list[Step], times: tuple[int, ...], advance: Advance) -> None:
        self.steps = steps
        """Steps shared by blocks that do the same work. Buffers are numbered from the start of the block."""
        self.times = times
        """Count of each `Repeat` in the steps, in order."""
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
    """Yield each instruction once, without its repetitions."""
    for step in steps:
        if isinstance(step, Part):
            yield from instructions(step.steps)
        elif isinstance(step, Instruction):
            yield step


class Spec(NamedTuple):
    """One row of the table of vector instructions."""

    name: str
    pto: str
    """Name of the instruction in PTO-ISA."""
    dtypes: tuple[str, ...]
    start: float
    """Fixed cycles per instruction."""
    slope: float
    """Cycles per float32 element."""
    compute: Callable[..., Any]
    """Computes the result from torch tensors."""
    triton: str
    """Triton expression with `{}` or `{0}` for operands. A name alone is a function that exists for float32 only."""
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
"""Cycles per float32 element for instructions with one and with two source operands."""

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
    """A reduction along rows, [r, c] to [r, 1], or along columns, to [1, c]."""

    text: str
    axis: int
    compute: Callable[..., Any]
    """Computes the result from a torch tensor along an axis, which is kept with size 1."""
    triton: str
    neutral: str
    """Neutral element as a Triton expression, for elements without data."""


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
"""For TCVT: cycles to start, and cycles per element of the wider dtype."""
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
"""Pairs of dtypes between which TCVT converts directly. Other conversions go through a third dtype.

Source: asc-devkit's table of Cast for A2 and A3, and the table for A5 for float8.
"""

ROW_START, ROW_LINE, ROW_STEP = 30.0, 5.0, 2.0
"""Cycles of row sums and maxima: to start, for each row, and for each further 64 float32 elements of a row.

With 128 columns, this is 0.055 cycles per element (PTO-ISA).
"""
EXPAND_START, EXPAND_ROW = 30.0, 1.0
"""Cycles to repeat one number of each row along the row, before an instruction that reads it as second source."""
COLUMN_STEP = TWO
"""Cycles per element of column sums and maxima, which combine whole rows with each other."""
SORT_START, SORT_SLOPE = 40.0, 1.2
"""TSORT32: cycles to start and per element. Fitted with MERGE_SLOPE to top-k of 1024 columns (5,500 cycles per row)."""
MERGE_START, MERGE_SLOPE = 60.0, 1.4
"""For TMRGSORT: cycles to start and per element, for one merge of up to four lists."""
GATHER_START, GATHER_SLOPE = 40.0, 0.25
"""TGATHER by index: cycles to start and per element. Assumed: a quarter of a cycle per 4-byte element."""
TRANSPOSE_START, TRANSPOSE_SLOPE = 40.0, 0.07
"""For TTRANS, which processes 16 rows of 32 bytes at a time: cycles to start and per element."""
