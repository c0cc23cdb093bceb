# pyright: strict
"""Assign every event of a merged file to the process that recorded it; this module works on columns.

Correlation ids, External ids and flow ids restart in each process, so they do not identify an event in the whole file.
An op, a call or an annotation belongs to the process of its process id. Device rows have other process ids, so the
process that launched their work must be derived. The evidence is, in this order, the label that a merging tool added to
their ids, flow events, the possible ids and times, and the order of the file. If two processes remain possible, the
device work is assigned to none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec
import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.processes.certain import MAX_CHANCE_CONTRADICTIONS, NONE, RARE, groups_of, match_launches
from opreplay.traces.processes.labels import LEAST_OFFSET, label_of, match_labels
from opreplay.traces.reading.columns import distinct
from opreplay.traces.reading.fields import GRAPH_CALL

MOST_UNITS = 64
"""Maximum number of processes for which the ids and times of all (process, device) pairs are compared."""
_EXAMPLES = 3
"""Maximum number of ids named in a message about ids used by several processes."""
_MOST = 0.8
"""Minimum share of a device's rows that its process launched while recording; the rest was launched before."""


class EventColumns(msgspec.Struct, kw_only=True):
    """Columns that help to tell processes apart, in file order; absent ids are -1, and times are in nanoseconds."""

    tracks: tuple[tuple[str, str], ...]
    """(pid, tid) of each track."""
    op_track: Array
    op_ext: Array
    launch_track: Array
    launch_start: Array
    launch_corr: Array
    launch_kinds: Array
    """Kind of each launch, a value of `fields.call_kind`."""
    kernel_track: Array
    kernel_device: Array
    kernel_start: Array
    kernel_ext: Array
    kernel_corr: Array
    arrow_track: Array
    arrow_id: Array
    arrow_is_end: Array


class Assignment(msgspec.Struct, kw_only=True):
    """The processes of a merged file, and the process of each track and device row."""

    names: tuple[str, ...]
    of_track: Array
    """Index into `names` for each track; -1 for tracks of device work that several processes may have launched."""
    of_kernel: Array
    """Index into `names` for each row of device work; -1 if uncertain."""


def assign_processes(data: EventColumns) -> Assignment | None:
    """Return the processes of a merged file; None for a file with one process."""
    names, of_track = _host_units(data)
    if len(names) < 2:
        return None
    of_kernel = np.full(len(data.kernel_track), NONE, np.int64)
    _label_tracks(data, names, of_track)
    if len(of_kernel):
        of_kernel[:] = of_track[data.kernel_track]
        claims = _claims(data, of_track)
        _assign_groups(data, of_track, of_kernel, claims, len(names))
        rows = np.flatnonzero(of_kernel < 0)
        if len(rows):
            _assign_rows(data, rows, of_kernel, claims, len(names))
        _tracks_of_kernels(data, of_track, of_kernel)
    return Assignment(names=names, of_track=of_track, of_kernel=of_kernel)


def contested_ids(data: EventColumns, assigned: Assignment) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return a few of the lowest ids of device work that several processes may have launched, and the names of these
    processes.
    """
    claims = _claims(data, assigned.of_track)
    wanted = distinct(claims.kernel_id[(assigned.of_kernel < 0) & (claims.kernel_id >= 0)])
    mine = np.isin(claims.id, wanted) & (claims.unit >= 0)
    units: list[int] = distinct(claims.unit[mine]).tolist()
    ids: list[int] = distinct(claims.id[mine])[:_EXAMPLES].tolist()
    return tuple(ids), tuple(assigned.names[unit] for unit in units)


class _Claims(msgspec.Struct):
    """Launches (or ops, if device work has no correlation ids) that may own device work with the same id."""

    unit: Array
    id: Array
    start: Array
    is_graph: Array
    kernel_id: Array


def _claims(data: EventColumns, of_track: Array) -> _Claims:
    if (data.kernel_corr >= 0).any() and len(data.launch_corr):
        starts = data.launch_kinds > 0
        chosen = (data.launch_corr >= 0) & (starts if starts.any() else True)
        track, ids, start = data.launch_track[chosen], data.launch_corr[chosen], data.launch_start[chosen]
        is_graph = data.launch_kinds[chosen] == GRAPH_CALL
        return _Claims(of_track[track], ids.astype(np.int64), start, is_graph, data.kernel_corr.astype(np.int64))
    chosen = data.op_ext >= 0
    ids = data.op_ext[chosen].astype(np.int64)
    earliest = np.full(len(ids), np.iinfo(np.int64).min)
    graphs = np.ones(len(ids), bool)  # an op may own any number of rows
    return _Claims(of_track[data.op_track[chosen]], ids, earliest, graphs, data.kernel_ext.astype(np.int64))


def _host_units(data: EventColumns) -> tuple[tuple[str, ...], Array]:
    """Return (names of the processes that ran ops; for each track the index of its process).

    A track without ops and launches has index -1. Processes are sorted by id and not by track, because the compiled and
    the Python reader number tracks differently.
    """
    of_track = np.full(len(data.tracks), NONE, np.int64)
    with_ops = _by_id(data, distinct(data.op_track).tolist())
    host = _by_id(data, {*with_ops, *distinct(data.launch_track).tolist()})
    pids = list(dict.fromkeys(data.tracks[track][0] for track in with_ops or host))
    strays = {data.tracks[track][0] for track in host} - set(pids)
    labels = match_labels(pids, sorted(strays)) if len(pids) > 1 else dict.fromkeys(strays, pids[0] if pids else "")
    pid_of = {track: labels.get(data.tracks[track][0], data.tracks[track][0]) for track in host}
    shared, perhaps = _pids_with_repeated_ids(data, pid_of)
    names: dict[str, int] = {}
    for pid in dict.fromkeys(pid_of.values()):
        members = [track for track in host if pid_of[track] == pid]
        parts = _split_threads(data, members, sure=pid in shared) if pid in perhaps else dict.fromkeys(members, "")
        for track in members:
            name = f"{pid} {parts[track]}".strip()
            of_track[track] = names.setdefault(name, len(names))
    return tuple(names), of_track


def _by_id(data: EventColumns, tracks: Iterable[int]) -> list[int]:
    """Sort tracks by process id and thread id, shorter texts first so that numbers are in numeric order."""
    return sorted(tracks, key=lambda track: [(len(text), text) for text in data.tracks[track]])


def _pids_with_repeated_ids(data: EventColumns, pid_of: dict[int, str]) -> tuple[set[str], set[str]]:
    """Return two sets of process ids that several processes may share.

    For the first set, threads share both launch ids and op ids. For the second, they share launch ids. Shared launch
    ids alone prove little: MTIA's runtime repeats the correlation ids of launches within one process, while its ops
    have unique ids.
    """
    found = _repeated_across_threads(data.launch_corr, data.launch_track, pid_of)
    if found and (data.op_ext > 0).any():
        return found & _repeated_across_threads(data.op_ext, data.op_track, pid_of), found
    return found, found


def _repeated_across_threads(column: Array, tracks: Array, pid_of: dict[int, str]) -> set[str]:
    ids = np.sort(column)
    if not ((ids[1:] == ids[:-1]) & (ids[1:] > 0)).any():
        return set()
    order = np.argsort(column, kind="stable")
    ids, track = column[order], tracks[order].astype(np.int64)
    twice = np.flatnonzero((ids[1:] == ids[:-1]) & (ids[1:] > 0) & (track[1:] != track[:-1]))
    if len(twice) < RARE * len(ids):
        return set()
    pairs: list[tuple[int, int]] = np.unique(np.stack([track[twice], track[twice + 1]], axis=1), axis=0).tolist()
    return {pid_of[first] for first, second in pairs if pid_of[first] == pid_of[second]}


def _split_threads(data: EventColumns, tracks: list[int], *, sure: bool) -> dict[int, str]:
    """Return a name for the process of each track, for the tracks of one process id that several processes may share.

    If `sure` does not say that several processes share it, tracks are split only by labels in their thread ids or by
    large gaps between these ids.
    """
    tids = {track: data.tracks[track][1] for track in tracks}
    labels = {track: label_of(tid) for track, tid in tids.items()}
    if len(set(labels.values())) > 1:
        return labels
    clusters = _clusters(data, tids, sure=sure) if all(tid.isdecimal() for tid in tids.values()) else None
    return clusters or (tids if sure else dict.fromkeys(tracks, ""))


def _clusters(data: EventColumns, tids: dict[int, str], *, sure: bool) -> dict[int, str] | None:
    """Return the lowest thread id of each track's process, where processes are clusters of thread ids.

    Return None unless there are as many clusters as processes. If `sure` does not say that there are several processes,
    clusters must also be `LEAST_OFFSET` apart.
    """
    mine = np.isin(data.launch_track, list(tids)) & (data.launch_corr > 0)
    ids, track = data.launch_corr[mine], data.launch_track[mine]
    _, of_id = np.unique(ids, return_inverse=True)
    processes = int(np.bincount(of_id.reshape(-1)).max(initial=1))
    ordered = sorted(tids, key=lambda index: int(tids[index]))
    gaps = [int(tids[after]) - int(tids[before]) for before, after in pairwise(ordered)]
    cuts = sorted(sorted(range(len(gaps)), key=lambda place: -gaps[place])[: processes - 1])
    if not sure and min((gaps[cut] for cut in cuts), default=0) < LEAST_OFFSET:
        return None
    out: dict[int, str] = {}
    for first, after in pairwise([0, *(cut + 1 for cut in cuts), len(ordered)]):
        members = ordered[first:after]
        inside = np.sort(ids[np.isin(track, members)])
        if (inside[1:] == inside[:-1]).any():
            return None
        out |= dict.fromkeys(members, tids[members[0]])
    return out


def _label_tracks(data: EventColumns, names: tuple[str, ...], of_track: Array) -> None:
    """Assign tracks without ops to processes by the labels in their process ids, otherwise in their thread ids."""
    known = np.flatnonzero(of_track >= 0).tolist()
    others = _by_id(data, np.flatnonzero(of_track < 0).tolist())
    units = distinct(of_track[of_track >= 0]).tolist()
    for part in (0, 1):
        texts = {int(unit): {data.tracks[track][part] for track in known if of_track[track] == unit} for unit in units}
        first = {unit: min(found, key=lambda text: (len(text), text)) for unit, found in texts.items()}
        hosts = {text: unit for unit, text in first.items()}
        if len(hosts) < len(names):
            continue  # processes that share one process id are told by their thread ids
        wanted = list(dict.fromkeys(data.tracks[track][part] for track in others))
        matched: Mapping[str, str] = match_labels(list(hosts), wanted)
        for track in others:
            host = matched.get(data.tracks[track][part])
            if host is not None and of_track[track] < 0:
                of_track[track] = hosts[host]
        return


def _assign_groups(data: EventColumns, of_track: Array, of_kernel: Array, claims: _Claims, units: int) -> None:
    """Assign device rows with equal process id and device to one process, by flow events, ids, times or file order."""
    rows = np.flatnonzero(of_kernel < 0)
    if not len(rows) or units > MOST_UNITS:
        return
    numbers: dict[str, int] = {}
    for track in _by_id(data, range(len(data.tracks))):
        numbers.setdefault(data.tracks[track][0], len(numbers))
    pids = np.array([numbers[pid] for pid, _ in data.tracks], np.int64)
    key = np.stack([pids[data.kernel_track[rows]], data.kernel_device[rows].astype(np.int64)], axis=1)
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.reshape(-1)
    count = int(group.max()) + 1
    hits, late = _votes(data, rows, group, count, claims, units)
    by_arrow = _arrow_votes(data, rows, group, count, of_track, units)
    owner = np.full(count, NONE, np.int64)
    for index in range(count):
        told = NONE if by_arrow is None else _only(by_arrow[index])
        owner[index] = _only(hits[index]) if told < 0 else told
    if (owner < 0).any():
        _match_one_to_one(owner, hits, late)
    if (owner < 0).any():
        _match_by_order(owner, data, rows, group, claims, units)
    of_kernel[rows] = owner[group]


def _only(votes: Array) -> int:
    """Return the process with most votes (explained rows of a device); -1 if a second process has more than a few."""
    order = np.argsort(-votes)
    best, second = int(votes[order[0]]), int(votes[order[1]])
    return int(order[0]) if best and second <= RARE * best else NONE


def _votes(
    data: EventColumns, rows: Array, group: Array, count: int, claims: _Claims, units: int
) -> tuple[Array, Array]:
    """Return (hits, late), two counts of device rows by device and process.

    `hits` counts the rows that have the id of one of the process's launches. `late` counts the hits that start before
    their launch.
    """
    hits, late = np.zeros((count, units), np.int64), np.zeros((count, units), np.int64)
    wanted, start = claims.kernel_id[rows], data.kernel_start[rows]
    for unit in range(units):
        mine = np.flatnonzero(claims.unit == unit)
        if not len(mine):
            continue
        mine = mine[np.lexsort((claims.start[mine], claims.id[mine]))]
        at = np.minimum(np.searchsorted(claims.id[mine], wanted), len(mine) - 1)
        hit = (wanted >= 0) & (claims.id[mine][at] == wanted)
        hits[:, unit] = np.bincount(group[hit], minlength=count)
        early = hit & (start < claims.start[mine][at])
        late[:, unit] = np.bincount(group[early], minlength=count)
    return hits, late


def _arrow_votes(
    data: EventColumns, rows: Array, group: Array, count: int, of_track: Array, units: int
) -> Array | None:
    """Return the number of flow arrows from each process to each device, by device and process; None without any."""
    is_end = data.arrow_is_end.astype(bool)
    ends, begins = np.flatnonzero(is_end), np.flatnonzero(~is_end)
    if not len(ends) or not len(begins):
        return None
    group_of_track = np.full(len(data.tracks), NONE, np.int64)
    group_of_track[data.kernel_track[rows]] = group
    votes = np.zeros((count, units), np.int64)
    to = group_of_track[data.arrow_track[ends]]
    unit = of_track[data.arrow_track[begins]]
    for index in range(units):
        ids = data.arrow_id[begins[unit == index]]
        reached = np.isin(data.arrow_id[ends], ids[ids >= 0]) & (to >= 0)
        votes[:, index] = np.bincount(to[reached], minlength=count)
    return votes


def _match_one_to_one(owner: Array, hits: Array, late: Array) -> None:
    """Assign one device to each process if ids and times allow exactly one such assignment; store it in `owner`.

    Two observations exclude a process for a device: the device ran the process's work before that work was launched, or
    it ran work that only other processes launched.
    """
    undecided = np.flatnonzero(owner < 0).tolist()
    free = [unit for unit in range(hits.shape[1]) if unit not in owner[owner >= 0] and hits[undecided, unit].any()]
    if len(free) != len(undecided):
        return
    possible: dict[int, set[int]] = {}
    for index in undecided:
        possible[index] = set()
        for unit in free:
            wrong, all_of_it = int(late[index, unit]), int(hits[index, unit])
            if wrong > max(MAX_CHANCE_CONTRADICTIONS, RARE * all_of_it) or (
                wrong and all_of_it <= MAX_CHANCE_CONTRADICTIONS
            ):
                continue
            if wrong > 0.001 * all_of_it:
                return  # neither possible nor impossible: the clocks of host and device differ
            if all_of_it >= _MOST * hits[index].max():
                possible[index].add(unit)
    found: dict[int, int] = {}
    while possible:
        index = next((index for index, units in possible.items() if len(units) == 1), None)
        if index is None:
            return
        found[index] = unit = possible.pop(index).pop()
        for units in possible.values():
            units.discard(unit)
    for index, unit in found.items():
        owner[index] = unit


def _match_by_order(owner: Array, data: EventColumns, rows: Array, group: Array, claims: _Claims, units: int) -> None:
    """Assign devices to processes in file order if the file contains one profile after the other."""
    order = _units_in_file_order(claims, units)
    runs = group[np.append(True, group[1:] != group[:-1])]
    if order is None or len(runs) != len(owner) or (owner >= 0).any():
        return
    ids = [distinct(claims.kernel_id[rows[group == index]]) for index in runs.tolist()]
    found: dict[int, int] = {}
    place, held = 0, np.empty(0, np.int64)
    for index, wanted in zip(runs.tolist(), ids, strict=True):
        if np.isin(wanted[wanted >= 0], held).any():
            place, held = place + 1, np.empty(0, np.int64)
        if place == len(order):
            return
        found[index], held = order[place], np.concatenate([held, wanted])
    if place == len(order) - 1:
        for index, unit in found.items():
            owner[index] = unit


def _units_in_file_order(claims: _Claims, units: int) -> list[int] | None:
    """Return the processes in the order in which the file contains their profiles.

    Return None if the launches of the processes are interleaved, or so few that their order may be chance.
    """
    runs = claims.unit[np.append(True, claims.unit[1:] != claims.unit[:-1])] if len(claims.unit) else claims.unit
    one_after_the_other = 1 < len(runs) == len(distinct(runs)) <= units
    return (
        runs.tolist()
        if one_after_the_other and np.bincount(claims.unit)[runs].min() >= MAX_CHANCE_CONTRADICTIONS
        else None
    )


def _assign_rows(data: EventColumns, rows: Array, of_kernel: Array, claims: _Claims, units: int) -> None:
    """Assign single rows of a device that several processes used, if only one launch is possible."""
    wanted = claims.kernel_id[rows]
    launch, complete = match_launches(wanted, data.kernel_start[rows], claims.id, claims.start, claims.is_graph)
    matched = launch >= 0
    of_kernel[rows[matched]] = claims.unit[launch[matched]]
    in_order = _by_file_order(claims, units, rows, wanted, complete)
    of_kernel[rows[~matched]] = in_order[~matched]


def _by_file_order(claims: _Claims, units: int, rows: Array, wanted: Array, complete: Array) -> Array:
    """Return the process of each row if the file contains one profile after the other, otherwise -1 for each row.

    In this case, the first row with an id belongs to the first process with that id. Only rows in `complete` are used,
    whose id occurs as often in rows as in launches.
    """
    out = np.full(len(rows), NONE, np.int64)
    order = _units_in_file_order(claims, units)
    if order is None:
        return out
    place = np.full(units, NONE, np.int64)
    place[order] = np.arange(len(order))
    first = np.full(units, np.iinfo(np.int64).max)
    last = np.full(units, NONE, np.int64)
    by_id = np.lexsort((place[claims.unit], claims.id))
    ids, unit = claims.id[by_id], claims.unit[by_id]
    for index in groups_of(wanted, np.flatnonzero(complete)):
        begin = int(np.searchsorted(ids, wanted[index[0]]))
        owners = unit[begin : begin + len(index)]
        np.minimum.at(first, owners, rows[index])
        np.maximum.at(last, owners, rows[index])
    starts, ends = first[order], last[order]
    if (ends < 0).any() or (starts[1:] <= ends[:-1]).any():
        return out
    for index, owner in enumerate(order):
        out[(rows >= starts[index]) & (rows <= ends[index])] = owner
    out[rows < starts[0]] = order[0]
    out[rows > ends[-1]] = order[-1]
    return out


def _tracks_of_kernels(data: EventColumns, of_track: Array, of_kernel: Array) -> None:
    """If all device rows of a track belong to the same process, assign the track to this process."""
    low = np.full(len(of_track), np.iinfo(np.int64).max)
    high = np.full(len(of_track), -2)
    np.minimum.at(low, data.kernel_track, of_kernel)
    np.maximum.at(high, data.kernel_track, of_kernel)
    same = (low == high) & (low >= 0) & (of_track < 0)
    of_track[same] = low[same]
