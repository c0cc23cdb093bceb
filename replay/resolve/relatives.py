# pyright: strict
"""The recorded calls around one call of a trace, found when a rule asks for them; built once a trace, lazily."""

from __future__ import annotations

import re
from functools import cached_property, reduce
from math import gcd

import numpy as np
import numpy.typing as npt

from opreplay.replay.resolve.guess.values import NOT_INSIDE, Relatives
from opreplay.traces.links.parents import parents_of
from opreplay.traces.model import OpSignature, Trace

FOLLOWING = 12
MAX_CHILDREN = 4096
"""A list of all parameters of a model has one child for each."""
MAX_INNER = 64
INNER_DEPTH = 3
MAX_ANCESTORS = 6
MAX_PLACE = 1024
"""Siblings before a call of which those of its name are counted."""
MAX_SAME_NUMBER = 64
"""Calls with one number of autograd's that are looked at, the last ones: calls that record no node share the next
node's number with the one that does."""
MAX_DEPTH = 16
"""Of parents that are looked at; a damaged trace may name an op as its own ancestor."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

_NODE = re.compile(r"(\w+?)Backward\d*")

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
        above, node = self._above(row), self._node(row)
        forward = self._forward((row, *above))
        inside = () if node is None else self._rows_in(node)[:MAX_INNER]
        if len(inside) == 1 and self._signature(int(inside[0])).name.endswith("_backward"):  # which calls others
            inside = (*inside, *self._rows_in(int(inside[0]))[:MAX_INNER])
        children = self._rows_in(row)[:MAX_CHILDREN]
        following, levels, labels = self._following(row)
        return Relatives(
            name=self._signature(row).name,
            parent=self._signature(above[0]) if above else None,
            children=tuple(self._signature(int(r)) for r in children),
            inner=tuple(self._signature(r) for r in self._inner(children)),
            following=tuple(self._signature(r) for r in following),
            levels=tuple(levels),
            ancestors=tuple(self._signature(r) for r in above),
            places=tuple(self._place(r) for r in (row, *above[:-1])) if above else (),
            labels=tuple(labels),
            above=lambda number: self.around(above[number]),
            forward=None if forward is None else self._signature(forward),
            before=None if forward is None else lambda: self.around(forward),
            backward=tuple(self._signature(int(r)) for r in inside),
            gradients=self.gradients,
        )

    @cached_property
    def _by_sequence(self) -> tuple[Rows, Rows]:
        """Rows in the order of autograd's numbers, and these; both empty where a trace has none."""
        numbers = self._trace.ops.sequence
        if numbers is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        order = np.argsort(numbers, kind="stable")
        return order, numbers[order]

    def _same_number(self, row: int) -> list[int]:
        """Rows with the number that autograd gave one, in the order of the file."""
        numbers = self._trace.ops.sequence
        if numbers is None or numbers[row] < 0:
            return []
        order, sorted_numbers = self._by_sequence
        number = int(numbers[row])
        low, high = np.searchsorted(sorted_numbers, [number, number + 1]).tolist()
        return [int(r) for r in order[max(low, high - MAX_SAME_NUMBER) : high]]

    def _node(self, row: int) -> int | None:
        """The row of the node that goes back through a call, whose first argument is as large as the call's result; of
        a composite, that of its last call."""
        for _ in range(INNER_DEPTH):
            name = _plain(self._signature(row).name.partition("::")[2])
            found: int | None = None
            for other in self._same_number(row) if name else ():
                one = self._signature(other)
                node = _NODE.fullmatch(one.name)
                if node is not None and node[1].lower() == name and one.dims:
                    found = other
                elif one.name == self._signature(row).name and other > row:
                    found = None
                    break  # the later one recorded the node
            if found is not None:
                return found
            inside = self._rows_in(row)[-1:].tolist()
            if not inside or self._trace.ops.sequence is None:
                return None
            row = inside[0]
        return None

    def _forward(self, rows: tuple[int, ...]) -> int | None:
        """The row of the forward call of the innermost of these rows that is a node of a backward pass: the last call
        with its number and its name."""
        for row in rows:
            node = _NODE.fullmatch(self._signature(row).name)
            if node is None or self._trace.ops.sequence is None:
                continue
            for other in reversed(self._same_number(row)):
                name = self._signature(other).name
                if "::" in name and _plain(name.partition("::")[2]) == node[1].lower():
                    return other
            return None
        return None

    def _above(self, row: int) -> list[int]:
        """The rows that enclose one, the innermost first."""
        found: list[int] = []
        row = int(self._parents[row])
        while row >= 0 and len(found) < MAX_ANCESTORS:
            found.append(row)
            row = int(self._parents[row])
        return found

    def _place(self, row: int) -> int:
        """How many calls of the same name come before one under the same parent."""
        place = int(self._places[row])
        before = self._by_group[max(0, place - MAX_PLACE) : place]
        before = before[self._groups[before] == self._groups[row]]
        return int(np.count_nonzero(self._names[before] == self._names[row]))

    @cached_property
    def _names(self) -> Rows:
        """A number for the name of each row."""
        numbers: dict[str, int] = {}
        of_signatures = [numbers.setdefault(one.name, len(numbers)) for one in self._trace.signatures]
        return np.array(of_signatures, np.int64)[self._trace.ops.signature]

    def _inner(self, rows: Rows) -> list[int]:
        """What the children call, and those in turn, a few levels down."""
        found: list[int] = []
        level = rows[:MAX_INNER].tolist()
        for _ in range(INNER_DEPTH):
            level = [int(r) for row in level for r in self._rows_in(row)[:MAX_INNER]][:MAX_INNER]
            found += level
        return found

    def _following(self, row: int) -> tuple[list[int], list[int], list[str]]:
        """(rows, how far up each is, names of labels) of the next calls: of the same parent; after the last of these,
        those that follow the parent."""
        found: list[int] = []
        levels: list[int] = []
        labels: list[str] = []
        for level in range(MAX_DEPTH):
            # What a call gives, the node that goes back through it is given.
            node = self._node(row)
            if node is not None:
                found.append(node)
                levels.append(level + 1 if level else NOT_INSIDE)
            place = int(self._places[row])
            later = self._by_group[place + 1 : place + 1 + FOLLOWING - len(found) + FOLLOWING]
            for r in later[self._groups[later] == self._groups[row]].tolist():
                if len(found) >= FOLLOWING:
                    break
                if not self._signature(r).dims:
                    labels.append(self._signature(r).name)
                sized = self._sized(r)
                if sized is not None:
                    found.append(sized)
                    levels.append(level)
            row = int(self._parents[row])
            if row < 0 or len(found) >= FOLLOWING:
                break
        return found, levels, labels

    def _sized(self, row: int) -> int | None:
        """The row, or the first one inside that has sizes."""
        for _ in range(INNER_DEPTH + 1):
            if self._signature(row).dims:
                return row
            inside = self._rows_in(row)[:1].tolist()
            if not inside:
                return None
            row = inside[0]
        return None

    def _rows_in(self, group: int) -> Rows:
        low = np.searchsorted(self._sorted_groups, group, side="left")
        high = np.searchsorted(self._sorted_groups, group, side="right")
        return self._by_group[low:high]

    def _signature(self, row: int) -> OpSignature:
        return self._trace.signatures[int(self._trace.ops.signature[row])]


def _plain(name: str) -> str:
    """The name of an op as autograd spells it in that of its node."""
    return name.replace("_", "").lower()
