# pyright: strict
"""Tell without reading a whole file whether it is unchanged: by size, modification time and both ends.

This module compares files on disk; it knows nothing of what was made of them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from opreplay.traces.names import printable

END_BYTES = 64 << 10
"""Of the beginning and of the end that are looked at: the footer of a gzip holds a checksum of the whole."""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one file at one moment; equal stamps mean that the file is unchanged."""

    path: str
    """Printable."""
    size_bytes: int
    mtime_ns: int
    ends: str
    """Digest of its first and last `END_BYTES`: some tools set times back, and some file systems have coarse ones."""


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
    return Stamp(path=printable(path), size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, ends=hasher.hexdigest())


def stamps_of(paths: Sequence[str]) -> tuple[Stamp, ...] | None:
    """Return the stamps of all files, or None if one has none."""
    stamps = [stamp_of(path) for path in paths]
    known = tuple(stamp for stamp in stamps if stamp is not None)
    return known if len(known) == len(stamps) else None
