# pyright: strict
"""Process broken blocks event by event: keep events that decode, repair others if possible, and count the rest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from opreplay.traces.model import HOLE
from opreplay.traces.reading.blocks import ARRAY_END, SEPARATOR
from opreplay.traces.reading.repair import EVENT_KEYS, is_hole, repairs

GROUP_BYTES = 32 * 1024
"""Maximum bytes of fragments that are decoded together; if that fails, each fragment is tried alone."""
MAX_JOINED = 8
"""Maximum number of fragments that are joined if the separator occurs in a string or a nested list."""
MAX_ENDS = 16
"""Maximum number of brackets inside a broken fragment that are tried as the end of the array."""

_KEYS = b"|".join(sorted(key.encode() for key in EVENT_KEYS))
_TAIL = re.compile(rb'\s*(?:$|\}\s*(?:$|\x00)|,\s*(?:$|"(?!(?:' + _KEYS + rb')")[^"\n]{1,100}"\s*:))')
"""Text that may follow the end of the array: the end of the object or another of its keys, possibly truncated."""
GOES_ON = re.compile(rb'[^"\n]{0,200}"\s*,\s*"(?:' + _KEYS + rb')"\s*:')
"""Matches the text after a bracket if the bracket is part of an event's name and the event continues."""
_EVENT_BEGIN = re.compile(rb'\{\s*"(?:' + _KEYS + rb')"\s*:')
_DECODER = json.JSONDecoder(strict=False)
_LAST_END = re.compile(rb"\](?=\s*(?:\}|,))|(?<=\})\s*\](?=\s*$)")
_CLOSED_AGAIN = re.compile(rb"\s*\}")
"""Text after an object that contains the end of another event. The bytes before that end are missing."""
_BETWEEN = b", \t\r\n"

Decode = Callable[[bytes], "list[Any] | None"]


class Tally(msgspec.Struct):
    """Losses and repairs by reason."""

    losses: Counter[str] = msgspec.field(default_factory=Counter[str])
    repairs: Counter[str] = msgspec.field(default_factory=Counter[str])


class Salvaged(msgspec.Struct):
    """The result for one broken block; offsets are relative to its start."""

    events: list[Any] = msgspec.field(default_factory=list[Any])
    array_end: int | None = None
    """Offset after the "]" that ends the array, if it was found."""
    rest: int | None = None
    """Start of an event near the end that cannot be decoded yet, because more text may complete it."""


def salvage(text: bytes, decode: Decode, tally: Tally, *, final: bool = False) -> Salvaged:
    """Recover as many events as possible from a part of the array that does not decode as a whole.

    Stop at an event that later text might complete, and return its position as `rest`. If `final` is set, no text
    follows.
    """
    out = Salvaged()
    starts = [0, *(m.end() - 1 for m in SEPARATOR.finditer(text))]
    stops = [*(m.start() + 1 for m in SEPARATOR.finditer(text)), len(text)]
    i, n = 0, len(starts)
    while i < n and out.array_end is None:
        j = i + 1
        while j < n and stops[j] - starts[i] < GROUP_BYTES:
            j += 1
        if j > i + 1 and (got := decode(b"[" + text[starts[i] : stops[j - 1]] + b"]")) is not None:
            out.events += got
            i = j
            continue
        while i < j and out.array_end is None and out.rest is None:
            i = _fragment(text, starts, stops, i, decode, tally, out, final=final)
        if out.rest is not None:
            break
    return out


def _fragment(
    text: bytes,
    starts: list[int],
    stops: list[int],
    i: int,
    decode: Decode,
    tally: Tally,
    out: Salvaged,
    *,
    final: bool,
) -> int:
    """Decode fragment i, alone or joined with the next ones, repair it, or count it as lost; return the next index."""
    n = len(starts)
    for k in range(i + 1, min(i + 1 + MAX_JOINED, n + 1)):
        got = decode(b"[" + text[starts[i] : stops[k - 1]] + b"]")
        if got is not None:
            out.events += got
            return k
    piece = text[starts[i] : stops[i]]
    for repaired in (False, True):
        if _take_last(piece, starts[i], decode, tally, out, repaired=repaired):
            return n
    following = next((k for k in range(i + 1, min(i + MAX_JOINED, n)) if _EVENT_BEGIN.match(text, starts[k])), None)
    near_end = following is None and i + MAX_JOINED >= n
    if near_end and not final:
        out.rest = starts[i]
        return n
    if near_end and i < n - 1 and _take_last(text[starts[i] :], starts[i], decode, tally, out, repaired=True):
        return n
    joined = n if near_end else i + 1 if following is None else following
    for k in dict.fromkeys((joined, i + 1)):  # a name may hold the separator
        if _decode_repaired(text[starts[i] : stops[k - 1]], decode, tally, out):
            return k
    if _several(piece, decode, tally, out):
        if i == n - 1 and (end := _end_of_file(piece)) is not None:
            out.array_end = starts[i] + end
        return i + 1
    if i == n - 1:
        if (end := _end_of_file(piece)) is not None:
            tally.losses[_loss(piece[: end - 1])] += 1
            out.array_end = starts[i] + end
        else:
            out.rest = starts[i]
        return n
    tally.losses[_loss(piece)] += 1
    return i + 1


def _loss(piece: bytes) -> str:
    """Return the reason under which a broken event is counted as a loss."""
    return HOLE if is_hole(piece) else "broken event"


def _take_last(piece: bytes, start: int, decode: Decode, tally: Tally, out: Salvaged, *, repaired: bool) -> bool:
    """Try to read a piece as the last event before the end of the array; return False if it does not decode as such."""
    for end in islice(ARRAY_END.finditer(piece), MAX_ENDS):
        if GOES_ON.match(piece, end.end()) or (repaired and not _TAIL.match(piece, end.end())):
            continue
        if _decode_repaired(piece[: end.start() + 1], decode, tally, out, repaired=repaired):
            if end[1]:
                tally.repairs["trailing comma"] += 1
            out.array_end = start + end.end()
            return True
    return False


def _several(piece: bytes, decode: Decode, tally: Tally, out: Salvaged) -> bool:
    """Try to read a piece as several events between which a comma or bracket is damaged.

    If none of these events is complete, add and count nothing and return False.
    """
    got, found, at, joined = Salvaged(), Tally(), 0, False
    for _ in range(MAX_JOINED):
        begin = _EVENT_BEGIN.search(piece, at + 1)
        stop = len(piece) if begin is None else begin.start()
        end = at + _first_value(piece[at:stop])
        if end > at and (whole := decode(b"[" + piece[at:end] + b"]")) is not None:
            if _CLOSED_AGAIN.match(piece, end):
                joined = True
            else:
                got.events += whole
            _count_between(piece[end:stop], found, last=begin is None)
        elif not _decode_repaired(piece[at:stop].rstrip(_BETWEEN), decode, found, got):
            found.losses[_loss(piece[at:stop])] += 1
        at = stop
        if begin is None:
            break
    if not (got.events or joined) or at < len(piece):
        return False
    out.events += got.events
    tally.losses.update(found.losses)
    tally.repairs.update(found.repairs)
    return True


def _first_value(piece: bytes) -> int:
    """Return the length of the JSON object at the start of a text, or 0."""
    try:
        return _DECODER.raw_decode(piece.decode("latin-1"))[1]  # one character a byte
    except (ValueError, RecursionError):
        return 0


def _count_between(gap: bytes, tally: Tally, *, last: bool) -> None:
    """Count the damage in the text between an event and the next one.

    `last` means that a separator follows the text.
    """
    rest = gap.strip(_BETWEEN)
    if rest:
        if _CLOSED_AGAIN.match(rest):
            tally.losses[HOLE] += 1
        elif re.search(rb"\w", rest):
            tally.losses[_loss(rest)] += 1
        else:
            tally.repairs["characters between events"] += 1
    elif not last and gap.count(b",") != 1:
        tally.repairs["superfluous comma" if b"," in gap else "missing comma"] += 1


def _end_of_file(piece: bytes) -> int | None:
    """Return the offset after the "]" that ends the array, if broken events at the end of the file contain one."""
    for match in list(_LAST_END.finditer(piece))[-MAX_ENDS:]:
        if not piece[match.end() :].strip():
            return match.end()
        try:
            json.loads(b'{"":0' + piece[match.end() :].rstrip(b" \t\r\n\0"))
        except (ValueError, RecursionError):
            continue
        return match.end()
    return None


def _decode_repaired(piece: bytes, decode: Decode, tally: Tally, out: Salvaged, *, repaired: bool = True) -> bool:
    """Accept one event unchanged or, if `repaired`, accept the first of its repairs that decodes."""
    got = decode(b"[" + piece + b"]")
    if got is not None:
        out.events += got
        return True
    if not repaired:
        return False
    for fixed, reasons in repairs(piece):
        got = decode(b"[" + fixed + b"]")
        if got is not None:
            out.events += got
            tally.repairs.update(reasons)
            return True
    return False
