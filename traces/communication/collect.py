"""Metadata of collectives → columns beside those of the timing, and those columns → a `Communication`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from opreplay.traces.activity.collect import TimingCollector
from opreplay.traces.communication.events import BACKENDS
from opreplay.traces.communication.model import CommsNote, CommsRecord, Communication
from opreplay.traces.limits import Limits
from opreplay.traces.literals import parse_literal
from opreplay.traces.model import OpSignature
from opreplay.traces.reading.collect import Interned
from opreplay.traces.reading.columns import Columns

MAX_SPLITS = 1 << 16
"""Entries of a recorded list of splits or ranks that are read."""
_FIELDS = (
    "collective",
    "dtype",
    "in_elements",
    "out_elements",
    "in_splits",
    "out_splits",
    "group",
    "group_size",
    "group_ranks",
    "rank",
    "source",
    "target",
    "asynchronous",
)


class CommsCollector(TimingCollector):
    """The tables of one file, with those of its timing and of its collectives."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.comms = Interned("signatures", limits.signatures, "distinct collectives", 16 * limits.name_bytes)
        self.ops = Columns(signature="index", track="index", start="time", dur="span", ext="id", rf="id", comms="index")
        self.notes = Columns(name="index", track="index", start="time", dur="span", comms="index")
        self.kernels = Columns(**self.kernels.kinds, comms="index")
        self.tables |= {"ops": self.ops, "notes": self.notes, "kernels": self.kernels}

    def _add_ops(self, events: list[Any]) -> None:
        super()._add_ops(events)
        kept = [e for e in events if e.ph == "X"]
        comms = self.comms
        self.ops.pending["comms"] += [
            0 if getattr(a, "collective", None) is None else 1 + comms[_key(a)] for e in kept for a in (e.args,)
        ]

    def _add_kernels(self, events: list[Any]) -> None:
        super()._add_kernels(events)
        comms = self.comms
        self.kernels.pending["comms"] += [
            0 if a.collective is None else 1 + comms[_key(a)] for e in events if e.ph == "X" for a in (e.args,)
        ]

    def _add_notes(self, events: list[Any]) -> None:
        super()._add_notes(events)
        comms = self.comms
        self.notes.pending["comms"] += [
            1 + comms[b"\0".join((b"note", a.dims, a.types))] if bytes(e.name).startswith(BACKENDS) else 0
            for e in events
            if e.ph == "X"
            for a in (e.args,)
        ]

    def communication(
        self,
        of_ops: Any,
        of_kernels: Any,
        of_notes: Any,
        notes: Any,
        decode: Callable[[bytes], OpSignature],
    ) -> Communication:
        """The columns as a value. `notes`: all annotations, in the order of `of_notes`; `decode` reads a signature."""
        keys = list(self.comms)
        place: dict[int, int] = {}
        records: list[CommsRecord] = []
        for index, key in enumerate(keys):
            if not key.startswith(b"note\0"):
                place[index] = len(records)
                records.append(_record(key))
        remap = np.full(len(keys) + 1, -1, np.int64)
        for index, at in place.items():
            remap[index + 1] = at
        made: list[CommsNote] = []
        for row in np.flatnonzero(of_notes).tolist():
            _, dims, types = keys[of_notes[row] - 1].split(b"\0")
            signature = decode(b"\0".join((b'"note"', dims, types, b"", b"")))
            note = notes[row]
            made.append(
                CommsNote(
                    name=note.name,
                    start_ns=note.start_ns,
                    dur_ns=note.dur_ns,
                    track=note.track,
                    dims=tuple(_flat(entry) for entry in signature.dims or ()),
                    types=signature.types or (),
                )
            )
        return Communication(
            record=remap[of_ops.astype(np.int64)],
            kernel_record=remap[of_kernels.astype(np.int64)],
            records=tuple(records),
            notes=tuple(made),
        )


def _flat(entry: Any) -> tuple[int, ...]:
    return tuple(size for size in entry if isinstance(size, int))


def _key(args: Any) -> bytes:
    """What is recorded of a collective, as text that is the same for the same."""
    values = {name: _plain(getattr(args, name, None)) for name in _FIELDS}
    if values["in_elements"] is None:
        values["in_elements"] = _plain(getattr(args, "elements", None))
    return msgspec.json.encode(list(values.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [item for item in value[:MAX_SPLITS] if isinstance(item, int | str)]
    return value if isinstance(value, str | int | float | bool) else None


def _record(key: bytes) -> CommsRecord:
    values = dict(zip(_FIELDS, msgspec.json.decode(key), strict=True))
    flag = values["asynchronous"]
    return CommsRecord(
        name=_text(values["collective"]),
        dtype=_text(values["dtype"]),
        in_elements=_count(values["in_elements"]),
        out_elements=_count(values["out_elements"]),
        in_splits=_numbers(values["in_splits"]),
        out_splits=_numbers(values["out_splits"]),
        group=_text(values["group"]),
        group_size=_count(values["group_size"]),
        group_ranks=_numbers(values["group_ranks"]),
        rank=_count(values["rank"]),
        source=_count(values["source"]),
        target=_count(values["target"]),
        asynchronous=flag if isinstance(flag, bool) else {"true": True, "false": False}.get(str(flag).lower()),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:1000]


def _count(value: Any) -> int | None:
    """A number that is not negative, also where it is recorded as text; None else."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**62 else None


def _numbers(value: Any) -> tuple[int, ...]:
    """A list, or the text of one; () for one that torch cut off ("[1, 2, ...]"), for less than all says nothing."""
    if isinstance(value, str):
        parsed = parse_literal(value) if len(value) < 1 << 20 else None
        value = parsed if isinstance(parsed, list) else []
    if not isinstance(value, list) or len(value) > MAX_SPLITS:
        return ()
    counts = [_count(item) for item in value]
    return () if None in counts else tuple(count for count in counts if count is not None)
