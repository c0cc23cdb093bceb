# pyright: strict
"""How fine the clock was that timed a trace's device work: durations that are all whole coarse units are no timings."""

from __future__ import annotations

import numpy as np

from opreplay.traces.model import Trace

LEAST_TASKS = 20
"""Fewer durations may be multiples of a coarse unit by chance."""
COARSE_NS = 5_000
"""As long as many a kernel: profilers tell nanoseconds, older ones microseconds."""


def coarse_unit_us(trace: Trace) -> float | None:
    """Microseconds that every duration of device work is a multiple of, where that is coarser than a kernel is long.

    Those that a kernel table has given do not count. None for a clock that tells kernels apart, and for a trace with
    too little device work to say.
    """
    of_trace = trace.kernels.dur_ns if trace.details is None else trace.kernels.dur_ns[trace.details.kind < 0]
    durations = of_trace[of_trace > 0].astype(np.int64)
    if len(durations) < LEAST_TASKS:
        return None
    unit = int(np.gcd.reduce(durations))
    return unit / 1e3 if unit >= COARSE_NS else None
