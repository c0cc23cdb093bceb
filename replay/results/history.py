# pyright: strict
"""A database of the times of many runs, by label and machine. `run` adds to it, and `compare` reads it.

The file may come from an untrusted source. Therefore its tables must be exactly those that this module writes, and the
amount of data read is limited.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from opreplay.replay.host import own_database
from opreplay.replay.results.compare.compatibility import MUST_AGREE, OPTIONS_MUST_AGREE, WERE_ALWAYS
from opreplay.replay.results.records import Header, OpResult
from opreplay.replay.results.resume import digest
from opreplay.traces.errors import FormatError, UsageError
from opreplay.traces.names import printable

APPLICATION_ID = 0x6F706C68
"""SQLite application id that distinguishes our files from other databases: "oplh" (sqlite.org/fileformat.html)."""
MAX_FILE = 1 << 30
"""Maximum size of a file that is opened, in bytes."""
MAX_RUNS = 1000
"""Maximum number of runs that are read, latest first."""
MAX_TIMES = 250_000
"""Maximum number of times that are read, latest first. Finding changes in this many times takes about 10 s."""
MAX_TEXT = 1000
"""Maximum length of a text, in characters."""
LOCKED_S = 30.0
"""Seconds to wait for another process that is writing."""
TABLES = {
    "runs": "CREATE TABLE runs (id INTEGER PRIMARY KEY, started_at TEXT NOT NULL, label TEXT NOT NULL, "
    "machine TEXT NOT NULL, machine_name TEXT NOT NULL, UNIQUE (started_at, machine))",
    "ops": "CREATE TABLE ops (id TEXT PRIMARY KEY, name TEXT NOT NULL, inputs TEXT NOT NULL)",
    "times": "CREATE TABLE times (run INTEGER NOT NULL, op TEXT NOT NULL, measured_us REAL NOT NULL, relative REAL, "
    "PRIMARY KEY (run, op)) WITHOUT ROWID",
}
"""Table → SQL statement that creates it."""

_UNSOUND = (
    f"SELECT 1 FROM ops WHERE max(length(id), length(name), length(inputs)) > {MAX_TEXT} LIMIT 1",
    "SELECT 1 FROM runs WHERE max(length(started_at), length(label), length(machine), length(machine_name)) > "
    f"{MAX_TEXT} LIMIT 1",
    "SELECT 1 FROM times WHERE typeof(measured_us) != 'real' OR typeof(relative) NOT IN ('real', 'null') LIMIT 1",
)
"""Queries that find rows that this module would not have written. A join would return such rows many times."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One op in one run."""

    started_at: str
    """Start time of the run in UTC, ISO 8601."""
    label: str
    measured_us: float
    relative: float | None = None
    """Time relative to the gauges, see `Measurement.relative`."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one op on one machine, the earliest run first."""

    id: str
    name: str
    inputs: str
    machine: str
    """Digest that distinguishes machines and measurement methods."""
    machine_name: str
    points: tuple[Point, ...]


def machine_of(header: Header) -> tuple[str, str]:
    """Return a digest of everything that must agree to compare times of two runs, and a short description of it."""
    facts = {name: header.environment[name] for name in MUST_AGREE if name in header.environment}
    options = {**WERE_ALWAYS, **{name: header.options[name] for name in OPTIONS_MUST_AGREE if name in header.options}}
    device = facts.get("device_name") or facts.get("cpu") or facts.get("device") or "unknown device"
    threads = f", {facts['threads']} threads" if "threads" in facts else ""
    cache = f", {options['cache']}" if options.get("cache") else ""
    key = digest(msgspec.json.encode([facts, options], order="deterministic"))
    return key, printable(f"{device}{threads}{cache}")[:MAX_TEXT]


def check_history(path: str) -> None:
    """Raise UsageError if `append_run` could not write: the file is of another kind, or has no folder."""
    file = Path(path)
    if file.exists():
        try:
            with _reading(file) as connection:
                connection.execute("SELECT 1")
        except FormatError as error:
            raise UsageError(error.problem, hint="Name another file for --history.") from None
    elif not file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: the folder does not exist", hint="Create it, or name another file.")


def _make_tables(connection: sqlite3.Connection) -> None:
    if own_database.is_empty(connection):
        for statement in TABLES.values():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def append_run(path: str, header: Header, results: Sequence[OpResult], label: str = "") -> int:
    """Add the measured ops of a run to a history, and return their number.

    Earlier rows of the same run are replaced. A missing file is created. Raises UsageError for a file that cannot be
    written.
    """
    check_history(path)
    machine, machine_name = machine_of(header)
    measured = {r.id: r for r in results if r.status == "replayed" and r.measured_us is not None and r.measured_us > 0}
    if not measured:
        return 0
    times = [(r.id, r.measured_us, r.measurement and r.measurement.relative) for r in measured.values()]
    ops = [(r.id, printable(r.name)[:MAX_TEXT], printable(r.inputs)[:MAX_TEXT]) for r in measured.values()]
    row = (header.started_at, printable(label)[:MAX_TEXT], machine, machine_name)
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)) as connection:
            own_database.restrict(connection)
            connection.execute("BEGIN IMMEDIATE")
            _make_tables(connection)
            if not own_database.has_tables(connection, TABLES):  # another process may have changed them
                raise FormatError(
                    f"{path} does not have the tables of a history of this version", hint="Name another file."
                )
            same = "SELECT id FROM runs WHERE started_at = ? AND machine = ?"
            connection.execute(f"DELETE FROM times WHERE run IN ({same})", (header.started_at, machine))
            connection.execute("DELETE FROM runs WHERE started_at = ? AND machine = ?", (header.started_at, machine))
            run = connection.execute(
                "INSERT INTO runs (started_at, label, machine, machine_name) VALUES (?, ?, ?, ?)", row
            ).lastrowid
            connection.executemany("INSERT OR REPLACE INTO ops VALUES (?, ?, ?)", ops)
            connection.executemany("INSERT INTO times VALUES (?, ?, ?, ?)", [(run, *time) for time in times])
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise UsageError(f"cannot write {path}: {error}", hint="Check the file, its folder and the disk.") from None
    return len(times)


def read_history(path: str) -> tuple[Series, ...]:
    """Return the times of every op on every machine in the latest runs. Ops are in the order of their first runs.

    Raises FormatError if the file is damaged or is not a history.
    """
    with _reading(Path(path)) as connection:
        if any(connection.execute(query).fetchone() is not None for query in _UNSOUND):
            raise FormatError(f"{path}: the history is damaged", hint="Restore it, or start a new one.")
        latest = f"SELECT * FROM runs ORDER BY started_at DESC, id DESC LIMIT {MAX_RUNS}"
        rows = connection.execute(
            "SELECT r.machine, t.op, o.name, o.inputs, r.machine_name, r.started_at, r.label, t.measured_us, "
            f"t.relative FROM ({latest}) r JOIN times t ON t.run = r.id JOIN ops o ON o.id = t.op "
            f"ORDER BY r.started_at DESC, r.id DESC LIMIT {MAX_TIMES}"
        ).fetchall()
    series: dict[tuple[str, str], list[Any]] = {}
    for row in reversed(rows):
        _check(path, row)
        series.setdefault((row[0], row[1]), []).append(row)
    return tuple(_series(rows) for rows in series.values())


def _series(rows: Sequence[Any]) -> Series:
    machine, op, name, inputs, machine_name = rows[-1][:5]
    points = tuple(Point(started_at=row[5], label=row[6], measured_us=row[7], relative=row[8]) for row in rows)
    return Series(id=op, name=name, inputs=inputs, machine=machine, machine_name=machine_name, points=points)


def _check(path: str, row: Sequence[object]) -> None:
    """Raise FormatError for a row with values that this module would not have written."""
    texts, (us, relative) = row[:7], row[7:]
    sound = all(isinstance(text, str) and len(text) <= MAX_TEXT for text in texts)
    if not sound or not _is_time(us) or not (relative is None or _is_time(relative)):
        raise FormatError(f"{path}: the history is damaged", hint="Restore it, or start a new one.")


def _is_time(value: object) -> bool:
    return isinstance(value, float) and 0.0 < value < 1e15


@contextlib.contextmanager
def _reading(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """Open the file read-only and check its tables. Raises FormatError for any other file."""
    hint = "`opreplay run TRACES --history FILE` writes one."
    try:
        head = own_database.head_of(path, MAX_FILE)
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}", hint=hint) from None
    if own_database.application_id(head) != APPLICATION_ID:
        raise FormatError(f"{path} is not an opreplay history", hint=hint)
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=LOCKED_S)) as connection:
            own_database.restrict(connection)
            connection.execute("PRAGMA query_only = ON")
            if not own_database.has_tables(connection, TABLES):
                raise FormatError(f"{path} does not have the tables of a history of this version", hint=hint)
            yield connection
    except sqlite3.Error as error:
        raise FormatError(f"cannot read {path}: {error}", hint="Restore it, or start a new one.") from None
