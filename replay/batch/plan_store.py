"""The plans of a batch in a file beside its results, so that continuing it reads no trace again that is as it was.

Owns that file: one frame a trace, appended when the trace is planned, each op written out once. What makes a plan of a
trace is the caller's, and so is the text that stands for all that decides how.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.stamps import Stamp, stamps_of
from opreplay.replay.ir.model import SCHEMA_VERSION, Recorded, ReplayOp
from opreplay.replay.ir.verify import verify
from opreplay.replay.results.resume import digest
from opreplay.replay.results.writing import lock_file, write_whole
from opreplay.traces.errors import FormatError, UsageError

SUFFIX = ".plans"
"""What the file's name has more than that of the results."""
MAGIC = b"opreplay plans 1\n"
FRAME = struct.Struct("<II")
"""Bytes of the packed body and their CRC-32."""
MAX_FRAME = 1 << 30
"""Bytes of one trace's plan, unpacked; as much as a plan file may have."""
_NOTHING = Recorded(host_us_total=0.0, host_us_median=0.0)


class _Use(msgspec.Struct, frozen=True, array_like=True):
    """What a trace has of its own of an op: which, how often, and what was measured of it."""

    op: int
    count: int
    recorded: Recorded


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One trace."""

    trace: TracePlan
    """Its plan without the ops."""
    new: tuple[ReplayOp, ...]
    """Ops that no entry before has."""
    uses: tuple[_Use, ...]


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The first frame."""

    settings: str
    plan_schema: int = SCHEMA_VERSION


class PlanStore:
    """Plans kept from before and those that are added; a trace that has changed since is as if it were not there."""

    def __init__(self, path: Path, settings: str, *, force: bool = False) -> None:
        """Open or make the file. What was planned with other settings is dropped, with `force` whatever there is.

        Raises UsageError for a file that is no such file or that another run writes.
        """
        self.path = path
        self.problem: str | None = None
        """Why plans are no longer kept: reading goes on without."""
        self._ops: list[ReplayOp] = []
        self._index: dict[str, int] = {}
        self._places: dict[str, tuple[int, tuple[Stamp, ...]]] = {}
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", hint="Check the folder and its rights."
            ) from None
        try:
            lock_file(self._file, path)
            self._begin(settings, force=force)
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    def holds(self, path: str, files: Sequence[str]) -> bool:
        """Whether the plan of a file is here, made of just these files, which are as they were then."""
        place = self._places.get(path)
        return place is not None and [stamp.path for stamp in place[1]] == list(files) and stamps_of(files) == place[1]

    def load(self, path: str) -> TracePlan:
        """The plan of a file that is here. Raises FormatError for one that was tampered with."""
        self._file.seek(self._places[path][0])
        body = _read_frame(self._file)
        if body is None:
            raise FormatError(f"{self.path} was changed while it was read", hint="Delete it.")
        entry = msgspec.msgpack.decode(body, type=_Entry)
        ops = tuple(
            msgspec.structs.replace(self._ops[use.op], count=use.count, recorded=use.recorded) for use in entry.uses
        )
        plan = msgspec.structs.replace(entry.trace.plan, ops=ops)
        verify(plan)
        return msgspec.structs.replace(entry.trace, plan=plan)

    def add(self, trace: TracePlan) -> None:
        """Keep one more plan. A full disk ends the keeping, not the batch; nothing is kept of files without stamps."""
        if not trace.sources or self.problem is not None:
            return
        start, new, keys, uses = len(self._ops), list[ReplayOp](), list[str](), list[_Use]()
        for op in trace.plan.ops:
            bare = msgspec.structs.replace(op, count=1, recorded=_NOTHING)
            key = digest(msgspec.msgpack.encode(bare))
            index = self._index.get(key)
            if index is None:
                index = self._index[key] = start + len(new)
                new.append(bare)
                keys.append(key)
            uses.append(_Use(index, op.count, op.recorded))
        without = msgspec.structs.replace(trace, plan=msgspec.structs.replace(trace.plan, ops=()))
        entry = _Entry(trace=without, new=tuple(new), uses=tuple(uses))
        place = self._append(msgspec.msgpack.encode(entry))
        if place is None:
            for key in keys:
                del self._index[key]
            return
        self._ops += new
        self._places[trace.path] = (place, trace.sources)

    def close(self, *, remove: bool = False) -> None:
        """Close the file; with `remove`, when the batch is complete, it goes."""
        if remove and not self._file.closed:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._file.close()

    def _append(self, body: bytes) -> int | None:
        """Where the frame begins; None when there is no room for it."""
        start = self._file.seek(0, os.SEEK_END)
        packed = zlib.compress(body, 1)
        try:
            write_whole(self._file.write, FRAME.pack(len(packed), zlib.crc32(packed)) + packed)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            self.problem = error.strerror or str(error)
            return None
        return start

    def _begin(self, settings: str, *, force: bool) -> None:
        """Take in what is there, up to a last frame cut short; begin anew where it is of no use."""
        self._file.seek(0)
        head = self._file.read(len(MAGIC)) or b""
        if not force and not MAGIC.startswith(head):
            raise UsageError(f"{self.path} exists and holds no plans", hint="Name another --output, or use --force.")
        end = len(MAGIC)
        if not force and head == MAGIC and self._is_of(settings):
            end = self._load()
            self._file.truncate(end)
            return
        self._file.truncate(0)
        try:
            write_whole(self._file.write, MAGIC)
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self._append(msgspec.msgpack.encode(_Settings(settings=settings)))

    def _is_of(self, settings: str) -> bool:
        body = _read_frame(self._file)
        try:
            return body is not None and msgspec.msgpack.decode(body, type=_Settings) == _Settings(settings=settings)
        except msgspec.MsgspecError:
            return False

    def _load(self) -> int:
        """Where the last whole frame ends."""
        while True:
            start = self._file.tell()
            body = _read_frame(self._file)
            try:
                entry = None if body is None else msgspec.msgpack.decode(body, type=_Entry)
                if entry is None or any(not 0 <= use.op < len(self._ops) + len(entry.new) for use in entry.uses):
                    return start
            except msgspec.MsgspecError:
                return start
            for op in entry.new:
                self._index[digest(msgspec.msgpack.encode(op))] = len(self._ops)
                self._ops.append(op)
            self._places[entry.trace.path] = (start, entry.trace.sources)


def _read_frame(file: BinaryIO) -> bytes | None:
    """The next frame unpacked; None for one that is cut short, damaged or over the limit."""
    head = file.read(FRAME.size) or b""
    if len(head) < FRAME.size:
        return None
    length, checksum = FRAME.unpack(head)
    if length > MAX_FRAME:
        return None
    packed = _exactly(file, length)
    if packed is None or zlib.crc32(packed) != checksum:
        return None
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, MAX_FRAME)
    except zlib.error:
        return None
    return body if unpacker.eof else None


def _exactly(file: BinaryIO, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = file.read(min(1 << 24, count - len(parts)))
        if not part:
            return None
        parts += part
    return bytes(parts)
