# pyright: strict
"""Make the ids of a merged file unique across its processes; other files are left unchanged."""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.model import KernelTable, MergedProcess, MergedProcesses
from opreplay.traces.processes.assign import Assignment, EventColumns, assign_processes, contested_ids
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.columns import distinct

_NAMESPACES: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("launches", "corr"),
        ("kernels", "corr"),
        ("kernels", "connection"),
        ("collectives", "connection"),
        ("calls", "corr"),
        ("waits", "corr"),
        ("waits", "record"),
        ("arrows", "id"),
    ),
    (("ops", "ext"), ("kernels", "ext")),
    (("flows", "id"),),
    (("ops", "seq"),),
    (("ops", "rf"),),
)
"""Groups of columns, each column given as (table, column). Only ids of the same group are compared."""


def separate_processes(got: Collector) -> MergedProcesses | None:
    """Make the ids of a scan unique across its processes, and return the processes; None for a file with one process.

    Device work whose process is uncertain loses each id that several processes share. No op then owns the work. A
    device number that several processes use is replaced by a different number for each of them.
    """
    columns = _columns_of(got)
    assigned = assign_processes(columns)
    if assigned is None:
        return None
    contested = contested_ids(columns, assigned)
    for namespace in _NAMESPACES:
        _separate(got, assigned, [pair for pair in namespace if _holds(got, *pair)])
    devices = _separate_devices(got, assigned)
    described = _described(got, assigned, devices)
    return msgspec.structs.replace(described, uncertain_ids=contested[0], uncertain_of=contested[1])


def count_uncertain(merged: MergedProcesses, kernels: KernelTable) -> MergedProcesses:
    """Return `merged` with the number and time of kernels that, after linking, belong to no process and no op."""
    unknown = [device for device, process in merged.of_device.items() if process < 0]
    rows = np.isin(kernels.device, unknown) & (kernels.owner < 0)
    time_us = float(kernels.dur_ns[rows].astype(np.int64).sum()) / 1e3
    return msgspec.structs.replace(merged, uncertain_events=int(rows.sum()), uncertain_us=time_us)


def needs_arrows(got: Collector) -> bool:
    """Check whether skipped flow events may show which process launched some device work."""
    if not got.arrows_skipped:
        return False
    assigned = assign_processes(_columns_of(got))
    return assigned is not None and bool((assigned.of_kernel < 0).any())


def _columns_of(got: Collector) -> EventColumns:
    arrows, flows, launches, kernels = got.arrows, got.flows, got.launches, got.kernels
    to_track = np.array([got.tracks.texts.get(place, -1) for place in got.arrow_tracks.texts], np.int64)
    track = arrows.peek("track")
    track = to_track[track] if len(track) else track
    known = track >= 0
    return EventColumns(
        tracks=tuple(got.tracks.texts),
        op_track=got.ops.peek("track"),
        op_ext=got.ops.peek("ext"),
        launch_track=launches.peek("track"),
        launch_start=launches.peek("start"),
        launch_corr=launches.peek("corr"),
        launch_kinds=launches.peek("starts"),
        kernel_track=kernels.peek("track"),
        kernel_device=kernels.peek("device"),
        kernel_start=kernels.peek("start"),
        kernel_ext=kernels.peek("ext"),
        kernel_corr=kernels.peek("corr"),
        arrow_track=np.concatenate([track[known], flows.peek("track")]).astype(np.int64),
        arrow_id=np.concatenate([arrows.peek("id")[known], flows.peek("id")]),
        arrow_is_end=np.concatenate([arrows.peek("end")[known], flows.peek("end")]),
    )


def _holds(got: Collector, table: str, column: str) -> bool:
    return table in got.tables and column in got.tables[table].kinds and len(got.tables[table]) > 0


def _process_of_rows(got: Collector, assigned: Assignment, table: str) -> Array:
    return assigned.of_kernel if table == "kernels" else assigned.of_track[got.tables[table].peek("track")]


def _separate(got: Collector, assigned: Assignment, columns: list[tuple[str, str]]) -> None:
    """Make ids that two processes use unique in these columns, by adding an offset per process."""
    if not columns:
        return None
    of_rows = [_process_of_rows(got, assigned, table) for table, _ in columns]
    ids = [got.tables[table].peek(column).astype(np.int64) for table, column in columns]
    process, known = np.concatenate(of_rows), np.concatenate(ids)
    valid = (process >= 0) & (known >= 0)
    pairs = distinct_pairs(process[valid], known[valid])
    if len(distinct(pairs[1])) == len(pairs[1]):
        # No two processes have one id. Work that either may have launched before the recording still has no owner.
        for table, column in columns:
            if table == "kernels":
                values = got.kernels.peek(column).astype(np.int64)
                got.kernels.put(column, np.where(assigned.of_kernel < 0, -1, values))
        return None
    stride = max(int(got.tables[table].peek(column).max(initial=0)) for table, column in columns) + 1
    if stride * len(assigned.names) >= 1 << 62:
        return _renumber(got, assigned, columns)
    for table, column in columns:
        process, ids_ = _process_of_rows(got, assigned, table), got.tables[table].peek(column).astype(np.int64)
        got.tables[table].put(column, np.where((process < 0) | (ids_ < 0), -1, ids_ + process * stride))
    return None


def _renumber(got: Collector, assigned: Assignment, columns: list[tuple[str, str]]) -> None:
    """Make ids that are too large for an offset unique like `_separate`, by numbering the (process, id) pairs."""
    parts = [
        (_process_of_rows(got, assigned, table), got.tables[table].peek(column).astype(np.int64))
        for table, column in columns
    ]
    pairs = np.stack([np.concatenate(part) for part in zip(*parts, strict=True)], axis=1)
    _, numbers = np.unique(pairs, axis=0, return_inverse=True)
    ends = np.cumsum([len(process) for process, _ in parts])
    split = np.split(numbers.reshape(-1), ends[:-1])
    for (table, column), (process, ids), new in zip(columns, parts, split, strict=True):
        got.tables[table].put(column, np.where((process < 0) | (ids < 0), -1, new))


def distinct_pairs(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the distinct pairs of two columns, sorted by the second column."""
    order = np.lexsort((first, second))
    first, second = first[order], second[order]
    new = np.append(True, (first[1:] != first[:-1]) | (second[1:] != second[:-1])) if len(first) else np.empty(0, bool)
    return first[new], second[new]


def _separate_devices(got: Collector, assigned: Assignment) -> dict[int, list[int]]:
    """Renumber devices if two processes use the same number; return process (-1 if unknown) → its device numbers."""
    numbers = got.kernels.peek("device").astype(np.int64)
    processes, devices = distinct_pairs(assigned.of_kernel, numbers)
    if len(distinct(devices)) < len(devices):
        order = np.lexsort((devices, np.where(processes < 0, len(assigned.names), processes)))
        new = np.empty(len(order), np.int64)
        new[order] = np.arange(len(order))
        table = {pair: int(new[i]) for i, pair in enumerate(zip(processes.tolist(), devices.tolist(), strict=True))}
        got.kernels.put("device", _looked_up(table, assigned.of_kernel, numbers))
        if _holds(got, "memory", "device"):
            memory = got.tables["memory"]
            process = _process_of_rows(got, assigned, "memory")
            memory.put("device", _looked_up(table, process, memory.peek("device").astype(np.int64)))
        devices = new
    out: dict[int, list[int]] = {}
    for process, device in zip(processes.tolist(), devices.tolist(), strict=True):
        out.setdefault(process, []).append(device)
    return out


def _looked_up(table: dict[tuple[int, int], int], process: Array, device: Array) -> Array:
    """Return the new number of each device; a device without an entry in `table` keeps its number."""
    pairs, which = np.unique(np.stack([process, device], axis=1), axis=0, return_inverse=True)
    values = [table.get((first, second), second) for first, second in pairs.tolist()]
    return np.array(values, np.int64)[which.reshape(-1)] if len(values) else device


def _described(got: Collector, assigned: Assignment, devices: dict[int, list[int]]) -> MergedProcesses:
    count = len(assigned.names)
    dur = got.kernels.peek("dur").astype(np.int64)
    known = assigned.of_kernel >= 0
    ops = np.bincount(assigned.of_track[got.ops.peek("track")], minlength=count) if len(got.ops) else [0] * count
    kernels = np.bincount(assigned.of_kernel[known], minlength=count)
    time_ns = np.bincount(assigned.of_kernel[known], weights=dur[known], minlength=count)
    members = [
        MergedProcess(
            name=name,
            ops=int(ops[index]),
            device_events=int(kernels[index]),
            device_us=float(time_ns[index]) / 1e3,
            devices=tuple(sorted(devices.get(index, ()))),
        )
        for index, name in enumerate(assigned.names)
    ]
    return MergedProcesses(
        processes=tuple(members),
        of_track=tuple(assigned.of_track.tolist()),
        of_device={device: process for process, numbers in devices.items() for device in numbers},
    )
