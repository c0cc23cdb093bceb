# pyright: strict
"""Finds annotations of communication back-ends ("gloo:all_reduce", "nccl:broadcast") by their time.

NCCL annotates on the calling thread, inside the call. gloo annotates on its own threads, when it runs the work; see
`links.marks`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from math import prod

from opreplay.traces.activity.model import CollectiveNote
from opreplay.traces.collectives.names import kind_of
from opreplay.traces.links.marks import Mark
from opreplay.traces.model import Trace


class Notes:
    """The back-end annotations of a trace, searchable by time."""

    def __init__(self, trace: Trace) -> None:
        activity = trace.activity
        self.all = [n for n in activity.notes if kind_of(n.name) is not None] if activity is not None else []
        self._by_track: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for index, note in enumerate(self.all):
            self._by_track[note.track].append((note.start_ns, index))
        for entries in self._by_track.values():
            entries.sort()

    def within(self, track: int, begin: int, end: int) -> list[int]:
        """Return the indices of the annotations on a track whose start is between `begin` and `end` (ns)."""
        entries = self._by_track.get(track, [])
        first, last = bisect_left(entries, (begin, -1)), bisect_left(entries, (end + 1, -1))
        return [index for _, index in entries[first:last]]


def mark(note: CollectiveNote) -> Mark:
    """Convert an annotation that was made on another thread than its call to a `Mark`. The mark holds facts that
    identify the call.
    """
    elements = sum(prod(dims) for dims in note.dims) if note.dims else None
    return Mark(start_ns=note.start_ns, kind=kind_of(note.name) or "", elements=elements)
