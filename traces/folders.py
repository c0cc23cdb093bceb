# pyright: strict
"""Folders outside of which no input file may lie, for a program that opens files on somebody else's behalf."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_FOLDERS: ContextVar[tuple[str, ...] | None] = ContextVar("folders", default=None)


@contextmanager
def only_in(folders: Sequence[str]) -> Generator[None, None, None]:
    """Within it, `may_read` holds for files in these folders alone; for any file where it was never entered."""
    before = _FOLDERS.set(tuple(os.path.realpath(folder) for folder in folders))
    try:
        yield
    finally:
        _FOLDERS.reset(before)


def may_read(path: str | os.PathLike[str]) -> bool:
    """Whether a file lies, with all links followed, in one of the folders."""
    folders = _FOLDERS.get()
    return folders is None or is_inside(os.path.realpath(path), folders)


def is_inside(real_path: str, folders: Sequence[str]) -> bool:
    """Whether a path without links is one of the folders, or below one."""
    return any(os.path.commonpath((real_path, folder)) == folder for folder in folders)
