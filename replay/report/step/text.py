# pyright: strict
"""One step's timeline as text for a terminal and as JSON: the view of `timeline`; computes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.report.coverage import LEAST
from opreplay.replay.report.run.ops import RATIO_TITLE
from opreplay.replay.report.table import (
    COUNT,
    RATIO,
    SHARE,
    TIME,
    Column,
    Fact,
    Table,
    decisive,
    facts_grid,
    notes_lines,
    terminal,
)
from opreplay.replay.report.text import DASH, middle, plural, quotient, ratio_text, safe, share_text, time_text
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.graph.model import CROSS_STREAM, EDGE_KINDS, SHARED
from opreplay.replay.timeline.job.values import JobChange, JobTimeline, RankPathPart
from opreplay.replay.timeline.memory import MemoryUse
from opreplay.replay.timeline.paths import PathPart, Slack
from opreplay.replay.timeline.simulated import ASSUMED, SocStep
from opreplay.replay.timeline.timeline import StepMark, Timeline, WhatIf

PATH_SHOWN = 12
MODULES_SHOWN = 8
SLACK_SHOWN = 6
NAME_WIDTH = 36
"""Characters of a step's name."""
WHAT_IF_WIDTH = 12
"""Least characters of a change, which goes on in the next line: it is what the reader typed."""
CATEGORY_WIDTH, SHARED_WIDTH = 30, 18
"""Characters of a category, and of a time with its share."""
_FOLDERS = re.compile(r"^[^(<]*/(?=[^/(]+\(\d+\): )")
"""Of a frame, "torch/utils/data/dataloader.py(701): __next__": the file and the function tell it apart."""
UNEVEN = 1.25
"""Steps of one trace that differ more than this have something to be told."""

CATEGORY_ROWS: tuple[tuple[str, str, bool], ...] = (
    ("computing", "computing", False),
    ("communication not overlapped", "communication_not_overlapped", False),
    ("communication overlapped", "communication_overlapped", True),
    ("copies", "copies", False),
    ("idle", "idle", False),
    ("before the first task", "idle_before_first", True),
    ("host-bound", "idle_host_bound", True),
    ("launch latency", "idle_launch_latency", True),
    ("waiting for another stream, gaps", "idle_dependency", True),
    ("after the last task", "idle_after_last", True),
)
"""(title, field of `Categories`, part of the row above it)."""

_OF_OTHER_STREAMS = (EDGE_KINDS[CROSS_STREAM], EDGE_KINDS[SHARED])
"""Dependencies without which no task waited for another stream."""


def facts(found: Timeline) -> dict[str, Any]:
    """The stable JSON form; see docs/timeline.md."""
    return msgspec.to_builtins(found)


def render(found: Timeline, width: int = 80, *, everything: bool = True) -> RenderableType:
    """Step, categories, critical path, slack, and what the changes gain; without `everything` the notes that may change
    a decision alone, and how many more there are."""
    parts: list[RenderableType] = [facts_grid(head_facts(found)), *terminal(_categories(found, width))]
    parts += terminal(_socs(found), width)
    parts += terminal(path_table(found), width, limit=PATH_SHOWN, rest=rest_of_path(found.critical_path))
    if len(found.critical_path_modules_us) > 1:
        modules = list(found.critical_path_modules_us.items())
        parts += terminal(_times_table("critical path by module", modules), width)
    python = [(_FOLDERS.sub("", name), us) for name, us in found.critical_path_python_us.items()]
    parts += terminal(_times_table("of it Python, between ops", python), width)
    parts += terminal(slack_table(found), width, limit=SLACK_SHOWN, rest="")
    changes: list[_Change] = [(one.change, one) for one in found.what_if]
    changes += [("all of these", found.what_if_together)] if found.what_if_together is not None else []
    parts += terminal(changes_table("what if", changes, found.retimed_step_us, found.socs), width, room=WHAT_IF_WIDTH)
    told = note_lines(found) if everything else decisive(note_lines(found), decisive_lines(found))
    parts += notes_lines([safe(line) for line in told])
    return Group(*parts)


def head_line(found: Timeline) -> str:
    """The first line: which step, and how far its graph explains it."""
    which = found.step.name if found.step.marked else "the whole trace (it marks no steps)"
    path_us = sum(part.us for part in found.critical_path)
    host_us = sum(part.us for part in found.critical_path if part.where == "host")
    # Re-timing with recorded durations and latencies proves nothing where it copies them; median latencies may fail.
    proof = f"{100 * found.structure_error_typical:+.2f} % with median latencies"
    if path_us > 0:
        proof += f"; {host_us / path_us:.0%} of the path is host time, as recorded"
    invented = max((one.invented_share for one in found.socs.values()), default=0.0)
    told = f"; {share_text(invented)} of device time predicted on invented sizes" if invented > 0 else ""
    unknown = max((1.0 - one.predicted_share for one in found.socs.values()), default=0.0)
    told += f"; {share_text(unknown)} of device time not predicted" if unknown >= LEAST else ""
    return (
        f"{safe(middle(which, 60))}: recorded {time_text(found.recorded_step_us)}, re-timed "
        f"{time_text(found.retimed_step_us)} ({proof}){told}"
    )


def head_facts(found: Timeline) -> list[Fact]:
    """What is known of the step as a whole."""
    return [
        ("step", _chosen(found.step), ""),
        ("host range", time_text(found.step.host_us), ""),
        ("memory", "" if found.memory is None else memory_text(found.memory), ""),
        ("measured", measured_text(found.measured_step_us, found, plural(found.measured_ops, "call")), ""),
        ("dependencies", edges_text(found), ""),
    ]


def _chosen(step: StepMark) -> str:
    """Which of the marked steps it is; "" where none is marked."""
    if not step.marked:
        return ""
    which = "1" if step.asked else "the one of median length"
    chosen = f", {which} of {step.steps:,} marked" if step.steps > 1 else ""
    if step.all_host_us is not None and step.all_host_us[1] > UNEVEN * step.all_host_us[0]:
        low, high = map(time_text, step.all_host_us)
        chosen += f", which took {low} to {high} on the host: what is said is of this one (--step N for another)"
    return middle(step.name, NAME_WIDTH) + chosen


def measured_text(step_us: float | None, found: Timeline | JobTimeline, what: str) -> str:
    """What the step takes with calls as they were measured; "" where none was."""
    if step_us is None:
        return ""
    return f"{time_text(step_us)} with {what} as measured, {ratio_text(step_us, found.recorded_step_us)} the recording"


def edges_text(found: Timeline | JobTimeline) -> str:
    """How many dependencies were recorded, and how many not."""
    edges = found.edges.values()
    recorded, inferred = sum(edge.recorded for edge in edges), sum(edge.inferred for edge in edges)
    return f"{recorded:,} recorded, {inferred:,} inferred from times"


def memory_text(memory: MemoryUse) -> str:
    """The peak, or the range it lies in, and whether it fits each simulated device."""
    where = "device" if memory.on_device else "host"
    if memory.low_bytes is None:
        at = "" if memory.peak_at_us is None else f", {time_text(memory.peak_at_us)} into the step"
        text = f"{readable(memory.peak_bytes)} on the {where} at most{at}"
    elif not memory.high_bytes:
        text = "not known"
    else:
        text = f"{readable(memory.low_bytes)} to {readable(memory.peak_bytes)} by lifetimes"
    if memory.high_bytes:
        text += f", {readable(memory.high_bytes)} if nothing is freed (inferred)"
    return text + "".join(f"; {safe(soc)}: {verdict}" for soc, verdict in memory.verdicts.items())


class _Clock(msgspec.Struct, frozen=True):
    """The recorded step, or that of a device: its times and their sum."""

    name: str
    times: Categories
    step_us: float


_Category = tuple[str, str, bool]
"""A row of `CATEGORY_ROWS`; field "" is the whole step."""


def _categories(found: Timeline, width: int) -> Table[_Category]:
    """Shares are left out, not cut, where the terminal has no room for them."""
    clocks = [_Clock("recorded", found.categories_us, found.recorded_step_us)]
    clocks += [_Clock(name, one.categories_us, one.step_us) for name, one in found.socs.items()]
    waits = any(kind in found.edges for kind in _OF_OTHER_STREAMS)

    def title(row: _Category) -> str:
        name = "gaps between tasks" if row[1] == "idle_dependency" and not waits else row[0]
        return f"  {name}" if row[2] else name

    def style(row: _Category) -> str:
        return "dim" if row[2] else "" if row[1] else "bold"

    columns = [Column[_Category]("time of the step", title, style=style)]
    for clock in clocks:
        columns += _of_clock(clock, share=width >= CATEGORY_WIDTH + SHARED_WIDTH * len(clocks))
    rows = [row for row in CATEGORY_ROWS if not row[2] or any(getattr(clock.times, row[1]) for clock in clocks)]
    return Table("Time of the step", columns, [*rows, ("step", "", False)])


def _of_clock(clock: _Clock, *, share: bool) -> list[Column[_Category]]:
    """The time of a category on a clock and, where there is room, its share."""

    def time_us(row: _Category) -> float:
        return getattr(clock.times, row[1]) if row[1] else clock.step_us

    def share_of(row: _Category) -> str:
        return share_text(quotient(time_us(row), clock.step_us)) if row[1] else ""

    shares = [Column[_Category]("", share_of, right=True)] if share else []
    return [Column[_Category](clock.name, time_us, TIME), *shares]


def _socs(found: Timeline) -> Table[tuple[str, SocStep]]:
    column = Column[tuple[str, SocStep]]
    columns = [
        column("simulated", lambda row: row[0], style="bold"),
        column("step with gaps", lambda row: row[1].step_us, TIME),
        column("80 % band", lambda row: band_text(row[1]), right=True),
        column(RATIO_TITLE, lambda row: quotient(row[1].step_us, found.recorded_step_us), RATIO),
        column("predicted", lambda row: row[1].predicted_share, SHARE, drop=1),
        column("uncalibrated", lambda row: row[1].uncalibrated_share, SHARE, drop=2),
    ]
    return Table("Simulated", columns, list(found.socs.items()))


def band_text(one: SocStep) -> str:
    """The 80 % band; where little of the computing is predicted that instead."""
    if one.low_us is not None and one.high_us is not None:
        return f"{time_text(one.low_us)} to {time_text(one.high_us)}"
    if not one.computing_predicted_share:
        return "as recorded: nothing of it is predicted"
    return f"none: {share_text(one.computing_predicted_share)} of the computing is predicted"


def path_table(found: Timeline) -> Table[PathPart]:
    """What the step waited for, most time first."""
    total = sum(part.us for part in found.critical_path)
    columns = [
        Column[PathPart]("critical path", lambda part: part.name, form="name"),
        Column[PathPart]("where", lambda part: part.where, style="dim"),
        Column[PathPart]("time", lambda part: part.us, TIME),
        Column[PathPart]("share", lambda part: quotient(part.us, total), SHARE),
        Column[PathPart]("stretches", lambda part: part.times, COUNT),
    ]
    return Table("Critical path", columns, found.critical_path, noun="part")


def rest_of_path(path: Sequence[PathPart] | Sequence[RankPathPart]) -> str:
    """What the parts of a path that are not shown amount to."""
    rest, total = sum(part.us for part in path[PATH_SHOWN:]), sum(part.us for part in path)
    return f"{time_text(rest)}, {share_text(quotient(rest, total))}"


def _times_table(title: str, rows: Sequence[tuple[str, float]]) -> Table[tuple[str, float]]:
    """Names with their times."""
    column = Column[tuple[str, float]]
    columns = [column(title, lambda row: row[0], form="name"), column("time", lambda row: row[1], TIME)]
    return Table(title, columns, rows[:MODULES_SHOWN])


def slack_table(found: Timeline) -> Table[Slack]:
    """What is not on the critical path, and how much longer it could take."""
    column = Column[Slack]
    columns = [
        column("off the path", lambda one: one.name, form="name"),
        column("time", lambda one: one.us, TIME),
        column("least slack", lambda one: one.slack_us, TIME),
    ]
    return Table("Off the critical path", columns, found.slack)


_Change = tuple[str, "WhatIf | JobChange"]


def changes_table(title: str, rows: Sequence[_Change], step_us: float, socs: Iterable[str]) -> Table[_Change]:
    """What changes make of the step, and of that on each simulated device."""
    column = Column[_Change]
    columns = [
        column(title, lambda row: row[0], form="fold"),
        *(
            column(name, lambda row, place=place: gain_cells(row[1], step_us)[place], right=True, drop=drop)
            for place, (name, drop) in enumerate((("step", 0), ("gain", 0), ("", 3)))
        ),
        column(
            "work alone",
            lambda row: row[1].work_gain_us if isinstance(row[1], WhatIf) and row[1].matched else None,
            TIME,
            drop=4,
        ),
        *(column(soc, lambda row, soc=soc: row[1].socs_us.get(soc), TIME) for soc in socs),
    ]
    if not any(isinstance(change, WhatIf) for _, change in rows):
        columns = [one for one in columns if one.title != "work alone"]
    return Table("What if", columns, rows)


def gain_cells(one: WhatIf | JobChange, step_us: float) -> tuple[str, str, str]:
    """The step, what it gains, and the share; of a change that means nothing here that it does not."""
    if not one.matched:
        return "no match", DASH, DASH
    return time_text(one.step_us), time_text(one.gain_us), share_text(one.gain_us / step_us if step_us else None)


def note_lines(found: Timeline) -> list[str]:
    """What to know before trusting the numbers, a line each."""
    lines = [*found.notes, *of_devices({name: soc.notes for name, soc in found.socs.items()})]
    lines += [f"memory: {note}" for note in (found.memory.notes if found.memory is not None else ())]
    lines += _of_changes(found)
    if found.dropped_edges:
        one = found.dropped_edges == 1
        told = "1 dependency" if one else f"{found.dropped_edges:,} dependencies"
        lines.append(f"{told} against the recorded order left out")
    return lines


def decisive_lines(found: Timeline) -> list[str]:
    """Those of them that may change a decision: not what is the same for every step, nor how memory was counted."""
    return [*found.notes, *_of_changes(found), *telling(of_devices({n: soc.notes for n, soc in found.socs.items()}))]


def _of_changes(found: Timeline) -> list[str]:
    changes: list[WhatIf] = list(found.what_if)
    return [f"{one.change}: {note}" for one in changes for note in one.assumptions]


def of_devices(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Notes on simulated devices, each once with the devices that it holds for."""
    which: dict[str, list[str]] = {}
    for name, own in notes.items():
        for note in own:
            which.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in which.items()]


def telling(lines: Sequence[str]) -> list[str]:
    """Notes on devices without those that every step has."""
    return [line for line in lines if not line.partition(": ")[2].startswith(ASSUMED)]
