# pyright: strict
"""Replay 16-bit matrix products in float32 on CPUs that cannot multiply 16-bit numbers.

Without AVX-512 or AMX, torch's CPU kernels for bfloat16 and float16 products are plain loops. They are about 300 times
slower than those for float32. A product that would take longer than `PATIENCE_S` is replayed in float32, and the result
says so. A shorter product is replayed as recorded. This module only decides. It allocates nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from opreplay.replay.arguments import tensors
from opreplay.replay.arguments.operations import formulas
from opreplay.replay.ir.model import Assumption, ReplayArg, ReplayOp
from opreplay.traces.model import TensorMeta

PATIENCE_S = 0.5
"""Estimated time per call, in seconds, above which a product runs in float32.

It is somewhat more than the default time for measuring an op.
"""
PLAIN_LOOP_FLOPS = 0.4e9
"""Floating-point operations per second of torch 2.13's bfloat16 matmul on an AVX2 CPU, from timing one call of
512x512x512.
"""
WORTH_COUNTING = 1 << 18
"""Minimum elements of the largest argument for which FLOPs are counted. A smaller product cannot take `PATIENCE_S`."""


def as_float32(op: ReplayOp, function: Callable[..., Any], device: torch.device) -> tuple[ReplayOp, Assumption | None]:
    """For a product that would be too slow, return (op with float32 instead of 16-bit tensors, what to report).

    For every other op, return (the unchanged op, None). These include vendor references, which widen block by block
    themselves, and users' executors, which run as they are written.
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
    what = f"computed in float32: this CPU multiplies {names} only in a slow loop, about {seconds:.2g} s per call"
    return in_float32(op), Assumption(argument="dtype", what=what)


@lru_cache(maxsize=4)
def _native(dtype: str) -> bool:
    """Check whether oneDNN supports products of this type on this CPU."""
    if dtype == "bfloat16":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def _flops(op: ReplayOp, function: Callable[..., Any]) -> int:
    """Return the FLOPs of the products in one call, as torch counts them on meta tensors; 0 if torch cannot
    count them.
    """
    try:
        args = tensors.arguments(op, device=torch.device("meta"))
    except (RuntimeError, ValueError):  # torch refuses what was recorded
        return 0
    positional, by_name = op.in_call(args)
    try:
        with FlopCounterMode(display=False, custom_mapping=formulas()) as counter:
            function(*positional, **by_name)
    except (RuntimeError, NotImplementedError, ValueError, TypeError, AssertionError, AttributeError, IndexError):
        # An op without a meta kernel is no product that torch could count either.
        return 0
    return counter.get_total_flops()


HALVES = ("bfloat16", "float16")
_LACKS = re.compile(r"not implemented for '(?:Half|BFloat16)'")


def in_float32(op: ReplayOp) -> ReplayOp:
    """Return the op with float32 instead of every 16-bit float type, in tensors, results and dtype arguments."""
    outputs = None if op.outputs is None else tuple(m and _wide(m) for m in op.outputs)
    return msgspec.structs.replace(op, args=tuple(_wide_argument(arg) for arg in op.args), outputs=outputs)


def narrow_types(op: ReplayOp) -> tuple[str, ...]:
    """Return the 16-bit float types of the op's tensors."""
    return tuple(sorted({m.dtype for arg in op.args for m in arg.tensors if m is not None and m.dtype in HALVES}))


def without_kernel(op: ReplayOp, error: Exception) -> tuple[ReplayOp, Assumption] | None:
    """Return (op in float32, what to report) if the error says that torch has no kernel for the op's 16-bit type.

    For other errors, return None.
    """
    types = narrow_types(op)
    if not types or _LACKS.search(str(error)) is None:
        return None
    what = f"computed in float32, because torch has no {' and '.join(types)} kernel of this op for this device"
    return in_float32(op), Assumption(argument="dtype", what=what)


def _wide(meta: TensorMeta) -> TensorMeta:
    return msgspec.structs.replace(meta, dtype="float32") if meta.dtype in HALVES else meta


def _wide_argument(arg: ReplayArg) -> ReplayArg:
    names_half = isinstance(arg.value, str) and arg.value.removeprefix("torch.") in HALVES
    wide = tuple(meta and _wide(meta) for meta in arg.tensors)
    return msgspec.structs.replace(arg, tensors=wide, value="torch.float32" if names_half else arg.value)
