# pyright: strict
"""The plans of a batch in a database beside its results, so that continuing it reads no trace again that is as it was.

Owns that file: a row a trace, written when the trace is planned, and a row for each op that any of them has. What makes
a plan of a trace is the caller's, and so is the text that stands for all that decides how.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from opreplay.replay.batch.merge import TracePlan
from opreplay.replay.batch.stamps import Stamp, stamps_of
from opreplay.replay.host import own_database
from opreplay.replay.host.own_database import MAGIC
from opreplay.replay.ir.model import NOT_RECORDED, SCHEMA_VERSION, Recorded, ReplayOp
from opreplay.replay.ir.verify import verify
from opreplay.replay.results.resume import digest
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.names import printable

SUFFIX = ".plans"
"""What the file's name has more than that of the results."""
APPLICATION_ID = 0x6F70706C
"""Tells a file of ours from another program's database: "oppl"."""
MAX_BODY = 1 << 30
"""Bytes of one trace's plan, unpacked; as much as a plan file may have."""
_Value = TypeVar("_Value", bound=msgspec.Struct)
MAX_FILE = 1 << 30
"""Bytes of a file that is opened."""
MAX_RATIO, RATIO_FREE_BYTES = 200, 1 << 20
"""A plan unpacked over packed, beyond its first bytes (those written here: up to 30)."""
TABLES = {
    "settings": "CREATE TABLE settings (text TEXT NOT NULL, plan_schema INTEGER NOT NULL)",
    "ops": "CREATE TABLE ops (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL, "
    "body BLOB NOT NULL)",
    "traces": "CREATE TABLE traces (path TEXT PRIMARY KEY, crc INTEGER NOT NULL, body BLOB NOT NULL)",
}
"""Name → how it is made."""


class _OtherPlans(Exception):
    """The file has other tables than those made here, or plans that were made in another way."""


class _Use(msgspec.Struct, frozen=True, array_like=True):
    """What a trace has of its own of an op: which, how often, and what was measured of it."""

    op: int
    count: int
    recorded: Recorded


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One trace."""

    trace: TracePlan
    """Its plan without the ops."""
    uses: tuple[_Use, ...]


class PlanStore:
    """Plans kept from before and those that are added; a trace that has changed since is as if it were not there."""

    def __init__(self, path: Path, settings: str, *, force: bool = False) -> None:
        """Open or make the file. What was planned with other settings is dropped, with `force` whatever there is.

        Raises UsageError for a file that holds something else or that another run writes.
        """
        self.path = path
        self.problem: str | None = None
        """Why plans are no longer kept: reading goes on without."""
        self._ops: dict[int, ReplayOp] = {}
        self._sources: dict[str, tuple[Stamp, ...]] = {}
        self._before: dict[str, tuple[int, bytes] | None] = {}
        """Trace that was added → its row as it was when the file was opened."""
        try:
            self._open(settings, anew=force or not _is_ours(path))
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(f"another run writes {path}", hint="Wait for it, or name another --output.") from None
            folder = path.absolute().parent
            why = str(error) if os.access(folder, os.W_OK) else f"the folder {folder} is not writable"
            raise UsageError(f"cannot write {path}: {why}", hint="Check the folder and its rights.") from None

    def __len__(self) -> int:
        return len(self._sources)

    def holds(self, path: str, files: Sequence[str]) -> bool:
        """Whether the plan of a file is here, made of just these files, which are as they were then."""
        sources, names = self._sources.get(printable(path)), list(map(printable, files))
        return sources is not None and [stamp.path for stamp in sources] == names and stamps_of(files) == sources

    def load(self, path: str) -> TracePlan:
        """The plan of a file that is here. Raises FormatError for one that was tampered with."""
        entry = self._entry(printable(path))
        if entry is None:
            raise FormatError(f"{self.path} was changed while it was read", hint="Delete it.")
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
        new: dict[int, ReplayOp] = {}
        try:
            self.connection.execute("BEGIN")
            earlier_row = self.connection.execute(
                "SELECT crc, body FROM traces WHERE path = ?", (trace.path,)
            ).fetchone()
            uses = tuple(_Use(self._place(op, new), op.count, op.recorded) for op in trace.plan.ops)
            bare = msgspec.structs.replace(trace, plan=msgspec.structs.replace(trace.plan, ops=()))
            row = (trace.path, *_packed(_Entry(trace=bare, uses=uses)))
            self.connection.execute("INSERT OR REPLACE INTO traces VALUES (?, ?, ?)", row)
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.problem = str(error)
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            return
        self._before.setdefault(trace.path, earlier_row)
        self._ops |= new
        self._sources[trace.path] = trace.sources

    def undo(self) -> list[str]:
        """Have the traces as they were when the file was opened; those that had another plan then, or none while others
        had one."""
        added, self._before = self._before, {}
        with contextlib.suppress(sqlite3.Error):  # a full disk: they are read again
            for path, row in added.items():
                self.connection.execute("DELETE FROM traces WHERE path = ?", (path,))
                if row is not None:
                    self.connection.execute("INSERT INTO traces VALUES (?, ?, ?)", (path, *row))
        return list(added) if len(self) > len(added) or any(added.values()) else []

    def close(self, *, remove: bool = False) -> None:
        """Close the file; with `remove`, when the batch is complete, it goes."""
        self.connection.close()
        if remove:
            _unlink(self.path)

    def _place(self, op: ReplayOp, new: dict[int, ReplayOp]) -> int:
        """The row of an op as all traces have it, written if there is none."""
        bare = msgspec.structs.replace(op, count=1, recorded=NOT_RECORDED)
        key = digest(msgspec.msgpack.encode(bare))
        row = self.connection.execute("SELECT id FROM ops WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return row[0]
        done = self.connection.execute("INSERT INTO ops (key, crc, body) VALUES (?, ?, ?)", (key, *_packed(bare)))
        assert done.lastrowid is not None
        new[done.lastrowid] = bare
        return done.lastrowid

    def _open(self, settings: str, *, anew: bool) -> None:
        """Go on with what is there; `anew`, or where it is damaged, with nothing."""
        self.connection = _connected(self.path)
        try:
            _lock(self.connection)
            if not anew:
                self._begin(settings)
                return
        except _OtherPlans:
            pass
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # SQLite's message may quote damaged bytes
            if isinstance(error, sqlite3.OperationalError):
                self.connection.close()
                raise
        self.connection.close()
        self._ops.clear()
        self._sources.clear()
        _unlink(self.path)
        self.connection = _connected(self.path)
        _lock(self.connection)
        self._begin(settings)

    def _begin(self, settings: str) -> None:
        """Take in what is there, or make the tables of an empty file. Raises _OtherPlans."""
        wanted = (settings, SCHEMA_VERSION)
        if own_database.is_empty(self.connection):
            for statement in TABLES.values():
                self.connection.execute(statement)
            self.connection.execute("INSERT INTO settings VALUES (?, ?)", wanted)
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif not own_database.has_tables(self.connection, TABLES):
            raise _OtherPlans
        if self.connection.execute("SELECT * FROM settings LIMIT 2").fetchall() != [wanted]:
            raise _OtherPlans
        for row, crc, body in self.connection.execute("SELECT id, crc, body FROM ops"):
            if (op := _unpacked(crc, body, ReplayOp)) is not None:
                self._ops[row] = op
        for (path,) in self.connection.execute("SELECT path FROM traces").fetchall():
            if (entry := self._entry(path)) is not None:
                self._sources[path] = entry.trace.sources
        self.connection.execute("COMMIT")

    def _entry(self, path: str) -> _Entry | None:
        """What is kept of a trace; None where a part of it is damaged."""
        row = self.connection.execute("SELECT crc, body FROM traces WHERE path = ?", (path,)).fetchone()
        entry = None if row is None else _unpacked(row[0], row[1], _Entry)
        usable = entry is not None and entry.trace.path == path and all(use.op in self._ops for use in entry.uses)
        return entry if usable else None


def _is_ours(path: Path) -> bool:
    """Whether there is a file to go on with. Raises UsageError for one that is something else."""
    try:
        head = own_database.head_of(path, MAX_FILE)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="Check the folder and its rights.") from None
    mark = own_database.application_id(head)
    whole = len(head) == own_database.HEAD_BYTES
    if not MAGIC.startswith(head[: len(MAGIC)]) or (whole and mark not in (0, APPLICATION_ID)):
        raise UsageError(f"{path} exists and holds no plans", hint="Name another --output, or use --force.")
    return mark == APPLICATION_ID


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
    connection.text_factory = _text_of
    own_database.restrict(connection)
    return connection


def _text_of(raw: bytes) -> str:
    """A name, of no trace where it is damaged."""
    return raw.decode("utf-8", "replace")


def _lock(connection: sqlite3.Connection) -> None:
    """Begin a transaction that no other process can have at the same time.

    A process that is killed loses at most the transaction it is in; after a power failure checksums tell what is whole.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN EXCLUSIVE")


def _unlink(path: Path) -> None:
    for file in (path, path.with_name(path.name + "-journal")):
        with contextlib.suppress(OSError):
            file.unlink()


def _packed(value: msgspec.Struct) -> tuple[int, bytes]:
    body = zlib.compress(msgspec.msgpack.encode(value), 1)
    return zlib.crc32(body), body


def _unpacked(crc: int, body: object, kind: type[_Value]) -> _Value | None:
    """The value; None where its bytes are not those that were written, or over the limit."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc:
        return None
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(body, min(MAX_BODY, RATIO_FREE_BYTES + MAX_RATIO * len(body)))
        return msgspec.msgpack.decode(raw, type=kind) if unpacker.eof else None
    except (zlib.error, msgspec.MsgspecError):
        return None
