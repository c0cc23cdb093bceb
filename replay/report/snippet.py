# pyright: strict
"""Show one op as a few lines of plain PyTorch that make the call, to paste into a console, a bug report or a test.

Names and values come from the plan. Text from a trace is quoted, so it is never executed as code.
"""

from __future__ import annotations

import keyword
import re
from math import prod

from opreplay.replay.ir.model import PlainValue, ReplayArg, ReplayOp, Value
from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorMeta

_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)")
_WORD = re.compile(r"[A-Za-z_]\w*")
_DTYPE = re.compile(r"\w+")
_NAMED = frozenset(
    f"torch.{name}"
    for name in (
        *ITEMSIZE_BYTES,
        "strided",
        "sparse_coo",
        "contiguous_format",
        "preserve_format",
        "channels_last",
        "channels_last_3d",
    )
)
"""Names of torch's dtypes, layouts and memory formats that a snippet may use as values."""
_RUN_BY = {
    "reference": "# needs the library that defines {0}'s ops; opreplay ran a stand-in",
    "executor": "# opreplay ran an executor of yours",
    "python function": "# {1} is the function of the module that --allow-import {0}=MODULE names",
}
"""Resolution method → comment in the snippet, with placeholders for the op's namespace and name."""
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", "complex64", "complex128"})
"""Dtypes that torch.randn can create."""


def _function(op: ReplayOp, namespace: str, name: str) -> str:
    if op.resolved_by == "python function":
        return name
    overload = "" if op.overload is None else op.overload or "default"
    return f"torch.ops.{namespace}.{name}{f'.{overload}' if _WORD.fullmatch(overload) else ''}"


def snippet(op: ReplayOp, *, device: str = "cpu") -> str:
    """Return lines that import torch, create the arguments and call the op; "" if the op's arguments are unknown.

    Floating-point tensors are normally distributed, integers are 0 and booleans are true. Zeros are valid as indices. A
    replay uses other values.
    """
    match = _NAME.fullmatch(op.called)
    if match is None or not op.args or op.resolved_by is None:
        return ""
    lines = ["import torch", ""]
    if op.resolved_by in _RUN_BY:
        lines.append(_RUN_BY[op.resolved_by].format(match[1], match[2]))
    arguments: list[str] = []
    for arg in op.args:
        name = _identifier(arg.name)
        if arg.tensors:
            lines.append(f"{name} = {_tensors(arg, device)}")
            lines += _requiring(arg, name) if op.gradients else []
            text = name
        else:
            text = _value(arg, arg.value, device)
        arguments.append(f"{name}={text}" if arg.keyword_only else text)
    lines.append(f"result = {_function(op, match[1], match[2])}({', '.join(arguments)})")
    return "\n".join(lines) + "\n"


def _requiring(arg: ReplayArg, name: str) -> list[str]:
    """Return lines that enable gradients for the floating-point tensors of an argument."""
    places = [name] if not arg.type.endswith("[]") else [f"{name}[{i}]" for i in range(len(arg.tensors))]
    return [
        f"{place}.requires_grad_()"
        for place, meta in zip(places, arg.tensors, strict=False)
        if meta is not None and meta.dtype.startswith(("float", "bfloat", "complex"))
    ]


def _identifier(name: str) -> str:
    word = name if _WORD.fullmatch(name) else "argument"
    return f"{word}_" if keyword.iskeyword(word) or word in ("torch", "result") else word


def _tensors(arg: ReplayArg, device: str) -> str:
    tensors = ["None" if meta is None else _tensor(meta, device) for meta in arg.tensors]
    return f"[{', '.join(tensors)}]" if arg.type.endswith("[]") else tensors[0]


def _tensor(meta: TensorMeta, device: str) -> str:
    dtype = meta.dtype if _DTYPE.fullmatch(meta.dtype) else "float32"
    shape, contiguous = meta.shape, _contiguous(meta.shape)
    strides = contiguous if meta.strides is None or len(meta.strides) != len(shape) else meta.strides
    plain = strides == contiguous and not meta.storage_offset
    allocated = shape if plain else (_span(shape, strides, meta),)
    about = f"dtype=torch.{dtype}, device={device!r}"
    if dtype in FLOATS:
        text = f"torch.randn({allocated}, {about})"
    elif dtype.startswith("float"):
        text = f"torch.randn({allocated}, device={device!r}).to(torch.{dtype})"
    else:
        text = f"torch.{'ones' if dtype == 'bool' else 'zeros'}({allocated}, {about})"
    return text if plain else f"{text}.as_strided({shape}, {strides}, {meta.storage_offset})"


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape)))


def _span(shape: tuple[int, ...], strides: tuple[int, ...], meta: TensorMeta) -> int:
    """Return the number of elements from the start of the storage to the tensor's last element, inclusive."""
    if 0 in shape:
        return meta.storage_offset
    return meta.storage_offset + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _value(arg: ReplayArg, value: Value, device: str) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(arg, element, device) for element in value)}]"
    return _plain(arg.type.removesuffix("[]"), value, device)


def _plain(kind: str, value: PlainValue, device: str) -> str:
    if not isinstance(value, str):
        return repr(value)
    if kind == "Device":
        return f"torch.device({'cpu' if value.startswith('cpu') else device!r})".replace("(cpu)", "('cpu')")
    if kind in ("ScalarType", "Layout", "MemoryFormat") and value in _NAMED:
        return value
    if value in ("inf", "-inf", "nan"):
        return f"float({value!r})"
    if kind in ("complex", "Scalar") and re.fullmatch(r"[-+0-9.einfaj]+", value):
        return f"complex({value!r})"
    return repr(value)
