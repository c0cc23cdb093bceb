# pyright: strict
"""One step's timeline as terminal text and as JSON: shows the results of `timeline`, computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from opreplay.replay.ir.sizes import readable
from opreplay.replay.ir.step import IDLE_CAUSES, ModuleTime
from opreplay.replay.report.coverage import LEAST
from opreplay.replay.report.run.ops import RATIO_TITLE
from opreplay.replay.report.step.verdict import idle_line, named, step_facts, step_rows, verdict
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
    warnings_of,
)
from opreplay.replay.report.text import (
    DASH,
    coarse_text,
    doubt_lines,
    middle,
    plural,
    quotient,
    ratio_text,
    safe,
    share_text,
    time_text,
)
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.job.values import JobChange, JobSoc, JobTimeline
from opreplay.replay.timeline.memory import MemoryUse
from opreplay.replay.timeline.names import without_folders
from opreplay.replay.timeline.paths import PathPart, Slack
from opreplay.replay.timeline.simulated import ASSUMED, SocStep
from opreplay.replay.timeline.timeline import Timeline, WhatIf
from opreplay.traces.names import trace_name
from opreplay.traces.times.doubts import Doubts

PATH_NAMED = 3
"""Number of parts of the critical path named in the first lines."""
PATH_WIDTH = 40
"""Maximum width of the names of critical-path parts in the first lines, in terminal columns."""
CHANGES_SHOWN = 3
"""Maximum number of what-if changes with their own line; the table has all changes."""
MODULES_SHOWN = 16
MODULE_LEVELS = 5
LEAST_MODULE = 0.01
"""Minimum share of the time for a module to get a row."""
SLACK_SHOWN = 6
WHAT_IF_WIDTH = 12
"""Minimum width of the column of changes, in characters. Longer changes are wrapped, because the user typed them."""
CATEGORY_WIDTH, SHARED_WIDTH = 30, 18
"""Width of a category, and of a time with its share, in characters."""
CATEGORY_ROWS: tuple[tuple[str, str, bool], ...] = (
    ("computing", "computing", False),
    ("communication not overlapped", "communication_not_overlapped", False),
    ("communication overlapped", "communication_overlapped", True),
    ("copies", "copies", False),
    ("idle", "idle", False),
    *((name, f"idle_{cause}", True) for cause, name in IDLE_CAUSES.items()),
)
"""Rows of categories: (title, field of `Categories`, whether it is part of the row above)."""


def facts(timeline: Timeline) -> dict[str, Any]:
    """Return the stable JSON representation of the timeline; see docs/timeline.md."""
    step = step_facts(timeline.step)
    step_keys = {
        key: step[key] for key in ("verdict", "window", "idle_us", "copied_host_share", "unknown_wait_us", "modules")
    }
    return {**msgspec.to_builtins(timeline), "step": step, **step_keys}


def render(timeline: Timeline, width: int = 80, *, everything: bool = True, all_rows: bool = True) -> RenderableType:
    """Render changes, categories, critical path, modules and slack of a step.

    With `everything`, also render how well the graph reproduces the recorded step, and all notes. Without it, show only
    notes that may change a decision, and how many other notes there are. Without `all_rows`, show only the rows that
    account for most of the time.
    """
    changes: list[_Change] = [(change.change, change) for change in timeline.what_if]
    changes += [("all of these", timeline.what_if_together)] if timeline.what_if_together is not None else []
    table = changes_table("what if", changes, timeline.retimed_step_us, timeline.socs)
    limit = None if all_rows else MODULES_SHOWN
    python = [(without_folders(name), us) for name, us in timeline.critical_path_python_us.items()]
    facts = head_facts(timeline)
    parts: list[RenderableType] = [facts_grid(facts if everything else warnings_of(facts))]
    parts += terminal(table, width, room=WHAT_IF_WIDTH)
    parts += terminal(_categories(timeline, width))
    parts += terminal(_socs(timeline), width)
    parts += terminal(path_table(timeline), width, all_rows=all_rows)
    parts += terminal(modules_table(timeline), width, limit=limit)
    parts += terminal(_times_table("Python, between ops", python), width, all_rows=all_rows)
    parts += terminal(slack_table(timeline), width, limit=None if all_rows else SLACK_SHOWN)
    notes = note_lines(timeline) if everything else decisive(note_lines(timeline), decisive_lines(timeline))
    parts += notes_lines([safe(line) for line in notes])
    return Group(*parts)


def first_lines(timeline: Timeline) -> list[str]:
    """Return the main results: the step length after the requested changes, what bounds the step, and its idle time."""
    name = trace_name(timeline.source)
    lines = [f"{safe(name)}: {text}" for text in change_texts(timeline)]
    step = timeline.step
    path = "" if step.is_untimed else _path_line(timeline)
    return [*lines, named(name, head_line(timeline)), *filter(None, [idle_line(step), path])]


def _path_line(timeline: Timeline) -> str:
    """Return the largest parts of the critical path: "critical path: aten::mm 18.2 %, host 9.3 %"."""
    path, total = timeline.critical_path, sum(part.us for part in timeline.critical_path)
    names = [safe(middle(part.name, PATH_WIDTH)) for part in path[:PATH_NAMED]]
    shown = [f"{name} {share_text(quotient(part.us, total))}" for name, part in zip(names, path, strict=False)]
    return f"critical path: {', '.join(shown)}" if shown else ""


def answer(timeline: Timeline) -> str:
    """Return the headline: the step length after the requested changes or, without changes, what bounds the step."""
    return next(iter(change_texts(timeline)), head_line(timeline))


def change_texts(timeline: Timeline | JobTimeline) -> list[str]:
    """Return a sentence on all changes together (if combined), then a sentence on each of the first changes."""
    together = timeline.what_if_together if isinstance(timeline, Timeline) else None
    changes = [*([] if together is None else [together]), *timeline.what_if]
    doubts = timeline.step.doubts if isinstance(timeline, Timeline) and timeline.step.is_untimed else Doubts()
    reasons = f"; not reliable: {' and '.join(doubt_lines(doubts))}" if doubts != Doubts() else ""
    return [change_text(change, timeline.retimed_step_us) + reasons for change in changes[:CHANGES_SHOWN]]


def change_text(change: WhatIf | JobChange, step_us: float) -> str:
    """Return "with aten::mm=0.5x the step takes 33.1 ms instead of 35.2 ms, 6.0 % less (5.5 % to 6.2 %)"."""
    low, high = (share_text(quotient(step_us - us, step_us)) for us in (change.high_us, change.low_us))
    gain = share_text(quotient(abs(change.gain_us), step_us))
    span = "" if low == high else f" ({low} to {high})"
    text = f"with {safe(change.change)} the step takes {time_text(change.step_us)} instead of {time_text(step_us)}"
    text += f", {gain} {'less' if change.gain_us >= 0 else 'more'}{span}"
    socs = [f"on {safe(soc)} {time_text(us)}" for soc, us in change.socs_us.items()]
    return "; ".join([text, *socs])


def head_line(timeline: Timeline) -> str:
    """Return what bounds the step, and how much device time is predicted on invented sizes or not at all."""
    invented = max((soc.invented_share for soc in timeline.socs.values()), default=0.0)
    quality = f" {share_text(invented)} of device time is predicted on invented sizes." if invented > 0 else ""
    unknown = max((1.0 - soc.predicted_share for soc in timeline.socs.values()), default=0.0)
    quality += f" {share_text(unknown)} of device time is not predicted." if unknown >= LEAST else ""
    return verdict(timeline.step) + quality


def head_facts(timeline: Timeline) -> list[Fact]:
    """Return facts about the step as a whole."""
    return [
        *step_rows(timeline.step),
        ("graph", graph_text(timeline), ""),
        ("clock", "" if timeline.step.coarse_unit_us is None else coarse_text(timeline.step.coarse_unit_us), "yellow"),
        ("memory", "" if timeline.memory is None else memory_text(timeline.memory), ""),
        ("measured", measured_text(timeline.measured_step_us, timeline, plural(timeline.measured_ops, "call")), ""),
    ]


def graph_text(timeline: Timeline) -> str:
    """Return how well the dependency graph explains the recording, and how many dependencies it has."""
    # Re-timing with recorded durations and latencies proves nothing where it copies them: other steps may fail it.
    other = timeline.other_steps
    typical = f"{100 * timeline.structure_error_typical:+.1f} % with median latencies"
    text = f"re-timed {time_text(timeline.retimed_step_us)}, {typical}"
    if other is None:
        text += "; not testable on another step"
    else:
        text += f"; error on {plural(other.steps, 'other step')}: median {100 * other.median_error:.1f} %"
        text += f", maximum {100 * other.worst_error:.1f} %" if other.steps > 1 else ""
    return f"{text}; dependencies: {edges_text(timeline)}"


def measured_text(step_us: float | None, timeline: Timeline | JobTimeline, what: str) -> str:
    """Return the step length with measured instead of recorded call times; "" if nothing was measured."""
    if step_us is None:
        return ""
    return (
        f"{time_text(step_us)} with {what} as measured, {ratio_text(step_us, timeline.recorded_step_us)} the recording"
    )


def edges_text(timeline: Timeline | JobTimeline) -> str:
    """Return how many dependencies were recorded, and how many were inferred."""
    edges = timeline.edges.values()
    recorded, inferred = sum(edge.recorded for edge in edges), sum(edge.inferred for edge in edges)
    return f"{recorded:,} recorded, {inferred:,} inferred from times"


def memory_text(memory: MemoryUse) -> str:
    """Return the peak memory or its range, and whether it fits on each simulated device."""
    where = "device" if memory.on_device else "host"
    if memory.low_bytes is None:
        at = "" if memory.peak_at_us is None else f", {time_text(memory.peak_at_us)} into the step"
        text = f"{readable(memory.peak_bytes)} peak on the {where}{at}"
    elif not memory.high_bytes:
        text = "not known"
    else:
        text = f"{readable(memory.low_bytes)} to {readable(memory.peak_bytes)} from tensor lifetimes"
    if memory.high_bytes:
        text += f", {readable(memory.high_bytes)} if nothing is freed (inferred)"
    return text + "".join(f"; {safe(soc)}: {verdict}" for soc, verdict in memory.verdicts.items())


class _Clock(msgspec.Struct, frozen=True):
    """The recorded step or a simulated device's step: name, time by category, and total."""

    name: str
    times: Categories
    step_us: float


_Category = tuple[str, str, bool]
"""A row of `CATEGORY_ROWS`; a row with the field "" stands for the whole step."""


def _categories(timeline: Timeline, width: int) -> Table[_Category]:
    """Return the table of categories. If the terminal is too narrow, shares are left out instead of cut off."""
    clocks = [_Clock("recorded", timeline.categories_us, timeline.recorded_step_us)]
    clocks += [_Clock(name, simulated.categories_us, simulated.step_us) for name, simulated in timeline.socs.items()]

    def title(row: _Category) -> str:
        return f"  {row[0]}" if row[2] else row[0]

    def style(row: _Category) -> str:
        return "dim" if row[2] else "" if row[1] else "bold"

    columns = [Column[_Category]("time of the step", title, style=style)]
    for clock in clocks:
        columns += _of_clock(clock, share=width >= CATEGORY_WIDTH + SHARED_WIDTH * len(clocks))
    rows = [row for row in CATEGORY_ROWS if not row[2] or any(getattr(clock.times, row[1]) for clock in clocks)]
    return Table("Time of the step", columns, [*rows, ("step", "", False)])


def _of_clock(clock: _Clock, *, share: bool) -> list[Column[_Category]]:
    """Return a column of one step's times by category and, if `share` is set, a column of shares of the step."""

    def time_us(row: _Category) -> float:
        return getattr(clock.times, row[1]) if row[1] else clock.step_us

    def share_of(row: _Category) -> str:
        return share_text(quotient(time_us(row), clock.step_us)) if row[1] else ""

    shares = [Column[_Category]("", share_of, right=True)] if share else []
    return [Column[_Category](clock.name, time_us, TIME), *shares]


def _socs(timeline: Timeline) -> Table[tuple[str, SocStep]]:
    column = Column[tuple[str, SocStep]]
    columns = [
        column("simulated", lambda row: row[0], style="bold"),
        column("step with gaps", lambda row: row[1].step_us, TIME),
        column("80 % band", lambda row: band_text(row[1]), right=True),
        column(RATIO_TITLE, lambda row: quotient(row[1].step_us, timeline.recorded_step_us), RATIO),
        column("predicted", lambda row: row[1].predicted_share, SHARE, drop=1),
        column("uncalibrated", lambda row: row[1].uncalibrated_share, SHARE, drop=2),
    ]
    return Table("Simulated", columns, list(timeline.socs.items()))


def band_text(step: SocStep) -> str:
    """Return the 80 % band; a note instead if too little of the compute time is predicted."""
    if step.low_us is not None and step.high_us is not None:
        return f"{time_text(step.low_us)} to {time_text(step.high_us)}"
    if not step.computing_predicted_share:
        return "as recorded, without a prediction"
    return f"none: only {share_text(step.computing_predicted_share)} of the compute time is predicted"


def path_table(timeline: Timeline) -> Table[PathPart]:
    """Return the parts of the critical path, most time first."""
    total = sum(part.us for part in timeline.critical_path)
    columns = [
        Column[PathPart]("critical path", lambda part: part.name, form="name"),
        Column[PathPart]("where", lambda part: part.where, style="dim"),
        Column[PathPart]("time", lambda part: part.us, TIME),
        Column[PathPart]("share", lambda part: quotient(part.us, total), SHARE),
        Column[PathPart]("times", lambda part: part.times, COUNT),
    ]
    return Table("Critical path", columns, timeline.critical_path, noun="part", weight=lambda part: part.us)


def modules_table(timeline: Timeline) -> Table[ModuleTime]:
    """Return the tree of modules. If a module takes little time, it is left out together with all its children."""
    device_us, step_us = timeline.step.device_sum_us, timeline.step.window.step_us
    column = Column[ModuleTime]
    columns = [
        column("module", lambda module: f"{'  ' * module.depth}{module.label}", form="name"),
        column("device", lambda module: module.device_us, TIME),
        column("", lambda module: quotient(module.device_us, device_us), SHARE, drop=2),
        column("critical path", lambda module: module.path_us, TIME),
        column("", lambda module: quotient(module.path_us, step_us), SHARE, drop=1),
    ]
    if not device_us:
        columns = [columns[0], *columns[3:]]
    return Table("Modules", columns, large_modules(timeline.step.modules, device_us, step_us), noun="module")


def large_modules(modules: Sequence[ModuleTime], device_us: float, step_us: float) -> list[ModuleTime]:
    """Return upper-level modules that take a significant share of device time or of the step, and their self time."""
    return [
        module
        for module in _with_themselves(modules)
        if module.depth < MODULE_LEVELS
        and (0 < LEAST_MODULE * device_us <= module.device_us or 0 < LEAST_MODULE * step_us <= module.path_us)
    ]


def _with_themselves(modules: Sequence[ModuleTime]) -> Iterator[ModuleTime]:
    """Yield the modules; a module with children is followed by a row for its self time."""
    for at, module in enumerate(modules):
        yield module
        below = list(takewhile(lambda other, depth=module.depth: other.depth > depth, modules[at + 1 :]))
        called = [other for other in below if other.depth == module.depth + 1]
        if called:
            yield ModuleTime(
                name="(itself)",
                count=1,
                depth=module.depth + 1,
                device_us=max(0.0, module.device_us - sum(other.device_us for other in called)),
                path_us=max(0.0, module.path_us - sum(other.path_us for other in called)),
            )


def _times_table(title: str, rows: Sequence[tuple[str, float]]) -> Table[tuple[str, float]]:
    """Return a table of names with their times."""
    column = Column[tuple[str, float]]
    columns = [column(title, lambda row: row[0], form="name"), column("time", lambda row: row[1], TIME)]
    return Table(title, columns, rows, noun="function", weight=lambda row: row[1])


def slack_table(timeline: Timeline) -> Table[Slack]:
    """Return a table of the work that is not on the critical path, with its slack."""
    column = Column[Slack]
    columns = [
        column("off the path", lambda slack: slack.name, form="name"),
        column("time", lambda slack: slack.us, TIME),
        column("least slack", lambda slack: slack.slack_us, TIME),
    ]
    return Table("Off the critical path", columns, timeline.slack, noun="op")


_Change = tuple[str, "WhatIf | JobChange"]


def changes_table(title: str, rows: Sequence[_Change], step_us: float, socs: Iterable[str]) -> Table[_Change]:
    """Return a table of the step length after each change, also on each simulated device."""
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
        columns = [shown for shown in columns if shown.title != "work alone"]
    return Table("What if", columns, rows)


def gain_cells(change: WhatIf | JobChange, step_us: float) -> tuple[str, str, str]:
    """Return (step length, gain, gain's share of the step) as text. Without a match, the first is "no match"."""
    if not change.matched:
        return "no match", DASH, DASH
    return (
        time_text(change.step_us),
        time_text(change.gain_us),
        share_text(change.gain_us / step_us if step_us else None),
    )


def note_lines(timeline: Timeline) -> list[str]:
    """Return notes on what to know before trusting the numbers, one line each."""
    lines = [*timeline.notes, *of_devices(timeline.socs)]
    lines += [f"memory: {note}" for note in (timeline.memory.notes if timeline.memory is not None else ())]
    lines += [*of_changes(timeline.what_if), *_of_all_changes(timeline)]
    if timeline.dropped_edges:
        single = timeline.dropped_edges == 1
        dependencies = "1 dependency" if single else f"{timeline.dropped_edges:,} dependencies"
        lines.append(f"{dependencies} left out, because they contradict the recorded order")
    return lines


def decisive_lines(timeline: Timeline) -> list[str]:
    """Return the notes that may change a decision, but no notes on memory and no facts common to every step."""
    return [
        *timeline.notes,
        *of_changes(timeline.what_if),
        *_of_all_changes(timeline),
        *telling(of_devices(timeline.socs)),
    ]


def _of_all_changes(timeline: Timeline) -> list[str]:
    """Return the assumptions that are made only for all changes together, not for any single change."""
    alone = {note for change in timeline.what_if for note in change.assumptions}
    together = timeline.what_if_together
    notes = () if together is None else dict.fromkeys(together.assumptions)
    return [f"all changes together: {note}" for note in notes if note not in alone]


def of_changes(changes: Sequence[WhatIf | JobChange]) -> list[str]:
    """Return the assumptions of each change."""
    return [f"{change.change}: {note}" for change in changes for note in change.assumptions]


def of_devices(socs: Mapping[str, SocStep | JobSoc]) -> list[str]:
    """Return the notes on simulated devices. Each note is listed once, with the devices that it applies to."""
    which: dict[str, list[str]] = {}
    for name, soc in socs.items():
        for note in soc.notes:
            which.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in which.items()]


def telling(lines: Sequence[str]) -> list[str]:
    """Return the notes on devices in `lines`, without the notes that are the same for every step."""
    return [line for line in lines if not line.partition(": ")[2].startswith(ASSUMED)]
