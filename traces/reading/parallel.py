# pyright: strict
"""Read an uncompressed file with several processes.

The file is cut into parts at guessed event boundaries, which are confirmed in order. This module handles the split, the
worker process and the exact merge of tables; `scan` reads a part.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np

from opreplay.traces.child_process import python_command
from opreplay.traces.limits import Limits
from opreplay.traces.reading.blocks import SEPARATOR
from opreplay.traces.reading.collect import Collector
from opreplay.traces.reading.columns import smallest
from opreplay.traces.reading.decoding import NOT_JSON
from opreplay.traces.reading.fields import AnyEvent, Column
from opreplay.traces.reading.scan import Part, Progress, Scanned, Scanner
from opreplay.traces.reading.source import Source

MIN_PART_BYTES = 128 << 20
"""Minimum size of a part in bytes. A smaller file than two parts is read by one process.

That process has read most of it before another one has started (0.16 s).
"""
HEAD_START_BYTES = 160 << 20
"""Number of bytes by which the first part is larger. About as much is read while a worker process starts."""
_GUESS_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
"""Size in bytes of the pipe from worker to parent; an unprivileged process may request this much. With it, a part of
about 10 MB needs fewer switches between worker and parent.
"""
_TABLE_INDEXES = {
    "ops": {"signature": "signatures", "track": "tracks"},
    "kernels": {"name": "kernel_names", "track": "tracks"},
    "launches": {"track": "tracks"},
    "launch_arrows": {"track": "arrow_tracks"},
    "flows": {"track": "tracks"},
    "notes": {"name": "note_names", "track": "tracks"},
}
"""Table → column → name of the collector's table of distinct values that the column indexes."""


class _Job(msgspec.Struct, kw_only=True):
    """One part of a file for a worker process: bytes `start` to `stop` (None: to the end)."""

    path: str
    limits: dict[str, int]
    start: int
    stop: int | None
    block: int
    layout: str
    columns: frozenset[Column] = frozenset()
    arrows: bool = False


class _Part(msgspec.Struct, kw_only=True):
    """The result of a worker process. Each array is given as (dtype, bytes)."""

    complete: bool
    failed: bool = False
    uncorrelated: bool = False
    arrows_skipped: bool = False
    events: int = 0
    bytes_read: int = 0
    by_category: dict[str, int] = {}
    losses: dict[str, int] = {}
    repairs: dict[str, int] = {}
    keys: dict[str, bytes] = {}
    signatures: list[bytes] = []
    kernel_names: list[bytes] = []
    note_names: list[bytes] = []
    tracks: list[tuple[str, str]] = []
    arrow_tracks: list[tuple[str, str]] = []
    dropped: dict[str, int] = {}
    zeroed: dict[str, int] = {}
    inexact: dict[str, bool] = {}
    tables: dict[str, dict[str, tuple[str, bytes]]] = {}


def scan_parallel(
    path: str,
    limits: Limits,
    processes: int,
    *,
    block_bytes: int,
    progress: Progress | None,
    columns: frozenset[Column] = frozenset(),
    arrows: bool = False,
    min_part: int = 0,
) -> Scanned | None:
    """Read an uncompressed file in parts.

    Return None if it cannot be split or a cut was wrong; one process must then read it.
    """
    cuts = _guess_cuts(path, processes, min_part or MIN_PART_BYTES)
    if not cuts:
        return None
    layout = _layout(path)
    stops: Sequence[int | None] = (*cuts[1:], None)
    jobs = [
        _Job(
            path=os.path.abspath(path),
            limits=msgspec.structs.asdict(limits),
            start=start,
            stop=stop,
            block=block_bytes,
            layout=layout,
            columns=columns,
            arrows=arrows,
        )
        for start, stop in zip(cuts, stops, strict=True)
    ]
    workers = [_start(job) for job in jobs]
    try:
        with Source(path, limits, stop=cuts[0]) as source:
            scanner = Scanner(
                source,
                block_bytes=block_bytes,
                progress=progress,
                part=Part(last=False),
                columns=columns,
                arrows=arrows,
            )
            first = scanner.run()
        if not first.complete or not first.collector.events:
            return None
        parts = [_receive(worker) for worker in workers]
    finally:
        for worker in workers:
            with worker:  # which closes its pipes and reaps it
                worker.kill()
    whole = [part for part in parts if part is not None and part.complete and not part.failed]
    if len(whole) < len(parts):
        return None
    for part in whole:
        _merge(first, part)
    return first


def most_parts(path: str, min_part: int = 0) -> int:
    """Return the number of parts into which a file may be cut.

    Return 0 if it is compressed, too small, missing or not a regular file.
    """
    try:
        if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
            return 0
        parts = os.path.getsize(path) // (min_part or MIN_PART_BYTES)
        if parts < 2:
            return 0
        with open(path, "rb") as file:
            return 0 if file.read(2) == b"\x1f\x8b" else parts
    except (OSError, ValueError):  # reading it in one process will say what is wrong
        return 0


def _guess_cuts(path: str, processes: int, min_part: int) -> list[int]:
    """Return evenly spaced offsets at which an event seems to start; [] for a small or special file."""
    parts = min(processes, most_parts(path, min_part))
    if not parts:
        return []
    try:
        size = os.path.getsize(path)
        cuts: list[int] = []
        with open(path, "rb") as file:
            ahead = min(HEAD_START_BYTES, size // 2)
            for i in range(1, parts):
                at = ahead + (size - ahead) * i // parts
                file.seek(at)
                if (offset := _event_start(file.read(_GUESS_BYTES))) is not None:
                    cuts.append(at + offset)
    except (OSError, ValueError):  # reading it in one process will say what is wrong
        return []
    return sorted(set(cuts))


def _event_start(text: bytes) -> int | None:
    """Return the offset of the first "{" after "}," that begins an event, that is, an object with a phase."""
    starts = [m.end() - 1 for m in SEPARATOR.finditer(text)]
    for n, start in enumerate(starts[:200]):
        for stop in starts[n + 1 : n + 9]:
            piece = text[start:stop].rstrip()
            try:
                event = msgspec.json.decode(piece[:-1], type=AnyEvent)
            except NOT_JSON:
                continue
            if isinstance(event.ph, str):
                return start
            break
    return None


def _layout(path: str) -> str:
    """Return "list" if the file is an array, otherwise "object"."""
    with open(path, "rb") as file:
        return "list" if file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[") else "object"


def _start(job: _Job) -> subprocess.Popen[bytes]:
    command = python_command(__name__, serve.__name__)
    # NumPy's threads for products of matrices are a fifth of the start, and of no use here.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pipesize=_PIPE_BYTES
    )
    assert worker.stdin
    worker.stdin.write(msgspec.json.encode(job))
    worker.stdin.close()
    return worker


def _receive(worker: subprocess.Popen[bytes]) -> _Part | None:
    assert worker.stdout
    try:
        return msgspec.msgpack.decode(worker.stdout.read(), type=_Part)
    except msgspec.DecodeError:  # the worker died: the serial reader decides what that means
        return None


def _numbers(table: Any, keys: Iterable[Any]) -> np.ndarray:
    """Return the index of each key in a table of distinct keys; add keys that the table lacks."""
    return np.array([table[key] for key in keys], np.uint32)


def _merge(into: Scanned, part: _Part) -> None:
    """Append a part's rows; convert their indices to those of the whole file, in order of first appearance."""
    got = into.collector
    maps: dict[str, Any] = {
        "tracks": np.array([got.tracks.of_texts(pid, tid) for pid, tid in part.tracks], np.uint32),
        "arrow_tracks": np.array([got.arrow_tracks.of_texts(pid, tid) for pid, tid in part.arrow_tracks], np.uint32),
        "signatures": _numbers(got.signatures, part.signatures),
        "kernel_names": _numbers(got.kernel_names, part.kernel_names),
        "note_names": _numbers(got.note_names, part.note_names),
    }
    for table, columns in part.tables.items():
        to = got.tables[table]
        arrays: dict[str, np.ndarray] = {}
        for name, (kind, data) in columns.items():
            array = np.frombuffer(data, np.dtype(kind))
            index = _TABLE_INDEXES[table].get(name)
            if index is not None and len(array):
                array = smallest(maps[index][array], (np.uint16, np.uint32))
            arrays[name] = array
        to.append(arrays)
        to.dropped += part.dropped[table]
        to.zeroed += part.zeroed[table]
        to.inexact |= part.inexact[table]
    got.events += part.events
    got.uncorrelated |= part.uncorrelated
    got.arrows_skipped |= part.arrows_skipped
    got.by_category.update(part.by_category)
    into.tally.losses.update(part.losses)
    into.tally.repairs.update(part.repairs)
    for key in part.keys.keys() & into.keys.keys():
        into.tally.losses[f"duplicate key {key[:60]}"] += 1
    into.keys.update(part.keys)
    into.bytes_read += part.bytes_read


def _pack(scanned: Scanned) -> _Part:
    got: Collector = scanned.collector
    return _Part(
        complete=scanned.complete,
        uncorrelated=got.uncorrelated,
        arrows_skipped=got.arrows_skipped,
        events=got.events,
        bytes_read=scanned.bytes_read,
        by_category=dict(got.by_category),
        losses=dict(scanned.tally.losses),
        repairs=dict(scanned.tally.repairs),
        keys=scanned.keys,
        signatures=list(got.signatures),
        kernel_names=list(got.kernel_names),
        note_names=list(got.note_names),
        tracks=list(got.tracks.texts),
        arrow_tracks=list(got.arrow_tracks.texts),
        dropped={name: table.dropped for name, table in got.tables.items()},
        zeroed={name: table.zeroed for name, table in got.tables.items()},
        inexact={name: table.inexact for name, table in got.tables.items()},
        tables={
            name: {c: (a.dtype.str, a.tobytes()) for c in table.kinds for a in (table.take(c),)}
            for name, table in got.tables.items()
        },
    )


def work(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Run a worker process: read one job from stdin and write one part to stdout.

    A failure is returned as a result, not raised.
    """
    import gc

    gc.disable()
    job = msgspec.json.decode(stdin.read(), type=_Job)
    try:
        with Source(job.path, Limits(**job.limits), start=job.start, stop=job.stop) as source:
            scanner = Scanner(
                source,
                block_bytes=job.block,
                part=Part(first=False, last=job.stop is None, layout=job.layout),
                columns=job.columns,
                arrows=job.arrows,
            )
            part = _pack(scanner.run())
    except Exception:  # the parent reads the file again in one process and meets the error there
        part = _Part(complete=False, failed=True)
    stdout.write(msgspec.msgpack.encode(part))


def serve() -> None:
    """Run a worker process on this process's stdin and stdout."""
    work(sys.stdin.buffer, sys.stdout.buffer)
