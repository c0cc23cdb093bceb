# pyright: strict
"""Find device rows with times far from the recording (time 0, another epoch, another unit), working on columns."""

from __future__ import annotations

import numpy as np

from opreplay.traces.arrays import Array

FAR_NS = 600 * 10**9
"""Maximum plausible distance between device work and the host's recording; queues hold seconds of work, not minutes."""
FAR_WINDOWS = 10
"""Second limit like `FAR_NS`, as a multiple of the length of the host's recording. The larger limit applies."""
WITHOUT_TIME = "device event without a time"
FAR_OUTSIDE = "device event far outside the time of the recording"


def misplaced(start: Array, dur: Array, host_start: Array, host_end: Array) -> dict[str, Array]:
    """Return masks of the device rows that cannot have run at their recorded time, by reason; times are in nanoseconds.

    One reason is a time of 0 although the host recorded nothing near 0; CUPTI writes 0 for a missing time. The other
    reason is a time minutes away from everything on the host. If most rows are that far away and close to each other,
    only the clocks differ. These rows are not masked.
    """
    out: dict[str, Array] = {}
    if not len(start) or not len(host_start):
        return out
    end = start + dur.astype(np.int64)
    first, last = int(host_start.min()), int(host_end.max())
    far_ns = max(FAR_NS, FAR_WINDOWS * (last - first))
    if int(start.min()) > 0 and int(start.min()) >= first - far_ns and int(end.max()) <= last + far_ns:
        return out
    # A few damaged times of the host must not stretch the recording to them.
    first, last = (int(value) for value in np.quantile(host_start, (0.01, 0.99), method="nearest"))
    last = max(last, int(np.quantile(host_end, 0.99, method="nearest")))
    far_ns = max(FAR_NS, FAR_WINDOWS * (last - first))
    at_zero = (start == 0) & (first > 0)
    at_zero &= (dur == 0) | (int(at_zero.sum()) > 1) | (first > far_ns)
    far = ~at_zero & ((start < first - far_ns) | (end > last + far_ns))
    if 2 * int(far.sum()) > len(start):
        together = int(end[far].max()) - int(start[far].min())
        if together <= far_ns:
            far[:] = False
    return {reason: rows for reason, rows in ((WITHOUT_TIME, at_zero), (FAR_OUTSIDE, far)) if rows.any()}
