# pyright: strict
"""One step of several ranks as text for a terminal and as JSON: the view of `job_timeline`; computes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.run.ops import RATIO_TITLE
from opreplay.replay.report.step.text import (
    PATH_SHOWN,
    WHAT_IF_WIDTH,
    changes_table,
    edges_text,
    measured_text,
    of_devices,
    rest_of_path,
    telling,
)
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
from opreplay.replay.report.text import DASH, middle, plural, quotient, safe, share_text, time_text
from opreplay.replay.timeline.job.values import (
    LEAST_COMMON,
    JobSoc,
    JobTimeline,
    RankPathPart,
    RankStep,
    StepCollective,
)

RANKS_SHOWN = 32
COLLECTIVES_SHOWN = 12
DISAGREEMENTS_SHOWN = 10
NOTHING_MET = "nothing can be said of it: no collective of this step was found on two of these ranks"


def facts(found: JobTimeline) -> dict[str, Any]:
    """The stable JSON form; see docs/timeline.md."""
    return msgspec.to_builtins(found)


def head_line(found: JobTimeline) -> str:
    """The first line: which step of how many ranks, and how far the graph explains it."""
    of = f" of {found.world_size}" if found.world_size is not None and found.world_size > len(found.ranks) else ""
    steps = list(dict.fromkeys(one.step for one in found.ranks))
    which = steps[0] if len(steps) == 1 else "a step"
    return (
        f"{safe(middle(which, 60))} on {len(found.ranks)}{of} ranks: recorded {time_text(found.recorded_step_us)}, "
        f"re-timed together {time_text(found.retimed_step_us)}"
    )


def render(found: JobTimeline, width: int = 80, *, everything: bool = True) -> RenderableType:
    """Ranks, collectives, disagreements, the path across ranks, and what changes gain; without `everything` the notes
    that may change a decision alone, and how many more there are."""
    collectives = collectives_table(found)
    waited = time_text(sum(one.waiting_us for one in collectives.rows[COLLECTIVES_SHOWN:]))
    parts: list[RenderableType] = [
        facts_grid(sum_facts(found)),
        *terminal(ranks_table(found), width, limit=RANKS_SHOWN),
    ]
    parts += terminal(collectives, width, limit=COLLECTIVES_SHOWN, rest=f"{waited} of waiting")
    lines = [Text(safe(line), style="bold red") for line in disagreements(found)]
    parts += [Text(), *lines] if lines else []
    parts += terminal(_socs(found))
    parts += terminal(path_table(found), width, limit=PATH_SHOWN, rest=rest_of_path(found.critical_path))
    changes = [(one.change, one) for one in found.what_if]
    table = changes_table("what if, on every rank", changes, found.retimed_step_us, found.socs)
    parts += terminal(table, width, room=WHAT_IF_WIDTH)
    told = note_lines(found) if everything else decisive(note_lines(found), _decisive_lines(found))
    parts += notes_lines([safe(line) for line in told])
    return Group(*parts)


def sum_facts(found: JobTimeline) -> list[Fact]:
    """What the ranks wait for each other, and what the step would take without."""
    common = f"{share_text(found.least_common)} of the shorter one, of the two ranks farthest apart"
    waits = f"{time_text(found.waiting_us)}, collectives and ranks added up, also where they wait side by side"
    share = share_text(quotient(found.retimed_step_us - found.without_waiting_us, found.retimed_step_us))
    without = f"{time_text(found.without_waiting_us)} a step: {share} less"
    met = bool(found.collectives)
    return [
        (
            "in common",
            f"{common}: hardly one step; see the first note" if found.least_common < LEAST_COMMON else "",
            "bold red",
        ),
        ("waiting for ranks", f"{waits}; {_late(found)}" if met else NOTHING_MET, ""),
        ("without waiting", without if met else "", ""),
        ("measured", _measured(found), ""),
        ("dependencies", edges_text(found), ""),
    ]


def _measured(found: JobTimeline) -> str:
    one = found.measured
    if one is None:
        return ""
    what = f"{plural(one.ops, 'call')} and {plural(one.collectives, 'collective')}"
    waiting = f"; {time_text(one.waiting_us)} of waiting" if found.collectives else ""
    return measured_text(one.step_us, found, what) + waiting


def _late(found: JobTimeline) -> str:
    worst = max(found.ranks, key=lambda one: one.late_us)
    if not worst.late:
        return "no rank is late"
    times = plural(worst.late, "collective")
    return f"most for rank {worst.rank}: last in {times}, {time_text(worst.late_us)} after all others"


_OfRank = Column[RankStep]


def ranks_table(found: JobTimeline) -> Table[RankStep]:
    """Steps, waits and clocks of the ranks; what waits is not known of ranks without a common collective."""
    met = bool(found.collectives)
    columns = [
        _OfRank("rank", lambda one: str(one.rank), right=True),
        _OfRank("trace", lambda one: one.source, drop=5),
        _OfRank("step", lambda one: one.recorded_step_us, TIME),
        _OfRank("begins", lambda one: one.begins_us, TIME, text=lambda one: f"+{time_text(one.begins_us)}", drop=3),
        _OfRank("waits", lambda one: one.waiting_us if met else None, TIME),
        _OfRank("transfers", lambda one: one.transfer_us if met else None, TIME, drop=2),
        _OfRank("late", lambda one: one.late, COUNT, text=lambda one: f"{one.late}×" if one.late else DASH),
        _OfRank("late by", lambda one: one.late_us if one.late else None, TIME),
        _OfRank("clock", lambda one: one.clock.shift_us if one.clock.corrected else None, TIME, text=_clock, drop=4),
    ]
    return Table("Ranks", columns, found.ranks, noun="rank")


def _clock(one: RankStep) -> str:
    return f"{one.clock.shift_us:+,.1f} µs" if one.clock.corrected else "recorded"


def collectives_table(found: JobTimeline) -> Table[StepCollective]:
    """Collectives of the step, those that wait longest first."""
    column = Column[StepCollective]
    columns = [
        column("collective", collective_name, form="name"),
        column("matched by", lambda one: one.matched_by, drop=5),
        column("elements", lambda one: one.elements, COUNT, drop=4),
        column("ranks", _members, right=True, drop=2),
        column("skew", lambda one: one.skew_us, TIME, drop=3),
        column("waiting", lambda one: one.waiting_us, TIME),
        column("transfer", lambda one: one.transfer_us, TIME),
        column("last", lambda one: f"rank {one.late_rank}" if one.late_us > 0.0 else DASH, right=True),
    ]
    return Table("Collectives", columns, sorted(found.collectives, key=lambda one: -one.waiting_us), noun="collective")


def _members(one: StepCollective) -> str:
    given = len(one.members)
    return f"{given}" if one.group_size in (None, given) else f"{given} of {one.group_size}"


def collective_name(one: StepCollective) -> str:
    number = f" #{one.sequence}" if one.sequence is not None else ""
    return f"{one.kind}{number}" + (f" in group {one.group}" if one.group is not None else "")


def disagreements(found: JobTimeline) -> list[str]:
    """What ranks record differently of one collective."""
    lines = [
        f"{one.what} of collective {one.collective} disagree: "
        + ", ".join(f"rank {rank}: {value}" for rank, value in list(one.values.items())[:6])
        for one in found.disagreements[:DISAGREEMENTS_SHOWN]
    ]
    if len(found.disagreements) > DISAGREEMENTS_SHOWN:
        lines.append(f"{len(found.disagreements) - DISAGREEMENTS_SHOWN} more disagreements: --format json has them")
    return lines


def _socs(found: JobTimeline) -> Table[tuple[str, JobSoc]]:
    column = Column[tuple[str, JobSoc]]
    columns = [
        column("simulated", lambda row: row[0], style="bold"),
        column("step", lambda row: row[1].step_us, TIME),
        column(RATIO_TITLE, lambda row: quotient(row[1].step_us, found.recorded_step_us), RATIO),
        column("waiting for ranks", lambda row: row[1].waiting_us if found.collectives else None, TIME),
    ]
    return Table("Simulated", columns, list(found.socs.items()))


def path_table(found: JobTimeline) -> Table[RankPathPart]:
    """What the step of all ranks waited for, most time first."""
    total = sum(part.us for part in found.critical_path)
    column = Column[RankPathPart]
    columns = [
        column("critical path across ranks", lambda part: part.name, form="name"),
        column("rank", lambda part: DASH if part.rank is None else str(part.rank), right=True),
        column("where", lambda part: part.where, style="dim"),
        column("time", lambda part: part.us, TIME),
        column("share", lambda part: quotient(part.us, total), SHARE),
        column("stretches", lambda part: part.times, COUNT, drop=1),
    ]
    return Table("Critical path across ranks", columns, found.critical_path, noun="part")


def note_lines(found: JobTimeline) -> list[str]:
    """What to know before trusting the numbers, a line each."""
    lines = list(found.notes)
    lines += found.measured.notes if found.measured is not None else ()
    return [*lines, *_of_devices(found), *_of_changes(found)]


def _decisive_lines(found: JobTimeline) -> list[str]:
    """Those of them that may change a decision: not clocks as they were recorded, nor what every step has."""
    told = [line for line in found.notes if not (line.startswith("the clock of rank") and " is as recorded" in line)]
    return [*told, *telling(_of_devices(found)), *_of_changes(found)]


def _of_devices(found: JobTimeline) -> list[str]:
    return of_devices({name: soc.notes for name, soc in found.socs.items()})


def _of_changes(found: JobTimeline) -> list[str]:
    return [f"{one.change}: {note}" for one in found.what_if for note in one.assumptions]
