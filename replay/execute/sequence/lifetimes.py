# pyright: strict
"""Lifetimes and total size of a sequence's tensors, kept within a memory budget. Does not depend on torch.

This module counts bytes and decides what is shared or recreated if the budget is exceeded. `linking` identifies
tensors.

A result lives until its last use in the step. An external tensor (made by no call) lives as long as the sequence runs.
If these tensors exceed the budget, three measures follow. First, external tensors of the same argument of one op share
memory, largest first. Second, external tensors are created for each call. Third, results are dropped early and
recreated, starting with the results that are needed again last.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from opreplay.replay.ir import sizes as budget
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.plan.step.lifetimes import makes_no_memory
from opreplay.replay.plan.step.linking import Linked, Source, Value, results_of, tensors_of

NEVER = 1 << 60


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A linked sequence that fits a memory budget."""

    linked: Linked
    drops: tuple[tuple[Value, ...], ...]
    """For each call, the results that are dropped after it."""
    peak_bytes: int
    """Peak memory of all tensors. It includes the memory needed while they are created."""
    outside_bytes: int
    """Memory of the external tensors, which exist for the whole sequence."""
    recycled: int = 0
    """Number of external tensors that use the memory of another external tensor."""
    remade: int = 0
    """Number of arguments that are created for their call, because their tensor was dropped or not kept."""


def plan_memory(ops: Sequence[ReplayOp], linked: Linked, budget_bytes: float = math.inf) -> MemoryPlan:
    """Plan the sequence so that its tensors take at most `budget_bytes` at any time.

    Raises ValueError if a single op needs more. The caller must exclude such ops.
    """
    sizes = _Sizes(ops)
    whole = _Sweep(ops, sizes, linked, math.inf).result()
    if whole.peak_bytes <= budget_bytes:
        return whole
    largest = max((sizes.whole[index] for index in linked.calls), default=0)
    if largest > budget_bytes:
        raise ValueError(f"an op needs {largest} bytes, but the budget is {budget_bytes:.0f} bytes")
    results_bytes = whole.peak_bytes - whole.outside_bytes
    room = budget_bytes - min(max(results_bytes, largest), budget_bytes)
    shared, recycled = _recycled(linked, sizes, room)
    shared = _made_anew(shared, sizes, budget_bytes - largest)
    plan = _Sweep(ops, sizes, shared, budget_bytes).result()
    return msgspec.structs.replace(plan, recycled=recycled)


def need_bytes(op: ReplayOp) -> int:
    """Return the bytes of an op with all its arguments and results, which is the smallest budget for it."""
    inputs = sum(0 if meta is None else budget.tensor_bytes(meta) for _, _, meta in tensors_of(op))
    outputs = sum(0 if meta is None else budget.tensor_bytes(meta) for meta in results_of(op))
    # `need_of` knows what an op takes whose results nobody knows.
    return max(budget.need_of(op).total, inputs + outputs)


class _Sizes:
    """Bytes of the arguments and results of each op."""

    def __init__(self, ops: Sequence[ReplayOp]) -> None:
        self.inputs = [[0 if m is None else budget.tensor_bytes(m) for _, _, m in tensors_of(op)] for op in ops]
        self.outputs = [[0 if m is None else budget.tensor_bytes(m) for m in results_of(op)] for op in ops]
        self.whole = [need_bytes(op) for op in ops]

    def outside(self, linked: Linked) -> list[int]:
        return [self.inputs[tensor.op][tensor.argument] for tensor in linked.outside]


def _recycled(linked: Linked, sizes: _Sizes, room: float) -> tuple[Linked, int]:
    """Let external tensors share memory until they take at most `room` bytes, or each argument has only one tensor.

    Returns (new links, number of tensors that share memory).
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, tensor in enumerate(linked.outside):
        groups[tensor.op, tensor.argument].append(number)
    excess = sum(sizes.outside(linked)) - room
    target = list(range(len(linked.outside)))
    recycled = 0
    for (op, argument), numbers in sorted(groups.items(), key=lambda item: -sizes.inputs[item[0][0]][item[0][1]]):
        size = sizes.inputs[op][argument]
        if excess <= 0 or size == 0:
            break
        removed = min(len(numbers) - 1, math.ceil(excess / size))
        slots = len(numbers) - removed
        for turn, number in enumerate(numbers):
            target[number] = numbers[turn % slots]
        excess -= removed * size
        recycled += removed
    return _renumbered(linked, target), recycled


def _made_anew(linked: Linked, sizes: _Sizes, room: float) -> Linked:
    """Recreate the largest external tensors for each call, until the other external tensors take at most
    `room` bytes.
    """
    tensor_bytes = sizes.outside(linked)
    total = sum(tensor_bytes)
    target = list(range(len(tensor_bytes)))
    for number in sorted(target, key=lambda number: -tensor_bytes[number]):
        if total <= room:
            break
        total -= tensor_bytes[number]
        target[number] = -1
    return linked if total == sum(tensor_bytes) else _renumbered(linked, target)


def _renumbered(linked: Linked, target: Sequence[int]) -> Linked:
    """Replace external tensor n by tensor `target[n]`; if that is -1, by a tensor created for each call."""
    remaining = sorted(set(target) - {-1})
    number = {old: new for new, old in enumerate(remaining)}

    def moved(source: Source) -> Source:
        if source.kind != "outside":
            return source
        to = target[source.number]
        return Source("own") if to < 0 else msgspec.structs.replace(source, number=number[to])

    return msgspec.structs.replace(
        linked,
        sources=tuple(tuple(map(moved, sources)) for sources in linked.sources),
        outside=tuple(linked.outside[old] for old in remaining),
    )


class _Sweep:
    """One pass over the calls that counts live bytes. It drops results early if they do not fit."""

    def __init__(self, ops: Sequence[ReplayOp], sizes: _Sizes, linked: Linked, limit: float) -> None:
        self._ops, self._sizes, self._linked, self._limit = ops, sizes, linked, limit
        self._outside_bytes = sum(sizes.outside(linked))
        self._uses: dict[Value, list[int]] = defaultdict(list)
        for place, sources in enumerate(linked.sources):
            for source in sources:
                if source.value is not None:
                    self._uses[source.value].append(place)
        self._memory_of: dict[Value, int] = {}
        self._values: dict[int, list[Value]] = {}
        self._bytes: dict[int, int] = {}
        self._live = 0
        self._next = 0
        # While tensors from outside are made, the other arguments of their op are there for a moment.
        making = max((sum(sizes.inputs[index]) for index in set(linked.calls)), default=0)
        self._peak = self._outside_bytes + making
        self._in_place = list(map(makes_no_memory, ops))

    def result(self) -> MemoryPlan:
        """Run the pass and return its plan. Raises ValueError if the memory limit cannot be kept."""
        sources: list[tuple[Source, ...]] = []
        drops: list[tuple[Value, ...]] = []
        remade = 0
        for place, index in enumerate(self._linked.calls):
            early: list[Value] = []
            call_sources = self._fitting(place, index, self._linked.sources[place], early)
            remade += sum(source.kind == "own" for source in call_sources)
            if early:
                # What is dropped for the sake of this call is gone before it: after the one before.
                drops[-1] = (*drops[-1], *early)
            sources.append(call_sources)
            self._add_results(place, index, call_sources)
            drops.append(self._after(place, index, call_sources))
        linked = msgspec.structs.replace(self._linked, sources=tuple(sources))
        return MemoryPlan(
            linked=linked,
            drops=tuple(drops),
            peak_bytes=self._peak,
            outside_bytes=self._outside_bytes,
            remade=remade,
        )

    def _fitting(self, place: int, index: int, sources: tuple[Source, ...], early: list[Value]) -> tuple[Source, ...]:
        """Drop results until a call fits the limit. Return the sources of its arguments. Dropped values go to
        `early`.
        """
        available = tuple(self._still_there(source) for source in sources)
        while self._total(index, available) > self._limit:
            used = {self._memory_of[source.value] for source in available if source.value is not None}
            free = [memory for memory in self._values if memory not in used]
            if free:
                early += self._evict(max(free, key=lambda memory: (self._next_use(memory, place), memory)))
                continue
            if not used and all(source.kind in ("own", "absent") for source in available):
                raise ValueError(
                    f"call {place} needs {self._total(index, available)} bytes, but the budget is {self._limit:.0f} "
                    f"bytes"
                )
            # Views can lie in memory that is much larger than they are: then nothing but the call's own is kept.
            for memory in used:
                early += self._evict(memory)
            available = tuple(source if source.kind == "absent" else Source("own") for source in available)
        self._peak = max(self._peak, self._total(index, available))
        return available

    def _still_there(self, source: Source) -> Source:
        return Source("own") if source.value is not None and source.value not in self._memory_of else source

    def _total(self, index: int, sources: Sequence[Source]) -> int:
        """Return the bytes that are live while the call runs."""
        # An initializer makes all arguments of a call, though only some of them are asked for.
        argument_bytes = sum(self._sizes.inputs[index]) if any(source.kind == "own" for source in sources) else 0
        shared = bool(sources) and self._in_place[index] and sources[0].kind != "absent" and not argument_bytes
        results = 0 if shared else sum(self._sizes.outputs[index])
        return self._outside_bytes + self._live + argument_bytes + results

    def _evict(self, memory: int) -> list[Value]:
        values = self._values.pop(memory)
        self._live -= self._bytes.pop(memory)
        for value in values:
            del self._memory_of[value]
        return values

    def _next_use(self, memory: int, place: int) -> int:
        """Return the first call after `place` that uses this memory; `NEVER` if none does."""
        next_use = NEVER
        for value in self._values[memory]:
            uses = self._uses[value]
            at = bisect_right(uses, place)
            next_use = min(next_use, uses[at] if at < len(uses) else NEVER)
        return next_use

    def _add_results(self, place: int, index: int, sources: Sequence[Source]) -> None:
        """Add the call's results. The results of a view or an in-place op use the memory of the op's first argument."""
        first = sources[0] if sources and self._in_place[index] else Source("absent")
        root = None if first.value is None else self._memory_of[first.value]
        if first.kind in ("outside", "own"):
            root = self._room(0 if first.kind == "outside" else self._sizes.inputs[index][0])
        for output, size in enumerate(self._sizes.outputs[index]):
            memory = self._room(size) if root is None else root
            self._memory_of[Value(place, output)] = memory
            self._values[memory].append(Value(place, output))

    def _room(self, size: int) -> int:
        """Register a memory block and return its number. `size` is in bytes, and 0 if the block is already counted
        elsewhere.
        """
        self._next += 1
        self._bytes[self._next], self._values[self._next] = size, []
        self._live += size
        return self._next

    def _after(self, place: int, index: int, sources: Sequence[Source]) -> tuple[Value, ...]:
        """Remove and return the results that no later call uses."""
        candidates = {Value(place, output) for output in range(len(self._sizes.outputs[index]))}
        candidates |= {source.value for source in sources if source.value is not None}
        done: list[Value] = []
        for value in sorted(candidates):
            uses = self._uses.get(value, [])
            if uses and uses[-1] > place:
                continue
            memory = self._memory_of.pop(value, None)
            if memory is None:
                continue
            done.append(value)
            self._values[memory].remove(value)
            if not self._values[memory]:
                del self._values[memory]
                self._live -= self._bytes.pop(memory)
        return tuple(done)
