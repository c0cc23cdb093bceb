# pyright: strict
"""Reasons why recorded device times cannot support a headline: clocks that differ, impossible times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.traces.model import HOLE, KERNEL_CATEGORIES, Trace
from opreplay.traces.times.impossible import FEWEST, Impossible, impossible_kernels

LEAST_SHARE = 0.05
"""Of device time or device events with impossible times, from which no total and no verdict may rest on them."""
EARLY_SHARE = 0.01
"""Of device events that start before their launch, from which the clocks of host and device differ; public traces of
CUDA and HIP have none."""

ZERO_SHARE = 0.5
"""Of the ops, those of duration 0 from which host times are not recorded; whole microseconds make far fewer."""
KERNEL_US = 0.05, 1e7
"""Shortest and longest median kernel: an empty kernel takes about 1 us, and a driver ends one of seconds."""
VIEW_US = 0.02, 300.0
"""The same of ops that only make views: an op takes a fraction of a microsecond at least, and these do no work."""
VIEWS = frozenset(f"aten::{name}" for name in ("view", "as_strided", "t", "transpose", "permute", "unsqueeze", "slice"))


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
    shared_ids: int = 0
    """Device events whose correlation id many others have too, where they are more than a few: which launch started
    them, and what idle time waits for, cannot be told."""
    zero_ops: int = 0
    """Ops of the host with duration 0, where most have that: host times are not recorded."""
    kernel_us: float = 0.0
    """Median kernel, where no kernel is that short or that long: times are hardly in microseconds."""
    view_us: float = 0.0
    """Median of the ops that only make views, where the same shows in it."""
    holes: int = 0
    """Places where bytes of the file are missing or overwritten: the work recorded there counts as idle time."""

    @property
    def mistimed(self) -> bool:
        """Whether durations of device work are wrong, so that neither totals nor times of ops mean anything."""
        return bool(self.impossible or self.zero_durations or self.in_another_unit)

    @property
    def in_another_unit(self) -> bool:
        """Whether times are hardly in microseconds."""
        return bool(self.kernel_us or self.view_us)

    @property
    def untimed(self) -> bool:
        """Whether busy and idle time, and what bounds a step, are unknown."""
        return self.mistimed or bool(self.holes)


def _holes(losses: Mapping[str, int]) -> int:
    """Return the number of places where bytes are missing; an event with two process ids or times is one."""
    joined = max(losses.get(f"duplicate key {key}", 0) for key in ("cat", "ph", "pid", "tid", "ts"))
    return losses.get(HOLE, 0) + joined


def clock_offset_us(trace: Trace) -> float:
    """Return the smallest possible difference between the clocks of host and device; 0 if nothing shows one."""
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


def _impossible_median_us(durations_ns: npt.NDArray[Any], shortest_us: float, longest_us: float) -> float:
    """Return the median of a few durations or more, those of 0 apart, where it is not in this range; else 0."""
    known = durations_ns[durations_ns > 0]
    if len(known) < FEWEST:
        return 0.0
    median_us = float(np.median(known)) / 1e3
    return 0.0 if shortest_us <= median_us <= longest_us else median_us


def _kernel_us(trace: Trace) -> float:
    """Return the median duration of a kernel that no kernel has; 0 where it is an ordinary one."""
    kernels = trace.kernels
    return _impossible_median_us(kernels.dur_ns[kernels.category == KERNEL_CATEGORIES.index("kernel")], *KERNEL_US)


def _view_us(trace: Trace) -> float:
    """Return the median duration of the ops that make views that no such op has; 0 where it is an ordinary one."""
    makes_view = np.array([signature.name in VIEWS for signature in trace.signatures], bool)
    if not makes_view.any() or not len(trace.ops):
        return 0.0
    return _impossible_median_us(trace.ops.dur_ns[makes_view[trace.ops.signature]], *VIEW_US)


def _zero_ops(trace: Trace) -> int:
    """Return how many ops have duration 0, if most have, in a file that records when they ran.

    Ops that the capture of a graph adds to a trace take no host time, so such a trace says nothing.
    """
    joined = trace.info.graphs is not None and trace.info.graphs.told_launches > 0
    zero = int((trace.ops.dur_ns == 0).sum())
    counts = trace.info.starts_recorded and not joined and zero > ZERO_SHARE * len(trace.ops)
    return zero if counts else 0


def _displaced(trace: Trace) -> bool:
    """Whether more than a few kernels start milliseconds before the launch of their id."""
    links = trace.info.links
    total_ns = int(trace.kernels.dur_ns.sum(dtype="int64"))
    return links.displaced > EARLY_SHARE * links.launched or links.displaced_device_ns > EARLY_SHARE * total_ns


def doubts_of(trace: Trace) -> Doubts:
    """Return the reasons to doubt the device times of a trace."""
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
        shared_ids=links.shared_ids if links.shared_ids >= max(1, LEAST_SHARE * len(trace.kernels)) else 0,
        zero_ops=_zero_ops(trace),
        kernel_us=_kernel_us(trace),
        view_us=_view_us(trace),
        holes=_holes(trace.info.report.losses),
    )
