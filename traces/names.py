# pyright: strict
"""Escape names and texts for output, and count nouns.

Escaping is needed because terminals, JSON and HTML interpret some characters, while a file name may contain any bytes
and a trace any characters. Files are opened by their real names; only output is escaped.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Surrogates: bytes of a name that are not UTF-8, as Python stores them (PEP 383), and any unpaired surrogates."""


ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Characters that a terminal interprets or does not show. They are control characters except line feeds and tabs, marks
of text direction, and zero-width characters.
"""


def escape_controls(text: str) -> str:
    r"""Return text for a terminal or a text file, with each character of `ACTED_ON` escaped, for example as `\x1b`."""
    return text if text.isprintable() else ACTED_ON.sub(lambda match: escape(match[0]), printable(text))


def escape(character: str) -> str:
    r"""Return a character as `\x1b`, `\u202e` or `\U000e0001`."""
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text: str) -> str:
    r"""Return a path, or a message that names one, with bytes that are not UTF-8 written as `\xff`."""
    return text if text.isascii() else _NO_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def file_name(path: str) -> str:
    """Return the last part of a path, in printable form."""
    return printable(PurePath(path).name)


def trace_name(path: str) -> str:
    """Return the name of a trace or plan for headlines: its file name without .json and .gz."""
    return file_name(path).removesuffix(".gz").removesuffix(".json")


def plural(count: int, noun: str) -> str:
    """Return the count with a noun: "1 op", "2 ops"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
