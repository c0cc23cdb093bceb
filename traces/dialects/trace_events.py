# pyright: strict
"""Build a linked `Trace` from Kineto trace events of any vendor.

This module calls the stages of that work in order. torch_npu sometimes records a launch as an op; the kernels launched
by it are then assigned to the op around it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from opreplay.traces.activity.collect import activity_of
from opreplay.traces.arrays import Array, Ints
from opreplay.traces.dialects.dialect import Dialect, Want
from opreplay.traces.dialects.kineto import ERAS, era_of, metadata_level, run_facts
from opreplay.traces.links.annotations import AnnotationTable
from opreplay.traces.links.autograd import recorded_by_autograd
from opreplay.traces.links.device_time import LinkInput, graph_launches, link, shared_ids
from opreplay.traces.links.parents import innermost_of, innermost_parent, of_rows
from opreplay.traces.losses import unknown_type_losses
from opreplay.traces.model import (
    KERNEL_CATEGORIES,
    Collided,
    GraphJoin,
    GraphLaunches,
    KernelTable,
    LinkStats,
    MergedProcesses,
    OpSignature,
    OpTable,
    ReadReport,
    RuntimeCalls,
    Trace,
    TraceInfo,
)
from opreplay.traces.processes.copies import drop_copies
from opreplay.traces.processes.ids import count_uncertain, needs_arrows, separate_processes
from opreplay.traces.reading import fields
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.columns import smallest
from opreplay.traces.reading.scan import BLOCK_BYTES, Scanned, scan
from opreplay.traces.reading.signatures import decode_name, decode_signatures
from opreplay.traces.reading.source import Source
from opreplay.traces.times.placed import misplaced

_NOT_AN_OP = ("autograd::", "torch::")


def owners_above_launches(owner: Ints, ops: OpTable, signatures: Sequence[OpSignature]) -> Ints:
    """Replace each owner that is a CANN launch ("aclnnMm", "Conv2D") with the enclosing torch op, if there is one.

    The reason is that torch_npu records the call into CANN inside `aten::mm` as another op, which has no shapes and
    cannot be replayed.
    """
    if not (owner >= 0).any():
        return owner
    is_op = np.array(["::" in s.name and not s.name.startswith(_NOT_AN_OP) for s in signatures], bool)[ops.signature]
    above = of_rows(owner, innermost_of(innermost_parent(ops), is_op))
    return np.where(above >= 0, above, owner)


TASK = KERNEL_CATEGORIES.index("task")


def _read(source: Source, want: Want) -> Trace:
    # Arrows are a tenth of many traces and hardly ever needed. Where the first kernels do without and a later one
    # does not, the file is read a second time.
    scanned = _scan(source, want, arrows=not os.path.isfile(source.path))
    if scanned.collector.wants_arrows or needs_arrows(scanned.collector):
        with Source(source.path, source.limits) as again:
            scanned = _scan(again, want, arrows=True)
    return _assemble(source.path, scanned)


def _scan(source: Source, want: Want, *, arrows: bool) -> Scanned:
    """Return the events of the file without duplicates."""
    scanned = _scan_all(source, want, arrows=arrows)
    scanned.tally.losses.update(drop_copies(scanned.collector))
    return scanned


def _scan_all(source: Source, want: Want, *, arrows: bool) -> Scanned:
    block_bytes = want.block_bytes or BLOCK_BYTES
    if want.processes > 1 and want.columns <= {"numbers"}:
        from opreplay.traces.reading.parallel import scan_parallel

        parts = scan_parallel(
            source.path,
            source.limits,
            want.processes,
            block_bytes=block_bytes,
            progress=want.progress,
            columns=want.columns,
            arrows=arrows,
        )
        if parts is not None:
            return parts
    once = not os.path.isfile(source.path)
    read = partial(scan, block_bytes=block_bytes, progress=want.progress, columns=want.columns, arrows=arrows)
    scanned = read(source, source.limits, keep_pairs=once)
    if scanned.pairs_unsorted:
        with Source(source.path, source.limits) as again:
            return read(again, source.limits, keep_pairs=True)
    if want.progress:
        want.progress(source.progress_bytes, source.total)
    return scanned


TRACE_EVENTS = Dialect("kineto", sniff=lambda opening: True, read=_read)


def _assemble(path: str, scanned: Scanned) -> Trace:
    """Build the linked trace from the tables of one scan."""
    got, tally = scanned.collector, scanned.tally
    merged = separate_processes(got)
    got.settle_arrows()
    _count_losses(got, tally.losses)
    signatures, remap = decode_signatures(list(got.signatures), tally.losses, tally.repairs)
    tracks, track_remap = _ordered_tracks(list(got.tracks.texts))
    if merged is not None:
        merged = msgspec.structs.replace(merged, of_track=_of_ordered(merged.of_track, track_remap))
    ext = got.ops.take("ext")
    ops = _ops(got, signatures, remap, track_remap)
    launches = {name: got.launches.take(name) for name in got.launches.kinds}
    launches["track"] = _take(track_remap, launches["track"])
    tally.losses.update(unknown_type_losses(signatures, ops.signature))
    kernels, stats, graphs, columns = _kernels(got, ops, ext, track_remap, launches, tally.losses)
    task_rows = int((kernels.category == TASK).sum())
    del ext
    level = metadata_level(signatures)
    ascend = bool(task_rows) or "task type" in scanned.features
    if ascend:
        kernels = msgspec.structs.replace(kernels, owner=owners_above_launches(kernels.owner, ops, signatures))
    facts = run_facts(scanned.keys, scanned.features, has_kernels=len(kernels) > 0, ascend=ascend)
    categories = dict(sorted(got.by_category.items(), key=lambda item: (-item[1], item[0])))
    merged = merged and count_uncertain(merged, kernels)
    era = None if ascend else era_of(scanned.features, scanned.keys, op_category=_op_category(categories), level=level)
    notes = _notes(got, tally.repairs, track_remap)
    kernel_names = _names(got.kernel_names, tally.repairs)
    dialect: Literal["kineto", "ascend"] = "ascend" if ascend else "kineto"
    info = TraceInfo(
        path=path,
        dialect=dialect,
        bytes_read=scanned.bytes_read,
        events=got.events,
        events_by_category=categories,
        metadata_level=level,
        era=era,
        torch_version=facts.torch_version or (ERAS[era] if era else None),
        device_names=facts.device_names,
        vendor=facts.vendor,
        world_size=facts.world_size,
        rank=facts.rank,
        backend=facts.backend,
        base_ns=facts.base_ns,
        process_groups=facts.process_groups,
        report=ReadReport(losses=_nonzero(tally.losses), repairs=_nonzero(tally.repairs)),
        links=stats,
        graphs=_ran_in_graphs(graphs, kernels),
        collided=_collided(stats, merged, tracks),
        merged=merged,
    )
    return Trace(
        info=info,
        signatures=signatures,
        ops=ops,
        tracks=tracks,
        kernel_names=kernel_names,
        kernels=kernels,
        annotations=notes,
        graphs=graphs,
        calls=_calls(got, launches, tally.repairs) if "kernel" in launches else None,
        activity=activity_of(got, columns, track_remap, notes) if got.timed else None,
    )


def _collided(stats: LinkStats, merged: MergedProcesses | None, tracks: tuple[tuple[str, str], ...]) -> Collided:
    """Return the device work whose owner is uncertain, and the processes or threads that share an id."""
    of_threads = Collided(
        events=stats.repeated_ids,
        device_us=stats.repeated_ids_device_ns / 1e3,
        ids=stats.repeated_examples,
        of=tuple(f"process {pid}, thread {tid}" for pid, tid in (tracks[index] for index in stats.repeated_tracks)),
        same_thread=bool(stats.repeated_ids),
    )
    if merged is None or not merged.uncertain_events:
        return of_threads
    return Collided(
        events=of_threads.events + merged.uncertain_events,
        device_us=of_threads.device_us + merged.uncertain_us,
        ids=merged.uncertain_ids,
        of=merged.uncertain_of,
    )


def _count_losses(got: Collector, losses: Counter[str]) -> None:
    """Count unreadable times and durations, and inexact times, as losses."""
    for name, table in got.tables.items():
        losses[f"event without a readable time ({name})"] += table.dropped
        losses[f"unreadable duration ({name})"] += table.zeroed
        losses["times not exact to the nanosecond"] += table.inexact


def _ops(got: Collector, signatures: tuple[OpSignature, ...], remap: Any, track_remap: Any) -> OpTable:
    ops = OpTable(
        signature=remap[got.ops.take("signature")] if len(remap) else np.empty(0, np.uint32),
        start_ns=got.ops.take("start"),
        dur_ns=got.ops.take("dur"),
        track=_take(track_remap, got.ops.take("track")),
    )
    if "seq" not in got.ops.kinds:
        return ops
    sequence = got.ops.take("seq").astype(np.int64)
    gradients = recorded_by_autograd(ops, sequence, signatures)
    return msgspec.structs.replace(
        ops,
        record_function_id=got.ops.take("rf").astype(np.int64),
        sequence=sequence,
        gradients=gradients.recorded,
        gradients_assumed=gradients.assumed,
    )


def _ran_in_graphs(graphs: GraphLaunches | None, kernels: KernelTable) -> GraphJoin | None:
    if graphs is None:
        return None
    device_ns = int(kernels.dur_ns[graphs.kernels].astype(np.int64).sum())
    return GraphJoin(launches=len(graphs), kernels=len(graphs.kernels), device_us=device_ns / 1000)


def _calls(got: Collector, launches: dict[str, Any], repairs: Counter[str]) -> RuntimeCalls:
    return RuntimeCalls(
        names=_names(got.call_names, repairs),
        name=launches["name"],
        kernel=launches["kernel"],
        grid=launches["grid"].astype(np.int64),
        start_ns=launches["start"],
        track=launches["track"],
    )


def _ordered_tracks(texts: list[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], Any]:
    """Return (sorted tracks, new index by old index).

    Tracks are sorted because their original order depends on how the file was cut into blocks.
    """
    order = sorted(range(len(texts)), key=lambda i: [(len(text), text) for text in texts[i]])
    remap = np.empty(len(texts), np.uint16 if len(texts) <= 1 << 16 else np.uint32)
    remap[order] = np.arange(len(texts))
    return tuple(texts[i] for i in order), remap


def _of_ordered(of_track: tuple[int, ...], track_remap: Any) -> tuple[int, ...]:
    """Return per-track values in the new order of the tracks; -1 for tracks that were added later."""
    out = [-1] * len(track_remap)
    for old, value in enumerate(of_track):
        out[int(track_remap[old])] = value
    return tuple(out)


def _take(remap: Any, indexes: Any) -> Any:
    return remap[indexes] if len(indexes) else indexes


def _kernels(
    got: Collector, ops: OpTable, ext: Any, track_remap: Any, launches: dict[str, Any], losses: Counter[str]
) -> tuple[KernelTable, LinkStats, GraphLaunches | None, dict[str, Any]]:
    table = {name: got.kernels.take(name) for name in got.kernels.kinds}
    if got.by_category[fields.MTIA_CATEGORY]:
        table = _mtia_work(table, list(got.kernel_names))
    table = _placed_work(table, ops, launches, losses)
    ids = shared_ids(table["corr"], launches["corr"], launches["starts"])
    shared = np.isin(table["corr"], ids)
    if len(ids):
        table["corr"], launch_corr = (
            np.where(np.isin(column, ids), -1, column.astype(np.int64)) for column in (table["corr"], launches["corr"])
        )
    else:
        launch_corr = launches["corr"]
    start, dur, track = table["start"], table["dur"], _take(track_remap, table["track"])
    columns = LinkInput(
        op_start=ops.start_ns,
        op_dur=ops.dur_ns,
        op_track=ops.track,
        op_ext=ext,
        kernel_start=start,
        kernel_dur=dur,
        kernel_track=track,
        kernel_ext=table["ext"],
        kernel_corr=table["corr"],
        launch_start=launches["start"],
        launch_track=launches["track"],
        launch_corr=launch_corr,
        launch_kinds=launches["starts"],
        flow_start=got.flows.take("start"),
        flow_track=_take(track_remap, got.flows.take("track")),
        flow_id=got.flows.take("id"),
        flow_is_end=got.flows.take("end"),
    )
    owner, stats = link(columns)
    stats = msgspec.structs.replace(stats, shared_ids=int(shared.sum()))
    category = table["category"].astype(np.uint8)
    kernels = KernelTable(
        name=table["name"].astype(np.uint32),
        category=category,
        start_ns=start,
        dur_ns=dur,
        device=_int32(table["device"]),
        stream=_int32(table["stream"]),
        owner=owner,
        grid=_grids(table, launches) if "grid" in table else None,
    )
    return kernels, stats, graph_launches(columns, category), table


def _grids(table: dict[str, Array], launches: dict[str, Array]) -> Array:
    """Return the grid of each kernel: the kernel's own (CUDA), or that of the runtime call with the same correlation id
    (ROCm).
    """
    own, wanted, ids = (column.astype(np.int64) for column in (table["grid"], table["corr"], launches["corr"]))
    if not len(ids):
        return own
    order = np.argsort(ids, kind="stable")
    launch = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    return np.where((own < 0) & (wanted >= 0) & (ids[launch] == wanted), launches["grid"][launch], own)


def _placed_work(table: dict[str, Any], ops: OpTable, launches: dict[str, Any], losses: Counter[str]) -> dict[str, Any]:
    """Remove device rows that have no time, or a time far from everything recorded on the host."""
    host_start = np.concatenate([ops.start_ns, launches["start"]])
    host_end = np.concatenate([ops.start_ns + ops.dur_ns, launches["start"]])
    found = misplaced(table["start"], table["dur"], host_start, host_end)
    for reason, rows in found.items():
        losses[reason] += int(rows.sum())
    if not found:
        return table
    kept = ~np.logical_or.reduce(list(found.values()))
    return {name: column[kept] for name, column in table.items()}


def _mtia_work(table: dict[str, Any], names: list[bytes]) -> dict[str, Any]:
    """Remove waits and markers from the device rows, and set the category of data movement to memcpy."""
    waits = np.array([name.startswith(fields.MTIA_WAITS) for name in names], dtype=bool)
    copies = np.array([name.startswith(fields.MTIA_COPIES) for name in names], dtype=bool)
    is_work = ~waits[table["name"]]
    work = {name: column[is_work] for name, column in table.items()}
    moved = np.where(copies[work["name"]], KERNEL_CATEGORIES.index("memcpy"), work["category"])
    return work | {"category": moved}


def _int32(array: Any) -> Any:
    """Convert device and stream numbers; numbers that do not fit (an NPU's process ids used as devices) wrap around."""
    return smallest(array, (np.int32,)).astype(np.int32)


def _notes(got: Collector, repairs: Counter[str], track_remap: Any) -> AnnotationTable:
    table = got.notes
    names = _names(got.note_names, repairs)
    track = _take(track_remap, table.take("track"))
    return AnnotationTable(names, table.take("name"), table.take("start"), table.take("dur"), track)


def _names(interned: dict[bytes, int], repairs: Counter[str]) -> tuple[str, ...]:
    out: list[str] = []
    for raw in interned:
        name, repaired = decode_name(raw)
        repairs["invalid UTF-8"] += repaired
        out.append(name)
    return tuple(out)


def _op_category(categories: dict[str, int]) -> str:
    return "Operator" if "Operator" in categories and "cpu_op" not in categories else "cpu_op"


def _nonzero(counts: Counter[str]) -> dict[str, int]:
    return {reason: n for reason, n in counts.items() if n}
