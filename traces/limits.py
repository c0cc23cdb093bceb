# pyright: strict
"""Bounds on what a trace may make this process do: the numbers and the error text."""

from __future__ import annotations

from dataclasses import dataclass

from opreplay.traces.errors import TooLarge

MIB = 1 << 20
MAX_RANK = 64
"""Dimensions that torch gives a tensor at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds, generous for honest traces; raise one with `Limits(<field>=...)`."""

    decompressed_bytes: int = 64 * 1024 * MIB
    """Bytes read after decompression."""
    ratio: int = 200
    """Decompressed over compressed bytes, once more than `ratio_free_bytes` came out (honest traces: 8 to 40)."""
    ratio_free_bytes: int = 256 * MIB
    metadata_bytes: int = 64 * MIB
    """Text before, and text after, the array of events."""
    event_bytes: int = 32 * MIB
    """Text of one event."""
    events: int = 1_000_000_000
    rows: int = 100_000_000
    """Rows kept in any one table (about 22 bytes a row)."""
    signatures: int = 250_000
    """Distinct ops: public traces have at most some thousands, and each costs time and memory in every command."""
    names: int = 2_000_000
    """Distinct names of kernels and of annotations."""
    name_bytes: int = 1 * MIB
    """Length of one op, kernel or annotation name."""
    tracks: int = 1_000_000
    """Distinct pairs of process and thread."""


def too_large(field: str, limit: int, actual: int | str, what: str) -> TooLarge:
    """Return the error for one limit: its name, its value, the actual value and how to raise it."""
    return TooLarge(
        f"{what}: {actual} exceeds the limit {field} = {limit}",
        hint=f"If you trust this file, raise the limit: --set limit={field}=N, in Python Limits({field}=N).",
    )
