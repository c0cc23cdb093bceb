# pyright: strict
"""Annotations of back-ends ("gloo:all_reduce", "nccl:broadcast") and the calls that they belong to.

NCCL annotates within the call, on its thread. gloo does on threads of its own, when it gets to it: there the operation,
the number of elements and the order tell.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from opreplay.replay.collectives.model import Kind
from opreplay.replay.collectives.names import kind_of
from opreplay.traces.activity.model import CollectiveNote
from opreplay.traces.model import Trace

INSTEAD: dict[Kind, Kind] = {"reduce_scatter": "all_reduce"}
"""What gloo runs, and annotates, for operations that it does not have."""


class Notes:
    """The annotations of a trace, found by where they lie."""

    def __init__(self, trace: Trace) -> None:
        found = trace.activity
        self.all = [n for n in found.notes if kind_of(n.name) is not None] if found is not None else []
        self._by_track: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, note in enumerate(self.all):
            self._by_track[note.track].append((note.start_ns, index))
        for entries in self._by_track.values():
            entries.sort()

    def within(self, track: int, begin: int, end: int) -> list[int]:
        """Indexes of those that start in [begin, end]."""
        entries = self._by_track.get(track, [])
        first, last = bisect_left(entries, (begin, -1)), bisect_left(entries, (end + 1, -1))
        return [index for _, index in entries[first:last]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unannotated:
    """A call that has no annotation on its own thread."""

    begin_ns: int
    kind: Kind
    elements: frozenset[int]
    """Any of which its annotation may tell; empty where the call does not say."""


def annotated_elsewhere(calls: Sequence[Unannotated], notes: Sequence[CollectiveNote]) -> dict[int, int]:
    """Index of a call → index of the annotation that another thread made of it: each the first call, in the order of
    time, that began before, is of that operation and size, and has none yet."""
    waiting: defaultdict[Kind, list[int]] = defaultdict(list)
    for index in sorted(range(len(calls)), key=lambda i: calls[i].begin_ns):
        waiting[calls[index].kind].append(index)
    found: dict[int, int] = {}
    for place in sorted(range(len(notes)), key=lambda i: notes[i].start_ns):
        note, kind = notes[place], kind_of(notes[place].name)
        elements = sum(prod(dims) for dims in note.dims) if note.dims else None
        kinds: list[Kind] = [] if kind is None else [kind, *(other for other, runs in INSTEAD.items() if runs == kind)]
        for queue in (waiting[other] for other in kinds):
            chosen = next((i for i in queue if _fits(calls[i], note.start_ns, elements)), None)
            if chosen is not None:
                queue.remove(chosen)
                found[chosen] = place
                break
    return found


def _fits(call: Unannotated, start_ns: int, elements: int | None) -> bool:
    return call.begin_ns <= start_ns and (elements is None or not call.elements or elements in call.elements)
