"""The rank that a trace tells in its first bytes, for choosing between files before any of them is read."""

from __future__ import annotations

import re
import zlib

from opreplay.traces.errors import TraceError
from opreplay.traces.source import open_binary

PEEK_BYTES = 64 << 10
"""Read of the file, and looked at of what it unpacks to: PyTorch writes distributedInfo before the events."""
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]{0,4000}?"rank"\s*:\s*(\d{1,9})\b')


def rank_at_start(path: str) -> int | None:
    """The recorded rank, where it is among the first bytes; None for any other file, readable or not."""
    try:
        with open_binary(path) as file:
            data = file.read(PEEK_BYTES) or b""
        if data[:2] == b"\x1f\x8b":
            data = zlib.decompressobj(31).decompress(data, PEEK_BYTES)
    except (TraceError, OSError, zlib.error):
        return None
    found = _RANK.search(data)
    return None if found is None else int(found[1])
