# pyright: strict
"""A CANN kernel call with its shapes, dtypes and formats, and size helpers."""

from __future__ import annotations

from typing import Literal

import msgspec

from opreplay.traces.dtypes import ITEMSIZE_BYTES
from opreplay.traces.model import TensorSpec

Bound = Literal["cube", "vector", "hbm", "core load", "l2", "launch", "link", "slow path", "aicpu", "none"]
Confidence = Literal["calibrated", "other SoC", "uncalibrated"]
Evidence = Literal["this SoC", "another SoC", "its family", "its form"]
"""Best evidence for the prediction of an op's time.

"this SoC", "another SoC": the op was measured there. "its family": similar kernels were measured. "its form": nothing
similar was measured, so the time follows only from the kind of the op's work.
"""
WorkKind = Literal["product", "streaming", "irregular"]
"""Kind of an op's work. "product": matrix products, convolutions and attention on the cube cores. "streaming": reading
and writing whole tensors in order. "irregular": work that depends on tensor contents or on loops of the library (AI
CPU, scan, sort, top-k, gather, scatter, routing, RoI).
"""
State = Literal["cold", "warm", "network"]
"""What the caches contain when a kernel is measured or predicted.

"cold": none of the kernel's data, because L2 was cleared. "warm": the kernel's data and code, because the same call is
repeated. "network": data of the ops that ran before the kernel in a network.
"""


class KernelCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One kernel launch, created by lowering an op or by reading a row of kernel_details.csv."""

    type: str
    """CANN operator type: "MatMulV3", "Add", "SoftmaxV2", "hcom_allReduce_", ..."""
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec | None, ...]
    attrs: dict[str, int | float | bool | str | tuple[int, ...]] = {}
    """Attributes that shapes do not determine: "transpose_a", "causal", "dims", "context_lens", "world_size", ..."""
    count: int = 1


HALF = frozenset({"float16", "bfloat16"})
UNKNOWN_BYTES = 4
"""Bytes per element that are assumed for an unknown dtype. A wrong cost is better than none."""
UNIFIED_BUFFER = 192 << 10
"""Bytes of a vector core's unified buffer (Ascend 910B: CANN's platform configuration, "ub_size")."""


def itemsize(dtype: str) -> int:
    """Return the bytes of one element."""
    return ITEMSIZE_BYTES.get(dtype, UNKNOWN_BYTES)


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the broadcast shape; dimensions that do not match get the larger size."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True)) if rank else ()
