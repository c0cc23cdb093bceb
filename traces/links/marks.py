# pyright: strict
"""Match marks of collectives on a back-end's own threads ("gloo:all_reduce") to the calls that requested them.

gloo starts requests in order on whichever thread is free, so the operation, the number of elements and the order
identify a call; threads do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

INSTEAD: Mapping[str, str] = {"reduce_scatter": "all_reduce"}
"""What gloo runs, and marks, for operations that it does not have."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call without a mark on its own thread."""

    start_ns: int
    kind: str
    elements: frozenset[int]
    """Any of which its mark may tell; empty where the call does not say."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that a back-end thread says it ran."""

    start_ns: int
    kind: str
    elements: int | None


def marks_of(asked: Sequence[Asked], marks: Sequence[Mark]) -> dict[int, int]:
    """Map the index of each call to the index of its mark.

    A mark belongs to the earliest call that began before it, has its operation and size, and has no mark yet.
    """
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    for index in sorted(range(len(asked)), key=lambda i: asked[i].start_ns):
        waiting[asked[index].kind].append(index)
    mark_of_call: dict[int, int] = {}
    for place in sorted(range(len(marks)), key=lambda i: marks[i].start_ns):
        mark = marks[place]
        kinds = [mark.kind, *(other for other, runs in INSTEAD.items() if runs == mark.kind)]
        for queue in (waiting[other] for other in kinds):
            chosen = next((i for i in queue if _fits(asked[i], mark)), None)
            if chosen is not None:
                queue.remove(chosen)
                mark_of_call[chosen] = place
                break
    return mark_of_call


def _fits(call: Asked, mark: Mark) -> bool:
    sized = mark.elements is not None and bool(call.elements)
    return call.start_ns <= mark.start_ns and (not sized or mark.elements in call.elements)
