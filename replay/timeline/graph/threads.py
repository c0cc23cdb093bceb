# pyright: strict
"""Split the host threads of one step into slices by the innermost running event. Devices play no part here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import NO_OP, Slices
from opreplay.traces import Trace
from opreplay.traces.activity import CALL_KINDS
from opreplay.traces.arrays import Array, Bools, Floats, Ints, distinct
from opreplay.traces.links.parents import innermost_of, nest
from opreplay.traces.links.steps import Step

_CANN = "CANN"
"""Name of the process under which torch_npu records calls that belong to threads of another process."""
_FRAMES = (CALL_KINDS.index("frame"), CALL_KINDS.index("python"))


class HostEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events on one thread within a step: ops and calls, outer events before inner events.

    Times are in µs after the step's start.
    """

    track: int
    start_us: Floats
    end_us: Floats
    parent: Ints
    """Position of the enclosing event in these arrays, or -1."""
    op: Ints
    """Row in `Trace.ops`, or -1 if the event is a call."""
    call: Ints
    """Row in `Activity.calls`, or -1 if the event is an op."""

    def enclosing_op(self) -> Ints:
        """Return, for each event, the row of the innermost op around it, or `NO_OP`.

        For an event that is an op, it is the op's own row.
        """
        around = innermost_of(self.parent, self.op >= 0)
        return np.where(around >= 0, self.op[around], NO_OP) if len(around) else around


def host_events(trace: Trace, step: Step, main: int, home: Ints) -> list[HostEvents]:
    """Return the threads of the step's process with events in the step. The marking thread (`main`) comes first."""
    activity, ops = trace.activity, trace.ops
    assert activity is not None
    calls = activity.calls
    op_home = home[ops.track] if len(ops) else np.empty(0, np.int64)
    call_home = home[calls.track] if len(calls) else np.empty(0, np.int64)
    timed = (calls.dur_ns > 0) & ~np.isin(calls.kind, _FRAMES)
    op_rows = np.flatnonzero((op_home >= 0) & _within(ops.start_ns, ops.dur_ns, step) & (ops.dur_ns > 0))
    call_rows = np.flatnonzero((call_home >= 0) & _within(calls.start_ns, calls.dur_ns, step) & timed)
    track = np.concatenate([op_home[op_rows], call_home[call_rows]])
    start = np.concatenate([ops.start_ns[op_rows], calls.start_ns[call_rows]])
    end = start + np.concatenate([ops.dur_ns[op_rows].astype(np.int64), calls.dur_ns[call_rows].astype(np.int64)])
    start, end = np.maximum(start, step.start_ns), np.minimum(end, step.end_ns)
    op = np.concatenate([op_rows, np.full(len(call_rows), -1)])
    call = np.concatenate([np.full(len(op_rows), -1), call_rows])
    out: list[HostEvents] = []
    for at in [main, *sorted(set(track.tolist()) - {main})]:
        rows, parent = nest(*_of(track == at, start, end))
        ends = end[rows]
        for _ in range(8):  # a damaged trace: no event ends after the one around it
            ends = np.where(parent >= 0, np.minimum(ends, ends[parent]), ends)
        unmarked = (op[rows] < 0) | ~_is_mark(trace, op[rows])
        out.append(
            HostEvents(
                track=at,
                start_us=(start[rows] - step.start_ns) / 1e3,
                end_us=(np.maximum(ends, start[rows]) - step.start_ns) / 1e3,
                parent=parent,
                op=np.where(unmarked, op[rows], -1),
                call=call[rows],
            )
        )
    return out


def _is_mark(trace: Trace, ops: Ints) -> Bools:
    """Return a mask of ops that only mark steps for torch_npu and do no work."""
    marks = np.array([s.name.startswith("ProfilerStep") for s in trace.signatures] or [False])
    return marks[trace.ops.signature[ops]] if len(trace.ops) else np.zeros(len(ops), bool)


def _of(chosen: Bools, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    rows = np.flatnonzero(chosen)
    return rows, start[rows], (end - start)[rows]


def _within(start: Ints, dur: Array, step: Step) -> Bools:
    return (start < step.end_ns) & (start + dur > step.start_ns)


def homes(trace: Trace, main: int) -> Ints:
    """Map each track to the track of the same thread in the main process, or to -1. CANN records threads in another
    process.
    """
    assert trace.activity is not None
    if main < 0:
        return np.full(len(trace.tracks), -1, np.int64)
    pid = trace.tracks[main][0]
    by_thread = {tid: index for index, (process, tid) in enumerate(trace.tracks) if process == pid}
    home = np.full(len(trace.tracks), -1, np.int64)
    for index, (process, tid) in enumerate(trace.tracks):
        if process == pid:
            home[index] = index
        elif trace.activity.processes.get(process) == _CANN:
            home[index] = by_thread.get(tid, index)
    return home


def main_track(trace: Trace, step: Step) -> int:
    """Return the thread that marks the step.

    If no thread does, return the thread with the most time in ops, except autograd's threads. If there are no ops,
    return the thread with the most runtime calls; -1 if there is none.
    """
    if step.track >= 0:
        return step.track
    assert trace.activity is not None
    calls, n = trace.activity.calls, len(trace.tracks)
    if not len(trace.ops):
        return int(np.bincount(calls.track, minlength=n).argmax()) if len(calls) else -1
    spent = np.bincount(trace.ops.track, weights=trace.ops.dur_ns.astype(np.float64), minlength=n)
    backward = np.array([s.name.startswith(_AUTOGRAD) for s in trace.signatures] or [False])
    of_autograd = np.zeros(n, bool)
    of_autograd[distinct(trace.ops.track[backward[trace.ops.signature]])] = True
    return int(np.where(of_autograd & ~of_autograd.all(), -1.0, spent).argmax())


_AUTOGRAD = "autograd::engine::evaluate_function"


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one thread as slices, and as blocks. A block ends where the thread waits or where others wait for it.

    Times are in µs after the step's start. Blocks exclude the thread's waits.
    """

    start_us: Floats
    end_us: Floats
    first_slice: Ints
    slices: Ints
    parts: Slices


def blocks_of(
    events: HostEvents,
    begin_us: float,
    end_us: float,
    points_us: Iterable[float],
    waits_us: Sequence[tuple[float, float]],
) -> Blocks:
    """Return a thread's blocks from `begin_us` to `end_us`.

    They are split at `points_us` and exclude `waits_us`, the (start, end) of the thread's waits. The last block has
    zero length. Nodes that wait for the thread's end depend on this block.
    """
    bound, owner = _tiles(events, begin_us, end_us)
    waits = _merged(waits_us, begin_us, end_us)
    cuts = {begin_us, end_us, *(p for p in points_us if begin_us < p < end_us)}
    cuts.update(t for wait in waits for t in wait)
    edges = np.array(sorted(cuts), np.float64)
    starts, ends = np.append(edges[:-1], end_us), np.append(edges[1:], end_us)
    middle = (starts + ends) / 2
    begins, until = np.array([(-np.inf, -np.inf), *waits]).T
    waiting = middle < until[np.searchsorted(begins, middle, side="right") - 1]
    waiting[-1] = False
    # slices: tiles cut at the edges of blocks as well
    lines = np.union1d(bound, edges)
    tile = np.searchsorted(bound, lines[:-1], side="right") - 1
    lengths = np.diff(lines)
    starts, ends = starts[~waiting], ends[~waiting]
    first, last = np.searchsorted(lines[:-1], starts), np.searchsorted(lines[:-1], ends)
    event = owner[tile]
    op = events.enclosing_op()
    return Blocks(
        start_us=starts,
        end_us=ends,
        first_slice=first,
        slices=np.maximum(last - first, 0),
        parts=Slices(
            dur_us=lengths,
            op=np.where(event >= 0, op[event], NO_OP) if len(op) else np.full(len(event), NO_OP),
            call=np.where(event >= 0, events.call[event], -1) if len(op) else np.full(len(event), -1),
        ),
    )


def _tiles(events: HostEvents, begin_us: float, end_us: float) -> tuple[Floats, Ints]:
    """Split a thread at each change of the innermost event. Return (starts, position of the innermost event or -1)."""
    n = len(events.start_us)
    position = np.flatnonzero(events.end_us > events.start_us)
    times = np.concatenate([[begin_us], events.start_us[position], events.end_us[position]])
    owner = np.concatenate([[-1], position, events.parent[position]])
    # At one time: what ends does so before anything starts, an inner one first; an outer one starts first.
    order = np.lexsort((np.concatenate([[-n - 1], position, -position - 1]), times))
    times, owner = np.clip(times[order], begin_us, end_us), owner[order]
    last_of_time = np.append(times[1:] > times[:-1], True)
    return times[last_of_time], owner[last_of_time]


def _merged(waits: Sequence[tuple[float, float]], begin_us: float, end_us: float) -> list[tuple[float, float]]:
    """Return the waits, clipped to the range and sorted, with overlapping waits merged."""
    out: list[tuple[float, float]] = []
    for start, end in sorted((max(a, begin_us), min(b, end_us)) for a, b in waits):
        if end <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out
