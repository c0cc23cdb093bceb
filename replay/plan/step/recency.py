# pyright: strict
"""Computes reuse distances: the bytes of other memory that were accessed since a call's tensors were last accessed.

An exact LRU cache hits if the distance is smaller than the cache. A step is assumed to repeat, so a parameter was last
accessed one step ago. A result gets memory as from an allocator that keeps freed memory: that of the latest result of
the same size that is no longer needed. `linking` determines which tensors are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.sizes import tensor_bytes
from opreplay.replay.plan.step.lifetimes import lifetimes, makes_no_memory
from opreplay.replay.plan.step.linking import VIEWS, Linked, Source, Value, linked_step, results_of, tensors_of


class Recency(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The reuse distances of one op, as medians over its calls in the step."""

    arguments: tuple[int, ...]
    """Reuse distance of each tensor argument in bytes, with lists flattened."""
    results: tuple[tuple[int, int], ...] = ()
    """(size, reuse distance of its memory) in bytes, for each result with its own memory."""
    code: int = 1 << 62
    """Bytes of memory accessed since an op of this name last ran. This is the reuse distance of the op's code."""


class Recent:
    """Counts the bytes of distinct memory that were accessed since each block of memory was last accessed. The counts
    come from a tree of sums over access times.
    """

    def __init__(self, touches: int) -> None:
        """Create the tree for at most `touches` accesses."""
        self._sums = [0] * (touches + 1)
        self._last: dict[Hashable, tuple[int, int]] = {}
        self._now = 0

    def touch(self, memory: Hashable, size: int) -> None:
        """Record an access to this memory."""
        if (before := self._last.get(memory)) is not None:
            self._add(before[0], -before[1])
        self._now += 1
        self._add(self._now, size)
        self._last[memory] = self._now, size

    def distance(self, memory: Hashable) -> int | None:
        """Return the bytes of other memory accessed since the last access to this memory; None if it was never
        accessed.
        """
        before = self._last.get(memory)
        return None if before is None else self.total - self._before(before[0])

    @property
    def total(self) -> int:
        """Total size in bytes of all distinct memory accessed so far."""
        return self._before(self._now)

    def _add(self, at: int, size: int) -> None:
        while at < len(self._sums):
            self._sums[at] += size
            at += at & -at

    def _before(self, at: int) -> int:
        total = 0
        while at > 0:
            total += self._sums[at]
            at -= at & -at
        return total


class _Distances(NamedTuple):
    """The reuse distances of one call, as in `Recency`; None for memory that was never accessed before."""

    arguments: list[int | None]
    results: list[int | None]
    code: int | None


class _Walk:
    """Simulates the memory accesses of the calls in a step that is repeated."""

    def __init__(self, ops: Sequence[ReplayOp], calls: Sequence[int], linked: Linked) -> None:
        self._ops, self._calls, self._linked = ops, calls, linked
        self._owned = lifetimes(ops, linked)
        self._input_bytes = [
            [None if meta is None else tensor_bytes(meta) for _, _, meta in tensors_of(op)] for op in ops
        ]
        self.result_bytes = [
            [] if makes_no_memory(op) else [0 if meta is None else tensor_bytes(meta) for meta in results_of(op)]
            for op in ops
        ]
        self._ends: defaultdict[int, list[Value]] = defaultdict(list)
        for value, last in self._owned.until.items():
            self._ends[last].append(value)
        touches = sum(1 + len(self._input_bytes[index]) + len(self.result_bytes[index]) for index in calls)
        self.recent = Recent(2 * touches)
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._blocks = 0
        self._block: dict[Value, int] = {}

    def step(self) -> list[list[_Distances]]:
        """Return the reuse distances of each op's calls in the next step."""
        by_op: list[list[_Distances]] = [[] for _ in self._ops]
        self._block.clear()
        for at, index in enumerate(self._calls):
            by_op[index].append(self._call(at, index))
            for value in self._ends[at]:
                if value in self._block:
                    size = self.result_bytes[self._calls[value.call]][value.output]
                    self._free[size].append(self._block[value])
        return by_op

    def _call(self, at: int, index: int) -> _Distances:
        """Return the reuse distances of a call. Its memory accesses are recorded, unless the call is a view."""
        name = self._ops[index].name
        inputs = [
            (self._memory(source), size)
            for source, size in zip(self._linked.sources[at], self._input_bytes[index], strict=True)
            if size is not None
        ]
        results = [
            (("block", self._taken(Value(at, output), size)), size)
            for output, size in enumerate(self.result_bytes[index])
        ]
        distance = self.recent.distance
        distances = _Distances(
            arguments=[distance(memory) for memory, _ in inputs],
            results=[distance(memory) for memory, _ in results],
            code=distance(("code", name)),
        )
        self.recent.touch(("code", name), 0)
        for memory, size in (*inputs, *results) if name not in VIEWS else ():
            self.recent.touch(memory, size)
        return distances

    def _memory(self, source: Source) -> Hashable:
        lies_in = self._owned.memory_of(source)
        return ("block", self._block.get(lies_in)) if isinstance(lies_in, Value) else ("outside", lies_in)

    def _taken(self, value: Value, size: int) -> int:
        """Assign a free or new memory block of this size to a result, and return the block's number."""
        if not self._free[size]:
            self._blocks += 1
        self._block[value] = self._free[size].pop() if self._free[size] else self._blocks
        return self._block[value]


def recency(plan: ReplayPlan) -> dict[str, Recency]:
    """Return the reuse distances of each op in the plan's step, by op id; empty if the plan has no step."""
    if plan.sequence is None:
        return {}
    ops, calls, linked = linked_step(plan.ops, plan.sequence)
    walk = _Walk(ops, calls, linked)
    walk.step()
    by_op, total = walk.step(), walk.recent.total

    def typical(distances: Iterable[int | None]) -> int:
        """Return the median distance. Memory that was never accessed before counts with the total number of bytes."""
        in_order = sorted(total if distance is None else distance for distance in distances)
        return int(in_order[len(in_order) // 2])

    return {
        op.id: Recency(
            arguments=tuple(map(typical, zip(*(call.arguments for call in of_op), strict=True))),
            results=tuple(zip(sizes, map(typical, zip(*(call.results for call in of_op), strict=True)), strict=True)),
            code=typical(call.code for call in of_op),
        )
        for op, of_op, sizes in zip(ops, by_op, walk.result_bytes, strict=True)
        if of_op
    }
