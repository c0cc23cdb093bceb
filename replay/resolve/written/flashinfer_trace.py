# pyright: strict
"""Reads a folder of definitions and workloads in the format FlashInfer-Trace into a plan.

Defines the format; `export.flashinfer_trace` writes it. Nothing in a folder is evaluated. The format cannot express the
op, counts, strides and arguments that are not numbers. These are stored under the key "opreplay", which other tools
ignore. Format: https://bench.flashinfer.ai/docs/flashinfer-trace
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import msgspec

from opreplay.initializers.supplied.safetensors import SafetensorsFile
from opreplay.replay.ir.model import NOT_RECORDED, Reason, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import LARGEST
from opreplay.replay.ir.verify import MAX_NAME, verify_arguments
from opreplay.traces.errors import FormatError
from opreplay.traces.folders import read_regular
from opreplay.traces.limits import MAX_RANK
from opreplay.traces.model import TensorMeta, contiguous_strides

DTYPES = frozenset(
    ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "bool")
)
"""All dtypes of the format except float4_e2m1, which torch has only in pairs."""
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MAX_FILES = 10_000
MAX_FILE_BYTES = 64 << 20
MAX_CALLS = 1_000_000

_HINT = "`opreplay export TRACE --format flashinfer-trace --output FOLDER` writes such folders."


class Axis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dimension: its size is the same in all calls, or given by each workload."""

    type: Literal["const", "var"]
    value: int | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """An input: a tensor with its axes and dtype, or a Python number if it has no shape."""

    shape: tuple[str, ...] | None
    dtype: str


class Argument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An argument of the op. Names of inputs take the place of its tensors, or of its number."""

    arg: ReplayArg
    inputs: tuple[str | None, ...] = ()
    """Names of the inputs that hold the argument's tensors, in order; None for an absent tensor. For a number, it is
    the name of the input that holds it.
    """


class Called(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The op that a definition calls, in the form that plans use."""

    name: str
    overload: str | None = None
    args: tuple[Argument, ...] = ()


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties shared by all calls of one op with the same dtypes and ranks."""

    name: str
    op_type: str
    axes: dict[str, Axis]
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    reference: str
    """Python source with a global function `run`."""
    tags: tuple[str, ...] = ()
    description: str | None = None
    constraints: tuple[str, ...] = ()
    opreplay: Called | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of one input in a workload."""

    type: Literal["random", "scalar", "safetensors"]
    value: bool | int | float | None = None
    path: str | None = None
    tensor_key: str | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and inputs of one call."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, Input]


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory layout of a tensor that shares memory with another one, or that is not contiguous."""

    strides: tuple[int, ...] | None = None
    storage_offset: int = 0
    storage: int | None = None


class Times(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a call in a plan other than its sizes."""

    count: int = 1
    layouts: dict[str, Layout] = {}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a workloads file."""

    definition: str
    workload: Workload
    solution: str | None = None
    evaluation: msgspec.Raw | None = None
    opreplay: Times = Times()


def read_flashinfer_trace(path: str | Path) -> ReplayPlan:
    """Read the calls of a folder with their counts.

    They have no recorded times, and their overloads are resolved afterwards. Lines with a solution are left out. They
    evaluate the solution for a workload that has its own line. A definition that opreplay did not write names no op.
    Its calls keep their sizes and dtypes, and get a reason. Raises FormatError.
    """
    folder = Path(path).resolve()
    definitions = dict(_definitions(folder))
    ops: dict[str, ReplayOp] = {}
    for file, line in _lines(folder):
        definition = definitions.get(line.definition)
        if definition is None:
            raise FormatError(f"{file}: the folder has no definition {line.definition[:80]!r}", hint=_HINT)
        if line.solution is not None:
            continue
        try:
            op = _op(folder, definition, line)
        except (KeyError, ValueError) as error:
            raise FormatError(f"{file}: {definition.name}, {line.workload.uuid[:80]}: {error}", hint=_HINT) from None
        before = ops.get(op.id)
        ops[op.id] = op if before is None else msgspec.structs.replace(op, count=op.count + before.count)
        if len(ops) > MAX_CALLS:
            raise FormatError(f"{path} has more than {MAX_CALLS:,} different calls", hint=_HINT)
    return ReplayPlan(
        source=folder.name, selection="all", device_us_total=0.0, host_us_total=0.0, ops=tuple(ops.values())
    )


def _definitions(folder: Path) -> Iterator[tuple[str, Definition]]:
    for file in _files(folder, "definitions", ".json"):
        try:
            definition = msgspec.json.decode(_bytes(file), type=Definition)
        except _UNREADABLE as error:
            raise FormatError(f"{file} is not a definition: {error}", hint=_HINT) from None
        yield definition.name, definition


def _lines(folder: Path) -> Iterator[tuple[Path, Line]]:
    for file in _files(folder, "workloads", ".jsonl"):
        for number, text in enumerate(_bytes(file).split(b"\n"), 1):
            if not text.strip():
                continue
            try:
                yield file, msgspec.json.decode(text, type=Line)
            except _UNREADABLE as error:
                raise FormatError(f"{file}: line {number} is not a workload: {error}", hint=_HINT) from None


def _files(folder: Path, part: str, suffix: str) -> list[Path]:
    """Return the regular files in a subfolder `part`, sorted. Raises FormatError for links out of the folder or too
    many files.
    """
    files: list[Path] = []
    for file in (folder / part).glob(f"*/*{suffix}"):
        files.append(_inside(folder, file))
        if len(files) > MAX_FILES:
            raise FormatError(f"{folder / part} has more than {MAX_FILES:,} files", hint=_HINT)
    return sorted(files)


def _inside(folder: Path, file: Path) -> Path:
    """Return a file's real path. Raises FormatError if it is not a regular file inside the folder."""
    real = file.resolve()
    if not real.is_relative_to(folder) or not real.is_file():
        raise FormatError(
            f"{file} is not a file inside {folder}",
            hint="Keep all files inside the folder, without links to other folders.",
        )
    return real


def _bytes(file: Path) -> bytes:
    try:
        return read_regular(file, MAX_FILE_BYTES)
    except OSError as error:
        raise FormatError(f"cannot read {file}: {error.strerror}", hint="Check the path and its permissions.") from None


def _op(folder: Path, definition: Definition, line: Line) -> ReplayOp:
    """Return the op of one call. Raises FormatError, KeyError or ValueError if the line is invalid."""
    metas = _metas(definition, line)
    values = line.workload.inputs
    for name, value in values.items():
        if value.type == "safetensors":
            _check_stored(folder, name, value, metas)
    called = definition.opreplay
    if len(definition.name if called is None else called.name) > MAX_NAME - 80:
        raise ValueError("the name is too long")
    if called is None:
        args = tuple(_plain_argument(name, spec, metas.get(name), values) for name, spec in definition.inputs.items())
        detail = "the definition does not name an op, and opreplay does not run its reference code"
        reason = Reason("library missing", detail)
        op = ReplayOp(
            id="", name=f"flashinfer::{definition.name}", count=1, recorded=NOT_RECORDED, args=args, reason=reason
        )
    else:
        args = tuple(_argument(argument, metas, values) for argument in called.args)
        op = ReplayOp(id="", name=called.name, count=1, recorded=NOT_RECORDED, overload=called.overload, args=args)
    verify_arguments(definition.name[:80], op)
    identity = blake2b(msgspec.json.encode([op.name, op.overload, op.args]), digest_size=6).hexdigest()
    return msgspec.structs.replace(op, id=identity, count=max(line.opreplay.count, 1))


def _size(name: str, axis: Axis, workload: Workload) -> int:
    size = axis.value if axis.type == "const" else workload.axes.get(name)
    if size is None or not 0 <= size <= LARGEST:
        raise ValueError(f"axis {name[:80]} has no size")
    return size


def _metas(definition: Definition, line: Line) -> dict[str, TensorMeta]:
    """Return the tensors of a call by input name. Raises ValueError if the line does not match the definition."""
    sizes = {name: _size(name, axis, line.workload) for name, axis in definition.axes.items()}
    metas: dict[str, TensorMeta] = {}
    for name, spec in definition.inputs.items():
        if spec.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {spec.dtype[:80]!r} of {name[:80]}")
        if spec.shape is not None:
            metas[name] = _meta(name, spec, sizes, line.opreplay.layouts.get(name))
    return metas


def _meta(name: str, spec: Spec, sizes: dict[str, int], layout: Layout | None) -> TensorMeta:
    if spec.shape is None or len(spec.shape) > MAX_RANK or not sizes.keys() >= set(spec.shape):
        raise ValueError(f"{name[:80]} has no valid shape")
    shape = tuple(sizes[axis] for axis in spec.shape)
    if layout is None:
        return TensorMeta(shape=shape, dtype=spec.dtype, strides=contiguous_strides(shape))
    return TensorMeta(
        shape=shape,
        dtype=spec.dtype,
        strides=layout.strides,
        storage_offset=layout.storage_offset,
        storage=layout.storage,
    )


def _argument(argument: Argument, metas: dict[str, TensorMeta], values: dict[str, Input]) -> ReplayArg:
    """Return the argument with its tensors or its number. Raises KeyError for a missing input."""
    if not argument.inputs:
        return argument.arg
    if not any(name in metas for name in argument.inputs):
        name = argument.inputs[0] or ""
        return msgspec.structs.replace(argument.arg, value=_number(name, values))
    tensors = tuple(None if name is None else metas[name] for name in argument.inputs)
    return msgspec.structs.replace(argument.arg, tensors=tensors)


def _plain_argument(name: str, spec: Spec, meta: TensorMeta | None, values: dict[str, Input]) -> ReplayArg:
    if meta is not None:
        return ReplayArg(name=name, type="Tensor", tensors=(meta,))
    kind = "bool" if spec.dtype == "bool" else "float" if "float" in spec.dtype else "int"
    return ReplayArg(name=name, type=kind, value=_number(name, values))


def _number(name: str, values: dict[str, Input]) -> bool | int | float:
    value = values[name].value
    if value is None or (type(value) is int and abs(value) > LARGEST + 1):
        raise ValueError(f"{name[:80]} has no value")
    return value


def _check_stored(folder: Path, name: str, value: Input, metas: dict[str, TensorMeta]) -> None:
    """Raise FormatError or ValueError unless a stored tensor is in the folder and has the defined shape and dtype."""
    if name not in metas or value.path is None:
        raise ValueError(f"{name[:80]} has no path or is not a tensor")
    stored = SafetensorsFile(_inside(folder, folder / value.path)).tensors.get(value.tensor_key or "")
    if stored is None or stored.shape != metas[name].shape or stored.dtype != metas[name].dtype:
        raise ValueError(f"the stored tensor of {name[:80]} has another shape or dtype")
