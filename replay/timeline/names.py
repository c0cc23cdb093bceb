# pyright: strict
"""What the parts of a step's graph are called: op, module, kernel or call of each node and slice; no times."""

from __future__ import annotations

import numpy as np

from opreplay.replay.timeline.graph.model import EDGE_KINDS, NO_OP, Ints, StepGraph
from opreplay.traces import Trace, innermost_parent
from opreplay.traces.links.annotations import AnnotationTable, batch_context, step_number
from opreplay.traces.links.parents import innermost_at, nest, of_rows

PYTHON = "(Python, between ops)"
OUTSIDE = "(no module)"
_FRAME = 1
_MODULE = "nn.Module: "
_WAITS = {kind: f"({kind})" for kind in EDGE_KINDS} | {
    "launch": "(launch latency)",
    "stream order": "(gap on a stream)",
}


class Names:
    """Names of the parts of one step's graph."""

    def __init__(self, trace: Trace, graph: StepGraph) -> None:
        self.trace, self.graph = trace, graph
        self._op_names = tuple(signature.name for signature in trace.signatures)
        self._modules: tuple[tuple[str, ...], Ints] | None = None

    def op(self, row: int) -> str:
        """Of a row of the ops; `PYTHON` for none."""
        return PYTHON if row == NO_OP else self._op_names[int(self.trace.ops.signature[row])]

    def task(self, node: int) -> str:
        """Of a device task: the op that owns it, else its kernel."""
        owner = int(self.graph.nodes.owner[node])
        return self.op(owner) if owner >= 0 else self.kernel(node)

    def kernel(self, node: int) -> str:
        """Of a device task: its kernel's, as recorded."""
        name = int(self.graph.nodes.name[node])
        return self.trace.kernel_names[name] if name >= 0 else "(work from before the step)"

    def wait(self, kind: int) -> str:
        """Of the time between what was waited for and the start: latencies of launches, gaps of streams."""
        return _WAITS[EDGE_KINDS[kind]]

    def modules(self) -> tuple[tuple[str, ...], Ints]:
        """(names, index by row of the ops, or -1): the innermost module or marked range that each op began in."""
        if self._modules is None:
            names, start, dur, track, label = _marked_ranges(self.trace)
            inside = _innermost_range(self.trace, start, dur, track)
            self._modules = names, of_rows(inside, label)
        return self._modules

    def module_calls(self) -> tuple[tuple[str, ...], Ints, Ints]:
        """(name of each call of a module or marked range, the call around it or -1, by row of the ops the innermost
        call that it began in or -1)."""
        names, start, dur, track, label = _marked_ranges(self.trace)
        inside = _innermost_range(self.trace, start, dur, track)
        parents = np.full(len(start), -1, np.int64)
        for at in np.unique(track):
            rows = np.flatnonzero(track == at)
            order, above = nest(np.arange(len(rows)), start[rows], dur[rows])
            parents[rows[order]] = np.where(above >= 0, rows[order[above]], -1)
        indices: list[int] = label.tolist()
        return tuple(names[index] for index in indices), parents, inside

    def module_of_op(self, row: int) -> str:
        """Of a row of the ops; `OUTSIDE` for none."""
        names, index = self.modules()
        return names[int(index[row])] if row >= 0 and index[row] >= 0 else OUTSIDE


def op_parents(trace: Trace) -> Ints:
    """Row of the op around each op, or -1."""
    return innermost_parent(trace.ops)


def _marked_ranges(trace: Trace) -> tuple[tuple[str, ...], Ints, Ints, Ints, Ints]:
    """(names, starts, lengths, tracks, index of each one's name): calls of modules where the trace has them, else
    ranges that the user marked."""
    activity = trace.activity
    none = np.empty(0, np.int64)
    if activity is None:
        return (), none, none, none, none
    calls = activity.calls
    frames = np.flatnonzero(calls.kind == _FRAME)
    if len(frames):
        names = tuple(name.removeprefix(_MODULE) for name in activity.names)
        columns = (calls.start_ns, calls.dur_ns.astype(np.int64), calls.track.astype(np.int64))
        start, dur, track = (column[frames] for column in columns)
        return names, start, dur, track, calls.name[frames].astype(np.int64)
    notes = trace.annotations
    if not isinstance(notes, AnnotationTable) or not len(notes):
        return (), none, none, none, none
    wanted = np.array([step_number(n) is None and batch_context(n) is None for n in notes.names])[notes.name]
    columns = (notes.start_ns, notes.dur_ns.astype(np.int64), notes.track.astype(np.int64), notes.name.astype(np.int64))
    start, dur, track, label = (column[wanted] for column in columns)
    return notes.names, start, dur, track, label


def _innermost_range(trace: Trace, start: Ints, dur: Ints, track: Ints) -> Ints:
    """Per op the range that it began in, innermost, or -1."""
    ops = trace.ops
    out = np.full(len(ops), -1, np.int64)
    for at in np.unique(track):
        rows, asked = np.flatnonzero(track == at), np.flatnonzero(ops.track == at)
        if len(asked):
            out[asked] = innermost_at(ops.start_ns[asked], rows, start[rows], dur[rows])
    return out
