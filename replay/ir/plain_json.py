# pyright: strict
"""JSON that a terminal only shows: controls and bidirectional marks of texts as escapes; owns no format."""

from __future__ import annotations

import re

_ACTED_ON = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf")
"""The characters of `names.ACTED_ON` that JSON leaves as they are, in UTF-8."""


def plain_json(encoded: bytes) -> bytes:
    """JSON in UTF-8 of the same value, with such characters as escapes."""
    return _ACTED_ON.sub(lambda match: rb"\u%04x" % ord(match[0].decode()), encoded)
