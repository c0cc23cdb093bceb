# pyright: strict
"""How many elements of which dtype a collective moves, by the tensors of an op whose form is known."""

from __future__ import annotations

import re
from math import prod
from typing import cast

from opreplay.replay.collectives.model import Kind
from opreplay.replay.collectives.names import EXPERTS
from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.model import OpSignature

_DTYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bfp16": "bfloat16",
    "bf16": "bfloat16", "double": "float64", "fp64": "float64", "byte": "uint8", "char": "int8", "short": "int16",
    "int": "int32", "long": "int64", "complexhalf": "complex32", "complexfloat": "complex64",
    "complexdouble": "complex128", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip
"""Names of dtypes as `record_param_comms` and HCCL write them, in lower case → torch's."""
_WITH_PRODUCT = re.compile(r"(^|_)(mm|matmul)(_|$)")
"""Names of ops that multiply matrices as well ("npu_mm_all_reduce_base", "fused_all_gather_matmul")."""
_OUT_FIRST = ("alltoall_base_", "_allgather_base_", "_reduce_scatter_base_", "_out", "reg_all_gather_into_tensor")
"""Ends of names of ops whose first tensor is the result and whose second goes in."""
_LISTS_OUT_FIRST = (
    "c10d::alltoall_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::reduce_scatter_tensor_coalesced_",
)
"""Ops that take a list of results, then a list of what goes in."""

Sizes = tuple[int | None, int | None, str, tuple[int, ...]]
"""(elements in, elements out, dtype, elements of each tensor), None for what is not recorded."""


def dtype_named(recorded: str) -> str | None:
    name = _DTYPES.get(recorded.lower(), recorded.lower())
    return name if name in ITEMSIZE_BYTES else torch_dtype_name(recorded)


def tensors_of(signature: OpSignature) -> list[list[tuple[int, str]]]:
    """Of each argument that is a tensor or a list of such: (elements, dtype) of each; "" for a dtype not recorded."""
    arguments: list[list[tuple[int, str]]] = []
    for index, (kind, dims) in enumerate(zip(signature.types or (), signature.dims or (), strict=False)):
        if kind == "TensorList":
            shapes = [d for d in dims if isinstance(d, tuple)]
            types = (signature.list_types or ())[index : index + 1]
            names = [torch_dtype_name(t) or "" for t in types[0]] if types else [""] * len(shapes)
            entry = [(_elements(shape), name) for shape, name in zip(shapes, names, strict=False)]
        elif (name := torch_dtype_name(kind)) is not None and (dims or not (signature.concrete or ("",) * 99)[index]):
            entry = [(_elements(dims), name)]
        else:
            continue
        if entry:
            arguments.append(entry)
    return arguments


def _elements(dims: object) -> int:
    entries = cast("tuple[object, ...]", dims) if isinstance(dims, tuple) else ()
    sizes = [size for size in entries if isinstance(size, int)]
    return prod(sizes)


def of_tensors(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Sizes by the tensors of an op whose form is known."""
    if EXPERTS in signature.name:
        return _of_experts(signature)
    if with_product(signature.name):
        return _of_product(kind, signature)
    arguments = tensors_of(signature)
    if not arguments or not any(name for entry in arguments for _, name in entry):
        return None
    dtype = next(name for entry in arguments for _, name in entry if name)
    totals = [sum(n for n, _ in entry) for entry in arguments]
    parts = tuple(n for n, _ in arguments[0])
    if signature.name.endswith(_OUT_FIRST) or signature.name.startswith(_LISTS_OUT_FIRST):
        return (totals[1], totals[0], dtype, tuple(n for n, _ in arguments[1])) if len(totals) > 1 else None
    if signature.name in ("c10d::allgather_", "c10d::gather_", "c10d::allgather_coalesced_"):
        return totals[-1], None, dtype, tuple(n for n, _ in arguments[-1])  # lists of lists are not recorded
    if signature.name in ("c10d::reduce_scatter_", "c10d::scatter_"):
        return None, totals[0], dtype, ()
    if kind in ("all_gather", "reduce_scatter") and len(totals) > 1 and max(totals) > min(totals):
        small, large = min(totals), max(totals)
        return (small, large, dtype, ()) if kind == "all_gather" else (large, small, dtype, ())
    return totals[0], None, dtype, parts


def with_product(name: str) -> bool:
    return _WITH_PRODUCT.search(name.rpartition("::")[2]) is not None


def _of_product(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Of the product of (..., K) with (K, N): what is gathered goes in, what is reduced comes out."""
    shapes: list[tuple[tuple[int, ...], str]] = []
    for index, (type_, dims) in enumerate(zip(signature.types or (), signature.dims or (), strict=False)):
        listed = type_ == "TensorList" and bool(dims) and isinstance(dims[0], tuple)
        sizes = dims[0] if listed else dims
        types = (signature.list_types or ())[index : index + 1]
        name = torch_dtype_name(types[0][0] if listed and types and types[0] else type_) or ""
        if isinstance(sizes, tuple) and len(sizes) > 1 and (name or listed):
            shapes.append((tuple(size for size in sizes if isinstance(size, int)), name))
    if len(shapes) < 2 or not shapes[0][1]:
        return None
    (first, dtype), (second, _) = shapes[:2]
    if kind == "all_gather":
        return prod(first), None, dtype, ()
    return prod(first[:-1]) * second[-1], None, dtype, ()


def _of_experts(signature: OpSignature) -> Sizes | None:
    """Of tokens (T, H), each sent to, or back from, as many experts as its row of ids (T, k) names."""
    shapes = [
        (tuple(size for size in dims if isinstance(size, int)), name)
        for kind, dims in zip(signature.types or (), signature.dims or (), strict=False)
        if (name := torch_dtype_name(kind)) is not None and len(dims) == 2
    ]
    hidden = next(((shape, name) for shape, name in shapes if "float" in name or name == "int8"), None)
    ids = next((shape for shape, name in shapes if name in ("int32", "int64")), None)
    if hidden is None or ids is None or len(hidden[0]) != 2 or len(ids) != 2:
        return None
    elements = prod(ids) * hidden[0][1]
    return elements, elements, hidden[1], ()
