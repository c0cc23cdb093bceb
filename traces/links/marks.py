# pyright: strict
"""Marks that a back-end makes of collectives on threads of its own ("gloo:all_reduce"), and the calls they belong to.

gloo takes what it was asked for in that order, by whichever of its threads is free: the operation, the number of
elements and the order tell, threads do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

INSTEAD: Mapping[str, str] = {"reduce_scatter": "all_reduce"}
"""What gloo runs, and marks, for operations that it does not have."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has no mark on its own thread."""

    start_ns: int
    kind: str
    elements: frozenset[int]
    """Any of which its mark may tell; empty where the call does not say."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a thread of the back-end says that it ran."""

    start_ns: int
    kind: str
    elements: int | None


def marks_of(asked: Sequence[Asked], marks: Sequence[Mark]) -> dict[int, int]:
    """Index of a call → index of its mark: each is of the first call, in the order of time, that began before, is of
    that operation and size, and has none yet."""
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
