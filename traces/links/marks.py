# pyright: strict
"""Match annotations on a back-end's own threads ("gloo:all_reduce") to the calls that requested the collectives.

gloo starts requests in order, each on whichever thread is free. So a call is identified by operation, number of
elements and order, not by its thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

INSTEAD: Mapping[str, str] = {"reduce_scatter": "all_reduce"}
"""Operation that gloo lacks → operation that gloo runs and annotates instead."""


class UnannotatedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that requested a collective. If the collective is annotated, the annotation is on another thread."""

    start_ns: int
    kind: str
    elements: frozenset[int]
    """Numbers of elements that the call's annotation may state; empty if the call records none."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A collective annotated by a back-end thread."""

    start_ns: int
    kind: str
    elements: int | None


def marks_of(asked: Sequence[UnannotatedCall], marks: Sequence[Mark]) -> dict[int, int]:
    """Return the index of each call's annotation, by the index of the call.

    An annotation belongs to a call that began before it and has its operation and size. It is given to the earliest
    such call that has no annotation yet.
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


def _fits(call: UnannotatedCall, mark: Mark) -> bool:
    sized = mark.elements is not None and bool(call.elements)
    return call.start_ns <= mark.start_ns and (not sized or mark.elements in call.elements)
