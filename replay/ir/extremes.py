# pyright: strict
"""Finds numbers in a file that are too large to compute with: beyond 64 bits, or times beyond the age of the Earth.

JSON does not limit numbers. Without this check, computing with such numbers would fail in code far from the code that
reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

_SUSPECT = re.compile(rb"\d{19}|[eE]\+?\d{2}")
"""Matches every number that may be too large. It also matches digests and long fractions; data that contains these is
checked needlessly.
"""
_TIME = re.compile(r"(^|_)(us|ns|s)(_|$)")
MAX_INT = 1 << 64
MAX_TIME = 1e23
"""Maximum time in a file, whatever its unit."""


def extreme(data: bytes) -> str:
    """Return the path of the first extreme number in a JSON text, e.g. "$.ops[3].count". "" if there is none, or if the
    data is not JSON.
    """
    if _SUSPECT.search(data) is None:
        return ""
    try:
        waiting: list[tuple[str, bool, Any]] = [("$", False, msgspec.json.decode(data))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    while waiting:
        where, is_time, value = waiting.pop()
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            waiting += [(f"{where}.{key}", is_time or bool(_TIME.search(key)), each) for key, each in items]
        elif isinstance(value, list):
            waiting += [(f"{where}[{at}]", is_time, each) for at, each in enumerate(cast("list[Any]", value))]
        elif isinstance(value, int | float) and _is_extreme(value, is_time):
            return where
    return ""


def _is_extreme(value: float, is_time: bool) -> bool:
    return (isinstance(value, int) and abs(value) >= MAX_INT) or (is_time and not abs(value) <= MAX_TIME)
