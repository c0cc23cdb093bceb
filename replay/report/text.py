# pyright: strict
"""Format numbers and text from traces for people, in any output format: units, digits, control characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from opreplay.replay.ir.describe import DASH, digits, time_text
from opreplay.replay.ir.plain_json import plain_json
from opreplay.replay.results.summary import round_to_one
from opreplay.traces.names import escape, plural
from opreplay.traces.times.doubts import Doubts

__all__ = [
    "DASH",
    "cells",
    "digits",
    "end",
    "listed",
    "middle",
    "plural",
    "quotient",
    "ratio_text",
    "safe",
    "share_text",
    "shown_json",
    "time_text",
]


def safe(text: str) -> str:
    r"""Escape every character of a trace's text that a terminal may interpret or not show.

    Control characters, line ends, bidirectional marks, zero-width characters and lone surrogates become escapes such as
    `\x1b`. Backslashes in the text stay as they are, so the result is for reading, not for parsing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escape(c) for c in text)


def shown_json(value: Any) -> str:
    """Return a value as indented JSON, with control characters and bidirectional marks escaped for display in a
    terminal.

    JSON parsers get the same value.
    """
    import msgspec

    return plain_json(msgspec.json.format(msgspec.json.encode(value), indent=2)).decode() + "\n"


def cells(text: str) -> int:
    """Return the number of terminal columns that `text` takes; wide characters take two."""
    return len(text) if text.isascii() else cell_len(text)


def _fitting(text: str, width: int) -> str:
    """Return the longest prefix of `text` that fits in `width` columns."""
    if text.isascii():
        return text[: max(width, 0)]
    taken = 0
    for place, char in enumerate(text):
        taken += cell_len(char)
        if taken > width:
            return text[:place]
    return text


def middle(text: str, width: int) -> str:
    """Shorten `text` to at most `width` terminal columns by omitting the middle.

    The middle is omitted because both ends of an op's name are informative.
    """
    if cells(text) <= width:
        return text
    if width < 3:
        return _fitting(text, width)
    tail = (width - 1) // 2
    return f"{_fitting(text, width - 1 - tail)}…{_fitting(text[::-1], tail)[::-1]}"


def end(text: str, width: int) -> str:
    """Shorten `text` to at most `width` terminal columns by omitting the end."""
    return text if cells(text) <= width else _fitting(text, width - 1) + "…"[: max(width, 0)]


def share_text(share: float | None) -> str:
    """Format a share (1 is all) as a percentage: "97.8 %", "0.42 %", "<0.01 %"."""
    if share is None:
        return DASH
    percent = 100.0 * round_to_one(share)
    if percent == 0:
        return "0 %"
    if abs(percent) < 0.01:
        return "<0.01 %"
    if abs(percent) < 1:
        return f"{percent:.2f} %"
    # Something that is not all is never shown as 100 %.
    return f"{min(percent, 99.9) if percent < 100 else percent:.1f} %"


def quotient(value: float | None, base: float | None) -> float | None:
    """Return `value` divided by `base`; None if either is missing or `base` is 0."""
    return value / base if value is not None and base else None


def ratio_text(value: float | None, base: float | None) -> str:
    """Format `value` divided by `base`: "0.42×", "1.85×", "37×"; a dash if either is missing or `base` is 0."""
    ratio = quotient(value, base)
    if ratio is None:
        return DASH
    if 0 < ratio < 0.005:
        return "<0.01×"
    return f"{ratio:.2f}×" if ratio < 10 else f"{digits(ratio, 2) if ratio < 100 else round(ratio)}×"


def lacking_text(calls: int, up_to: str = "") -> str:
    """Return a note on calls missing from a time: "excluding 2 calls without a prediction"."""
    return f"excluding {up_to}{plural(calls, 'call')} without a prediction"


def listed(names: Sequence[str], limit: int, noun: str = "") -> str:
    """Return the first `limit` names and how many follow: "a, b and 3 more", or "3 ops" with `noun` "op"."""
    rest = len(names) - limit
    more = plural(rest, noun) if noun else f"{rest:,} more"
    return ", ".join(names[:limit]) + (f" and {more}" if rest > 0 else "")


def doubt_lines(doubts: Doubts) -> list[str]:
    """Return the reasons to doubt the device times of a trace, one line each."""
    lines: list[str] = []
    if doubts.clock_offset_us:
        lines.append(f"clocks of host and device differ by at least {time_text(doubts.clock_offset_us)}")
    if doubts.impossible:
        kinds = ", ".join(
            f"{fault.kind} ({fault.kernels:,} = {100 * fault.share:.1f} % of device time)"
            for fault in doubts.impossible
        )
        lines.append(f"impossible kernel times: {kinds}")
    if doubts.zero_durations:
        lines.append(f"{plural(doubts.zero_durations, 'kernel')} with duration 0, which is not a measured time")
    if doubts.collided_share:
        lines.append(f"ids collide: {share_text(doubts.collided_share)} of the device time cannot be assigned to an op")
    if doubts.displaced:
        starts = "starts" if doubts.displaced == 1 else "start up to"
        by = time_text(doubts.displaced_by_us)
        lines.append(f"{plural(doubts.displaced, 'kernel')} {starts} {by} before the launch of the same id")
    if doubts.shared_ids:
        lines.append(
            f"{plural(doubts.shared_ids, 'device event')} with a correlation id shared by many launches: ids do not "
            "show which launch started which work"
        )
    if doubts.zero_ops:
        lines.append(f"{plural(doubts.zero_ops, 'host op')} with duration 0: host times are not recorded")
    if doubts.kernel_us:
        lines.append(f"half of the kernels take {_at_median(doubts.kernel_us)}: times are probably not in microseconds")
    if doubts.view_us:
        lines.append(
            f"half of the ops that make views take {_at_median(doubts.view_us)}: times are probably not in microseconds"
        )
    if doubts.holes:
        lines.append("bytes of the file are missing or overwritten: events lost there cannot be counted")
    return lines


def _at_median(us: float) -> str:
    return f"{time_text(us)} or {'more' if us > 1e3 else 'less'}"


def coarse_text(unit_us: float) -> str:
    """Return a note that recorded durations are too coarse to be kernel timings."""
    return (
        f"all device durations (except from a kernel table) are multiples of {time_text(unit_us)}: rounded values or "
        "placeholders, not kernel timings; shares, rates and ratios to recorded times mean little"
    )


def fusing(fused: bool | None, unfused: Sequence[str] = ()) -> str:
    """Return the part of a title that says whether the kernels of a captured step are fused.

    If they are, it also names the parts that are not fused. Return "" for a step of the user's own code.
    """
    if fused is None:
        return ""
    if not fused:
        return ", not fused"
    return ", fused" + (f"\nexcept {listed(unfused, len(unfused))}" if unfused else "")
