# pyright: strict
"""Find the flow arrow that leads from a launch to each task of an NPU trace."""

from __future__ import annotations

import numpy as np

from opreplay.traces.activity import CALL_KINDS
from opreplay.traces.arrays import Ints
from opreplay.traces.model import Trace

QUEUE = CALL_KINDS.index("queue")
HOST_TO_DEVICE = 2
"""Kind of the flow arrows that lead from a launch to its task."""


def ids_with_arrows(trace: Trace, correlation: Ints, start: Ints, stream: Ints) -> Ints:
    """Return the correlation id of each task. An id that no call has and no arrow begins with is replaced.

    It is replaced by the id of the arrow that ends on the task's stream at the task's start. Older versions of msprof
    need this: they number arrows by connection and model together, but tasks by connection alone.
    """
    activity = trace.activity
    assert activity is not None
    arrows = activity.arrows
    to_device = arrows.kind == HOST_TO_DEVICE  # autograd and task queues number their own
    ends = np.flatnonzero(to_device & arrows.is_end)
    calls = activity.calls.correlation[activity.calls.kind != QUEUE]
    lost = np.flatnonzero(~np.isin(correlation, np.concatenate([calls, arrows.id[to_device & ~arrows.is_end]])))
    if not len(ends) or not len(lost):
        return correlation
    at = {
        (int(arrows.start_ns[row]), trace.tracks[int(arrows.track[row])][1]): int(arrows.id[row])
        for row in ends.tolist()
    }
    out = correlation.copy()
    for task in lost.tolist():
        out[task] = at.get((int(start[task]), str(int(stream[task]))), int(correlation[task]))
    return out


def launched_by_arrows(trace: Trace) -> tuple[Ints, Ints]:
    """Return (rows of `Trace.kernels`, their launch times in ns), by flow arrows; needs a trace with activity."""
    activity, kernels = trace.activity, trace.kernels
    if activity is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    arrows = activity.arrows
    begins = np.flatnonzero((arrows.kind == HOST_TO_DEVICE) & ~arrows.is_end)
    stream = kernels.stream.astype(np.int64)
    ids = ids_with_arrows(trace, activity.correlation.astype(np.int64), kernels.start_ns, stream)
    begins = begins[np.argsort(arrows.id[begins], kind="stable")]
    at = np.searchsorted(arrows.id[begins], ids)
    place = np.minimum(at, max(len(begins) - 1, 0))
    rows = np.flatnonzero((ids >= 0) & (arrows.id[begins][place] == ids)) if len(begins) else np.empty(0, np.int64)
    return rows, arrows.start_ns[begins[place[rows]]]
