# pyright: strict
"""Count the floating-point operations of products from metadata, to find products that are too slow on a CPU.

This module does not import torch.
"""

from __future__ import annotations

from math import prod

from opreplay.replay.arguments.shrink.pools import single_tensors
from opreplay.replay.ir.model import ReplayOp
from opreplay.traces.times import flops

FLOPS_PER_THREAD = 1e10
"""Assumed floating-point operations per second of one thread in float32 products.

This is conservative: half of the speed of one core of a 2020 server while its other cores are busy.
"""
PATIENCE_S = 20.0
"""Estimated time of a call, in seconds, above which it runs on only some of its slices. It is a third of an op's time
limit.
"""
_PRODUCTS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "matmul": ("self", "other"),
    "addmm": ("mat1", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "_addmm_activation": ("mat1", "mat2"),
    "linear": ("input", "weight"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
    "addbmm": ("batch1", "batch2"),
}


def bearable_flops(threads: int) -> float:
    """Return the maximum number of floating-point operations of one call on a CPU with this many threads."""
    return PATIENCE_S * FLOPS_PER_THREAD * max(1, threads)


def product_flops(op: ReplayOp) -> float:
    """Return the FLOPs of a matrix product, attention or convolution; 0 for other ops.

    A multiply-add counts as two, a complex multiply-add as eight.
    """
    tensors = single_tensors(op)
    return flops.complex_factor(meta.dtype for meta in tensors.values()) * _real_flops(
        op, {name: meta.shape for name, meta in tensors.items()}
    )


def _real_flops(op: ReplayOp, shapes: dict[str, tuple[int, ...]]) -> float:
    """Return the FLOPs of the product, counting all numbers as real."""
    short = op.name.removeprefix("aten::")
    if short in _PRODUCTS and shapes.keys() >= set(_PRODUCTS[short]):
        first, second = (shapes[name] for name in _PRODUCTS[short])
        if short == "linear":
            return float(flops.product_flops((prod(first[:-1]), *first[-1:]), tuple(reversed(second)) or first[-1:]))
        return float(flops.product_flops(first, second))
    if short == "bilinear" and shapes.keys() >= {"input1", "input2", "weight"}:
        return float(flops.bilinear_flops(shapes["input1"], shapes["weight"], shapes["input2"]))
    if "scaled_dot_product" in short and shapes.keys() >= {"query", "key", "value"}:
        sizes = shapes["query"], shapes["key"], shapes["value"]
        if [len(size) for size in sizes] != [4, 4, 4]:
            return 0.0
        count = flops.attention_backward_flops if "backward" in short else flops.attention_flops
        return float(count(*sizes))
    return _convolution_flops(op, shapes) if "convolution" in short else 0.0


def _convolution_flops(op: ReplayOp, shapes: dict[str, tuple[int, ...]]) -> float:
    recorded, data = next(iter(op.outputs or ()), None), shapes.get("input", shapes.get("self"))
    result = shapes.get("grad_output", None if recorded is None else recorded.shape)
    weight, transposed = shapes.get("weight"), op.values.get("transposed") is True
    if result is None or weight is None or (transposed and data is None):
        return 0.0
    if "backward" not in op.name:
        return float(flops.convolution_flops(data or (), weight, result, transposed=transposed))
    mask = op.values.get("output_mask")
    wanted = [flag is True for flag in mask] if isinstance(mask, tuple) else [True, True]
    return float(flops.convolution_backward_flops(result, data or (), weight, transposed=transposed, wanted=wanted))
