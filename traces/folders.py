# pyright: strict
"""Open input files safely: only regular files of bounded size in the allowed folders.

All small files (options, a device, a cluster, a table) are opened by `open_regular` or `read_regular`. A pipe thus
cannot block a command, and a device file or a huge file cannot fill memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader, TextIOWrapper
from typing import BinaryIO, TextIO

_BLOCK_BYTES = 1 << 20
_FOLDERS: ContextVar[tuple[str, ...] | None] = ContextVar("folders", default=None)


@contextmanager
def only_in(folders: Sequence[str]) -> Generator[None, None, None]:
    """Within the context, make `may_read` accept only files in these folders; by default it accepts any file."""
    before = _FOLDERS.set(tuple(os.path.realpath(folder) for folder in folders))
    try:
        yield
    finally:
        _FOLDERS.reset(before)


def may_read(path: str | os.PathLike[str]) -> bool:
    """Check whether a file, after resolving all links, lies in one of the allowed folders."""
    folders = _FOLDERS.get()
    return folders is None or is_inside(os.path.realpath(path), folders)


def is_inside(real_path: str, folders: Sequence[str]) -> bool:
    """Check whether a resolved path is one of the folders or inside one."""
    return any(os.path.commonpath((real_path, folder)) == folder for folder in folders)


def open_regular(path: str | os.PathLike[str], most_bytes: int) -> BufferedReader:
    """Open a regular file of at most `most_bytes` bytes for reading.

    Raises OSError for any other or larger file, for a file outside the allowed folders, and for an invalid name. The
    error's `strerror` completes the message "cannot read NAME: ...".
    """
    try:
        if not may_read(path):
            raise OSError(errno.EACCES, "it is outside the folders that may be read", str(path))
        _refuse_irregular(os.stat(path), path, most_bytes)  # opening a device may already change it
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        _refuse_irregular(os.fstat(descriptor), path, most_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_regular_text(path: str | os.PathLike[str], most_bytes: int) -> TextIO:
    """Open a table as UTF-8 text, with or without a byte order mark; otherwise like `open_regular`, with the same
    errors.

    Invalid bytes are replaced and line ends are kept.
    """
    return TextIOWrapper(open_regular(path, most_bytes), encoding="utf-8-sig", errors="replace", newline="")


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the contents of a regular file of at most `most_bytes` bytes. Raises OSError like `open_regular`."""
    with open_regular(path, most_bytes) as file:
        data = read_at_most(file, most_bytes)
    if data is None:
        raise _too_large(path, most_bytes)
    return data


def read_at_most(file: BinaryIO, most_bytes: int) -> bytes | None:
    """Return the rest of an open file or pipe, or None if it has more than `most_bytes` bytes."""
    blocks: list[bytes] = []
    left = most_bytes
    while left >= 0 and (block := file.read(min(left, _BLOCK_BYTES) + 1)):  # the size of a file of /proc is 0
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks) if left >= 0 else None


def _refuse_irregular(status: os.stat_result, path: str | os.PathLike[str], most_bytes: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most_bytes:
        raise _too_large(path, most_bytes)


def _too_large(path: str | os.PathLike[str], most_bytes: int) -> OSError:
    return OSError(errno.EOVERFLOW, f"it is over the limit of {most_bytes:,} bytes", str(path))
