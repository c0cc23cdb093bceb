# pyright: strict
"""JSON that a terminal only shows: controls and bidirectional marks of texts as escapes; owns no format."""

from __future__ import annotations

import re

_ACTED_ON = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)  # U+007F to U+009F, U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069
"""Characters that JSON leaves as they are and a terminal acts on, in UTF-8."""


def plain_json(encoded: bytes) -> bytes:
    """JSON in UTF-8 of the same value, with such characters as escapes."""
    return _ACTED_ON.sub(lambda match: rb"\u%04x" % ord(match[0].decode()), encoded)
