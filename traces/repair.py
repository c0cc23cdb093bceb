"""Repairs of the text of one broken event; owns what can be repaired, not how broken events are found (`salvage`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BARE = re.compile(r"(?<=[:\[,])(\s*)([+-]?(?:nan|inf(?:inity)?))(?=\s*[,}\]])", re.IGNORECASE)
_NEXT_KEY = r'"\s*,\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:'
_NAME = re.compile(rf'("name"\s*:\s*")(.*?)(?={_NEXT_KEY}|"\s*\}})', re.DOTALL)
_STRING_VALUE = re.compile(
    r'((?:[\[{,]\s*"[^"\n]{1,80}"\s*:\s*|[\[,]\s*)")(.*?)(?="\s*(?:,\s*["\[{0-9tfn-]|[}\]]))', re.DOTALL
)
_INNER_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)"')
_UNICODE_LOSS = "�"


def _utf8(text: str) -> str:
    return text  # decoding with replacement, in `repairs`, has done it


def _control(text: str) -> str:
    return _CONTROL.sub(b" ", text.encode()).decode()


def _non_finite(text: str) -> str:
    return _BARE.sub(r'\1"\2"', text)


def _backslash(text: str) -> str:
    return _ESCAPE.sub(lambda m: m[0] if len(m[0]) > 1 else "\\\\", text)


def _escape_inner(match: re.Match[str]) -> str:
    return match[1] + _INNER_QUOTE.sub(r'\1\\"', match[2])


def _name_quote(text: str) -> str:
    return _NAME.sub(_escape_inner, text, count=1)


def _any_quote(text: str) -> str:
    return _STRING_VALUE.sub(_escape_inner, text)


STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("invalid UTF-8", _utf8),
    ("control character in a string", _control),
    ("NaN or infinity", _non_finite),
    ("unescaped backslash", _backslash),
    ("unescaped quote", _name_quote),
    ("unescaped quote", _any_quote),
)
"""In the order tried; each builds on those before."""

MAX_BYTES = 1 << 20
"""Larger broken events are dropped: the quote repairs are not linear."""


def repairs(fragment: bytes) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Successively more repaired texts of one event, each with the reasons of all that was changed."""
    if len(fragment) > MAX_BYTES:
        return
    done: tuple[str, ...] = ()
    text = fragment.decode("utf-8", "replace")
    if _UNICODE_LOSS in text and _UNICODE_LOSS.encode() not in fragment:
        done = (STEPS[0][0],)
        yield text.encode(), done
    for reason, step in STEPS[1:]:
        changed = step(text)
        if changed != text:
            text, done = changed, (*done, reason) if reason not in done else done
            yield text.encode(), done
