# pyright: strict
"""Summarise a trace for `inspect`: counts, times and facts as one JSON-safe value."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from opreplay.traces.links.annotations import PHASES, AnnotationTable, Phase, step_number
from opreplay.traces.links.iterations import BatchIndex
from opreplay.traces.links.npu_kernels import OpKernels, kernels_by_op
from opreplay.traces.links.steps import steps_of
from opreplay.traces.model import DetailsJoin, LinkStats, MergedProcesses, MetadataLevel, Trace
from opreplay.traces.names import printable
from opreplay.traces.reading.columns import distinct
from opreplay.traces.times.breakdown import Row, breakdown
from opreplay.traces.times.busy import DeviceBusy, device_busy
from opreplay.traces.times.clock import coarse_unit_us
from opreplay.traces.times.doubts import Doubts, doubts_of

TOP_OPS = 20
TOP_ANNOTATIONS = 50
TOP_BATCHES = 500


class TopOp(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op name that own device time, or all its calls if the trace has no device work."""

    name: str
    calls: int
    """Number of calls that own device time. If the trace has no device work, number of all calls."""
    device_us: float
    signatures: int
    """Number of distinct signatures of these calls."""
    host_us: float = 0.0
    """Host time without child ops; 0 if the trace has device work."""


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """All annotations of one name."""

    name: str
    count: int
    total_us: float


class BatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All iterations whose annotations describe the same batch. Numbers are per iteration; None if not recorded."""

    phase: Phase | None
    """Phase of the batch; None for an empty batch."""
    iterations: int
    prefill_sequences: int
    prefill_tokens: int | None
    """New tokens of the prefill sequences."""
    prefill_context: int | None
    """Tokens to which the prefill sequences attend, including new ones."""
    decode_sequences: int
    decode_tokens: int | None
    decode_context: int | None
    total_us: float
    """Host time from start to end of an iteration, summed over all iterations."""
    ops: int
    """Number of recorded calls in the iterations, on all threads."""
    device_us: float
    """Device time that is owned by the calls counted in `ops`."""


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and facts about a trace; field names are stable because scripts read them (`inspect --format json`)."""

    path: str
    dialect: str
    bytes_read: int
    events: int
    cpu_ops: int
    cpu_ops_with_shapes: int
    unique_ops: int
    """Number of distinct signatures among ops that have dims."""
    owner_ops: int
    """Number of distinct signatures that own at least one row of device work."""
    kernels: int
    """Number of events of category kernel."""
    gpu_memory_events: int
    device_events: int
    """Number of NPU device rows, which have no category."""
    user_annotations: int
    collectives: int
    """Number of collectives and point-to-point messages that a Chakra file describes by kind and size."""
    device_time_us: float
    """Total time of kernels, copies, memsets and NPU tasks; time in which n of them run counts n times."""
    owned_device_time_us: float
    op_time_us: float
    """Host time summed over all ops, including nested ones."""
    span_us: float
    """Time from the first start to the last end of ops and device work."""
    metadata_level: MetadataLevel
    era: str | None
    torch_version: str | None
    vendor: str | None
    device_names: tuple[str, ...]
    world_size: int | None
    rank: int | None
    backend: str | None
    processes: int
    threads: int
    iterations: int
    """Number of torch.profiler steps and inference server iterations; an iteration that is marked twice counts once."""
    phases: dict[str, int]
    """Phase of the batch (prefill, decode, mixed) → number of iterations."""
    batches: tuple[BatchSummary, ...]
    """One entry per batch, for all its iterations; batches with the longest total time come first."""
    categories: dict[str, int]
    links: LinkStats
    losses: dict[str, int]
    repairs: dict[str, int]
    coarse_unit_us: float | None = None
    """Unit that divides all device durations if it is too coarse for timings, otherwise None; see `times.clock`."""
    doubts: Doubts = Doubts()
    """Reasons to doubt the device times."""
    busy: tuple[DeviceBusy, ...]
    """Busy time and overlap of each device."""
    work: tuple[Row, ...]
    """Time by class of work (GEMM, attention, elementwise, communication, copies, ...). It is device time, or host time
    if the trace has no device work.
    """
    top_ops: tuple[TopOp, ...]
    top_kernels: tuple[Row, ...] = ()
    """Kernels with the most time; empty if ops own at least half of the device time."""
    merged: MergedProcesses | None = None
    """The processes of a file that was merged from the profiles of several processes."""
    npu_ops: tuple[OpKernels, ...]
    """Ops with the kernels that they own; only for a trace with a kernel table."""
    kernel_details: DetailsJoin | None
    """How the kernel table was joined, or why it was not."""
    annotations: tuple[Interval, ...]


def summarize(trace: Trace) -> TraceSummary:
    """Return the counts, times and facts of a trace."""
    ops, kernels, info = trace.ops, trace.kernels, trace.info
    index = BatchIndex(trace)
    calls = _counts(ops.signature, len(trace.signatures))
    shaped = np.array([s.dims is not None for s in trace.signatures], bool)
    owned = kernels.owner >= 0
    owner_signature = ops.signature[kernels.owner[owned]]
    categories = np.bincount(kernels.category, minlength=4)
    if "mtia_ccp_events" in info.events_by_category:  # not of the categories that are counted as kernels and copies
        categories = np.array([0, 0, 0, len(kernels)])
    return TraceSummary(
        path=printable(info.path),
        dialect=info.dialect,
        bytes_read=info.bytes_read,
        events=info.events,
        cpu_ops=len(ops),
        cpu_ops_with_shapes=int(calls[shaped].sum()),
        unique_ops=int(shaped.sum()),
        owner_ops=len(distinct(owner_signature)),
        kernels=int(categories[0]),
        gpu_memory_events=int(categories[1] + categories[2]),
        device_events=int(categories[3]),
        user_annotations=len(trace.annotations),
        collectives=len(trace.collectives),
        device_time_us=_us(kernels.dur_ns),
        owned_device_time_us=_us(kernels.dur_ns[owned]),
        op_time_us=_us(ops.dur_ns),
        span_us=_span_us(trace),
        metadata_level=info.metadata_level,
        era=info.era,
        torch_version=info.torch_version,
        vendor=info.vendor,
        device_names=info.device_names,
        world_size=info.world_size,
        rank=info.rank,
        backend=info.backend,
        processes=len({pid for pid, _ in trace.tracks}),
        threads=int((_counts(ops.track, len(trace.tracks)) > 0).sum()),
        iterations=_iterations(trace, index),
        phases=_phases(index),
        batches=_batches(trace, index),
        categories=info.events_by_category,
        links=info.links,
        losses=info.report.losses,
        repairs=info.report.repairs,
        doubts=doubts_of(trace),
        busy=device_busy(trace),
        coarse_unit_us=coarse_unit_us(trace),
        work=breakdown(trace, "category").rows,
        top_ops=_top_ops(trace),
        top_kernels=_top_kernels(trace),
        merged=info.merged,
        npu_ops=kernels_by_op(trace),
        kernel_details=info.kernel_details,
        annotations=_intervals(trace),
    )


def _counts(column: np.ndarray, length: int) -> np.ndarray:
    """Return how often each index occurs; computed in chunks, because bincount widens its input."""
    out = np.zeros(length, np.int64)
    for begin in range(0, len(column), 1 << 20):
        out += np.bincount(column[begin : begin + (1 << 20)], minlength=length)
    return out


def _us(dur_ns: np.ndarray) -> float:
    return float(dur_ns.sum(dtype=np.int64)) / 1000


def _span_us(trace: Trace) -> float:
    tables = [t for t in (trace.ops, trace.kernels) if len(t)]
    if not tables or not trace.info.starts_recorded:
        return 0.0
    first = min(int(t.start_ns.min()) for t in tables)
    # in chunks: the sum of two columns of a long trace would be a third one
    last = max(
        int((t.start_ns[i : i + 1 << 20] + t.dur_ns[i : i + 1 << 20]).max())
        for t in tables
        for i in range(0, len(t), 1 << 20)
    )
    return (last - first) / 1000


KERNELS_KEPT = 100
"""Maximum number of kernels in the summary of a trace in which no op owns most of the device time."""


def _top_kernels(trace: Trace) -> tuple[Row, ...]:
    """Return the kernels with the most time if most device time has no owner; otherwise ()."""
    kernels = trace.kernels
    unowned_ns = int(kernels.dur_ns[kernels.owner < 0].sum(dtype=np.int64))
    if 2 * unowned_ns <= int(kernels.dur_ns.sum(dtype=np.int64)):
        return ()
    return breakdown(trace, "kernel").rows[:KERNELS_KEPT]


def _top_ops(trace: Trace) -> tuple[TopOp, ...]:
    kernels = trace.kernels
    owned = np.flatnonzero(kernels.owner >= 0)
    if not len(owned):
        return () if len(kernels) else _top_host_ops(trace)
    owner = kernels.owner[owned]
    signature = trace.ops.signature[owner]
    time = np.bincount(signature, weights=kernels.dur_ns[owned], minlength=len(trace.signatures))
    calls = np.bincount(trace.ops.signature[distinct(owner)], minlength=len(trace.signatures))
    names: dict[str, list[float]] = {}
    for i in np.flatnonzero(calls):
        entry = names.setdefault(trace.signatures[i].name, [0, 0.0, 0])
        entry[0] += int(calls[i])
        entry[1] += float(time[i])
        entry[2] += 1
    ranked = sorted(names.items(), key=lambda item: -item[1][1])[:TOP_OPS]
    return tuple(TopOp(name=n, calls=int(c), device_us=t / 1000, signatures=int(s)) for n, (c, t, s) in ranked)


def _top_host_ops(trace: Trace) -> tuple[TopOp, ...]:
    """Return the ops with the most host time; time in their child ops is not counted."""
    unique = Counter(signature.name for signature in trace.signatures)
    rows = breakdown(trace, "op").rows[:TOP_OPS]
    return tuple(
        TopOp(name=row.name, calls=row.calls, device_us=0.0, signatures=unique[row.name], host_us=row.time_us)
        for row in rows
        if row.time_us > 0
    )


def _note_totals(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return annotation name → (count, total ns)."""
    notes = AnnotationTable.of(trace.annotations)
    count = np.bincount(notes.name, minlength=len(notes.names))
    total = np.bincount(notes.name, weights=notes.dur_ns, minlength=len(notes.names))
    out: dict[str, tuple[int, int]] = {}
    for name, n, ns in zip(notes.names, count.tolist(), total.tolist(), strict=True):
        before = out.get(name, (0, 0))
        out[name] = (before[0] + n, before[1] + int(ns))
    return out


def _iterations(trace: Trace, index: BatchIndex) -> int:
    if trace.info.starts_recorded:
        steps = sum(step.number is not None for step in steps_of(trace))
    else:
        steps = len({number for name in _note_totals(trace) if (number := step_number(name)) is not None})
    return steps + len(index.iterations)


def _phases(index: BatchIndex) -> dict[str, int]:
    counts = Counter(index.contexts[iteration.context].phase for iteration in index.iterations)
    return {phase: counts[phase] for phase in PHASES if counts[phase]}


def _batches(trace: Trace, index: BatchIndex) -> tuple[BatchSummary, ...]:
    if not index.iterations:
        return ()
    size = len(index.contexts)
    of = np.array([iteration.context for iteration in index.iterations])
    span_us = np.array([iteration.end_ns - iteration.start_ns for iteration in index.iterations]) / 1000
    count, total = np.bincount(of, minlength=size), np.bincount(of, weights=span_us, minlength=size)
    calls = np.bincount(index.of_row[index.of_row >= 0], minlength=size)
    owned = np.flatnonzero(trace.kernels.owner >= 0)
    inside = index.of_row[trace.kernels.owner[owned]]
    device = np.bincount(inside + 1, weights=trace.kernels.dur_ns[owned] / 1000, minlength=size + 1)[1:]
    summaries = (
        BatchSummary(
            phase=batch.phase,
            iterations=int(count[i]),
            prefill_sequences=batch.prefill_sequences,
            prefill_tokens=batch.prefill_tokens,
            prefill_context=batch.prefill_k,
            decode_sequences=batch.decode_sequences,
            decode_tokens=batch.decode_tokens,
            decode_context=batch.decode_k,
            total_us=float(total[i]),
            ops=int(calls[i]),
            device_us=float(device[i]),
        )
        for i, batch in enumerate(index.contexts)
    )
    return tuple(sorted(summaries, key=lambda summary: -summary.total_us)[:TOP_BATCHES])


def _intervals(trace: Trace) -> tuple[Interval, ...]:
    ranked = sorted(_note_totals(trace).items(), key=lambda item: -item[1][1])[:TOP_ANNOTATIONS]
    return tuple(Interval(name=name, count=n, total_us=ns / 1000) for name, (n, ns) in ranked)
