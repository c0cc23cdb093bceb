# pyright: strict
"""What a page holds, whatever it is about: figures and text, ready to be drawn; knows no HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opreplay.replay.report.table import AnyTable
from opreplay.replay.timeline.flames import Frame


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio that the page is about, in large type, with its band."""

    name: str
    ratio: str
    band: str = ""
    detail: str = ""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One name with a value for each series; None where there is none."""

    name: str
    values_us: tuple[float | None, ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Values beside each other."""

    title: str
    what: str = "op"
    """What a name is."""
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def longest_us(self) -> float:
        """The largest of all values."""
        return max((us or 0.0 for bar in self.bars for us in bar.values_us), default=0.0)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A name of a tree with what lies inside it."""

    name: str
    values_us: tuple[float, ...]
    inner: tuple[Node, ...] = ()


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Names inside of each other, that with most time first."""

    title: str
    series: tuple[str, ...]
    totals_us: tuple[float, ...]
    """What the values are parts of."""
    roots: tuple[Node, ...]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """What leads from one time to another."""

    title: str
    begin: tuple[str, float]
    changes: tuple[tuple[str, float], ...]
    """Names of ops, and µs more or less."""
    end: tuple[str, float]
    note: str = ""


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """What a device can do at most."""

    flops_per_s: dict[str, float]
    """By dtype."""
    bytes_per_s: float

    @property
    def text(self) -> str:
        """ "float16, bfloat16 989 TFLOP/s, float32 67 TFLOP/s, 3.35 TB/s"."""
        dtypes: dict[float, list[str]] = {}
        for dtype, rate in self.flops_per_s.items():
            dtypes.setdefault(rate, []).append(dtype)
        rates = [f"{', '.join(names)} {rate / 1e12:,.3g} TFLOP/s" for rate, names in sorted(dtypes.items())[::-1]]
        return ", ".join([*rates, f"{self.bytes_per_s / 1e12:,.3g} TB/s"])


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one device: operations and bytes of a call, and what it takes."""

    key: str
    """Of its row in the tables."""
    name: str
    detail: str
    bound: str
    time_us: float
    flops: float
    """0 of an op that only moves data, as far as is known."""
    moved_bytes: float
    share: float
    """Of all time, which sets the size of the mark."""


class DeviceRoof(msgspec.Struct, frozen=True, kw_only=True):
    """The ops on one device below its roof, where that is known."""

    device: str
    roof: Roof | None
    points: tuple[Point, ...]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """Ops on all devices."""

    devices: tuple[DeviceRoof, ...]
    left_out: int = 0
    """Ops whose sizes do not tell how much they compute or move."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a curve: sizes and microseconds, both above 0, sizes ascending."""

    name: str
    points: tuple[tuple[float, float], ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Times over a size, both logarithmic."""

    title: str
    across: str
    """The size's name."""
    lines: tuple[Line, ...]
    left_out: int = 0
    """Lines that there was no room for."""


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the time of the recorded timeline, which holds until it changes."""

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]
    """(µs from the timeline's zero, value)."""
    note: str = ""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What each step of a trace consists of, the steps in the order of time."""

    title: str
    parts: tuple[str, ...]
    steps: tuple[tuple[str, tuple[float, ...]], ...]
    """(name, µs of each part); the name is the key of a row in the tables."""
    outliers: dict[str, str] = {}
    """Name of a step → what stands above it."""
    note: str = ""


class Flames(msgspec.Struct, frozen=True, kw_only=True):
    """Callers above what they call, as wide as they take long."""

    title: str
    frames: tuple[Frame, ...]
    note: str = ""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Something that ran from `start_us` to `end_us`."""

    start_us: float
    end_us: float
    kind: str
    """"kernel", "collective", "memcpy", "memset" or "host"."""
    name: str = ""
    op: str = ""
    """Of the op that launched it; the key of rows in the tables."""
    is_critical: bool = False
    """Whether it is on the critical path."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a strip."""

    name: str
    stretches: tuple[Stretch, ...]


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Lanes of one timeline, from the zero of all."""

    title: str
    lanes: tuple[Lane, ...]


Details = Callable[[Any], Sequence[tuple[str, str]]]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows have a key, by which figures find them, and open to show more."""

    table: AnyTable
    key: Callable[[Any], str]
    name: Callable[[Any], str] = str
    """Of the op, where several rows have one."""
    details: Details | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    title: str
    headline: str
    """The first line of the same report in the terminal: what bounds the step, or how sure it is."""
    command: str
    answers: tuple[Answer, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    bars: tuple[Bars, ...] = ()
    trees: tuple[Tree, ...] = ()
    waterfalls: tuple[Waterfall, ...] = ()
    strips: tuple[Strip, ...] = ()
    over_time: tuple[OverTime, ...] = ()
    steps: Steps | None = None
    flames: Flames | None = None
    roofline: Roofline | None = None
    curves: tuple[Curve, ...] = ()
    tables: tuple[AnyTable | Opened, ...] = ()
    """Those without rows are not drawn."""
    notes: tuple[str, ...] = ()
    """Coverage, assumptions, what to know before trusting the numbers."""
