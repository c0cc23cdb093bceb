# pyright: strict
"""Match device work to launches if several launches have its id. Only unambiguous matches are made."""

from __future__ import annotations

import numpy as np

from opreplay.traces.arrays import Array

NONE = -1
MAX_CHANCE_CONTRADICTIONS = 3
"""Number of rows that may contradict an assumption about ids and launches by chance. For example, launches may be lost,
or may have happened before the recording.
"""
RARE = 0.02
"""Maximum share of rows that may, by chance, contradict an assumption about ids and launches."""
_NEVER = np.iinfo(np.int64).max


def match_launches(
    wanted: Array, start: Array, launch_id: Array, launch_start: Array, is_graph: Array
) -> tuple[Array, Array]:
    """Return (row of the launch of each device row, or -1; mask of device rows whose id has equally many launches and
    rows).

    A launch is certain if no other launch has its id, and the id has one row of device work or the rows of a graph. If
    an id has as many rows as launches, a launch is certain if its row starts before the next launch. But if several
    rows start before every launch of their id, host and device clocks differ. Then only ids with one launch and one row
    are certain.

    `wanted` (id, -1 for none) and `start` (ns) are columns of device work. All other arguments are columns of launches.
    """
    out = np.full(len(wanted), NONE, np.int64)
    alike = np.zeros(len(wanted), bool)
    if not len(launch_id) or not len(wanted):
        return out, alike
    order = np.lexsort((launch_start, launch_id))
    ids, begin, graph = launch_id[order], launch_start[order], is_graph[order]
    low, high = np.searchsorted(ids, wanted), np.searchsorted(ids, wanted, side="right")
    known = (wanted >= 0) & (high > low)
    _, which, counts = np.unique(wanted, return_inverse=True, return_counts=True)
    rows, launches = counts[which.reshape(-1)], high - low
    at = np.minimum(low, len(ids) - 1)
    early = known & (start < begin[at])
    clocks_differ = int(early.sum()) > max(MAX_CHANCE_CONTRADICTIONS, RARE * int(known.sum()))
    single = known & (launches == 1) & ((rows == 1) | graph[at])
    certain = single if clocks_differ else single & ~early
    out[certain] = order[low[certain]]
    alike = known & (launches == rows)
    for index in [] if clocks_differ else groups_of(wanted, np.flatnonzero(alike & (launches > 1))):
        index = index[np.argsort(start[index], kind="stable")]
        first, size = int(low[index[0]]), len(index)
        launched = begin[first : first + size]
        after = np.append(launched[1:], _NEVER)
        if not graph[first : first + size].any() and ((launched <= start[index]) & (start[index] < after)).all():
            out[index] = order[first : first + size]
    return out, alike


def groups_of(values: Array, chosen: Array) -> list[Array]:
    """Return the chosen positions in groups: one group for each distinct value at these positions."""
    order = chosen[np.argsort(values[chosen], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(order) else []


def mixed_tracks(ids: Array, start: Array, track: Array, tracks: int) -> Array:
    """Return a mask of the tracks that two processes share.

    Two processes with the same process id and thread id use the same ids at the same time. So on a shared track, ids
    repeat before all earlier ids have occurred. A process that records twice repeats its ids only in a later run.
    """
    out = np.zeros(tracks, bool)
    sorted_ids = np.sort(ids)
    if not ((sorted_ids[1:] == sorted_ids[:-1]) & (sorted_ids[1:] > 0)).any():
        return out
    order = np.lexsort((start, ids, track))
    same = (ids[order][1:] == ids[order][:-1]) & (track[order][1:] == track[order][:-1]) & (ids[order][1:] > 0)
    repeat = np.append(False, same)
    position = np.arange(len(order))
    first = np.maximum.accumulate(np.where(repeat, 0, position))
    turn = np.empty(len(order), np.int64)
    turn[order] = position - first
    by_time = np.lexsort((turn, start, track))
    back = (np.diff(turn[by_time]) < 0) & (track[by_time][1:] == track[by_time][:-1])
    # An id that is given once belongs to any run.
    repeated = np.isin(ids, ids[order][repeat])
    total = np.bincount(track[repeated], minlength=tracks)
    backwards = np.bincount(track[by_time][1:][back & repeated[by_time][1:]], minlength=tracks)
    out[:] = (total > RARE * np.bincount(track, minlength=tracks)) & (backwards > 0)
    return out
