# pyright: strict
"""Output tensors of kernels whose record names only the inputs (reports of means, optimizers); estimates, no costs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from opreplay.replay.ir.kernel import TensorSpec, broadcast

Inputs = tuple["TensorSpec | None", ...]
Outputs = tuple["TensorSpec | None", ...]

_CAST_TO = {"bfloat16": "float32", "float16": "float32", "float32": "bfloat16", "int32": "int64", "int64": "int32"}
"""The usual other side of a cast, when only the source is recorded."""


def _spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


def _present(inputs: Inputs) -> list[TensorSpec]:
    return [s for s in inputs if s is not None]


def _like_broadcast(inputs: Inputs) -> Outputs:
    tensors = _present(inputs)
    return (_spec(broadcast([s.shape for s in tensors]), tensors[0].dtype),)


def _like_first(inputs: Inputs) -> Outputs:
    return (_present(inputs)[0],)


def _cast(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return (_spec(source.shape, _CAST_TO.get(source.dtype, "float32")),)


def _halved(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return (_spec((*source.shape[:-1], max(1, source.shape[-1] // 2)), source.dtype),) if source.shape else (source,)


def _quantized(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return _spec(source.shape, "int8"), _spec(source.shape[:-1], "float32")


def _row_reduced(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return (_spec(source.shape[:-1], "int32"),)


def _norm(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return source, _spec((*source.shape[:-1], 1), "float32")


def _add_norm(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return source, _spec((*source.shape[:-1], 1), "float32"), source


def _gating(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    chosen = (*source.shape[:-1], 8)
    return _spec(chosen, source.dtype), _spec(chosen, "int32")


def _sorted(inputs: Inputs) -> Outputs:
    source = _present(inputs)[0]
    return source, _spec(source.shape, "int32")


def _sliced(inputs: Inputs) -> Outputs:
    # What was cut out is not recorded; half of the innermost dimension stands for it.
    return _halved(inputs[:1])


_BY_TYPE: dict[str, Callable[[Inputs], Outputs]] = {
    **dict.fromkeys(("Cast",), _cast),
    **dict.fromkeys(("SwiGlu", "GeGluV2", "GeGluV3"), _halved),
    **dict.fromkeys(("DynamicQuant", "DynamicQuantV2"), _quantized),
    **dict.fromkeys(("ArgMaxV2", "ArgMaxWithValue", "ArgMinWithValue"), _row_reduced),
    **dict.fromkeys(("RmsNorm",), _norm),
    **dict.fromkeys(("AddRmsNorm", "AddRmsNormBias", "InplaceAddRmsNorm"), _add_norm),
    **dict.fromkeys(("MoeGatingTopK", "MoeGatingTopKSoftmax"), _gating),
    **dict.fromkeys(("Sort", "SortV2"), _sorted),
    **dict.fromkeys(("Slice", "StridedSlice", "StridedSliceD"), _sliced),
    **dict.fromkeys(("Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"), _like_broadcast),
    **dict.fromkeys(("AscendQuantV2", "AscendQuant"), lambda inputs: (_spec(_present(inputs)[0].shape, "int8"),)),
}
"""Kernel type → its outputs from its inputs."""

NO_OUTPUTS = frozenset({"MemSet", "ApplyAdamWV2", "ApplyAdamW"})
"""Types that have no outputs of their own: they update their inputs, or nothing is recorded of them."""


def complete_outputs(kernel_type: str, inputs: Inputs) -> Outputs:
    """Best estimate of the outputs of a kernel type; the first input's shape and dtype where nothing is known.

    Matrix products get none: their sizes follow from the operands (see `cost.cube.gemm_of`).
    """
    if kernel_type in NO_OUTPUTS or "atMul" in kernel_type or "atmul" in kernel_type or not _present(inputs):
        return ()
    if "Attention" in kernel_type:
        return ()
    rule = _BY_TYPE.get(kernel_type)
    if rule is not None and all(prod(s.shape) >= 0 for s in _present(inputs)):
        return rule(inputs)
    return _like_first(inputs)
