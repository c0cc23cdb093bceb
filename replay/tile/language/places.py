# pyright: strict
"""Memories of a core, dtypes, and the limits of programs, with errors that name the program's line."""

from __future__ import annotations

import sys
from functools import cache
from math import prod
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Literal

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.traces.errors import UsageError

Place = Literal["GM", "UB", "L1", "L0A", "L0B", "L0C"]

UB: Place = "UB"
"""Unified buffer: memory of a vector core, on which its instructions compute."""
L1: Place = "L1"
"""Memory of a cube core that holds the operands of products."""
L0C: Place = "L0C"
"""Memory of a cube core in which products accumulate."""

Limit = Literal[
    "UB",
    "L1",
    "L0A",
    "L0B",
    "L0C",
    "dtype",
    "shape",
    "path",
    "stride",
    "bounds",
    "race",
    "stale",
    "unwritten",
    "mask",
    "values",
    "cores",
    "size",
    "program",
]
"""Kinds of limits that a program can exceed or violate.

"UB" to "L0C": size of the memory. "dtype": the pipe has no instruction for it. "shape": shapes that do not fit. "path":
no path between two memories. "stride": runs that a copy cannot gather. "bounds": end of a tensor. "race": order of two
cores or halves. "stale": a buffer that a later load has overwritten. "unwritten": reading unwritten data. "mask":
reading the padding of a partial tile. "values": results that differ from the reference. "cores": requirements on cores.
"size": too much work to run. "program": any other error of the program.
"""

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "int16": 2,
    "uint16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
FLOAT8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""8-bit floating-point dtypes. All cores can move them. Only cubes that support them can convert and multiply them."""
BLOCK = 32
"""Rows in UB are padded to a multiple of this many bytes."""
FRACTAL = 16
"""Operands of products are padded to a multiple of this many rows and columns."""


class TileError(UsageError):
    """Raised if a program exceeds a limit; names the program's line."""

    def __init__(self, limit: Limit, message: str, where: tuple[str, int], *, hint: str = "") -> None:
        self.limit: Limit = limit
        self.file, self.line = where
        self.message = message
        super().__init__(f"{PurePath(self.file).name}:{self.line}: {message}", hint=hint)


_LANGUAGE = str(PurePath(__file__).parent)
_ROOM = str(PurePath(__file__).parent.parent)
_language_code: dict[CodeType, bool] = {}


def _is_language(code: CodeType) -> bool:
    known = _language_code.get(code)
    if known is None:
        folder = str(PurePath(code.co_filename).parent)
        known = _language_code[code] = folder in (_LANGUAGE, _ROOM)
    return known


def user_frame() -> FrameType | None:
    """Return the innermost frame of the program, outside the language."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    known = _language_code
    while frame is not None:
        language = known.get(frame.f_code)
        if language is False or (language is None and not _is_language(frame.f_code)):
            break
        frame = frame.f_back
    return frame


def where() -> tuple[str, int]:
    """Return the file and the line that the program is running."""
    frame = user_frame()
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("program", 0)


Spot = tuple[object, ...]
"""A place in the source: code objects and instruction offsets from the program down to the call."""


def spot(root: CodeType | None) -> tuple[Spot, tuple[str, int]]:
    """Return the current place in the source (as a path down from the program's function), and its file and line."""
    frame = user_frame()
    if frame is None:
        return (), ("program", 0)
    line = frame.f_code.co_filename, frame.f_lineno
    chain: list[object] = []
    while frame is not None:
        code = frame.f_code
        if _is_language(code):
            break
        chain += (code, frame.f_lasti)
        if code is root:
            break
        frame = frame.f_back
    return tuple(chain), line


def fail(limit: Limit, message: str, *, hint: str = "") -> TileError:
    """Return an error for the program's current line."""
    return TileError(limit, message, where(), hint=hint)


def capacity(place: Place, device: DeviceProfile) -> int:
    """Return the size in bytes of the memory `place` of one core."""
    pipes = device.pipes
    sizes = {"UB": pipes.ub_bytes, "L1": pipes.l1_bytes, "L0A": pipes.l0a_bytes, "L0B": pipes.l0b_bytes}
    return int(sizes.get(place, device.l0c_bytes))


def check_float8(device: DeviceProfile, *dtypes: str) -> None:
    """Raise TileError for 8-bit floats on a device that can only move them."""
    for dtype in FLOAT8.intersection(dtypes) - device.macs_per_cycle.keys():
        raise fail("dtype", f"a {device.name} cannot compute with {dtype}", hint="Use a device that has it: 950pr.")


def up(n: int, step: int) -> int:
    """Return `n` rounded up to a multiple of `step`."""
    return -(-n // step) * step


@cache
def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (number of rows, row length) of a tile, where the rows run along the last dimension."""
    return prod(shape[:-1]), shape[-1] if shape else 1


@cache
def padded_bytes(shape: tuple[int, ...], dtype: str, place: Place) -> int:
    """Return the number of bytes that a tile takes in a memory.

    Rows are padded to 32 bytes. In cube memories, the number of rows is also padded to a multiple of 16, and in L0C the
    number of columns, too. A single column is stored in UB like a row.
    """
    size = DTYPE_BYTES[dtype]
    rows, columns = rows_and_columns(shape)
    if place == "UB":
        return up(rows * size, BLOCK) if columns == 1 else rows * up(columns * size, BLOCK)
    return up(rows, FRACTAL) * up(columns * size, FRACTAL * size if place == "L0C" else BLOCK)


def kib(size: float) -> str:
    """Return bytes as text: "48 KiB", "1.5 KiB"."""
    return f"{size / 1024:.1f}".rstrip("0").rstrip(".") + " KiB"
