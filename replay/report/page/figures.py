# pyright: strict
"""Geometry of a page's figures: values → positions and paths of an SVG; no markup, no text from a trace."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from opreplay.replay.ir.describe import time_text
from opreplay.replay.report.page.model import Curve, Roofline, Strip

WIDTH, HEIGHT, MARGIN = 640.0, 300.0, 44.0
_DECADES_X, _DECADES_Y = (-3.0, 2.0), (-3.0, 0.1)
_PIXELS = 1200
"""Of a strip's width: what is narrower is drawn as one with its neighbours."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a roofline."""

    x: float
    y: float
    r: float
    bound: str
    label: str


class Ticks(msgspec.Struct, frozen=True, kw_only=True):
    """Positions and texts along an axis."""

    at: float
    text: str


class RooflineFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One roofline, drawn."""

    device: str
    marks: tuple[Mark, ...]
    roof: str
    x_ticks: tuple[Ticks, ...]
    y_ticks: tuple[Ticks, ...]
    left_out: int
    """Ops that neither compute nor move: views, launches alone."""


def roofline(model: Roofline) -> RooflineFigure:
    """Arithmetic over memory time (1: the ridge) against the share of the device's arithmetic peak that is reached.

    The roof is min(1, x): the roofline model in units of the device's own peaks (Williams, Waterman, Patterson 2009).
    """

    def x_of(value: float) -> float:
        return MARGIN + _share_of_decades(value, *_DECADES_X) * (WIDTH - MARGIN - 12)

    def y_of(value: float) -> float:
        return HEIGHT - MARGIN - _share_of_decades(value, *_DECADES_Y) * (HEIGHT - MARGIN - 12)

    marks: list[Mark] = []
    left_out = 0
    for point in model.points:
        if point.time_us <= 0.0 or point.arithmetic_us + point.memory_us <= 0.0:
            left_out += 1
            continue
        ratio = point.arithmetic_us / point.memory_us if point.memory_us > 0 else 1e9
        reached = point.arithmetic_us / point.time_us
        radius = 2.0 + 14.0 * math.sqrt(min(max(point.share, 0.0), 1.0))
        marks.append(
            Mark(
                x=round(x_of(ratio), 1),
                y=round(y_of(reached), 1),
                r=round(radius, 1),
                bound=point.bound,
                label=f"{point.name} {point.detail}".strip(),
            )
        )
    corners = [(10 ** _DECADES_X[0], 10 ** _DECADES_X[0]), (1.0, 1.0), (10 ** _DECADES_X[1], 1.0)]
    roof = "M" + " L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in corners)
    return RooflineFigure(
        device=model.device,
        marks=tuple(sorted(marks, key=lambda mark: -mark.r)),
        roof=roof,
        left_out=left_out,
        x_ticks=tuple(Ticks(at=round(x_of(10.0**d), 1), text=f"{10.0**d:g}") for d in range(-3, 3)),
        y_ticks=tuple(Ticks(at=round(y_of(10.0**d), 1), text=f"{100 * 10.0**d:g} %") for d in range(-3, 1)),
    )


def _share_of_decades(value: float, low: float, high: float) -> float:
    return (min(max(math.log10(value), low), high) - low) / (high - low) if value > 0 else 0.0


class LaneFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a strip: a path of rectangles for each kind."""

    name: str
    paths: tuple[tuple[str, str], ...]
    """(kind, SVG path in units of the strip's pixels)"""


class StripFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Timelines above each other, drawn."""

    title: str
    width: int
    until_us: float
    lanes: tuple[LaneFigure, ...]


def strip(model: Strip) -> StripFigure:
    """Rectangles on whole pixels, neighbours of one kind drawn as one, so that size does not grow with the step."""
    scale = _PIXELS / model.until_us if model.until_us > 0 else 0.0
    lanes: list[LaneFigure] = []
    for lane in model.lanes:
        spans: defaultdict[str, list[list[int]]] = defaultdict(list)
        for stretch in sorted(lane.stretches, key=lambda stretch: stretch.start_us):
            low = min(max(int(stretch.start_us * scale), 0), _PIXELS - 1)
            high = min(max(math.ceil(stretch.end_us * scale), low + 1), _PIXELS)
            of_kind = spans[stretch.kind]
            if of_kind and low <= of_kind[-1][1]:
                of_kind[-1][1] = max(of_kind[-1][1], high)
            else:
                of_kind.append([low, high])
        paths = tuple(
            (kind, "".join(f"M{low} 0h{high - low}v10h-{high - low}z" for low, high in of_kind))
            for kind, of_kind in sorted(spans.items())
        )
        lanes.append(LaneFigure(name=lane.name, paths=paths))
    return StripFigure(title=model.title, width=_PIXELS, until_us=model.until_us, lanes=tuple(lanes))


class LineFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a curve, drawn."""

    name: str
    path: str
    marks: tuple[tuple[float, float, str], ...]
    """(x, y, label)"""


class CurveFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Times over a size, drawn."""

    title: str
    across: str
    lines: tuple[LineFigure, ...]
    x_ticks: tuple[Ticks, ...]
    y_ticks: tuple[Ticks, ...]
    left_out: int


_MOST_TICKS = 9


def curve(model: Curve) -> CurveFigure:
    """Both axes in powers, so that what grows with the size is a straight line."""
    points = [point for line in model.lines for point in line.points]
    x_of = _log_scale([x for x, _ in points], MARGIN, WIDTH - 12)
    y_of = _log_scale([y for _, y in points], HEIGHT - MARGIN, 12)

    def drawn(name: str, line_points: Sequence[tuple[float, float]]) -> LineFigure:
        places = [(round(x_of(x), 1), round(y_of(y), 1)) for x, y in line_points]
        texts = (f"{name}: {model.across}={x:.0f}, {time_text(y)}" for x, y in line_points)
        return LineFigure(
            name=name,
            path="M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places),
            marks=tuple((*place, text) for place, text in zip(places, texts, strict=True)),
        )

    sizes = sorted({x for x, _ in points})
    every = math.ceil(len(sizes) / _MOST_TICKS)
    return CurveFigure(
        title=model.title,
        across=model.across,
        lines=tuple(drawn(line.name, line.points) for line in model.lines),
        x_ticks=tuple(Ticks(at=round(x_of(x), 1), text=f"{x:.0f}") for x in sizes[::every]),
        y_ticks=tuple(Ticks(at=round(y_of(y), 1), text=time_text(y)) for y in _levels([y for _, y in points])),
        left_out=model.left_out,
    )


def _levels(values: list[float]) -> list[float]:
    """Round values between the least and the greatest."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0, 2.0, 5.0) if len(decades) < 4 else (1.0,)
    return [step * 10.0**d for d in decades for step in steps if low <= step * 10.0**d <= high] or [low]


def _log_scale(values: list[float], begin: float, end: float) -> Callable[[float], float]:
    """From the logarithm of a value to a position; a single value lies in the middle."""
    low, high = (math.log(min(values, default=1.0)), math.log(max(values, default=1.0)))
    if high <= low:
        return lambda value: (begin + end) / 2
    return lambda value: begin + (math.log(value) - low) / (high - low) * (end - begin)
