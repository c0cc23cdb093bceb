# pyright: strict
"""A captured step on simulated devices, as text for a terminal and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.ir.step import ModuleTime
from opreplay.replay.report.step.tables import tables_of_captured
from opreplay.replay.report.step.text import MODULES_SHOWN, large_modules
from opreplay.replay.report.table import COUNT, SHARE, TIME, Column, Table, notes_lines, terminal
from opreplay.replay.report.text import fusing, lacking_text, quotient, safe, share_text, time_text
from opreplay.replay.report.view import View
from opreplay.replay.timeline.captured import CapturedChange, CapturedTimeline, CapturedTimes
from opreplay.traces.names import trace_name

BOUNDS = {
    "host": "host-bound, device idle {idle}",
    "device": "device-bound",
    "both": "host and device take turns, device idle {idle}",
}
_OfDevice = Column[tuple[str, CapturedTimes]]


def view(timeline: CapturedTimeline) -> View:
    """Return a captured step on simulated devices in every output format."""
    return View(
        lines=[
            f"{safe(trace_name(timeline.source))}: {line}" for line in (*_changes_lines(timeline), verdict(timeline))
        ],
        render=lambda width: render(timeline, width),
        facts=lambda: facts(timeline),
        tables=tables_of_captured(timeline),
    )


def verdict(timeline: CapturedTimeline) -> str:
    """Return a sentence that says how long the step would take on each device, and what bounds it."""
    parts: list[str] = []
    for name, times in timeline.socs.items():
        band = f"{time_text(times.low_us)} to {time_text(times.high_us)}"
        idle = share_text(quotient(times.idle_us, times.step_us))
        bound = BOUNDS[times.bound].format(idle=idle)
        parts.append(f"{safe(name)} would take {time_text(times.step_us)} a step ({band}), {bound}")
    if missing := timeline.unpredicted_calls:
        parts.append(lacking_text(missing))
    return "; ".join(parts) + "."


def _changes_lines(timeline: CapturedTimeline) -> list[str]:
    """Return one line per change, with the resulting step length on each device."""
    return [
        f"with {safe(change.change)} "
        + "; ".join(
            f"{safe(name)} would take {time_text(us)} instead of {time_text(timeline.socs[name].step_us)} a step"
            for name, us in change.socs_us.items()
        )
        for change in timeline.what_if
    ]


def facts(timeline: CapturedTimeline) -> dict[str, Any]:
    """Return the stable JSON representation of the timeline; see docs/timeline.md."""
    return {"captured": True, "verdict": verdict(timeline), **msgspec.to_builtins(timeline)}


def render(timeline: CapturedTimeline, width: int = 80) -> RenderableType:
    """Render times by device, phases, modules, changes, and assumptions."""
    columns = [
        _OfDevice("simulated", lambda row: row[0], style="bold"),
        _OfDevice(f"step{fusing(timeline.fused, timeline.unfused)}", lambda row: row[1].step_us, TIME),
        _OfDevice("80 % band", lambda row: f"{time_text(row[1].low_us)} to {time_text(row[1].high_us)}", right=True),
        _OfDevice("computing", lambda row: row[1].computing_us, TIME),
        _OfDevice("communication", lambda row: row[1].communication_us, TIME, drop=2),
        _OfDevice("idle", lambda row: row[1].idle_us, TIME, drop=1),
        _OfDevice("host", lambda row: row[1].host_us, TIME),
    ]
    parts = list(terminal(Table("Captured step", columns, list(timeline.socs.items())), width))
    first = next(iter(timeline.socs))
    if phases := timeline.phases_us[first]:
        column = Column[tuple[str, float]]
        table = Table(
            "Phases",
            [column("phase", lambda row: row[0]), column(f"device time on {first}", lambda row: row[1], TIME)],
            list(phases.items()),
        )
        parts += terminal(table, width)
    parts += terminal(_modules(timeline, first), width, limit=MODULES_SHOWN, rest="for all, use --format json")
    parts += terminal(_changes(timeline), width)
    return Group(*parts, *notes_lines([safe(note) for note in timeline.notes]))


def _modules(timeline: CapturedTimeline, device: str) -> Table[ModuleTime]:
    total = sum(module.device_us for module in timeline.modules if not module.depth) or 1.0
    column = Column[ModuleTime]
    columns = [
        column("module", lambda module: f"{'  ' * module.depth}{module.label}", form="name"),
        column(device, lambda module: module.device_us, TIME),
        column("", lambda module: module.device_us / total, SHARE),
    ]
    return Table("Modules", columns, large_modules(timeline.modules, total, 0.0), noun="module")


def _changes(timeline: CapturedTimeline) -> Table[CapturedChange]:
    column = Column[CapturedChange]
    columns = [
        column("what if", lambda change: change.change, form="fold"),
        column("calls", lambda change: change.matched, COUNT),
        *(column(device, lambda change, device=device: change.socs_us.get(device), TIME) for device in timeline.socs),
    ]
    return Table("What if", columns, timeline.what_if)
