# pyright: strict
"""Writes ops as FlashInfer-Trace definitions and workloads.

A definition stands for all calls of one op with the same dtypes and numbers of dimensions. Each of these calls is a
workload. This module determines which calls share a definition, which axes a definition has, and which inputs are
stored. `resolve.written.flashinfer_trace` defines the file format and reads it.
"""

from __future__ import annotations

import keyword
import math
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import InitializerError
from opreplay.initializers.dense import DenseInit
from opreplay.initializers.registry import Registry
from opreplay.initializers.supplied.safetensors import safetensors_bytes
from opreplay.replay.arguments import tensors
from opreplay.replay.export.standalone import called_text, constant, refusing_text
from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.ops.table import find
from opreplay.replay.resolve.written.flashinfer_trace import (
    DTYPES,
    Argument,
    Axis,
    Called,
    Definition,
    Input,
    Layout,
    Line,
    Spec,
    Times,
    Workload,
)
from opreplay.traces.errors import InternalError, UsageError
from opreplay.traces.model import TensorMeta, contiguous_strides

MOST_STORED_BYTES = 16 << 20
"""Maximum bytes of integers per call whose values are stored; if there are more, they stay random."""
MOST_TENSORS = 64
"""Maximum number of tensors per call. If a call has more, they are in a list and have no meaningful names."""
_NUMBERS = {bool: "bool", int: "int64", float: "float32"}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An op that the format cannot express."""

    id: str
    name: str
    reason: str
    device_us: float


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The files, and the ops that are not in them."""

    files: dict[str, bytes]
    """Contents by path inside the folder."""
    definitions: int
    workloads: int
    without_reference: tuple[str, ...]
    """Ops for which `run` in the definition raises NotImplementedError."""
    unstored: int
    """Number of calls whose indices stay random. Their initializer fails or needs too much memory."""
    left_out: tuple[LeftOut, ...]
    device_us: float
    """Recorded device time of all ops of the plan."""

    @property
    def covered_share(self) -> float:
        """Fraction of the ops' device time that definitions cover. The result is 1 if no device time was recorded."""
        return 1 - sum(op.device_us for op in self.left_out) / self.device_us if self.device_us else 1.0


class _Form(msgspec.Struct, frozen=True, kw_only=True):
    """One call, converted to the form of a definition."""

    op: ReplayOp
    args: tuple[Argument, ...]
    metas: dict[str, TensorMeta]
    numbers: dict[str, bool | int | float]
    outputs: dict[str, TensorMeta]

    @property
    def key(self) -> bytes:
        """Key of the definition: calls with the same key share a definition."""
        specs = [
            {name: (meta.dtype, len(meta.shape)) for name, meta in part.items()} for part in (self.metas, self.outputs)
        ]
        kinds = {name: type(value).__name__ for name, value in self.numbers.items()}
        return msgspec.json.encode([self.op.called, self.op.overload, self.op.resolved_by, self.args, specs, kinds])


MOST_NAME = 120
"""Maximum number of characters in a definition's name, which is also its file name."""


class _Names(msgspec.Struct):
    """A set of names in use."""

    used: set[str] = msgspec.field(default_factory=set[str])

    def take(self, wanted: str) -> str:
        """Return the name, with a number appended if it is already in use."""
        name, number = wanted, 2
        while name in self.used:
            name, number = f"{wanted}_{number}", number + 1
        self.used.add(name)
        return name


class _NotExpressible(Exception):
    """Raised if the format cannot express a call; the text is the reason."""


def flashinfer_trace(plan: ReplayPlan, registry: Registry, *, seed: int = 0, memory_bytes: int) -> Exported:
    """Return the exported files of a plan. `memory_bytes` limits the memory that generating the indices of one call may
    take.
    """
    families: dict[bytes, list[_Form]] = {}
    left_out: list[LeftOut] = []
    for op in plan.ops:
        try:
            form = _form(op)
        except _NotExpressible as unsaid:
            left_out.append(LeftOut(id=op.id, name=op.name, reason=str(unsaid), device_us=op.recorded.device_us_total))
            continue
        families.setdefault(form.key, []).append(form)
    files: dict[str, bytes] = {}
    names, without, workloads, unstored = _Names(), dict[str, None](), 0, 0
    for forms in families.values():
        definition, says = _definition(forms, names)
        path = f"{definition.op_type}/{definition.name}"
        files[f"definitions/{path}.json"] = plain_json(msgspec.json.format(msgspec.json.encode(definition), indent=2))
        if not says:
            without[forms[0].op.called] = None
        lines: list[bytes] = []
        for form in forms:
            stored = _stored(form, registry, seed, memory_bytes)
            unstored += stored is None
            line = _line(definition, form, path, list(stored or ()))
            if stored:
                files[f"blob/workloads/{path}/{line.workload.uuid}.safetensors"] = safetensors_bytes(stored)
            lines.append(plain_json(msgspec.json.encode(line)))
        files[f"workloads/{path}.jsonl"] = b"\n".join(lines) + b"\n"
        workloads += len(lines)
    return Exported(
        files=files,
        definitions=len(families),
        workloads=workloads,
        without_reference=tuple(without),
        unstored=unstored,
        left_out=tuple(left_out),
        device_us=sum(op.recorded.device_us_total for op in plan.ops),
    )


def write_flashinfer_trace(exported: Exported, folder: Path) -> None:
    """Write the files. Raises UsageError if a file cannot be written, or if the folder contains files of another
    export.
    """
    for file in (path for part in ("definitions", "workloads") for path in (folder / part).rglob("*.json*")):
        if file.relative_to(folder).as_posix() not in exported.files:
            raise UsageError(
                f"{folder} contains other definitions, which would be read as part of this export: {file.name}",
                hint="Name another folder, or remove its definitions/ and workloads/.",
            )
    try:
        for name, data in exported.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder}: {error.strerror}", hint="Check the folder and its permissions."
        ) from None


def left_out_lines(exported: Exported) -> list[str]:
    """Return one line for each pair of op name and reason among the ops that are left out, most device time first."""
    totals: dict[tuple[str, str], list[float]] = {}
    for op in exported.left_out:
        sums = totals.setdefault((op.name, op.reason), [0, 0.0])
        sums[0] += 1
        sums[1] += op.device_us
    lines: list[str] = []
    for (name, reason), (count, device_us) in sorted(totals.items(), key=lambda item: -item[1][1]):
        share = f" ({100 * device_us / exported.device_us:.1f} % of device time)" if exported.device_us else ""
        lines.append(f"* {count:.0f} × {name}: {reason}{share}")
    return lines


def _form(op: ReplayOp) -> _Form:
    """Convert a call to the form of a definition. Raises _NotExpressible."""
    if op.reason is not None:
        raise _NotExpressible(str(op.reason))
    if op.resolved_by is None or op.outputs is None:
        raise _NotExpressible("its results are unknown")
    if sum(len(arg.tensors) for arg in op.args) > MOST_TENSORS:
        raise _NotExpressible(f"more than {MOST_TENSORS} tensors")
    names = _Names()
    metas: dict[str, TensorMeta] = {}
    numbers: dict[str, bool | int | float] = {}
    args = tuple(_argument(arg, names, metas, numbers) for arg in op.args)
    outputs = {names.take(name): meta for name, meta in _results(op)}
    unread = {meta.dtype for meta in (*metas.values(), *outputs.values())} - DTYPES
    if unread:
        raise _NotExpressible(f"the format has no dtype {', '.join(sorted(unread))}")
    return _Form(op=op, args=args, metas=metas, numbers=numbers, outputs=outputs)


def _argument(
    arg: ReplayArg, names: _Names, metas: dict[str, TensorMeta], numbers: dict[str, bool | int | float]
) -> Argument:
    """Return the argument without its tensors and number. They are moved to `metas` and `numbers`, under
    unique names.
    """
    name = f"{arg.name}_" if keyword.iskeyword(arg.name) or not arg.name.isidentifier() else arg.name
    if isinstance(arg.value, bool | int | float) and not arg.tensors:
        numbers[names.take(name)] = arg.value
        return Argument(arg=msgspec.structs.replace(arg, value=None), inputs=(next(reversed(numbers)),))
    if arg.value is not None or not any(arg.tensors):
        return Argument(arg=arg)
    inputs: list[str | None] = []
    for i, meta in enumerate(arg.tensors):
        if meta is None:
            inputs.append(None)
            continue
        inputs.append(names.take(name if arg.type == "Tensor" else f"{name}_{i}"))
        metas[inputs[-1] or ""] = meta
    return Argument(arg=msgspec.structs.replace(arg, tensors=()), inputs=tuple(inputs))


def _results(op: ReplayOp) -> Iterator[tuple[str, TensorMeta]]:
    """Yield (name, metadata) of each tensor that `run` returns. These are the op's results, or, if it has none, the
    arguments that it writes.
    """
    results = [meta for meta in op.outputs or () if meta is not None]
    if op.outputs:
        for i, meta in enumerate(results):
            yield ("output" if len(results) == 1 else f"output_{i}"), meta
        return
    for arg in op.args:
        if arg.mutated and arg.type == "Tensor":
            yield from ((f"{arg.name}_out", meta) for meta in arg.tensors[:1] if meta is not None)


def _definition(forms: Sequence[_Form], names: _Names) -> tuple[Definition, bool]:
    """Return (definition of calls with the same key, whether the reference code in it computes the op)."""
    first = forms[0]
    op = first.op
    axes, inputs, outputs = _axes(forms)
    inputs = {
        **inputs,
        **{name: Spec(shape=None, dtype=_NUMBERS[type(value)]) for name, value in first.numbers.items()},
    }
    order = [name for argument in first.args for name in argument.inputs if name is not None]
    given = {argument.arg.name: _given(argument) for argument in first.args}
    text = called_text(op, order, given)
    row = find(op.called)
    namespace = op.called.partition("::")[0]
    spelled = re.sub(r"\W+", "_", f"{op.called}_{op.overload or ''}", flags=re.ASCII).rstrip("_")[:MOST_NAME]
    definition = Definition(
        name=names.take(spelled),
        op_type=re.sub(r"\W+", "_", (row.folder or row.family if row is not None else "") or namespace),
        axes=axes,
        inputs={name: inputs[name] for name in order},
        outputs=outputs,
        reference=text or refusing_text(op, order),
        tags=(f"op:{op.called}",),
        opreplay=Called(name=op.called, overload=op.overload, args=first.args),
    )
    return definition, text is not None


def _given(argument: Argument) -> str:
    """Return the source text of an argument in the call that `run` makes."""
    if not argument.inputs:
        return constant(argument.arg)
    names = [str(name) for name in argument.inputs]
    return names[0] if not argument.arg.type.endswith("[]") else f"[{', '.join(names)}]"


def _axes(forms: Sequence[_Form]) -> tuple[dict[str, Axis], dict[str, Spec], dict[str, Spec]]:
    """Return axes, inputs and outputs. Dimensions whose sizes are equal in each of the calls become one axis."""
    names = _Names()
    axis_by_sizes: dict[tuple[int, ...], str] = {}
    axes: dict[str, Axis] = {}

    def specs(parts: Sequence[dict[str, TensorMeta]]) -> dict[str, Spec]:
        return {name: Spec(shape=shape(name, parts), dtype=meta.dtype) for name, meta in parts[0].items()}

    def shape(name: str, parts: Sequence[dict[str, TensorMeta]]) -> tuple[str, ...]:
        metas = [part[name] for part in parts]
        return tuple(
            axis(f"{name}_{dim}", sizes) for dim, sizes in enumerate(zip(*(m.shape for m in metas), strict=True))
        )

    def axis(wanted: str, sizes: tuple[int, ...]) -> str:
        if sizes not in axis_by_sizes:
            axis_by_sizes[sizes] = names.take(wanted)
            const = len(set(sizes)) == 1
            axes[axis_by_sizes[sizes]] = Axis(type="const", value=sizes[0]) if const else Axis(type="var")
        return axis_by_sizes[sizes]

    inputs = specs([form.metas for form in forms])
    return axes, inputs, specs([form.outputs for form in forms])


def _line(definition: Definition, form: _Form, path: str, stored: Sequence[str]) -> Line:
    op = form.op
    key = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{definition.name} {op.id}"))
    shapes = {**definition.inputs, **definition.outputs}
    axes: dict[str, int] = {}
    for name, meta in {**form.metas, **form.outputs}.items():
        for axis, size in zip(shapes[name].shape or (), meta.shape, strict=True):
            if definition.axes[axis].type == "var":
                axes[axis] = size
    inputs: dict[str, Input] = {}
    for name in definition.inputs:
        if name in form.numbers:
            inputs[name] = Input(type="scalar", value=form.numbers[name])
        elif name in stored:
            file = f"blob/workloads/{path}/{key}.safetensors"
            inputs[name] = Input(type="safetensors", path=file, tensor_key=name)
        else:
            inputs[name] = Input(type="random")
    layouts = {name: layout for name, meta in form.metas.items() if (layout := _layout(meta)) is not None}
    return Line(
        definition=definition.name,
        workload=Workload(uuid=key, axes=axes, inputs=inputs),
        opreplay=Times(count=op.count, layouts=layouts),
    )


def _layout(meta: TensorMeta) -> Layout | None:
    usual = meta.strides == contiguous_strides(meta.shape)
    if usual and not meta.storage_offset and meta.storage is None:
        return None
    return Layout(strides=meta.strides, storage_offset=meta.storage_offset, storage=meta.storage)


def _stored(form: _Form, registry: Registry, seed: int, memory_bytes: int) -> dict[str, torch.Tensor] | None:
    """Return the integer tensors of a call by input name, filled by the op's initializer.

    {} if the call has no integers, or the op no initializer. None if the initializer fails or needs too much memory.
    Floating-point tensors stay on the meta device unless the initializer needs them.
    """
    op = form.op
    integers = [name for name, meta in form.metas.items() if _is_integer(meta)]
    size = sum(math.prod(form.metas[name].shape) * budget.itemsize(form.metas[name].dtype) for name in integers)
    if not integers:
        return {}
    try:
        rule = registry.find(
            tensors.init_context(op, tensors.arguments(op, device=torch.device("meta")), seed, name=op.called)
        )
    except (InitializerError, InternalError, RuntimeError, ValueError):
        return None
    if rule is None:
        return {}
    if size > min(MOST_STORED_BYTES, memory_bytes):
        return None
    whole = budget.over_budget(op, memory_bytes) is None
    args: dict[str, Any] = {}
    for on_meta in (True, False) if whole else (True,):
        args = _allocated(op, on_meta=on_meta)
        context = tensors.init_context(op, args, seed, name=op.called)
        try:
            DenseInit().initialize(context)
            registry.apply(rule, context)
        except (InitializerError, InternalError, RuntimeError, ValueError, NotImplementedError):
            continue
        return {name: tensor for name, tensor in _by_input(form, args) if name in integers}
    return None


def _is_integer(meta: TensorMeta) -> bool:
    dtype = tensors.DTYPES[meta.dtype]
    return dtype is torch.bool or fill.is_integer(dtype)


def _allocated(op: ReplayOp, *, on_meta: bool) -> dict[str, Any]:
    """Allocate the arguments, each in its own memory. With `on_meta`, floating-point tensors stay on the meta
    device.
    """
    apart = tuple(
        msgspec.structs.replace(
            arg, tensors=tuple(meta and msgspec.structs.replace(meta, storage=None) for meta in arg.tensors)
        )
        for arg in op.args
    )
    op = msgspec.structs.replace(op, args=apart)
    args = tensors.arguments(op, device=torch.device("meta" if on_meta else "cpu"))
    for arg in op.args:
        if on_meta and arg.tensors:
            items = list(map(_with_integers, _listed(args[arg.name]), arg.tensors))
            args[arg.name] = items if arg.type == "Tensor[]" else items[0]
    return args


def _with_integers(item: Any, meta: TensorMeta | None) -> Any:
    """Return a newly allocated tensor if `meta` describes an integer tensor; otherwise return `item` unchanged."""
    if meta is None or not _is_integer(meta):
        return item
    return tensors.allocate(meta, device=torch.device("cpu"))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


def _by_input(form: _Form, args: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for argument in form.args:
        if argument.inputs and argument.inputs[0] not in form.numbers:
            for name, tensor in zip(argument.inputs, _listed(args[argument.arg.name]), strict=True):
                if name is not None:
                    yield name, tensor
