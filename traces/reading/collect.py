# pyright: strict
"""Collect event structs in tables and count all events.

The tables contain what linking, replay and reports need. Optional columns are included on request.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from decimal import Decimal
from operator import attrgetter
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct

from opreplay.traces.activity.model import LONG_FRAME_US
from opreplay.traces.limits import Limits, too_large
from opreplay.traces.reading import fields
from opreplay.traces.reading.columns import EXACT_LIMIT_US, FLUSH_ROWS, Columns, Kind, to_ids
from opreplay.traces.reading.decoding import NOT_JSON
from opreplay.traces.reading.grids import grid_number

_NUMBER = re.compile(r"\d{1,9}")
_NUMBERS: dict[str, Kind] = {"rf": "id", "seq": "id"}
_GRID: dict[str, Kind] = {"grid": "id"}
_CALL: dict[str, Kind] = {"name": "id", "kernel": "id", **_GRID}
_ENDS: dict[str, Kind] = {"track": "index", "start": "time", "id": "id", "end": "index"}
_SPAN: dict[str, Kind] = {"name": "index", "track": "index", "start": "time", "dur": "span"}
RUNTIME, FRAME, QUEUE, PYTHON = range(4)
"""Indexes into `CALL_KINDS`."""
_MODULE = b'"nn.Module: '
_MEMORY = b'"[memory]"'
MAX_PROCESSES = 100_000
_MOST_CALL_NAMES = 1 << 12
"""Maximum number of runtime call names whose kind is cached; a runtime has a few hundred."""
_join = b"\0".join
CORRELATED_KERNELS = 1 << 12
"""Number of kernels after which flow events (a tenth of a GPU trace) are skipped, if all have a correlation id."""
UNDECIDED_ARROWS = 1 << 19
"""Maximum number of flow events in memory (8 MB) as long as it is unknown whether kernels need them."""


class Interned(dict[Any, int]):
    """Dictionary that gives each new key the next index; the number and the length of keys are limited."""

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
    """Dictionary of the index of each (pid, tid); 7 and "7" give the same track.

    `texts` has the indices by (pid, tid) as text.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.texts: dict[tuple[str, str], int] = {}

    def __missing__(self, key: tuple[Any, Any]) -> int:
        index = self.of_texts(_track_text(key[0]), _track_text(key[1]))
        self[key] = index
        return index

    def of_texts(self, pid: str, tid: str) -> int:
        """Return the index of a track given as text."""
        index = self.texts.setdefault((pid, tid), len(self.texts))
        if len(self.texts) > self.limit:
            raise too_large("tracks", self.limit, len(self.texts), "process and thread pairs")
        return index

    def of(self, events: list[Any]) -> list[int]:
        """Return the track of each event."""
        try:
            return [self[e.pid, e.tid] for e in events]
        except TypeError:  # a pid that is a list or an object
            return [self[_hashable(e.pid), _hashable(e.tid)] for e in events]


class _CallKinds(dict[bytes, int]):
    """Cache that maps the name of a runtime call to the result of `fields.call_kind`."""

    def __missing__(self, name: bytes) -> int:
        if len(self) >= _MOST_CALL_NAMES:
            self.clear()
        kind = self[name] = fields.call_kind(name)
        return kind


def _grids(args: list[Any]) -> list[int]:
    """Return the grid of each launch as one number, packed by `grid_number`."""
    return [grid_number(getattr(arg, "grid", None)) for arg in args]


def _hashable(value: Any) -> Any:
    return _track_text(value) if isinstance(value, (list, dict)) else value


def _track_text(value: Any) -> str:
    """Return a process or thread id as text. A float and the same number as a Decimal give the same text. A list or
    object is not an id; it becomes the name of its type.
    """
    if isinstance(value, Decimal):
        value = float(value)
    kind = cast("type[object]", type(value))
    return f"({kind.__name__})" if kind in (list, dict) else str(value)[:200]


def _has_large_float(times: list[Any]) -> bool:
    """Check whether any time is a float too large to be exact to the nanosecond."""
    numbers = {*map(type, times)} <= {int, float}
    if numbers and (not times or (max(times) < EXACT_LIMIT_US and min(times) > -EXACT_LIMIT_US)):
        return False
    return any(type(time) is float and abs(time) >= EXACT_LIMIT_US for time in times)


class Collector:
    """The tables of one file, or of part of a file."""

    def __init__(self, limits: Limits, columns: frozenset[fields.Column] = frozenset()) -> None:
        """Create empty tables; `columns` are the optional columns to keep ("activity" includes the numbers of ops)."""
        self.limits = limits
        self.timed = "activity" in columns
        self.events = 0
        self.by_category: Counter[str] = Counter()
        # A signature's key joins its raw texts, an argument list may be long: hence the wider bound on its bytes.
        self.signatures = Interned("signatures", limits.signatures, "distinct ops", 16 * limits.name_bytes)
        self.kernel_names = Interned("names", limits.names, "kernel names", limits.name_bytes)
        self.call_names = Interned("names", limits.names, "names of runtime calls", limits.name_bytes)
        self.note_names = Interned("names", limits.names, "annotation names", limits.name_bytes)
        self.note_keys = Interned("signatures", limits.signatures, "distinct annotations", 16 * limits.name_bytes)
        self.collective_keys = Interned("names", limits.names, "distinct collectives", limits.name_bytes)
        self.processes: dict[str, str] = {}
        self.tracks = Tracks(limits.tracks)
        numbers = _NUMBERS if self.timed or "numbers" in columns else {}
        collective: dict[str, Kind] = {"collective": "index"} if self.timed else {}
        connection: dict[str, Kind] = {"connection": "id"} if self.timed else {}
        self.ops = Columns(
            signature="index", track="index", start="time", dur="span", ext="id", **numbers, **collective
        )
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
            **(_GRID if "calls" in columns else {}),
            **connection,
            **collective,
        )
        self.launches = Columns(
            track="index", start="time", corr="id", starts="index", **(_CALL if "calls" in columns else {})
        )
        self.flows = Columns(**_ENDS)
        self.arrows = Columns(**_ENDS)
        """Flow events that may turn out to be superfluous.

        Their tracks are kept separately, because these tracks may have no other events.
        """
        self.arrow_tracks = Tracks(limits.tracks)
        self.arrows_skipped = False
        """Whether flow events were skipped because each of the first kernels has a correlation id."""
        tensors: dict[str, Kind] = {"tensors": "index"} if self.timed else {}
        self.notes = Columns(**_SPAN, **tensors)
        self.uncorrelated = False
        """Whether some kernel has no correlation id, so that only flows can link it to its launch."""
        self.calls = Columns(**_SPAN, kind="index", corr="id")
        self.whole = Columns(**_SPAN, connection="id", collective="index")
        self.waits = Columns(track="index", corr="id", stream="id", waits_for="id", record="id")
        self.host_arrows = Columns(**_ENDS, kind="index")
        self.memory = Columns(
            start="time", bytes="id", address="id", allocated="id", device_type="id", device="id", track="index"
        )
        self.tables: dict[str, Columns] = {
            "ops": self.ops,
            "kernels": self.kernels,
            "launches": self.launches,
            "flows": self.flows,
            "launch_arrows": self.arrows,
            "notes": self.notes,
        }
        if self.timed:
            self.tables |= {
                "calls": self.calls,
                "collectives": self.whole,
                "waits": self.waits,
                "arrows": self.host_arrows,
                "memory": self.memory,
            }
        self._call_kinds = _CallKinds()
        self._handlers: dict[type[Struct], tuple[str, Any]] = {}
        self._kernel_category: dict[type[Struct], int] = {}

    @property
    def arrows_seem_superfluous(self) -> bool:
        """Check whether enough of the device work read so far has correlation ids to skip flow events."""
        enough = len(self.kernels) >= CORRELATED_KERNELS or len(self.arrows) >= UNDECIDED_ARROWS
        return enough and not self.uncorrelated

    def skip_arrows(self) -> None:
        """Drop the flow events in `arrows`. From now on, flow events are only counted."""
        self.arrows_skipped = True
        for name in self.arrows.kinds:
            self.arrows.take(name)
        self.arrows.rows = 0
        self.arrow_tracks = Tracks(self.limits.tracks)

    @property
    def wants_arrows(self) -> bool:
        """Check whether flow events that were skipped are needed after all."""
        return self.uncorrelated and self.arrows_skipped and any(self.by_category[tag] for tag in fields.ARROW_TAGS)

    def settle_arrows(self) -> None:
        """Move `arrows` to `flows` if some kernel has no correlation id, otherwise drop them. Called after the last
        event.
        """
        if self.uncorrelated:
            tracks = [self.tracks.of_texts(pid, tid) for pid, tid in self.arrow_tracks.texts]
            self.flows.absorb(self.arrows, {"track": np.array(tracks, np.uint32)})
            self.check_rows()
        del self.tables["launch_arrows"]

    @staticmethod
    def group(events: list[Any]) -> dict[type[Struct], list[Any]]:
        """Group events by class; the order within a group is unchanged."""
        groups: defaultdict[type[Struct], list[Any]] = defaultdict(list)
        for event in events:
            groups[type(event)].append(event)
        return groups

    @staticmethod
    def wants_exact(groups: dict[type[Struct], list[Any]]) -> bool:
        """Check whether any time is a float too large to be exact to the nanosecond."""
        return any(
            name in cls.__struct_fields__ and _has_large_float(list(map(attrgetter(name), events)))
            for cls, events in groups.items()
            for name in ("ts", "dur")
        )

    def add(self, events: list[Any], groups: dict[type[Struct], list[Any]]) -> None:
        """Add the events of one block; `groups` has the same events grouped by class. Raises TooLarge."""
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
        """Add to the number of events. Raises TooLarge if it exceeds the limit."""
        self.events += more
        if self.events > self.limits.events:
            raise too_large("events", self.limits.events, self.events, "events in the trace")

    def check_rows(self) -> None:
        """Raise TooLarge if a table has more rows than the limit."""
        # Arrows that may be forgotten yet are held in a number that is bounded by itself.
        rows = max(len(table) for table in self.tables.values() if table is not self.arrows or self.uncorrelated)
        if rows > self.limits.rows:
            raise too_large("rows", self.limits.rows, rows, "rows kept in one table")

    def _handler(self, cls: type[Struct]) -> tuple[str, Any]:
        category = str(cls.__struct_config__.tag)
        adders: tuple[tuple[type[Struct] | tuple[type[Struct], ...], Any], ...] = (
            ((fields.Op, fields.OldOp), self._add_ops),
            (fields.WholeCollective, self._add_whole),
            (fields.Kernel, self._add_kernels),
            (fields.CannCall, self._add_cann),
            (fields.QueuePart, self._add_queue),
            (fields.TimedCall, self._add_calls),
            (fields.Launch, self._add_launches),
            (fields.Arrow, self._add_launch_arrows),
            (fields.Flow, self._add_flows),
            (fields.Note, self._add_notes),
            (fields.Frame, self._add_frames),
            (fields.Wait, self._add_waits),
            (fields.HostArrow, self._add_host_arrows),
            (fields.Memory, self._add_memory),
            (fields.Named, self._add_processes),
        )
        handle = next((add for base, add in adders if issubclass(cls, base)), None)
        if issubclass(cls, fields.Kernel):
            self._kernel_category[cls] = fields.KERNEL_TAGS.get(category, fields.DEVICE_TASK)
        self._handlers[cls] = category, handle
        return category, handle

    def _add(self, table: Columns, events: list[Any], **values: list[Any]) -> None:
        """Add one row per event.

        Columns that are not in `values` come from the field of that name in the event or its arguments.
        """
        for column, pending in table.pending.items():
            if column in values:
                pending += values[column]
            elif column == "track":
                pending += self.tracks.of(events)
            elif column == "start":
                pending += [e.ts for e in events]
            elif column == "dur":
                pending += [e.dur for e in events]
            else:
                pending += map(attrgetter("id" if column == "id" else f"args.{column}"), events)

    def _add_ops(self, events: list[Any]) -> None:
        events = _complete(events)
        signatures, more = self.signatures, {}
        if "rf" in self.ops.kinds:
            more = {name: [getattr(e.args, name, -1) for e in events] for name in _NUMBERS}
        if self.timed:
            more["collective"] = self._collectives(events)
        keys = [signatures[_join((e.name, a.dims, a.types, a.strides, a.concrete))] for e in events for a in (e.args,)]
        self._add(self.ops, events, signature=keys, **more)

    def _collectives(self, events: list[Any]) -> list[int]:
        """Return, for each event, 1 + the index of the recorded collective, or 0 if there is none."""
        keys, names = self.collective_keys, [getattr(e.args, "collective", None) for e in events]
        if not any(names):
            return [0] * len(names)
        return [0 if name is None else 1 + keys[_collective_key(e.args)] for name, e in zip(names, events, strict=True)]

    def _add_kernels(self, events: list[Any]) -> None:
        events = _complete(events)
        category = self._kernel_category
        args = [e.args for e in events]
        device = _numbers(_or_else([a.device for a in args], events, "pid"))
        stream = _numbers(_or_else([a.stream for a in args], events, "tid"))
        ext = _or_else([a.ext for a in args], args, "ext_old")
        corr = [a.corr for a in args]
        self.uncorrelated |= None in corr
        self._add(
            self.kernels,
            events,
            name=_indexes(self.kernel_names, events),
            category=[category[type(e)] for e in events],
            device=device,
            stream=stream,
            ext=ext,
            corr=corr,
            **({"collective": self._collectives(events)} if self.timed else {}),
            **({"grid": _grids(args)} if "grid" in self.kernels.kinds else {}),
        )

    def _add_whole(self, events: list[Any]) -> None:
        self._add(self.whole, events, name=_indexes(self.kernel_names, events), collective=self._collectives(events))

    def _add_launches(self, events: list[Any]) -> None:
        events = [e for e in events if e.args.corr is not None and e.ph == "X"]
        kinds = self._call_kinds
        more: dict[str, list[Any]] = {"starts": [kinds[bytes(e.name)] for e in events]}
        if "name" in self.launches.kinds:
            kernels, raws = self.kernel_names, [bytes(e.args.kernel) for e in events]
            more["name"] = _indexes(self.call_names, events)
            more["kernel"] = [kernels[raw] if raw.startswith(b'"') else -1 for raw in raws]
            more["grid"] = _grids([e.args for e in events])
        self._add(self.launches, events, **more)

    def _add_calls(self, events: list[Any]) -> None:
        self._add_launches(events)
        self._add_cann(_complete(events))

    def _add_cann(self, events: list[Any]) -> None:
        self._add_kind(RUNTIME, events, [e.args.corr for e in events])

    def _add_queue(self, events: list[Any]) -> None:
        events = _complete(events)
        self._add_kind(QUEUE, events, [e.args.queue for e in events])

    def _add_frames(self, events: list[Any]) -> None:
        events = _complete(events)
        names = [bytes(e.name) for e in events]
        modules = [e for name, e in zip(names, events, strict=True) if name.startswith(_MODULE)]
        others = [
            e
            for name, e in zip(names, events, strict=True)
            if isinstance(e.dur, (int, float)) and e.dur >= LONG_FRAME_US and not name.startswith(_MODULE)
        ]
        self._add_kind(FRAME, modules, [None] * len(modules))
        self._add_kind(PYTHON, others, [None] * len(others))

    def _add_kind(self, kind: int, events: list[Any], ids: list[Any]) -> None:
        self._add(self.calls, events, name=_indexes(self.call_names, events), kind=[kind] * len(events), corr=ids)

    def _add_flows(self, events: list[Any]) -> None:
        events = _ends(events)
        self._add(self.flows, events, end=[e.ph == "f" for e in events])

    def _add_launch_arrows(self, events: list[Any]) -> None:
        events = _ends(events)
        tracks = self.arrow_tracks.of(events)
        self._add(self.arrows, events, track=tracks, end=[e.ph == "f" for e in events])

    def _add_host_arrows(self, events: list[Any]) -> None:
        events = _ends(events)
        kinds = [fields.HOST_ARROW_TAGS.index(self._handlers[type(e)][0]) for e in events]
        self._add(self.host_arrows, events, kind=kinds, end=[e.ph == "f" for e in events])

    def _add_notes(self, events: list[Any]) -> None:
        events = _complete(events)
        more: dict[str, list[Any]] = {}
        if self.timed:
            keys = self.note_keys
            more["tensors"] = [
                1 + keys[_join((e.args.dims, e.args.types))] if bytes(e.name).startswith(fields.BACKENDS) else 0
                for e in events
            ]
        self._add(self.notes, events, name=_indexes(self.note_names, events), **more)

    def _add_waits(self, events: list[Any]) -> None:
        self._add(self.waits, events)

    def _add_memory(self, events: list[Any]) -> None:
        self._add(self.memory, [e for e in events if bytes(e.name) == _MEMORY and e.args.bytes is not None])

    def _add_processes(self, events: list[Any]) -> None:
        for event in events:
            try:
                name = msgspec.json.decode(event.args)["name"]
            except (*NOT_JSON, KeyError, TypeError):
                continue
            if isinstance(name, str) and len(self.processes) < MAX_PROCESSES:
                self.processes[str(event.pid)[:200]] = name[:200]


def _indexes(names: Interned, events: list[Any]) -> list[int]:
    return [names[bytes(e.name)] for e in events]


def _numbers(values: list[Any]) -> list[Any]:
    """Return the values, with text that is not a number replaced by the last number in it: 1 for "cuda:1", 7 for
    "stream 7".
    """
    if str not in set(map(type, values)):
        return values
    return [_last_number(value) if type(value) is str else value for value in values]


def _last_number(text: str) -> str:
    if to_ids([text])[0] >= 0:
        return text
    numbers = _NUMBER.findall(text[:200])
    return numbers[-1] if numbers else text


def _or_else(values: list[Any], sources: list[Any], name: str) -> list[Any]:
    """Return the values; replace None by the attribute `name` of the source at the same position."""
    if None not in values:
        return values
    return [getattr(s, name) if value is None else value for value, s in zip(values, sources, strict=True)]


def _collective_key(args: Any) -> bytes:
    """Return a text that identifies a collective by its recorded facts."""
    values = [getattr(args, name) for name in fields.COLLECTIVE_KEYS]
    return msgspec.json.encode([value if isinstance(value, (str, int)) else None for value in values])


def _complete(events: list[Any]) -> list[Any]:
    """Return only the complete events (phase X), because events of other phases have no duration at this point."""
    if [e.ph for e in events].count("X") == len(events):
        return events
    return [e for e in events if e.ph == "X"]


def _ends(events: list[Any]) -> list[Any]:
    """Return the start and end events of flows."""
    return [e for e in events if e.ph == "s" or e.ph == "f"]
