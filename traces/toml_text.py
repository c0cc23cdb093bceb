# pyright: strict
"""Parse TOML from an untrusted file within limits; all failures raise ValueError."""

from __future__ import annotations

import re
import sys
from typing import Any, cast

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

MOST_DEPTH = 32
"""Maximum nesting depth of tables and lists, and maximum parts of a dotted key. Parsing time is quadratic in them."""
MOST_BITS = 64
"""Maximum bits of a whole number: longer ones cannot be printed in linear time, and no file needs them."""
_STRING = re.compile(rb"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
_NO_KEY = re.compile(rb"[^\w.\- \t]+")


def parse_toml(text: bytes) -> dict[str, Any]:
    """Parse a TOML text into a table.

    Raises ValueError for invalid TOML, keys or values nested too deeply, and numbers that are too long.
    """
    if any(part.count(b".") >= MOST_DEPTH for part in _NO_KEY.split(_STRING.sub(b"", text))):
        raise ValueError(f"a key has more than {MOST_DEPTH} parts")
    try:
        table: dict[str, Any] = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(str(error)[:200]) from None
    except ValueError:  # Python refuses to parse numbers of thousands of digits
        raise ValueError(f"a whole number has more than {MOST_BITS} bits") from None
    _check(table, 0)
    return table


def _check(value: object, depth: int) -> None:
    """Raise ValueError for a value nested too deeply or a number that is too long."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"a whole number has more than {MOST_BITS} bits")
    if isinstance(value, dict | list):
        if depth > MOST_DEPTH:
            raise ValueError(f"values are nested more than {MOST_DEPTH} levels deep")
        items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        for item in items:
            _check(item, depth + 1)
