"""Selects the recorded step that a sequence replays, and lists the step's calls in order.

Does not need torch. `linking` determines which tensors of different calls are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from opreplay.replay.ir.model import MAX_CALLS, RecordedSequence
from opreplay.replay.plan.select import outermost
from opreplay.replay.plan.step.beside import NEVER, RequestedCollective, place_collectives
from opreplay.traces.arrays import Bools, Floats, Ints
from opreplay.traces.links.annotations import Phase
from opreplay.traces.links.iterations import BatchIndex
from opreplay.traces.links.parents import innermost_parent, of_rows, outermost_of
from opreplay.traces.links.steps import busy_steps
from opreplay.traces.model import Trace

Rows = Ints
Window = tuple[str, int, int, int]
"""A recorded step: its name, its start and end in ns, and its track. A track of -1 stands for all processes."""


def recorded_sequence(
    trace: Trace,
    rows: Rows,
    owner: Rows,
    ids: list[str],
    planned_ids: Collection[str],
    *,
    select: str,
    phase: Phase | None = None,
    collectives: Sequence[RequestedCollective] = (),
) -> RecordedSequence:
    """Return the selected calls of one recorded step in order of start, with the trace's `collectives`.

    `rows` are the selected rows. `owner` [kernels] is the selected row to which a kernel's time is attributed, or -1.
    `ids` has the op id of each signature, `planned_ids` the ids of ops in the plan.

    The step is the one of median duration among torch.profiler's steps. If there are none, or if a phase is requested,
    it is chosen among the server's iterations. If the trace marks neither, the whole trace is the step.
    """
    if select == "all":
        rows = outermost(trace, innermost_parent(trace.ops))
    windows = _with_calls(trace, rows, _iterations(trace) if phase is not None else _steps(trace) or _iterations(trace))
    name, begin, end, track = _median(windows) if windows else ("", *_span(trace, rows), -1)
    inside = rows if not windows else rows[_within(trace, rows, begin, end, track)]
    order = inside[np.argsort(trace.ops.start_ns[inside], kind="stable")]
    owned = owner >= 0
    weights = trace.kernels.dur_ns[owned].astype(np.float64)
    device_ns = np.bincount(owner[owned], weights=weights, minlength=len(trace.ops)).astype(np.float64)
    top, device_ns = _not_nested(trace, order, device_ns)
    of_signature = trace.ops.signature[top].tolist()
    names = list(dict.fromkeys(ids[index] for index in of_signature if ids[index] in planned_ids))
    number = {id_: i for i, id_ in enumerate(names)}
    chosen = top[[ids[index] in planned_ids for index in of_signature]] if len(top) else top
    first = chosen[:MAX_CALLS]
    unowned = _unowned_us(trace, begin, end) if windows else _unowned_us(trace, None, None)
    has_device = bool((trace.kernels.owner >= 0).any())
    return RecordedSequence(
        step=name,
        steps=len(windows),
        dur_us=(end - begin) / 1e3,
        ids=tuple(names),
        calls=tuple(number[ids[index]] for index in trace.ops.signature[first].tolist()),
        host_us=tuple((trace.ops.dur_ns[first] / 1e3).tolist()),
        device_us=tuple((device_ns[first] / 1e3).tolist()) if has_device else (),
        memories=() if trace.ops.memories is None else tuple(map(trace.ops.memories.of_row, first.tolist())),
        collectives=place_collectives(collectives, begin, end, trace.ops.start_ns[first], _begins(trace, owner)[first]),
        nested=len(order) - len(top),
        cut=len(chosen) - len(first),
        device_us_total=float(device_ns[top].sum()) / 1e3 + unowned if has_device else 0.0,
        unowned_device_us=unowned,
        host_us_total=float(trace.ops.dur_ns[top].sum(dtype=np.int64)) / 1e3,
    )


def _begins(trace: Trace, owner: Rows) -> Rows:
    """Return, for each row of `trace.ops`, the start of its first device work in ns; `NEVER` if it has none."""
    begins = np.full(len(trace.ops), NEVER, dtype=np.int64)
    owned = owner >= 0
    np.minimum.at(begins, owner[owned], trace.kernels.start_ns[owned])
    return begins


def _steps(trace: Trace) -> list[Window]:
    """Return torch.profiler's marked steps that launch work."""
    return [
        (step.name, step.start_ns, step.end_ns, step.track) for step in busy_steps(trace) if step.number is not None
    ]


def _iterations(trace: Trace) -> list[Window]:
    """Return the iterations of an inference server. They are named by number, because their batches may be equal."""
    iterations = BatchIndex(trace).iterations
    return [
        (f"iteration {i + 1} of {len(iterations)}", iteration.start_ns, iteration.end_ns, -1)
        for i, iteration in enumerate(iterations)
    ]


def _with_calls(trace: Trace, rows: Rows, windows: list[Window]) -> list[Window]:
    """Return the windows in which at least one selected call starts, in the process that marked the window."""
    if not windows:
        return []
    processes = {track: _of_process(trace, rows, track) for track in {window[3] for window in windows}}
    starts = {track: np.sort(trace.ops.start_ns[rows[mine]]) for track, mine in processes.items()}
    return [window for window in windows if np.diff(np.searchsorted(starts[window[3]], window[1:3]))[0] > 0]


def _within(trace: Trace, rows: Rows, begin: int, end: int, track: int) -> Bools:
    """Return a mask of the rows that start in the window and belong to the process that marked it."""
    start = trace.ops.start_ns[rows]
    return (start >= begin) & (start < end) & _of_process(trace, rows, track)


def _of_process(trace: Trace, rows: Rows, track: int) -> Bools:
    """Return a mask of the rows that belong to the process of a track. Other processes run other steps. For track -1,
    all rows belong.
    """
    if not 0 <= track < len(trace.tracks):
        return np.ones(len(rows), dtype=bool)
    process = trace.tracks[track][0]
    same = np.array([pid == process for pid, _ in trace.tracks], dtype=bool)
    return same[trace.ops.track[rows]]


def _median(windows: list[Window]) -> Window:
    """Return the window of median duration. If two are in the middle, it is the shorter one; if they are equally long,
    the earlier one.
    """
    return sorted(windows, key=lambda window: (window[2] - window[1], window[1]))[(len(windows) - 1) // 2]


def _span(trace: Trace, rows: Rows) -> tuple[int, int]:
    """Return the start of the first selected call and the end of the last, in ns."""
    if not len(rows):
        return 0, 0
    start = trace.ops.start_ns[rows]
    return int(start.min()), int((start + trace.ops.dur_ns[rows]).max())


def _not_nested(trace: Trace, order: Rows, device_ns: Floats) -> tuple[Rows, Floats]:
    """Return (the selected calls that are not nested in another one, the device time in ns of each row).

    The device time of a call includes that of the calls nested in it, because replaying the call also runs them.
    """
    chosen = np.zeros(len(trace.ops), dtype=bool)
    chosen[order] = True
    parents = innermost_parent(trace.ops)
    around = of_rows(parents, outermost_of(parents, chosen))[order]
    inner = order[around >= 0]
    moved = device_ns.copy()
    np.add.at(moved, around[around >= 0], device_ns[inner])
    return order[around < 0], moved


def _unowned_us(trace: Trace, begin: int | None, end: int | None) -> float:
    """Return the device time (µs) of kernels that start in the window and belong to no op."""
    kernels = trace.kernels
    unowned = kernels.owner < 0
    if begin is not None and end is not None:
        unowned = unowned & (kernels.start_ns >= begin) & (kernels.start_ns < end)
    return float(kernels.dur_ns[unowned].sum(dtype=np.int64)) / 1e3
