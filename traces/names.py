# pyright: strict
"""Names of files as output has them: a file system takes any bytes, and JSON, tables and pages take text alone.

Files are opened by the name they have; only what is written of them goes through here.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8, as Python keeps them in a name (PEP 383), and other halves of a pair."""


def printable(text: str) -> str:
    r"""A path, or a message that names one, with `\xff` for each byte that is not UTF-8; other text as it is."""
    return text if text.isascii() else _NO_TEXT.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def file_name(path: str) -> str:
    """The last part of a path, printable."""
    return printable(PurePath(path).name)
