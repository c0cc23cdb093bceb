# pyright: strict
"""Bokeh documents for the figures of a page, e.g. waterfalls and flame graphs.

The documents contain no callbacks, neither Python functions nor JavaScript text. The script in this folder handles
clicks on figures and sets their colours in dark mode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from opreplay.replay.ir.describe import time_text
from opreplay.replay.report.page.model import (
    Curve,
    DeviceRoof,
    Flames,
    OverTime,
    Page,
    Point,
    Roof,
    Roofline,
    Steps,
    Stretch,
    Strip,
    Waterfall,
)
from opreplay.replay.report.text import end, middle, plural, safe, share_text
from opreplay.replay.timeline.flames import Frame

COLOURS = ("#4269d0", "#c26b05", "#1f8a70", "#9a4fb5", "#b03a48")
"""Colours that are readable on white and on black; the style sheet uses the same ones."""
KINDS = {"kernel": 0, "collective": 1, "memcpy": 2, "memset": 2, "host": 3}
"""Kind of task → index of its colour."""
MOST_TASKS = 30_000
"""Maximum number of tasks in a timeline. Only the longest tasks are kept.

Shorter tasks would be narrower than a pixel, and with all tasks the page would be too large to send.
"""
FRAME_KINDS = {"frame": 3, "module": 0, "op": 2}
"""Kind of frame → index of its colour."""
FRAME_CHANGES = {"more": 4, "less": 2, "same": 0}
"""How a frame differs between two steps → index of its colour, as in a waterfall."""
FRAME_SAME = 0.05
"""Maximum relative change of a frame that still counts as the same."""
MOST_TICKS = 6
"""If a curve has more sizes than this, not every size gets a tick label."""
LANES_LEFT = 110
"""Left margin in pixels of timelines, and of line charts on the same axis."""
STEPS_NAMED = 16
"""Maximum number of steps whose names fit below the bars."""
NAME_WIDTH, LANE_WIDTH, BAR_NAME_WIDTH = 64, 16, 44
_LANE_PIXELS, _BAR_PIXELS = 26, 34
_GREY = "#76808e"
_MS_FROM = 2_000.0
"""An axis of at least this length in microseconds is labelled in milliseconds."""


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, ready to embed, with the text above it."""

    id: str
    item: dict[str, Any]
    """The figure in Bokeh's JSON format."""
    names: list[str] = []
    """Texts of the figure; its int32 columns refer to them by index."""
    title: str = ""
    legend: tuple[tuple[int, str], ...] = ()
    """Legend entries: (index in `COLOURS`, label)."""
    note: str = ""
    about: str = ""
    """Description of the figure for screen readers."""


def figures_of(page: Page) -> list[Drawn]:
    """Return all figures of a page, in page order."""
    return [
        *(waterfall(model, f"waterfall{i}") for i, model in enumerate(page.waterfalls)),
        *([timeline(page.strips, "timeline")] if any(strip.lanes for strip in page.strips) else []),
        *(over_time(model, f"over_time{i}", _until_us(page.strips)) for i, model in enumerate(page.over_time)),
        *([] if page.steps is None else [steps(page.steps, "steps")]),
        *([] if page.flames is None else [flames(page.flames, "flames")]),
        *(curve(model, f"curve{i}") for i, model in enumerate(page.curves)),
        *([] if page.roofline is None else [roofline(page.roofline, "roofline")]),
    ]


def script() -> str:
    """Return BokehJS without widgets, tables and typesetting."""
    resources = import_module("bokeh.resources").Resources(mode="inline", components=["bokeh"])
    return str(resources.js_raw[0])


def _models() -> Any:
    return import_module("bokeh.models")


def _figure(tools: Sequence[Any], height: int, **options: Any) -> Any:
    plot = import_module("bokeh.plotting").figure(
        height=height,
        sizing_mode="stretch_width",
        tools=list(tools),
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **{"min_border_left": 10, "min_border_right": 8, **options},
    )
    plot.toolbar.logo = None
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = _GREY
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.major_tick_line_color = plot.axis.axis_line_color = _GREY
    plot.grid.grid_line_color = _GREY
    plot.grid.grid_line_alpha = 0.2
    return plot


def _zoom_tools(dimensions: str) -> list[Any]:
    """Return tools for zooming and panning.

    Dragging pans. Ctrl + wheel zooms, because the wheel alone scrolls the page. The other tools are buttons.
    """
    models = _models()
    return [
        models.PanTool(dimensions=dimensions),
        models.WheelZoomTool(dimensions=dimensions, modifiers={"ctrl": True}),
        models.BoxZoomTool(dimensions=dimensions),
        models.ZoomInTool(dimensions=dimensions, factor=0.4),
        models.ZoomOutTool(dimensions=dimensions, factor=0.4),
        models.ResetTool(),
    ]


class _Texts(dict[str, int]):
    """The distinct texts of a figure, mapped to their indices. Each is stored once, because many marks use most of
    them.
    """

    def column(self, texts: Iterable[str]) -> Any:
        return np.array([self.setdefault(safe(text), len(self)) for text in texts], np.int32)


def _drawn(plot: Any, name: str, texts: Iterable[str] = (), **above: Any) -> Drawn:
    item = import_module("bokeh.embed").json_item(plot, name)
    return Drawn(id=name, item=item, names=list(texts), **above)


def _source(name: str, /, **columns: Any) -> Any:
    return _models().ColumnDataSource(data=columns, name=name)


def roofline(model: Roofline, name: str) -> Drawn:
    """Draw operations per second over operations per byte, both logarithmic, with one mark per op and device."""
    models = _models()
    tips = [("", "@name"), ("", "@detail"), ("on", "@device"), ("a call", "@time"), ("share", "@share"), ("", "@bound")]
    tips.append(("", "@rate"))
    points = [point for device in model.devices for point in device.points]
    across = [point.flops / point.moved_bytes for point in points if point.flops]
    roofs = [device.roof for device in model.devices if device.roof is not None]
    across += [max(roof.flops_per_s.values()) / roof.bytes_per_s for roof in roofs]
    low, high = min(across, default=1.0) / 8, max(across, default=100.0) * 4
    marks: list[Any] = []
    texts = _Texts()
    plot = _figure(
        _zoom_tools("both"),
        380,
        x_axis_type="log",
        y_axis_type="log",
        x_range=models.Range1d(low, high),
        x_axis_label="arithmetic intensity (FLOP/byte)",
        y_axis_label="TFLOP/s",
    )
    for index, device in enumerate(model.devices):
        colour = COLOURS[index % len(COLOURS)]
        if device.roof is not None:
            _draw_roof(plot, device.roof, (low, high), colour)
        marks.append(_draw_points(plot, device, colour, texts, low * 1.5 * 1.4**index))
    plot.add_tools(models.HoverTool(renderers=marks, tooltips=tips), models.TapTool(renderers=marks))
    peaks = [device.device + (f" (at most {device.roof.text})" if device.roof else "") for device in model.devices]
    note = (
        "Each mark is an op; its size is the share of the time. Ops that only move data are at the left edge. Hover "
        "for the name, click to see the row."
    )
    if model.left_out:
        note += f" {plural(model.left_out, 'op')} not drawn, because their work is unknown."
    about = "Roofline; the table below has the same ops"
    legend = tuple((index % len(COLOURS), peak) for index, peak in enumerate(peaks))
    return _drawn(plot, name, texts, title="Roofline", legend=legend, note=note, about=about)


def _draw_roof(plot: Any, roof: Roof, span: tuple[float, float], colour: str) -> None:
    """Draw the sloped line of the memory bandwidth, and the peak of each dtype."""
    low, high = span
    heights = sorted(set(roof.flops_per_s.values()), reverse=True)
    for index, flops in enumerate(heights):
        ridge = flops / roof.bytes_per_s
        begin = low if index == 0 else ridge
        path = [(begin, begin * roof.bytes_per_s), (ridge, flops), (max(high, ridge), flops)]
        plot.line(
            [x for x, _ in path],
            [y / 1e12 for _, y in path],
            line_color=colour,
            line_width=1.5,
            line_dash="solid" if index == 0 else "dashed",
        )


def _draw_points(plot: Any, device: DeviceRoof, colour: str, texts: _Texts, edge: float) -> Any:
    """Draw one mark per op. Ops that only move data are at the left edge, where memory bandwidth is the limit."""
    points = sorted(device.points, key=lambda point: -point.share)
    source = _source(
        "ops",
        x=[point.flops / point.moved_bytes or edge for point in points],
        y=[(point.flops or edge * point.moved_bytes) / point.time_us / 1e6 for point in points],
        size=[6.0 + 26.0 * max(min(point.share, 1.0), 0.0) ** 0.5 for point in points],
        key=texts.column(point.key for point in points),
        name=texts.column(middle(point.name, NAME_WIDTH) for point in points),
        detail=texts.column(middle(point.detail, NAME_WIDTH) for point in points),
        device=texts.column(device.device for _ in points),
        time=texts.column(time_text(point.time_us) for point in points),
        share=texts.column(share_text(point.share) for point in points),
        bound=texts.column(point.bound for point in points),
        rate=texts.column(map(_rate, points)),
    )
    return plot.scatter(
        x="x",
        y="y",
        size="size",
        source=source,
        fill_color=colour,
        line_color=colour,
        fill_alpha=0.55,
        nonselection_fill_alpha=0.2,
        nonselection_line_alpha=0.3,
        selection_line_width=3,
    )


def _rate(point: Point) -> str:
    moved = f"{point.moved_bytes / point.time_us / 1e6:,.3g} TB/s"
    return f"{point.flops / point.time_us / 1e6:,.3g} TFLOP/s, {moved}" if point.flops else moved


def waterfall(model: Waterfall, name: str) -> Drawn:
    """Draw one bar for the initial time, for each difference and for the final time, with a name above each bar."""
    models = _models()
    rows: list[tuple[str, float, float, str, int]] = [(*_whole(model.begin), 0)]
    at = model.begin[1]
    for text, us in model.changes:
        sign = "+" if us > 0 else "−"
        rows.append((text, min(at, at + us), max(at, at + us), f"{sign}{time_text(abs(us))}", 4 if us > 0 else 2))
        at += us
    rows.append((*_whole(model.end), 0))
    most = max(high for _, _, high, _, _ in rows) or 1.0
    begin = axis_begin(model.begin[1], [us for _, us in model.changes], model.end[1])
    rows = [(text, max(low, begin), high, label, colour) for text, low, high, label, colour in rows]
    scale, unit = _unit(most)
    places = np.arange(len(rows), 0, -1, dtype=np.float64)
    source = _source(
        "bars",
        y=places - 0.2,
        above=places + 0.22,
        left=[low / scale for _, low, _, _, _ in rows],
        right=[high / scale for _, _, high, _, _ in rows],
        zero=[begin / scale] * len(rows),
        key=[safe(row[0]) for row in rows],
        name=[middle(safe(row[0]), NAME_WIDTH) for row in rows],
        label=[f"{middle(safe(row[0]), BAR_NAME_WIDTH)}  {row[3]}" for row in rows],
        text=[row[3] for row in rows],
        colour=[COLOURS[row[4]] for row in rows],
    )
    plot = _figure(
        [],
        _BAR_PIXELS * len(rows) + 50,
        x_axis_label=f"{unit}, from {time_text(begin)}" if begin else unit,
        x_range=models.Range1d(begin / scale, (most + (most - begin) * 0.04) / scale),
        y_range=models.Range1d(0.4, len(rows) + 0.6),
    )
    plot.yaxis.visible = False
    plot.ygrid.visible = False
    bars = plot.hbar(
        y="y",
        left="left",
        right="right",
        height=0.36,
        source=source,
        fill_color="colour",
        line_color="colour",
        nonselection_fill_alpha=0.5,
    )
    plot.text(x="zero", y="above", text="label", source=source, name="text", text_font_size="12px", **_TEXT)
    tips = [("", "@name"), ("", "@text")]
    plot.add_tools(models.HoverTool(renderers=[bars], tooltips=tips), models.TapTool(renderers=[bars]))
    plot.toolbar_location = None
    ends = ", ".join(f"{text} {time_text(us)}" for text, us in (model.begin, model.end))
    return _drawn(
        plot,
        name,
        title=model.title,
        legend=((4, "more"), (2, "less")),
        note=model.note,
        about=f"{model.title}: {ends}",
    )


def axis_begin(begin: float, changes: Sequence[float], end: float) -> float:
    """Return the start of a waterfall's axis: 0, or slightly below the changes if all of them are far from 0."""
    levels = [end, *itertools.accumulate(changes, initial=begin)]
    least, most = min(levels), max(levels)
    return least - (most - least) * 0.25 if 0.5 * most < least < most else 0.0


_TEXT: dict[str, Any] = {"text_baseline": "middle", "text_color": _GREY, "x_offset": 2}


def _whole(bar: tuple[str, float]) -> tuple[str, float, float, str]:
    return bar[0], 0.0, bar[1], time_text(bar[1])


def _unit(most_us: float) -> tuple[float, str]:
    """Return the number by which an axis divides microseconds, and the resulting unit."""
    return (1e3, "ms") if most_us >= _MS_FROM else (1.0, "µs")


def curve(model: Curve, name: str) -> Drawn:
    """Draw lines on two logarithmic axes. Time proportional to size is a straight line there."""
    models = _models()
    plot = _figure(_zoom_tools("both"), 320, x_axis_type="log", y_axis_type="log", y_axis_label=model.unit)
    plot.xaxis.axis_label = _plain(model.across)
    sizes = sorted({x for line in model.lines for x, _ in line.points})
    if len(sizes) <= MOST_TICKS:
        plot.xaxis.ticker = models.FixedTicker(ticks=sizes)
        plot.xaxis.major_label_overrides = {size: f"{size:,.0f}" for size in sizes}
    marks: list[Any] = []
    for index, line in enumerate(model.lines):
        colour = COLOURS[index % len(COLOURS)]
        source = _source(
            "",
            x=[x for x, _ in line.points],
            y=[y for _, y in line.points],
            name=[safe(line.name)] * len(line.points),
            value=[time_text(y) if model.unit == "µs" else f"{y:,.3g} {model.unit}" for _, y in line.points],
        )
        dash = "dashed" if line.is_limit else "solid"
        plot.line(x="x", y="y", source=source, line_color=colour, line_width=1.5, line_dash=dash)
        marks.append(plot.scatter(x="x", y="y", size=7, source=source, fill_color=colour, line_color=colour))
    plot.add_tools(models.HoverTool(renderers=marks, tooltips=[("", "@name"), ("size", "@x"), ("", "@value")]))
    return _drawn(
        plot,
        name,
        title=model.title,
        legend=tuple((index % len(COLOURS), line.name) for index, line in enumerate(model.lines)),
        note="both axes logarithmic" + (f"; {model.left_out} lines left out" if model.left_out else ""),
        about=f"{model.title}; the table below has the same numbers",
    )


def _plain(text: str) -> str:
    """Return text for an axis without characters that would make Bokeh typeset it as math (`$`, backslash)."""
    return safe(text).replace("$", "＄").replace("\\", "⧵")


def timeline(strips: Sequence[Strip], name: str) -> Drawn:
    """Draw all strips on one time axis from zero, coloured by kind of task, with the critical path outlined."""
    models = _models()
    rows: list[tuple[float, Stretch]] = []
    ticks: dict[float, str] = {}
    at = 0.0
    for strip in strips:
        at -= 1.0
        ticks[at] = _plain(end(strip.title, LANE_WIDTH + 4).upper())
        for lane in strip.lanes:
            at -= 1.0
            ticks[at] = _plain(middle(lane.name, LANE_WIDTH))
            rows += [(at, stretch) for stretch in lane.stretches]
        at -= 0.3
    left_out = max(len(rows) - MOST_TASKS, 0)
    if left_out:
        rows = sorted(rows, key=lambda row: row[1].start_us - row[1].end_us)[:MOST_TASKS]
    until = _until_us(strips)
    scale, unit = _unit(until)
    span = until / scale
    plot = _figure(
        _zoom_tools("width"),
        int(-at * _LANE_PIXELS) + 90,
        name="timeline",
        min_border_left=LANES_LEFT,
        x_axis_label=f"{unit} after the start",
        x_range=models.Range1d(0, span, bounds=(0, span), min_interval=span / 1e5),
        y_range=models.Range1d(at - 0.2, -0.4),
    )
    plot.yaxis.ticker = models.FixedTicker(ticks=list(ticks))
    plot.yaxis.major_label_overrides = dict(ticks)
    plot.yaxis.major_tick_line_color = None
    plot.ygrid.visible = False
    texts = _Texts()
    bars: list[Any] = []
    for colour in dict.fromkeys(KINDS.values()):
        chosen = [row for row in rows if KINDS.get(row[1].kind, 0) == colour]
        if chosen:
            source = _tasks(chosen, scale, texts)
            bars.append(_draw_tasks(plot, source, fill_color=COLOURS[colour], line_color=COLOURS[colour]))
    if critical := [row for row in rows if row[1].is_critical]:
        places = _places(critical, scale)
        source = _source("", **{**places, "y": places["y"] - np.float32(0.43)})
        plot.hbar(y="y", left="left", right="right", height=0.1, source=source, name="path", color=_GREY)
    _add_labels(plot)
    tips = [
        ("", "@name"),
        ("op", "@key"),
        ("starts", f"@left{{0,0.000}} {unit}"),
        ("takes", f"@takes{{0,0.000}} {unit}"),
    ]
    plot.add_tools(models.HoverTool(renderers=bars, tooltips=tips), models.TapTool(renderers=bars))
    note = "Underlined: critical path. Drag to move; Ctrl+wheel or buttons to zoom; click a task to show its op."
    return _drawn(
        plot,
        name,
        texts,
        title="Timeline",
        legend=((0, "computing"), (1, "communication"), (2, "copies"), (3, "ops on the host")),
        note=f"{note} {plural(left_out, 'shorter task')} not drawn." if left_out else note,
        about=f"Timeline of {', '.join(strip.title for strip in strips)}; the tables below have the same times",
    )


def _until_us(strips: Sequence[Strip]) -> float:
    """Return the end of the last task."""
    ends = (stretch.end_us for strip in strips for lane in strip.lanes for stretch in lane.stretches)
    return max(ends, default=1.0) or 1.0


def over_time(model: OverTime, name: str, until_us: float) -> Drawn:
    """Draw a quantity as a staircase line. It shares the timeline's axis, so both figures pan and zoom together."""
    models = _models()
    scale, unit = _unit(until_us)
    values = [value for _, value in model.points]
    plot = _figure(
        [],
        150,
        name="over_time",
        min_border_left=LANES_LEFT,
        x_axis_label=f"{unit} after the start",
        x_range=models.Range1d(0, until_us / scale),
        y_range=models.Range1d(0, max(values, default=1.0) * 1.08 or 1.0),
    )
    plot.yaxis.axis_label = _plain(model.unit)
    plot.toolbar_location = None
    texts = _Texts()
    source = _source(
        "",
        x=np.array([us / scale for us, _ in model.points], np.float32),
        y=np.array(values, np.float32),
        value=texts.column(f"{value:,.4g} {model.unit}" for value in values),
    )
    line = plot.step(x="x", y="y", mode="after", source=source, line_color=COLOURS[0], line_width=1.5)
    tips = [("at", f"@x{{0,0.000}} {unit}"), ("", "@value")]
    plot.add_tools(models.HoverTool(renderers=[line], tooltips=tips, mode="vline"))
    return _drawn(plot, name, texts, title=model.title, note=model.note, about=model.title)


def steps(model: Steps, name: str) -> Drawn:
    """Draw one stacked bar per step."""
    models = _models()
    whole = [sum(times) for _, times in model.steps]
    scale, unit = _unit(max(whole, default=1.0))
    names = [step for step, _ in model.steps]
    places = np.arange(len(names), dtype=np.float64)
    below = np.zeros(len(names))
    plot = _figure(
        [],
        230,
        y_axis_label=unit,
        x_range=models.Range1d(-0.6, len(names) - 0.4),
        y_range=models.Range1d(0, max(whole, default=1.0) / scale * 1.15),
    )
    plot.xgrid.visible = False
    every = -(-len(names) // STEPS_NAMED)
    ticks = {float(at): _plain(end(names[at].rpartition("#")[2], 8)) for at in range(0, len(names), every)}
    plot.xaxis.ticker = models.FixedTicker(ticks=list(ticks))
    plot.xaxis.major_label_overrides = ticks
    bars: list[Any] = []
    texts = _Texts()
    for index, part in enumerate(model.parts):
        times = np.array([times[index] for _, times in model.steps]) / scale
        source = _source(
            "steps",
            x=places,
            bottom=below,
            top=below + times,
            key=texts.column(names),
            name=texts.column(middle(safe(step), NAME_WIDTH) for step in names),
            part=texts.column([part] * len(names)),
            takes=texts.column(time_text(float(us) * scale) for us in times),
        )
        colour = COLOURS[index % len(COLOURS)]
        style = {"fill_color": colour, "line_color": colour, "nonselection_fill_alpha": 0.5}
        bars.append(plot.vbar(x="x", bottom="bottom", top="top", width=0.8, source=source, **style))
        below = below + times
    marked = [at for at, step in enumerate(names) if step in model.outliers]
    above = _source("", x=places[marked], y=below[marked], text=[safe(model.outliers[names[at]]) for at in marked])
    style = {**_TEXT, "text_baseline": "bottom", "text_align": "center", "x_offset": 0}
    plot.text(x="x", y="y", text="text", source=above, name="text", text_font_size="12px", **style)
    tips = [("", "@name"), ("@part", "@takes")]
    plot.add_tools(models.HoverTool(renderers=bars, tooltips=tips), models.TapTool(renderers=bars))
    plot.toolbar_location = None
    legend = tuple((index % len(COLOURS), part) for index, part in enumerate(model.parts))
    about = f"{model.title}; the table below has the same steps"
    return _drawn(plot, name, texts, title=model.title, legend=legend, note=model.note, about=about)


def flames(model: Flames, name: str) -> Drawn:
    """Draw callers above their callees; clicking a frame zooms it to the width of the figure."""
    models = _models()
    until = max((frame.start_us + frame.us for frame in model.frames), default=1.0) or 1.0
    scale, unit = _unit(until)
    depth = max((frame.depth for frame in model.frames), default=0)
    plot = _figure(
        _zoom_tools("width"),
        int((depth + 1) * 20) + 90,
        name="flames",
        x_axis_label=f"{unit} of all calls together",
        x_range=models.Range1d(0, until / scale, bounds=(0, until / scale), min_interval=until / scale / 1e5),
        y_range=models.Range1d(-depth - 0.7, 0.7),
    )
    plot.yaxis.visible = False
    plot.grid.visible = False
    texts = _Texts()
    bars: list[Any] = []
    compared = any(frame.before_us is not None for frame in model.frames)
    kinds = FRAME_CHANGES if compared else FRAME_KINDS
    for kind, colour in kinds.items():
        chosen = [frame for frame in model.frames if (_change_of(frame) if compared else frame.kind) == kind]
        if chosen:
            source = _source(
                "tasks",
                y=np.array([-frame.depth for frame in chosen], np.float32),
                left=np.array([frame.start_us / scale for frame in chosen], np.float32),
                right=np.array([(frame.start_us + frame.us) / scale for frame in chosen], np.float32),
                name=texts.column(middle(frame.name, 2 * NAME_WIDTH) for frame in chosen),
                share=texts.column(share_text(frame.us / until) for frame in chosen),
                change=texts.column(f"{time_text(frame.before_us)} → {time_text(frame.after_us)}" for frame in chosen),
            )
            bars.append(_draw_tasks(plot, source, fill_color=COLOURS[colour], line_color="#ffffff"))
    _add_labels(plot)
    takes = ("", "@change") if compared else ("takes", f"@takes{{0,0.000}} {unit}, @share")
    plot.add_tools(models.HoverTool(renderers=bars, tooltips=[("", "@name"), takes]), models.TapTool(renderers=bars))
    legend = tuple((colour, kind if compared else f"{kind}s") for kind, colour in kinds.items())
    return _drawn(plot, name, texts, title=model.title, legend=legend, note=model.note, about=model.title)


def _change_of(frame: Frame) -> str:
    """Return how a frame differs between two steps, as a key of `FRAME_CHANGES`."""
    was, now = frame.before_us or 0.0, frame.after_us or 0.0
    if abs(now - was) <= FRAME_SAME * max(was, now):
        return "same"
    return "more" if now > was else "less"


def _add_labels(plot: Any) -> None:
    """Add task names, which the page shows where there is room."""
    labels = _source("labels", x=[], y=[], text=[])
    style = {"text_font_size": "11px", "text_color": "#ffffff", "text_baseline": "middle", "x_offset": 3}
    plot.text(x="x", y="y", text="text", source=labels, **style)


def _places(rows: Iterable[tuple[float, Stretch]], scale: float) -> dict[str, Any]:
    rows = list(rows)
    return {
        "y": np.array([at for at, _ in rows], np.float32),
        "left": np.array([stretch.start_us / scale for _, stretch in rows], np.float32),
        "right": np.array([stretch.end_us / scale for _, stretch in rows], np.float32),
    }


def _tasks(rows: Sequence[tuple[float, Stretch]], scale: float, texts: _Texts) -> Any:
    name = texts.column(middle(stretch.name, NAME_WIDTH) for _, stretch in rows)
    return _source("tasks", **_places(rows, scale), name=name, key=texts.column(stretch.op for _, stretch in rows))


def _draw_tasks(plot: Any, source: Any, **style: Any) -> Any:
    style = {"line_width": 0.5, **style}
    bar = plot.hbar(y="y", left="left", right="right", height=0.8, source=source, **style)
    bar.nonselection_glyph = None
    bar.selection_glyph = _models().HBar(
        y="y", left="left", right="right", height=0.95, **{**style, "line_width": 2, "line_color": _GREY}
    )
    return bar
