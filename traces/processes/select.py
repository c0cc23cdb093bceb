# pyright: strict
"""Extract one process of a merged trace as its own trace."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from opreplay.traces.activity.model import Activity
from opreplay.traces.arrays import Array
from opreplay.traces.errors import UsageError
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.model import GraphLaunches, KernelTable, LinkStats, MergedProcesses, OpSignature, OpTable, Trace

Table = TypeVar("Table")


def of_process(trace: Trace, name: str) -> Trace:
    """Return the part of a trace that one process recorded.

    `name` is the name of the process in the output of `inspect`, or part of that name. Raises UsageError if no process
    or several match it, and for a trace of one process.
    """
    return _part(trace, _number_of(trace, name))


def split_processes(trace: Trace) -> list[tuple[str, Trace]]:
    """Return (name, part of the trace) of each process of a merged trace; [] for a trace of one process."""
    merged = trace.info.merged
    processes = () if merged is None else merged.processes
    return [(process.name, _part(trace, index)) for index, process in enumerate(processes)]


def one_process(trace: Trace) -> Trace:
    """Return the part of a merged trace that its busiest process recorded, for callers that need steps of one program.
    A trace of one process is returned unchanged.
    """
    merged = trace.info.merged
    return trace if merged is None else of_process(trace, busiest_process(merged))


def busiest_process(merged: MergedProcesses) -> str:
    """Return the name of the process with the most device time or, if none has any, with the most ops."""
    return max(merged.processes, key=lambda process: (process.device_us, process.ops)).name


def _number_of(trace: Trace, name: str) -> int:
    merged = trace.info.merged
    if merged is None:
        raise UsageError(f"{trace.info.path} contains only one process", hint="Remove --process.")
    names = [process.name for process in merged.processes]
    exact = [index for index, known in enumerate(names) if known == name]
    found = exact or [index for index, known in enumerate(names) if name in known]
    if len(found) == 1:
        return found[0]
    problem = f"fits {len(found)} processes of" if found else "is not a process of"
    raise UsageError(f"{name!r} {problem} {trace.info.path}", hint=f"Its processes are: {', '.join(names)[:400]}.")


def _part(trace: Trace, number: int) -> Trace:
    merged = trace.info.merged
    assert merged is not None
    of_track = np.array(merged.of_track, np.int64)
    tracks = np.flatnonzero(of_track == number)
    new_track = np.full(len(of_track), -1, np.int64)
    new_track[tracks] = np.arange(len(tracks))
    op_rows = np.flatnonzero(of_track[trace.ops.track] == number)
    mine = [device for device, process in merged.of_device.items() if process == number]
    kernel_rows = np.flatnonzero(np.isin(trace.kernels.device, mine))
    new_op = _renumbered(op_rows, len(trace.ops))
    new_kernel = _renumbered(kernel_rows, len(trace.kernels))
    ops, signatures = _ops(trace, op_rows, new_op, new_track)
    kernels = _rows(trace.kernels, kernel_rows)
    owner = kernels.owner.astype(np.int64)
    kernels = msgspec.structs.replace(kernels, owner=np.where(owner >= 0, new_op[owner], -1) if len(new_op) else owner)
    notes = AnnotationTable.of(trace.annotations)
    kept = np.flatnonzero(new_track[notes.track] >= 0) if len(notes) else np.empty(0, np.int64)
    annotations = AnnotationTable(
        notes.names, notes.name[kept], notes.start_ns[kept], notes.dur_ns[kept], new_track[notes.track[kept]]
    )
    calls = trace.calls
    if calls is not None:
        rows = np.flatnonzero(new_track[calls.track] >= 0)
        calls = msgspec.structs.replace(
            calls,
            name=calls.name[rows],
            kernel=calls.kernel[rows],
            grid=calls.grid[rows],
            start_ns=calls.start_ns[rows],
            track=new_track[calls.track[rows]],
        )
    return msgspec.structs.replace(
        trace,
        info=msgspec.structs.replace(
            trace.info,
            merged=None,
            rank=None,
            process=merged.processes[number].name,
            processes=len(merged.processes),
            links=_links(kernels, trace.info.links),
        ),
        signatures=signatures,
        ops=ops,
        tracks=tuple(trace.tracks[int(track)] for track in tracks),
        kernels=kernels,
        annotations=annotations,
        graphs=_graphs(trace.graphs, new_kernel, new_track),
        calls=calls,
        activity=trace.activity and _activity(trace.activity, op_rows, kernel_rows, new_track),
    )


def _links(kernels: KernelTable, of_file: LinkStats) -> LinkStats:
    """Return the link statistics of one process: its own unowned work, and the clock statistics of the whole file.

    All other statistics exist only for the file and are left out.
    """
    unowned = kernels.owner < 0
    return LinkStats(
        unowned=int(unowned.sum()),
        unowned_device_ns=int(kernels.dur_ns[unowned].astype(np.int64).sum()),
        displaced=of_file.displaced,
        shared_ids=of_file.shared_ids,
        displaced_device_ns=of_file.displaced_device_ns,
        displaced_by_ns=of_file.displaced_by_ns,
        launched=of_file.launched,
        before_launch=of_file.before_launch,
        before_launch_ns=of_file.before_launch_ns,
        clocks_apart_ns=of_file.clocks_apart_ns,
    )


def _renumbered(rows: Array, count: int) -> Array:
    """Return the new index of each old row, -1 for dropped rows."""
    out = np.full(count, -1, np.int64)
    out[rows] = np.arange(len(rows))
    return out


def _rows(table: Table, rows: Array) -> Table:
    """Return a table with only these rows."""
    columns = {name: getattr(table, name) for name in cast("Any", table).__struct_fields__}
    return type(table)(**{name: None if column is None else column[rows] for name, column in columns.items()})


def _on_tracks(table: Table, column: str, new_track: Array) -> Table:
    """Return the rows of a table whose tracks are kept, with new track numbers."""
    track: Array = getattr(table, column)
    part = _rows(table, np.flatnonzero(new_track[track] >= 0) if len(track) else np.empty(0, np.int64))
    values: Array = getattr(part, column)
    return msgspec.structs.replace(cast("Any", part), **{column: new_track[values] if len(values) else values})


def _ops(trace: Trace, rows: Array, new_op: Array, new_track: Array) -> tuple[OpTable, tuple[OpSignature, ...]]:
    ops = trace.ops
    used, signature = np.unique(ops.signature[rows], return_inverse=True)

    def optional(column: Array | None) -> Array | None:
        return None if column is None else column[rows]

    parent = optional(ops.parent)
    part = OpTable(
        signature=signature.reshape(-1).astype(np.uint32),
        start_ns=ops.start_ns[rows],
        dur_ns=ops.dur_ns[rows],
        track=new_track[ops.track[rows]],
        parent=None if parent is None else np.where(parent >= 0, new_op[parent], -1),
        record_function_id=optional(ops.record_function_id),
        sequence=optional(ops.sequence),
        gradients=optional(ops.gradients),
        gradients_assumed=optional(ops.gradients_assumed),
        memories=None if ops.memories is None else ops.memories.of_calls(rows),
    )
    return part, tuple(trace.signatures[int(index)] for index in used)


def _graphs(graphs: GraphLaunches | None, new_kernel: Array, new_track: Array) -> GraphLaunches | None:
    if graphs is None:
        return None
    kept = np.flatnonzero(new_track[graphs.track] >= 0)
    if not len(kept):
        return None
    parts = [new_kernel[graphs.kernels[graphs.bounds[i] : graphs.bounds[i + 1]]] for i in kept.tolist()]
    return GraphLaunches(
        start_ns=graphs.start_ns[kept],
        track=new_track[graphs.track[kept]],
        kernels=np.concatenate(parts),
        bounds=np.concatenate([np.zeros(1, np.int64), np.cumsum([len(part) for part in parts])]),
    )


def _activity(activity: Activity, op_rows: Array, kernel_rows: Array, new_track: Array) -> Activity:
    calls = _on_tracks(activity.calls, "track", new_track)
    correlation = activity.correlation[kernel_rows]
    of_spans = np.flatnonzero(np.isin(activity.spans.correlation, correlation[correlation >= 0]))
    waits = np.flatnonzero(np.isin(activity.waits.correlation, calls.correlation))
    return msgspec.structs.replace(
        activity,
        calls=calls,
        correlation=correlation,
        collective=activity.collective[kernel_rows],
        op_collective=activity.op_collective[op_rows],
        spans=_rows(activity.spans, of_spans),
        waits=_rows(activity.waits, waits),
        arrows=_on_tracks(activity.arrows, "track", new_track),
        memory=_on_tracks(activity.memory, "track", new_track),
        notes=tuple(
            msgspec.structs.replace(note, track=int(new_track[note.track]))
            for note in activity.notes
            if new_track[note.track] >= 0
        ),
    )
