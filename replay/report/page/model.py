# pyright: strict
"""The contents of a page on any subject, as figures and text ready to be drawn. This module does not depend on HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opreplay.replay.report.table import AnyTable
from opreplay.replay.timeline.flames import Frame


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The main ratio of the page, shown in large type, with its uncertainty band."""

    name: str
    ratio: str
    band: str = ""
    detail: str = ""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A name with one value per series; None for missing values."""

    name: str
    values_us: tuple[float | None, ...]


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped bars."""

    title: str
    what: str = "op"
    """Kind of thing that the names refer to."""
    series: tuple[str, ...]
    bars: tuple[Bar, ...]
    note: str = ""

    @property
    def longest_us(self) -> float:
        """Largest value in microseconds."""
        return max((us or 0.0 for bar in self.bars for us in bar.values_us), default=0.0)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A named node of a tree, with its children."""

    name: str
    values_us: tuple[float, ...]
    inner: tuple[Node, ...] = ()


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """Nested names, most time first."""

    title: str
    series: tuple[str, ...]
    totals_us: tuple[float, ...]
    """Total time of each series; the values of the nodes are parts of these totals."""
    roots: tuple[Node, ...]


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Two times, and the changes that lead from the first to the second."""

    title: str
    begin: tuple[str, float]
    changes: tuple[tuple[str, float], ...]
    """(op name, change in µs) pairs; a change is positive if it makes the time longer."""
    end: tuple[str, float]
    note: str = ""


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The peak rates of a device."""

    flops_per_s: dict[str, float]
    """Peak rate by dtype, in FLOP/s."""
    bytes_per_s: float

    @property
    def text(self) -> str:
        """The peaks as text: "float16, bfloat16 989 TFLOP/s, float32 67 TFLOP/s, 3.35 TB/s"."""
        dtypes: dict[float, list[str]] = {}
        for dtype, rate in self.flops_per_s.items():
            dtypes.setdefault(rate, []).append(dtype)
        rates = [f"{', '.join(names)} {rate / 1e12:,.4g} TFLOP/s" for rate, names in sorted(dtypes.items())[::-1]]
        return ", ".join([*rates, f"{self.bytes_per_s / 1e12:,.3g} TB/s"])


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one device: operations, bytes and time of a call."""

    key: str
    """Key of the op's row in the tables."""
    name: str
    detail: str
    bound: str
    time_us: float
    flops: float
    """Number of operations; 0 if unknown, and for an op that only moves data."""
    moved_bytes: float
    share: float
    """Share of the total time, which sets the size of the mark."""


class DeviceRoof(msgspec.Struct, frozen=True, kw_only=True):
    """The ops on one device, with the device's roof if it is known."""

    device: str
    roof: Roof | None
    points: tuple[Point, ...]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The ops on all devices."""

    devices: tuple[DeviceRoof, ...]
    left_out: int = 0
    """Number of ops left out because their sizes do not determine their operations or bytes."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a curve: sizes in ascending order and their values, all above 0."""

    name: str
    points: tuple[tuple[float, float], ...]
    is_limit: bool = False
    """Whether the line is a limit for the other lines; drawn dashed."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Time or another quantity over a size, both on logarithmic axes."""

    title: str
    across: str
    """Name of the size."""
    lines: tuple[Line, ...]
    unit: str = "µs"
    """Unit of the values."""
    left_out: int = 0
    """Number of lines omitted because there was no room for them."""


class OverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the recorded timeline; each value holds until the next change."""

    title: str
    unit: str
    points: tuple[tuple[float, float], ...]
    """(µs from the start of the timeline, value)."""
    note: str = ""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of each step of a trace, in time order."""

    title: str
    parts: tuple[str, ...]
    steps: tuple[tuple[str, tuple[float, ...]], ...]
    """(name, µs of each part); the name is the key of the step's row in the tables."""
    outliers: dict[str, str] = {}
    """Name of an outlier step → text above its bar."""
    note: str = ""


class Flames(msgspec.Struct, frozen=True, kw_only=True):
    """A flame graph: callers above callees, with widths proportional to time."""

    title: str
    frames: tuple[Frame, ...]
    note: str = ""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """An interval from `start_us` to `end_us` during which something ran."""

    start_us: float
    end_us: float
    kind: str
    """"kernel", "collective", "memcpy", "memset" or "host"."""
    name: str = ""
    op: str = ""
    """Op that launched the task, as the key of its rows in the tables."""
    is_critical: bool = False
    """Whether the task is on the critical path."""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a strip: a host thread or a device stream."""

    name: str
    stretches: tuple[Stretch, ...]


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one timeline, e.g. of a rank or a simulated device. Time zero is the same for all strips of a figure."""

    title: str
    lanes: tuple[Lane, ...]


Details = Callable[[Any], Sequence[tuple[str, str]]]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A table with rows that expand to show details; figures refer to the rows by their keys."""

    table: AnyTable
    key: Callable[[Any], str]
    name: Callable[[Any], str] = str
    """Function that returns the op name of a row; several rows may have the same name."""
    details: Details | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The complete contents of a page."""

    title: str
    headline: str
    """First line of the same report in the terminal: what bounds the step, or how reliable the result is."""
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
    """Tables of the page; tables without rows are not drawn."""
    notes: tuple[str, ...] = ()
    """Notes on coverage, assumptions, and what to know before trusting the numbers."""
