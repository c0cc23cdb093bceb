# pyright: strict
"""Repairs one damaged JSON value: unescaped quotes, bad escapes, missing commas, bare nan and inf.

Owns the repair of text only; what was repaired is returned as reasons for the caller to count. It never guesses at
missing ends: a value that was cut off stays undecodable.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r'[{}\[\]:,"]|[^\s{}\[\]:,"]+')
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_KEY_ENDS = re.compile(r"\s*:")
_VALUE_ENDS = {
    "{": re.compile(r'\s*(?:\}|,\s*"|"\w+"\s*:|$)'),
    "[": re.compile(r'\s*(?:\]|,\s*["{\[\dtfnNIi-])'),
    "": re.compile(r"\s*$"),
}
"""What may follow the closing quote of a string value, by the container that holds it."""
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9A-Fa-f]{4})|\\\\')
_CONTROL = re.compile(r"[\x00-\x1f]")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)


def repair_json(damaged: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The text with its damage repaired as far as it can be told, and what was repaired; linear in its length."""
    reasons: dict[str, None] = {}
    text = damaged.decode(errors="replace")
    if text.encode() != damaged:
        reasons["invalid UTF-8"] = None
    out: list[str] = []
    containers: list[str] = []
    position, previous = 0, ""
    while (match := _TOKEN.search(text, position)) is not None:
        token, position = match.group(), match.end()
        if previous == "value" and token not in "}],:":
            out.append(",")
            reasons["missing comma"] = None
            previous = ","
        if token == '"':
            container = "".join(containers[-1:])
            is_key = container == "{" and previous in ("{", ",")
            literal, position = _string(text, position, _KEY_ENDS if is_key else _VALUE_ENDS[container], reasons)
            out.append(literal)
            previous = "key" if is_key else "value"
            continue
        if _NOT_FINITE.fullmatch(token):
            token = f'"{token}"'
            reasons["NaN or infinity"] = None
        out.append(token)
        previous = _after(token, containers)
    return "".join(out).encode(), tuple(reasons)


def _after(token: str, containers: list[str]) -> str:
    """Keep the stack of open containers; what kind of token this was."""
    if token in "{[":
        containers.append(token)
        return token
    if token in "}]":
        if containers:
            containers.pop()
        return "value"
    return token if token in ",:" else "value"


def _string(text: str, start: int, ends: re.Pattern[str], reasons: dict[str, None]) -> tuple[str, int]:
    """The string that starts behind an opening quote, as a sound literal, and where the text goes on."""
    position, quotes_inside = start, False
    while True:
        match = _QUOTE.search(text, position)
        if match is None:
            return text[start - 1 :], len(text)
        position = match.end()
        if ends.match(text, position):
            break
        quotes_inside = True
    body = text[start : position - 1]
    if quotes_inside:
        body = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', body)
        reasons["unescaped quote"] = None
    sound = _BAD_ESCAPE.sub(lambda found: "\\\\", body)
    if sound != body:
        reasons["bad escape"] = None
    body = _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", sound)
    if body != sound:
        reasons["control character"] = None
    return f'"{body}"', position
