# pyright: strict
"""Check whether a file is unchanged without reading all of it.

Its size, its times of modification and of change, its start and its end are compared.

This module only compares files on disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from opreplay.traces.names import printable

END_BYTES = 64 << 10
"""Bytes that are checked at the start and at the end. A gzip file ends with a checksum of all data."""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one file at one moment; equal stamps mean that the file is unchanged."""

    path: str
    """Path of the file as printable text."""
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    """Time of the last write or change of attributes, which no program can set back."""
    ends: str
    """Digest of the first and last `END_BYTES`.

    Modification times are not enough: some tools reset them, and some file systems store coarse ones.
    """


def stamp_of(path: str) -> Stamp | None:
    """Return the file's stamp; None for a file that is not regular or cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None  # opening a pipe would wait for its writer
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            hasher = blake2b(file.read(END_BYTES) or b"", digest_size=16)
            file.seek(max(0, status.st_size - END_BYTES))
            hasher.update(file.read(END_BYTES) or b"")
    except (OSError, ValueError):
        return None
    return Stamp(
        path=printable(path),
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        ends=hasher.hexdigest(),
    )


def stamps_of(paths: Sequence[str]) -> tuple[Stamp, ...] | None:
    """Return the stamps of all files, or None if any file has none."""
    stamps = [stamp_of(path) for path in paths]
    known = tuple(stamp for stamp in stamps if stamp is not None)
    return known if len(known) == len(stamps) else None
