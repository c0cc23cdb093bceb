# pyright: strict
"""Estimates output tensors of kernels whose record gives only inputs (tables of averages, optimizers); no costs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from opreplay.replay.ir.kernel import TensorSpec, broadcast

Inputs = tuple["TensorSpec | None", ...]
Outputs = tuple["TensorSpec | None", ...]

_CAST_TO = {"bfloat16": "float32", "float16": "float32", "float32": "bfloat16", "int32": "int64", "int64": "int32"}
"""Source dtype of a cast → usual target dtype; used if the target dtype is not recorded."""


def _spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def _cast(source: TensorSpec) -> Outputs:
    return (_spec(source.shape, _CAST_TO.get(source.dtype, "float32")),)


def _halved(source: TensorSpec) -> Outputs:
    return (_spec((*source.shape[:-1], max(1, source.shape[-1] // 2)), source.dtype),) if source.shape else (source,)


def _quantized(source: TensorSpec) -> Outputs:
    return _spec(source.shape, "int8"), _spec(source.shape[:-1], "float32")


def _norm(source: TensorSpec) -> Outputs:
    return source, _spec((*source.shape[:-1], 1), "float32")


def _gating(source: TensorSpec) -> Outputs:
    chosen = (*source.shape[:-1], 8)
    return _spec(chosen, source.dtype), _spec(chosen, "int32")


def _same(source: TensorSpec) -> Outputs:
    return (source,)


_BY_TYPE: dict[str, Callable[[TensorSpec], Outputs]] = {
    "Cast": _cast,
    # What a slice cuts out is not recorded; half of the innermost dimension stands for it.
    **dict.fromkeys(("SwiGlu", "GeGluV2", "GeGluV3", "Slice", "StridedSlice", "StridedSliceD"), _halved),
    **dict.fromkeys(("DynamicQuant", "DynamicQuantV2"), _quantized),
    **dict.fromkeys(("AscendQuantV2", "AscendQuant"), lambda source: _quantized(source)[:1]),
    **dict.fromkeys(
        ("ArgMaxV2", "ArgMaxWithValue", "ArgMinWithValue"), lambda source: (_spec(source.shape[:-1], "int32"),)
    ),
    "RmsNorm": _norm,
    **dict.fromkeys(("AddRmsNorm", "AddRmsNormBias", "InplaceAddRmsNorm"), lambda source: (*_norm(source), source)),
    **dict.fromkeys(("MoeGatingTopK", "MoeGatingTopKSoftmax"), _gating),
    **dict.fromkeys(("Sort", "SortV2"), lambda source: (source, _spec(source.shape, "int32"))),
}
"""Kernel type → function that derives the outputs from the first input."""

BINARY = frozenset({"Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"})
"""Kernel types whose output has the broadcast shape of their inputs."""

NO_OUTPUTS = frozenset({"MemSet", "ApplyAdamWV2", "ApplyAdamW"})
"""Kernel types whose only outputs are their updated inputs, or whose outputs are not recorded."""


def complete_outputs(kernel_type: str, inputs: Inputs) -> Outputs:
    """Return the estimated outputs of a kernel type.

    If nothing is known about the type, there is one output with the first input's shape and dtype. Matrix products get
    no outputs, because their sizes follow from the operands (see `cost.cube.gemm_of`).
    """
    tensors = [spec for spec in inputs if spec is not None]
    if not tensors or kernel_type in NO_OUTPUTS or any(word in kernel_type for word in ("atMul", "atmul", "Attention")):
        return ()
    source = tensors[0]
    if any(prod(spec.shape) < 0 for spec in tensors):
        return (source,)
    if kernel_type in BINARY:
        return (_spec(broadcast([spec.shape for spec in tensors]), source.dtype),)
    return _BY_TYPE.get(kernel_type, _same)(source)
