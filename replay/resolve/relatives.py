# pyright: strict
"""The recorded calls around one call of a trace, found when a rule asks for them; built once a trace, lazily."""

from __future__ import annotations

from functools import cached_property, reduce
from math import gcd

import numpy as np
import numpy.typing as npt

from opreplay.replay.resolve.guess.values import Relatives
from opreplay.traces.links.parents import parents_of
from opreplay.traces.model import OpSignature, Trace

FOLLOWING = 12
MAX_CHILDREN = 4096
"""A list of all parameters of a model has one child for each."""
MAX_INNER = 64
INNER_DEPTH = 3
MAX_DEPTH = 16
"""Of parents that are looked at; a damaged trace may name an op as its own ancestor."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

Rows = npt.NDArray[np.int64]


class RelativesIndex:
    """Looks up parents, children and following siblings of rows."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _parents(self) -> Rows:
        return parents_of(self._trace)

    @cached_property
    def _groups(self) -> Rows:
        """What siblings have in common: the parent's row, or for outermost ops a number below 0 for their track."""
        return np.where(self._parents >= 0, self._parents, -1 - self._trace.ops.track.astype(np.int64))

    @cached_property
    def _by_group(self) -> Rows:
        """Rows ordered by group, then by start."""
        return np.lexsort((self._trace.ops.start_ns, self._groups))

    @cached_property
    def _places(self) -> Rows:
        """Where each row stands in `_by_group`."""
        places = np.empty(len(self._by_group), dtype=np.int64)
        places[self._by_group] = np.arange(len(self._by_group))
        return places

    @cached_property
    def _sorted_groups(self) -> Rows:
        return self._groups[self._by_group]

    @cached_property
    def gradients(self) -> tuple[OpSignature, ...]:
        """The gradients that one backward pass accumulates, from the labels that autograd leaves, each with its shape.

        Every pass accumulates each parameter's once, so that all counts are multiples of the number of passes.
        """
        trace = self._trace
        found = [i for i, s in enumerate(trace.signatures) if s.name == ACCUMULATE and s.dims and s.dims[0]]
        if not found:
            return ()
        counts = np.bincount(trace.ops.signature, minlength=len(trace.signatures))[found].tolist()
        passes = max(1, reduce(gcd, counts))
        each = [trace.signatures[i] for i, n in zip(found, counts, strict=True) for _ in range(n // passes)]
        return tuple(each[:MAX_CHILDREN])

    def around(self, row: int) -> Relatives:
        """What surrounds one row of `Trace.ops`."""
        parent = int(self._parents[row])
        children = self._rows_in(row)[:MAX_CHILDREN]
        return Relatives(
            parent=self._signature(parent) if parent >= 0 else None,
            children=tuple(self._signature(int(r)) for r in children),
            inner=tuple(self._signature(r) for r in self._inner(children)),
            following=tuple(self._signature(r) for r in self._following(row)),
            gradients=self.gradients,
        )

    def _inner(self, rows: Rows) -> list[int]:
        """What the children call, and those in turn, a few levels down."""
        found: list[int] = []
        level = rows[:MAX_INNER].tolist()
        for _ in range(INNER_DEPTH):
            level = [int(r) for row in level for r in self._rows_in(row)[:MAX_INNER]][:MAX_INNER]
            found += level
        return found

    def _following(self, row: int) -> list[int]:
        """The next calls: of the same parent; after the last of these, those that follow the parent."""
        found: list[int] = []
        for _ in range(MAX_DEPTH):
            place = int(self._places[row])
            later = self._by_group[place + 1 : place + 1 + FOLLOWING - len(found)]
            found += later[self._groups[later] == self._groups[row]].tolist()
            row = int(self._parents[row])
            if row < 0 or len(found) >= FOLLOWING:
                break
        return found

    def _rows_in(self, group: int) -> Rows:
        low = np.searchsorted(self._sorted_groups, group, side="left")
        high = np.searchsorted(self._sorted_groups, group, side="right")
        return self._by_group[low:high]

    def _signature(self, row: int) -> OpSignature:
        return self._trace.signatures[int(self._trace.ops.signature[row])]
