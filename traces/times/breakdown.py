# pyright: strict
"""Sum the time of a trace by op, class of work, kernel, phase or module.

Times are device times if the trace has device work. Otherwise they are host times without child ops, so that the sum
over all rows is the time that ops took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.arrays import Array, Floats, Ints
from opreplay.traces.links.annotations import PHASES
from opreplay.traces.links.iterations import BatchIndex
from opreplay.traces.links.parents import climbs, innermost_parent, outermost_of
from opreplay.traces.model import KERNEL_CATEGORIES, Trace
from opreplay.traces.times.communication import communication_rows
from opreplay.traces.times.kernel_classes import CLASSES, class_of_op, class_of_work

By = Literal["op", "category", "module", "kernel", "phase"]
NO_OP = "(no op recorded)"
NO_PHASE = "(outside of marked iterations)"
_ROOM = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "resize_", "as_strided_")
)
_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """All device work, or all calls, with one name."""

    name: str
    calls: int
    """Number of launches (of a kernel or class), or of op calls that own device time. For host times, number
    of calls.
    """
    time_us: float
    share: float
    """Share of all device time. If times are host times, share of the time of all ops."""
    median_us: float
    """Median time of one call."""
    kind: str = ""
    """Class of work of a kernel or an op."""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a trace by one criterion; rows with the most time come first."""

    by: By
    clock: Literal["device", "host"]
    total_us: float
    rows: tuple[Row, ...]
    note: str = ""
    """Reason why the times are not more detailed."""


def breakdown(trace: Trace, by: By, *, modules: Sequence[str] = ()) -> Breakdown:
    """Sum the time of a trace by op, class of work, kernel, phase or module.

    `modules` gives the innermost module around each op, "" for none; it is only used for `by="module"`.
    """
    if len(trace.kernels):
        return _of_device(trace, by, modules)
    return _of_host(trace, by, modules)


def _of_device(trace: Trace, by: By, modules: Sequence[str]) -> Breakdown:
    kernels = trace.kernels
    time = kernels.dur_ns.astype(np.float64) / 1e3
    note = ""
    if by == "kernel":
        names, at = _kernel_names(trace)
    elif by == "category":
        names, at = list(CLASSES), classes_of_launches(trace)
    else:
        of_op, labels, note = _labels(trace, by, modules)
        names, at = [*labels, NO_OP], np.full(len(kernels), len(labels))
        at[kernels.owner >= 0] = of_op[kernels.owner[kernels.owner >= 0]]
    rows, order = _rows(names, at, time), _order(names, at, time)
    if by in ("op", "module", "phase"):
        calls = _calls_of_owners(trace, at, len(names))
        medians = median_us_of_calls(trace, at, len(names))
        rows = [
            msgspec.structs.replace(row, calls=calls[i], median_us=medians[i])
            for i, row in zip(order, rows, strict=True)
        ]
    if by in ("kernel", "op"):
        rows = _kinds(rows, order, at, trace)
    return Breakdown(by=by, clock="device", total_us=float(time.sum()), rows=tuple(rows), note=note)


def _of_host(trace: Trace, by: By, modules: Sequence[str]) -> Breakdown:
    time = self_time_us(trace)
    note = "no device work is recorded: times are host times of ops, without their child ops"
    if by == "kernel":
        return Breakdown(by=by, clock="host", total_us=0.0, rows=(), note="no device work is recorded: no kernels")
    if by == "category":
        names, at = classes_on_host(trace)
        note = "no device work is recorded: times are host times of ops, by the outermost op of a known class"
    else:
        at, names, more = _labels(trace, by, modules)
        note = "; ".join(text for text in (note, more) if text)
    rows = _rows(names, at, time)
    if by == "op":
        listed: list[int] = trace.ops.signature[_listed_rows(trace)].tolist()
        transfers = {trace.signatures[index].name for index in listed}
        kinds = ["communication" if row.name in transfers else class_of_op(row.name) for row in rows]
        rows = [msgspec.structs.replace(row, kind=kind) for row, kind in zip(rows, kinds, strict=True)]
    return Breakdown(by=by, clock="host", total_us=float(time.sum()), rows=tuple(rows), note=note)


def classes_on_host(trace: Trace) -> tuple[list[str], Ints]:
    """Return (classes of work, index into them for each call).

    A call has the class of the outermost op around it with a known class, otherwise its own class. For example,
    products inside an attention op count as attention.
    """
    kinds = [class_of_op(signature.name) for signature in trace.signatures]
    for index in set(trace.ops.signature[_listed_rows(trace)].tolist()):
        kinds[index] = "communication"
    names, at = _merged(kinds, trace.ops.signature.astype(np.int64))
    tells = np.array([kind != "other" for kind in kinds], bool)[trace.ops.signature]
    outermost = outermost_of(innermost_parent(trace.ops), tells)
    return names, np.where(outermost >= 0, at[np.maximum(outermost, 0)], at)


def _listed_rows(trace: Trace) -> list[int]:
    """Return the rows of ops that a Chakra file marks as communication."""
    return [collective.row for collective in trace.collectives if collective.row >= 0]


def result_allocation_us(trace: Trace) -> Floats:
    """Return, for each signature, the time that its calls spend in child ops that allocate their results."""
    signature = trace.ops.signature
    parents = innermost_parent(trace.ops)
    room = np.array([signature.name in _ROOM for signature in trace.signatures] or [False])
    inside = (parents >= 0) & room[signature]
    time = trace.ops.dur_ns[inside] / 1e3
    sums: Floats = np.bincount(signature[parents[inside]], weights=time, minlength=len(trace.signatures)).astype(
        np.float64
    )
    return sums


def self_time_us(trace: Trace) -> Floats:
    """Return the time of each op in microseconds, without the time of the ops directly inside it; at least 0."""
    self_us = trace.ops.dur_ns.astype(np.float64) / 1e3
    parents = innermost_parent(trace.ops)
    inside = parents >= 0
    self_us -= np.bincount(parents[inside], weights=trace.ops.dur_ns[inside] / 1e3, minlength=len(self_us))
    return np.maximum(self_us, 0.0)


def _labels(trace: Trace, by: By, modules: Sequence[str]) -> tuple[Ints, list[str], str]:
    """Return (index of each op's label, labels, note), where labels are the values of the criterion `by`."""
    if by == "op":
        names, at = _merged([signature.name for signature in trace.signatures], trace.ops.signature.astype(np.int64))
        return at, names, ""
    if by == "module":
        names, at = _merged([name or "(no module)" for name in modules], np.arange(len(modules), dtype=np.int64))
        if not modules:
            return np.zeros(len(trace.ops), np.int64), ["(no module)"], MODULE_HINT
        return at, names, "" if any(modules) else MODULE_HINT
    return _phases(trace)


MODULE_HINT = "the trace names no modules: record with torch.profiler.profile(with_stack=True)"


def _phases(trace: Trace) -> tuple[Ints, list[str], str]:
    """Return (index of the phase of each op, names of the phases, note why the phases are not more detailed).

    The phases are those of an inference server's batches, otherwise forward, backward and optimizer.
    """
    index = BatchIndex(trace)
    if index.iterations:
        labels = [*PHASES, NO_PHASE]
        of_context = [labels.index(context.phase) if context.phase is not None else 3 for context in index.contexts]
        table = np.array([*of_context, 3], np.int64)
        return table[index.of_row], labels, ""
    kind = _phases_of_training(trace)
    if not kind.any():
        return kind, ["all"], "no iteration records its phase, and there is no backward pass"
    return kind, ["forward", "backward", "optimizer"], ""


def _phases_of_training(trace: Trace) -> Ints:
    """Return 0 for forward ops, 1 for backward ops and 2 for optimizer ops."""
    parents = innermost_parent(trace.ops)
    names = [signature.name for signature in trace.signatures]
    backward = np.array([name.startswith(_BACKWARD) or "Backward" in name for name in names], bool)
    stepping = np.array([name.startswith("Optimizer.") for name in names], bool)
    kind = np.where(stepping[trace.ops.signature], 2, np.where(backward[trace.ops.signature], 1, 0))
    for note in trace.annotations:
        if note.name.startswith("Optimizer."):
            start = trace.ops.start_ns
            within = (start >= note.start_ns) & (start < note.start_ns + note.dur_ns) & (trace.ops.track == note.track)
            kind[within] = 2
    for above in climbs(parents):  # what lies inside a backward node belongs to it
        kind = np.where(above >= 0, np.maximum(kind, kind[above]), kind)
    return kind


def _kernel_names(trace: Trace) -> tuple[list[str], Ints]:
    """Return the kernel names, with "kernel" for an empty name, and each row's index into them."""
    names = [name or KERNEL_CATEGORIES[0] for name in trace.kernel_names]
    return names, trace.kernels.name.astype(np.int64)


def _merged(labels: Sequence[str], of_row: Ints) -> tuple[list[str], Ints]:
    """Return (distinct labels, index into them for each row); `of_row` is the index into `labels` for each row."""
    distinct = list(dict.fromkeys(labels))
    place = {name: i for i, name in enumerate(distinct)}
    table = np.array([place[name] for name in labels] or [0], np.int64)
    return distinct, table[of_row]


def _order(names: Sequence[str], at: Ints, time: Floats) -> list[int]:
    """Return the indices of the names that occur, those with the most time first."""
    total = np.bincount(at, weights=time, minlength=len(names))
    present = np.bincount(at, minlength=len(names)) > 0
    return sorted(np.flatnonzero(present).tolist(), key=lambda i: (-total[i], names[i]))


def _rows(names: Sequence[str], at: Ints, time: Floats) -> list[Row]:
    order = np.argsort(at, kind="stable")
    bounds = np.searchsorted(at[order], np.arange(len(names) + 1))
    whole = float(time.sum())
    rows: list[Row] = []
    for i in _order(names, at, time):
        part = time[order[bounds[i] : bounds[i + 1]]]
        total = float(part.sum())
        rows.append(
            Row(
                name=names[i],
                calls=len(part),
                time_us=total,
                share=total / whole if whole else 0.0,
                median_us=_median(part),
            )
        )
    return rows


def _calls_of_owners(trace: Trace, at: Ints, length: int) -> dict[int, int]:
    """Return, for each label, how many op calls own its device work. A launch without an owner counts as one call."""
    owner = trace.kernels.owner
    owned = np.flatnonzero(owner >= 0)
    _, first = np.unique(owner[owned], return_index=True)
    calls = np.bincount(at[owned[first]], minlength=length)
    alone = np.bincount(at[owner < 0], minlength=length)
    return {i: int(calls[i] + alone[i]) for i in range(length)}


def median_us_of_calls(trace: Trace, at: Ints, length: int) -> dict[int, float]:
    """Return, by index of the label, the median device time of a call in µs.

    The time of a call is the sum over its launches. A launch without an op counts as a call of its own.
    """
    owner = trace.kernels.owner.astype(np.int64)
    time = trace.kernels.dur_ns.astype(np.float64) / 1e3
    call = np.where(owner >= 0, owner, len(trace.ops) + np.arange(len(owner)))
    _, first, which = np.unique(call, return_index=True, return_inverse=True)
    sums = np.bincount(which, weights=time, minlength=len(first))
    return medians_of(sums, at[first], length)


def medians_of(values: Array, label: Ints, length: int) -> dict[int, float]:
    """Return label → median of the values with this label, for labels below `length`; 0 without values."""
    order = np.argsort(label, kind="stable")
    bounds = np.searchsorted(label[order], np.arange(length + 1))
    parts = [values[order[bounds[i] : bounds[i + 1]]] for i in range(length)]
    return {i: _median(part) if len(part) else 0.0 for i, part in enumerate(parts)}


def _median(values: Array) -> float:
    """Return the median. Numpy's own function is not used: it imports masked arrays, which takes 15 ms."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / 2)


def _kinds(rows: Sequence[Row], order: Sequence[int], at: Ints, trace: Trace) -> tuple[Row, ...]:
    """Add to each row the class of work that takes most of its time."""
    time = np.zeros((max(order, default=0) + 1, len(CLASSES)))
    np.add.at(time, (at, classes_of_launches(trace)), trace.kernels.dur_ns + 1.0)
    kinds = time.argmax(axis=1).tolist()
    pairs = zip(order, rows, strict=True)
    return tuple(msgspec.structs.replace(row, kind=CLASSES[kinds[i]]) for i, row in pairs)


def classes_of_launches(trace: Trace) -> Ints:
    """Return the class of each kernel, as an index in `CLASSES`.

    The op that owns the kernel decides, otherwise the kernel's name. Whether a kernel is communication also depends on
    the work that runs around it.
    """
    owner = trace.kernels.owner.astype(np.int64)
    count = len(trace.signatures)
    signature = np.full(len(owner), count, np.int64)
    signature[owner >= 0] = trace.ops.signature[owner[owner >= 0]]
    ops = [*(entry.name for entry in trace.signatures), ""]
    pairs, which = np.unique(trace.kernels.name.astype(np.int64) * (count + 1) + signature, return_inverse=True)
    numbers: list[int] = pairs.tolist()
    names_and_ops = [divmod(pair, count + 1) for pair in numbers]
    classes = [class_of_work(ops[op], trace.kernel_names[name] or KERNEL_CATEGORIES[0]) for name, op in names_and_ops]
    out = np.array([CLASSES.index(kind) for kind in classes], np.int64)[which.reshape(-1)]
    out[communication_rows(trace)] = CLASSES.index("communication")
    return out
