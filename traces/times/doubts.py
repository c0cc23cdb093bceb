# pyright: strict
"""What keeps the recorded device times of a trace from carrying a headline: clocks that differ, impossible times."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opreplay.traces.model import HOLE, Trace
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
    zero_durations: int = 0
    """Kernels of duration 0, which no kernel has, where they are more than a few; affects the same."""
    holes: int = 0
    """Places where bytes of the file are missing or overwritten: the work recorded there counts as idle time."""

    @property
    def untimed(self) -> bool:
        """Whether busy and idle time, and what bounds a step, cannot be told."""
        return bool(self.impossible or self.zero_durations or self.holes)


def _holes(losses: Mapping[str, int]) -> int:
    """Return the number of places where bytes are missing; an event that has two process ids or times is one."""
    joined = max(losses.get(f"duplicate key {key}", 0) for key in ("cat", "ph", "pid", "tid", "ts"))
    return losses.get(HOLE, 0) + joined


def clock_offset_us(trace: Trace) -> float:
    """Return by how much the clocks of host and device differ at least; 0 where nothing shows it."""
    links = trace.info.links
    early = links.before_launch > EARLY_SHARE * links.launched
    return max(links.before_launch_ns if early else 0, links.clocks_apart_ns) / 1e3


def doubts_of(trace: Trace) -> Doubts:
    """Return what speaks against the device times of a trace."""
    faults = impossible_kernels(trace)
    events = sum(fault.kernels for fault in faults) / max(1, len(trace.kernels))
    matters = max(events, sum(fault.share for fault in faults)) >= LEAST_SHARE
    zero = int((trace.kernels.dur_ns == 0).sum())
    return Doubts(
        clock_offset_us=clock_offset_us(trace),
        impossible=faults if matters else (),
        zero_durations=zero if zero and zero >= LEAST_SHARE * len(trace.kernels) else 0,
        holes=_holes(trace.info.report.losses),
    )
