# pyright: strict
"""Read the kernel tables of the Ascend profiler row by row: kernel_details.csv, op_summary.csv, tables of mean times.

This module defines the column names and spellings of those files. A table is untrusted input: lines, rows and sizes are
bounded, no text in it is evaluated, and invalid rows are counted instead of guessed.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from io import BufferedReader, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TextIO

import msgspec

from opreplay.traces.errors import Malformed, TooLarge, TraceError
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorSpec

MAX_ROWS = 5_000_000
MAX_LINE = 1 << 20
"""Maximum characters of one line; a longer line is read in pieces, which are not valid rows."""
MAX_TENSORS = 4096
MAX_SIZE = 1 << 48
"""Maximum size of one dimension; a row with a larger one is invalid."""
MAX_DURATION_US = 1e12
"""Maximum duration of a task, eleven days."""
MAX_NAME = 4096
MAX_SPELLING = 64
"""Maximum characters of a data type or format name."""
_CACHED_CHARS = 2048

COLUMNS: dict[str, tuple[str, ...]] = {
    "type": ("Type", "OP Type", "Kernel Type"),
    "name": ("Name", "Op Name", "Kernel Name"),
    "duration": ("Duration(us)", "Task Duration(us)", "Task Duration", "Mean(us)", "Avg(us)", "Avg Duration(us)"),
    "start": ("Start Time(us)", "Task Start Time(us)", "Task Start Time"),
    "wait": ("Wait Time(us)", "Task Wait Time(us)", "Task Wait Time"),
    "core": ("Accelerator Core", "Task Type", "Core Type"),
    "input_shapes": ("Input Shapes", "Input Shape"),
    "input_types": ("Input Data Types", "Input Data Type", "Input Dtypes"),
    "input_formats": ("Input Formats", "Input Format"),
    "output_shapes": ("Output Shapes", "Output Shape"),
    "output_types": ("Output Data Types", "Output Data Type", "Output Dtypes"),
    "output_formats": ("Output Formats", "Output Format"),
    "count": ("Count", "Counts"),
    "held_out": ("HeldOut", "Held Out"),
}
"""Possible names of a field's column in kernel_details.csv, op_summary.csv and tables of mean times.

The first name that the table has counts. Case, spaces and underscores are ignored, and the unit of a time is read from
the column's name.
"""

UNITS: dict[str, int] = {"ns": 1, "us": 1000, "ms": 1_000_000, "s": 1_000_000_000}
"""Unit of time, as it stands in brackets after a column's name → nanoseconds in one unit."""
TIMES: tuple[str, ...] = ("duration", "start", "wait")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?\Z")
_UNIT = re.compile(r"\((\w+)\)\Z")

DTYPES: dict[str, str] = {
    "FLOAT": "float32",
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "HALF": "float16",
    "BF16": "bfloat16",
    "BFLOAT16": "bfloat16",
    "DOUBLE": "float64",
    "FLOAT64": "float64",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT16": "int16",
    "UINT16": "uint16",
    "INT32": "int32",
    "UINT32": "uint32",
    "INT64": "int64",
    "UINT64": "uint64",
    "FP64": "float64",
    "FP32": "float32",
    "FP16": "float16",
    "FP8_E4M3FN": "float8_e4m3fn",
    "FP8_E5M2": "float8_e5m2",
    "LONG": "int64",
    "INT": "int32",
    "SHORT": "int16",
    "CHAR": "int8",
    "BYTE": "uint8",
    "UINT1": "uint8",
    "BOOL": "bool",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "QINT8": "qint8",
    "QUINT8": "quint8",
    "QINT32": "qint32",
    "FLOAT8_E4M3FN": "float8_e4m3fn",
    "FLOAT8_E5M2": "float8_e5m2",
    "HIFLOAT8": "float8_e5m2",
    "INT4": "int8",
    "FLOAT4_E2M1": "int8",
}
"""torch dtype name, by the data type as CANN, its tools or torch spell it, without "DT_" or "torch.".

A four-bit type maps to the type of the byte that holds two of its elements.
"""

FORMATS: dict[str, str] = {"NZ": "FRACTAL_NZ", "FZ": "FRACTAL_Z", "5HD": "NC1HWC0"}
"""Abbreviated format name → full name."""

_HINT = "Use kernel_details.csv or op_summary.csv from the Ascend profiler."
_LATEST_NS = Decimal(2**63)
_NOT_THERE = frozenset({"", "N/A", "NA", "NULL", "NONE", "UNDEFINED", "NAN"})


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a kernel table, as written."""

    type: str
    name: str
    core: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec | None, ...]
    duration_us: float | None
    """Duration in µs; None if the cell is blank."""
    wait_ns: int | None = None
    start_ns: int | None = None
    """Start on the clock of the trace; None if the table has no start column."""
    count: int = 1
    """Number of launches that the row represents."""
    held_out: bool = False
    index: int = 0
    """Position of the row in the file."""

    @property
    def communication(self) -> bool:
        """Whether the row is a collective, which consists of several tasks and is measured as a whole."""
        return self.core.upper() in ("COMMUNICATION", "HCCL") or self.type.lower().startswith("hcom_")


class TableRows:
    """The rows of an open table, in order; can be iterated once."""

    def __init__(self, file: TextIO, path: str, max_rows: int) -> None:
        self._path, self._max_rows = path, max_rows
        first = next((line for line in _lines(file) if line.strip()), "")
        self._reader = csv.reader(chain((first,), _lines(file)), delimiter=_delimiter(first))
        header = next((line for line in self._reader if line), None)
        if header is None:
            raise Malformed(f"{path} is empty: not a kernel table", hint=_HINT)
        self._places, self._units = _columns(header, path)
        self.columns = frozenset(self._places)
        """Keys of `COLUMNS` that the table has."""
        self.dropped: Counter[str] = Counter()
        """Reason → number of rows dropped so far."""

    def __iter__(self) -> Iterator[TableRow]:
        places = self._places
        for index, line in enumerate(line for line in self._reader if line):
            if index >= self._max_rows:
                raise TooLarge(f"{self._path} has more than {self._max_rows} rows (limit max_rows)")
            try:
                yield _row({field: line[at] for field, at in places.items() if at < len(line)}, index, self._units)
            except (ValueError, OverflowError):
                self.dropped["broken row"] += 1


@contextmanager
def open_table(path: str | Path, *, max_rows: int = MAX_ROWS) -> Generator[TableRows, None, None]:
    """Open a table and yield an object that iterates over its rows.

    Raises TraceError if the file cannot be read, Malformed if it is not a kernel table, and TooLarge if it has too many
    rows. The iteration can raise the same errors.
    """
    try:
        with open(path, "rb") as binary, _as_text(binary, path) as file:
            yield TableRows(file, str(path), max_rows)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}", hint="Check the path and its permissions.") from error
    except csv.Error as error:
        raise Malformed(f"{path}: not a CSV file: {error}", hint=_HINT) from error


def _as_text(binary: BufferedReader, path: str | Path) -> TextIO:
    """Decode the file as UTF-8, with or without a byte order mark, or as UTF-16 if it starts with a UTF-16 byte order
    mark.
    """
    if binary.peek(2)[:2] == b"\x1f\x8b":
        raise Malformed(f"{path}: this kernel table is compressed", hint="gunzip it first.")
    wide = binary.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return TextIOWrapper(binary, encoding="utf-16" if wide else "utf-8-sig", errors="replace", newline="")


def _lines(file: TextIO) -> Iterator[str]:
    return iter(lambda: file.readline(MAX_LINE), "")


def _delimiter(header: str) -> str:
    """Return the column separator: a comma if the header has one, otherwise the more frequent of tab and semicolon."""
    return "," if "," in header else max(",\t;", key=header.count)


def dtype_of(text: str) -> str | None:
    """Return the torch dtype name for a CANN spelling ("DT_BF16", "FLOAT"); None for an absent tensor.

    Unknown spellings are returned in lower case. Raises ValueError if the text is too long.
    """
    name = text.strip().strip("'\"").upper().removeprefix("TORCH.").removeprefix("DT_")
    if name in _NOT_THERE:
        return None
    if len(name) > MAX_SPELLING:
        raise ValueError("no data type")
    return DTYPES.get(name, name.lower())


def tensors_of(shapes: str | None, types: str | None, formats: str | None) -> tuple[TensorSpec | None, ...]:
    """Return the tensors that the texts of three columns describe: shapes, types and formats.

    The three lists may differ in length; the last type or format then applies to the remaining tensors. Raises
    ValueError for invalid sizes.
    """
    if len(shapes or "") + len(types or "") + len(formats or "") > _CACHED_CHARS:
        return _tensors_of.__wrapped__(shapes, types, formats)
    return _tensors_of(shapes, types, formats)


def _layout(text: str) -> str:
    """Return the full name of a format; ND if none is given."""
    name = text.strip("'\"").upper().split(":")[0].removeprefix("FORMAT_")[:MAX_SPELLING]
    return "ND" if name in _NOT_THERE else FORMATS.get(name, name)


@lru_cache(maxsize=4096)
def _tensors_of(shapes: str | None, types: str | None, formats: str | None) -> tuple[TensorSpec | None, ...]:
    shape_parts, type_parts, format_parts = _split(shapes), _split(types) or [], _split(formats) or ["ND"]
    if shape_parts is None or not any([*shape_parts, *type_parts]):
        return ()
    n = max(len(shape_parts), len(type_parts))
    if n > MAX_TENSORS:
        raise ValueError("too many tensors")
    out: list[TensorSpec | None] = []
    for i in range(n):
        sizes = _shape(shape_parts[i]) if i < len(shape_parts) else ()
        kind = dtype_of(type_parts[min(i, len(type_parts) - 1)]) if type_parts else "float32"
        layout = _layout(format_parts[min(i, len(format_parts) - 1)])
        out.append(None if kind is None else TensorSpec(shape=sizes, dtype=kind, format=layout))
    return tuple(out)


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    bare = text.strip().strip('"')
    return None if bare.upper() == "N/A" else [part.strip() for part in bare.split(";")]


def _shape(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    # Some tools write a shape as a list or a tuple.
    sizes = tuple(int(part) for part in text.strip("[]()'\" ").split(",") if part.strip())
    if len(sizes) > MAX_RANK or any(not 0 <= s <= MAX_SIZE for s in sizes):
        raise ValueError("size out of range")
    return sizes


def _number(text: str | None) -> float | None:
    if text is None or text.strip().upper() in _NOT_THERE:
        return None
    # Spreadsheets group digits by commas.
    value = float(text.replace(",", "")) if _GROUPED.match(text.strip()) else float(text)
    return value if math.isfinite(value) else None


def _nanoseconds(text: str | None, unit: int) -> int | None:
    """Convert a time from text to whole nanoseconds, without rounding on the way; `unit` is its unit in nanoseconds.

    Return None for an invalid time, so that the rest of the row can still be used.
    """
    try:
        value = Decimal((text or "").strip()[:64])
    except InvalidOperation:
        return None
    # Compared before it is multiplied: a product beyond 1e999999 is an error, not a large number.
    return int(value * unit) if value.is_finite() and 0 <= value < _LATEST_NS / unit else None


def _text(fields: Mapping[str, str], key: str) -> str:
    return (fields.get(key) or "").strip()


def _row(fields: Mapping[str, str], index: int, units: Mapping[str, int]) -> TableRow:
    kernel_type, name, core, held_out = (_text(fields, key) for key in ("type", "name", "core", "held_out"))
    if not kernel_type or len(kernel_type) > MAX_NAME or len(name) > MAX_NAME:
        raise ValueError("no type")
    duration, count = _number(fields.get("duration")), _number(fields.get("count"))
    if duration is not None:
        duration *= units["duration"] / UNITS["us"]
        if duration > MAX_DURATION_US:
            raise ValueError("no duration")
    wait_ns = _nanoseconds(fields.get("wait"), units["wait"])
    return TableRow(
        type=kernel_type,
        name=name,
        core=core[:MAX_NAME],
        inputs=tensors_of(fields.get("input_shapes"), fields.get("input_types"), fields.get("input_formats")),
        outputs=tensors_of(fields.get("output_shapes"), fields.get("output_types"), fields.get("output_formats")),
        duration_us=duration if duration is not None and duration > 0 else None,
        wait_ns=wait_ns,
        start_ns=_nanoseconds(fields.get("start"), units["start"]),
        count=max(1, int(count)) if count is not None else 1,
        held_out=held_out.lower() in ("1", "1.0", "true", "yes"),
        index=index,
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "", name.strip("\ufeff\"' \t")).lower()


def _columns(header: Iterable[str], path: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return (column index by field of `COLUMNS`, unit in nanoseconds by field that is a time).

    If a column occurs twice, the first one counts.
    """
    present: dict[str, int] = {}
    units: dict[str, int] = {}
    for at, name in enumerate(header):
        plain = _plain(name)
        unit = _UNIT.search(plain)
        if unit is not None and unit[1] in UNITS:
            plain = plain[: unit.start()]
            units.setdefault(plain, UNITS[unit[1]])
        present.setdefault(plain, at)
    places: dict[str, int] = {}
    scales: dict[str, int] = dict.fromkeys(TIMES, UNITS["us"])
    for field, names in COLUMNS.items():
        plain = next((spelling for name in names if (spelling := _UNIT.sub("", _plain(name))) in present), None)
        if plain is not None:
            places[field] = present[plain]
            if field in scales:
                scales[field] = units.get(plain, UNITS["us"])
    lacking = [COLUMNS[f][0] for f in ("type", "duration", "input_shapes") if f not in places]
    if lacking:
        raise Malformed(f"{path}: not a kernel table: it has no column {', '.join(map(repr, lacking))}", hint=_HINT)
    return places, scales
