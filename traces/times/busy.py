# pyright: strict
"""Compute how busy the recorded devices were: the union of their work over the recorded span, and its overlap."""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.traces.arrays import Ints, distinct
from opreplay.traces.model import Trace
from opreplay.traces.times.communication import communication_rows

Times = Ints


class DeviceBusy(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of one device from the start of its first work to the end of its last, in microseconds."""

    device: int
    streams: int
    span_us: float
    busy_us: float
    """Time during which work ran on at least one stream."""
    busy_share: float
    """Share of the span during which work ran on at least one stream."""
    overlapped_us: float
    """Time during which work ran on at least two streams."""
    communication_us: float
    """Time during which communication ran."""
    hidden_communication_us: float
    """Time during which both communication and other work ran."""


def device_busy(trace: Trace) -> tuple[DeviceBusy, ...]:
    """Return the busy time of each device that recorded work, sorted by device number; empty if starts are not
    recorded.

    If the activity was read, the whole collectives of an NPU are included.
    """
    if not trace.info.starts_recorded:
        return ()
    kernels = trace.kernels
    communicates = communication_rows(trace)
    whole = _whole_collectives(trace)
    devices: list[DeviceBusy] = []
    for device in distinct(kernels.device).tolist():
        rows = np.flatnonzero(kernels.device == device)
        wholes = whole[whole[:, 0] == device]
        start = np.concatenate([kernels.start_ns[rows], wholes[:, 2]])
        end = np.concatenate([kernels.start_ns[rows] + kernels.dur_ns[rows].astype(np.int64), wholes[:, 3]])
        talks = np.concatenate([communicates[rows], np.ones(len(wholes), bool)])
        of_stream = _by_stream(start, end, np.concatenate([kernels.stream[rows].astype(np.int64), wholes[:, 1]]))
        comm, work = _union(start[talks], end[talks]), _union(start[~talks], end[~talks])
        busy, span = _length(_union(start, end)), float(end.max() - start.min()) / 1e3
        devices.append(
            DeviceBusy(
                device=int(device),
                streams=len(distinct(kernels.stream[rows])),
                span_us=span,
                busy_us=busy,
                busy_share=busy / span if span else 0.0,
                overlapped_us=_at_least_two(*of_stream),
                communication_us=_length(comm),
                hidden_communication_us=max(0.0, _length(comm) + _length(work) - busy),
            )
        )
    return tuple(devices)


def _whole_collectives(trace: Trace) -> Times:
    """Return (device, stream, start, end in ns) [n, 4] of an NPU's whole collectives, on the device and stream of their
    tasks.
    """
    activity = trace.activity
    out: list[tuple[int, int, int, int]] = []
    for index in range(0 if activity is None else len(activity.spans)):
        assert activity is not None
        spans = activity.spans
        parts = np.flatnonzero(activity.correlation == spans.correlation[index])
        if spans.correlation[index] >= 0 and len(parts):
            start, part = int(spans.start_ns[index]), parts[0]
            end = start + int(spans.dur_ns[index])
            out.append((int(trace.kernels.device[part]), int(trace.kernels.stream[part]), start, end))
    return np.array(out, np.int64).reshape(-1, 4)


def _union(start: Times, end: Times) -> tuple[Times, Times]:
    """Return sorted disjoint intervals that cover the same time."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([np.ones(1, bool), start[1:] > end[:-1]])
    last = np.append(np.flatnonzero(opens)[1:] - 1, len(end) - 1)
    return start[opens], end[last]


def union_us(start: Times, end: Times) -> float:
    """Return the microseconds covered by at least one interval."""
    return _length(_union(start, end))


def _length(intervals: tuple[Times, Times]) -> float:
    """Return the total length of the intervals in microseconds."""
    return float((intervals[1] - intervals[0]).sum(dtype=np.int64)) / 1e3


def _by_stream(start: Times, end: Times, stream: Times) -> tuple[Times, Times]:
    """Return the intervals of all streams, merged within each stream, because a stream does not overlap with itself."""
    parts = [_union(start[stream == number], end[stream == number]) for number in distinct(stream)]
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _at_least_two(start: Times, end: Times) -> float:
    """Return the microseconds covered by two or more intervals."""
    times = np.concatenate([start, end])
    change = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])
    order = np.lexsort((change, times))
    times, depth = times[order], np.cumsum(change[order])
    return float((np.diff(times) * (depth[:-1] >= 2)).sum(dtype=np.int64)) / 1e3
