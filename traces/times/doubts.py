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
    collided_share: float = 0.0
    """Of device time: no op and no process certainly owns it, since ids collide; 0 where it is little. Durations are
    not affected; what a process or a step did is."""
    displaced: int = 0
    """Kernels that start milliseconds before the launch of their id, where they are more than a few; affects the same,
    and idle time."""
    displaced_by_us: float = 0.0
    """By how much at most."""
    holes: int = 0
    """Places where bytes of the file are missing or overwritten: the work recorded there counts as idle time."""

    @property
    def mistimed(self) -> bool:
        """Whether durations of device work are wrong, so that neither totals nor times of ops mean anything."""
        return bool(self.impossible or self.zero_durations)

    @property
    def untimed(self) -> bool:
        """Whether busy and idle time, and what bounds a step, cannot be told."""
        return self.mistimed or bool(self.holes)


def _holes(losses: Mapping[str, int]) -> int:
    """Return the number of places where bytes are missing; an event that has two process ids or times is one."""
    joined = max(losses.get(f"duplicate key {key}", 0) for key in ("cat", "ph", "pid", "tid", "ts"))
    return losses.get(HOLE, 0) + joined


def clock_offset_us(trace: Trace) -> float:
    """Return by how much the clocks of host and device differ at least; 0 where nothing shows it."""
    links = trace.info.links
    early = links.before_launch > EARLY_SHARE * links.launched
    return max(links.before_launch_ns if early else 0, links.clocks_apart_ns) / 1e3


def collided_share(trace: Trace) -> float:
    """Return the share of the device time that has no certain owner, since several processes gave out its ids."""
    lost_us = trace.info.collided.device_us
    # The part of one process has no row of work that may be of another.
    beside_us = 0.0 if trace.info.process is None else lost_us
    total_us = float(trace.kernels.dur_ns.sum(dtype="int64")) / 1e3 + beside_us
    return min(1.0, lost_us / total_us) if total_us else 0.0


def _displaced(trace: Trace) -> bool:
    """Whether more than a few kernels start milliseconds before the launch of their id."""
    links = trace.info.links
    total_ns = int(trace.kernels.dur_ns.sum(dtype="int64"))
    return links.displaced > EARLY_SHARE * links.launched or links.displaced_device_ns > EARLY_SHARE * total_ns


def doubts_of(trace: Trace) -> Doubts:
    """Return what speaks against the device times of a trace."""
    faults = impossible_kernels(trace)
    events = sum(fault.kernels for fault in faults) / max(1, len(trace.kernels))
    matters = max(events, sum(fault.share for fault in faults)) >= LEAST_SHARE
    collided, displaced, links = collided_share(trace), _displaced(trace), trace.info.links
    zero = int((trace.kernels.dur_ns == 0).sum())
    return Doubts(
        clock_offset_us=clock_offset_us(trace),
        impossible=faults if matters else (),
        zero_durations=zero if zero and zero >= LEAST_SHARE * len(trace.kernels) else 0,
        collided_share=collided if collided >= LEAST_SHARE else 0.0,
        displaced=links.displaced if displaced else 0,
        displaced_by_us=links.displaced_by_ns / 1e3 if displaced else 0.0,
        holes=_holes(trace.info.report.losses),
    )
