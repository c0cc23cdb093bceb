# pyright: strict
"""The collectives that a trace records, one value a call, whatever names them: ops, `record_param_comms`, annotations.

Owns which records belong to one call; what they tell together is `told`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from opreplay.replay.collectives.model import Collective, Kind
from opreplay.replay.collectives.names import kind_of
from opreplay.replay.ir.labels import is_collective
from opreplay.replay.plan.collectives.back_ends import Notes, mark
from opreplay.replay.plan.collectives.ranks import ranks_of
from opreplay.replay.plan.collectives.tensors import tensors_of
from opreplay.replay.plan.collectives.told import (
    PARAMETERS,
    Told,
    elements_told,
    integers_before,
    kind_told,
    list_of,
    made_of,
)
from opreplay.traces.activity import Collective as Record
from opreplay.traces.activity.model import CollectiveNote, ListedCollective
from opreplay.traces.dialects.param_comms import CommsTrace
from opreplay.traces.links.marks import Asked, marks_of
from opreplay.traces.links.parents import depths, innermost_of, of_rows, outermost_of, parents_of
from opreplay.traces.model import OpSignature, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded collective."""

    name: str
    """Of the outermost op that is part of it, of its annotation where there is no op."""
    names: tuple[str, ...]
    """Of all that is part of it."""
    rows: tuple[int, ...]
    """Of `Trace.ops`, outermost first; () for one that is no op."""
    collective: Collective | None
    lacks: str = ""
    """What the trace does not say of it, where `collective` is None."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted."""
    host_us: float = 0.0
    device_us: float = 0.0
    kernels: tuple[tuple[str, float], ...] = ()
    """Name and microseconds of the device work that it owns."""
    asked_ns: int = -1
    """When it was asked for; -1 where the file does not tell."""
    ended_ns: int | None = None
    """When its device work ended, else what the back-end annotated on a thread of its own; None without either."""


def collective_calls(trace: Trace) -> list[Call]:
    """Every collective of a trace that was read with its activity, in file order; waits and set-up are left out.

    An op, the `record_param_comms` in it and the back-end's annotation of it, on whichever thread, are one call.
    """
    rows, inside = _rows(trace)
    notes, used = Notes(trace), set[int]()
    drafts = _drafts(trace, rows, inside, notes, used)
    calls = _annotated(drafts, notes, used, trace.info.world_size)
    calls += [(note.start_ns, _of_note(note, trace)) for index, note in enumerate(notes.all) if index not in used]
    calls.sort(key=lambda pair: pair[0])
    return _with_spans(trace, _with_named(trace, [call for _, call in calls]))


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A call before it is known what it is."""

    rows: list[int]
    begin_ns: int
    dur_ns: int
    told: Told
    owned: tuple[tuple[str, float], ...]
    ended_ns: int | None


def _drafts(trace: Trace, rows: list[int], inside: dict[int, int], notes: Notes, used: set[int]) -> list[_Draft]:
    """All calls with what their records and the annotations on their threads say; the latter are added to `used`."""
    kernels, ends = _kernels_of(trace, set(rows))
    made: list[_Draft] = []
    for group in _grouped(trace, rows, inside):
        told = Told()
        begin, dur = int(trace.ops.start_ns[group[0]]), int(trace.ops.dur_ns[group[0]])
        for row in group:
            signature = trace.signatures[int(trace.ops.signature[row])]
            record = _record_of(trace, row, signature)
            if record is not None and told.record is None:
                told.record = record
            told.signatures.append(signature)
            told.names.append(signature.name)
        if dur > 0:
            for index in notes.within(int(trace.ops.track[group[0]]), begin, begin + dur):
                used.add(index)
                told.notes.append(notes.all[index])
        owned = tuple(work for row in group for work in kernels.get(row, ()))
        told.kernels = [name for name, _ in owned]
        ended = max((ends[row] for row in group if row in ends), default=None)
        made.append(_Draft(rows=group, begin_ns=begin, dur_ns=dur, told=told, owned=owned, ended_ns=ended))
    return made


def _annotated(drafts: list[_Draft], notes: Notes, used: set[int], world_size: int | None) -> list[tuple[int, Call]]:
    """Begin and call of each draft that is one, with what other threads annotated, which is added to `used`."""
    alone = [draft for draft in drafts if not draft.told.notes and kind_told(draft.told) is not None]
    left = [index for index in range(len(notes.all)) if index not in used]
    waiting = [
        Asked(start_ns=draft.begin_ns, kind=kind, elements=elements_told(draft.told))
        for draft in alone
        if (kind := kind_told(draft.told)) is not None
    ]
    host_ns: dict[int, int] = {}
    for call, place in marks_of(waiting, [mark(notes.all[index]) for index in left]).items():
        draft, note = alone[call], notes.all[left[place]]
        used.add(left[place])
        draft.told.notes.append(note)
        host_ns[draft.rows[0]] = note.dur_ns  # the op only hands it over
        draft.ended_ns = draft.ended_ns or note.start_ns + note.dur_ns
    calls: list[tuple[int, Call]] = []
    for draft in drafts:
        group, told = draft.rows, draft.told
        made, lacks, assumed = made_of(told, world_size)
        if made is None and (not lacks or (len(group) == 1 and not draft.owned and not tensors_of(told.signatures[0]))):
            continue  # a wait, or the set-up of a communicator
        call = Call(
            name=told.names[0],
            names=tuple(dict.fromkeys([*told.names, *(note.name for note in told.notes)])),
            rows=tuple(group),
            collective=made,
            lacks=lacks,
            assumed=assumed,
            host_us=host_ns.get(group[0], max([draft.dur_ns, *(note.dur_ns for note in told.notes)])) / 1e3,
            device_us=sum(us for _, us in draft.owned),
            kernels=draft.owned,
            asked_ns=draft.begin_ns,
            ended_ns=draft.ended_ns,
        )
        calls.append((draft.begin_ns, call))
    return calls


def _rows(trace: Trace) -> tuple[list[int], dict[int, int]]:
    """Rows of ops that are collectives, in file order; and of each the nearest one around it, -1 for none."""
    marked = np.array([is_collective(one) or one.name == PARAMETERS for one in trace.signatures], dtype=bool)
    if not len(trace.ops) or not marked.any():
        return [], {}
    of_row = marked[trace.ops.signature]
    parents = parents_of(trace)
    rows = np.flatnonzero(of_row)
    around = of_rows(parents, innermost_of(parents, of_row))[rows]
    return rows.tolist(), dict(zip(rows.tolist(), around.tolist(), strict=True))


def _grouped(trace: Trace, rows: list[int], inside: dict[int, int]) -> list[list[int]]:
    """Rows of each call, outermost first. A call that holds several with parameters of their own is several."""
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
        told = [row for row in deep if _is_parameters(trace, row)]
        several = [row for row in told if (found := _record_of_row(trace, row)) and kind_of(found.name) is not None]
        if len(several) < 2:
            waits = set(told) - set(several) if several else set[int]()
            groups.append([row for row in deep if row not in waits or row == root])
            continue
        for row in several:
            around = inside[row]
            chain = [row] if around < 0 or (around == root and len(several) > 1 and root in told) else [around, row]
            groups.append(chain)
    return groups


def _is_parameters(trace: Trace, row: int) -> bool:
    return trace.signatures[int(trace.ops.signature[row])].name == PARAMETERS


def _record_of_row(trace: Trace, row: int) -> Record | None:
    return _record_of(trace, row, trace.signatures[int(trace.ops.signature[row])])


def _record_of(trace: Trace, row: int, signature: OpSignature) -> Record | None:
    """What a row says of a collective: its own metadata, or of an ExecutionTrace the arguments that spell it."""
    found = trace.activity
    if found is not None and found.op_collective[row] >= 0:
        return found.collectives[int(found.op_collective[row])]
    if signature.name != PARAMETERS or not signature.concrete:
        return None
    # (tensors, sequence number, group, rank, name, in splits, out splits[, first rank, stride, ranks])
    texts = [i for i, text in enumerate(signature.concrete) if text and text.replace("_", "").isalpha()]
    at = next((i for i in texts if signature.types and not signature.types[i]), None)
    if at is None:
        return None
    numbers = integers_before(signature, at)
    lists = [list_of(text) for text in signature.concrete[at + 1 : at + 3]]
    return Record(
        name=signature.concrete[at],
        in_split=lists[0] if lists else None,
        out_split=lists[1] if len(lists) > 1 else None,
        group_size=ranks_of(signature, None),
        rank=numbers[-1] if numbers and numbers[-1] >= 0 else None,
    )


def _kernels_of(trace: Trace, rows: set[int]) -> tuple[dict[int, list[tuple[str, float]]], dict[int, int]]:
    """Name and time of the device work of each op, and when the last of it ended."""
    found: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    ends: dict[int, int] = {}
    owned = np.flatnonzero(np.isin(trace.kernels.owner, list(rows))) if rows else np.zeros(0, np.int64)
    for kernel in owned.tolist():
        name = trace.kernel_names[int(trace.kernels.name[kernel])]
        row, end = int(trace.kernels.owner[kernel]), int(trace.kernels.start_ns[kernel] + trace.kernels.dur_ns[kernel])
        found[row].append((name, float(trace.kernels.dur_ns[kernel]) / 1e3))
        ends[row] = max(ends.get(row, end), end)
    return found, ends


def _of_note(note: CollectiveNote, trace: Trace) -> Call:
    call = _call(Told(names=[note.name], notes=[note]), trace.info.world_size, name=note.name)
    end_ns = note.start_ns + note.dur_ns
    return replace(call, host_us=note.dur_ns / 1e3, asked_ns=note.start_ns, ended_ns=end_ns)


def _with_named(trace: Trace, calls: list[Call]) -> list[Call]:
    """With the collectives that a Chakra file tells by type and size, where its tensors do not tell them."""
    if not trace.collectives:
        return calls
    known = {row for call in calls if call.collective is not None for row in call.rows}
    named = [one for one in trace.collectives if one.row not in known]
    replaced = {one.row for one in named if one.row >= 0}
    by_row = {one.row: one for one in trace.collectives if one.row >= 0}
    kept = [_completed_by(call, by_row) for call in calls if not replaced.intersection(call.rows)]
    return [*kept, *(_of_listed(one, trace.info.world_size) for one in named)]


def _completed_by(call: Call, listed: Mapping[int, ListedCollective]) -> Call:
    """With the group and both ends, which tensors do not tell."""
    record, one = next((listed[row].record for row in call.rows if row in listed), None), call.collective
    if record is None or one is None or record.name != one.kind:
        return call
    completed = msgspec.structs.replace(
        one,
        group=one.group or record.group or "",
        group_size=record.group_size or one.group_size,
        source=record.source if one.source is None else one.source,
        target=record.target if one.target is None else one.target,
    )
    assumed = tuple(text for text in call.assumed if record.group_size is None or not text.startswith("group:"))
    return replace(call, collective=completed, assumed=assumed)


def _of_listed(one: ListedCollective, world_size: int | None) -> Call:
    record, name = one.record, one.name or one.record.name
    call = _call(Told(names=[record.name], record=record), world_size, name=name)
    return replace(
        call,
        names=tuple(dict.fromkeys((name, record.name))),
        rows=(one.row,) if one.row >= 0 else (),
        assumed=(*call.assumed, f"dtype: {record.dtype} (the file tells bytes)") if one.of_bytes else call.assumed,
        host_us=0.0 if one.on_device else one.dur_us,
        device_us=one.dur_us if one.on_device else 0.0,
        kernels=((one.name, one.dur_us),) if one.on_device else (),
    )


def _call(told: Told, world_size: int | None, *, name: str) -> Call:
    """What records tell of a call that is no op."""
    collective, lacks, assumed = made_of(told, world_size)
    return Call(name=name, names=(name,), rows=(), collective=collective, lacks=lacks, assumed=assumed)


def calls_of_comms(comms: CommsTrace) -> list[Call]:
    """The collectives of PARAM's list, in its order."""
    calls = (_of_listed(entry, comms.world_size) for entry in comms.entries)
    return [call for call in calls if call.collective is not None or call.lacks]


def _with_spans(trace: Trace, calls: list[Call]) -> list[Call]:
    """Calls of an NPU's trace with the sizes that its device tasks tell, in order, where both are of one number."""
    activity = trace.activity
    if activity is None or not len(activity.spans):
        return calls
    by_kind: defaultdict[Kind, list[tuple[int, int, int]]] = defaultdict(list)
    for row in np.argsort(activity.spans.start_ns, kind="stable").tolist():
        told = activity.collectives[int(activity.spans.collective[row])]
        if (kind := kind_of(told.name)) is not None:
            begin, dur = int(activity.spans.start_ns[row]), int(activity.spans.dur_ns[row])
            by_kind[kind].append((int(activity.spans.collective[row]), begin, dur))
    for kind, spans in by_kind.items():
        alike = [i for i, call in enumerate(calls) if any(kind_of(name) == kind for name in call.names)]
        if alike and len(alike) != len(spans):
            continue  # which is which is not known
        for index, (which, begin_ns, dur_ns) in enumerate(spans):
            told = activity.collectives[which]
            record = Record(name=told.name, dtype=told.dtype, elements=told.elements)
            of_span = _call(Told(names=[told.name], record=record), trace.info.world_size, name=told.name)
            if not alike:
                calls.append(replace(of_span, assumed=(), asked_ns=begin_ns))
            at = alike[index] if alike else len(calls) - 1
            known = calls[at] if calls[at].collective is not None else of_span
            calls[at] = replace(
                calls[at],
                names=tuple(dict.fromkeys((*calls[at].names, told.name))),
                collective=known.collective,
                lacks=known.lacks,
                assumed=known.assumed,
                device_us=dur_ns / 1e3,
                kernels=((told.name, dur_ns / 1e3),),
                ended_ns=begin_ns + dur_ns,
            )
    return calls


def same_work(one: Collective) -> Collective:
    """The collective without what does not change its work: which group of this size, and who recorded it."""
    return msgspec.structs.replace(one, group="", rank=None)
