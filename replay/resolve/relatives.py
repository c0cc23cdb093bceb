# pyright: strict
"""Finds the recorded calls around one call of a trace when a rule needs them. The index is built once per trace, on
first use.
"""

from __future__ import annotations

import re
from functools import cached_property, reduce
from math import gcd

import numpy as np

from opreplay.replay.resolve.guess.values import NOT_INSIDE, Relatives
from opreplay.traces.arrays import Ints
from opreplay.traces.links.parents import innermost_parent
from opreplay.traces.model import OpSignature, Trace

FOLLOWING = 12
MAX_CHILDREN = 4096
"""Maximum number of children considered. It is large because a list of all parameters of a model has one child per
parameter.
"""
MAX_INNER = 64
INNER_DEPTH = 3
MAX_ANCESTORS = 6
MAX_PLACE = 1024
"""Maximum number of earlier siblings among which calls of the same name are counted."""
MAX_SAME_NUMBER = 64
"""Maximum number of calls with one autograd sequence number that are considered; the last ones are kept.

Many calls can have one number: a call that records no backward node has the number of the next call that records one.
"""
MAX_DISPATCHES = 24
"""Maximum number of rows that are treated as one call. Four nested transforms of `torch.func` record up to
twelve rows.
"""
MAX_DEPTH = 16
"""Maximum number of parents considered. It is needed because a damaged trace may name an op as its own ancestor."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

_NODE = re.compile(r"(\w+?)Backward\d*")

Rows = Ints


class RelativesIndex:
    """Looks up parents, children and following siblings of the rows of `Trace.ops`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _parents(self) -> Rows:
        return innermost_parent(self._trace.ops)

    @cached_property
    def _groups(self) -> Rows:
        """Group id of each row. Siblings have the same id: the row of their parent, or a negative number per track if
        they have no parent.
        """
        return np.where(self._parents >= 0, self._parents, -1 - self._trace.ops.track.astype(np.int64))

    @cached_property
    def _by_group(self) -> Rows:
        """Rows of `Trace.ops`, sorted by group id, then by start time."""
        return np.lexsort((self._trace.ops.start_ns, self._groups))

    @cached_property
    def _places(self) -> Rows:
        """Position of each row in `_by_group`."""
        places = np.empty(len(self._by_group), dtype=np.int64)
        places[self._by_group] = np.arange(len(self._by_group))
        return places

    @cached_property
    def _sorted_groups(self) -> Rows:
        return self._groups[self._by_group]

    @cached_property
    def gradients(self) -> tuple[OpSignature, ...]:
        """The gradients that one backward pass accumulates, with their shapes, from autograd's labels.

        A trace may contain several passes. Each accumulates the gradient of every parameter once, so all counts are
        multiples of the number of passes.
        """
        trace = self._trace
        labels = [i for i, s in enumerate(trace.signatures) if s.name == ACCUMULATE and s.dims and s.dims[0]]
        if not labels:
            return ()
        counts = np.bincount(trace.ops.signature, minlength=len(trace.signatures))[labels].tolist()
        passes = max(1, reduce(gcd, counts))
        gradients = [trace.signatures[i] for i, n in zip(labels, counts, strict=True) for _ in range(n // passes)]
        return tuple(gradients[:MAX_CHILDREN])

    def around(self, row: int) -> Relatives:
        """Return the recorded calls around one row of `Trace.ops`.

        Each transform of `torch.func` dispatches and records a call again, so one call may have several rows. These
        rows count as one call. Its surroundings are those of the outermost row, and its children are those of the
        innermost row.
        """
        row, innermost = self._dispatches(row)
        above, node = self._above(row), self._node(row)
        forward = self._forward((row, *above))
        backward = [] if node is None else self._rows_in(node, MAX_INNER)
        if len(backward) == 1 and self._signature(backward[0]).name.endswith("_backward"):  # which calls others
            backward += self._rows_in(backward[0], MAX_INNER)
        children = self._rows_in(innermost, MAX_CHILDREN)
        following, levels, labels = self._following(row)
        return Relatives(
            name=self._signature(row).name,
            parent=self._signature(above[0]) if above else None,
            children=self._signatures(children),
            inner=self._signatures(self._inner(children)),
            following=self._signatures(following),
            levels=tuple(levels),
            ancestors=self._signatures(above),
            places=tuple(map(self._place, (row, *above)[: len(above)])),
            labels=tuple(labels),
            above=lambda number: self.around(above[number]),
            forward=None if forward is None else self._signature(forward),
            before=None if forward is None else lambda: self.around(forward),
            backward=self._signatures(backward),
            gradients=self.gradients,
            batched=lambda: self._batched(innermost, children),
        )

    def _dispatches(self, row: int) -> tuple[int, int]:
        """Return (outermost row, innermost row) of the nested rows that all record the same call."""
        innermost = row
        for _ in range(MAX_DISPATCHES):
            rows = self._rows_in(innermost, MAX_INNER)
            again = next((r for r in rows if _is_same_call(self._signature(innermost), self._signature(r))), None)
            if again is None:
                break
            innermost = again
        return self._outermost(row), innermost

    def _outermost(self, row: int) -> int:
        for _ in range(MAX_DISPATCHES):
            parent = int(self._parents[row])
            if parent < 0 or not _is_same_call(self._signature(parent), self._signature(row)):
                break
            row = parent
        return row

    def _batched(self, row: int, children: list[int]) -> tuple[OpSignature, Relatives] | None:
        """Return the child of a row that calls the same op, and the calls around that child; None if there is none."""
        name = self._names[row]
        inside = next((r for r in children if self._names[r] == name), None)
        return None if inside is None else (self._signature(inside), self.around(inside))

    @cached_property
    def _by_sequence(self) -> tuple[Rows, Rows]:
        """Rows sorted by autograd's sequence numbers, and the sorted numbers; both empty if the trace has none."""
        numbers = self._trace.ops.sequence
        if numbers is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        order = np.argsort(numbers, kind="stable")
        return order, numbers[order]

    def _same_number(self, row: int) -> list[int]:
        """Return the rows with the same autograd sequence number as `row`, in file order, at most `MAX_SAME_NUMBER`."""
        numbers = self._trace.ops.sequence
        if numbers is None or numbers[row] < 0:
            return []
        order, sorted_numbers = self._by_sequence
        number = int(numbers[row])
        low, high = np.searchsorted(sorted_numbers, [number, number + 1]).tolist()
        return [int(r) for r in order[max(low, high - MAX_SAME_NUMBER) : high]]

    def _node(self, row: int) -> int | None:
        """Return the row of a call's backward node; None if unknown.

        The first argument of this node has the shape of the call's result. For a composite, the backward node is that
        of its last call.
        """
        for _ in range(INNER_DEPTH):
            node = self._node_of_number(row)
            if node is not None:
                return node
            calls = self._rows_in(row)
            if not calls or self._trace.ops.sequence is None:
                return None
            row = calls[-1]
        return None

    def _node_of_number(self, row: int) -> int | None:
        """Return the row of the backward node with a call's sequence number and op name.

        Returns None if there is none, or if a later call of this name recorded it.
        """
        called = self._signature(row).name
        name = _plain(called.partition("::")[2])
        node_row: int | None = None
        for other in self._same_number(row) if name else ():
            signature = self._signature(other)
            node = _NODE.fullmatch(signature.name)
            if node is not None and node[1].lower() == name and signature.dims:
                node_row = other
            elif signature.name == called and other > row:
                return None
        return node_row

    def _forward(self, rows: tuple[int, ...]) -> int | None:
        """Return the row of the forward call that belongs to the innermost backward node among these rows.

        It is the last call that has the backward node's sequence number and the op name in the node's name.
        """
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
        """Return the rows that enclose a row, innermost first.

        If several rows record one call, only the outermost of them is included.
        """
        ancestors: list[int] = []
        row = int(self._parents[row])
        while row >= 0 and len(ancestors) < MAX_ANCESTORS:
            row = self._outermost(row)
            ancestors.append(row)
            row = int(self._parents[row])
        return ancestors

    def _place(self, row: int) -> int:
        """Return how many earlier calls have the same name and the same parent as a row."""
        place = int(self._places[row])
        before = self._by_group[max(0, place - MAX_PLACE) : place]
        before = before[self._groups[before] == self._groups[row]]
        return int(np.count_nonzero(self._names[before] == self._names[row]))

    @cached_property
    def _names(self) -> Rows:
        """Id of each row's op name; equal names have equal ids."""
        numbers: dict[str, int] = {}
        of_signatures = [numbers.setdefault(signature.name, len(numbers)) for signature in self._trace.signatures]
        return np.array(of_signatures, np.int64)[self._trace.ops.signature]

    def _inner(self, rows: list[int]) -> list[int]:
        """Return the calls that the children make, and the calls nested in these, a few levels deep."""
        inner: list[int] = []
        level = rows[:MAX_INNER]
        for _ in range(INNER_DEPTH):
            level = [r for row in level for r in self._rows_in(row, MAX_INNER)][:MAX_INNER]
            inner += level
        return inner

    def _following(self, row: int) -> tuple[list[int], list[int], list[str]]:
        """Return (rows, levels, names of labels) of the calls that follow a row, first with the same parent, then after
        the parent.
        """
        rows: list[int] = []
        levels: list[int] = []
        labels: list[str] = []
        for level in range(MAX_DEPTH):
            # What a call gives, the node that goes back through it is given.
            node = self._node(row)
            if node is not None:
                rows.append(node)
                levels.append(level + 1 if level else NOT_INSIDE)
            place = int(self._places[row])
            later = self._by_group[place + 1 : place + 1 + FOLLOWING - len(rows) + FOLLOWING]
            for r in later[self._groups[later] == self._groups[row]].tolist():
                if len(rows) >= FOLLOWING:
                    break
                if not self._signature(r).dims:
                    labels.append(self._signature(r).name)
                sized = self._sized(r)
                if sized is not None:
                    rows.append(sized)
                    levels.append(level)
            row = int(self._parents[row])
            if row < 0 or len(rows) >= FOLLOWING:
                break
        return rows, levels, labels

    def _sized(self, row: int) -> int | None:
        """Return the row itself if it records shapes, otherwise its first nested row that does."""
        for _ in range(INNER_DEPTH + 1):
            if self._signature(row).dims:
                return row
            calls = self._rows_in(row, 1)
            if not calls:
                return None
            row = calls[0]
        return None

    def _rows_in(self, group: int, limit: int | None = None) -> list[int]:
        low = np.searchsorted(self._sorted_groups, group, side="left")
        high = np.searchsorted(self._sorted_groups, group, side="right")
        return self._by_group[low:high][:limit].tolist()

    def _signature(self, row: int) -> OpSignature:
        return self._trace.signatures[int(self._trace.ops.signature[row])]

    def _signatures(self, rows: list[int]) -> tuple[OpSignature, ...]:
        return tuple(map(self._signature, rows))


def _is_same_call(outer: OpSignature, inner: OpSignature) -> bool:
    """Check whether a nested row records the same call as the outer row. The numbers of their arguments may differ,
    because `torch.func` may record arguments twice.
    """
    if outer.name != inner.name or not outer.dims or not inner.dims:
        return False
    short, long = sorted((len(outer.dims), len(inner.dims)))
    if long % short:
        return False
    columns = ((call.dims, call.types, call.concrete) for call in (outer, inner))
    ends = [[column and column[-short:] for column in call] for call in columns]
    return ends[0] == ends[1]


def _plain(name: str) -> str:
    """Return an op's name in the spelling of autograd's node names, in lower case."""
    return name.replace("_", "").lower()
