# pyright: strict
"""Cut the array of events at event boundaries, in one reused buffer.

This module handles JSON's brackets, but it does not parse events. A cut is only a guess, which the caller confirms. The
cut was right if the text before it decodes after "]" is appended.
"""

from __future__ import annotations

import re

from opreplay.traces.limits import too_large
from opreplay.traces.reading.source import Source

SEPARATOR = re.compile(rb"\}\s*,\s*\{")
ARRAY_END = re.compile(rb"\}\s*(,?)\s*\]")
_SPACE = b" \t\r\n"
_GAP_BYTES = 4096
"""Before and after the comma between two events, at most this many bytes of white space are searched."""


def last_separator(buf: bytearray | bytes, lo: int, hi: int) -> tuple[int, int] | None:
    """Return (position after "}", position of the next "{") of the last "},{" in buf[lo:hi], or None."""
    at = hi
    while (at := buf.rfind(b"{", lo, at)) > lo:
        before = bytes(buf[max(lo, at - 64) : at]).rstrip(_SPACE)
        if not before:
            before = bytes(buf[max(lo, at - _GAP_BYTES) : at]).rstrip(_SPACE)
        if not before.endswith(b","):
            continue
        comma = buf.rfind(b",", lo, at)
        gap = bytes(buf[max(lo, comma - 64) : comma]).rstrip(_SPACE)
        if not gap:
            gap = bytes(buf[max(lo, comma - _GAP_BYTES) : comma]).rstrip(_SPACE)
        if gap.endswith(b"}"):
            return buf.rfind(b"}", lo, comma) + 1, at
    return None


class Buffer:
    """The part of the array that is not decoded yet: `data[lo:hi]`. Grows only if one event does not fit."""

    def __init__(self, source: Source, block_bytes: int) -> None:
        self.source = source
        self.block_bytes = block_bytes
        self.data = bytearray(2 * block_bytes + 2)
        self.lo = 1
        self.hi = 1
        self.base = 0
        """Offset of data[0] in the decompressed file."""
        self.eof = False

    def __len__(self) -> int:
        return self.hi - self.lo

    def fill(self, limit: int, field: str, what: str) -> bool:
        """Read about one more block; return False at the end. Raises TooLarge if the undecoded rest exceeds `limit`."""
        if self.eof:
            return False
        rest = self.hi - self.lo
        if rest > limit:
            raise too_large(field, limit, rest, what)
        if rest + self.block_bytes + 2 > len(self.data):
            bigger = bytearray(2 * rest + 2 * self.block_bytes + 2)
            bigger[1 : 1 + rest] = memoryview(self.data)[self.lo : self.hi]
            self.data = bigger
        elif self.lo > 1:
            self.data[1 : 1 + rest] = self.data[self.lo : self.hi]
        self.base += self.lo - 1
        self.lo, self.hi = 1, 1 + rest
        want = max(self.block_bytes, rest)  # twice as much each time: a huge event is searched a few times only
        want = min(want, len(self.data) - 1 - self.hi)
        with memoryview(self.data) as view:
            got = 0
            while got < want:
                n = self.source.readinto(view[self.hi + got : self.hi + want])
                if not n:
                    self.eof = True
                    break
                got += n
        self.hi += got
        return got > 0

    def closed(self, cut: int) -> bytes:
        """Return data[lo:cut] as a JSON array."""
        return b"".join((b"[", memoryview(self.data)[self.lo : cut], b"]"))

    def bracket(self, cut: int) -> tuple[memoryview, tuple[int, int]]:
        """Turn data[lo:cut] into a JSON array in place; return the array and the two replaced bytes for `unbracket`."""
        data, lo = self.data, self.lo
        covered = data[lo - 1], data[cut]
        data[lo - 1], data[cut] = 0x5B, 0x5D
        return memoryview(data)[lo - 1 : cut + 1], covered

    def unbracket(self, cut: int, covered: tuple[int, int]) -> None:
        """Put back the two bytes that were replaced by `bracket`."""
        self.data[self.lo - 1], self.data[cut] = covered

    def text(self, start: int, stop: int) -> bytes:
        """Return a copy of data[start:stop]."""
        return bytes(memoryview(self.data)[start:stop])
