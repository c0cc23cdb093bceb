# pyright: strict
"""Find and remove host work of a step, e.g. Python functions, that launches nothing and could run in parallel.

If stacks were recorded (`with_stack=True`), the work is named after functions. Otherwise, it is named after
`record_function` ranges, or after the ops around a long gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from opreplay.replay.ir.labels import is_label
from opreplay.replay.timeline.changes import Edited, take_slices
from opreplay.replay.timeline.dispatch import SOME_LAUNCHES, Stretches, while_others_launch
from opreplay.replay.timeline.graph.model import CROSS_THREAD, LAUNCH, NEVER, NO_OP, SYNC, WOKEN, StepGraph
from opreplay.replay.timeline.names import Names, named_ranges, without_folders
from opreplay.replay.timeline.python_time import FRAMES, LOADER, LOADER_FILES, slice_spans
from opreplay.traces import Trace
from opreplay.traces.arrays import Bools, Floats, Ints, distinct
from opreplay.traces.links.steps import launching_calls

MOST_FUNCTIONS = 5
"""Maximum number of functions and gaps per step for which a change is tried."""
SAME = 0.9
"""Minimum share of a function's time that an inner function must take to lend its name to the work."""
_BUILT_IN = "<built-in"
_NODE = "autograd::engine::evaluate_function: "
_PROFILER = "torch/profiler/"
"""Substring of the file names of frames that exist only while the profiler runs."""


class HostWork(msgspec.Struct, frozen=True, kw_only=True):
    """Host work of one thread that launches nothing and does not wait for device work."""

    name: str
    """Name of the function or range; "" for a gap without a name in the trace."""
    within: str
    """Outermost function that encloses the work and launches nothing. For a gap: the ops before and after it."""
    is_loader: bool
    lane: int
    begin: Ints
    end: Ints
    """End of each interval, in ns on the trace's clock. Intervals are sorted and do not overlap."""

    @property
    def us(self) -> float:
        """Return the total time in µs."""
        return float((self.end - self.begin).sum()) / 1e3


def host_work(names: Names, graph: StepGraph, stretches: Stretches, least_us: float) -> list[HostWork]:
    """Return functions that launch nothing and long unnamed gaps, longest first.

    Each takes at least `least_us` in the step.
    """
    found: list[HostWork] = []
    for lane, of in enumerate(graph.lanes):
        if of.device or of.track < 0 or not len(_launches_and_waits(names, graph, lane)):
            continue  # nothing tells what a thread does that launches nothing and waits for nothing
        named = _functions(names, graph, lane, least_us)
        found += named
        found += [gap for gap in _gaps(names, graph, lane, stretches, named) if gap.us >= least_us]
    return sorted(found, key=lambda work: -work.us)[:MOST_FUNCTIONS]


def without_work(graph: StepGraph, work: HostWork) -> Edited:
    """Return the step without this host work and without its thread's waits during the work."""
    nodes, edges = graph.nodes, graph.edges
    out = Edited.unchanged(graph)
    mine = np.flatnonzero((nodes.lane == work.lane) & (nodes.slices > 0))
    rows, _, begin, end = slice_spans(graph, mine)
    left_us = out.slices_us.copy()
    left_us[rows] -= np.minimum(left_us[rows], (_covered(work, end) - _covered(work, begin)) / 1e3)
    take_slices(out, left_us)
    start = graph.step.start_ns + np.round(1e3 * nodes.start_us[edges.target]).astype(np.int64)
    inside = _covered(work, start + 1) > _covered(work, start)
    waits = np.isin(edges.kind, (CROSS_THREAD, WOKEN)) & (nodes.lane[edges.target] == work.lane) & inside
    out.lags_us[waits] = NEVER
    out.matched = len(work.begin)
    return out


def _covered(work: HostWork, at: Ints) -> Floats:
    """Return, for each time, how long the work had run before it, in ns."""
    before = np.concatenate([[0], np.cumsum(work.end - work.begin)])
    place = np.searchsorted(work.begin, at, side="right")
    over = np.where(place > 0, np.append(0, work.end)[place] - at, 0)
    return (before[place] - np.maximum(0, over)).astype(np.float64)


def _functions(names: Names, graph: StepGraph, lane: int, least_us: float) -> list[HostWork]:
    """Return functions or ranges of one thread that launch nothing and take at least `least_us`."""
    texts, label, begin, end = _ranges(names.trace, graph, graph.lanes[lane].track)
    if not len(label):
        return []
    busy = _launches_and_waits(names, graph, lane)
    idle = np.searchsorted(busy, begin) == np.searchsorted(busy, end, side="right")
    if not graph.on_device:  # the ops in which a loader makes its batch can run in its workers
        idle |= np.array([text.startswith(LOADER) or LOADER_FILES in text for text in texts])[label]
    idle &= ~_while_others_work(names, graph, lane, begin, end)
    label, begin, end = label[idle], begin[idle], end[idle]
    reached = np.maximum.accumulate(np.append(graph.step.start_ns, end))[:-1]
    outer = np.flatnonzero(end > np.maximum(reached, begin))
    outer_of = np.searchsorted(begin[outer], begin, side="right") - 1
    found: list[HostWork] = []
    outermost: list[int] = distinct(label[outer]).tolist()
    for index in outermost:
        calls = outer[label[outer] == index]
        total = int((end[calls] - begin[calls]).sum())
        if total < 1e3 * least_us or _PROFILER in texts[index]:
            continue
        inside = np.flatnonzero(label[outer[outer_of]] == index)
        spent: defaultdict[int, int] = defaultdict(int)
        for row in inside.tolist():
            spent[int(label[row])] += int(end[row] - begin[row])
        whole = [at for at, ns in spent.items() if SAME * total <= ns <= total]
        own = [at for at in whole if not texts[at].startswith(_BUILT_IN)]
        inner: int = min(own, key=lambda at: spent[at], default=index)
        found.append(
            HostWork(
                name=without_folders(texts[inner]),
                within=without_folders(texts[index]),
                is_loader=any("dataloader" in texts[at].lower() for at in (*whole, index)),
                lane=lane,
                begin=begin[calls],
                end=end[calls],
            )
        )
    return found


def _ranges(trace: Trace, graph: StepGraph, track: int) -> tuple[list[str], Ints, Ints, Ints]:
    """Return (names; name index, begin and end of each interval) for a thread's named intervals in the step.

    Outer intervals come before inner intervals.
    """
    ranges = named_ranges(trace, FRAMES)
    rows = np.flatnonzero(ranges.track == track)
    texts: list[str] = list(ranges.names)
    label = ranges.label[rows]
    begin, end = ranges.start_ns[rows], ranges.start_ns[rows] + ranges.dur_ns[rows]
    labels = np.array([is_label(signature) and "::" not in signature.name for signature in trace.signatures] or [False])
    ops = np.flatnonzero((trace.ops.track == track) & labels[trace.ops.signature]) if len(trace.ops) else rows[:0]
    signature = trace.ops.signature[ops].astype(np.int64)
    label = np.concatenate([label, len(texts) + signature])
    texts += [signature.name for signature in trace.signatures]
    begin = np.concatenate([begin, trace.ops.start_ns[ops]]).astype(np.int64)
    end = np.concatenate([end, trace.ops.start_ns[ops] + trace.ops.dur_ns[ops]]).astype(np.int64)
    until = graph.step.end_ns
    begin, end = np.maximum(begin, graph.step.start_ns), np.minimum(end, until)
    there = np.flatnonzero(end > begin)
    there = there[np.lexsort((-end[there], begin[there]))]
    return texts, label[there], begin[there], end[there]


def _launches_and_waits(names: Names, graph: StepGraph, lane: int) -> Ints:
    """Return the sorted times, in ns, at which the thread launches device work or stops waiting for it.

    For a step without device work, return the times at which the thread's ops start.
    """
    nodes, edges, trace = graph.nodes, graph.edges, names.trace
    if not graph.on_device:
        return np.sort(trace.ops.start_ns[trace.ops.track == graph.lanes[lane].track].astype(np.int64))
    launching = distinct(edges.source[edges.kind == LAUNCH])
    activity = trace.activity
    assert activity is not None
    # Of launches into a graph that is being captured, and of those that the profiler lost, no task is recorded.
    calls = np.flatnonzero((activity.calls.track == graph.lanes[lane].track) & launching_calls(activity))
    waiting = distinct(edges.target[(edges.kind == SYNC) & (edges.lag_us > NEVER / 2)])
    launching, waiting = (rows[nodes.lane[rows] == lane] for rows in (launching, waiting))
    times_us = np.concatenate([nodes.start_us[launching] + nodes.dur_us[launching], nodes.start_us[waiting]])
    times = graph.step.start_ns + np.round(1e3 * times_us).astype(np.int64)
    return np.sort(np.concatenate([times, activity.calls.start_ns[calls].astype(np.int64)]))


def _while_others_work(names: Names, graph: StepGraph, lane: int, begin: Ints, end: Ints) -> Bools:
    """Return a mask of a thread's intervals in which other threads work. The thread probably waits for them.

    The other threads launch kernels or, in a step without device work, run ops.
    """
    if graph.on_device:
        low_us, high_us = ((at - graph.step.start_ns) / 1e3 for at in (begin, end))
        return while_others_launch(graph, lane, low_us, high_us)
    others = np.sort(names.trace.ops.start_ns[names.trace.ops.track != graph.lanes[lane].track])
    return np.searchsorted(others, end) - np.searchsorted(others, begin) >= SOME_LAUNCHES


def _gaps(names: Names, graph: StepGraph, lane: int, stretches: Stretches, named: Sequence[HostWork]) -> list[HostWork]:
    """Return long gaps between ops, grouped by the ops around them. Gaps that a named function explains are
    left out.
    """
    if not graph.on_device:
        return []  # nothing tells Python from waiting for another thread or process
    nodes, slices = graph.nodes, graph.slices
    mine = np.flatnonzero((nodes.lane == lane) & (nodes.slices > 0))
    mine = mine[stretches.is_long[stretches.of_node[mine]]]
    rows, _, begin, end = slice_spans(graph, mine)
    gap = (slices.op[rows] == NO_OP) & (slices.call[rows] < 0) & (end - begin >= 1e3 * stretches.least_long_us)
    explained = sum((_covered(work, end) - _covered(work, begin) for work in named), np.zeros(len(rows), np.float64))
    gap &= (explained < 0.5 * (end - begin)) & ~_while_others_work(names, graph, lane, begin, end)
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for at in np.flatnonzero(gap).tolist():
        if where := _around(names, graph, lane, int(rows[at])):
            groups[where].append(at)
    return [
        HostWork(name="", within=where, is_loader=False, lane=lane, begin=begin[at], end=end[at])
        for where, at in groups.items()
    ]


def _around(names: Names, graph: StepGraph, lane: int, row: int) -> str:
    """Return text with the ops before and after a slice, e.g. "between aten::add and aten::copy_".

    In a trace that marks no steps, the text is "" before the first and after the last op.
    """
    nodes, ops = graph.nodes, graph.slices.op
    mine = np.flatnonzero((nodes.lane == lane) & (nodes.slices > 0))
    low, high = int(nodes.first_slice[mine].min()), int((nodes.first_slice[mine] + nodes.slices[mine]).max())
    before = np.flatnonzero(ops[low:row] >= 0)
    after = np.flatnonzero(ops[row + 1 : high] >= 0)
    if not len(before):
        return "at the start of the step" if graph.step.marked else ""
    if not len(after):
        return "at the end of the step" if graph.step.marked else ""
    around = (ops[low + before[-1]], ops[row + 1 + after[0]])
    return "between {} and {}".format(*(names.op(int(op)).removeprefix(_NODE) for op in around))
