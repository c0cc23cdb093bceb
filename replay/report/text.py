"""How numbers and trace text are written for people: units, digits, control characters; knows no output format."""

from __future__ import annotations

import math

DASH = "–"
"""Stands for a value that is not there."""

_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
"""Microseconds in a unit of time, largest first."""


def safe(text: str) -> str:
    """Text from a trace with every character escaped that a terminal may act on or not show.

    Control characters, line ends, bidirectional marks, zero-width characters and lone surrogates become `\\x1b` and the
    like; a backslash stays, so the result is for reading, not for parsing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(ord(c)) for c in text)


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def middle(text: str, width: int) -> str:
    """`text` in at most `width` characters, the middle left out: both ends of an op's name tell something."""
    if len(text) <= width:
        return text
    if width < 3:
        return text[: max(width, 0)]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def end(text: str, width: int) -> str:
    """`text` in at most `width` characters, the end left out."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"[: max(width, 0)]


def digits(value: float, count: int = 3) -> str:
    """`value` with `count` significant digits and no exponent: 0.0123, 1.23, 12.3, 123, 1230."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = count - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1
    return f"{rounded:.{min(max(places, 0), 9)}f}"


def time_text(us: float | None) -> str:
    """Microseconds with three significant digits in the unit that suits: "0.450 µs", "12.3 µs", "1.20 ms", "3.40 s"."""
    if us is None:
        return DASH
    for size, unit in _UNITS:
        # 999.6 µs would round to four digits: it is written as 1.00 ms.
        if abs(us) >= 0.9995 * size or size == 1.0:
            return f"{digits(us / size)} {unit}"
    raise AssertionError("unreachable")


def share_text(share: float | None) -> str:
    """A share of 1 as a percentage: "97.8 %", "0.42 %", "<0.01 %"."""
    if share is None:
        return DASH
    percent = 100.0 * share
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.01:
        return "<0.01 %"
    if abs(percent) < 1:
        return f"{percent:.2f} %"
    # Something that is not all is never shown as 100 %.
    return f"{min(percent, 99.9) if percent < 100 else percent:.1f} %"


def ratio_text(value: float | None, base: float | None) -> str:
    """How many times `base` a value is: "0.42×", "1.85×", "37×"; a dash where one of them is missing or base is 0."""
    if value is None or not base:
        return DASH
    ratio = value / base
    if 0 < ratio < 0.005:
        return "<0.01×"
    return f"{ratio:.2f}×" if ratio < 10 else f"{digits(ratio, 2) if ratio < 100 else round(ratio)}×"


def plural(count: int, word: str) -> str:
    """ "1 op", "2 ops"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
