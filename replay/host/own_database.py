# pyright: strict
"""Check of SQLite files of opreplay, which may come from anywhere, before a query runs on them.

A database can hold views, triggers, indexes and generated columns. These are programs that a query runs. A journal next
to the database can name a file that SQLite then deletes. Hence the tables must be exactly those that opreplay creates.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Mapping

from opreplay.traces.folders import open_regular

MAGIC = b"SQLite format 3\0"
"""First bytes of every SQLite file (sqlite.org/fileformat.html)."""
HEAD_BYTES = 72
"""Bytes of a file's header up to and including the application id."""
_ROLLBACK = b"\x01\x01"
"""Write and read versions in the header of a database that uses a rollback journal, not a write-ahead log."""
_SUPER_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""End of a journal that names another file, which SQLite deletes after a rollback (src/pager.c)."""
MOST_STEPS = 2_000_000_000
"""Maximum number of steps of SQLite's virtual machine for one connection. One row takes some thousand steps."""
_STEPS_A_CALL = 1_000_000


def head_of(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the first bytes of a file.

    Raises OSError in the cases in which `open_regular` does, and if the journal next to the file is not from a run of
    opreplay.
    """
    with open_regular(path, most_bytes) as file:
        head = file.read(HEAD_BYTES)
    journal = f"{os.fspath(path)}-journal"
    if os.path.lexists(journal):
        with open_regular(journal, most_bytes) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - len(_SUPER_JOURNAL)))
            if file.read() == _SUPER_JOURNAL:
                raise OSError(errno.EINVAL, "its journal belongs to another file", journal)
    return head


def application_id(head: bytes) -> int | None:
    """Return the id of the program that created a database, or None if the header is not an SQLite database's."""
    if len(head) < HEAD_BYTES or not head.startswith(MAGIC) or head[18:20] != _ROLLBACK:
        return None
    return int.from_bytes(head[68:72], "big")


def restrict(connection: sqlite3.Connection) -> None:
    """Forbid dangerous functions in the schema, and limit the steps of a query."""
    left = MOST_STEPS // _STEPS_A_CALL

    def out_of_steps() -> int:
        nonlocal left
        left -= 1
        return int(left < 0)

    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_progress_handler(out_of_steps, _STEPS_A_CALL)


def has_tables(connection: sqlite3.Connection, tables: Mapping[str, str]) -> bool:
    """Check whether a database holds exactly the tables {name: CREATE statement} and no view, trigger or index.

    Raises sqlite3.Error for a damaged file.
    """
    found = connection.execute(
        "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT ?", (len(tables) + 1,)
    )
    return set(found) == {(name, "table", sql) for name, sql in tables.items()}


def is_empty(connection: sqlite3.Connection) -> bool:
    """Check whether a database is empty. Raises sqlite3.Error for a damaged file."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
