# pyright: strict
"""Products that would take a CPU too long: their floating-point operations, counted from metadata. Knows no torch."""

from __future__ import annotations

import math

from opreplay.replay.arguments.shrink.pools import single_tensors
from opreplay.replay.ir.model import ReplayOp

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
    "linear": ("input", "weight"),
}


def bearable_flops(threads: int) -> float:
    """The most floating-point operations that one call may have on this many threads of a CPU."""
    return PATIENCE_S * FLOPS_PER_THREAD * max(1, threads)


def _attention_flops(query: tuple[int, ...], key: tuple[int, ...]) -> float:
    return 4.0 * math.prod(query) * key[-2] if len(query) == len(key) == 4 else 0.0


def product_flops(op: ReplayOp) -> float:
    """Two for each multiplication and addition of a matrix product, attention or convolution; 0 for other ops."""
    short = op.name.removeprefix("aten::")
    shapes = {name: meta.shape for name, meta in single_tensors(op).items()}
    if short in _PRODUCTS and shapes.keys() >= set(_PRODUCTS[short]):
        first, second = (shapes[name] for name in _PRODUCTS[short])
        if len(second) < 2:
            return 2.0 * math.prod(first)
        return 2.0 * math.prod(first) * second[0 if short == "linear" else -1]
    if "scaled_dot_product" in short and shapes.keys() >= {"query", "key", "value"}:
        return _attention_flops(shapes["query"], shapes["key"])
    return _convolution_flops(op, shapes) if "convolution" in short else 0.0


def _convolution_flops(op: ReplayOp, shapes: dict[str, tuple[int, ...]]) -> float:
    recorded = next(iter(op.outputs or ()), None)
    result = shapes.get("grad_output", None if recorded is None else recorded.shape)
    if result is None or "weight" not in shapes:
        return 0.0
    each = 4.0 if "backward" in op.name else 2.0
    return each * math.prod(result) * math.prod(shapes["weight"][1:])
