# pyright: strict
"""Sum the time of a trace by op, class of work, kernel, phase or module.

Times are device times if the trace has device work. Otherwise they are host times, where an op's own time excludes the
ops inside it, so that the sum over all rows is the time that ops took.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.traces.links.annotations import PHASES
from opreplay.traces.links.iterations import BatchIndex
from opreplay.traces.links.parents import climbs, innermost_parent, outermost_of
from opreplay.traces.model import KERNEL_CATEGORIES, Trace
from opreplay.traces.sums import summed
from opreplay.traces.times.communication import communication_rows
from opreplay.traces.times.kernel_classes import CLASSES, class_of_op, class_of_work
from opreplay.traces.times.op_work import work_of
from opreplay.traces.times.peaks import TF32, Peak, is_tf32, peak_of

By = Literal["op", "category", "module", "kernel", "phase"]
NO_OP = "(no op recorded)"
NO_PHASE = "(outside of marked iterations)"
LEAST_OWN = 0.9
"""Of a host op's time that is spent outside of the ops inside it, for its rates to be told."""
_ROOM = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "resize_", "as_strided_")
)
_OPAQUE = re.compile(r"CatArrayBatchedCopy\w*<.*?OpaqueType<(\d+)u?")
_BACKWARD = ("autograd::engine::evaluate_function", "torch::autograd::")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """All device work, or all calls, of one name."""

    name: str
    calls: int
    """Launches for kernels and classes, calls that own device time for ops; calls on a host."""
    time_us: float
    share: float
    """Of all device time, or of the time of all ops on a host."""
    median_us: float
    """Of one call."""
    kind: str = ""
    """Class of work of a kernel or an op."""
    tflops_per_s: float | None = None
    """10¹² operations a second over the device time of an op, or over the time of a host's op that does its work
    itself; None where some call's sizes do not tell."""
    gb_per_s: float | None = None
    """10⁹ bytes a second: arguments, and results whose size follows, each moved once."""
    peak_share: float | None = None
    """Of the recorded device's peak, the nearer of the two: rate of operations, or of bytes; None where not known."""
    peak_kind: str = ""
    """What that is the peak of: "memory", a dtype, "tf32" for products of float32 whose kernels' names say so, or
    "tf32, float32" where those of some calls do (each for the time that its calls took); "" without a share."""


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Rows with most time first."""

    by: By
    clock: Literal["device", "host"]
    total_us: float
    rows: tuple[Row, ...]
    note: str = ""
    """What keeps the table from telling more."""
    peak: Peak | None = None
    """That shares of the peak are of."""


def breakdown(trace: Trace, by: By, *, modules: Sequence[str] = (), peak: Peak | None = None) -> Breakdown:
    """Sum up a trace. `modules` gives the innermost module around each op, "" for none; unused for other `by`.

    `peak` is the peak of the recorded device, by default according to its recorded name.
    """
    if len(trace.kernels):
        return _of_device(trace, by, modules, peak or peak_of(trace.info.device_names))
    return _of_host(trace, by, modules)


def _of_device(trace: Trace, by: By, modules: Sequence[str], peak: Peak | None) -> Breakdown:
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
        medians = _median_of_calls(trace, at, len(names))
        rows = [
            msgspec.structs.replace(row, calls=calls[i], median_us=medians[i])
            for i, row in zip(order, rows, strict=True)
        ]
    if by == "kernel":
        rows = _kinds(rows, order, at, trace)
    if by != "op":
        return Breakdown(by=by, clock="device", total_us=float(time.sum()), rows=tuple(rows), note=note)
    in_tf32 = _in_tf32(trace, at, len(names))
    rated = [
        _rated(row, work, peak, in_tf32[i])
        for i, row, work in zip(order, rows, _work_by_op(trace, [row.name for row in rows]), strict=True)
    ]
    return Breakdown(
        by=by, clock="device", total_us=float(time.sum()), rows=_kinds(rated, order, at, trace), note=note, peak=peak
    )


def _work_by_op(trace: Trace, names: Sequence[str]) -> list[tuple[float | None, float | None, str]]:
    """Return (operations, bytes, dtype) of all calls of each op that own device time; None if a call's work is
    unknown.
    """
    owner = np.unique(trace.kernels.owner[trace.kernels.owner >= 0])
    calls = np.bincount(trace.ops.signature[owner], minlength=len(trace.signatures))
    return _work_of_calls(trace, names, calls, _element_bytes(trace))


def _element_bytes(trace: Trace) -> dict[int, int]:
    """Map signatures to the bytes per element that their kernels move, if kernel names agree on it.

    Kernels that concatenate tensors name the size of opaque elements, and profiles lack the types in a list of tensors.
    """
    bytes_by_name = {i: int(match[1]) for i, name in enumerate(trace.kernel_names) if (match := _OPAQUE.search(name))}
    owned = (trace.kernels.owner >= 0) & np.isin(
        trace.kernels.name, np.array([*bytes_by_name], trace.kernels.name.dtype)
    )
    sizes: dict[int, set[int]] = {}
    pairs = zip(
        trace.ops.signature[trace.kernels.owner[owned]].tolist(), trace.kernels.name[owned].tolist(), strict=True
    )
    for signature, name in set(pairs):
        sizes.setdefault(signature, set()).add(bytes_by_name[name])
    return {signature: size.pop() for signature, size in sizes.items() if len(size) == 1}


def _work_of_calls(
    trace: Trace, names: Sequence[str], calls: npt.NDArray[np.int64], element_bytes: Mapping[int, int]
) -> list[tuple[float | None, float | None, str]]:
    """Return the same for the given number of calls of each signature."""
    by_name: dict[str, tuple[float | None, float | None, str]] = {}
    for i in np.flatnonzero(calls).tolist():
        signature, n = trace.signatures[i], int(calls[i])
        work = work_of(signature, element_bytes.get(i))
        flops, moved, dtype = by_name.get(signature.name, (0.0, 0.0, work.dtype))
        by_name[signature.name] = (
            None if flops is None or work.flops is None else flops + n * work.flops,
            None if moved is None or work.bytes is None else moved + n * work.bytes,
            dtype if dtype == work.dtype else "",
        )
    return [by_name.get(name, (None, None, "")) for name in names]


def _in_tf32(trace: Trace, at: npt.NDArray[np.int64], length: int) -> list[float]:
    """Return, for each label, the device time of calls with a kernel whose name says TF32."""
    kernels = trace.kernels
    is_named = np.array([is_tf32(name) for name in trace.kernel_names] or [False], bool)[kernels.name]
    call = np.where(kernels.owner >= 0, kernels.owner.astype(np.int64), len(trace.ops) + np.arange(len(kernels)))
    of_call = np.isin(call, call[is_named])
    time = kernels.dur_ns.astype(np.float64)
    whole = np.bincount(at, weights=time, minlength=length)
    return (np.bincount(at, weights=time * of_call, minlength=length) / np.maximum(whole, 1.0)).tolist()


def _peak_shares(
    peak: Peak, tflops: float | None, gb_per_s: float | None, dtype: str, in_tf32: float
) -> list[tuple[float, str]]:
    """Return (share of a peak, which peak) for this dtype's arithmetic and for memory, if the rates are known."""
    shares: list[tuple[float, str]] = []
    if tflops is not None and dtype in peak.tflops:
        best, kind = peak.tflops[dtype], dtype
        if dtype == "float32" and in_tf32 and TF32 in peak.tflops:
            best = in_tf32 * peak.tflops[TF32] + (1 - in_tf32) * best
            kind = TF32 if in_tf32 > 1 - 1e-9 else f"{TF32}, {dtype}"
        shares.append((tflops / best, kind))
    if gb_per_s is not None:
        shares.append((gb_per_s / peak.gb_per_s, "memory"))
    return shares


def _rated(row: Row, work: tuple[float | None, float | None, str], peak: Peak | None, in_tf32: float = 0.0) -> Row:
    """Return the row with rates. `in_tf32` is the part of its time in calls that multiply in TF32, relevant for
    float32.
    """
    flops, moved, dtype = work
    if row.time_us <= 0:
        return row
    tflops = None if flops is None else flops / row.time_us / 1e6
    speed = None if moved is None else moved / row.time_us / 1e3
    shares = [] if peak is None else _peak_shares(peak, tflops, speed, dtype, in_tf32)
    share, kind = max(shares, default=(None, ""))
    return msgspec.structs.replace(row, tflops_per_s=tflops, gb_per_s=speed, peak_share=share, peak_kind=kind)


def _of_host(trace: Trace, by: By, modules: Sequence[str]) -> Breakdown:
    time = self_time_us(trace)
    note = "no device work is recorded: times are those of ops on the host, without the ops inside them"
    if by == "kernel":
        return Breakdown(by=by, clock="host", total_us=0.0, rows=(), note="no device work is recorded: no kernels")
    if by == "category":
        names, at = classes_on_host(trace)
        note = "no device work is recorded: times are those of ops on the host, by the outermost op whose name tells"
    else:
        at, names, more = _labels(trace, by, modules)
        note = "; ".join(text for text in (note, more) if text)
    rows = _rows(names, at, time)
    if by == "op":
        rows = _rated_on_host(trace, rows)
        listed: list[int] = trace.ops.signature[_listed_rows(trace)].tolist()
        transfers = {trace.signatures[index].name for index in listed}
        kinds = ["communication" if row.name in transfers else class_of_op(row.name) for row in rows]
        rows = [msgspec.structs.replace(row, kind=kind) for row, kind in zip(rows, kinds, strict=True)]
    return Breakdown(by=by, clock="host", total_us=float(time.sum()), rows=tuple(rows), note=note)


def classes_on_host(trace: Trace) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return classes, and each call's index into them: that of the outermost enclosing library op with a known class.

    Products inside an attention op, for example, count as attention.
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


def _rated_on_host(trace: Trace, rows: Sequence[Row]) -> list[Row]:
    """Return rows with rates for ops that do their work themselves; for others, their own time is not that of the
    work.
    """
    signature = trace.ops.signature
    count = len(trace.signatures)
    calls = np.bincount(signature, minlength=count)
    time = np.bincount(signature, weights=trace.ops.dur_ns, minlength=count)
    # Making room for its result is part of an op's work, whatever ops it takes.
    parents, room = (
        innermost_parent(trace.ops),
        np.array([signature.name in _ROOM for signature in trace.signatures] or [False]),
    )
    inside = (parents >= 0) & room[signature]
    time -= np.bincount(signature[parents[inside]], weights=trace.ops.dur_ns[inside], minlength=count)
    names = (signature.name for signature in trace.signatures)
    whole = summed((name, ns / 1e3) for name, ns in zip(names, time.tolist(), strict=False))
    work = _work_of_calls(trace, [row.name for row in rows], calls, {})
    return [
        _rated(row, op_work, None) if row.time_us >= LEAST_OWN * whole[row.name] else row
        for row, op_work in zip(rows, work, strict=True)
    ]


def self_time_us(trace: Trace) -> npt.NDArray[np.float64]:
    """Return each op's time outside the ops directly inside it, in microseconds; at least 0."""
    self_us = trace.ops.dur_ns.astype(np.float64) / 1e3
    parents = innermost_parent(trace.ops)
    inside = parents >= 0
    self_us -= np.bincount(parents[inside], weights=trace.ops.dur_ns[inside] / 1e3, minlength=len(self_us))
    return np.maximum(self_us, 0.0)


def _labels(trace: Trace, by: By, modules: Sequence[str]) -> tuple[npt.NDArray[np.int64], list[str], str]:
    """Return (index into the labels for each op, labels, note)."""
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


def _phases(trace: Trace) -> tuple[npt.NDArray[np.int64], list[str], str]:
    """Return each op's phase: that of the server's batch, else forward, backward or optimizer of a training step."""
    index = BatchIndex(trace)
    if index.iterations:
        labels = [*PHASES, NO_PHASE]
        of_context = [labels.index(context.phase) if context.phase is not None else 3 for context in index.contexts]
        table = np.array([*of_context, 3], np.int64)
        return table[index.of_row], labels, ""
    kind = _phases_of_training(trace)
    if not kind.any():
        return kind, ["all"], "no iteration says its phase, and there is no backward pass"
    return kind, ["forward", "backward", "optimizer"], ""


def _phases_of_training(trace: Trace) -> npt.NDArray[np.int64]:
    """Return 0 for forward, 1 for backward and 2 for optimizer ops."""
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


def _kernel_names(trace: Trace) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return names, and each row's index into them; an unnamed copy or fill is called by its category."""
    names = [name or KERNEL_CATEGORIES[0] for name in trace.kernel_names]
    return names, trace.kernels.name.astype(np.int64)


def _merged(labels: Sequence[str], of_row: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return distinct labels, and each row's index into them, from rows of indices into `labels`."""
    distinct = list(dict.fromkeys(labels))
    place = {name: i for i, name in enumerate(distinct)}
    table = np.array([place[name] for name in labels] or [0], np.int64)
    return distinct, table[of_row]


def _order(names: Sequence[str], at: npt.NDArray[np.int64], time: npt.NDArray[np.float64]) -> list[int]:
    """Return the indices of the names that occur, most time first."""
    total = np.bincount(at, weights=time, minlength=len(names))
    present = np.bincount(at, minlength=len(names)) > 0
    return sorted(np.flatnonzero(present).tolist(), key=lambda i: (-total[i], names[i]))


def _rows(names: Sequence[str], at: npt.NDArray[np.int64], time: npt.NDArray[np.float64]) -> list[Row]:
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


def _calls_of_owners(trace: Trace, at: npt.NDArray[np.int64], length: int) -> dict[int, int]:
    """Return how many op calls own the device work of each label, or how many launches if no op is recorded."""
    owner = trace.kernels.owner
    owned = np.flatnonzero(owner >= 0)
    _, first = np.unique(owner[owned], return_index=True)
    calls = np.bincount(at[owned[first]], minlength=length)
    alone = np.bincount(at[owner < 0], minlength=length)
    return {i: int(calls[i] + alone[i]) for i in range(length)}


def _median_of_calls(trace: Trace, at: npt.NDArray[np.int64], length: int) -> dict[int, float]:
    """Return the median device time per call of each label, over all its launches; a launch without an op is a call."""
    owner = trace.kernels.owner.astype(np.int64)
    time = trace.kernels.dur_ns.astype(np.float64) / 1e3
    call = np.where(owner >= 0, owner, len(trace.ops) + np.arange(len(owner)))
    _, first, which = np.unique(call, return_index=True, return_inverse=True)
    sums = np.bincount(which, weights=time, minlength=len(first))
    label = at[first]
    order = np.argsort(label, kind="stable")
    bounds = np.searchsorted(label[order], np.arange(length + 1))
    parts = [sums[order[bounds[i] : bounds[i + 1]]] for i in range(length)]
    return {i: _median(part) if len(part) else 0.0 for i, part in enumerate(parts)}


def _median(values: npt.NDArray[Any]) -> float:
    """Return the median; numpy's own function imports masked arrays, which takes 15 ms."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / 2)


def _kinds(rows: Sequence[Row], order: Sequence[int], at: npt.NDArray[np.int64], trace: Trace) -> tuple[Row, ...]:
    """Return the rows with the class of work that takes most of each row's time."""
    time = np.zeros((max(order, default=0) + 1, len(CLASSES)))
    np.add.at(time, (at, classes_of_launches(trace)), trace.kernels.dur_ns + 1.0)
    kinds = time.argmax(axis=1).tolist()
    pairs = zip(order, rows, strict=True)
    return tuple(msgspec.structs.replace(row, kind=CLASSES[kinds[i]]) for i, row in pairs)


def classes_of_launches(trace: Trace) -> npt.NDArray[np.int64]:
    """Return each kernel's index into `CLASSES`, from the op that owns it, or else from its name.

    For communication, the work that runs around it also counts.
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
