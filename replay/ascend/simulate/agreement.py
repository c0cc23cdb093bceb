# pyright: strict
"""Compares the kernels that an NPU was recorded to run for an op with the kernels that the lowering predicts.

Does not compare times. Recorded kernels exist only in a plan from a trace that was joined with a kernel table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from opreplay.replay.ascend.lowering import lower
from opreplay.replay.ir.model import ReplayOp

Verdict = Literal["same", "close", "differs"]
HELPERS = frozenset({"MemSet", "TransData", "Transpose", "Cast", "BroadcastTo", "TensorMove", "ViewCopy", "AsStrided"})
"""Kernel types that prepare operands of another kernel (formats, dtypes, layouts, zeros); CANN adds them as needed."""
_VERSION = re.compile(r"V\d+$")


class KernelAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Launches per call of an op, by CANN kernel type: as recorded, and as the lowering rules predict."""

    id: str
    name: str
    verdict: Verdict
    """"same" if all types and counts agree.

    "close" if they differ only in helper kernels and in versions of a type ("MatMulV2", "MatMulV3"). Otherwise
    "differs".
    """
    recorded: dict[str, float]
    """Average number of recorded launches per call, by kernel type. It is an average, because calls of one signature
    may run different kernels.
    """
    lowered: dict[str, int]
    recorded_us: float
    """Recorded time of all calls in microseconds; only kernels whose type was recorded are included."""


def compare_kernels(op: ReplayOp) -> KernelAgreement | None:
    """Compare the recorded and lowered kernels of one op; None if none of its kernels has a recorded type."""
    recorded: Counter[str] = Counter()
    total_us = 0.0
    for kernel in op.recorded.kernels:
        if kernel.type is not None:
            recorded[kernel.type] += kernel.count
            total_us += kernel.total_us
    if not recorded:
        return None
    lowered: Counter[str] = Counter()
    for call in lower(op).kernels:
        lowered[call.type] += call.count
    each = {type_: count / op.count for type_, count in recorded.items()}
    return KernelAgreement(
        id=op.id,
        name=op.name,
        verdict=_verdict(each, dict(lowered)),
        recorded=each,
        lowered=dict(lowered),
        recorded_us=total_us,
    )


def compare_all(ops: Iterable[ReplayOp]) -> tuple[KernelAgreement, ...]:
    """Compare the kernels of all ops with recorded kernel types. Ops with the most recorded time come first."""
    agreements = [agreement for op in ops if (agreement := compare_kernels(op)) is not None]
    return tuple(sorted(agreements, key=lambda agreement: -agreement.recorded_us))


def _verdict(recorded: dict[str, float], lowered: dict[str, int]) -> Verdict:
    if {type_: round(count, 3) for type_, count in recorded.items()} == lowered:
        return "same"
    return "close" if _essence(recorded) == _essence(lowered) else "differs"


def _essence(launches: dict[str, float] | dict[str, int]) -> frozenset[str]:
    """Return the kernel types without versions, and without helper kernels unless there are only helpers."""
    types = {_VERSION.sub("", type_) for type_ in launches}
    return frozenset(types - HELPERS or types)
