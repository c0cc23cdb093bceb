"""Reads the kernel tables of the Ascend profiler (kernel_details.csv, op_summary.csv, tables of means) into calls.

Owns the column names and spellings of those files; knows nothing of costs. A table is untrusted input: sizes are
bounded, nothing in it is evaluated, and rows that make no sense are counted rather than guessed at.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from opreplay.replay.ascend.kernel import KernelCall, TensorSpec
from opreplay.replay.ascend.kernel_shapes import complete_outputs
from opreplay.traces.errors import Malformed, TooLarge, TraceError

MAX_ROWS = 5_000_000
MAX_RANK = 64
MAX_TENSORS = 4096
MAX_SIZE = 1 << 48
"""Bound on one dimension; a larger one makes the row broken."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "type": ("Type", "OP Type", "Op Type"),
    "name": ("Name", "Op Name", "OP Name"),
    "duration": ("Duration(us)", "Task Duration(us)", "Duration", "Duration (us)"),
    "core": ("Accelerator Core", "Task Type"),
    "input_shapes": ("Input Shapes",),
    "input_types": ("Input Data Types",),
    "input_formats": ("Input Formats",),
    "output_shapes": ("Output Shapes",),
    "output_types": ("Output Data Types",),
    "output_formats": ("Output Formats",),
    "count": ("Count",),
    "held_out": ("HeldOut", "Held Out"),
    "blocks": ("Block Dim", "Block Num"),
    "step": ("Step Id", "Step ID"),
}
"""What is read → the column's names in kernel_details.csv and op_summary.csv, and of tables of means."""

DTYPES: dict[str, str] = {
    "FLOAT": "float32", "FLOAT32": "float32", "FLOAT16": "float16", "HALF": "float16", "BF16": "bfloat16",
    "BFLOAT16": "bfloat16", "DOUBLE": "float64", "FLOAT64": "float64", "INT8": "int8", "UINT8": "uint8",
    "INT16": "int16", "UINT16": "uint16", "INT32": "int32", "UINT32": "uint32", "INT64": "int64", "UINT64": "uint64",
    "BOOL": "bool", "COMPLEX64": "complex64", "COMPLEX128": "complex128", "QINT8": "qint8", "QUINT8": "quint8",
    "QINT32": "qint32", "FLOAT8_E4M3FN": "float8_e4m3fn", "FLOAT8_E5M2": "float8_e5m2", "HIFLOAT8": "float8_e5m2",
    "INT4": "int8",
}  # fmt: skip
"""CANN data type, without "DT_" → torch dtype name (int4 as the byte that holds two of them)."""

_HOST_CORES = ("AI_CPU", "AICPU")
"""Cores of kernels that run on the NPU's control processors."""

_HINT = "Give kernel_details.csv or op_summary.csv of the Ascend profiler."
_NOT_THERE = frozenset({"", "N/A", "NA", "NULL", "NONE", "UNDEFINED", "NAN"})


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a kernel table."""

    call: KernelCall
    duration_us: float | None
    """None where the table is blank."""
    count: int = 1
    """Launches that the row stands for."""
    held_out: bool = False
    index: int = 0
    """Place in launch order."""
    communication: bool = False
    has_shapes: bool = True


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel table as read, and what of it could not be used."""

    path: str
    rows: tuple[KernelRow, ...]
    dropped: dict[str, int]
    """Reason → number of rows."""
    is_sequence: bool = True
    """Rows are launches in order; False for a table of means."""
    has_held_out: bool = False
    """Whether a column says which rows are held out."""


def dtype_of(text: str) -> str | None:
    """torch dtype name of a CANN spelling ("DT_BF16", "FLOAT"); None for an absent tensor; unknown ones lower-case."""
    name = text.strip().upper().removeprefix("DT_")
    if name in _NOT_THERE:
        return None
    return DTYPES.get(name, name.lower())


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    bare = text.strip().strip('"')
    return None if bare.upper() == "N/A" else [part.strip() for part in bare.split(";")]


def _shape(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    sizes = tuple(int(part) for part in text.split(",") if part.strip())
    if len(sizes) > MAX_RANK or any(not 0 <= s <= MAX_SIZE for s in sizes):
        raise ValueError("size out of range")
    return sizes


def tensors_of(shapes: str | None, types: str | None, formats: str | None) -> tuple[TensorSpec | None, ...]:
    """The tensors that three joined columns describe. Lists may be of different lengths: the last type or format holds
    for what follows. Raises ValueError for sizes that are no sizes."""
    shape_parts, type_parts, format_parts = _split(shapes), _split(types), _split(formats)
    if shape_parts is None or not any([*shape_parts, *(type_parts or [])]):
        return ()
    n = max(len(shape_parts), len(type_parts or []))
    if n > MAX_TENSORS:
        raise ValueError("too many tensors")
    out: list[TensorSpec | None] = []
    for i in range(n):
        sizes = _shape(shape_parts[i]) if i < len(shape_parts) else ()
        kind = dtype_of(type_parts[min(i, len(type_parts) - 1)]) if type_parts else "float32"
        layout = format_parts[min(i, len(format_parts) - 1)] if format_parts else "ND"
        layout = layout.split(":")[0].removeprefix("FORMAT_") or "ND"
        out.append(None if kind is None else TensorSpec(shape=sizes, dtype=kind, format=layout))
    return tuple(out)


def _number(text: str | None) -> float | None:
    if text is None or text.strip().upper() in _NOT_THERE:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _row(fields: Mapping[str, str | None], index: int) -> KernelRow:
    kernel_type = (fields.get("type") or "").strip()
    if not kernel_type:
        raise ValueError("no type")
    inputs = tensors_of(fields.get("input_shapes"), fields.get("input_types"), fields.get("input_formats"))
    outputs = tensors_of(fields.get("output_shapes"), fields.get("output_types"), fields.get("output_formats"))
    has_shapes = bool(inputs or outputs)
    if inputs and not outputs:
        outputs = complete_outputs(kernel_type, inputs)
    duration = _number(fields.get("duration"))
    count = _number(fields.get("count"))
    held_out = (fields.get("held_out") or "").strip().lower() in ("1", "1.0", "true", "yes")
    core = (fields.get("core") or "").strip().upper()
    return KernelRow(
        call=KernelCall(
            type=kernel_type, inputs=inputs, outputs=outputs, attrs={"core": "AI_CPU"} if core in _HOST_CORES else {}
        ),
        duration_us=duration if duration is not None and duration > 0 else None,
        count=max(1, int(count)) if count is not None else 1,
        held_out=held_out,
        index=index,
        communication=core in ("COMMUNICATION", "HCCL") or kernel_type.lower().startswith("hcom_"),
        has_shapes=has_shapes,
    )


def _columns(header: Iterable[str], path: str) -> dict[str, str]:
    present = {name.strip().lstrip("\ufeff"): name for name in header}
    found = {
        field: present[spelling] for field, names in COLUMNS.items() for spelling in names[::-1] if spelling in present
    }
    lacking = [COLUMNS[f][0] for f in ("type", "duration", "input_shapes") if f not in found]
    if lacking:
        raise Malformed(
            f"{path}: no kernel table, it has no column {', '.join(map(repr, lacking))}",
            hint=_HINT,
        )
    return found


def read_kernel_table(path: str | Path, *, max_rows: int = MAX_ROWS) -> KernelTable:
    """Read a kernel table in launch order. Broken rows are dropped and counted.

    Raises TraceError when the file cannot be read, Malformed when it is no kernel table, TooLarge over `max_rows`.
    """
    rows: list[KernelRow] = []
    dropped: Counter[str] = Counter()
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames
            if not header:
                raise Malformed(f"{path} is empty: no kernel table", hint=_HINT)
            columns = _columns(header, str(path))
            for index, record in enumerate(reader):
                if index >= max_rows:
                    raise TooLarge(f"{path}: more than {max_rows} rows (limit max_rows)")
                try:
                    rows.append(_row({f: record.get(c) for f, c in columns.items()}, index))
                except (ValueError, OverflowError):
                    dropped["broken row"] += 1
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except csv.Error as error:
        raise Malformed(f"{path}: not a CSV file: {error}") from error
    return KernelTable(
        path=str(path), rows=tuple(rows), dropped=dict(dropped), is_sequence="count" not in columns,
        has_held_out="held_out" in columns,
    )  # fmt: skip


def call_key(call: KernelCall) -> tuple[object, ...]:
    """What makes two rows the same kernel: type, shapes, dtypes and formats."""
    return (
        call.type,
        tuple(None if s is None else (s.shape, s.dtype, s.format) for s in call.inputs),
        tuple(None if s is None else (s.shape, s.dtype, s.format) for s in call.outputs),
    )
