# pyright: strict
"""JSON that is safe to show in a terminal. Control characters and bidirectional marks in texts are escaped."""

from __future__ import annotations

import re

_ACTED_ON = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf")
"""Matches the UTF-8 bytes of those characters of `names.ACTED_ON` that JSON does not escape."""


def plain_json(encoded: bytes) -> bytes:
    """Return equivalent JSON in UTF-8 in which the characters of `_ACTED_ON` are escaped."""
    return _ACTED_ON.sub(lambda match: rb"\u%04x" % ord(match[0].decode()), encoded)
