# pyright: strict
"""Broken blocks, event by event: what decodes is kept, what can be repaired is, the rest is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from opreplay.traces.reading.blocks import ARRAY_END, SEPARATOR
from opreplay.traces.reading.repair import repairs

GROUP_BYTES = 32 * 1024
"""Fragments decoded together before they are tried one by one."""
MAX_JOINED = 8
"""Fragments joined when a string or a nested list contains the separator."""
MAX_ENDS = 16
"""Places inside one broken fragment tried as the end of the array."""

Decode = Callable[[bytes], "list[Any] | None"]


@dataclass(slots=True)
class Tally:
    """Losses and repairs by reason."""

    losses: Counter[str] = field(default_factory=Counter[str])
    repairs: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class Salvaged:
    """What one broken block gave; offsets count from its start."""

    events: list[Any] = field(default_factory=list[Any])
    array_end: int | None = None
    """After the "]" that ends the array, where that was found."""
    rest: int | None = None
    """Start of an event near the end that does not decode: more text may complete it."""


def salvage(text: bytes, decode: Decode, tally: Tally, *, final: bool = False) -> Salvaged:
    """All that can be had of a part of the array that does not decode as a whole.

    Unless `final`, it stops at an event that text beyond the end might complete, and says where (`rest`).
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
    """Decode, join, repair or give up on fragment i; the index of the next one."""
    n = len(starts)
    for k in range(i + 1, min(i + 1 + MAX_JOINED, n + 1)):
        got = decode(b"[" + text[starts[i] : stops[k - 1]] + b"]")
        if got is not None:
            out.events += got
            return k
    piece = text[starts[i] : stops[i]]
    for end in islice(ARRAY_END.finditer(piece), MAX_ENDS):
        if _decode_repaired(piece[: end.start() + 1], decode, tally, out):
            if end[1]:
                tally.repairs["trailing comma"] += 1
            out.array_end = starts[i] + end.end()
            return n
    if _decode_repaired(piece, decode, tally, out):
        return i + 1
    if i == n - 1 or (not final and i + MAX_JOINED >= n):
        out.rest = starts[i]
        return n
    tally.losses["broken event"] += 1
    return i + 1


def _decode_repaired(piece: bytes, decode: Decode, tally: Tally, out: Salvaged) -> bool:
    got = decode(b"[" + piece + b"]")
    if got is not None:
        out.events += got
        return True
    for fixed, reasons in repairs(piece):
        got = decode(b"[" + fixed + b"]")
        if got is not None:
            out.events += got
            tally.repairs.update(reasons)
            return True
    return False
