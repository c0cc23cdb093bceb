# pyright: strict
"""How long before each call of a step its tensors were last touched, in bytes of other memory touched since.

That is the distance in an exact LRU cache, whatever its size. A step is taken to follow itself: a parameter was last
touched one step ago. Results get the memory of the last result of their size that is not needed any
more, as an allocator that keeps freed memory gives it. Owns the walk; which tensor is which is `linking`'s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from statistics import median_high

import msgspec

from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.sizes import tensor_bytes
from opreplay.replay.plan.step.lifetimes import lifetimes, makes_no_memory
from opreplay.replay.plan.step.linking import VIEWS, Value, linked_step, results_of, tensors_of


class Recency(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Of one op, the median over its calls in the step."""

    arguments: tuple[int, ...]
    """Distance in bytes of each tensor argument that is there, lists flattened."""
    results: tuple[tuple[int, int], ...] = ()
    """(size in bytes, distance in bytes of the memory that it gets) of each result in memory of its own."""
    code: int = 1 << 62
    """Bytes of memory touched since an op of this name ran before: its code has been in the caches since then."""


class Recent:
    """Bytes of distinct memory touched since each piece of memory was: a tree of sums over times of last touches."""

    def __init__(self, touches: int) -> None:
        """`touches` is the most that there will be."""
        self._sums = [0] * (touches + 1)
        self._last: dict[Hashable, tuple[int, int]] = {}
        self._now = 0

    def touch(self, memory: Hashable, size: int) -> None:
        """This memory is touched now."""
        if (before := self._last.get(memory)) is not None:
            self._add(before[0], -before[1])
        self._now += 1
        self._add(self._now, size)
        self._last[memory] = self._now, size

    def distance(self, memory: Hashable) -> int | None:
        """Bytes of other memory touched since this was; None for memory that was not yet."""
        before = self._last.get(memory)
        return None if before is None else self.total - self._before(before[0])

    @property
    def total(self) -> int:
        """All memory that was touched, in bytes."""
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


def recency(plan: ReplayPlan) -> dict[str, Recency]:
    """For each op that the step of the plan calls, by id; empty for a plan that does not say what its step is."""
    sequence = plan.sequence
    if sequence is None:
        return {}
    ops, calls, linked = linked_step(plan.ops, sequence)
    owned = lifetimes(ops, linked)
    input_bytes = [[None if meta is None else tensor_bytes(meta) for _, _, meta in tensors_of(op)] for op in ops]
    result_bytes = [
        [] if makes_no_memory(op) else [0 if meta is None else tensor_bytes(meta) for meta in results_of(op)]
        for op in ops
    ]
    moves = [op.name not in VIEWS for op in ops]
    ends: defaultdict[int, list[Value]] = defaultdict(list)
    for value, last in owned.until.items():
        ends[last].append(value)
    recent = Recent(2 * sum(1 + len(input_bytes[index]) + len(result_bytes[index]) for index in calls))
    free: defaultdict[int, list[int]] = defaultdict(list)
    blocks = 0
    seen: list[list[tuple[list[int | None], list[int | None]]]] = [[] for _ in ops]
    code: list[list[int | None]] = [[] for _ in ops]
    for counted in (False, True):
        block: dict[Value, int] = {}
        for at, index in enumerate(calls):
            touched: list[tuple[Hashable, int]] = []
            far: list[int | None] = []
            for source, size in zip(linked.sources[at], input_bytes[index], strict=True):
                if size is None:
                    continue
                lies_in = owned.memory_of(source)
                memory = ("block", block.get(lies_in)) if isinstance(lies_in, Value) else ("outside", lies_in)
                far.append(recent.distance(memory))
                touched.append((memory, size))
            results: list[int | None] = []
            for output, size in enumerate(result_bytes[index]):
                if not free[size]:
                    blocks += 1
                taken = block[Value(at, output)] = free[size].pop() if free[size] else blocks
                results.append(recent.distance(("block", taken)))
                touched.append((("block", taken), size))
            if counted:
                code[index].append(recent.distance(("code", ops[index].name)))
            recent.touch(("code", ops[index].name), 0)
            if moves[index]:
                for memory, size in touched:
                    recent.touch(memory, size)
            for value in ends[at]:
                if value in block:
                    free[result_bytes[calls[value.call]][value.output]].append(block[value])
            if counted:
                seen[index].append((far, results))
    return {
        op.id: Recency(
            arguments=tuple(_typical([far[k] for far, _ in seen[i]], recent.total) for k in range(len(seen[i][0][0]))),
            results=tuple(
                (size, _typical([r[k] for _, r in seen[i]], recent.total)) for k, size in enumerate(result_bytes[i])
            ),
            code=_typical(code[i], recent.total),
        )
        for i, op in enumerate(ops)
        if seen[i]
    }


def _typical(distances: list[int | None], total: int) -> int:
    """The median; what was never touched is as far away as anything can be."""
    return int(median_high(total if distance is None else distance for distance in distances))
