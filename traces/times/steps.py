# pyright: strict
"""Compare all steps of a trace and show how kernels are launched, to choose a step to look at."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from opreplay.traces.errors import NothingRan
from opreplay.traces.links.arrows import launched_by_arrows
from opreplay.traces.links.steps import steps_of
from opreplay.traces.model import Trace
from opreplay.traces.times.busy import union_us
from opreplay.traces.times.doubts import Doubts, doubts_of

OUTLIER = 1.2
"""Minimum ratio to the median duration for a step to be an outlier."""
SHORT_US = 10.0
"""Kernels shorter than this are short: about the time that the host needs to launch one."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step; times in microseconds."""

    name: str
    start_us: float
    """Start relative to the first step."""
    host_us: float
    """Duration of the mark on its thread."""
    tasks: int
    """Number of kernels, copies and fills launched within the mark."""
    busy_us: float | None
    """Time during which at least one device stream ran some of these tasks; None without device work."""
    gaps_us: float | None
    """Time between the first and the last of these tasks without work, which is only part of a step's idle time."""
    over_median: float
    """`host_us` divided by that of the median step."""
    outlier: bool


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel, copy or fill whose launching calls are recorded; times in microseconds."""

    name: str
    launches: int
    time_us: float
    """Total time on the device."""
    median_us: float
    short_share: float
    """Share of launches that take less than 10 us on the device."""
    below_call_share: float | None
    """Share of launches that take less time than their launching call took on the host; None if only launch times are
    recorded.
    """
    delay_us: float | None
    """Median time from the end of the launching call, or from the recorded moment of the launch, to the start on the
    device.

    It is 0 for a kernel that starts before that end, and shows waiting on the device or in queues. None if host and
    device clocks differ.
    """
    delay_p90_us: float | None


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """All marked steps, sorted by time."""

    by: Literal["step"] = "step"
    median_us: float
    unlinked: int
    """Device work whose launching call and op are both unrecorded; it belongs to no step."""
    rows: tuple[StepRow, ...]


class LaunchTable(msgspec.Struct, frozen=True, kw_only=True):
    """Launches by kernel, those with the most time first."""

    by: Literal["launch"] = "launch"
    launches: int
    """Number of launches whose launching calls are recorded."""
    unlinked: int
    """Device work whose launching call is not recorded: work of graphs, or work launched before the recording began."""
    doubts: Doubts = Doubts()
    """Reasons to doubt the times."""
    rows: tuple[LaunchRow, ...]


def step_table(trace: Trace) -> StepTable:
    """Return every marked step of a trace read with its activity. Raises NothingRan if none is marked."""
    steps = steps_of(trace)
    if not steps:
        raise NothingRan(
            f"{trace.info.path} marks no step", hint="Record with torch.profiler and call profiler.step()."
        )
    kernels, launched = trace.kernels, _launched_ns(trace)
    start, end = kernels.start_ns, kernels.start_ns + kernels.dur_ns.astype(np.int64)
    median = float(np.median([step.end_ns - step.start_ns for step in steps])) / 1e3
    out: list[StepRow] = []
    for step in steps:
        # Backward passes launch from threads of autograd: time decides, not the thread.
        inside = (launched >= step.start_ns) & (launched < step.end_ns)
        busy = union_us(start[inside], end[inside]) if inside.any() else None
        span = float(end[inside].max() - start[inside].min()) / 1e3 if inside.any() else 0.0
        host_us = (step.end_ns - step.start_ns) / 1e3
        out.append(
            StepRow(
                name=step.name,
                start_us=(step.start_ns - steps[0].start_ns) / 1e3,
                host_us=host_us,
                tasks=int(inside.sum()),
                busy_us=busy,
                gaps_us=None if busy is None else max(0.0, span - busy),
                over_median=host_us / median,
                outlier=host_us > OUTLIER * median,
            )
        )
    return StepTable(median_us=median, unlinked=int((launched < 0).sum()), rows=tuple(out))


def launch_table(trace: Trace) -> LaunchTable:
    """Return how the device work of a trace read with its activity was launched.

    For an NPU profile without calls, the starts of arrows are used. Raises NothingRan if no device work has a recorded
    launch.
    """
    kernels, (rows, calls) = trace.kernels, _linked(trace)
    # Kernels of a graph share the call that launched it.
    alone = np.bincount(calls, minlength=1)[calls] == 1
    rows, calls, activity = rows[alone], calls[alone], trace.activity
    if activity is not None and len(rows):
        call_us = activity.calls.dur_ns[calls].astype(np.float64) / 1e3
        launched_us = activity.calls.start_ns[calls] / 1e3 + call_us
    else:
        rows, launched_ns = launched_by_arrows(trace)
        call_us, launched_us = None, launched_ns / 1e3
    if not len(rows):
        raise NothingRan(
            f"{trace.info.path} contains no device work with the calls that launched it",
            hint="Record with ProfilerActivity.CPU and the device's activity.",
        )
    dur_us = kernels.dur_ns[rows].astype(np.float64) / 1e3
    doubts = doubts_of(trace)
    delay_us = np.maximum(0.0, kernels.start_ns[rows] / 1e3 - launched_us)
    names, of_row = np.unique(kernels.name[rows], return_inverse=True)
    out: list[LaunchRow] = []
    order = np.argsort(of_row, kind="stable")
    for name, at in zip(names.tolist(), np.split(order, np.cumsum(np.bincount(of_row))[:-1]), strict=True):
        out.append(
            LaunchRow(
                name=trace.kernel_names[int(name)],
                launches=len(at),
                time_us=float(dur_us[at].sum()),
                median_us=float(np.median(dur_us[at])),
                short_share=float((dur_us[at] < SHORT_US).mean()),
                below_call_share=None if call_us is None else float((dur_us[at] < call_us[at]).mean()),
                delay_us=None if doubts.clock_offset_us else float(np.median(delay_us[at])),
                delay_p90_us=None if doubts.clock_offset_us else float(np.quantile(delay_us[at], 0.9)),
            )
        )
    out.sort(key=lambda row: (-row.time_us, row.name))
    return LaunchTable(launches=len(rows), unlinked=len(kernels) - len(rows), doubts=doubts, rows=tuple(out))


def launch_queue(trace: Trace, start_ns: int, end_ns: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (times in ns, number of launched device tasks that have not begun) at the start of an interval and at each
    change in it.
    """
    (rows, calls), activity = _linked(trace), trace.activity
    if activity is None or not len(rows):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    launched = activity.calls.start_ns[calls] + activity.calls.dur_ns[calls].astype(np.int64)
    began = np.maximum(trace.kernels.start_ns[rows], launched)
    at, change = np.concatenate([launched, began]), np.repeat([1, -1], len(rows))
    order = np.argsort(at, kind="stable")
    at, waiting = at[order], np.cumsum(change[order])
    low, high = np.searchsorted(at, [start_ns, end_ns], side="right")
    first = waiting[low - 1] if low else 0
    at, waiting = np.append(start_ns, at[low:high]), np.append(first, waiting[low:high])
    last = np.append(at[1:] != at[:-1], True)
    return at[last], waiting[last]


def _launched_ns(trace: Trace) -> npt.NDArray[np.int64]:
    """Return when each row of `Trace.kernels` was launched, from its call or otherwise its owning op; -1 if unknown."""
    owner = trace.kernels.owner
    launched = np.full(len(owner), -1, np.int64)
    launched[owner >= 0] = trace.ops.start_ns[owner[owner >= 0]]
    rows, calls = _linked(trace)
    if trace.activity is not None:
        launched[rows] = trace.activity.calls.start_ns[calls]
    return launched


def _linked(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (rows of `Trace.kernels`, rows of the calls that launched them) for kernels and calls with equal
    correlation ids.
    """
    if trace.activity is None or not len(trace.kernels):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    calls, wanted = trace.activity.calls.correlation, trace.activity.correlation
    order = np.argsort(calls, kind="stable")
    at = np.searchsorted(calls[order], wanted)
    place = np.minimum(at, max(len(order) - 1, 0))
    linked = (wanted >= 0) & (len(order) > 0)
    linked &= calls[order[place]] == wanted if len(order) else False
    rows = np.flatnonzero(linked)
    return rows, order[place[rows]]
