# pyright: strict
"""Join begin and end events (phases B and E, b and e) into complete events, and count what is lost.

Kineto writes complete events; converters and other profilers write pairs. An end of phase E closes the latest open
begin on its thread. If the end has a name, the begin must have the same name. An end of phase e closes the latest open
begin with its id. Pairs are joined while the file is read, as long as the begins and ends ("halves") of a thread are
sorted by time or each end directly follows its begin. Otherwise the thread's halves are kept and sorted by time first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Raw

from opreplay.traces.reading import fields
from opreplay.traces.reading.columns import INVALID, to_ns

PHASES = frozenset("BEbe")
UNSURE = "end event without a name, at the same time as a begin event"
_FEWEST_TO_PRUNE = 64

_Key = tuple[str, ...]


class _Half(msgspec.Struct):
    event: fields.AnyEvent
    time: int
    """Time in nanoseconds; if it is unreadable, the time of the latest earlier half in the file."""
    closed: bool = False

    @property
    def begins(self) -> bool:
        return self.event.ph in ("B", "b")

    @property
    def name(self) -> bytes:
        return bytes(self.event.name)

    def detach_from_block(self) -> _Half:
        """Return a copy of the half that does not refer to the text of its block."""
        name, args = self.event.name.copy(), self.event.args.copy()
        return _Half(msgspec.structs.replace(self.event, name=name, args=args), self.time)


class _Open:
    """Open begin events of one thread or id. Each is added and removed once, so the time is linear in any order."""

    def __init__(self) -> None:
        self._all: list[_Half] = []
        self._by_name: dict[bytes, list[_Half]] = {}
        self.count = 0

    def add(self, begin: _Half) -> None:
        self._all.append(begin)
        self._by_name.setdefault(begin.name, []).append(begin)
        self.count += 1

    def last(self, name: bytes) -> _Half | None:
        """Return the last open begin event of this name, or of any name if `name` is empty; None without one."""
        begins = self._by_name.get(name) if name else self._all
        return begins[-1] if begins else None

    def close(self, begin: _Half) -> None:
        """Remove the begin event that was last returned by `last`."""
        begin.closed = True
        self.count -= 1
        begins = self._by_name[begin.name]
        begins.pop()  # the last of all is also the last of its name
        if not begins:
            del self._by_name[begin.name]
        while self._all and self._all[-1].closed:
            self._all.pop()
        if len(self._all) > 2 * self.count + _FEWEST_TO_PRUNE:
            self._all = [each for each in self._all if not each.closed]

    def halves(self) -> list[_Half]:
        """Return the open begin events in the order of their addition."""
        return [each for each in self._all if not each.closed]


class _Thread(msgspec.Struct):
    """Begin and end events (halves) of one thread or id."""

    open: _Open = msgspec.field(default_factory=_Open)
    strays: list[_Half] = msgspec.field(default_factory=list["_Half"])
    """End events that match no earlier begin event."""
    latest: int = INVALID
    """Time of the latest half so far, in ns."""
    before: bytes | None = None
    """Name of the last half if it was a begin event, otherwise None."""
    before_time: int = INVALID
    in_order: bool = True
    """Whether times have never decreased so far."""
    adjacent: bool = True
    """Whether each begin event has been followed directly by its end event so far."""
    made_until: int = INVALID
    """Latest end, in ns, among the pairs that have been joined so far."""
    kept: list[_Half] | None = None
    """Begins and ends, sorted by time after all are read; None as long as pairs can be joined immediately."""


class Pairs:
    """Joins the begin and end events of a file. Holds open begins, and events of threads not sorted by time."""

    def __init__(self, *, keep: bool = False) -> None:
        """Create an empty joiner; `keep` sorts begins and ends of all threads by time before any pair is joined."""
        self.losses: Counter[str] = Counter()
        self.must_keep = False
        """Whether pairs had already been joined when the file turned out not to be sorted. The file must then be read
        again with `keep`.
        """
        self._keep = keep
        self._threads: defaultdict[_Key, _Thread] = defaultdict(self._thread)

    def _thread(self) -> _Thread:
        return _Thread(kept=[] if self._keep else None)

    def take(self, event: fields.AnyEvent) -> fields.AnyEvent | None:
        """Return the complete event that this event ends, or None if it is a begin or has no partner yet."""
        thread = self._threads[_key(event)]
        read = _time(event)
        half = _Half(event, thread.latest if read == INVALID else read)
        _watch_order(thread, half)
        thread.latest = max(thread.latest, half.time)
        if thread.kept is not None:
            self.must_keep |= half.time < thread.made_until
            thread.kept.append(half.detach_from_block())
            return None
        if half.begins:
            thread.open.add(half.detach_from_block())
            return None
        begin = thread.open.last(half.name)
        if begin is None:
            thread.strays.append(half.detach_from_block())
            return None
        thread.open.close(begin)
        thread.made_until = max(thread.made_until, half.time)
        return _complete(begin.event, event)

    def finish(self) -> list[fields.AnyEvent]:
        """Return the complete events made from the kept begins and ends. Those without a partner count as lost."""
        made: list[fields.AnyEvent] = []
        for thread in self._threads.values():
            halves = thread.kept or []
            if thread.in_order or thread.adjacent:
                for half in halves:
                    if half.begins:
                        thread.open.add(half)
                    elif not _close_last(thread.open, half, made):
                        thread.strays.append(half)
                halves = [*thread.open.halves(), *thread.strays]
            made += self._paired(halves)
        self._threads.clear()
        return made

    def _paired(self, halves: list[_Half]) -> list[fields.AnyEvent]:
        """Pair the halves of one thread in order of time and return the complete events."""
        steps = [after.time - before.time for before, after in pairwise(halves)]
        if sum(step < 0 for step in steps) > sum(step > 0 for step in steps):
            halves = halves[::-1]  # the latest come first in the file, also those of one time
        made: list[fields.AnyEvent] = []
        open_ = _Open()
        for _, at_once in groupby(sorted(halves, key=attrgetter("time")), key=attrgetter("time")):
            made += self._paired_at_once([*at_once], open_)
        self.losses["begin event without an end event"] += open_.count
        return made

    def _paired_at_once(self, halves: list[_Half], open_: _Open) -> list[fields.AnyEvent]:
        """Return the complete events closed by halves with equal times: first those that began earlier, then those with
        duration 0.
        """
        made: list[fields.AnyEvent] = []
        some_begin = any(half.begins for half in halves)
        some_open = open_.count > 0
        rest: list[_Half] = []
        for half in halves:
            if half.begins or not half.name or not _close_last(open_, half, made):
                rest.append(half)
        late: list[_Half] = []
        for half in rest:
            if half.begins:
                open_.add(half)
            elif half.name or not _close_last(open_, half, made):
                late.append(half)
            else:
                self.losses[UNSURE] += some_begin and some_open
        self.losses["end event without a begin event"] += sum(not _close_last(open_, half, made) for half in late)
        return made


def _watch_order(thread: _Thread, half: _Half) -> None:
    """Record how a thread's halves are ordered. Start keeping them if they are neither sorted nor adjacent pairs."""
    rises = half.time >= thread.latest
    follows = thread.before is not None and half.name in (b"", thread.before) and half.time >= thread.before_time
    thread.in_order &= rises
    thread.adjacent &= thread.before is None if half.begins else follows
    thread.before, thread.before_time = (half.name, half.time) if half.begins else (None, INVALID)
    if thread.kept is None and not (thread.in_order or thread.adjacent):
        thread.kept = [*thread.open.halves(), *thread.strays]


def _close_last(open_: _Open, end: _Half, made: list[fields.AnyEvent]) -> bool:
    """Close the last begin that matches an end and add the complete event to `made`; return False if none is open."""
    begin = open_.last(end.name)
    if begin is None:
        return False
    open_.close(begin)
    made.append(_complete(begin.event, end.event))
    return True


def _key(event: fields.AnyEvent) -> _Key:
    """Return the key that both ends of a pair share: process and thread, or process, category and id."""
    if event.ph in ("B", "E"):
        return "thread", str(event.pid), str(event.tid)
    return "id", str(event.pid), str(event.cat), str(event.id)


def _time(event: fields.AnyEvent) -> int:
    """Return the time in nanoseconds; the lowest int64 for an unreadable time."""
    return int(to_ns([event.ts])[0])


def _complete(begin: fields.AnyEvent, end: fields.AnyEvent) -> fields.AnyEvent:
    """Return the complete event from begin to end, with the arguments of both."""
    start, stop = _time(begin), _time(end)
    duration: Any = None if INVALID in (start, stop) else (stop - start) / 1000
    return msgspec.structs.replace(begin, ph="X", dur=duration, args=_both(begin.args, end.args))


def _both(first: Raw, second: Raw) -> Raw:
    """Return the arguments of both halves of a pair; only those of the begin if the two cannot be joined."""
    if not bytes(second) or not bytes(first):
        return first if bytes(first) else second
    try:
        one, other = (msgspec.json.decode(each, type=dict[str, Raw]) for each in (first, second))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return first
    return Raw(msgspec.json.encode(one | other))
