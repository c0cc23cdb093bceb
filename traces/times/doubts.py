# pyright: strict
"""Find reasons why recorded device times cannot support a conclusion: clocks that differ, impossible times."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.model import HOLE, KERNEL_CATEGORIES, Trace
from opreplay.traces.times.impossible import FEWEST, Impossible, impossible_kernels

LEAST_SHARE = 0.05
"""Share of device time or device events with impossible times from which totals and verdicts are unreliable."""
EARLY_SHARE = 0.01
"""Share of device events that start before their launch above which host and device clocks count as different.

Public traces of CUDA and HIP contain no such events.
"""

ZERO_SHARE = 0.5
"""Share of ops with duration 0 above which host times count as not recorded. Rounding to 1 us gives far fewer zeros."""
KERNEL_US = 0.05, 1e7
"""Lowest and highest plausible median duration of kernels, in µs. An empty kernel takes about 1 us, and a driver ends a
kernel that runs for seconds.
"""
VIEW_US = 0.02, 300.0
"""Lowest and highest plausible median duration, in µs, of ops that only make views.

Any op takes a fraction of a microsecond, and these ops do no other work.
"""
VIEWS = frozenset(f"aten::{name}" for name in ("view", "as_strided", "t", "transpose", "permute", "unsqueeze", "slice"))


class Doubts(msgspec.Struct, frozen=True, kw_only=True):
    """Reasons not to rely on device times."""

    clock_offset_us: float = 0.0
    """Minimum difference in µs between host and device clocks that the trace shows; 0 if it shows none.

    A difference does not affect durations, but it does affect launch latencies and the causes of idle time.
    """
    impossible: tuple[Impossible, ...] = ()
    """Impossible device times, given if there are more than a few; they affect totals, busy time and idle time."""
    zero_durations: int = 0
    """Number of device events with the impossible duration 0, given if there are more than a few. They affect totals,
    busy time and idle time.
    """
    collided_share: float = 0.0
    """Share of the device time whose op or process is uncertain because ids collide; 0 if it is small.

    Collisions do not affect durations, but they affect which work is assigned to a process or a step.
    """
    displaced: int = 0
    """Number of kernels that start milliseconds before the launch with their id, given if there are more than a few.

    They affect idle time and which work is assigned to a process or a step.
    """
    displaced_by_us: float = 0.0
    """Maximum time from the start of a displaced kernel to its later launch."""
    shared_ids: int = 0
    """Number of device events whose correlation id many others share, given if there are more than a few.

    For these events, it is unknown which launch started them and what the idle time before them waits for.
    """
    zero_ops: int = 0
    """Number of host ops with duration 0, given if they are most ops; host times are then not recorded."""
    kernel_us: float = 0.0
    """Median kernel duration if it is implausibly short or long, otherwise 0. Times are then probably not in
    microseconds.
    """
    view_us: float = 0.0
    """Median duration of the ops that only make views, if it is implausible; otherwise 0."""
    holes: int = 0
    """Places where bytes of the file are missing or overwritten; work recorded there counts as idle time."""

    @property
    def mistimed(self) -> bool:
        """Whether durations of device work are wrong, so that totals and op times are meaningless."""
        return bool(self.impossible or self.zero_durations or self.in_another_unit)

    @property
    def in_another_unit(self) -> bool:
        """Whether times are probably not in microseconds."""
        return bool(self.kernel_us or self.view_us)

    @property
    def untimed(self) -> bool:
        """Whether the times are so doubtful that busy time, idle time and a step's bottleneck are unknown."""
        return self.mistimed or bool(self.holes)


def _holes(losses: Mapping[str, int]) -> int:
    """Return the number of places where bytes are missing, including events with two process ids or times."""
    joined = max(losses.get(f"duplicate key {key}", 0) for key in ("cat", "ph", "pid", "tid", "ts"))
    return losses.get(HOLE, 0) + joined


def clock_offset_us(trace: Trace) -> float:
    """Return the minimum difference in µs between host and device clocks that the trace shows; 0 if it shows none."""
    links = trace.info.links
    early = links.before_launch > EARLY_SHARE * links.launched
    return max(links.before_launch_ns if early else 0, links.clocks_apart_ns) / 1e3


def collided_share(trace: Trace) -> float:
    """Return the share of the device time whose owner is uncertain because several processes used the same ids."""
    lost_us = trace.info.collided.device_us
    # The part of one process has no row of work that may be of another.
    beside_us = 0.0 if trace.info.process is None else lost_us
    total_us = float(trace.kernels.dur_ns.sum(dtype="int64")) / 1e3 + beside_us
    return min(1.0, lost_us / total_us) if total_us else 0.0


def _impossible_median_us(durations_ns: Array, shortest_us: float, longest_us: float) -> float:
    """Return the median in µs of all durations above 0 if it lies outside the plausible range, otherwise 0.

    Also return 0 if there are too few durations.
    """
    known = durations_ns[durations_ns > 0]
    if len(known) < FEWEST:
        return 0.0
    median_us = float(np.median(known)) / 1e3
    return 0.0 if shortest_us <= median_us <= longest_us else median_us


def _kernel_us(trace: Trace) -> float:
    """Return the median kernel duration in µs if it is implausible, otherwise 0."""
    kernels = trace.kernels
    return _impossible_median_us(kernels.dur_ns[kernels.category == KERNEL_CATEGORIES.index("kernel")], *KERNEL_US)


def _view_us(trace: Trace) -> float:
    """Return the median duration in µs of ops that only make views if it is implausible, otherwise 0."""
    makes_view = np.array([signature.name in VIEWS for signature in trace.signatures], bool)
    if not makes_view.any() or not len(trace.ops):
        return 0.0
    return _impossible_median_us(trace.ops.dur_ns[makes_view[trace.ops.signature]], *VIEW_US)


def _zero_ops(trace: Trace) -> int:
    """Return the number of ops with duration 0 if most ops have this duration; otherwise 0.

    Also return 0 if the file records no start times, or if ops were added from a graph capture: these take no host
    time.
    """
    joined = trace.info.graphs is not None and trace.info.graphs.matched_launches > 0
    zero = int((trace.ops.dur_ns == 0).sum())
    counts = trace.info.starts_recorded and not joined and zero > ZERO_SHARE * len(trace.ops)
    return zero if counts else 0


def _displaced(trace: Trace) -> bool:
    """Check whether more than a few kernels start milliseconds before the launch with their id."""
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
