# pyright: strict
"""List the collectives that one rank ran, in order, with their groups and times.

The sources are device work, spans of whole collectives and host annotations. This module decides what counts as a
collective in a trace and which record describes it. It does not read the traces of other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

import msgspec
import numpy as np

from opreplay.traces.activity import Activity, CallTable, Collective, CollectiveSpans
from opreplay.traces.arrays import Ints
from opreplay.traces.collectives.communication import is_communication
from opreplay.traces.collectives.names import operation_of
from opreplay.traces.collectives.tensors import sizes_of_tensors, tensors_of
from opreplay.traces.links.annotations import AnnotationTable, step_number
from opreplay.traces.links.marks import INSTEAD, Mark, UnannotatedCall, marks_of
from opreplay.traces.links.parents import among_or_around, innermost_of, innermost_parent, of_rows
from opreplay.traces.model import Trace

PAIRED = frozenset(("send", "recv"))
"""Kinds in which one rank communicates with exactly one other rank."""
_HCCL = re.compile(r"__(\d+)_(\d+)_\d+$")
"""Suffix of HCCL's names: the group number and the number of the collective in that group."""
_OPS = ("c10d::", "_c10d_functional::", "c10d_functional::")


class RankCall(Collective, frozen=True, kw_only=True):
    """One collective as one rank ran it."""

    kind: str
    """"all_reduce", "all_to_all", ..., "send_recv" for the kernel that all sending operations share, "" if unknown."""
    start_ns: int
    end_ns: int
    """End on the rank's own clock; the duration includes waiting for other ranks."""
    stream: int = -1
    kernel: int = -1
    """Row in `Trace.kernels` if the collective ran on a device, otherwise -1."""
    span: int = -1
    """Row in `Activity.spans` for an NPU collective, otherwise -1."""
    note: int = -1
    """Index among the collectives that the host ran (gloo), sorted by start; -1 for a collective on a device."""
    op: int = -1
    """Row in `Trace.ops` of the call that requested the collective."""
    issued_ns: int | None = None
    """Time at which a host collective was requested; gloo's threads may start two collectives in reverse order."""
    step: int | None = None
    """N of the ProfilerStep#N in which the collective was requested."""


def collectives_of(trace: Trace) -> tuple[RankCall, ...]:
    """Return every collective that ran on the trace's device or, if there are none, on its host, sorted by start.

    The trace must have been read with its activity. A device kernel is described by its recorded arguments. Without
    them, it is described by torch's record of the call that launched it, or else by its name and the sizes of the
    requesting op.
    """
    activity = trace.activity
    if activity is None:
        raise ValueError("read the trace with activity=True")
    calls = [*_of_device(trace, activity), *_of_spans(trace, activity)]
    if not calls:
        calls = host_collectives(trace)
    return tuple(sorted(_in_steps(trace, calls), key=lambda call: (call.start_ns, call.end_ns)))


def _in_steps(trace: Trace, calls: list[RankCall]) -> list[RankCall]:
    """Return the calls with the profiler step in which each was requested, if steps are marked."""
    notes = AnnotationTable.of(trace.annotations)
    if not len(notes):
        return calls
    numbers = [step_number(name) for name in notes.names]
    marks = np.flatnonzero(np.array([number is not None for number in numbers])[notes.name])
    marks = marks[np.argsort(notes.start_ns[marks], kind="stable")]
    starts, ends = notes.start_ns[marks], notes.start_ns[marks] + notes.dur_ns[marks].astype(np.int64)
    out: list[RankCall] = []
    for call in calls:
        asked = int(trace.ops.start_ns[call.op]) if call.op >= 0 else call.start_ns
        at = int(np.searchsorted(starts, asked, side="right")) - 1
        inside = at >= 0 and asked < ends[at]
        out.append(msgspec.structs.replace(call, step=numbers[notes.name[marks[at]]]) if inside else call)
    return out


def _of_device(trace: Trace, activity: Activity) -> list[RankCall]:
    kernels = trace.kernels
    if not len(kernels):
        return []
    talks = np.array([is_communication(name) for name in trace.kernel_names] or [False])
    rows = np.flatnonzero((activity.collective >= 0) | (talks[kernels.name] & (kernels.category == 0)))
    if len(activity.spans):  # an NPU's tasks are parts of its spans
        rows = rows[:0]
    owners = kernels.owner[rows].astype(np.int64)
    asking, recording = _asking_ops_above(trace, owners), _records_above(trace, activity, owners)
    out: list[RankCall] = []
    each: Iterable[tuple[int, int, int]] = zip(rows.tolist(), asking.tolist(), recording.tolist(), strict=True)
    for row, asked, recorded in each:
        record = _record(activity, int(activity.collective[row]), recorded)
        start = int(kernels.start_ns[row])
        name = trace.kernel_names[int(kernels.name[row])]
        call = _call(record, start, start + int(kernels.dur_ns[row]), name)
        if record is None and asked >= 0:
            call = _from_op(trace, call, asked)
        out.append(msgspec.structs.replace(call, kernel=row, stream=int(kernels.stream[row]), op=asked))
    return out


def _of_spans(trace: Trace, activity: Activity) -> list[RankCall]:
    spans = activity.spans
    out: list[RankCall] = []
    for row in range(len(spans)):
        index = int(spans.collective[row])
        record = activity.collectives[index] if index >= 0 else None
        start = int(spans.start_ns[row])
        name = trace.kernel_names[int(spans.name[row])]
        call = _call(record, start, start + int(spans.dur_ns[row]), name)
        if call.group is None and (ending := _HCCL.search(name)) is not None:
            call = msgspec.structs.replace(call, group=ending[1], sequence=int(ending[2]))
        out.append(msgspec.structs.replace(call, span=row))
    return out


def host_collectives(trace: Trace) -> list[RankCall]:
    """Return the collectives that a back-end ran on the host and annotated ("gloo:all_reduce"), sorted by start.

    Each is matched by operation, size and order to the op that requested it. Collectives of a kind with more ops than
    annotations, or fewer, stay unmatched.
    """
    notes = AnnotationTable.of(trace.annotations)
    marks = np.array([name.startswith("gloo:") for name in notes.names] or [False])
    rows = np.flatnonzero(marks[notes.name]) if len(notes) else np.empty(0, np.int64)
    rows = rows[np.argsort(notes.start_ns[rows], kind="stable")]
    marked = () if trace.activity is None else trace.activity.notes
    tensors = {(note.start_ns, note.track): note for note in marked if note.dims}
    out: list[RankCall] = []
    for position, row in enumerate(rows.tolist()):
        start = int(notes.start_ns[row])
        call = _call(None, start, start + int(notes.dur_ns[row]), notes.names[int(notes.name[row])])
        if (note := tensors.get((start, int(notes.track[row])))) is not None:
            dtype = next(iter(note.types), None)
            call = msgspec.structs.replace(call, elements=sum(map(prod, note.dims)), dtype=dtype)
        out.append(msgspec.structs.replace(call, note=position, stream=int(notes.track[row])))
    for at, op in _asked_by(trace, out).items():
        issued = int(trace.ops.start_ns[op])
        out[at] = msgspec.structs.replace(_from_op(trace, out[at], op), op=op, issued_ns=issued)
    return out


def _asked_by(trace: Trace, calls: list[RankCall]) -> dict[int, int]:
    """Return the row of the op that requested each collective, by the index of the collective's annotation.

    Kinds of collectives with more annotations than ops, or fewer, are left out. Their recording began or ended between
    a request and its annotation, so it is unknown which belong together.
    """
    rows = _asking_ops(trace)
    signatures = [trace.signatures[int(trace.ops.signature[row])] for row in rows]
    asked = [
        UnannotatedCall(
            start_ns=int(trace.ops.start_ns[row]),
            kind=operation_of(signature.name) or "",
            elements=frozenset(sum(n for n, _ in entry) for entry in tensors_of(signature)),
        )
        for row, signature in zip(rows, signatures, strict=True)
    ]
    marks = [Mark(start_ns=call.start_ns, kind=call.kind, elements=call.elements) for call in calls]
    matched = marks_of(asked, marks)
    lacking = {INSTEAD.get(asked[at].kind, asked[at].kind) for at in set(range(len(asked))) - matched.keys()}
    lacking |= {marks[at].kind for at in set(range(len(marks))) - set(matched.values())}
    return {mark: rows[at] for at, mark in matched.items() if not {asked[at].kind, marks[mark].kind} & lacking}


def with_host_collectives(trace: Trace) -> Trace:
    """Return the trace with the collectives that the host ran added as spans, launched by the ops that requested them.

    A trace with device work or without host collectives is returned unchanged.
    """
    activity = trace.activity
    host_calls = [] if activity is None or len(trace.kernels) or len(activity.spans) else host_collectives(trace)
    if not host_calls or activity is None:
        return trace
    span_names = [f"gloo:{call.kind or 'collective'}" for call in host_calls]
    numbers = {name: len(trace.kernel_names) + i for i, name in enumerate(dict.fromkeys(span_names))}
    ids = int(activity.calls.correlation.max(initial=-1)) + 1 + np.arange(len(host_calls))
    asked = np.array([call.op for call in host_calls], np.int64)
    known = [
        Collective(
            name=call.kind, elements=call.elements, out_elements=call.out_elements, dtype=call.dtype, group=call.group
        )
        for call in host_calls
    ]
    spans = CollectiveSpans(
        name=np.array([numbers[name] for name in span_names], np.uint32),
        start_ns=np.array([call.start_ns for call in host_calls], np.int64),
        dur_ns=np.array([call.end_ns - call.start_ns for call in host_calls], np.int64),
        correlation=ids,
        collective=len(activity.collectives) + np.arange(len(host_calls)),
        thread=np.array([call.stream for call in host_calls], np.int64),
    )
    return msgspec.structs.replace(
        trace,
        kernel_names=(*trace.kernel_names, *numbers),
        activity=msgspec.structs.replace(
            activity,
            names=(*activity.names, "(asks for a collective)"),
            calls=_with_launches(trace, activity, asked[asked >= 0], ids[asked >= 0]),
            collectives=(*activity.collectives, *known),
            spans=spans,
        ),
    )


def _with_launches(trace: Trace, activity: Activity, rows: Ints, ids: Ints) -> CallTable:
    """Return the calls, with a call added inside each of the ops `rows`. It launches the span with the id in `ids`."""
    calls, ops, none = activity.calls, trace.ops, np.zeros(len(rows), np.int64)
    return CallTable(
        name=np.append(calls.name, np.full(len(rows), len(activity.names), np.uint32)),
        kind=np.append(calls.kind, none.astype(np.uint8)),
        start_ns=np.append(calls.start_ns, ops.start_ns[rows]),
        dur_ns=np.append(calls.dur_ns, none),  # no time of its own: the op is what takes it
        track=np.append(calls.track, ops.track[rows]),
        correlation=np.append(calls.correlation, ids),
    )


def _asking_ops(trace: Trace) -> list[int]:
    """Return the rows of ops that request a collective and contain no other such op, sorted by start."""
    if not len(trace.ops):
        return []
    asks = np.array([s.name.startswith(_OPS) and operation_of(s.name) is not None for s in trace.signatures] or [False])
    rows = np.flatnonzero(asks[trace.ops.signature])
    if not len(rows):
        return []
    parents, holds = innermost_parent(trace.ops), np.zeros(len(trace.ops), bool)
    holds[parents[rows][parents[rows] >= 0]] = True
    rows = rows[~among_or_around(parents, holds)[rows]]
    return rows[np.argsort(trace.ops.start_ns[rows], kind="stable")].tolist()


def _asking_ops_above(trace: Trace, owners: Ints) -> Ints:
    """Return, for each kernel's owner, the c10d op that it is or lies in, otherwise the owner; -1 without an owner."""
    if not (owners >= 0).any():
        return owners
    asks = np.array([signature.name.startswith(_OPS) for signature in trace.signatures], bool)[trace.ops.signature]
    above = of_rows(owners, innermost_of(innermost_parent(trace.ops), asks))
    return np.where(above >= 0, above, owners)


def _records_above(trace: Trace, activity: Activity, owners: Ints) -> Ints:
    """Return the index of the collective that torch recorded for each kernel; -1 if there is none.

    The record is that of the kernel's owner or, if it has none, of the innermost op around it with a record.
    """
    if not (owners >= 0).any():
        return owners
    above = of_rows(owners, innermost_of(innermost_parent(trace.ops), activity.op_collective >= 0))
    return of_rows(above, activity.op_collective)


def _completed(record: Collective, fallback: Collective) -> Collective:
    """Return `record` with missing facts filled in from `fallback`."""
    missing = {
        name: getattr(fallback, name)
        for name in record.__struct_fields__
        if getattr(record, name) is None and getattr(fallback, name) is not None
    }
    return msgspec.structs.replace(record, **missing)


def _call(record: Collective | None, start_ns: int, end_ns: int, name: str) -> RankCall:
    """Return a call with the facts of its record; `name` gives the kind if the record's name does not."""
    kind = operation_of(record.name) if record is not None else None
    recorded = {} if record is None else msgspec.structs.asdict(record)
    return RankCall(**recorded, kind=kind or operation_of(name) or "", start_ns=start_ns, end_ns=end_ns)


def _record(activity: Activity, described: int, recorded: int) -> Collective | None:
    """Return the collective that a kernel's arguments describe, completed from the record of the kernel's op.

    `described` and `recorded` are the indices of the two in the activity's list of collectives; -1 for none. If only
    one of them exists, it is returned as it is.
    """
    record = activity.collectives[recorded] if recorded >= 0 else None
    if described < 0:
        return record
    arguments = activity.collectives[described]
    return arguments if record is None else _completed(arguments, record)


def _from_op(trace: Trace, call: RankCall, op: int) -> RankCall:
    """Return `call` with the kind and sizes of the op that requested the collective."""
    signature = trace.signatures[int(trace.ops.signature[op])]
    kind = operation_of(signature.name)
    sizes = None if kind is None or kind == "send_recv" else sizes_of_tensors(kind, signature)
    call = msgspec.structs.replace(call, kind=kind or call.kind)
    if sizes is None:
        return call
    into, out = sizes[0], sizes[0] if kind == "all_reduce" else sizes[1]
    return msgspec.structs.replace(call, elements=into, out_elements=out, dtype=sizes[2] or call.dtype)
