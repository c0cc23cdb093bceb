# pyright: strict
"""Finds the memory that holds each result of a step, and the last call that needs this memory.

Sizes do not matter here. This module determines which ops return views; `linking` determines which result each argument
is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.sizes import is_in_place
from opreplay.replay.plan.step.linking import VIEWS, Linked, Source, Value, results_of


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the results of a step."""

    until: dict[Value, int]
    """Result with its own memory → position of the last call that needs the memory."""
    within: dict[Value, Value | int]
    """Result without its own memory → the result that owns the memory, or the number of an outside tensor."""

    def memory_of(self, source: Source) -> Value | int | None:
        """Return what owns the memory of an argument: a result, or an outside tensor (its number); None if unknown."""
        if source.value is not None:
            return self.within.get(source.value, source.value)
        return source.number if source.kind == "outside" else None


def lifetimes(ops: Sequence[ReplayOp], linked: Linked) -> Lifetimes:
    """Return the lifetimes of all results of a step; `linked.calls` are indices into `ops`."""
    count = [len(results_of(op)) for op in ops]
    aliases = [makes_no_memory(op) for op in ops]
    memory = Lifetimes(until={}, within={})
    for at, (index, sources) in enumerate(zip(linked.calls, linked.sources, strict=True)):
        for source in sources:
            if isinstance(used := memory.memory_of(source), Value):
                memory.until[used] = at
        lies_in = None
        if aliases[index]:
            lies_in = next((memory.memory_of(source) for source in sources if source.kind != "absent"), None)
        values = [Value(at, output) for output in range(count[index])]
        if lies_in is None:
            memory.within.update(zip(values, values, strict=True))
            memory.until.update(dict.fromkeys(values, at))
        else:
            memory.within.update(dict.fromkeys(values, lies_in))
    return memory


def makes_no_memory(op: ReplayOp) -> bool:
    """Check whether an op's results use the memory of its first argument: views, and in-place ops."""
    return op.name in VIEWS or is_in_place(op)
