# pyright: strict
"""Define a file kind: its name, how its first bytes are recognised, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from opreplay.traces.reading.fields import Column
from opreplay.traces.reading.opening import Opening
from opreplay.traces.reading.source import Source

Progress = Callable[[int, "int | None"], None]
Read = TypeVar("Read", covariant=True)


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """Options for reading a file: which optional columns to read, and how."""

    columns: frozenset[Column] = frozenset()
    processes: int = 1
    progress: Progress | None = None
    block_bytes: int | None = None
    """Number of bytes of text that are decoded at a time; None for the dialect's default."""


class Dialect(msgspec.Struct, Generic[Read], frozen=True):
    """One kind of file."""

    name: str
    sniff: Callable[[Opening], bool]
    """Function that checks whether a file that begins like this is of this kind; it must not raise."""
    read: Callable[[Source, Want], Read]
    """Function that reads an open file from its first byte and returns its contents. It raises TraceError."""
