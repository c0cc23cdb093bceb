# pyright: strict
"""Memory over a step as the profiler recorded it: the peak, what was live at it by op, and what device it fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.timeline.graph.steps import Step
from opreplay.replay.timeline.names import PYTHON
from opreplay.traces import Trace
from opreplay.traces.links.parents import innermost_at

MOST_OPS = 20
BEFORE = "(allocated before the step)"


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes of the busiest device over one step, from recorded allocations (`profile_memory=True`)."""

    on_device: bool
    """False: the trace has allocations of the host alone."""
    begin_bytes: int
    peak_bytes: int
    peak_at_us: float
    """After the step's start."""
    end_bytes: int
    allocations: int
    at_peak_by_op: dict[str, int]
    """What is live at the peak by the op that allocated it, largest first."""
    fits: dict[str, bool]
    """Simulated device → whether the peak fits its memory; what the framework keeps in reserve is not counted."""


def memory_of(trace: Trace, step: Step, devices: Sequence[DeviceProfile]) -> MemoryUse | None:
    """Memory over a step; None where the trace records no allocations in it."""
    assert trace.activity is not None
    table = trace.activity.memory
    inside = (table.time_ns >= step.start_ns) & (table.time_ns < step.end_ns)
    on_device = bool((inside & table.on_device).any())
    inside &= table.on_device if on_device else ~table.on_device
    if not inside.any():
        return None
    numbers, counts = np.unique(table.device[inside], return_counts=True)
    inside &= table.device == numbers[counts.argmax()]
    rows = np.flatnonzero(inside)
    rows = rows[np.argsort(table.time_ns[rows], kind="stable")]
    change, told = table.bytes[rows], table.allocated_bytes[rows]
    # Where the allocator does not say how much is in use, only what the step adds is known.
    live = told if (told >= 0).all() else np.cumsum(change)
    peak = int(live.argmax())
    by_op = _live_by_op(trace, rows[: peak + 1])
    before = int(live[peak]) - sum(by_op.values())
    if before > 0:
        by_op[BEFORE] = before
    return MemoryUse(
        on_device=on_device,
        begin_bytes=int(live[0] - change[0]),
        peak_bytes=int(live[peak]),
        peak_at_us=float(table.time_ns[rows[peak]] - step.start_ns) / 1e3,
        end_bytes=int(live[-1]),
        allocations=int((change > 0).sum()),
        at_peak_by_op=dict(sorted(by_op.items(), key=lambda item: -item[1])[:MOST_OPS]),
        fits={device.name: int(live[peak]) <= device.hbm_bytes for device in devices},
    )


def _live_by_op(trace: Trace, rows: np.ndarray) -> dict[str, int]:
    """Bytes allocated in these rows and not released in them, by the op around each allocation."""
    assert trace.activity is not None
    table, ops = trace.activity.memory, trace.ops
    live: dict[int, int] = {}
    for row in rows.tolist():
        if table.bytes[row] > 0:
            live[int(table.address[row])] = row
        else:
            live.pop(int(table.address[row]), None)
    kept = np.array(sorted(live.values()), np.int64)
    out: defaultdict[str, int] = defaultdict(int)
    for track in np.unique(table.track[kept]):
        here = kept[table.track[kept] == track]
        of_track = np.flatnonzero(ops.track == track)
        found = np.full(len(here), -1, np.int64)
        if len(of_track):
            found = innermost_at(
                table.time_ns[here], of_track, ops.start_ns[of_track], ops.dur_ns[of_track].astype(np.int64)
            )
        for row, op in zip(here.tolist(), found.tolist(), strict=True):
            out[trace.signatures[int(ops.signature[op])].name if op >= 0 else PYTHON] += int(table.bytes[row])
    return dict(out)
