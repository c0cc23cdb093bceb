# pyright: strict
"""Products that would take a CPU too long: their floating-point operations, counted from metadata. Knows no torch."""

from __future__ import annotations

import math

from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.model import TensorMeta

FLOPS_PER_THREAD = 1e10
"""Floating-point operations a second of one thread in float32 products, on the safe side: half of what one core of a
2020 server does while its neighbours are busy."""
PATIENCE_S = 20.0
"""Estimated time of one call above which it runs on some of its slices: a third of the time that an op is given."""
_PRODUCTS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "matmul": ("self", "other"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "_addmm_activation": ("mat1", "mat2"),
}


def bearable_flops(threads: int) -> float:
    """The most floating-point operations that one call may have on this many threads of a CPU."""
    return PATIENCE_S * FLOPS_PER_THREAD * max(1, threads)


def product_flops(op: ReplayOp) -> float:
    """Two for each multiplication and addition of a matrix product, attention or convolution; 0 for other ops."""
    short = op.name.removeprefix("aten::")
    tensors = {a.name: a.tensors[0] for a in op.args if a.type == "Tensor" and a.tensors and a.tensors[0] is not None}
    if short in _PRODUCTS:
        first, second = (tensors.get(name) for name in _PRODUCTS[short])
        return _matmul(first, second) if first is not None and second is not None else 0.0
    if short == "linear" and "input" in tensors and "weight" in tensors:
        return 2.0 * math.prod(tensors["input"].shape) * tensors["weight"].shape[0]
    if "scaled_dot_product" in short and {"query", "key", "value"} <= set(tensors):
        query, key = tensors["query"].shape, tensors["key"].shape
        return 4.0 * math.prod(query) * key[-2] if len(query) == len(key) == 4 else 0.0
    if "convolution" in short and "weight" in tensors:
        result = tensors.get("grad_output") or (op.outputs[0] if op.outputs else None)
        each = 4.0 if "backward" in short else 2.0
        return each * math.prod(result.shape) * math.prod(tensors["weight"].shape[1:]) if result is not None else 0.0
    return 0.0


def _matmul(first: TensorMeta, second: TensorMeta) -> float:
    columns = second.shape[-1] if len(second.shape) > 1 else 1
    return 2.0 * math.prod(first.shape) * columns
