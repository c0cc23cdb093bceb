"""16-bit matrix products on CPUs that cannot multiply 16-bit numbers: recognises them and widens them to float32.

Without AVX-512 or AMX, torch's CPU kernels for bfloat16 and float16 products are plain loops, some 300 times slower
than float32's. A product that would take longer than `PATIENCE_S` is replayed in float32, and the result says so;
a shorter one is replayed as recorded. Owns the decision, not the allocation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from opreplay.replay import tensors
from opreplay.replay.ir import Assumption, ReplayOp
from opreplay.replay.narrow import in_float32, narrow_types

PATIENCE_S = 0.5
"""Estimated time of one call above which a product is widened: the default measuring time of an op and some more."""
PLAIN_LOOP_FLOPS = 0.4e9
"""Floating-point operations a second of torch 2.13's bfloat16 matmul on an AVX2 CPU, one call of 512x512x512 timed."""
WORTH_COUNTING = 1 << 18
"""Elements of the largest argument below which no product can take `PATIENCE_S`; spares small ops the count."""


def widened(op: ReplayOp, function: Callable[..., Any], device: torch.device) -> tuple[ReplayOp, Assumption | None]:
    """`op` with its 16-bit tensors in float32 when it is a product too slow otherwise, and what to report; else as is.

    Vendor references widen block by block themselves, and users' executors are as they are: both are left alone.
    """
    halves = narrow_types(op)
    if device.type != "cpu" or not halves or op.resolved_by in ("reference", "executor") or all(map(_native, halves)):
        return op, None
    largest = max(math.prod(m.shape) for arg in op.args for m in arg.tensors if m is not None)
    if largest < WORTH_COUNTING:
        return op, None
    seconds = _flops(op, function) / PLAIN_LOOP_FLOPS
    if seconds <= PATIENCE_S:
        return op, None
    names = " and ".join(halves)
    what = f"computed in float32: this CPU has no {names} products, about {seconds:.2g} s a call"
    return in_float32(op), Assumption(argument="dtype", what=what)


@lru_cache(maxsize=4)
def _native(dtype: str) -> bool:
    """Whether oneDNN multiplies this type on this CPU."""
    if dtype == "bfloat16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _flops(op: ReplayOp, function: Callable[..., Any]) -> int:
    """Floating-point operations of the products in one call, counted by torch on meta tensors; 0 when it cannot."""
    meta = torch.device("meta")
    try:
        args = tensors.arguments(op, device=meta)
        positional = [args[arg.name] for arg in op.args if not arg.keyword_only]
        by_name = {arg.name: args[arg.name] for arg in op.args if arg.keyword_only}
        with FlopCounterMode(display=False) as counter:
            function(*positional, **by_name)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError, AttributeError, IndexError):
        # An op without a meta kernel is no product that torch could count either.
        return 0
    return counter.get_total_flops()
