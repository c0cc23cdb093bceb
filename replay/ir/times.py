"""How times are written for people: three digits and the unit that suits; knows no output format."""

from __future__ import annotations

import math

DASH = "–"
"""Stands for a value that is not there."""

_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
"""Microseconds in a unit of time, largest first."""


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
