# pyright: strict
"""What a page holds, whatever it is about: figures and text, ready to be drawn; knows no HTML."""

from __future__ import annotations

import msgspec

from opreplay.replay.report.table import AnyTable


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One name with a value for each series; None where there is none."""

    name: str
    values_us: tuple[float | None, ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Values beside each other, largest first."""

    title: str
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    note: str = ""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One op on a roofline, of one call: its predicted time and the parts that arithmetic and memory would need."""

    name: str
    detail: str
    bound: str
    time_us: float
    arithmetic_us: float
    memory_us: float
    share: float
    """Of all time, which sets the size of the mark."""


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """All ops on one device."""

    device: str
    points: tuple[Point, ...]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a curve: sizes and microseconds, both above 0, sizes ascending."""

    name: str
    points: tuple[tuple[float, float], ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Times over a size, both in powers."""

    title: str
    across: str
    """The size's name."""
    lines: tuple[Line, ...]
    left_out: int = 0
    """Lines that there was no room for."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Something that ran from `start_us` to `end_us`."""

    start_us: float
    end_us: float
    kind: str
    """"kernel", "collective", "memcpy", "memset" or "host"."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a strip."""

    name: str
    stretches: tuple[Stretch, ...]


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Timelines above each other, from one zero."""

    title: str
    until_us: float
    lanes: tuple[Lane, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    title: str
    headline: str
    """The first line of the same report in the terminal: coverage, or how sure it is."""
    command: str
    facts: tuple[tuple[str, str], ...] = ()
    strips: tuple[Strip, ...] = ()
    bars: tuple[Bars, ...] = ()
    rooflines: tuple[Roofline, ...] = ()
    curves: tuple[Curve, ...] = ()
    tables: tuple[AnyTable, ...] = ()
    """Those without rows are not drawn."""
    notes: tuple[str, ...] = ()
    """Coverage, assumptions, what to know before trusting the numbers."""
