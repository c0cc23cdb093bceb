# pyright: strict
"""The output of `inspect`: the summary of a trace, and each table of where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, get_args

import msgspec

from opreplay.replay.ops.recorded.roofline import roofline
from opreplay.replay.report import breakdown as breakdowns
from opreplay.replay.report import roofline as rooflines
from opreplay.replay.report import steps
from opreplay.replay.report.table import AnyTable
from opreplay.replay.report.text import coarse_text, safe
from opreplay.replay.report.view import View
from opreplay.traces import Limits, Trace
from opreplay.traces.errors import NothingRan
from opreplay.traces.joins.launch_grids import with_launch_grids
from opreplay.traces.names import trace_name
from opreplay.traces.processes.select import one_process
from opreplay.traces.times.breakdown import By, breakdown
from opreplay.traces.times.clock import coarse_unit_us
from opreplay.traces.times.modules import modules_of_ops
from opreplay.traces.times.peaks import Peak
from opreplay.traces.times.steps import launch_table, step_table

Grouping = By | Literal["step", "launch"]
"""Kinds of tables, named after what one row represents."""
TOP = 30
"""Maximum number of table rows in a terminal."""
ROOFLINE_ROWS = 20
PLURALS = {
    "op": "ops",
    "category": "categories",
    "module": "modules",
    "kernel": "kernels",
    "phase": "phases",
    "step": "steps",
    "launch": "launches",
}
"""Grouping → name of its table, for each grouping whose table is named differently."""


def view_by(
    trace: Trace, by: Grouping, *, top: int | None = None, peak: Peak | None = None, limits: Limits | None = None
) -> View:
    """Return one table, headed by the name of the trace, with a warning if the trace's times are too coarse to use."""
    view = _times_of(trace, by, top) if by in ("step", "launch") else _breakdown_of(trace, by, top, peak, limits)
    answer, *others = view.lines
    unit_us = coarse_unit_us(trace)
    doubts = [] if unit_us is None else [f"! {coarse_text(unit_us)}"]
    return msgspec.structs.replace(view, lines=[f"{safe(trace_name(trace.info.path))}: {answer}", *doubts, *others])


Tables = Mapping[str, Callable[[], AnyTable]]


def tables(trace: Trace, *, peak: Peak | None = None, limits: Limits | None = None) -> Tables:
    """Return every table of a trace by name. The table of ops is also called "roofline", as on the command line.

    The step and launch tables have no rows if the trace has no marked steps or no launches.
    """
    every: tuple[Grouping, ...] = (*get_args(By), "step", "launch")
    by_name = {PLURALS.get(by, by): partial(_table, trace, by, peak, limits) for by in every}
    return {**by_name, "roofline": by_name["ops"]}


def _table(trace: Trace, by: Grouping, peak: Peak | None, limits: Limits | None) -> AnyTable:
    try:
        table = view_by(trace, by, peak=peak, limits=limits).table
    except NothingRan:
        if by in ("step", "launch"):
            return steps.no_rows(by)
        raise
    assert table is not None
    return table()


def _times_of(trace: Trace, by: Literal["step", "launch"], top: int | None) -> View:
    """Return the table of all steps, or the table of kernel launches."""
    if by == "launch":
        return steps.view(launch_table(trace), top, TOP)
    part = one_process(trace)
    view = steps.view(step_table(part), top, TOP)
    if part is trace:
        return view
    told = (
        f"shown are the steps of process {safe(str(part.info.process))}, one of {part.info.processes:,} in the file; "
    )
    return msgspec.structs.replace(view, lines=[*view.lines, f"{told}select another with --process"])


def _breakdown_of(trace: Trace, by: By, top: int | None, peak: Peak | None, limits: Limits | None) -> View:
    """Return the roofline, or the breakdown of the time."""
    if by == "op":
        return rooflines.view(roofline(with_launch_grids(trace, limits or Limits()), peak), top, ROOFLINE_ROWS)
    modules = modules_of_ops(trace, trace.info.path, limits=limits or Limits()) if by == "module" else ()
    return breakdowns.view(breakdown(trace, by, modules=modules), top, TOP)
