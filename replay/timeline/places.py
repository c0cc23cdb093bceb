# pyright: strict
"""Source locations of device tasks: the module and the Python function with most of the tasks' time."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from opreplay.replay.timeline.graph.model import StepGraph
from opreplay.replay.timeline.modules import unnumbered
from opreplay.replay.timeline.names import MODULE, OUTSIDE, Names, named_ranges, without_folders
from opreplay.replay.timeline.python_time import FRAMES
from opreplay.traces.arrays import Bools, Ints, distinct
from opreplay.traces.links.parents import innermost_at

_LIBRARY = ("torch/", "<built-in", MODULE)
"""Prefixes of frames that are not the user's code."""


class Places:
    """Finds the modules and functions that contain the ops of one step. Both are computed at the first request."""

    def __init__(self, names: Names, graph: StepGraph) -> None:
        self.names, self.graph = names, graph
        self._functions: tuple[list[str], Ints] | None = None

    def of_tasks(self, tasks: Bools) -> tuple[str, str]:
        """Return the (module, function) that takes most of the tasks' time; "" if the trace does not name it."""
        nodes = self.graph.nodes
        rows = np.flatnonzero(tasks & (nodes.owner >= 0))
        texts, function = self._of_ops()
        modules: defaultdict[str, float] = defaultdict(float)
        functions: defaultdict[str, float] = defaultdict(float)
        for owner, us in zip(nodes.owner[rows].tolist(), nodes.dur_us[rows].tolist(), strict=True):
            module = self.names.module_of_op(owner)
            modules["" if module == OUTSIDE else unnumbered(module)] += us
            functions[texts[function[owner]] if function[owner] >= 0 else ""] += us
        return _most(modules), _most(functions)

    def _of_ops(self) -> tuple[list[str], Ints]:
        """Return (function names, function of each op row).

        The function is the index of the innermost enclosing user function, or -1.
        """
        if self._functions is None:
            trace = self.names.trace
            ranges = named_ranges(trace, FRAMES)
            texts = [without_folders(text) for text in ranges.names]
            own = np.array([".py(" in text and not text.startswith(_LIBRARY) for text in ranges.names] or [False])
            out = np.full(len(trace.ops), -1, np.int64)
            for track in distinct(ranges.track).tolist():
                asked = np.flatnonzero(trace.ops.track == track)
                rows = np.flatnonzero((ranges.track == track) & own[ranges.label])
                if len(asked) and len(rows):
                    start, dur = ranges.start_ns[rows], ranges.dur_ns[rows]
                    out[asked] = innermost_at(trace.ops.start_ns[asked], ranges.label[rows], start, dur)
            self._functions = texts, out
        return self._functions


def _most(us_by_name: dict[str, float]) -> str:
    return max(us_by_name, key=lambda name: us_by_name[name], default="")
