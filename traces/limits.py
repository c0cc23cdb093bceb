# pyright: strict
"""Limits on the resources that reading a trace may use: their values and the error message."""

from __future__ import annotations

import msgspec

from opreplay.traces.errors import TooLarge

MIB = 1 << 20
MAX_RANK = 64
"""Maximum number of tensor dimensions in torch."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper limits that real traces do not reach; raise one with `Limits(<field>=...)`."""

    decompressed_bytes: int = 64 * 1024 * MIB
    """Maximum bytes after decompression."""
    ratio: int = 200
    """Maximum ratio of decompressed to compressed bytes, checked after `ratio_free_bytes` of output (real traces: 8 to
    40).
    """
    ratio_free_bytes: int = 256 * MIB
    metadata_bytes: int = 64 * MIB
    """Maximum bytes of the text before the array of events, and of the text after it."""
    event_bytes: int = 32 * MIB
    """Maximum bytes of one event's text."""
    events: int = 1_000_000_000
    rows: int = 100_000_000
    """Maximum number of rows kept in one table (about 22 bytes per row)."""
    signatures: int = 250_000
    """Maximum number of distinct ops: public traces have a few thousand at most, and each op costs time and memory in
    every command.
    """
    names: int = 2_000_000
    """Maximum number of distinct kernel names, and of distinct annotation names."""
    name_bytes: int = 1 * MIB
    """Maximum length of one op, kernel or annotation name."""
    tracks: int = 1_000_000
    """Maximum number of distinct (process, thread) pairs."""


def too_large(field: str, limit: int, actual: int | str, what: str) -> TooLarge:
    """Return the error for an exceeded limit, with its name, its value, the actual value and how to raise it."""
    return TooLarge(
        f"{what}: {actual} exceeds the limit {field} = {limit}",
        hint=f"If you trust this file, raise the limit: --set limit={field}=N, in Python Limits({field}=N).",
    )
