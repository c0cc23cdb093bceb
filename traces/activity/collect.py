# pyright: strict
"""Timing events → columns, beside the tables that every reading fills; and those columns → an `Activity`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from opreplay.traces.activity import events as timing
from opreplay.traces.activity.model import (
    LONG_FRAME_US,
    Activity,
    ArrowTable,
    CallTable,
    Collective,
    CollectiveNote,
    CollectiveSpans,
    MemoryTable,
    WaitTable,
)
from opreplay.traces.limits import Limits
from opreplay.traces.reading.collect import Collector, Interned
from opreplay.traces.reading.columns import Array, Columns
from opreplay.traces.reading.decoding import NOT_JSON
from opreplay.traces.reading.signatures import decode_name, decode_signatures

_MODULE = b'"nn.Module: '
_MEMORY = b'"[memory]"'
_RUNTIME, _FRAME, _QUEUE, _PYTHON = range(4)
MAX_PROCESSES = 100_000
_CPU_TYPE = 0
"""torch's number of the device type CPU."""


class TimingCollector(Collector):
    """The tables of one file, with those of its timing."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.call_names = Interned("names", limits.names, "names of calls", limits.name_bytes)
        self.collective_keys = Interned("names", limits.names, "distinct collectives", limits.name_bytes)
        self.processes: dict[str, str] = {}
        self.ops = Columns(
            signature="index", track="index", start="time", dur="span", ext="id", rf="id", seq="id", collective="index"
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
            connection="id",
            collective="index",
        )
        self.calls = Columns(name="index", kind="index", track="index", start="time", dur="span", corr="id")
        self.whole = Columns(name="index", track="index", start="time", dur="span", connection="id", collective="index")
        self.waits = Columns(corr="id", stream="id", waits_for="id", record="id")
        self.host_arrows = Columns(kind="index", id="id", end="index", track="index", start="time")
        self.memory = Columns(
            start="time", bytes="id", address="id", allocated="id", device_type="id", device="id", track="index"
        )
        self.note_keys = Interned("signatures", limits.signatures, "distinct annotations", 16 * limits.name_bytes)
        self.notes = Columns(name="index", track="index", start="time", dur="span", tensors="index")
        self.tables |= {
            "ops": self.ops,
            "notes": self.notes,
            "kernels": self.kernels,
            "calls": self.calls,
            "collectives": self.whole,
            "waits": self.waits,
            "arrows": self.host_arrows,
            "memory": self.memory,
        }

    def _handler(self, cls: type[Struct]) -> tuple[str, Any]:
        category, handle = super()._handler(cls)
        own: tuple[tuple[type[Struct], Any], ...] = (
            (timing.WholeCollective, self._add_whole),
            (timing.CannCall, self._add_cann),
            (timing.QueuePart, self._add_queue),
            (timing.Call, self._add_calls),
            (timing.Frame, self._add_frames),
            (timing.Wait, self._add_waits),
            (timing.HostArrow, self._add_arrows),
            (timing.Memory, self._add_memory),
            (timing.Named, self._add_names),
        )
        handle = next((found for base, found in own if issubclass(cls, base)), handle)
        if issubclass(cls, (timing.Named, timing.WholeCollective, timing.CannCall)):
            category = "(none)"
        self._handlers[cls] = found = (category, handle)
        return found

    def _add_ops(self, events: list[Any]) -> None:
        super()._add_ops(events)
        keys = self.collective_keys
        told = [getattr(e.args, "collective", None) for e in events if e.ph == "X"]
        if not any(told):
            self.ops.pending["collective"] += [0] * len(told)
        else:
            kept = [e.args for e in events if e.ph == "X"]
            self.ops.pending["collective"] += [
                0 if name is None else 1 + keys[_key(a)] for name, a in zip(told, kept, strict=True)
            ]

    def _add_notes(self, events: list[Any]) -> None:
        super()._add_notes(events)
        keys = self.note_keys
        self.notes.pending["tensors"] += [
            1 + keys[b"\0".join((a.dims, a.types))] if bytes(e.name).startswith(timing.BACKENDS) else 0
            for e in events
            if e.ph == "X"
            for a in (e.args,)
        ]

    def collective_notes(self, notes: Any) -> tuple[CollectiveNote, ...]:
        """Annotations of back-ends with their tensors; `notes` are all annotations, in the order of the table."""
        keys, which = list(self.note_keys), self.notes.take("tensors")
        made: list[CollectiveNote] = []
        for row in np.flatnonzero(which).tolist():
            dims, types = keys[which[row] - 1].split(b"\0")
            told = decode_signatures([b"\0".join((b'""', dims, types, b"", b""))], Counter(), Counter())[0][0]
            note = notes[row]
            made.append(
                CollectiveNote(
                    name=note.name,
                    start_ns=note.start_ns,
                    dur_ns=note.dur_ns,
                    track=note.track,
                    dims=tuple(tuple(n for n in entry if isinstance(n, int)) for entry in told.dims or ()),
                    types=told.types or (),
                )
            )
        return tuple(made)

    def _add_kernels(self, events: list[Any]) -> None:
        super()._add_kernels(events)
        kept = [e for e in events if e.ph == "X"]
        table, keys = self.kernels.pending, self.collective_keys
        table["connection"] += [e.args.connection for e in kept]
        table["collective"] += [0 if a.collective is None else 1 + keys[_key(a)] for e in kept for a in (e.args,)]

    def _add_whole(self, events: list[Any]) -> None:
        table, keys, names = self.whole.pending, self.collective_keys, self.kernel_names
        table["name"] += [names[bytes(e.name)] for e in events]
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["dur"] += [e.dur for e in events]
        table["connection"] += [e.args.connection for e in events]
        table["collective"] += [1 + keys[_key(e.args)] for e in events]

    def _calls(self, events: list[Any], kind: int, ids: list[Any]) -> None:
        table, names = self.calls.pending, self.call_names
        table["name"] += [names[bytes(e.name)] for e in events]
        table["kind"] += [kind] * len(events)
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]
        table["dur"] += [e.dur for e in events]
        table["corr"] += ids

    def _add_calls(self, events: list[Any]) -> None:
        self._add_launches(events)
        events = [e for e in events if e.ph == "X"]
        self._calls(events, _RUNTIME, [e.args.corr for e in events])

    def _add_cann(self, events: list[Any]) -> None:
        self._calls(events, _RUNTIME, [e.args.corr for e in events])

    def _add_queue(self, events: list[Any]) -> None:
        events = [e for e in events if e.ph == "X"]
        self._calls(events, _QUEUE, [e.args.queue for e in events])

    def _add_frames(self, events: list[Any]) -> None:
        modules: list[Any] = []
        others: list[Any] = []
        for event in events:
            if event.ph == "X" and bytes(event.name).startswith(_MODULE):
                modules.append(event)
            elif event.ph == "X" and isinstance(event.dur, (int, float)) and event.dur >= LONG_FRAME_US:
                others.append(event)
        self._calls(modules, _FRAME, [None] * len(modules))
        self._calls(others, _PYTHON, [None] * len(others))

    def _add_waits(self, events: list[Any]) -> None:
        table, args = self.waits.pending, [e.args for e in events]
        table["corr"] += [a.corr for a in args]
        table["stream"] += [a.stream for a in args]
        table["waits_for"] += [a.waits_for for a in args]
        table["record"] += [a.record for a in args]

    def _add_arrows(self, events: list[Any]) -> None:
        events = [e for e in events if e.ph in ("s", "f")]
        table = self.host_arrows.pending
        kinds = {tag: i for i, tag in enumerate(timing.HOST_ARROW_TAGS)}
        table["kind"] += [kinds[_tag(e)] for e in events]
        table["id"] += [e.id for e in events]
        table["end"] += [e.ph == "f" for e in events]
        table["track"] += self.tracks.of(events)
        table["start"] += [e.ts for e in events]

    def _add_memory(self, events: list[Any]) -> None:
        events = [e for e in events if bytes(e.name) == _MEMORY and e.args.bytes is not None]
        table, args = self.memory.pending, [e.args for e in events]
        table["start"] += [e.ts for e in events]
        table["bytes"] += [a.bytes for a in args]
        table["address"] += [a.address for a in args]
        table["allocated"] += [a.allocated for a in args]
        table["device_type"] += [a.device_type for a in args]
        table["device"] += [a.device for a in args]
        table["track"] += self.tracks.of(events)

    def _add_names(self, events: list[Any]) -> None:
        for event in events:
            try:
                name = msgspec.json.decode(event.args)["name"]
            except (*NOT_JSON, KeyError, TypeError):
                continue
            if isinstance(name, str) and len(self.processes) < MAX_PROCESSES:
                self.processes[str(event.pid)[:200]] = name[:200]

    def activity(self, kernels: dict[str, Any], track_remap: Any, notes: Any) -> Activity:
        """The columns as a value; `kernels` are those of the kernels, taken already, `notes` all annotations. The
        tables are empty then."""

        def tracks(table: Columns) -> Any:
            indexes = table.take("track")
            return track_remap[indexes] if len(indexes) else indexes

        connection: Array = kernels["connection"].astype(np.int64)
        correlation: Array = kernels["corr"].astype(np.int64)
        if len(correlation):
            correlation = np.where(connection >= 0, connection, correlation)
        calls, arrows, memory, waits = self.calls, self.host_arrows, self.memory, self.waits
        return Activity(
            names=tuple(decode_name(raw)[0] for raw in self.call_names),
            calls=CallTable(
                name=calls.take("name").astype(np.uint32),
                kind=calls.take("kind").astype(np.uint8),
                start_ns=calls.take("start"),
                dur_ns=calls.take("dur"),
                track=tracks(calls),
                correlation=calls.take("corr").astype(np.int64),
            ),
            correlation=correlation,
            collective=kernels["collective"].astype(np.int64) - 1,
            op_collective=self.ops.take("collective").astype(np.int64) - 1,
            collectives=tuple(_collective(key) for key in self.collective_keys),
            waits=WaitTable(
                correlation=waits.take("corr").astype(np.int64),
                stream=waits.take("stream").astype(np.int64),
                waits_for_stream=waits.take("waits_for").astype(np.int64),
                record_correlation=waits.take("record").astype(np.int64),
            ),
            arrows=ArrowTable(
                kind=arrows.take("kind").astype(np.uint8),
                id=arrows.take("id").astype(np.int64),
                is_end=arrows.take("end").astype(bool),
                track=tracks(arrows),
                start_ns=arrows.take("start"),
            ),
            memory=MemoryTable(
                time_ns=memory.take("start"),
                bytes=memory.take("bytes").astype(np.int64),
                address=memory.take("address").astype(np.int64),
                allocated_bytes=memory.take("allocated").astype(np.int64),
                on_device=memory.take("device_type").astype(np.int64) != _CPU_TYPE,
                device=memory.take("device").astype(np.int64),
                track=tracks(memory),
            ),
            spans=CollectiveSpans(
                name=self.whole.take("name").astype(np.uint32),
                start_ns=self.whole.take("start"),
                dur_ns=self.whole.take("dur"),
                correlation=self.whole.take("connection").astype(np.int64),
                collective=(of_spans := self.whole.take("collective").astype(np.int64) - 1),
                thread=np.full(len(of_spans), -1, np.int64),
            ),
            processes=self.processes,
            notes=self.collective_notes(notes),
        )


_TOLD = (
    "collective",
    "elements",
    "out_elements",
    "dtype",
    "in_split",
    "out_split",
    "group",
    "group_size",
    "ranks",
    "source",
    "target",
    "sequence",
    "rank",
    "asynchronous",
)


def _key(args: timing.DeviceArgs | timing.RecordArgs) -> bytes:
    """What is recorded of a collective, as text that is the same for the same."""
    told = [getattr(args, name) for name in _TOLD]
    return msgspec.json.encode([value if isinstance(value, (str, int)) else None for value in told])


def _collective(key: bytes) -> Collective:
    told = dict(zip(_TOLD, msgspec.json.decode(key), strict=True))
    return Collective(
        name=str(told["collective"]).lower(),
        elements=_whole(told["elements"]),
        out_elements=_whole(told["out_elements"]),
        dtype=_text(told["dtype"]),
        in_split=_split(told["in_split"]),
        out_split=_split(told["out_split"]),
        group=_text(told["group"]),
        group_size=_whole(told["group_size"]),
        ranks=_text(told["ranks"]),
        source=_whole(told["source"]),
        target=_whole(told["target"]),
        sequence=_whole(told["sequence"]),
        rank=_whole(told["rank"]),
        asynchronous={"true": True, "false": False}.get(str(told["asynchronous"]).lower()),
    )


def _tag(event: Any) -> str:
    return str(event.__struct_config__.tag)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    """A number, also where it is recorded as text; None else."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _split(value: Any) -> tuple[int, ...] | None:
    """Sizes from a text as "[3, 5]"; None for an empty list, for one that torch cut short, and for anything else."""
    try:
        return msgspec.json.decode(value, type=tuple[int, ...]) or None
    except (*NOT_JSON, TypeError):
        return None
