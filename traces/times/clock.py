# pyright: strict
"""Detect a coarse clock: durations that are all multiples of a large unit cannot be used as timings."""

from __future__ import annotations

import numpy as np

from opreplay.traces.model import Trace

LEAST_TASKS = 20
"""Minimum number of durations from which a coarse unit is inferred; fewer may be multiples of it by chance."""
COARSE_NS = 5_000
"""Minimum unit in ns that counts as coarse; many kernels are this short. Profilers record ns, older ones µs."""


def coarse_unit_us(trace: Trace) -> float | None:
    """Return the coarse unit in µs of which all device durations are multiples; None if there is none.

    A unit below `COARSE_NS` is not coarse, and too few durations show none. Durations from a kernel table are ignored.
    """
    of_trace = trace.kernels.dur_ns if trace.details is None else trace.kernels.dur_ns[trace.details.kind < 0]
    durations = of_trace[of_trace > 0].astype(np.int64)
    if len(durations) < LEAST_TASKS:
        return None
    unit = int(np.gcd.reduce(durations))
    return unit / 1e3 if unit >= COARSE_NS else None
