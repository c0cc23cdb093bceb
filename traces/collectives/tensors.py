# pyright: strict
"""Compute a collective's number of elements and dtype from the tensors of ops with a known signature."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import cast

from opreplay.traces.collectives.names import EXPERTS, Kind, operation_of
from opreplay.traces.dtypes import ITEMSIZE_BYTES, torch_dtype_name
from opreplay.traces.model import Dims, OpSignature

_DTYPES = {
    "float": "float32", "fp32": "float32", "half": "float16", "fp16": "float16", "bfp16": "bfloat16",
    "bf16": "bfloat16", "double": "float64", "fp64": "float64", "byte": "uint8", "char": "int8", "short": "int16",
    "int": "int32", "long": "int64", "complexhalf": "complex32", "complexfloat": "complex64",
    "complexdouble": "complex128", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip
"""dtype name as written by `record_param_comms` or HCCL, in lower case → torch dtype name."""
_WITH_PRODUCT = re.compile(r"(^|_)(g?mm|matmul)(_|$)")
"""Pattern of op names that include a matrix product ("npu_mm_all_reduce_base", "fused_all_gather_matmul")."""
_OUT_FIRST = ("alltoall_base_", "_allgather_base_", "_reduce_scatter_base_", "_out", "reg_all_gather_into_tensor")
"""Suffixes of op names whose first tensor is the output and whose second tensor is the input."""
_LISTS_OUT_FIRST = (
    "c10d::alltoall_",
    "c10d::allgather_into_tensor_coalesced_",
    "c10d::reduce_scatter_tensor_coalesced_",
)
"""Prefixes of ops that take a list of outputs followed by a list of inputs."""

Sizes = tuple[int | None, int | None, str, tuple[int, ...]]
"""(input elements, output elements, dtype, elements of each tensor); None for values that are not recorded."""


def dtype_named(recorded: str) -> str | None:
    name = _DTYPES.get(recorded.lower(), recorded.lower())
    return name if name in ITEMSIZE_BYTES else torch_dtype_name(recorded)


def tensors_of(signature: OpSignature) -> list[list[tuple[int, str]]]:
    """Return a list of (number of elements, dtype) for each argument that is a tensor or tensor list. The dtype is ""
    if it is unknown.
    """
    return [[(prod(shape), name) for shape, name in entry] for entry in _shapes_of(signature)]


def _shapes_of(signature: OpSignature) -> list[list[tuple[tuple[int, ...], str]]]:
    """Return (shape, dtype) of each tensor, for each argument that is a tensor or tensor list."""
    arguments: list[list[tuple[tuple[int, ...], str]]] = []
    for index, (kind, dims) in enumerate(zip(signature.types or (), signature.dims or (), strict=False)):
        if kind == "TensorList":
            arguments.append(_of_list(dims, *(signature.list_types or ())[index : index + 1]))
        elif (name := torch_dtype_name(kind)) is not None and (dims or not (signature.concrete or ("",) * 99)[index]):
            arguments.append([(_sizes(dims), name)])
    return list(filter(None, arguments))


def _of_list(dims: Dims, types: Sequence[str] | None = None) -> list[tuple[tuple[int, ...], str]]:
    shapes = [_sizes(entry) for entry in dims if isinstance(entry, tuple)]
    names = [""] * len(shapes) if types is None else [torch_dtype_name(text) or "" for text in types]
    return list(zip(shapes, names, strict=False))


def _sizes(dims: object) -> tuple[int, ...]:
    entries = cast("tuple[object, ...]", dims) if isinstance(dims, tuple) else ()
    return tuple(size for size in entries if isinstance(size, int))


def of_tensors(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Return a collective's sizes and dtype, from the tensors of its op; None if either is unknown."""
    sizes = sizes_of_tensors(kind, signature)
    return sizes if sizes is not None and sizes[2] else None


def sizes_of_tensors(kind: Kind, signature: OpSignature) -> Sizes | None:
    """Return a collective's sizes and dtype, from the tensors of its op; dtype "" if none is recorded."""
    if EXPERTS in signature.name:
        return _of_experts(signature)
    if with_product(signature.name):
        return _of_product(signature)
    arguments = tensors_of(signature)
    if not arguments:
        return None
    dtype = next((name for entry in arguments for _, name in entry if name), "")
    parts = [tuple(n for n, _ in entry) for entry in arguments]
    return _of_form(kind, signature.name, dtype, parts)


def _of_form(kind: Kind, name: str, dtype: str, parts: Sequence[tuple[int, ...]]) -> Sizes | None:
    """Return the sizes of a collective; the op's name determines which tensors are inputs and outputs.

    `parts` lists, for each argument, the number of elements of each of its tensors.
    """
    totals = list(map(sum, parts))
    if name.endswith(_OUT_FIRST) or name.startswith(_LISTS_OUT_FIRST):
        return (totals[1], totals[0], dtype, parts[1]) if len(totals) > 1 else None
    if name in ("c10d::allgather_", "c10d::gather_", "c10d::allgather_coalesced_"):
        return totals[-1], None, dtype, parts[-1]  # lists of lists are not recorded
    if name in ("c10d::reduce_scatter_", "c10d::scatter_"):
        return None, totals[0], dtype, ()
    if kind in ("all_gather", "reduce_scatter") and len(totals) > 1 and max(totals) > min(totals):
        small, large = min(totals), max(totals)
        return (small, large, dtype, ()) if kind == "all_gather" else (large, small, dtype, ())
    return totals[0], None, dtype, parts[0]


def with_product(name: str) -> bool:
    return _WITH_PRODUCT.search(name.rpartition("::")[2]) is not None


def sends_operand(name: str) -> bool:
    """Check whether an op with a matrix product communicates before it multiplies ("npu_all_to_all_matmul")."""
    plain = name.rpartition("::")[2]
    found = _WITH_PRODUCT.search(plain)
    return found is not None and operation_of(plain[: found.start()]) is not None


def is_turned(inner: int, second: Sequence[int]) -> bool:
    """Check whether the second operand of a product is (N, K) and cannot be (K, N), for K = `inner`."""
    return second[-1] == inner != second[-2]


def _of_product(signature: OpSignature) -> Sizes | None:
    """Return the sizes of the tensor that an op with a matrix product communicates.

    It is the first operand if the op communicates before it multiplies, otherwise the product. The op multiplies (...,
    K) by (K, N) or (N, K).
    """
    shapes = [entry[0] for entry in _shapes_of(signature) if len(entry[0][0]) > 1]
    if len(shapes) < 2 or not shapes[0][1]:
        return None
    (first, dtype), (second, _) = shapes[:2]
    if sends_operand(signature.name):
        return prod(first), None, dtype, ()
    return prod(first[:-1]) * second[-2 if is_turned(first[-1], second) else -1], None, dtype, ()


def _of_experts(signature: OpSignature) -> Sizes | None:
    """Return the sizes of an op that sends tokens (T, H) to or from their experts. The expert ids are (T, k)."""
    shapes = [entry[0] for entry in _shapes_of(signature) if len(entry[0][0]) == 2]
    hidden = next(((shape, name) for shape, name in shapes if "float" in name or name == "int8"), None)
    ids = next((shape for shape, name in shapes if name in ("int32", "int64")), None)
    if hidden is None or ids is None:
        return None
    elements = prod(ids) * hidden[0][1]
    return elements, elements, hidden[1], ()
