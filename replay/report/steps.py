# pyright: strict
"""All steps of a trace, and how its kernels were launched, as terminal tables and CSV."""

from __future__ import annotations

from typing import Any, Literal

from rich.console import Group, RenderableType

from opreplay.replay.report.breakdown import facts
from opreplay.replay.report.table import COUNT, RATIO, SHARE, TIME, Column, Table, cut, names_room, terminal
from opreplay.replay.report.text import doubt_lines, plural, safe, time_text
from opreplay.replay.report.view import View
from opreplay.traces.times.steps import OUTLIER, LaunchRow, LaunchTable, StepRow, StepTable

NAME_ROOM = 24
"""Width reserved for the name column, in characters; less if all names are shorter."""
NAMED = 5
"""Maximum number of outliers named in the first line."""
_OfStep, _OfLaunch = Column[StepRow], Column[LaunchRow]
_STEPS = [
    _OfStep("host time", lambda row: row.host_us, TIME, key="host_us"),
    _OfStep("÷ median", lambda row: row.over_median, RATIO, key="over_median", style=lambda row: _style(row)),
    _OfStep("busy", lambda row: row.busy_us, TIME, key="busy_us"),
    _OfStep("gaps", lambda row: row.gaps_us, TIME, key="gaps_us"),
    _OfStep("tasks", lambda row: row.tasks, COUNT, drop=1),
    _OfStep("start", lambda row: row.start_us, TIME, key="start_us", drop=2),
    _OfStep("step", lambda row: row.name, key="name", form="name"),
]
_LAUNCHES = [
    _OfLaunch("time", lambda row: row.time_us, TIME, key="time_us"),
    _OfLaunch("launches", lambda row: row.launches, COUNT),
    _OfLaunch("median", lambda row: row.median_us, TIME, key="median_us", drop=3),
    _OfLaunch("< 10 µs", lambda row: row.short_share, SHARE, key="short_share", drop=2),
    _OfLaunch("< call", lambda row: row.below_call_share, SHARE, key="below_call_share", drop=4),
    _OfLaunch("waits", lambda row: row.delay_us, TIME, key="delay_us"),
    _OfLaunch("p90", lambda row: row.delay_p90_us, TIME, key="delay_p90_us", drop=1),
    _OfLaunch("task", lambda row: row.name, key="name", form="name"),
]


def steps_table(table: StepTable) -> Table[StepRow]:
    """Return a table of all marked steps."""
    return Table("Steps", _STEPS, table.rows, noun="step")


def launches_table(table: LaunchTable) -> Table[LaunchRow]:
    """Return a table of how each kernel was launched."""
    return Table("Kernel launches", _LAUNCHES, table.rows, noun="task")


def no_rows(by: Literal["step", "launch"]) -> Table[Any]:
    """Return the empty table for a trace without marked steps, or without launches."""
    return Table("Steps", _STEPS, (), noun="step") if by == "step" else Table("Kernel launches", _LAUNCHES, ())


def view(table: StepTable | LaunchTable, top: int | None, shown: int) -> View:
    """Return all steps or launches in every output format.

    Every format has the first `top` rows. If `top` is None, a terminal shows `shown` rows, and other formats have all.
    """
    return View(
        lines=[step_line(table) if isinstance(table, StepTable) else launch_line(table)],
        render=lambda width: render(table, top or shown, width=width),
        facts=lambda: facts(table, top),
        table=lambda: cut(_table(table), top),
    )


def _table(table: StepTable | LaunchTable) -> Table[Any]:
    return steps_table(table) if isinstance(table, StepTable) else launches_table(table)


def render(table: StepTable | LaunchTable, top: int | None, *, width: int) -> RenderableType:
    """Render the first `top` rows."""
    shown = cut(_table(table), top)
    room = min(NAME_ROOM, names_room(row.name for row in shown.rows))
    return Group(*terminal(shown, width, room=room, rest="for more, use --top N")[1:])


def step_line(table: StepTable) -> str:
    """Return how many steps there are, and which ones are far longer than the median."""
    line = f"{plural(len(table.rows), 'step')}, median {time_text(table.median_us)} on the host"
    line += f" (launches of {plural(table.unlinked, 'kernel')} are not recorded)" if table.unlinked else ""
    outliers = sorted((row for row in table.rows if row.outlier), key=lambda row: -row.over_median)
    if not outliers:
        return f"{line}; none above {OUTLIER:g} times the median"
    names = ", ".join(f"{safe(row.name)} {row.over_median:.2f}×" for row in outliers[:NAMED])
    return f"{line}; above {OUTLIER:g} times the median: {names}{' …' if len(outliers) > NAMED else ''}"


def launch_line(table: LaunchTable) -> str:
    """Return a line on how many kernels are short, and how many are shorter than their launch call."""
    rows = table.rows
    short = sum(row.short_share * row.launches for row in rows) / table.launches
    shares = [row.below_call_share for row in rows]
    below = sum((share or 0.0) * row.launches for share, row in zip(shares, rows, strict=True)) / table.launches
    line = f"{plural(table.launches, 'task')} (kernels, copies, fills) with their own launch: "
    line += f"{100 * short:.0f} % below 10 µs, "
    line += (
        "the calls that launched them are not recorded"
        if None in shares
        else f"{100 * below:.0f} % shorter than the call that launched them"
    )
    line += "".join(f"; {doubt}" for doubt in doubt_lines(table.doubts))
    line += ", so there are no launch latencies" if table.doubts.clock_offset_us else ""
    return (
        f"{line}; launched by graphs, or without a recorded launch: {plural(table.unlinked, 'other')}"
        if table.unlinked
        else line
    )


def _style(row: StepRow) -> str:
    return "yellow" if row.outlier else ""
