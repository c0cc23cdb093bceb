"""The recorded calls around one call of a trace, found when a rule asks for them; built once a trace, lazily."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from opreplay.replay.inference_base import Relatives
from opreplay.replay.select import parents_of
from opreplay.traces.model import OpSignature, Trace

FOLLOWING = 3
MAX_CHILDREN = 16

Rows = npt.NDArray[np.int64]


class RelativesIndex:
    """Looks up parents, children and following siblings of rows."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _parents(self) -> Rows:
        return parents_of(self._trace)

    @cached_property
    def _by_parent(self) -> Rows:
        """Rows ordered by parent, then by start."""
        return np.lexsort((self._trace.ops.start_ns, self._parents))

    @cached_property
    def _sorted_parents(self) -> Rows:
        return self._parents[self._by_parent]

    def around(self, row: int) -> Relatives:
        """What surrounds one row of `Trace.ops`."""
        parent = int(self._parents[row])
        siblings = self._rows_under(parent) if parent >= 0 else np.zeros(0, dtype=np.int64)
        at = int(np.flatnonzero(siblings == row)[0]) + 1 if len(siblings) else 0
        return Relatives(
            parent=self._signature(parent) if parent >= 0 else None,
            children=tuple(self._signature(int(r)) for r in self._rows_under(row)[:MAX_CHILDREN]),
            following=tuple(self._signature(int(r)) for r in siblings[at : at + FOLLOWING]),
        )

    def _rows_under(self, row: int) -> Rows:
        low = np.searchsorted(self._sorted_parents, row, side="left")
        high = np.searchsorted(self._sorted_parents, row, side="right")
        return self._by_parent[low:high]

    def _signature(self, row: int) -> OpSignature:
        return self._trace.signatures[int(self._trace.ops.signature[row])]
