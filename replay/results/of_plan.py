# pyright: strict
"""Build result records from plan ops: recorded kernels by CANN type, FLOPs and bytes, summaries."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from opreplay.replay.arguments.shrink.flops import product_flops
from opreplay.replay.collectives.model import CollectiveFacts, bandwidth
from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import Recorded, ReplayOp, ReplayPlan
from opreplay.replay.ir.notation import call_text
from opreplay.replay.ir.sizes import itemsize, tensors_of
from opreplay.replay.results.outcome import Outcome, refill_notes
from opreplay.replay.results.records import NpuKernel, OpResult, Product, Simulated, Summary
from opreplay.replay.results.summary import summary_so_far
from opreplay.replay.results.suspects import kind_of_device, recorded_kind, suspicions
from opreplay.traces.sums import shares, summed
from opreplay.traces.times.kernel_classes import class_of_work

MOST_CALL_CHARACTERS = 4000
_UNNAMED = re.compile(r"arg\d+")


def npu_kernels(recorded: Recorded) -> tuple[NpuKernel, ...]:
    """Return the launches of each known kernel type, summed over calls, most time first; () without a kernel table."""
    by_type: dict[str, tuple[int, float]] = {}
    for kernel in recorded.kernels:
        if kernel.type is not None:
            count, total_us = by_type.get(kernel.type, (0, 0.0))
            by_type[kernel.type] = (count + kernel.count, total_us + kernel.total_us)
    kernels = (NpuKernel(type=type_, count=count, total_us=total_us) for type_, (count, total_us) in by_type.items())
    return tuple(sorted(kernels, key=lambda kernel: -kernel.total_us))


def kernel_classes(op: ReplayOp) -> dict[str, float]:
    """Return the share of the op's recorded kernel time that each class of work has, largest first.

    The class is that of the op. The kernel's name decides if the op has no class, or if the kernel is for
    communication.
    """
    kernels = op.recorded.kernels
    return shares(summed((class_of_work(op.name, kernel.name), kernel.total_us) for kernel in kernels))


def product_of(op: ReplayOp) -> Product | None:
    """Return the FLOPs and bytes of one call, as recorded or computed from its sizes; None if neither is known."""
    dtype = op.work_dtype or next((meta.dtype for meta in tensors_of(op)), "")
    if op.moved_bytes is not None or op.work_unknown:
        flops = None if op.flops is None else float(op.flops)
        notes = {"why": op.work_unknown, "assumed": op.work_assumed}
        return Product(flops=flops, moved_bytes=op.moved_bytes, dtype=dtype, **notes)
    flops = product_flops(op) or float(op.flops or 0)
    if flops <= 0.0:
        return None
    # Equal views of one memory are read once; queries, keys and values may be slices of one that do not overlap.
    own = {
        (meta.storage, meta.storage_offset, meta.shape) if meta.storage is not None else at: meta
        for at, meta in enumerate(tensors_of(op))
    }
    moved = [*own.values(), *(meta for meta in op.outputs or () if meta is not None)]
    size_bytes = sum(math.prod(meta.shape) * itemsize(meta.dtype) for meta in moved)
    return Product(flops=flops, moved_bytes=size_bytes, dtype=dtype)


def summarize(plan: ReplayPlan, results: Sequence[OpResult], *, wall_s: float, interrupted: bool) -> Summary:
    """Return counts, shares and totals of the results so far. Times are in microseconds, over all calls."""
    total_us = sum(recorded_us(plan, op) for op in plan.ops)
    return summary_so_far(results, ops=len(plan.ops), recorded_us=total_us, wall_s=wall_s, interrupted=interrupted)


def call_of(op: ReplayOp) -> str:
    """Return the call in the syntax of `opreplay op`; "" if it cannot be written, or is too long to paste.

    If the op's library is not installed, the call can only be predicted. Its arguments must then have names.
    """
    is_predicted_alone = op.reason is not None and op.reason.kind == "library missing" and op.resolved_by is None
    if is_predicted_alone:
        if not op.args or any(_UNNAMED.fullmatch(arg.name) for arg in op.args):
            return ""
    elif op.reason is not None or op.resolved_by is None:
        return ""
    text = call_text(op)
    return text if len(text) <= MOST_CALL_CHARACTERS else ""


def result_of(
    plan: ReplayPlan,
    op: ReplayOp,
    outcome: Outcome,
    simulated: dict[str, Simulated],
    *,
    device: str | None = None,
    unpredicted: Sequence[str] = (),
) -> OpResult:
    """Return the result record of an op: its outcome, with recorded and predicted times in microseconds per call.

    `device` is the device on which the op was measured, or None. `unpredicted` gives the reasons for missing
    predictions.
    """
    recorded = op.recorded
    total = plan.device_us_total or plan.host_us_total
    first = next(iter(simulated.values()), None)
    share = recorded_us(plan, op) / total if total else 0.0
    measured_us = None if outcome.measurement is None else outcome.measurement.median_us
    alike = device is not None and kind_of_device(device) == recorded_kind(plan)
    compared = simulated if plan.device_us_total > 0 else {}
    # An op that takes more of the whole than was recorded changes a conclusion as well.
    other_us = [measured_us or 0.0 if alike else 0.0, *(prediction.time_us for prediction in compared.values())]
    return OpResult(
        id=op.id,
        name=op.name,
        count=op.count,
        status=outcome.status,
        reason=outcome.reason,
        resolved_by=op.resolved_by,
        via=op.via,
        inputs=describe_inputs(op),
        call=call_of(op),
        recorded_device_us=recorded.device_us_total / op.count if recorded.on_device else None,
        recorded_host_us=None if plan.captured else recorded.host_us_total / op.count,
        recorded_share=share,
        measured_us=measured_us,
        measurement=outcome.measurement,
        simulated_us={soc: prediction.time_us for soc, prediction in simulated.items()},
        bound=None if first is None else first.bound,
        simulated=simulated,
        kernel_classes=kernel_classes(op),
        product=product_of(op),
        npu_kernels=npu_kernels(recorded),
        initializer=outcome.initializer,
        filling=outcome.filling,
        assumptions=op.assumptions + outcome.assumptions,
        work=outcome.work,
        fidelity=outcome.fidelity,
        values=outcome.values,
        collective=None if op.collective is None else collective_facts(plan, op, outcome, simulated),
        suspicions=tuple(unpredicted)
        + suspicions(
            op,
            share=max(share, *(us * op.count / total if total else 0.0 for us in other_us)),
            recorded_us=recorded_us(plan, op) / op.count,
            measured_us=measured_us if alike else None,
            simulated=compared.items(),
            refilled=refill_notes(outcome.assumptions),
        ),
        measure_s=outcome.measure_s,
        attempts=outcome.attempts,
    )


def collective_facts(
    plan: ReplayPlan, op: ReplayOp, outcome: Outcome, simulated: dict[str, Simulated]
) -> CollectiveFacts:
    """Return the sizes of a collective, and its recorded, measured and simulated rates."""
    collective, ran = op.collective, outcome.collective
    assert collective is not None
    kind, size_bytes = collective.kind, collective.size_bytes
    ranks = collective.group_size or (ran.ranks if ran is not None else 0)
    measured = None
    if ran is not None and outcome.measurement is not None:
        # The times of a message that ran in part are scaled up to the whole.
        ran_bytes = round(ran.elements * collective.itemsize / outcome.measurement.part)
        measured = bandwidth(kind, ran_bytes, ran.ranks, outcome.measurement.median_us)
        if measured is not None and outcome.bus_factor is not None:
            rate = measured.algorithm_gb_s * outcome.bus_factor
            measured = msgspec.structs.replace(measured, bus_gb_s=rate)
    rates = {soc: bandwidth(kind, size_bytes, ranks, prediction.time_us) for soc, prediction in simulated.items()}
    return CollectiveFacts(
        collective=collective,
        size_bytes=size_bytes,
        recorded=bandwidth(kind, size_bytes, ranks, recorded_us(plan, op) / op.count),
        measured=measured,
        simulated={soc: rate for soc, rate in rates.items() if rate is not None},
        replayed=ran,
    )


def recorded_us(plan: ReplayPlan, op: ReplayOp) -> float:
    """Return the recorded time of all calls of an op, on the device or, if the trace has none, on the host."""
    return op.recorded.device_us_total if plan.device_us_total > 0 else op.recorded.host_us_total
