# pyright: strict
"""Definition of a file kind: its name, how its first bytes are recognised, and how it is read."""

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
    """What to read besides the columns that are always read, and how."""

    columns: frozenset[Column] = frozenset()
    processes: int = 1
    progress: Progress | None = None
    block_bytes: int | None = None
    """Text decoded at a time; None for what suits the dialect."""


class Dialect(msgspec.Struct, Generic[Read], frozen=True):
    """One kind of file."""

    name: str
    sniff: Callable[[Opening], bool]
    """Whether a file that begins so is of this kind; raises nothing."""
    read: Callable[[Source, Want], Read]
    """What an open file holds, from its first byte. Raises TraceError."""
