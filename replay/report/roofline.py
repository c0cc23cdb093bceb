# pyright: strict
"""Roofline table of a trace, or of a run's ops, as terminal text, JSON and CSV. HTML pages use the same columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.ops.recorded.roofline import Roofline, RooflineRow, rated
from opreplay.replay.ops.recorded.sizes import CallWork
from opreplay.replay.report.table import COUNT, SHARE, TIME, Column, Table, Unit, terminal
from opreplay.replay.report.text import DASH, doubt_lines, listed, plural, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.results.records import OpResult
from opreplay.traces.sums import shares, summed
from opreplay.traces.times.doubts import Doubts
from opreplay.traces.times.peaks import TF32, Peak, peak_of

_OfRow = Column[RooflineRow]
LEAST_COVERED = 0.5
"""The first line states the lost time only if the share of the peak is known for at least this share of the time."""
LEAST_UNKNOWN = 0.05
"""If the share of the peak is unknown for at least this share of the time, the first line says so."""
NOTES_SHOWN = 5
"""Maximum number of assumptions listed below the table in a terminal."""
NO_PEAK = "the peak of the recorded device is unknown: give the device with --peak NAME (e.g. MI300X)"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def amount_text(value: float | None) -> str:
    """Format a number of operations or bytes with a decimal prefix: 42670000000 → "42.7 G"."""
    if value is None:
        return DASH
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if value >= size), _PREFIXES[-1])
    return f"{value / size:.3g} {prefix}".rstrip()


def rate_text(value: float | None) -> str:
    """Format a rate with three significant digits, without an exponent for large rates."""
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


AMOUNT = Unit(amount_text)
RATE = Unit(rate_text)
LOST = _OfRow("lost", lambda row: row.lost_us, TIME, key="lost_us")
NUMBERS = (
    LOST,
    _OfRow("time", lambda row: row.time_us, TIME, key="time_us"),
    _OfRow("share", lambda row: row.share, SHARE, drop=6),
    _OfRow("calls", lambda row: row.calls, COUNT, drop=7),
    _OfRow("FLOPs", lambda row: row.flops, AMOUNT, key="flops", drop=5),
    _OfRow("bytes", lambda row: row.bytes, AMOUNT, drop=4),
    _OfRow("TFLOP/s", lambda row: row.tflops_per_s, RATE, key="tflops_per_s", drop=2),
    _OfRow("GB/s", lambda row: row.gb_per_s, RATE, key="gb_per_s", drop=3),
    _OfRow("of peak", lambda row: row.peak_share, SHARE, key="peak_share"),
    _OfRow("bound", lambda row: row.bound or None, drop=1),
)
"""Numeric columns; times and amounts are totals of all calls."""
NAME = _OfRow("op", lambda row: row.name, key="name", form="code")
INPUTS = _OfRow("inputs", lambda row: row.inputs, form="code")
NOTE = _OfRow("note", lambda row: row.why or row.assumed, key="note")


def _detail(row: RooflineRow) -> str:
    """Return the shapes of a row, or why its operations or bytes are unknown."""
    return row.inputs if row.flops is not None and row.bytes is not None else row.why or row.inputs


def _unseen(roofline: Roofline, row: RooflineRow) -> str:
    """Return a note on what the columns do not show: the row's assumptions, or why its share of the peak is missing."""
    has_work = row.flops is not None and row.bytes is not None
    told = roofline.peak is None or roofline.doubts != Doubts()
    return row.assumed or (row.why if has_work and not told else "")


_OP = _OfRow("op", lambda row: row.name, detail=_detail)
_IN_FILES = (
    _OfRow("median", lambda row: row.median_us, TIME, key="median_us"),
    _OfRow("peak_kind", lambda row: row.peak_kind),
    _OfRow("kind", lambda row: row.kind),
    _OfRow("why", lambda row: row.why),
    _OfRow("assumed", lambda row: row.assumed),
)


def view(roofline: Roofline, top: int | None, shown: int) -> View:
    """Return the roofline in every output format.

    Every format has the first `top` rows. If `top` is None, a terminal shows `shown` rows, and other formats have all.
    """
    return View(
        lines=[head_line(roofline)],
        render=lambda width: render(roofline, top or shown, width=width),
        facts=lambda: facts(roofline, top),
        table=lambda: file_table(roofline, top),
    )


def facts(roofline: Roofline, top: int | None) -> dict[str, Any]:
    """Return the roofline as JSON-safe values, with its first `top` rows and the number of all rows in `all_rows`."""
    return {
        "by": "op",
        **msgspec.to_builtins(roofline),
        "rows": msgspec.to_builtins(roofline.rows[:top]),
        "all_rows": len(roofline.rows),
        "complete_share": roofline.complete_share,
    }


def file_table(roofline: Roofline, top: int | None = None) -> Table[RooflineRow]:
    """Return the first `top` rows with all columns; times in microseconds, shares from 0 to 1."""
    return Table("Rows", (NAME, INPUTS, *NUMBERS, *_IN_FILES), roofline.rows[:top])


def page_table(roofline: Roofline) -> Table[RooflineRow]:
    """Return the roofline table with the columns of an HTML page."""
    op = _OfRow("op", lambda row: row.name, key="op", detail=lambda row: row.inputs)
    note = [NOTE] if any(row.why or row.assumed for row in roofline.rows) else []
    return Table("Roofline", (op, *_with_values(roofline.rows), *note), roofline.rows)


def _with_values(rows: Sequence[RooflineRow]) -> list[_OfRow]:
    """Return the numeric columns that have a value in some row."""
    return [column for column in NUMBERS if any(column.value(row) is not None for row in rows)]


def head_line(roofline: Roofline) -> str:
    """Return the main result: how much time is lost below the roof, and where most of it is lost."""
    total = f"{time_text(roofline.total_us)} of {roofline.clock} time"
    if not roofline.rows:
        return f"{total}: no rows"
    if doubts := doubt_lines(roofline.doubts):
        return f"{total} by op and shape, without rates: {' and '.join(doubts)}"
    known = [row for row in roofline.rows if row.lost_us is not None]
    if roofline.peak is None or not known:
        above = any(row.peak_share is not None for row in roofline.rows)
        return f"{total} by op and shape; share of the peak {'higher than possible' if above else 'unknown'}"
    covered = sum(row.share for row in known)
    lost_us = sum(row.lost_us or 0.0 for row in known)
    most, device = known[0], roofline.peak.device
    where = f"{time_text(most.lost_us)} in {safe(most.name)} ({share_text(most.peak_share)} of peak)"
    if covered < LEAST_COVERED:
        return f"only {share_text(covered)} of {total} has a known share of the peak of {device}; largest loss: {where}"
    unknown = f"; unknown for {share_text(1.0 - covered)} of the device time" if covered <= 1.0 - LEAST_UNKNOWN else ""
    return f"{time_text(lost_us)} of {total} lost below the roof of {device}; largest loss: {where}{unknown}"


def render(roofline: Roofline, top: int | None, *, width: int) -> RenderableType:
    """Render a table with the first `top` rows, the sum of the other rows, and the assumptions behind the numbers."""
    shown = roofline.rows[:top]
    parts: list[RenderableType] = []
    if shown:
        parts += terminal(Table("Rows", (*_with_values(shown), _OP), shown), width)[1:]
    below: list[str] = []
    if rest := roofline.rows[len(shown) :]:
        more = share_text(sum(row.share for row in rest))
        below.append(f"… {plural(len(rest), 'more row')}, {more} of the time; for more, use --top N")
    noted = {f"! {safe(row.name)}: {safe(note)}": None for row in shown if (note := _unseen(roofline, row))}
    below += [*noted][:NOTES_SHOWN]
    below.append(peak_line(roofline))
    below.append(safe(roofline.note))
    parts += [Text(line, style="dim", overflow="fold") for line in below if line]
    return Group(*parts)


def peak_line(roofline: Roofline) -> str:
    """Return the peak rates of the recorded device, and the share of the time for which all numbers are known."""
    peak = roofline.peak
    if peak is None:
        return NO_PEAK if roofline.clock == "device" and not roofline.note else ""
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in peak.tflops.items():
        by_rate.setdefault(rate, []).append(dtype)
    rates = listed([f"{'/'.join(dtypes)} {rate:,g}" for rate, dtypes in by_rate.items()], len(by_rate))
    tf32 = "; tf32 where kernel names say so" if TF32 in peak.tflops else ""
    return (
        f"Work and rates are complete for {share_text(roofline.complete_share)} of the time. Peak of {peak.device}: "
        f"{rates} TFLOP/s, "
        f"{peak.gb_per_s:,g} GB/s (datasheet, dense{tf32}). FLOPs of ops without products: 1 per element (norms: 4)."
    )


def of_results(
    results: Iterable[OpResult], device: str | None, time_of: Callable[[OpResult], float | None]
) -> Roofline:
    """Return the roofline of a run's ops at their recorded times."""
    peak: Peak | None = None if device is None else peak_of((device,))
    timed = [(result, us * result.count) for result in results if (us := time_of(result))]
    part = shares(summed((result.id, us) for result, us in timed))
    rows = [_row_of(result, us, part.get(result.id, 0.0), peak) for result, us in timed]
    ranked = tuple(sorted(rows, key=lambda row: (-row.rank_us, -row.time_us, row.name)))
    return Roofline(clock="device", total_us=sum(us for _, us in timed), rows=ranked, peak=peak)


def _row_of(result: OpResult, time_us: float, share: float, peak: Peak | None) -> RooflineRow:
    row = RooflineRow(
        id=result.id,
        name=result.name,
        inputs=result.inputs,
        calls=result.count,
        time_us=time_us,
        share=share,
        kind=next(iter(result.kernel_classes), ""),
    )
    product = result.product
    if product is None:
        return msgspec.structs.replace(row, why="its work is unknown")
    n = result.count
    work = CallWork(
        flops=None if product.flops is None else n * product.flops,
        bytes=None if product.moved_bytes is None else float(n * product.moved_bytes),
        dtype=product.dtype,
        why=product.why,
        assumed=product.assumed,
    )
    return rated(row, work, peak, call_bytes=product.moved_bytes)
