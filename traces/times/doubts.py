# pyright: strict
"""What keeps the recorded device times of a trace from carrying a headline: clocks that differ, impossible times."""

from __future__ import annotations

import msgspec

from opreplay.traces.model import Trace
from opreplay.traces.times.impossible import Impossible, impossible_kernels

LEAST_SHARE = 0.05
"""Of device time or device events with impossible times, from which no total and no verdict may rest on them."""
EARLY_SHARE = 0.01
"""Of device events that start before their launch, from which the clocks of host and device differ; public traces of
CUDA and HIP have none."""


class Doubts(msgspec.Struct, frozen=True, kw_only=True):
    """Reasons not to rely on device times."""

    clock_offset_us: float = 0.0
    """By which the clocks of host and device differ at least; 0 where nothing shows it. Durations are not affected;
    launch latencies, and what idle time waits for, are."""
    impossible: tuple[Impossible, ...] = ()
    """Device times that no device has, where they are more than a few: totals, busy and idle time are affected."""


def doubts_of(trace: Trace) -> Doubts:
    """Return what speaks against the device times of a trace."""
    links = trace.info.links
    early = links.before_launch > EARLY_SHARE * links.launched
    faults = impossible_kernels(trace)
    events = sum(fault.kernels for fault in faults) / max(1, len(trace.kernels))
    matters = max(events, sum(fault.share for fault in faults)) >= LEAST_SHARE
    return Doubts(
        clock_offset_us=max(links.before_launch_ns if early else 0, links.clocks_apart_ns) / 1e3,
        impossible=faults if matters else (),
    )
