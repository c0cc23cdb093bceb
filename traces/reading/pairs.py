# pyright: strict
"""Begin and end events (phases B and E, b and e) as complete events: which end closes which begin, and what is lost.

Kineto writes complete events; converters and other profilers write pairs. An end closes the last open begin of its
thread that did not begin after it, of the same name where the end has one; ends of phase e, the last of their id.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
from msgspec import Raw

from opreplay.traces.reading import fields
from opreplay.traces.reading.columns import INVALID, to_ns

PHASES = frozenset("BEbe")
MAX_LOOKED_THROUGH = 64
"""Open begins of one thread that are looked through for the one that an end closes."""

_Key = tuple[str, ...]


class Pairs:
    """Joins begin and end events of one file; holds what is open."""

    def __init__(self) -> None:
        self.losses: Counter[str] = Counter()
        self._open: defaultdict[_Key, list[fields.AnyEvent]] = defaultdict(list)
        self._ends: defaultdict[_Key, list[fields.AnyEvent]] = defaultdict(list)
        """Ends that no begin before them fits: the file may not be in order of time."""
        self._before: dict[_Key, tuple[fields.AnyEvent | None, int]] = {}
        """The half before, where it is a begin, and the time of the latest half so far, ns."""

    def take(self, event: fields.AnyEvent) -> fields.AnyEvent | None:
        """Return the complete event that this one ends, or None where it begins one or fits none so far."""
        key, time = _key(event), _time(event)
        before, latest = self._before.get(key, (None, INVALID))
        self._before[key] = None, max(latest, time)
        if event.ph in ("B", "b"):
            begin = _lasting(event)
            self._open[key].append(begin)
            self._before[key] = begin, max(latest, time)
            return None
        begins = self._open[key]
        at = _closed_by(begins, event)
        if at is None:
            self._ends[key].append(_lasting(event))
            return None
        begin = begins.pop(at)
        # An end without a name closes the innermost begin, which is known only where halves are in order of time.
        unsure = not bytes(event.name) and time < latest and begin is not before
        self.losses["end event without a name, out of order of time"] += unsure
        return _complete(begin, event)

    def finish(self) -> list[fields.AnyEvent]:
        """Return the events whose end stands before their begin in the file; what stays open is a loss."""
        made: list[fields.AnyEvent] = []
        for key, ends in self._ends.items():
            halves = [*self._open.pop(key, ()), *ends]
            open_: list[fields.AnyEvent] = []
            for half in sorted(halves, key=_time):  # of one time, begins first
                if half.ph in ("B", "b"):
                    open_.append(half)
                elif (at := _closed_by(open_, half)) is not None:
                    made.append(_complete(open_.pop(at), half))
                else:
                    self.losses["end event without its begin"] += 1
            self.losses["begin event without its end"] += len(open_)
        self.losses["begin event without its end"] += sum(map(len, self._open.values()))
        self._open.clear()
        self._ends.clear()
        return made


def _key(event: fields.AnyEvent) -> _Key:
    """What both ends of a pair have in common: process and thread, or process, category and id."""
    if event.ph in ("B", "E"):
        return "thread", str(event.pid), str(event.tid)
    return "id", str(event.pid), str(event.cat), str(event.id)


def _closed_by(begins: list[fields.AnyEvent], end: fields.AnyEvent) -> int | None:
    """Index of the begin that an end closes; None for none."""
    name, time = bytes(end.name), _time(end)
    for at in range(len(begins) - 1, max(-1, len(begins) - 1 - MAX_LOOKED_THROUGH), -1):
        if _time(begins[at]) <= time and (not name or bytes(begins[at].name) == name):
            return at
    return None


def _time(event: fields.AnyEvent) -> int:
    """Nanoseconds; the lowest number for a time that cannot be read."""
    return int(to_ns([event.ts])[0])


def _lasting(event: fields.AnyEvent) -> fields.AnyEvent:
    """The event without the text of the block that it stood in."""
    return msgspec.structs.replace(event, name=event.name.copy(), args=event.args.copy())


def _complete(begin: fields.AnyEvent, end: fields.AnyEvent) -> fields.AnyEvent:
    """The event from its begin to its end, with the arguments of both."""
    start, stop = _time(begin), _time(end)
    duration: Any = None if INVALID in (start, stop) else (stop - start) / 1000
    return msgspec.structs.replace(begin, ph="X", dur=duration, args=_both(begin.args, end.args))


def _both(first: Raw, second: Raw) -> Raw:
    """The arguments of both ends of a pair; those of the begin where they cannot be joined."""
    if not bytes(second) or not bytes(first):
        return first if bytes(first) else second
    try:
        one, other = (msgspec.json.decode(each, type=dict[str, Raw]) for each in (first, second))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return first
    return Raw(msgspec.json.encode(one | other))
