# pyright: strict
"""What the parts of a step's graph are called: op, module, kernel or call of each node and slice; no times."""

from __future__ import annotations

import numpy as np

from opreplay.replay.timeline.graph.model import EDGE_KINDS, NO_OP, Ints, StepGraph
from opreplay.traces import Trace, innermost_parent
from opreplay.traces.links.annotations import AnnotationTable, batch_context, step_number
from opreplay.traces.links.parents import innermost_at

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
            self._modules = _modules(self.trace)
        return self._modules

    def module_of_op(self, row: int) -> str:
        """Of a row of the ops; `OUTSIDE` for none."""
        names, index = self.modules()
        return names[int(index[row])] if row >= 0 and index[row] >= 0 else OUTSIDE


def op_parents(trace: Trace) -> Ints:
    """Row of the op around each op, or -1."""
    return innermost_parent(trace.ops)


def _modules(trace: Trace) -> tuple[tuple[str, ...], Ints]:
    """Frames that name modules where the trace has them, else ranges that the user marked."""
    activity, ops = trace.activity, trace.ops
    out = np.full(len(ops), -1, np.int64)
    if activity is None or not len(ops):
        return (), out
    calls = activity.calls
    frames = np.flatnonzero(calls.kind == _FRAME)
    if len(frames):
        start, dur, track, label = (
            calls.start_ns[frames],
            calls.dur_ns[frames].astype(np.int64),
            calls.track[frames],
            calls.name[frames],
        )
        names = tuple(name.removeprefix(_MODULE) for name in activity.names)
    else:
        notes = trace.annotations
        if not isinstance(notes, AnnotationTable) or not len(notes):
            return (), out
        wanted = np.array([step_number(n) is None and batch_context(n) is None for n in notes.names])[notes.name]
        start, dur, track, label = (
            notes.start_ns[wanted],
            notes.dur_ns[wanted].astype(np.int64),
            notes.track[wanted],
            notes.name[wanted],
        )
        names = notes.names
    for at in np.unique(track):
        rows, asked = np.flatnonzero(track == at), np.flatnonzero(ops.track == at)
        if len(asked):
            found = innermost_at(ops.start_ns[asked], rows, start[rows], dur[rows])
            out[asked] = np.where(found >= 0, label[found].astype(np.int64), -1)
    return names, out
