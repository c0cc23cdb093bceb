# pyright: strict
"""Compare all steps of a trace and show how kernels are launched, so that the user can choose a step."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from opreplay.traces.arrays import Ints
from opreplay.traces.errors import NothingRan
from opreplay.traces.links.arrows import launched_by_arrows
from opreplay.traces.links.steps import steps_of
from opreplay.traces.model import Trace
from opreplay.traces.times.busy import union_us
from opreplay.traces.times.doubts import Doubts, doubts_of

OUTLIER = 1.2
"""Minimum ratio of an outlier step's duration to the median duration."""
SHORT_US = 10.0
"""Maximum duration of a short kernel: about the time that the host needs to launch one."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One marked step; times are in microseconds."""

    name: str
    start_us: float
    """Start relative to the first step."""
    host_us: float
    """Duration of the annotation that marks the step."""
    tasks: int
    """Number of kernels, copies and fills launched during the step."""
    busy_us: float | None
    """Time during which at least one device stream ran the step's tasks; None without device work."""
    gaps_us: float | None
    """Time between the step's first and last task without work. The step's idle time can be longer."""
    over_median: float
    """`host_us` divided by the median over all steps."""
    outlier: bool


class LaunchRow(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel, copy or fill whose launching calls are recorded; times are in microseconds."""

    name: str
    launches: int
    time_us: float
    """Total time on the device."""
    median_us: float
    short_share: float
    """Share of launches that take less than 10 us on the device."""
    below_call_share: float | None
    """Share of launches whose device time is shorter than the host time of the call that launched them. None if only
    the moments of the launches are recorded.
    """
    delay_us: float | None
    """Median time from the launch to the start on the device; None if host and device clocks differ.

    It shows how long work waits on the device or in queues. The launch is the end of the launching call, or the
    recorded moment of the launch. A kernel that starts before the call ends counts as 0.
    """
    delay_p90_us: float | None


class StepTable(msgspec.Struct, frozen=True, kw_only=True):
    """All marked steps, sorted by time."""

    by: Literal["step"] = "step"
    median_us: float
    unlinked: int
    """Number of device tasks that belong to no step, because neither their launching call nor their op is recorded."""
    rows: tuple[StepRow, ...]


class LaunchTable(msgspec.Struct, frozen=True, kw_only=True):
    """Launches by kernel, those with the most time first."""

    by: Literal["launch"] = "launch"
    launches: int
    """Number of launches for which the launching call is recorded."""
    unlinked: int
    """Number of device tasks without a recorded launching call: work of graphs, or work launched before the
    recording.
    """
    doubts: Doubts = Doubts()
    """Reasons to doubt the times."""
    rows: tuple[LaunchRow, ...]


def step_table(trace: Trace) -> StepTable:
    """Return a row for every marked step of a trace read with its activity. Raises NothingRan if none is marked."""
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
    """Return how the device work of a trace was launched; the trace must have been read with its activity.

    For an NPU profile without calls, the starts of flow arrows take the place of calls. Raises NothingRan if no device
    work has a recorded launch.
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


def launch_queue(trace: Trace, start_ns: int, end_ns: int) -> tuple[Ints, Ints]:
    """Return (times in ns, length of the launch queue from each time on).

    The length is the number of device tasks that are launched but have not begun. The times are the start of the
    interval and each change within it.
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


def _launched_ns(trace: Trace) -> Ints:
    """Return the time in ns at which each row of `Trace.kernels` was launched; -1 if unknown. It is the start of the
    launching call, or of the owning op if that call is not recorded.
    """
    owner = trace.kernels.owner
    launched = np.full(len(owner), -1, np.int64)
    launched[owner >= 0] = trace.ops.start_ns[owner[owner >= 0]]
    rows, calls = _linked(trace)
    if trace.activity is not None:
        launched[rows] = trace.activity.calls.start_ns[calls]
    return launched


def _linked(trace: Trace) -> tuple[Ints, Ints]:
    """Return (rows of `Trace.kernels`, rows of the calls that launched them), matched by correlation id."""
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
