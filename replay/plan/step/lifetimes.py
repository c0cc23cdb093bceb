# pyright: strict
"""In whose memory each result of a step lies, and until which call it is needed; knows sizes of nothing.

Owns what a view is; which argument is which result is `linking`'s.
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
    """The last call that needs the memory of a result that was made in memory of its own."""
    within: dict[Value, Value | int]
    """Result → the one in whose memory it lies, itself where that is its own; the number of a tensor from outside."""

    def memory_of(self, source: Source) -> Value | int | None:
        """The result, or the number of the tensor from outside, that an argument lies in; None where none is known."""
        if source.value is not None:
            return self.within.get(source.value, source.value)
        return source.number if source.kind == "outside" else None


def lifetimes(ops: Sequence[ReplayOp], linked: Linked) -> Lifetimes:
    """Of all results of a step; ops are those that `linked.calls` are indices into."""
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
    """Whether an op's results lie in the memory of its first argument: views, and ops that write to it."""
    return op.name in VIEWS or is_in_place(op)
