# pyright: strict
"""Infers facts about layers whose weights are not arguments of their op, from kernel names and recorded times."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from opreplay.replay.ir.model import Assumption, LayerEvidence, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.ops.invented import WEIGHTS, sizes_of
from opreplay.traces.times.peaks import Peak, peak_of

_FOUR_BITS = re.compile(r"e2m1|[mn]x?v?fp4|(?<![a-z])fp4|int4|u4b8|w4a\d", re.IGNORECASE)
_EIGHT_BITS = re.compile(r"e4m3|e5m2|fp8|int8|w8a\d", re.IGNORECASE)
_READS_NO_WEIGHTS = re.compile(
    r"rout|top_?k|softmax|finalize|quant(?!ized_gemm)|activation|silu|swiglu|sort|permute|memset|memcpy|fill"
    r"|elementwise|reduce|norm|align|count|moe_sum",
    re.IGNORECASE,
)
_PRODUCT = re.compile(r"gemm|bmm|matmul|_mm_|fused_moe|mfma", re.IGNORECASE)


def with_layers(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with assumptions about each layer whose weights are not among its arguments.

    The assumptions state recorded facts and the sizes of weights that follow from these facts.
    """
    peak = peak_of((plan.device,)) if plan.device is not None else None
    return msgspec.structs.replace(plan, ops=tuple(_with_evidence(op, peak) for op in plan.ops))


def _with_evidence(op: ReplayOp, peak: Peak | None) -> ReplayOp:
    if sizes_of(op) is None:
        return op
    op = msgspec.structs.replace(op, layer=evidence_of(op, peak))
    sizes = sizes_of(op)
    assert sizes is not None
    notes = tuple(
        Assumption(argument=WEIGHTS, what=sizes.text) if note.argument == WEIGHTS else note for note in op.assumptions
    )
    return msgspec.structs.replace(op, assumptions=notes)


def evidence_of(op: ReplayOp, peak: Peak | None) -> LayerEvidence:
    """Return what the names and times of an op's kernels reveal about its weights. The time is compared with the
    device's `peak`. Unknown facts are None.
    """
    bits = weight_bits(kernel.name for kernel in op.recorded.kernels)
    time_us = op.recorded.device_us_median
    if peak is None or not time_us:
        return LayerEvidence(weight_bits=bits)
    time_us *= _share_of_products(op.recorded.kernels)
    return LayerEvidence(
        weight_bits=bits,
        most_bytes=peak.gb_per_s * 1e3 * time_us,
        most_flops=max(peak.tflops.get(name, 0.0) for name in ("bfloat16", "float16", "float32")) * 1e6 * time_us,
        device=peak.device,
        time_us=time_us,
    )


def weight_bits(kernels: Iterable[str]) -> int | None:
    """Return the number of bits per weight that the names of matrix product kernels contain; None if they contain none.

    If a name contains the bits of both operands, the narrower operand is taken to be the weight.
    """
    names = [name for name in kernels if not _READS_NO_WEIGHTS.search(name) or _PRODUCT.search(name)]
    if any(_FOUR_BITS.search(name) for name in names):
        return 4
    return 8 if any(_EIGHT_BITS.search(name) for name in names) else None


def _share_of_products(kernels: tuple[RecordedKernel, ...]) -> float:
    """Return the fraction of an op's device time that was spent in kernels that may read weights. The result is 1 if
    kernel names do not show this.
    """
    total = sum(kernel.total_us for kernel in kernels)
    others = [k.total_us for k in kernels if _READS_NO_WEIGHTS.search(k.name) and not _PRODUCT.search(k.name)]
    return 1.0 - sum(others) / total if total > sum(others) else 1.0
