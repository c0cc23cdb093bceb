# pyright: strict
"""Find the op that owns each device event.

The External id of an event leads to its op directly. Without an External id, the correlation id or a flow arrow leads
to the launch, and the op around the launch owns the event. The input columns come from `collect`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.traces.arrays import Array, distinct
from opreplay.traces.links.parents import innermost_at
from opreplay.traces.model import GraphLaunches, LinkStats
from opreplay.traces.processes.certain import match_launches, mixed_tracks
from opreplay.traces.reading.columns import distinct as distinct_values
from opreplay.traces.reading.fields import GRAPH_CALL, KERNEL_CALL
from opreplay.traces.times.placed import FAR_NS

NONE = -1
_CHUNK = 1 << 20
_JITTER_NS = 1000
"""Largest disagreement in ns between host and device clocks that is ignored; every launch takes longer than that."""
_NOT_OF_CLOCKS_NS = 1_000_000
"""Time in ns. If only few kernels start this long before their launch, clock differences are not the cause."""
_FEW_EARLY = 0.1
"""Share of launched kernels that start early from which clock differences count as the cause."""
_NEVER = np.iinfo(np.int64).max
_SAMPLE = 1 << 12
"""Number of kernels that are examined first, in search of ids that many kernels share."""
_MANY_SHARING = 8
"""Number of kernels from which an id counts as shared. No file has so many profiler runs that each use the id once."""
_FEWEST_SHARING = 3
_EXAMPLES = 3
"""Maximum number of ids named in a message about colliding ids."""


class LinkInput(msgspec.Struct, kw_only=True):
    """Columns of ops, of kernels, of launches and of the ends of flow arrows; an absent id is -1."""

    op_start: Array
    op_dur: Array
    op_track: Array
    op_ext: Array
    kernel_start: Array
    kernel_dur: Array
    kernel_track: Array
    kernel_ext: Array
    kernel_corr: Array
    launch_start: Array
    launch_track: Array
    launch_corr: Array
    launch_kinds: Array
    """Kind of each launch, a value of `fields.call_kind`."""
    flow_start: Array
    flow_track: Array
    flow_id: Array
    flow_is_end: Array


def link(data: LinkInput) -> tuple[Array, LinkStats]:
    """Return (row of the op that owns each kernel, or -1; statistics of how the owners were found)."""
    n = len(data.kernel_ext)
    owner = np.full(n, NONE, np.int64)
    if not n:
        calls, without = _calls_without_work(data, data.kernel_corr)
        return owner, LinkStats(launches=calls, launches_without_work=without)
    ext = data.kernel_ext.astype(np.int64)
    corr = data.kernel_corr.astype(np.int64)
    both = (ext >= 0) & (corr >= 0)
    # In eras B and C of torch "External id" holds the correlation id; every link made by it would be wrong.
    is_correlation = bool(both.any()) and int((ext[both] == corr[both]).sum()) * 2 > int(both.sum())
    mixed = _mixed_tracks(data)
    launch, unsure = _launches(data, corr, mixed)
    early = _long_before_launch(data, launch)
    early_ns = int((_at(data.launch_start, launch) - data.kernel_start)[early].max(initial=0))
    launch[early], ext[early] = NONE, NONE
    if not is_correlation:
        when = np.where(launch >= 0, _at(data.launch_start, launch), data.kernel_start)
        owner = _by_key(data.op_ext, data.op_start, ext, when)
        unsure |= _drop_uncertain(data, owner, ext, when, launch >= 0, mixed)
    by_external = int((owner >= 0).sum())
    missing = np.flatnonzero((owner < 0) & (launch >= 0))
    missing = missing[~mixed[data.launch_track[launch[missing]]]]
    owner[missing] = _containing(data, data.launch_track[launch[missing]], data.launch_start[launch[missing]])
    by_containment = int((owner >= 0).sum()) - by_external
    missing = np.flatnonzero((owner < 0) & (launch < 0))
    by_flow = _by_flows(data, owner, missing)
    unowned = owner < 0
    lead = np.where(launch >= 0, _at(data.launch_start, launch) - data.kernel_start, 0)
    calls, without = _calls_without_work(data, corr)
    repeated, displaced = unowned & unsure & ~early, unowned & early
    earlier = _launched_before(data, corr, unowned & (launch < 0) & ~unsure & ~early, launch)
    return owner, LinkStats(
        by_external_id=by_external,
        by_containment=by_containment,
        by_flow=by_flow,
        unowned=int(unowned.sum()),
        unowned_device_ns=int(data.kernel_dur[unowned].astype(np.int64).sum()),
        repeated_ids=int(repeated.sum()),
        repeated_ids_device_ns=int(data.kernel_dur[repeated].astype(np.int64).sum()),
        repeated_examples=first_ids(np.where(corr >= 0, corr, data.kernel_ext)[repeated]),
        repeated_tracks=tuple(np.flatnonzero(mixed).tolist()) if repeated.any() else (),
        displaced=int(displaced.sum()),
        displaced_device_ns=int(data.kernel_dur[displaced].astype(np.int64).sum()),
        displaced_by_ns=early_ns,
        launched_before=int(earlier.sum()),
        launched_before_device_ns=int(data.kernel_dur[earlier].astype(np.int64).sum()),
        external_id_is_correlation=is_correlation,
        launched=int((launch >= 0).sum()),
        before_launch=int((lead > _JITTER_NS).sum()),
        before_launch_ns=int(lead.max(initial=0)),
        clocks_apart_ns=_minutes_apart(-lead[launch >= 0]),
        launches=calls,
        launches_without_work=without,
    )


def shared_ids(kernel_corr: Array, launch_corr: Array, launch_kinds: Array) -> Array:
    """Return the correlation ids that do not identify a launch because the writer gave each of them to many kernels.

    Such an id belongs to several calls that each launch one kernel, and to no graph launch. It must have more kernels
    than several profiler runs in one file could explain.
    """
    corr = kernel_corr.astype(np.int64)
    sample = corr[:: max(1, len(corr) // _SAMPLE)]
    sample = sample[sample >= 0]
    if len(sample) < _FEWEST_SHARING or 20 * len(distinct(sample)) > 19 * len(sample):
        return np.empty(0, np.int64)
    values, counts = np.unique(corr[corr >= 0], return_counts=True)
    many = (counts >= _MANY_SHARING) | ((counts >= _FEWEST_SHARING) & (2 * counts >= counts.sum()))
    calls = launch_corr.astype(np.int64)
    many &= np.isin(values, calls[launch_kinds == KERNEL_CALL]) & ~np.isin(values, calls[launch_kinds == GRAPH_CALL])
    return values[many]


def _minutes_apart(delay: Array) -> int:
    """Return the median time from launch to kernel in ns if it is longer than any queue can hold work, otherwise 0."""
    if not len(delay) or int(delay.max()) < FAR_NS:
        return 0
    median = int(np.partition(delay, len(delay) // 2)[len(delay) // 2])
    return median if median >= FAR_NS else 0


def _calls_without_work(data: LinkInput, corr: Array) -> tuple[int, int]:
    """Return how many calls launch kernels or graphs, and how many of these calls have no recorded device work.

    If there is no device work, every call counts as having none. If the device work has no correlation ids, return (0,
    0).
    """
    if len(corr) and not (corr >= 0).any():
        return 0, 0
    starts = data.launch_kinds
    calls = data.launch_corr[((starts == KERNEL_CALL) | (starts == GRAPH_CALL)) & (data.launch_corr >= 0)]
    return len(calls), int((~np.isin(calls, corr)).sum())


def _launched_before(data: LinkInput, corr: Array, unlaunched: Array, launch: Array) -> Array:
    """Return a mask of the kernels whose launch is missing because it happened before the recording began.

    These are, first, the kernels that start before everything recorded on the host. Second, they are kernels that start
    before the first launched kernel on their stream, if their id is lower than all ids of the thread that launched that
    kernel. This follows because a stream works in order and ids increase. The mask is empty if no kernel has a launch,
    because then the file does not link kernels to launches at all.
    """
    launched = np.flatnonzero(launch >= 0)
    if not len(launched) or not unlaunched.any():
        return np.zeros(len(unlaunched), bool)
    begin = min(int(column.min()) for column in (data.op_start, data.launch_start) if len(column))
    track = data.kernel_track.astype(np.int64)
    first, lowest = np.full(int(track.max()) + 1, -_NEVER), np.full(int(track.max()) + 1, _NEVER)
    order = launched[np.lexsort((data.kernel_start[launched], track[launched]))]
    heads = order[np.append(True, track[order][1:] != track[order][:-1])]
    first[track[heads]] = data.kernel_start[heads]
    ids = np.where(data.launch_corr >= 0, data.launch_corr.astype(np.int64), _NEVER)
    lowest_of_thread = np.full(int(data.launch_track.max()) + 1, _NEVER)
    np.minimum.at(lowest_of_thread, data.launch_track.astype(np.int64), ids)
    lowest[track[heads]] = lowest_of_thread[data.launch_track[launch[heads]]]
    in_order = (data.kernel_start < first[track]) & (corr >= 0) & (corr < lowest[track])
    return unlaunched & (in_order | (data.kernel_start < begin))


def first_ids(ids: Array) -> tuple[int, ...]:
    """Return the lowest distinct ids that are not negative, at most `_EXAMPLES`."""
    return tuple(distinct_values(ids[ids >= 0].astype(np.int64))[:_EXAMPLES].tolist())


def graph_launches(data: LinkInput, category: Array) -> GraphLaunches | None:
    """Return the calls named *GraphLaunch that launched several kernels; None if there are none."""
    corr = data.kernel_corr.astype(np.int64)
    known = corr[corr >= 0]
    values, counts = np.unique(known, return_counts=True)
    several = values[counts > 1]
    graphs = np.flatnonzero(data.launch_kinds == GRAPH_CALL)
    if not len(several) or not len(graphs):
        return None
    rows = np.flatnonzero(np.isin(corr, several))
    launch = _by_key(data.launch_corr[graphs], data.launch_start[graphs], corr[rows], data.kernel_start[rows])
    launch = np.where(launch >= 0, graphs[launch], NONE)
    order = np.lexsort((data.kernel_start[rows], launch))
    rows, launch = rows[order], launch[order]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    _, first, sizes = np.unique(launch, return_index=True, return_counts=True)
    real = np.add.reduceat((category[rows] == 0).astype(np.int64), first) if len(first) else sizes
    is_graph = (sizes > 1) & (real > 0)
    keep_row = np.repeat(is_graph, sizes)
    if not is_graph.any():
        return None
    calls = launch[first[is_graph]]
    order = np.argsort(data.launch_start[calls], kind="stable")
    parts = np.split(rows[keep_row], np.cumsum(sizes[is_graph])[:-1])
    return GraphLaunches(
        start_ns=data.launch_start[calls][order],
        track=data.launch_track[calls][order],
        kernels=np.concatenate([parts[int(i)] for i in order]),
        bounds=np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[is_graph][order])]),
    )


def _at(column: Array, rows: Array) -> Array:
    return column[np.maximum(rows, 0)] if len(column) else np.zeros(len(rows), np.int64)


def _long_before_launch(data: LinkInput, launch: Array) -> Array:
    """Return a mask of the kernels that ran milliseconds before their launch; empty if that applies to many kernels.

    The launch with such a kernel's id belongs to another process whose profile was merged into the file.
    """
    launched = launch >= 0
    early = launched & (_at(data.launch_start, launch) - data.kernel_start > _NOT_OF_CLOCKS_NS)
    return early & (int(early.sum()) < _FEW_EARLY * int(launched.sum()))


def _mixed_tracks(data: LinkInput) -> Array:
    """Return a mask of the threads that two processes share; on these, neither ids nor times identify an op."""
    tracks = 1 + max(int(column.max(initial=0)) for column in (data.op_track, data.launch_track))
    ids, start, track = data.launch_corr.astype(np.int64), data.launch_start, data.launch_track
    mixed = mixed_tracks(ids, start, track, tracks)
    if mixed.any():
        outer = _outer_calls(data)
        mixed = mixed_tracks(ids[outer], start[outer], track[outer], tracks)
    return mixed | mixed_tracks(data.op_ext.astype(np.int64), data.op_start, data.op_track, tracks)


def _outer_calls(data: LinkInput) -> Array:
    """Return a mask of the launches, without each driver call that lies inside a runtime call with the same id.

    Of two consecutive calls on a thread that share one kernel, the first is kept.
    """
    order = np.lexsort((data.launch_start, data.launch_track))
    ids, track = data.launch_corr[order].astype(np.int64), data.launch_track[order]
    inner = np.append(False, (ids[1:] == ids[:-1]) & (track[1:] == track[:-1]))
    values, counts = np.unique(data.kernel_corr.astype(np.int64), return_counts=True)
    inner &= ~np.isin(ids, values[counts > 1])
    out = np.ones(len(order), bool)
    out[order[inner]] = False
    return out


def _launches(data: LinkInput, corr: Array, mixed: Array) -> tuple[Array, Array]:
    """Return (row of the runtime call that launched each kernel, or -1; mask of uncertain kernels).

    The call has the kernel's correlation id. A kernel is uncertain if several calls are possible on threads that two
    processes share.
    """
    launch = _by_key(data.launch_corr, data.launch_start, corr, data.kernel_start)
    rows = np.flatnonzero(launch >= 0)
    rows = rows[mixed[data.launch_track[launch[rows]]]]
    unsure = np.zeros(len(corr), bool)
    if len(rows):
        calls = np.flatnonzero(mixed[data.launch_track] & (data.launch_kinds > 0))
        is_graph = data.launch_kinds[calls] == GRAPH_CALL
        ids = data.launch_corr[calls].astype(np.int64)
        at, _ = match_launches(corr[rows], data.kernel_start[rows], ids, data.launch_start[calls], is_graph)
        launch[rows] = np.where(at >= 0, calls[at], NONE) if len(calls) else NONE
        unsure[rows] = launch[rows] < 0
    return launch, unsure


def _drop_uncertain(data: LinkInput, owner: Array, ext: Array, when: Array, launched: Array, mixed: Array) -> Array:
    """Remove owners that lie on threads shared by two processes; return a mask of the kernels that lost their owner.

    An owner is kept only if it is the one op that has the kernel's id and contains its launch.
    """
    dropped = np.zeros(len(owner), bool)
    rows = np.flatnonzero(owner >= 0)
    rows = rows[mixed[data.op_track[owner[rows]]]]
    ops = np.flatnonzero(mixed[data.op_track] & (data.op_ext >= 0)) if len(rows) else rows
    order = ops[np.argsort(data.op_ext[ops], kind="stable")]
    ids = data.op_ext[order].astype(np.int64)
    low, high = np.searchsorted(ids, ext[rows]), np.searchsorted(ids, ext[rows], side="right")
    for row, first, after in zip(rows.tolist(), low.tolist(), high.tolist(), strict=True):
        candidates = order[first:after]
        starts = data.op_start[candidates]
        holding = candidates[(starts <= when[row]) & (when[row] <= starts + data.op_dur[candidates])]
        owner[row] = holding[0] if launched[row] and len(holding) == 1 else NONE
        dropped[row] = owner[row] < 0
    return dropped


def _by_key(keys: Array, starts: Array, wanted: Array, when: Array) -> Array:
    """Return, for each wanted key, the row that has this key, or -1.

    If several rows have it, the last one that starts no later than `when` is returned. Keys are unique within a process
    but are reused in its later runs, so the last earlier row is the most likely one.
    """
    out = np.full(len(wanted), NONE, np.int64)
    distinct = distinct_values(wanted[wanted != NONE])
    if not len(distinct) or not len(keys):
        return out
    rows, codes = _matching(keys, distinct)
    if not len(rows):
        return out
    begin = starts[rows]
    order = np.lexsort((begin, codes))
    rows, codes, begin = rows[order], codes[order], begin[order]
    asked = wanted != NONE
    code = np.searchsorted(distinct, wanted[asked])
    lo, hi = np.searchsorted(codes, code), np.searchsorted(codes, code, side="right")
    at = np.where(hi > lo, lo, NONE)
    several = np.flatnonzero(hi > lo + 1)
    if len(several):
        times = np.sort(begin)
        # (key, time) as one sortable number: rank of the time within this table, below the rank of the key
        combined = codes * (len(times) + 1) + np.searchsorted(times, begin)
        rank = np.searchsorted(times, when[asked][several], side="right") - 1
        query = code[several] * (len(times) + 1) + rank
        last = np.searchsorted(combined, query, side="right") - 1
        at[several] = np.maximum(last, lo[several])
    out[asked] = np.where(at >= 0, rows[at], NONE)
    return out


def _matching(keys: Array, distinct: Array) -> tuple[Array, Array]:
    """Return (rows whose key occurs in `distinct`, position of each such key in `distinct`); `distinct` is sorted. The
    keys are processed in chunks to bound memory.
    """
    rows: list[Array] = []
    codes: list[Array] = []
    for begin in range(0, len(keys), _CHUNK):
        chunk = keys[begin : begin + _CHUNK].astype(np.int64)
        code = np.minimum(np.searchsorted(distinct, chunk), len(distinct) - 1)
        hit = np.flatnonzero(distinct[code] == chunk)
        rows.append(hit + begin)
        codes.append(code[hit])
    return np.concatenate(rows), np.concatenate(codes)


def _containing(data: LinkInput, tracks: Array, times: Array) -> Array:
    """Return the row of the innermost op that contains each time on its track, or -1."""
    out = np.full(len(tracks), NONE, np.int64)
    for track in distinct_values(tracks):
        rows = np.flatnonzero(data.op_track == track)
        if len(rows):
            asked = tracks == track
            out[asked] = innermost_at(times[asked], rows, data.op_start[rows], data.op_dur[rows].astype(np.int64))
    return out


def _by_flows(data: LinkInput, owner: Array, kernels: Array) -> int:
    """Set the owners of the given kernels from the flow arrows that end at them; return how many owners were found."""
    is_end = data.flow_is_end.astype(bool)
    ends, begins = np.flatnonzero(is_end), np.flatnonzero(~is_end)
    if not len(kernels) or not len(ends) or not len(begins):
        return 0
    # an arrow ends on the kernel's track at the kernel's start
    track = data.kernel_track[kernels].astype(np.int64)
    hit = _by_key(data.flow_start[ends], data.flow_track[ends].astype(np.int64), data.kernel_start[kernels], track)
    good = hit >= 0
    good[good] = data.flow_track[ends][hit[good]] == track[good]
    kernels, flow = kernels[good], ends[hit[good]]
    source = _by_key(data.flow_id[begins], data.flow_start[begins], data.flow_id[flow], data.flow_start[flow])
    good = source >= 0
    kernels, source = kernels[good], begins[source[good]]
    ops = _containing(data, data.flow_track[source], data.flow_start[source])
    owner[kernels] = ops
    return int((ops >= 0).sum())
