# pyright: strict
"""Repairs of the text of one broken event; owns what can be repaired, not how broken events are found (`salvage`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LINE_CONTROL = re.compile(r"[\t\n\r]")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BARE = re.compile(r"(?<=[:\[,])(\s*)([+-]?(?:nan|inf(?:inity)?))(?=\s*[,}\]])", re.IGNORECASE)
_NEXT_KEY = r'"\s*,\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|s|args)"\s*:'
_NAME = re.compile(rf'("name"\s*:\s*")(.*?)(?={_NEXT_KEY}|"\s*\}})', re.DOTALL)
_STRING_VALUE = re.compile(
    r'((?:[\[{,]\s*"[^"\n]{1,80}"\s*:\s*|[\[,]\s*)")(.*?)(?="\s*(?:,\s*["\[{0-9tfn-]|[}\]]))', re.DOTALL
)
_INNER_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)"')
_UNICODE_LOSS = "�"


def _control(text: str) -> str:
    return _CONTROL.sub(" ", text)


def _line_control(text: str) -> str:
    return _LINE_CONTROL.sub(" ", text)


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


_UTF8 = "invalid UTF-8"
_CONTROLS = "control character in a string"
STEPS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (_CONTROLS, _control),
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
    text = fragment.decode("utf-8", "replace")
    lossy = _UNICODE_LOSS in text and _UNICODE_LOSS.encode() not in fragment
    if lossy:
        yield text.encode(), (_UTF8,)
    # Line ends are white space between values, and wrong only inside strings: taken out when nothing else helps.
    for first, done in ((text, ()), (_line_control(text), (_CONTROLS,))):
        if done and first == text:
            return
        yield from _steps(first, (*done, _UTF8) if lossy else done)


def _steps(text: str, done: tuple[str, ...]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    if done:
        yield text.encode(), done
    for reason, step in STEPS:
        changed = step(text)
        if changed != text:
            text, done = changed, done if reason in done else (*done, reason)
            yield text.encode(), done
