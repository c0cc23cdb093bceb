# pyright: strict
"""Names of the parts of a step's graph: op, module, kernel or call of each node and slice. Has no times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import cast

import msgspec
import numpy as np

from opreplay.replay.ir.step import PYTHON
from opreplay.replay.timeline.graph.model import EDGE_KINDS, NO_OP, StepGraph
from opreplay.traces import Trace, innermost_parent
from opreplay.traces.arrays import Ints, distinct
from opreplay.traces.collectives.communication import kernel_path
from opreplay.traces.links.annotations import AnnotationTable, batch_context, step_number
from opreplay.traces.links.parents import innermost_at, nest, of_rows

OUTSIDE = "(no module)"
_FRAME = 1
MODULE = "nn.Module: "
_FOLDERS = re.compile(r"^[^(<]*/(?=[^/(]+\(\d+\): )")
_WAITS = {kind: f"({kind})" for kind in EDGE_KINDS} | {
    "launch": "(launch latency)",
    "stream order": "(gap on a stream)",
}


class Names:
    """Looks up names for the parts of one step's graph."""

    def __init__(self, trace: Trace, graph: StepGraph) -> None:
        self.trace, self.graph = trace, graph
        self._op_names = tuple(signature.name for signature in trace.signatures)
        self._modules: tuple[tuple[str, ...], Ints] | None = None

    def op(self, row: int) -> str:
        """Return the name of the op in this row of `Trace.ops`; `PYTHON` for `NO_OP`."""
        return PYTHON if row == NO_OP else self._op_names[int(self.trace.ops.signature[row])]

    def task(self, node: int) -> str:
        """Return the name of a device task: the name of its op or, if no op owns it, the name of its kernel."""
        owner = int(self.graph.nodes.owner[node])
        return self.op(owner) if owner >= 0 else self.kernel(node)

    def kernel(self, node: int) -> str:
        """Return the recorded kernel name of a device task."""
        name = int(self.graph.nodes.name[node])
        return self.trace.kernel_names[name] if name >= 0 else "(work from before the step)"

    def wait(self, kind: int) -> str:
        """Return the name of a waiting time by kind of dependency, e.g. launch latency or stream gap."""
        return _WAITS[EDGE_KINDS[kind]]

    def modules(self) -> tuple[tuple[str, ...], Ints]:
        """Return the names of modules or marked ranges, and the module of each op row.

        The module is the index of the innermost name in which the op started, or -1.
        """
        if self._modules is None:
            ranges = named_ranges(self.trace, (_FRAME,))
            self._modules = _module_names(ranges), of_rows(_innermost_range(self.trace, ranges), ranges.label)
        return self._modules

    def module_calls(self) -> tuple[tuple[str, ...], Ints, Ints]:
        """Return the calls of modules, or the ranges that the user marked, as three sequences.

        The first has the name of each call. The second has the index of its enclosing call, or -1. The third has, for
        each op row, the index of the innermost call in which the op started, or -1.
        """
        ranges = named_ranges(self.trace, (_FRAME,))
        parents = np.full(len(ranges.label), -1, np.int64)
        for at in distinct(ranges.track):
            rows = np.flatnonzero(ranges.track == at)
            order, above = nest(np.arange(len(rows)), ranges.start_ns[rows], ranges.dur_ns[rows])
            parents[rows[order]] = np.where(above >= 0, rows[order[above]], -1)
        names, indices = _module_names(ranges), cast("list[int]", ranges.label.tolist())
        return tuple(names[index] for index in indices), parents, _innermost_range(self.trace, ranges)

    def module_of_op(self, row: int) -> str:
        """Return the innermost module in which an op started; `OUTSIDE` if there is none."""
        names, index = self.modules()
        return names[int(index[row])] if row >= 0 and index[row] >= 0 else OUTSIDE


def matches_kernel(name: str, pattern: str) -> bool:
    """Check whether a kernel's name matches a shell pattern.

    The pattern may match the recorded name, the name without its return type "void", or the qualified name without
    templates and parameters.
    """
    return any(fnmatchcase(text, pattern) for text in (name, name.removeprefix("void "), kernel_path(name)))


def without_folders(frame: str) -> str:
    """Shorten a frame such as "torch/utils/data/dataloader.py(701): __next__" to its file and function."""
    return _FOLDERS.sub("", frame)


def op_parents(trace: Trace) -> Ints:
    """Return, for each op, the row of the op that encloses it, or -1."""
    return innermost_parent(trace.ops)


class Ranges(msgspec.Struct, frozen=True):
    """Named intervals of host threads."""

    names: Sequence[str]
    label: Ints
    """Index into `names`."""
    start_ns: Ints
    dur_ns: Ints
    track: Ints

    def of(self, track: int) -> Ranges:
        """Return the ranges of one thread. An outer range comes before the ranges inside it."""
        rows = np.flatnonzero(self.track == track)
        rows = rows[np.lexsort((-self.dur_ns[rows], self.start_ns[rows]))]
        return Ranges(self.names, *(column[rows] for column in (self.label, self.start_ns, self.dur_ns, self.track)))


def named_ranges(trace: Trace, kinds: Sequence[int]) -> Ranges:
    """Return calls of these `CALL_KINDS` if the trace has any, otherwise ranges that the user marked."""
    table, notes, rows = None, trace.annotations, np.empty(0, np.int64)
    names: tuple[str, ...] = ()
    if trace.activity is not None:
        table, names = trace.activity.calls, trace.activity.names
        rows = np.flatnonzero(np.isin(table.kind, kinds))
    if not len(rows) and isinstance(notes, AnnotationTable) and len(notes):
        by_user = np.array([step_number(name) is None and batch_context(name) is None for name in notes.names])
        table, names, rows = notes, notes.names, np.flatnonzero(by_user[notes.name])
    if table is None:
        return Ranges((), rows, rows, rows, rows)
    columns = (table.name, table.start_ns, table.dur_ns, table.track)
    return Ranges(names, *(column[rows].astype(np.int64) for column in columns))


def _module_names(ranges: Ranges) -> tuple[str, ...]:
    return tuple(name.removeprefix(MODULE) for name in ranges.names)


def _innermost_range(trace: Trace, ranges: Ranges) -> Ints:
    """Return, for each op, the innermost range in which it started, or -1."""
    ops = trace.ops
    out = np.full(len(ops), -1, np.int64)
    for at in distinct(ranges.track):
        rows, asked = np.flatnonzero(ranges.track == at), np.flatnonzero(ops.track == at)
        if len(asked):
            out[asked] = innermost_at(ops.start_ns[asked], rows, ranges.start_ns[rows], ranges.dur_ns[rows])
    return out
