# pyright: strict
"""Split host work at launches, and find what can be removed together: ops with their tasks, sequences of elementwise
kernels.
"""

from __future__ import annotations

import msgspec
import numpy as np

from opreplay.replay.ir.labels import is_label
from opreplay.replay.timeline.graph.model import (
    COPY,
    CROSS_STREAM,
    HOST,
    KERNEL,
    LAUNCH,
    NEVER,
    STREAM,
    SYNC,
    StepGraph,
)
from opreplay.replay.timeline.names import Names, op_parents
from opreplay.traces import Trace
from opreplay.traces.arrays import Bools, Floats, Ints, distinct
from opreplay.traces.model import MOST_ELEMENTS, OpSignature
from opreplay.traces.times.kernel_classes import class_of_work

LONG_US, LONG_TIMES = 300.0, 20.0
"""Host work without a launch is not dispatch if it takes more than LONG_US µs and more than LONG_TIMES times the
median.
"""
SOME_LAUNCHES = 2
"""Number of kernels that other threads must launch during an interval of a thread. The thread is then assumed to wait
for those threads.
"""
_DIRECTIONS = {
    "HtoD": ("htod", "hosttodevice", "host->device"),
    "DtoH": ("dtoh", "devicetohost", "device->host"),
    "DtoD": ("dtod", "devicetodevice", "device->device", "ptop"),
}
MOST_FUSED = 64
"""Maximum number of kernels to fuse into one: the default limit of torch.compile."""
FUSABLE = ("elementwise", "copies")
"""Classes of kernels that a compiler fuses with adjacent kernels: each element of the result is computed separately."""


def copy_direction(name: str) -> str:
    """Return the direction "HtoD", "DtoH" or "DtoD" from a recorded copy's name; "" if it is not in the name."""
    text = name.lower().replace(" ", "")
    return next((to for to, words in _DIRECTIONS.items() if any(word in text for word in words)), "")


def copies_of(trace: Trace, graph: StepGraph, *directions: str) -> Bools:
    """Return a mask of the step's copies in these directions; "" selects copies whose name has no direction."""
    found = np.array([copy_direction(name) in directions for name in trace.kernel_names] or [False])
    nodes = graph.nodes
    return (nodes.kind == COPY) & (nodes.name >= 0) & found[np.maximum(nodes.name, 0)]


class Stretches(msgspec.Struct, frozen=True, kw_only=True):
    """Host work of each thread, split at its launches."""

    of_node: Ints
    """Interval index of each host node; -1 for device tasks."""
    us: Floats
    """Host time of each interval, without waits."""
    is_long: Bools
    """Mask of intervals that take much longer than the dispatch of an op."""
    least_long_us: float
    """Threshold above which an interval is long."""
    outside_graphs: Bools
    """Mask of intervals that no captured graph can contain. They are long, wait for the device, or are next to a copy
    from or to the host.
    """


def stretches_of(trace: Trace, graph: StepGraph) -> Stretches:
    """Split the step's host work into intervals at launches."""
    nodes, edges, count = graph.nodes, graph.edges, len(graph.nodes)
    launches = np.flatnonzero(edges.kind == LAUNCH)
    launching, copying, waiting = (np.zeros(count, bool) for _ in range(3))
    launching[edges.source[launches]] = True
    with_host = copies_of(trace, graph, "HtoD", "DtoH", "")
    copying[edges.source[launches[with_host[edges.target[launches]]]]] = True
    waiting[edges.target[(edges.kind == SYNC) & (edges.lag_us > NEVER / 2)]] = True
    device = np.array([lane.device for lane in graph.lanes] or [False])[nodes.lane]
    rows = np.flatnonzero((nodes.kind == HOST) & ~device)
    rows = rows[np.argsort(nodes.lane[rows], kind="stable")]
    first = np.ones(len(rows), bool)
    first[1:] = (nodes.lane[rows[1:]] != nodes.lane[rows[:-1]]) | launching[rows[:-1]]
    number = np.cumsum(first) - 1
    total = int(number[-1]) + 1 if len(rows) else 0
    of_node = np.full(count, -1, np.int64)
    of_node[rows] = number

    def among(marked: Bools) -> Bools:
        return np.bincount(number, weights=marked[rows], minlength=total) > 0

    us: Floats = np.bincount(number, weights=nodes.dur_us[rows], minlength=total).astype(np.float64)
    launched, copied = among(launching), among(copying)
    typical = float(np.median(us[launched])) if launched.any() else 0.0
    least_long_us = max(LONG_US, LONG_TIMES * typical)
    begin, end = np.full(total, np.inf), np.zeros(total)
    np.minimum.at(begin, number, nodes.start_us[rows])
    np.maximum.at(end, number, nodes.start_us[rows] + nodes.dur_us[rows])
    long = us > least_long_us
    lanes = nodes.lane[rows[first]]
    for lane in distinct(lanes[long]).tolist():
        of_lane = np.flatnonzero(long & (lanes == lane))
        long[of_lane] = ~while_others_launch(graph, lane, begin[of_lane], end[of_lane])
    after_copy = np.append(False, copied[:-1]) & ~_begins_thread(nodes.lane[rows], first)
    return Stretches(
        of_node=of_node,
        us=us,
        is_long=long,
        least_long_us=least_long_us,
        outside_graphs=long | among(waiting) | copied | after_copy,
    )


def while_others_launch(graph: StepGraph, lane: int, begin_us: Floats, end_us: Floats) -> Bools:
    """Return a mask of a thread's intervals in which other threads launch kernels.

    The thread is assumed to wait for those threads, as the caller of a backward pass does.
    """
    nodes, edges = graph.nodes, graph.edges
    launches = edges.source[(edges.kind == LAUNCH) & (nodes.kind[edges.target] == KERNEL)]
    launches = distinct(launches[nodes.lane[launches] != lane])
    at = np.sort(nodes.start_us[launches] + nodes.dur_us[launches])
    return np.searchsorted(at, end_us) - np.searchsorted(at, begin_us) >= SOME_LAUNCHES


def _begins_thread(lanes: Ints, first: Bools) -> Bools:
    """Return a mask of the intervals that are the first of their thread."""
    starts = np.append(True, lanes[1:] != lanes[:-1]) if len(lanes) else np.zeros(0, bool)
    return starts[first]


def elementwise_runs(names: Names, graph: StepGraph) -> Ints:
    """Return, for each task, the first task of its sequence of elementwise kernels.

    A task outside any sequence gets itself, and a host node -1. The kernels of a sequence follow each other on a stream
    without waiting for another stream, and the host does not wait between them. If recorded, their largest tensors have
    the same number of elements.
    """
    nodes, edges, trace = graph.nodes, graph.edges, names.trace
    elements = np.array([_elements(signature) for signature in trace.signatures] or [0], np.int64)
    size = np.zeros(len(nodes), np.int64)
    if len(trace.ops):
        size = np.where(nodes.owner >= 0, elements[trace.ops.signature[np.maximum(nodes.owner, 0)]], 0)
    waits = np.zeros(len(nodes), np.int64)
    waits[edges.target[(edges.kind == SYNC) & (edges.lag_us > NEVER / 2)]] = 1
    launches = np.flatnonzero(edges.kind == LAUNCH)
    epoch = np.full(len(nodes), -1, np.int64)
    epoch[edges.target[launches]] = np.cumsum(waits)[edges.source[launches]]
    able = _fusable(names, graph)
    joins = able.copy()
    joins[edges.target[(edges.kind == CROSS_STREAM) & (edges.lag_us > NEVER / 2)]] = False
    first = np.where(nodes.name >= 0, np.arange(len(nodes)), -1)
    order = np.flatnonzero(edges.kind == STREAM)
    length = np.ones(len(nodes), np.int64)
    for edge in order[np.argsort(edges.target[order], kind="stable")].tolist():
        before, after = int(edges.source[edge]), int(edges.target[edge])
        head = int(first[before])
        alike = size[before] == size[after] or not size[before] or not size[after]
        follows = able[before] and joins[after] and epoch[before] == epoch[after]
        if follows and alike and length[head] < MOST_FUSED:
            first[after] = head
            length[head] += 1
    return first


def _fusable(names: Names, graph: StepGraph) -> Bools:
    """Return a mask of kernels that compute each element of the result only from elements of their arguments."""
    nodes = graph.nodes
    out = np.zeros(len(nodes), bool)
    known: dict[tuple[int, int], bool] = {}
    for node in np.flatnonzero((nodes.kind == KERNEL) & (nodes.name >= 0)).tolist():
        owner = int(nodes.owner[node])
        key = (int(names.trace.ops.signature[owner]) if owner >= 0 else -1, int(nodes.name[node]))
        if key not in known:
            op = names.op(owner) if owner >= 0 else ""
            known[key] = class_of_work(op, names.kernel(node)) in FUSABLE
        out[node] = known[key]
    return out


def _elements(signature: OpSignature) -> int:
    """Return the number of elements of a call's largest tensor or list of tensors; 0 if unknown or impossibly large."""
    largest = 0
    for dims in signature.dims or ():
        shapes = dims if dims and isinstance(dims[0], tuple) else (dims,)
        sizes = [int(np.prod(np.array(shape, np.float64))) for shape in shapes if shape]
        largest = max(largest, sum(sizes))
    return largest if largest <= MOST_ELEMENTS else 0


def ops_of_tasks(names: Names, graph: StepGraph, tasks: Bools) -> Bools:
    """Return a mask of ops that launch only these tasks, including enclosing ops that launch nothing else."""
    trace, owner = names.trace, graph.nodes.owner
    chosen = np.zeros(len(trace.ops), bool)
    owned = np.flatnonzero((owner >= 0) & (graph.nodes.name >= 0))
    if not len(owned):
        return chosen
    parents = op_parents(trace)
    everything, removed = (_within(parents, owner[rows]) for rows in (owned, owned[tasks[owned]]))
    labels = np.array([is_label(signature) for signature in trace.signatures], bool)[trace.ops.signature]
    top = distinct(owner[owned[tasks[owned]]])
    top = top[removed[top] == everything[top]]
    while len(top):
        chosen[top] = True
        above = parents[top]
        above = distinct(above[above >= 0])
        top = above[(removed[above] == everything[above]) & ~labels[above] & ~chosen[above]]
    return chosen


def _within(parents: Ints, rows: Ints) -> Ints:
    """Return, for each op, how many of the given `rows` are the op itself or inside it."""
    out = np.zeros(len(parents), np.int64)
    while len(rows):
        np.add.at(out, rows, 1)
        rows = parents[rows]
        rows = rows[rows >= 0]
    return out
