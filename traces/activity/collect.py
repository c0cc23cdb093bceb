# pyright: strict
"""Build an `Activity` from the timing columns collected by `reading`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from opreplay.traces.activity.model import (
    Activity,
    ArrowTable,
    CallTable,
    Collective,
    CollectiveNote,
    CollectiveSpans,
    MemoryTable,
    WaitTable,
)
from opreplay.traces.arrays import Array
from opreplay.traces.reading import fields
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.columns import Columns
from opreplay.traces.reading.decoding import NOT_JSON
from opreplay.traces.reading.signatures import decode_name, decode_signatures

_CPU_TYPE = 0
"""torch's device type number for the CPU."""


def activity_of(got: Collector, kernels: dict[str, Any], track_remap: Any, notes: Any) -> Activity:
    """Return the collected columns as an Activity, and empty the collector's tables.

    `kernels` are the kernel columns, which have already been taken from the collector; `notes` are all annotations.
    """

    def tracks(table: Columns) -> Any:
        indexes = table.take("track")
        return track_remap[indexes] if len(indexes) else indexes

    connection: Array = kernels["connection"].astype(np.int64)
    correlation: Array = kernels["corr"].astype(np.int64)
    if len(correlation):
        correlation = np.where(connection >= 0, connection, correlation)
    calls, arrows, memory, waits = got.calls, got.host_arrows, got.memory, got.waits
    return Activity(
        names=tuple(decode_name(raw)[0] for raw in got.call_names),
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
        op_collective=got.ops.take("collective").astype(np.int64) - 1,
        collectives=tuple(_collective(key) for key in got.collective_keys),
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
            name=got.whole.take("name").astype(np.uint32),
            start_ns=got.whole.take("start"),
            dur_ns=got.whole.take("dur"),
            correlation=got.whole.take("connection").astype(np.int64),
            collective=(of_spans := got.whole.take("collective").astype(np.int64) - 1),
            thread=np.full(len(of_spans), -1, np.int64),
        ),
        processes=got.processes,
        notes=_collective_notes(got, notes),
    )


def _collective_notes(got: Collector, notes: Any) -> tuple[CollectiveNote, ...]:
    """Return the annotations of communication back-ends, with their tensors.

    `notes` are all annotations in table order.
    """
    keys, which = list(got.note_keys), got.notes.take("tensors")
    collective_notes: list[CollectiveNote] = []
    for row in np.flatnonzero(which).tolist():
        dims, types = keys[which[row] - 1].split(b"\0")
        tensors = decode_signatures([b"\0".join((b'""', dims, types, b"", b""))], Counter(), Counter())[0][0]
        note = notes[row]
        collective_notes.append(
            CollectiveNote(
                name=note.name,
                start_ns=note.start_ns,
                dur_ns=note.dur_ns,
                track=note.track,
                dims=tuple(tuple(n for n in entry if isinstance(n, int)) for entry in tensors.dims or ()),
                types=tensors.types or (),
            )
        )
    return tuple(collective_notes)


def _collective(key: bytes) -> Collective:
    recorded = dict(zip(fields.COLLECTIVE_KEYS, msgspec.json.decode(key), strict=True))
    name = str(recorded.pop("collective")).lower()
    return Collective(name=name, **{field: _AS[field](value) for field, value in recorded.items()})


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    """Return a whole number, even if it was recorded as text; None for anything else."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _split(value: Any) -> tuple[int, ...] | None:
    """Parse sizes such as "[3, 5]". Return None for an empty list, a list that torch cut short, and any other value."""
    try:
        return msgspec.json.decode(value, type=tuple[int, ...]) or None
    except (*NOT_JSON, TypeError):
        return None


_AS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(fields.COLLECTIVE_KEYS, _whole),
    **dict.fromkeys(("dtype", "group", "ranks"), _text),
    **dict.fromkeys(("in_split", "out_split"), _split),
    "asynchronous": lambda value: {"true": True, "false": False}.get(str(value).lower()),
}
"""Field of `Collective` → function that converts its recorded value. Most values are numbers."""
