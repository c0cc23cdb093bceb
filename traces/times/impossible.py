# pyright: strict
"""Find kernels with impossible recorded times: two at once on one stream, or one longer than all others together."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.model import KERNEL_CATEGORIES, Trace

NOTABLE_NS = 1000
"""Overlap below this is that of clocks, and of launches that begin before the kernel ahead has ended."""
TIMES_THE_REST = 1000
"""By how much a kernel is longer than from the first to the last start of anything else."""
TIMES_THE_MEDIAN = 100_000
FEWEST = 3
"""Kernels below which none is an outlier, and below which no overlaps are a pattern."""
OUTLIER_SHARE = 0.5
"""Of all device time that one kernel must take to be told as an outlier."""
OUTLIER_RATIO = 20
"""By how much it must be longer than the median of the other kernels of its name, op and shapes."""
_RARE = 0.02
"""Share of a stream's overlaps that may contradict dependent launches."""
_SAME_NAMES = 0.2
"""Share of a stream's overlaps of two kernels of one name from which two recordings are merged rather."""


Kind = Literal["recorded twice", "longer than all else", "overlaps another of its stream"]


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a trace that share one fault."""

    kind: Kind
    kernels: int
    share: float
    """Of the device time as recorded."""


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that most of the device time is in, though others like it are far shorter."""

    kernel: str
    op: str
    """That owns it."""
    us: float
    usual_us: float
    """Median of the others of its name, op and shapes."""
    others: int
    share: float
    """Of the device time as recorded."""


def outlying_kernel(trace: Trace) -> Outlier | None:
    """Return the kernel that takes at least half of the device time and is far longer than all others like it."""
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
    """Return what is wrong with recorded device times, each kernel counted once; empty for NPUs, whose tasks may
    nest.
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
        "longer than all else": long,
        "overlaps another of its stream": overlapping & ~long,
    }
    return tuple(
        Impossible(kind=kind, kernels=int(rows.sum()), share=float(dur[rows].sum()) / total)
        for kind, rows in faults.items()
        if rows.any()
    )


def _dependent_launches(
    stream: np.ndarray, name: np.ndarray, start: np.ndarray, end: np.ndarray, latest_end: np.ndarray, over: np.ndarray
) -> np.ndarray:
    """Return a mask of overlaps that programmatic dependent launches (Hopper and later) explain; by stream and start.

    Such a kernel begins while the previous one runs, waits for it, and ends after it. It overlaps no other kernel, and
    rarely one of its own name, unlike kernels of merged recordings.
    """
    over_two = np.append(False, latest_end[:-1] > start[1:] + NOTABLE_NS)
    waits = over & (end > latest_end) & ~over_two
    _, which = np.unique(stream, return_inverse=True)
    same_name = over & np.append(False, name[1:] == name[:-1])
    overlaps, waiting, same = (np.bincount(which, weights=rows) for rows in (over, waits, same_name))
    explained = (waiting >= FEWEST) & (overlaps - waiting <= _RARE * overlaps) & (same <= _SAME_NAMES * overlaps)
    return waits & explained[which]


def _latest_end_before(stream: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, for kernels sorted by stream and start, when all earlier kernels of the stream have ended."""
    before = np.full(len(end), np.iinfo(np.int64).min)
    bounds = [0, *(np.flatnonzero(np.diff(stream)) + 1).tolist(), len(end)]
    for first, after in pairwise(bounds):
        before[first + 1 : after] = np.maximum.accumulate(end[first : after - 1])
    return before
