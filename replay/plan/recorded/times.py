# pyright: strict
"""Recorded times of a trace or plan by op, for comparisons.

The ids of ops are computed without resolving the ops, so torch is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from opreplay.replay.ir.describe import describe_inputs
from opreplay.replay.ir.model import NOT_RECORDED, RecordedKernel, ReplayOp, ReplayPlan
from opreplay.replay.ir.recorded_call import recorded_args
from opreplay.replay.plan.recorded.groups import (
    Rows,
    device_ns_of,
    grouped_rows,
    kernels_by_signature,
    owner_among,
    signature_id,
    signature_of,
)
from opreplay.replay.plan.select import selected_rows
from opreplay.replay.resolve.bind import unnamed_arguments
from opreplay.replay.results.compare.judge import StepTimes
from opreplay.replay.results.compare.replaced import StepCall
from opreplay.replay.results.compare.sides import UNNAMED, OpTime, Times
from opreplay.replay.results.stats import median_interval
from opreplay.traces.arrays import Array, Floats
from opreplay.traces.links.steps import PairedBy, Step, busy_steps
from opreplay.traces.losses import loss_text
from opreplay.traces.model import MetadataLevel, OpSignature, Trace
from opreplay.traces.names import file_name
from opreplay.traces.times.doubts import Doubts, doubts_of

LEVELS: tuple[MetadataLevel, ...] = ("none", "dims", "dims+concrete", "full")


def times_of_trace(
    trace: Trace,
    select: str,
    *,
    level: MetadataLevel | None = None,
    steps: Sequence[Step] = (),
    paired: PairedBy | None = None,
) -> Times:
    """Return the times of a trace's ops; calls with the same id are combined.

    Times are device times if any op has device time, or if the device times are wrong; otherwise they are host times.
    `level` is given if the other trace has only metadata of that lower level; ids are then computed from this level
    alone. `steps` are the steps to compare with those of another trace, and `paired` says how the steps correspond.
    """
    rows = selected_rows(trace, select)
    device_ns, doubts = device_ns_of(trace, rows, select), doubts_of(trace)
    on_device = bool(device_ns.any()) or doubts.mistimed
    ops = tuple(_op_times(trace, rows, select, level, device_ns if on_device else trace.ops.dur_ns))
    device = next(iter(trace.info.device_names), None)
    return Times(
        what="recorded",
        on=device or UNNAMED
        if on_device
        else "the host, because the device work belongs to no op"
        if len(trace.kernels)
        else "cpu",
        clock="device" if on_device else "host",
        source=file_name(trace.info.path),
        ops=ops,
        notes=(*_of_reading(trace), *_of_level(trace, level)),
        steps=_steps(trace),
        paired=paired,
        in_steps=_calls_in(trace, steps, select, level, on_device=on_device) if steps else (),
        doubts=doubts,
    )


def _op_times(trace: Trace, rows: Rows, select: str, level: MetadataLevel | None, ns: Array) -> Iterator[OpTime]:
    """Yield one entry for each id, with the times of all its calls. `ns` has the time of each row of `trace.ops`."""
    kernels = kernels_by_signature(trace, owner_among(trace, rows, select))
    by_id: dict[str, list[Rows]] = {}
    for part in grouped_rows(trace, rows):
        by_id.setdefault(signature_id(_reduced(signature_of(trace, part[0]), level)), []).append(part)
    for id_, parts in by_id.items():
        signature, calls = signature_of(trace, parts[0][0]), ns[np.concatenate(parts)] / 1e3
        args = unnamed_arguments(recorded_args(signature), "")
        shell = ReplayOp(id=id_, name=signature.name, count=len(calls), recorded=NOT_RECORDED, args=args)
        owned = [kernel for part in parts for kernel in kernels.get(int(trace.ops.signature[part[0]]), ())]
        yield _timed(shell, calls[calls > 0], owned)


def _calls_in(
    trace: Trace, steps: Sequence[Step], select: str, level: MetadataLevel | None, *, on_device: bool
) -> tuple[tuple[StepCall, ...], ...]:
    """Return the calls of each step in order, with the times to compare."""
    ops, rows = trace.ops, selected_rows(trace, select)
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    us = (device_ns_of(trace, rows, select) if on_device else ops.dur_ns)[rows] / 1e3
    called: list[int] = ops.signature[rows].tolist()
    ids = {index: signature_id(_reduced(trace.signatures[index], level)) for index in set(called)}
    edges: list[list[int]] = np.searchsorted(
        ops.start_ns[rows], [(step.start_ns, step.end_ns) for step in steps]
    ).tolist()
    return tuple(
        tuple(
            StepCall(id=ids[index], name=trace.signatures[index].name, us=call_us)
            for index, call_us in zip(called[first:last], us[first:last].tolist(), strict=True)
        )
        for first, last in edges
    )


def _steps(trace: Trace) -> StepTimes | None:
    steps = sorted(busy_steps(trace), key=lambda step: step.end_ns - step.start_ns)
    if not steps:
        return None
    took = [(step.end_ns - step.start_ns) / 1e3 for step in steps]
    return StepTimes(
        count=len(took),
        median_us=float(np.median(took)),
        shortest_us=took[0],
        longest_us=took[-1],
        longest=steps[-1].name,
    )


def _reduced(signature: OpSignature, level: MetadataLevel | None) -> OpSignature:
    """Return the signature with only the metadata that a trace of the metadata level `level` records."""
    if level is None or level == "full":
        return signature
    shorter = replace(signature, strides=None, storage=None, list_types=None, overload=None, results=None)
    if level == "dims+concrete":
        return shorter
    return replace(shorter, concrete=None) if level == "dims" else OpSignature(name=signature.name)


def _of_level(trace: Trace, level: MetadataLevel | None) -> list[str]:
    if level is None or level == trace.info.metadata_level:
        return []
    lacks = {"dims+concrete": "strides", "dims": "strides and values", "none": "arguments"}.get(level, "")
    return [f"ops are matched without {lacks}, which one of the traces lacks, so a row may combine several ops"]


def _of_reading(trace: Trace) -> list[str]:
    name, info = file_name(trace.info.path), trace.info
    losses = loss_text(info.report.losses, "its times are")
    merged = (
        f"{name} was merged from {info.processes:,} processes; {info.process} is used. Select another with --process"
    )
    return [*([merged] if info.processes > 1 else []), *([f"{name}: {losses}"] if losses else [])]


def _timed(op: ReplayOp, calls_us: Floats, kernels: Sequence[RecordedKernel]) -> OpTime:
    ordered: list[float] = np.sort(calls_us).tolist()
    low, high = median_interval(ordered) or (None, None)
    return OpTime(
        id=op.id,
        name=op.name,
        inputs=describe_inputs(op),
        count=op.count,
        us=float(np.median(calls_us)) if len(ordered) else None,
        low_us=low,
        high_us=high,
        calls=len(ordered),
        longest_us=ordered[-1] if ordered else None,
        total_us=float(calls_us.sum()),
        kernel=max(kernels, key=lambda kernel: kernel.total_us).name if kernels else None,
        note="" if ordered else "no time",
    )


def times_of_plan(plan: ReplayPlan) -> Times:
    """Return the recorded times of a plan, which has only the median and the sum over the calls of each op."""
    kernels = sum(kernel.count for op in plan.ops for kernel in op.recorded.kernels)
    doubts = Doubts() if plan.device_us_total > 0 else Doubts(zero_durations=kernels)
    on_device = plan.device_us_total > 0 or kernels > 0
    ops = [
        OpTime(
            id=op.id,
            name=op.name,
            inputs=describe_inputs(op),
            count=op.count,
            us=(op.recorded.device_us_median if on_device else op.recorded.host_us_median) or None,
            total_us=op.recorded.device_us_total if on_device else op.recorded.host_us_total,
            kernel=max(op.recorded.kernels, key=lambda kernel: kernel.total_us).name if op.recorded.kernels else None,
        )
        for op in plan.ops
    ]
    on = (plan.device or "an unnamed device") if on_device else "cpu"
    clock = "device" if on_device else "host"
    return Times(what="recorded", on=on, clock=clock, source=plan.source, ops=tuple(ops), doubts=doubts)
