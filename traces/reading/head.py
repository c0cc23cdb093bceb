"""Find and confirm the start of the array of events, and read the keys before and after it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from opreplay.traces.errors import Malformed, UnknownDialect
from opreplay.traces.limits import Limits
from opreplay.traces.reading.blocks import Buffer
from opreplay.traces.reading.decoding import NOT_JSON
from opreplay.traces.reading.foreign import HINT, foreign_content, python_text
from opreplay.traces.reading.repair import repairs
from opreplay.traces.reading.salvage import Tally
from opreplay.traces.reading.source import Source

_EVENTS = re.compile(rb'"traceEvents"\s*:\s*')
_EMPTY_ARRAY = re.compile(rb"\s*\]")
_SPACE = b" \t\r\n"
_DAMAGED_EVENT = re.compile(rb'.{0,40}"(?:ph|cat|name|pid)"\s*:', re.DOTALL)
"""Start of a damaged event as the first element of an array: one of an event's keys follows within 40 bytes."""
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_APART = re.compile(rb'"\s+:|\\u0022|\\u003a', re.IGNORECASE)
"""Spellings of the end of a key that an encoder changes, or of a quote or colon that could look like a part of one."""
EXACT_DUPLICATES_BYTES = 4 << 20
"""Duplicate keys are searched only in texts of at most this many bytes."""


class Head(msgspec.Struct):
    """The start of the array of events, and the keys before it."""

    layout: str
    """"object" (traceEvents is a key) or "list" (the file is the array)."""
    keys: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    """Top-level key → raw JSON value."""
    empty: bool = False
    """Whether the array is empty; the buffer is then positioned after its "]"."""


def read_head(buffer: Buffer, limits: Limits, tally: Tally) -> Head:
    """Move the buffer to the first event. Raises Malformed, UnknownDialect or TooLarge."""
    more = True
    while more:
        more = buffer.fill(limits.metadata_bytes, "metadata_bytes", "bytes before traceEvents")
        text = buffer.text(buffer.lo, buffer.hi)
        skipped = 3 if text.startswith(b"\xef\xbb\xbf") else 0
        body = text[skipped:].lstrip(_SPACE)
        if not body:
            continue
        if body[:1] not in (b"{", b"["):
            raise no_trace(buffer.source, f"not JSON: it starts with {body[:12]!r}")
        start = buffer.lo + len(text) - len(body)
        if body[:1] == b"[":
            if len(body.lstrip(b"[" + _SPACE)) or not more:
                return _list_head(buffer, body, start)
            continue
        head = _object_head(buffer, body, start, tally)
        if head is not None:
            return head
    return _no_events(buffer, buffer.text(buffer.lo, buffer.hi), tally)


def no_trace(source: Source, otherwise: str) -> Malformed:
    """Return the error for a file that is not a trace.

    It names the program that wrote the file, if recognised; otherwise it contains the text `otherwise`.
    """
    found = foreign_content(source.opening, source.path, inflated=source.gzip)
    what, hint = found or python_text(source.opening) or (otherwise, HINT)
    return Malformed(f"{source.path} is {what}", hint=hint)


def _list_head(buffer: Buffer, body: bytes, start: int) -> Head:
    first = body[1:].lstrip(_SPACE)
    if first[:1] == b"{" or _DAMAGED_EVENT.match(first):
        buffer.lo = start + len(body) - len(first)
        return Head("list")
    if first[:1] == b"]":
        buffer.lo = start + len(body) - len(first) + 1
        return Head("list", empty=True)
    raise no_trace(buffer.source, "a JSON array, but not of events")


_MOST_REPAIRED = 1 << 20
"""The text before the array of events is repaired only if it has at most this many bytes."""
_SECOND_ARRAY = 1 << 20
"""Number of bytes after an empty traceEvents array that are searched for a second one, which replaces the empty one."""


def _object_head(buffer: Buffer, body: bytes, start: int, tally: Tally) -> Head | None:
    """Return the head if the text up to a "traceEvents": [ is valid JSON once it is closed; otherwise None."""
    for match in _EVENTS.finditer(body):
        at = match.end()
        if at == len(body):
            return None
        if body[at : at + 1] != b"[":
            if _keys_of(body[: match.start()] + b'"traceEvents":0}') is not None and not body[at:].startswith(b"["):
                raise Malformed(f"{buffer.source.path}: traceEvents is not an array", hint=HINT)
            continue
        keys = _keys_before(body[:at] + b"[]}", tally, repaired=match.start() < _MOST_REPAIRED)
        empty = _EMPTY_ARRAY.match(body, at + 1)
        if keys is None or (empty and _second_array(body, empty.end())):
            continue
        count_duplicates(body[:at] + b"[]}", tally)
        after = empty.end() if empty else at + 1
        rest = body[after:]
        buffer.lo = start + after + (0 if empty else len(rest) - len(rest.lstrip(_SPACE)))
        if not rest and not buffer.eof:
            return _after_bracket(buffer, keys)
        return Head("object", keys, empty=bool(empty))
    return None


def _keys_before(closed: bytes, tally: Tally, *, repaired: bool) -> dict[str, bytes] | None:
    """Return the keys before the array of events, given their text closed with "[]}".

    Return None if the text does not decode, or if its last key is not the one that holds the array.
    """
    decoders = (_keys_of, partial(_keys_repaired, tally=tally))
    for decoder in decoders if repaired else decoders[:1]:
        keys = decoder(closed)
        if keys is not None and keys.pop("traceEvents", None) == b"[]":
            return keys
    return None


def _second_array(body: bytes, after: int) -> bool:
    """Check whether another traceEvents follows an empty one. If a JSON object has a key twice, the last one counts."""
    match = _EVENTS.search(body, after, after + _SECOND_ARRAY)
    return match is not None and _keys_of(body[: match.end()] + b"[]}") is not None


def _after_bracket(buffer: Buffer, keys: dict[str, bytes]) -> Head:
    """Return the head for a block that ended just after the "[". Read on to see whether the array is empty."""
    while not buffer.text(buffer.lo, buffer.hi).strip(_SPACE) and buffer.fill(
        buffer.source.limits.metadata_bytes, "metadata_bytes", "white space after traceEvents"
    ):
        pass
    text = buffer.text(buffer.lo, buffer.hi)
    rest = text.lstrip(_SPACE)
    buffer.lo += len(text) - len(rest)
    if rest.startswith(b"]"):
        buffer.lo += 1
        return Head("object", keys, empty=True)
    return Head("object", keys)


def _no_events(buffer: Buffer, text: bytes, tally: Tally) -> Head:
    path = buffer.source.path
    if not text.strip(_SPACE):
        what = ", ".join(buffer.source.losses) or "nothing in it"
        raise Malformed(
            f"{path} is empty ({what})", hint="Record it again: the profiler may have ended before it wrote the file."
        )
    keys = _keys_of(text)
    if keys is None:
        raise no_trace(buffer.source, "damaged or cut off before any event")
    if (found := foreign_content(buffer.source.opening, path, inflated=buffer.source.gzip)) is not None:
        raise UnknownDialect(f"{path} is {found.what}", hint=found.hint)
    shown = ", ".join(repr(key[:30]) for key in list(keys)[:6]) or "none"
    raise UnknownDialect(f"{path} is JSON without traceEvents; its keys: {shown}", hint=HINT)


def read_tail(buffer: Buffer, layout: str, limits: Limits, tally: Tally) -> dict[str, bytes]:
    """Return the keys after the array; the buffer is positioned after its "]"."""
    while buffer.fill(limits.metadata_bytes, "metadata_bytes", "bytes after traceEvents"):
        pass
    text = buffer.text(buffer.lo, buffer.hi).strip(_SPACE + b"\0")
    if layout == "list":
        if text:
            tally.losses["data after the end of the trace"] += 1
        return {}
    if text.startswith(b"}"):
        if text[1:].strip(_SPACE):
            tally.losses["data after the end of the trace"] += 1
        return {}
    body = b"{" + text.removeprefix(b",")
    keys = _keys_of(body)
    if keys is None:
        keys = _keys_repaired(body, tally)
    if keys is None:
        return _cut_tail(body, tally)
    count_duplicates(body, tally)
    if keys.pop("traceEvents", None) is not None:
        tally.losses["duplicate key traceEvents"] += 1
    return keys


def _cut_tail(body: bytes, tally: Tally) -> dict[str, bytes]:
    """Return the keys after the array if this text is truncated or followed by other data."""
    for loss, text in _beginnings(body):
        if (keys := _keys_of(text)) is not None:
            tally.losses[loss] += 1
            keys.pop("traceEvents", None)
            return keys
    tally.losses["truncated file"] += 1
    return {}


def _beginnings(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield texts that may be a complete object at the start of a damaged one, each with the loss to count if it
    decodes.
    """
    after = "data after the end of the trace"
    try:
        _OBJECT.decode(body)
    except msgspec.DecodeError as err:
        _, trailing, rest = str(err).partition("trailing characters (byte ")
        yield after, body[: body.rfind(b"}", 0, int(rest.split(")")[0]) + 1) + 1 if trailing else 0]
    except NOT_JSON:
        pass
    yield from ((after, body[: m.end()]) for m in list(re.finditer(rb"\}", body))[:-201:-1])
    yield from (("truncated file", body[: m.start()] + b"}") for m in list(re.finditer(rb",", body))[:-201:-1])


def _keys_of(text: bytes) -> dict[str, bytes] | None:
    try:
        return {key: bytes(raw) for key, raw in _OBJECT.decode(text).items()}
    except NOT_JSON:
        return None


def _keys_repaired(text: bytes, tally: Tally) -> dict[str, bytes] | None:
    for fixed, reasons in repairs(text, None):
        if (keys := _keys_of(fixed)) is not None:
            tally.repairs.update(reasons)
            return keys
    return None


def _keeps_its_keys(text: bytes) -> bool:
    """Check quickly that decoding JSON text and encoding the result loses no key. False if this is not certain."""
    if _APART.search(text):
        return False
    try:
        again = msgspec.json.encode(msgspec.json.decode(text))
    except NOT_JSON:
        return False
    return text.count(b'":') == again.count(b'":')


def count_duplicates(text: bytes, tally: Tally) -> None:
    """Count keys that occur twice in one JSON object, anywhere in valid JSON text."""
    if len(text) > EXACT_DUPLICATES_BYTES or _keeps_its_keys(text):
        return
    seen: Counter[str] = Counter()

    def pairs(items: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in items}) != len(items):
            seen.update(f"duplicate key {key[:60]}" for key, n in Counter(key for key, _ in items).items() if n > 1)

    try:
        json.loads(text, object_pairs_hook=pairs, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return
    tally.losses.update(seen)
