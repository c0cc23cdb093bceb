# pyright: strict
"""Finds the collectives that a trace records as ops, as `record_param_comms`, or as annotations.

All records of one collective call become one `Call`. This module determines which records belong together; `records`
combines them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec
import numpy as np

from opreplay.replay.collectives.model import Collective
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.plan.collectives.arguments import PARAMETERS, recorded_parameters
from opreplay.replay.plan.collectives.back_ends import Notes, mark
from opreplay.replay.plan.collectives.records import (
    Records,
    annotated_sizes,
    collective_of,
    kind_of_records,
)
from opreplay.traces.activity import Collective as Record
from opreplay.traces.activity.model import CollectiveNote, ListedCollective
from opreplay.traces.collectives.names import Kind, kind_of
from opreplay.traces.collectives.tensors import tensors_of
from opreplay.traces.dialects.param_comms import CommsTrace
from opreplay.traces.links.marks import UnannotatedCall, marks_of
from opreplay.traces.links.parents import depths, innermost_of, innermost_parent, of_rows, outermost_of
from opreplay.traces.model import Trace


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded collective."""

    name: str
    """Name of the outermost op of the call, or of the annotation if there is no op."""
    names: tuple[str, ...]
    """Names of all records of the call."""
    rows: tuple[int, ...]
    """Rows of `Trace.ops`, outermost first; empty without an op."""
    collective: Collective | None
    lacks: str = ""
    """Facts that the trace lacks, as text; if not empty, `collective` is None."""
    assumed: tuple[str, ...] = ()
    """Assumptions about the collective."""
    host_us: float = 0.0
    device_us: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()
    """(name, microseconds) of each kernel of the call."""
    asked_ns: int = -1
    """Time at which the collective was requested, in ns; -1 if unknown."""
    ended_ns: int | None = None
    """End (ns) of the call's device work, or of the annotation that the back-end made on another thread; None if there
    is neither.
    """


def collective_calls(trace: Trace) -> list[Call]:
    """Return all collectives of a trace in file order, without waits and set-up.

    One call consists of an op, the `record_param_comms` inside it, and the back-end's annotation of it on any thread.
    The trace must have been read with `activity`.
    """
    rows, inside = _rows(trace)
    notes, used = Notes(trace), set[int]()
    drafts = _drafts(trace, rows, inside, notes, used)
    calls = _annotated(drafts, notes, used, trace.info.world_size)
    calls += [(note.start_ns, _of_note(note, trace)) for index, note in enumerate(notes.all) if index not in used]
    calls.sort(key=lambda pair: pair[0])
    return _with_spans(trace, _with_named(trace, [call for _, call in calls]))


class _Draft(msgspec.Struct, kw_only=True):
    """A call before its operation is determined."""

    rows: list[int]
    begin_ns: int
    dur_ns: int
    records: Records
    owned: tuple[tuple[str, float], ...]
    ended_ns: int | None


def _records_of(trace: Trace, rows: list[int]) -> Records:
    """Return the records that the ops of one call contain."""
    records = Records()
    for row in rows:
        signature = trace.signatures[int(trace.ops.signature[row])]
        if records.record is None:
            records.record = _record_of(trace, row)
        records.signatures.append(signature)
        records.names.append(signature.name)
    return records


def _drafts(trace: Trace, rows: list[int], inside: dict[int, int], notes: Notes, used: set[int]) -> list[_Draft]:
    """Return a draft of each call, with its records and the annotations on its thread. Adds the indices of these
    annotations to `used`.
    """
    kernels, ends = _kernels_of(trace, set(rows))
    drafts: list[_Draft] = []
    for group in _grouped(trace, rows, inside):
        records = _records_of(trace, group)
        begin, dur = int(trace.ops.start_ns[group[0]]), int(trace.ops.dur_ns[group[0]])
        if dur > 0:
            for index in notes.within(int(trace.ops.track[group[0]]), begin, begin + dur):
                used.add(index)
                records.notes.append(notes.all[index])
        owned = tuple(work for row in group for work in kernels.get(row, ()))
        records.kernels = [name for name, _ in owned]
        ended = max((ends[row] for row in group if row in ends), default=None)
        drafts.append(_Draft(rows=group, begin_ns=begin, dur_ns=dur, records=records, owned=owned, ended_ns=ended))
    return drafts


def _annotated(drafts: list[_Draft], notes: Notes, used: set[int], world_size: int | None) -> list[tuple[int, Call]]:
    """Return (start in ns, call) for each draft that is a collective.

    A draft without an annotation may get one from another thread. The index of that annotation is then added to `used`.
    """
    unannotated = [draft for draft in drafts if not draft.records.notes and kind_of_records(draft.records) is not None]
    free_notes = [index for index in range(len(notes.all)) if index not in used]
    waiting = [
        UnannotatedCall(start_ns=draft.begin_ns, kind=kind, elements=annotated_sizes(draft.records))
        for draft in unannotated
        if (kind := kind_of_records(draft.records)) is not None
    ]
    host_ns: dict[int, int] = {}
    for call, place in marks_of(waiting, [mark(notes.all[index]) for index in free_notes]).items():
        draft, note = unannotated[call], notes.all[free_notes[place]]
        used.add(free_notes[place])
        draft.records.notes.append(note)
        host_ns[draft.rows[0]] = note.dur_ns  # the op only hands it over
        draft.ended_ns = draft.ended_ns or note.start_ns + note.dur_ns
    calls: list[tuple[int, Call]] = []
    for draft in drafts:
        group, records = draft.rows, draft.records
        collective, lacks, assumed = collective_of(records, world_size)
        is_set_up = len(group) == 1 and not draft.owned and not tensors_of(records.signatures[0])
        if collective is None and (not lacks or is_set_up):
            continue  # a wait, or the set-up of a communicator
        call = Call(
            name=records.names[0],
            names=tuple(dict.fromkeys([*records.names, *(note.name for note in records.notes)])),
            rows=tuple(group),
            collective=collective,
            lacks=lacks,
            assumed=assumed,
            host_us=host_ns.get(group[0], max([draft.dur_ns, *(note.dur_ns for note in records.notes)])) / 1e3,
            device_us=sum(us for _, us in draft.owned),
            kernels=draft.owned,
            asked_ns=draft.begin_ns,
            ended_ns=draft.ended_ns,
        )
        calls.append((draft.begin_ns, call))
    return calls


def _rows(trace: Trace) -> tuple[list[int], dict[int, int]]:
    """Return (rows of ops that are collectives, in file order; mapping from each of these rows to the row around it).

    The row around it is that of the nearest enclosing collective, -1 if there is none.
    """
    marked = np.array([is_collective(entry) or entry.name == PARAMETERS for entry in trace.signatures], dtype=bool)
    if not len(trace.ops) or not marked.any():
        return [], {}
    of_row = marked[trace.ops.signature]
    parents = innermost_parent(trace.ops)
    rows = np.flatnonzero(of_row)
    around = of_rows(parents, innermost_of(parents, of_row))[rows]
    return rows.tolist(), dict(zip(rows.tolist(), around.tolist(), strict=True))


def _grouped(trace: Trace, rows: list[int], inside: dict[int, int]) -> list[list[int]]:
    """Return the rows of each call, outermost first.

    Nested rows form one call. If several `record_param_comms` in them name a collective, they form several calls.
    """
    at = {row: number for number, row in enumerate(rows)}
    parents = np.array([at.get(inside[row], -1) for row in rows], np.int64)
    roots = outermost_of(parents, np.ones(len(rows), dtype=bool)).tolist()
    depth = dict(zip(rows, depths(parents).tolist(), strict=True))
    below: defaultdict[int, list[int]] = defaultdict(list)
    for row, root in zip(rows, roots, strict=True):
        below[rows[root]].append(row)
    groups: list[list[int]] = []
    for root, members in below.items():
        deep = sorted(members, key=lambda row: (depth[row], row))
        parameter_rows = [row for row in deep if _is_parameters(trace, row)]
        with_kind = [
            row for row in parameter_rows if (record := _record_of(trace, row)) and kind_of(record.name) is not None
        ]
        if len(with_kind) < 2:
            waits = set(parameter_rows) - set(with_kind) if with_kind else set[int]()
            groups.append([row for row in deep if row not in waits or row == root])
            continue
        for row in with_kind:
            around = inside[row]
            alone = around < 0 or (around == root and root in parameter_rows)
            groups.append([row] if alone else [around, row])
    return groups


def _is_parameters(trace: Trace, row: int) -> bool:
    return trace.signatures[int(trace.ops.signature[row])].name == PARAMETERS


def _record_of(trace: Trace, row: int) -> Record | None:
    """Return the record of a collective in one row. It comes from the op's own metadata, or, in an ExecutionTrace, from
    its arguments.
    """
    activity = trace.activity
    if activity is not None and activity.op_collective[row] >= 0:
        return activity.collectives[int(activity.op_collective[row])]
    return recorded_parameters(trace.signatures[int(trace.ops.signature[row])])


def _kernels_of(trace: Trace, rows: set[int]) -> tuple[dict[int, list[tuple[str, float]]], dict[int, int]]:
    """Return (name, microseconds) of each op's kernels by row, and the end of its last kernel in ns."""
    kernels_by_row: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    ends: dict[int, int] = {}
    owned = np.flatnonzero(np.isin(trace.kernels.owner, list(rows))) if rows else np.zeros(0, np.int64)
    for kernel in owned.tolist():
        name = trace.kernel_names[int(trace.kernels.name[kernel])]
        row, end = int(trace.kernels.owner[kernel]), int(trace.kernels.start_ns[kernel] + trace.kernels.dur_ns[kernel])
        kernels_by_row[row].append((name, float(trace.kernels.dur_ns[kernel]) / 1e3))
        ends[row] = max(ends.get(row, end), end)
    return kernels_by_row, ends


def _of_note(note: CollectiveNote, trace: Trace) -> Call:
    call = _call(Records(names=[note.name], notes=[note]), trace.info.world_size, name=note.name)
    end_ns = note.start_ns + note.dur_ns
    return msgspec.structs.replace(call, host_us=note.dur_ns / 1e3, asked_ns=note.start_ns, ended_ns=end_ns)


def _with_named(trace: Trace, calls: list[Call]) -> list[Call]:
    """Add the collectives that a Chakra file describes by type and size. Collectives that their tensors already
    describe are not added.
    """
    if not trace.collectives:
        return calls
    known = {row for call in calls if call.collective is not None for row in call.rows}
    named = [listed for listed in trace.collectives if listed.row not in known]
    replaced = {listed.row for listed in named if listed.row >= 0}
    by_row = {listed.row: listed for listed in trace.collectives if listed.row >= 0}
    calls_without_named = [_completed_by(call, by_row) for call in calls if not replaced.intersection(call.rows)]
    return [*calls_without_named, *(_of_listed(listed, trace.info.world_size) for listed in named)]


def _completed_by(call: Call, listed: Mapping[int, ListedCollective]) -> Call:
    """Return the call with the group, sender and receiver from the file's list. Tensors do not record these facts."""
    known, collective = next(filter(None, map(listed.get, call.rows)), None), call.collective
    if known is None or collective is None or known.record.name != collective.kind:
        return call
    record = known.record
    completed = msgspec.structs.replace(
        collective,
        group=collective.group or record.group or "",
        group_size=record.group_size or collective.group_size,
        **{end: getattr(record, end) for end in ("source", "target") if getattr(collective, end) is None},
    )
    assumed = tuple(text for text in call.assumed if record.group_size is None or not text.startswith("group:"))
    return msgspec.structs.replace(call, collective=completed, assumed=assumed)


def _of_listed(listed: ListedCollective, world_size: int | None) -> Call:
    record, name = listed.record, listed.name or listed.record.name
    call = _call(Records(names=[record.name], record=record), world_size, name=name)
    return msgspec.structs.replace(
        call,
        names=tuple(dict.fromkeys((name, record.name))),
        rows=(listed.row,) if listed.row >= 0 else (),
        assumed=(*call.assumed, f"dtype: {record.dtype} (the file only records bytes)")
        if listed.of_bytes
        else call.assumed,
        host_us=0.0 if listed.on_device else listed.dur_us,
        device_us=listed.dur_us if listed.on_device else 0.0,
        kernels=((listed.name, listed.dur_us),) if listed.on_device else (),
    )


def _call(records: Records, world_size: int | None, *, name: str) -> Call:
    """Return the call described by records that do not come from ops."""
    collective, lacks, assumed = collective_of(records, world_size)
    return Call(name=name, names=(name,), rows=(), collective=collective, lacks=lacks, assumed=assumed)


def calls_of_comms(comms: CommsTrace) -> list[Call]:
    """Return the collectives of a trace in PARAM's format, in order."""
    calls = (_of_listed(entry, comms.world_size) for entry in comms.entries)
    return [call for call in calls if call.collective is not None or call.lacks]


def _with_spans(trace: Trace, calls: list[Call]) -> list[Call]:
    """Add the sizes of device tasks to the calls of an NPU trace. Tasks and calls are matched in order, and only if
    there are as many tasks as calls.
    """
    activity = trace.activity
    if activity is None or not len(activity.spans):
        return calls
    by_kind: defaultdict[Kind, list[tuple[int, int, int]]] = defaultdict(list)
    for row in np.argsort(activity.spans.start_ns, kind="stable").tolist():
        if (kind := kind_of(activity.collectives[int(activity.spans.collective[row])].name)) is not None:
            begin, dur = int(activity.spans.start_ns[row]), int(activity.spans.dur_ns[row])
            by_kind[kind].append((int(activity.spans.collective[row]), begin, dur))
    for kind, spans in by_kind.items():
        alike = [i for i, call in enumerate(calls) if any(kind_of(name) == kind for name in call.names)]
        if alike and len(alike) != len(spans):
            continue  # which is which is not known
        for index, (which, begin_ns, dur_ns) in enumerate(spans):
            recorded = activity.collectives[which]
            record = Record(name=recorded.name, dtype=recorded.dtype, elements=recorded.elements)
            of_span = _call(Records(names=[record.name], record=record), trace.info.world_size, name=record.name)
            if not alike:
                calls.append(msgspec.structs.replace(of_span, assumed=(), asked_ns=begin_ns))
            at = alike[index] if alike else len(calls) - 1
            known = calls[at] if calls[at].collective is not None else of_span
            calls[at] = msgspec.structs.replace(
                calls[at],
                names=tuple(dict.fromkeys((*calls[at].names, record.name))),
                collective=known.collective,
                lacks=known.lacks,
                assumed=known.assumed,
                device_us=dur_ns / 1e3,
                kernels=((record.name, dur_ns / 1e3),),
                ended_ns=begin_ns + dur_ns,
            )
    return calls


def same_work(collective: Collective) -> Collective:
    """Return the collective without the fields that do not affect its cost: the identity of the group, and the rank
    that recorded it.
    """
    return msgspec.structs.replace(collective, group="", rank=None)
