# pyright: strict
"""Find kernels whose recorded times are impossible.

They overlap on one stream, are recorded twice, or take far longer than the rest of the recording.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.model import KERNEL_CATEGORIES, Trace

NOTABLE_NS = 1000
"""Maximum overlap in ns that is ignored. Clocks are inexact, and a kernel may begin before the previous one ends."""
TIMES_THE_REST = 1000
"""Minimum ratio of an impossible kernel's duration to the time from the first to the last start of anything else."""
TIMES_THE_MEDIAN = 100_000
FEWEST = 3
"""Minimum number of kernels of which one may be an outlier, and minimum number of overlaps for a pattern."""
OUTLIER_SHARE = 0.5
"""Minimum share of all device time that a kernel must take to be reported as an outlier."""
OUTLIER_RATIO = 20
"""Minimum ratio of an outlier's duration to the median of all other kernels with the same name, op and shapes."""
_RARE = 0.02
"""Maximum share of a stream's overlaps that dependent launches may leave unexplained.

Above it, they do not explain any of the stream's overlaps.
"""
_SAME_NAMES = 0.2
"""Maximum share of a stream's overlaps that may be between kernels of the same name. Above it, two merged recordings
are a more likely cause than dependent launches.
"""


Kind = Literal["recorded twice", "longer than the rest of the recording", "overlaps another kernel on its stream"]


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """Those kernels of a trace that have impossible times for the same reason."""

    kind: Kind
    kernels: int
    share: float
    """Share of the recorded device time that these kernels take."""


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that takes most of the device time although similar kernels are far shorter."""

    kernel: str
    op: str
    """Op that owns the kernel."""
    us: float
    usual_us: float
    """Median duration of all other kernels with the same name, op and shapes."""
    others: int
    share: float
    """Share of the recorded device time that this kernel takes."""


def outlying_kernel(trace: Trace) -> Outlier | None:
    """Return the kernel that takes at least half of the device time and is far longer than all similar kernels. Return
    None if there is no such kernel.
    """
    table = trace.kernels
    total = int(table.dur_ns.sum(dtype=np.int64))
    if not total or len(table) <= FEWEST:
        return None
    at = int(np.argmax(table.dur_ns))
    longest, owner = int(table.dur_ns[at]), int(table.owner[at])
    if longest < OUTLIER_SHARE * total or owner < 0 or table.category[at] != KERNEL_CATEGORIES.index("kernel"):
        return None
    signatures = trace.ops.signature
    if trace.signatures[int(signatures[owner])].dims is None:
        return None  # others of its name may be of any size
    alike = (table.name == table.name[at]) & (table.owner >= 0)
    alike &= signatures[np.maximum(table.owner, 0)] == signatures[owner]
    alike[at] = False
    others = table.dur_ns[alike]
    if len(others) < FEWEST or longest < OUTLIER_RATIO * max(1.0, float(np.median(others))):
        return None
    return Outlier(
        kernel=trace.kernel_names[int(table.name[at])],
        op=trace.signatures[int(signatures[owner])].name,
        us=longest / 1e3,
        usual_us=float(np.median(others)) / 1e3,
        others=len(others),
        share=longest / total,
    )


def impossible_kernels(trace: Trace) -> tuple[Impossible, ...]:
    """Return the kinds of impossible device times in a trace; empty for NPUs, whose tasks may nest.

    Each kernel is counted once.
    """
    table = trace.kernels
    total = int(table.dur_ns.sum(dtype=np.int64))
    if trace.info.dialect == "ascend" or not total or not trace.info.starts_recorded:
        return ()
    stream = (table.device.astype(np.int64) << 32) + table.stream
    order = np.lexsort((table.name, table.dur_ns, table.start_ns, stream))
    stream, name = stream[order], table.name[order]
    start, dur = table.start_ns[order].astype(np.int64), table.dur_ns[order].astype(np.int64)
    same = (stream[1:] == stream[:-1]) & (start[1:] == start[:-1]) & (dur[1:] == dur[:-1]) & (name[1:] == name[:-1])
    twice = np.concatenate(([False], same & (dur[1:] > 0)))
    latest_end = _latest_end_before(stream, start + dur)
    overlap = np.minimum(start + dur, latest_end) - start
    overlapping = (overlap > NOTABLE_NS) & (2 * overlap > dur) & ~twice
    overlapping &= ~_dependent_launches(stream, name, start, start + dur, latest_end, overlapping)
    reaches = (stream[1:] == stream[:-1]) & (start[:-1] + dur[:-1] > start[1:] + NOTABLE_NS)
    overlapping[:-1] |= overlapping[1:] & reaches
    starts = (table.start_ns, trace.ops.start_ns) if len(trace.ops) else (table.start_ns,)
    rest_ns = max(int(part.max()) for part in starts) - min(int(part.min()) for part in starts)
    long = (dur > TIMES_THE_REST * max(rest_ns, 1)) & (dur > TIMES_THE_MEDIAN * max(1.0, float(np.median(dur))))
    long &= len(dur) >= FEWEST
    faults: dict[Kind, np.ndarray] = {
        "recorded twice": twice,
        "longer than the rest of the recording": long,
        "overlaps another kernel on its stream": overlapping & ~long,
    }
    return tuple(
        Impossible(kind=kind, kernels=int(rows.sum()), share=float(dur[rows].sum()) / total)
        for kind, rows in faults.items()
        if rows.any()
    )


def _dependent_launches(
    stream: np.ndarray, name: np.ndarray, start: np.ndarray, end: np.ndarray, latest_end: np.ndarray, over: np.ndarray
) -> np.ndarray:
    """Return a mask of the overlaps that programmatic dependent launches (Hopper and later) explain.

    A kernel launched this way begins while the previous one runs, waits for it, and ends after it. It overlaps no other
    kernel. The two kernels rarely have the same name, unlike in merged recordings. Rows are sorted by stream and start.
    """
    over_two = np.append(False, latest_end[:-1] > start[1:] + NOTABLE_NS)
    waits = over & (end > latest_end) & ~over_two
    _, which = np.unique(stream, return_inverse=True)
    same_name = over & np.append(False, name[1:] == name[:-1])
    overlaps, waiting, same = (np.bincount(which, weights=rows) for rows in (over, waits, same_name))
    explained = (waiting >= FEWEST) & (overlaps - waiting <= _RARE * overlaps) & (same <= _SAME_NAMES * overlaps)
    return waits & explained[which]


def _latest_end_before(stream: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, for kernels sorted by stream and start, the time at which all earlier kernels of the stream
    have ended.
    """
    before = np.full(len(end), np.iinfo(np.int64).min)
    bounds = [0, *(np.flatnonzero(np.diff(stream)) + 1).tolist(), len(end)]
    for first, after in pairwise(bounds):
        before[first + 1 : after] = np.maximum.accumulate(end[first : after - 1])
    return before
