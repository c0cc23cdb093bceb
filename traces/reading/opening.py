# pyright: strict
"""Describe the beginning of a file, to recognise its kind: its first bytes and the keys of its first object."""

from __future__ import annotations

from functools import cached_property
from json import JSONDecodeError, JSONDecoder
from typing import Literal

OPENING_BYTES = 1 << 20
"""Maximum number of bytes of a file that are examined."""
ARRAYS = frozenset(("traceEvents", "nodes"))
"""Keys of arrays that make up nearly all of a file; keys after them are not searched."""
_SPACE = " \t\r\n"


class Opening:
    """The first bytes of a file, decompressed if necessary, and their JSON structure."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def _text(self) -> str:
        # One character a byte: keys that are looked for are ASCII, and nothing is too broken to be looked at.
        return self.data.removeprefix(b"\xef\xbb\xbf").decode("latin-1").lstrip(_SPACE)

    @property
    def layout(self) -> Literal["object", "list", ""]:
        """Return the JSON layout of the file: one object (or one per line), an array, or neither."""
        return "object" if self._text.startswith("{") else "list" if self._text.startswith("[") else ""

    @cached_property
    def keys(self) -> dict[str, str]:
        """Return the keys of the file's object, or of its array's first object, with the first character of each value.

        Keys are in file order, up to invalid text, the end of the examined bytes or a key in `ARRAYS`.
        """
        text = self._text if self.layout == "object" else self._text[1:].lstrip(_SPACE)
        keys: dict[str, str] = {}
        decoder, at = JSONDecoder(), 1 if text.startswith("{") else len(text)
        try:
            while text.startswith('"', at := _skip(text, at)):
                key, at = decoder.raw_decode(text, at)
                if not text.startswith(":", at := _skip(text, at)):
                    break
                at = _skip(text, at + 1)
                keys[key] = text[at : at + 1]
                if key in ARRAYS:
                    break
                _, at = decoder.raw_decode(text, at)
                if not text.startswith(",", at := _skip(text, at)):
                    break
                at += 1
        except (JSONDecodeError, RecursionError, ValueError):
            return keys
        return keys


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
