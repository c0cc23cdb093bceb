# pyright: strict
"""Event structs → tables: keeps what links, replay and reports need, counts all events by category."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from operator import attrgetter
from typing import Any, cast

import numpy as np
from msgspec import Struct

from opreplay.traces.limits import Limits, too_large
from opreplay.traces.reading import fields
from opreplay.traces.reading.columns import EXACT_LIMIT_US, FLUSH_ROWS, Columns, Kind

_NUMBERS: dict[str, Kind] = {"rf": "id", "seq": "id"}
_CALL: dict[str, Kind] = {"name": "id", "kernel": "id"}
_join = b"\0".join
CORRELATED_KERNELS = 1 << 12
"""Kernels that all have a correlation id, after which arrows are left out: a tenth of a GPU trace."""
UNDECIDED_ARROWS = 1 << 19
"""Arrows that are held at most (8 MB) while no kernel says whether they are needed."""


class Interned(dict[Any, int]):
    """Key → index in order of first appearance; bounded in number and in length of a key."""

    def __init__(self, limit_field: str, limit: int, what: str, max_bytes: int | None = None) -> None:
        super().__init__()
        self.limit_field, self.limit, self.what, self.max_bytes = limit_field, limit, what, max_bytes

    def __missing__(self, key: Any) -> int:
        index = len(self)
        if index >= self.limit:
            raise too_large(self.limit_field, self.limit, index + 1, self.what)
        if self.max_bytes is not None and len(key) > self.max_bytes:
            raise too_large("name_bytes", self.max_bytes, len(key), f"bytes in the text of one of the {self.what}")
        self[key] = index
        return index


class Tracks(dict[tuple[Any, Any], int]):
    """(pid, tid) as decoded → index; 7 and "7" are the same track. `texts` lists them as text, by index."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.texts: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        index = self.of_texts(_track_text(key[0]), _track_text(key[1]))
        self[key] = index
        return index

    def of_texts(self, pid: str, tid: str) -> int:
        """Index of a track given as text."""
        index = self.texts.setdefault((pid, tid), len(self.texts))
        if len(self.texts) > self.limit:
            raise too_large("tracks", self.limit, len(self.texts), "process and thread pairs")
        return index

    def of(self, events: list[Any]) -> list[int]:
        """Track of each event."""
        try:
            return [self[e.pid, e.tid] for e in events]
        except TypeError:  # a pid that is a list or an object
            return [self[_hashable(e.pid), _hashable(e.tid)] for e in events]


def _hashable(value: Any) -> Any:
    return _track_text(value) if isinstance(value, (list, dict)) else value


def _track_text(value: Any) -> str:
    """The same text whether numbers were decoded as floats or exactly; what is a list or an object is no id."""
    if isinstance(value, Decimal):
        value = float(value)
    kind = cast("type[object]", type(value))
    return f"({kind.__name__})" if kind in (list, dict) else str(value)[:200]


class Collector:
    """The tables of one file, or of one part of it."""

    def __init__(self, limits: Limits, *, numbered: bool = False, calls: bool = False) -> None:
        """`numbered`: keep the numbers that torch and autograd gave each op; `calls`: the names of runtime calls."""
        self.limits = limits
        self.events = 0
        self.by_category: Counter[str] = Counter()
        # A signature's key joins its raw texts, an argument list may be long: hence the wider bound on its bytes.
        self.signatures = Interned("signatures", limits.signatures, "distinct ops", 16 * limits.name_bytes)
        self.kernel_names = Interned("names", limits.names, "kernel names", limits.name_bytes)
        self.call_names = Interned("names", limits.names, "names of runtime calls", limits.name_bytes)
        self.note_names = Interned("names", limits.names, "annotation names", limits.name_bytes)
        self.tracks = Tracks(limits.tracks)
        numbers = _NUMBERS if numbered else {}
        self.ops = Columns(signature="index", track="index", start="time", dur="span", ext="id", **numbers)
        self.kernels = Columns(
            name="index",
            category="index",
            track="index",
            start="time",
            dur="span",
            device="id",
            stream="id",
            ext="id",
            corr="id",
        )
        self.launches = Columns(track="index", start="time", corr="id", **(_CALL if calls else {}))
        self.flows = Columns(track="index", start="time", id="id", end="index")
        self.arrows = Columns(track="index", start="time", id="id", end="index")
        """Flows that may prove superfluous; their tracks are told apart, as nothing else may be on them."""
        self.arrow_tracks = Tracks(limits.tracks)
        self.arrows_skipped = False
        """Arrows were left out, as the first kernels have correlation ids."""
        self.notes = Columns(name="index", track="index", start="time", dur="span")
        self.uncorrelated = False
        """Some kernel has no correlation id: only flows can link it to its launch."""
        self.tables: dict[str, Columns] = {
            "ops": self.ops,
            "kernels": self.kernels,
            "launches": self.launches,
            "flows": self.flows,
            "launch_arrows": self.arrows,
            "notes": self.notes,
        }
        self._handlers: dict[type[Struct], tuple[str, Any]] = {}
        self._kernel_category: dict[type[Struct], int] = {}

    @property
    def arrows_seem_superfluous(self) -> bool:
        """Whether what was read so far has correlation ids enough to leave arrows out."""
        enough = len(self.kernels) >= CORRELATED_KERNELS or len(self.arrows) >= UNDECIDED_ARROWS
        return enough and not self.uncorrelated

    def skip_arrows(self) -> None:
        """Forget the arrows: those that follow are only counted."""
        self.arrows_skipped = True
        for name in self.arrows.kinds:
            self.arrows.take(name)
        self.arrows.rows = 0
        self.arrow_tracks = Tracks(self.limits.tracks)

    @property
    def wants_arrows(self) -> bool:
        """Whether arrows that were left out are needed after all."""
        return self.uncorrelated and self.arrows_skipped and any(self.by_category[tag] for tag in fields.ARROW_TAGS)

    def settle_arrows(self) -> None:
        """At the end: arrows become flows where some kernel has no correlation id, else they count for nothing."""
        if self.uncorrelated:
            tracks = [self.tracks.of_texts(pid, tid) for pid, tid in self.arrow_tracks.texts]
            self.flows.absorb(self.arrows, {"track": np.array(tracks, np.uint32)})
            self.check_rows()
        del self.tables["launch_arrows"]

    @staticmethod
    def group(events: list[Any]) -> dict[type[Struct], list[Any]]:
        """Events by class, in order."""
        groups: defaultdict[type[Struct], list[Any]] = defaultdict(list)
        for event in events:
            groups[type(event)].append(event)
        return groups

    @staticmethod
    def wants_exact(groups: dict[type[Struct], list[Any]]) -> bool:
        """Whether some time is a float that is too large to be exact to the nanosecond."""
        for cls, events in groups.items():
            for name in ("ts", "dur"):
                if name in cls.__struct_fields__ and any(
                    type(time) is float and abs(time) >= EXACT_LIMIT_US for time in map(attrgetter(name), events)
                ):
                    return True
        return False

    def add(self, events: list[Any], groups: dict[type[Struct], list[Any]]) -> None:
        """Keep what is wanted of one block's events, given also by class. Raises TooLarge."""
        wanted: dict[Any, list[type[Struct]]] = {}
        for cls, members in groups.items():
            category, handle = self._handlers.get(cls) or self._handler(cls)
            self.by_category[category] += len(members)
            if handle is not None:
                wanted.setdefault(handle, []).append(cls)
        self.count_events(len(events))
        for handle, classes in wanted.items():
            # Rows are in file order, also where a table has events of several categories.
            handle(groups[classes[0]] if len(classes) == 1 else [e for e in events if type(e) in classes])
        self.check_rows()
        for table in self.tables.values():
            if len(table) - table.rows >= FLUSH_ROWS:
                table.flush()

    def count_events(self, more: int) -> None:
        """Add to the number of events. Raises TooLarge when it exceeds the limit."""
        self.events += more
        if self.events > self.limits.events:
            raise too_large("events", self.limits.events, self.events, "events in the trace")

    def check_rows(self) -> None:
        """Raise TooLarge when a table has more rows than the limit."""
        # Arrows that may be forgotten yet are held in a number that is bounded by itself.
        rows = max(len(table) for table in self.tables.values() if table is not self.arrows or self.uncorrelated)
        if rows > self.limits.rows:
            raise too_large("rows", self.limits.rows, rows, "rows kept in one table")

    def _handler(self, cls: type[Struct]) -> tuple[str, Any]:
        category = str(cls.__struct_config__.tag)
        handle = None
        if issubclass(cls, (fields.Op, fields.OldOp)):
            handle = self._add_ops
        elif issubclass(cls, fields.Kernel):
            handle = self._add_kernels
            self._kernel_category[cls] = fields.KERNEL_TAGS.get(category, fields.DEVICE_TASK)
        elif issubclass(cls, fields.Launch):
            handle = self._add_launches
        elif issubclass(cls, fields.Arrow):
            handle = self._add_launch_arrows
        elif issubclass(cls, fields.Flow):
            handle = self._add_flows
        elif issubclass(cls, fields.Note):
            handle = self._add_notes
        self._handlers[cls] = found = (category, handle)
        return found

    def _add_ops(self, events: list[Any]) -> None:
        events = _complete(events)
        table, signatures = self.ops.pending, self.signatures
        table["signature"] += [
            signatures[_join((e.name, a.dims, a.types, a.strides, a.concrete))] for e in events for a in (e.args,)
        ]
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["dur"] += [e.dur for e in events]
        table["ext"] += [e.args.ext for e in events]
        if "rf" in table:
            table["rf"] += [getattr(e.args, "rf", -1) for e in events]
            table["seq"] += [getattr(e.args, "seq", -1) for e in events]

    def _add_kernels(self, events: list[Any]) -> None:
        events = _complete(events)
        table, names = self.kernels.pending, self.kernel_names
        table["name"] += [names[bytes(e.name)] for e in events]
        category = self._kernel_category
        table["category"] += [category[type(e)] for e in events]
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["dur"] += [e.dur for e in events]
        args = [e.args for e in events]
        device, stream, ext = [a.device for a in args], [a.stream for a in args], [a.ext for a in args]
        corr = [a.corr for a in args]
        if None in device or None in stream:
            device = [e.pid if value is None else value for value, e in zip(device, events, strict=True)]
            stream = [e.tid if value is None else value for value, e in zip(stream, events, strict=True)]
        if None in ext:
            ext = [a.ext_old if value is None else value for value, a in zip(ext, args, strict=True)]
        self.uncorrelated |= None in corr
        table["device"] += device
        table["stream"] += stream
        table["ext"] += ext
        table["corr"] += corr

    def _add_launches(self, events: list[Any]) -> None:
        events = [e for e in events if e.args.corr is not None and e.ph == "X"]
        table = self.launches.pending
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["corr"] += [e.args.corr for e in events]
        if "name" in table:
            names, kernels = self.call_names, self.kernel_names
            table["name"] += [names[bytes(e.name)] for e in events]
            raws = [bytes(e.args.kernel) for e in events]
            table["kernel"] += [kernels[raw] if raw.startswith(b'"') else -1 for raw in raws]

    def _add_flows(self, events: list[Any]) -> None:
        _add_ends(events, self.flows.pending, self.tracks)

    def _add_launch_arrows(self, events: list[Any]) -> None:
        _add_ends(events, self.arrows.pending, self.arrow_tracks)

    def _add_notes(self, events: list[Any]) -> None:
        events = _complete(events)
        table, names = self.notes.pending, self.note_names
        table["name"] += [names[bytes(e.name)] for e in events]
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["dur"] += [e.dur for e in events]


def _complete(events: list[Any]) -> list[Any]:
    """Complete events (phase X) only; anything else of these categories has no duration."""
    if [e.ph for e in events].count("X") == len(events):
        return events
    return [e for e in events if e.ph == "X"]


def _add_ends(events: list[Any], table: dict[str, list[Any]], tracks: Tracks) -> None:
    """Both ends of arrows into the pending rows of a table."""
    events = [e for e in events if e.ph == "s" or e.ph == "f"]
    table["track"] += tracks.of(events)
    table["start"] += [e.ts for e in events]
    table["id"] += [e.id for e in events]
    table["end"] += [e.ph == "f" for e in events]
