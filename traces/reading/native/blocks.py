# pyright: strict
"""Interface to the compiled reader of blocks, which fills the same tables; not available without a C compiler.

This module defines the compiled part's input (categories, where names are interned) and how its rows reach the tables.
The compiled part leaves a block that it cannot read entirely to `decoding`. Unusual input is thus handled in one place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from opreplay.traces.arrays import Array
from opreplay.traces.reading import fields
from opreplay.traces.reading.collect import Collector, Tracks
from opreplay.traces.reading.decoding import NO_CATEGORY, NPU_TASK, EventDecoder

if TYPE_CHECKING:
    from opreplay.traces.reading.native._events import EventScanner

FLUSH_ROWS = 1 << 15
MAX_REFUSED = 16
"""Maximum number of consecutive refused blocks; then the Python reader reads the rest of the file."""

_KINDS: tuple[type[Any], ...] = (
    fields.Skipped,
    fields.Op,
    fields.Kernel,
    fields.Launch,
    fields.Arrow,  # a Flow as well, hence before it
    fields.Flow,
    fields.Note,
)
"""Struct of each event kind, indexed by the kind's number in the compiled part (native/record.h)."""
_TABLES = (None, "ops", "kernels", "launches", "launch_arrows", "flows", "notes", None)
_COLUMNS = (0, 7, 9, 4, 4, 4, 4, 6)
"""Number of integers in a row of each kind; rows of ops end with the record function id and the sequence number."""
_ROW_FORMAT = 3
"""Version of `_COLUMNS`, compared with the version that the compiled part writes."""


def compiled_scanner() -> Callable[..., EventScanner] | None:
    """Return the compiled scanner; None if it was not built or if it was built for another version of the columns."""
    try:
        from opreplay.traces.reading.native import _events
    except ImportError:
        return None
    return _events.EventScanner if getattr(_events, "ROW_FORMAT", None) == _ROW_FORMAT else None


class CompiledBlocks:
    """Reads the blocks of one file into the tables of a collector."""

    def __init__(self, decoder: EventDecoder, collector: Collector, *, usable: bool = True) -> None:
        """Create a reader; `usable` is False if the compiled part does not support the requested columns."""
        self._decoder, self._collector = decoder, collector
        self._make = compiled_scanner() if usable else None
        self._scanner: EventScanner | None = None
        self._categories: tuple[str, ...] = ()
        self._known = 0
        self._refused = 0

    def read(self, data: bytearray, start: int, stop: int) -> bool:
        """Add the events of data[start:stop], which are separated by commas. Raises TooLarge.

        Return False if nothing was added, because the Python reader must read the block.
        """
        scanner = self._ready()
        if scanner is None:
            return False
        counts = scanner.scan(data, start, stop, self._decoder.exact)
        if counts is None:
            self._refused += 1
            if self._refused >= MAX_REFUSED:
                self.flush()
                self._make = self._scanner = None
            return False
        self._refused = 0
        self._decoder.passed_over(*counts)
        self._collector.count_events(counts[0])
        if scanner.pending_rows >= FLUSH_ROWS:
            self.flush()
        return True

    def flush(self) -> None:
        """Transfer the rows read so far to the tables. Raises TooLarge.

        Must be called before anything else adds rows, and at the end.
        """
        if self._scanner is None:
            return
        got = self._collector
        counts, tables, uncorrelated = self._scanner.take()
        got.uncorrelated |= uncorrelated
        for category, count in zip((*self._categories, NO_CATEGORY, NPU_TASK), counts, strict=True):
            if count:
                got.by_category[category] += count
        for name, width, columns in zip(_TABLES, _COLUMNS, tables, strict=True):
            if name is not None and columns:
                got.tables[name].append_integers(np.frombuffer(columns, np.int64).reshape(width, -1))
        got.check_rows()

    def _ready(self) -> EventScanner | None:
        """Return a scanner that knows the decoder's current categories."""
        if self._make is None or self._decoder.old_spelling:
            return None
        bases = self._decoder.bases
        if self._scanner is None or self._decoder.version != self._known:
            self.flush()
            # Compared as written: what JSON may write with escapes is not for the compiled half to judge.
            self._categories = tuple(cat for cat in bases if cat.isascii() and cat.isprintable() and "\\" not in cat)
            self._known = self._decoder.version
            got = self._collector
            self._scanner = self._make(
                categories=tuple((c.encode(), _kind(bases[c]), fields.KERNEL_TAGS.get(c, 0)) for c in self._categories),
                waits=tuple(prefix.encode() for prefix in fields.NPU_WAITS),
                task_category=fields.DEVICE_TASK,
                signatures=got.signatures.__getitem__,
                kernel_names=got.kernel_names.__getitem__,
                note_names=got.note_names.__getitem__,
                # No bound method of this object: the scanner would keep it, and all its tables, alive for ever.
                tracks=partial(_track, got.tracks),
                arrow_tracks=partial(_track, got.arrow_tracks),
                seed=int.from_bytes(os.urandom(8), "little"),
            )
        return self._scanner


class CompiledPlaces:
    """Finds the position of each event of a block, and the fields that decide whether `trim` copies the event."""

    def __init__(self, kinds: Mapping[str, type[Any]], tracks: Tracks) -> None:
        """Create a scanner; `kinds` are the categories of device work, its launches and its flow events."""
        make = compiled_scanner()
        track = partial(_track, tracks)
        self._scanner = make and make(
            categories=tuple((category.encode(), _kind(base), 0) for category, base in kinds.items()),
            waits=(),
            task_category=0,
            signatures=track,
            kernel_names=track,
            note_names=track,
            tracks=track,
            arrow_tracks=track,
            seed=int.from_bytes(os.urandom(8), "little"),
            places=True,
        )

    def read(self, text: bytes | memoryview, *, exact: bool) -> Array | None:
        """Return the columns track, start (ns), role, id, first byte and last byte, with one entry for each event of an
        array.

        The text is the array with its brackets. Return None if the compiled part refused to read it.
        """
        if self._scanner is None or self._scanner.scan(text, 1, len(text) - 1, exact) is None:
            return None
        return np.frombuffer(self._scanner.take()[1][-1], np.int64).reshape(_COLUMNS[-1], -1)


def _track(tracks: Tracks, ids: bytes) -> int:
    pid, tid = ids.split(b"\0")
    return tracks[msgspec.json.decode(pid), msgspec.json.decode(tid)]


def _kind(base: type[Any]) -> int:
    return next(kind for kind, known in enumerate(_KINDS) if issubclass(base, known))
