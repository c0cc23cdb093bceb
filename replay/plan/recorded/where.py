# pyright: strict
"""Computes where a trace spends its time: device use, classes of work, and labels.

The results file and the head of a report show it. `traces.times` defines the classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from opreplay.replay.ir.labels import not_an_op
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.plan.select import inside_ops, label_rows, opened_rows
from opreplay.traces.arrays import Ints, distinct
from opreplay.traces.links.annotations import unread_annotations
from opreplay.traces.links.collectives import host_collectives
from opreplay.traces.links.parents import innermost_parent
from opreplay.traces.model import OpSignature, Trace
from opreplay.traces.sums import shares, summed
from opreplay.traces.times.breakdown import breakdown, classes_of_launches, self_time_us
from opreplay.traces.times.busy import device_busy
from opreplay.traces.times.clock import coarse_unit_us
from opreplay.traces.times.doubts import doubts_of
from opreplay.traces.times.kernel_classes import CLASSES

MOST_LABELS = 20
"""Maximum number of listed labels; the sums include all labels."""


class LabelWork(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one label: a compiled region, an autograd node, or an annotation by a library."""

    name: str
    calls: int
    """Number of calls that have device time. If times are host times, number of all calls."""
    time_us: float
    """Device time of the label's kernels. If times are host times, the label's time outside nested ops."""
    share: float
    """Share of the total recorded time."""
    classes: dict[str, float]
    """Class of work → its share of the label's kernel time; empty for host times."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Where a whole trace spends its time. The selection of ops has no effect on this."""

    clock: str
    """Whether times are "device" or "host" times."""
    total_us: float
    """Total device time; for host times, the total time of the outermost events."""
    span_us: float | None = None
    """Time from the first to the last device work, summed over devices."""
    busy_share: float | None = None
    """Share of the span in which the device was busy."""
    coarse_unit_us: float | None = None
    """Unit of all device durations, in microseconds. Set only if the unit is too coarse for single kernels; otherwise
    None.
    """
    classes: dict[str, float]
    """Class of work → its share of the total, largest first."""
    launched_before_us: float = 0.0
    """Device time of work that was launched before the recording began. The op that launched it is therefore not
    recorded.
    """
    unowned: dict[str, float] = {}
    """Class of work → share of the total for kernels of this class without an op, largest first."""
    beside_us: float = 0.0
    """With host times: time of collectives on the threads of their back-end."""
    labels_us: float
    """Total time in labels."""
    labels: tuple[LabelWork, ...] = ()
    """The labels with the most time."""
    unread_annotations: dict[str, int] = {}
    """Annotation that looks like a server iteration but cannot be parsed → number of occurrences."""
    cut: bool = False
    """With host times: whether the file is truncated, so that device work may be missing."""
    processes: int = 1
    """Number of processes whose times are added up."""
    launches: int = 0
    """With host times: number of kernel launches, although no kernel is recorded."""


def where_of(read: Trace | ReplayPlan) -> Where | None:
    """Return where a trace spends its time.

    None for a file without times. Also None for a plan, because a plan contains only part of the trace.
    """
    if not isinstance(read, Trace):
        return None
    where = _on_device(read) if len(read.kernels) else _on_host(read)
    where = msgspec.structs.replace(
        where,
        unread_annotations=unread_annotations(read.annotations),
        processes=1 if read.info.merged is None else len(read.info.merged.processes),
    )
    return where if where.total_us > 0 else None


def _on_device(trace: Trace) -> Where:
    by_class = breakdown(trace, "category")
    busy = device_busy(trace)
    span = sum(device.span_us for device in busy)
    owner = trace.kernels.owner.astype(np.int64)
    owned = np.flatnonzero(owner >= 0)
    if len(owned):
        is_label = np.array([_is_label(signature) for signature in trace.signatures], bool)
        owned = owned[is_label[trace.ops.signature[owner[owned]]]]
    names = _names(trace, owner[owned])
    indices: list[int] = classes_of_launches(trace).tolist()
    classes = [CLASSES[i] for i in indices]
    kinds = [classes[row] for row in map(int, owned)]
    times: list[float] = (trace.kernels.dur_ns[owned] / 1e3).tolist()
    calls = Counter(_names(trace, distinct(owner[owned])))
    return Where(
        clock="device",
        total_us=by_class.total_us,
        span_us=span,
        busy_share=sum(device.busy_us for device in busy) / span if span and not doubts_of(trace).untimed else None,
        coarse_unit_us=coarse_unit_us(trace),
        classes={row.name: row.share for row in by_class.rows},
        launched_before_us=trace.info.links.launched_before_device_ns / 1e3,
        unowned=_unowned(trace, classes, by_class.total_us),
        labels_us=sum(times),
        labels=_labels(names, kinds, times, calls, by_class.total_us),
    )


def _unowned(trace: Trace, classes: Sequence[str], total_us: float) -> dict[str, float]:
    """Return, for each class of kernels, the fraction of the total time that kernels without an op take. `classes` has
    one entry per kernel.
    """
    alone = np.flatnonzero(trace.kernels.owner < 0)
    times: list[float] = (trace.kernels.dur_ns[alone] / 1e3).tolist()
    by_class = summed((classes[row], us) for row, us in zip(map(int, alone), times, strict=True))
    return {name: us / total_us for name, us in sorted(by_class.items(), key=lambda item: -item[1]) if total_us}


def _names(trace: Trace, rows: Ints) -> list[str]:
    """Return the op names of these rows."""
    signatures: list[int] = trace.ops.signature[rows].tolist()
    return [trace.signatures[i].name for i in signatures]


def _is_label(signature: OpSignature) -> bool:
    reason = not_an_op(signature, on_device=True)
    return reason is not None and reason.kind == "label, not an op"


def _on_host(trace: Trace) -> Where:
    """Return where host time is spent. For a label, only the time outside ops counts; the profiler does not divide that
    time further.
    """
    self_us = self_time_us(trace)
    parents = innermost_parent(trace.ops)
    opened = opened_rows(trace, parents)
    alone = np.flatnonzero(opened & ~inside_ops(parents, opened))
    total = float(trace.ops.dur_ns[parents < 0].sum(dtype=np.int64)) / 1e3
    is_label: list[bool] = label_rows(trace)[alone].tolist()
    names = [
        name if label else f"autocast of {name}" for name, label in zip(_names(trace, alone), is_label, strict=True)
    ]
    rows = breakdown(trace, "category").rows
    return Where(
        clock="host",
        total_us=total,
        classes={row.name: row.share for row in rows},
        beside_us=sum(call.end_ns - call.start_ns for call in host_collectives(trace)) / 1e3,
        labels_us=float(self_us[alone].sum()),
        cut=any(loss.startswith("truncated") for loss in trace.info.report.losses),
        launches=trace.info.links.launches,
        labels=_labels(names, None, self_us[alone].tolist(), Counter(names), total),
    )


def _labels(
    names: Sequence[str], kinds: Sequence[str] | None, times: Sequence[float], calls: Counter[str], total: float
) -> tuple[LabelWork, ...]:
    by_name = summed(zip(names, times, strict=True))
    work: dict[str, dict[str, float]] = {}
    for name, kind, us in zip(names, kinds or (), times, strict=False):
        work.setdefault(name, {})[kind] = work.get(name, {}).get(kind, 0.0) + us
    heaviest = sorted(by_name.items(), key=lambda item: -item[1])[:MOST_LABELS]
    return tuple(
        LabelWork(
            name=name,
            calls=calls[name],
            time_us=us,
            share=us / total if total else 0.0,
            classes=shares(work.get(name, {})),
        )
        for name, us in heaviest
        if us > 0
    )


def where_facts(read: Trace | ReplayPlan) -> dict[str, Any]:
    """Return the result of `where_of` as JSON values, for JSON output and the head of results; empty if it is None."""
    where = where_of(read)
    return {} if where is None else {"where": msgspec.to_builtins(where)}
