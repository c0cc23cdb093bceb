# pyright: strict
"""One step of several ranks as terminal text and as JSON: shows the results of `job_timeline`, computes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from opreplay.replay.report.run.ops import RATIO_TITLE
from opreplay.replay.report.step.text import (
    WHAT_IF_WIDTH,
    change_texts,
    changes_table,
    edges_text,
    measured_text,
    of_changes,
    of_devices,
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
DISAGREEMENTS_SHOWN = 10
NOTHING_MET = "unknown, because no collective of this step was found on two of these ranks"


def facts(timeline: JobTimeline) -> dict[str, Any]:
    """Return the stable JSON representation of the timeline; see docs/timeline.md."""
    return msgspec.to_builtins(timeline)


def head_line(timeline: JobTimeline) -> str:
    """Return the first line: step, number of ranks, recorded step length, and step length re-timed with the graph."""
    ranks = len(timeline.ranks)
    of = f" of {timeline.world_size}" if timeline.world_size is not None and timeline.world_size > ranks else ""
    steps = list(dict.fromkeys(rank.step for rank in timeline.ranks))
    which = steps[0] if len(steps) == 1 else "a step"
    return (
        f"{safe(middle(which, 60))} on {ranks}{of} ranks: recorded {time_text(timeline.recorded_step_us)}, "
        f"re-timed together {time_text(timeline.retimed_step_us)}"
    )


def first_lines(timeline: JobTimeline) -> list[str]:
    """Return lines on the step after the requested changes, then a line on the step as recorded."""
    return [*map(safe, change_texts(timeline)), head_line(timeline)]


def render(timeline: JobTimeline, width: int = 80, *, everything: bool = True, all_rows: bool = True) -> RenderableType:
    """Render changes, ranks, collectives, disagreements, and the critical path across ranks.

    Without `everything`, show only notes that may change a decision, and how many other notes there are. Without
    `all_rows`, show only the rows that account for most of the time.
    """
    changes = [(change.change, change) for change in timeline.what_if]
    table = changes_table("what if, on every rank", changes, timeline.retimed_step_us, timeline.socs)
    parts: list[RenderableType] = [facts_grid(sum_facts(timeline)), *terminal(table, width, room=WHAT_IF_WIDTH)]
    parts += terminal(ranks_table(timeline), width, limit=None if all_rows else RANKS_SHOWN)
    parts += terminal(collectives_table(timeline), width, all_rows=all_rows)
    lines = [Text(safe(line), style="bold red") for line in disagreements(timeline)]
    parts += [Text(), *lines] if lines else []
    parts += terminal(_socs(timeline))
    parts += terminal(path_table(timeline), width, all_rows=all_rows)
    notes = note_lines(timeline) if everything else decisive(note_lines(timeline), _decisive_lines(timeline))
    parts += notes_lines([safe(line) for line in notes])
    return Group(*parts)


def sum_facts(timeline: JobTimeline) -> list[Fact]:
    """Return how long the ranks wait for each other, and the step length without this waiting."""
    common = f"{share_text(timeline.least_common)} of the shorter step, for the two ranks that overlap least"
    waits = f"{time_text(timeline.waiting_us)}, summed over collectives and ranks, even if they wait at the same time"
    share = share_text(quotient(timeline.retimed_step_us - timeline.without_waiting_us, timeline.retimed_step_us))
    without = f"{time_text(timeline.without_waiting_us)} a step: {share} less"
    met = bool(timeline.collectives)
    return [
        (
            "in common",
            f"{common}: probably different steps; see the first note" if timeline.least_common < LEAST_COMMON else "",
            "bold red",
        ),
        ("waiting for ranks", f"{waits}; {_late(timeline)}" if met else NOTHING_MET, ""),
        ("without waiting", without if met else "", ""),
        ("measured", _measured(timeline), ""),
        ("dependencies", edges_text(timeline), ""),
    ]


def _measured(timeline: JobTimeline) -> str:
    measured = timeline.measured
    if measured is None:
        return ""
    what = f"{plural(measured.ops, 'call')} and {plural(measured.collectives, 'collective')}"
    waiting = f"; {time_text(measured.waiting_us)} of waiting" if timeline.collectives else ""
    return measured_text(measured.step_us, timeline, what) + waiting


def _late(timeline: JobTimeline) -> str:
    worst = max(timeline.ranks, key=lambda rank: rank.late_us)
    if not worst.late:
        return "no rank is late"
    times = plural(worst.late, "collective")
    return f"most for rank {worst.rank}: last in {times}, {time_text(worst.late_us)} after all others"


_OfRank = Column[RankStep]


def ranks_table(timeline: JobTimeline) -> Table[RankStep]:
    """Return the step, waiting time and clock of each rank. Waiting times are missing if the ranks share no
    collective.
    """
    met = bool(timeline.collectives)
    columns = [
        _OfRank("rank", lambda rank: str(rank.rank), right=True),
        _OfRank("trace", lambda rank: rank.source, drop=5),
        _OfRank("step", lambda rank: rank.recorded_step_us, TIME),
        _OfRank("begins", lambda rank: rank.begins_us, TIME, text=lambda rank: f"+{time_text(rank.begins_us)}", drop=3),
        _OfRank("waits", lambda rank: rank.waiting_us if met else None, TIME),
        _OfRank("transfers", lambda rank: rank.transfer_us if met else None, TIME, drop=2),
        _OfRank("late", lambda rank: rank.late, COUNT, text=lambda rank: f"{rank.late}×" if rank.late else DASH),
        _OfRank("late by", lambda rank: rank.late_us if rank.late else None, TIME),
        _OfRank("clock", lambda rank: rank.clock.shift_us if rank.clock.corrected else None, TIME, text=_clock, drop=4),
    ]
    return Table("Ranks", columns, timeline.ranks, noun="rank")


def _clock(rank: RankStep) -> str:
    return f"{rank.clock.shift_us:+,.1f} µs" if rank.clock.corrected else "recorded"


def collectives_table(timeline: JobTimeline) -> Table[StepCollective]:
    """Return the collectives of the step, longest waits first."""
    column = Column[StepCollective]
    columns = [
        column("collective", collective_name, form="name"),
        column("matched by", lambda collective: collective.matched_by, drop=5),
        column("elements", lambda collective: collective.elements, COUNT, drop=4),
        column("ranks", _members, right=True, drop=2),
        column("skew", lambda collective: collective.skew_us, TIME, drop=3),
        column("waiting", lambda collective: collective.waiting_us, TIME),
        column("transfer", lambda collective: collective.transfer_us, TIME),
        column(
            "last", lambda collective: f"rank {collective.late_rank}" if collective.late_us > 0.0 else DASH, right=True
        ),
    ]
    return Table(
        "Collectives",
        columns,
        sorted(timeline.collectives, key=lambda collective: -collective.waiting_us),
        noun="collective",
        weight=lambda collective: collective.waiting_us,
    )


def _members(collective: StepCollective) -> str:
    present = len(collective.members)
    return f"{present}" if collective.group_size in (None, present) else f"{present} of {collective.group_size}"


def collective_name(collective: StepCollective) -> str:
    number = f" #{collective.sequence}" if collective.sequence is not None else ""
    return f"{collective.kind}{number}" + (f" in group {collective.group}" if collective.group is not None else "")


def disagreements(timeline: JobTimeline) -> list[str]:
    """Return differences between what the ranks recorded for the same collective."""
    lines = [
        f"{disagreement.what} of collective {disagreement.collective} disagree: "
        + ", ".join(f"rank {rank}: {value}" for rank, value in list(disagreement.values.items())[:6])
        for disagreement in timeline.disagreements[:DISAGREEMENTS_SHOWN]
    ]
    if len(timeline.disagreements) > DISAGREEMENTS_SHOWN:
        lines.append(
            f"{plural(len(timeline.disagreements) - DISAGREEMENTS_SHOWN, 'more disagreement')}: see --format json"
        )
    return lines


def _socs(timeline: JobTimeline) -> Table[tuple[str, JobSoc]]:
    column = Column[tuple[str, JobSoc]]
    columns = [
        column("simulated", lambda row: row[0], style="bold"),
        column("step", lambda row: row[1].step_us, TIME),
        column(RATIO_TITLE, lambda row: quotient(row[1].step_us, timeline.recorded_step_us), RATIO),
        column("waiting for ranks", lambda row: row[1].waiting_us if timeline.collectives else None, TIME),
    ]
    return Table("Simulated", columns, list(timeline.socs.items()))


def path_table(timeline: JobTimeline) -> Table[RankPathPart]:
    """Return the parts of the critical path across ranks, most time first."""
    total = sum(part.us for part in timeline.critical_path)
    column = Column[RankPathPart]
    columns = [
        column("critical path across ranks", lambda part: part.name, form="name"),
        column("rank", lambda part: DASH if part.rank is None else str(part.rank), right=True),
        column("where", lambda part: part.where, style="dim"),
        column("time", lambda part: part.us, TIME),
        column("share", lambda part: quotient(part.us, total), SHARE),
        column("times", lambda part: part.times, COUNT, drop=1),
    ]
    return Table(
        "Critical path across ranks", columns, timeline.critical_path, noun="part", weight=lambda part: part.us
    )


def note_lines(timeline: JobTimeline) -> list[str]:
    """Return notes on what to know before trusting the numbers, one line each."""
    lines = list(timeline.notes)
    lines += timeline.measured.notes if timeline.measured is not None else ()
    return [*lines, *of_devices(timeline.socs), *of_changes(timeline.what_if)]


def _decisive_lines(timeline: JobTimeline) -> list[str]:
    """Return the notes that may change a decision. Unchanged clocks and facts common to all steps are left out."""
    notes = [
        line for line in timeline.notes if not (line.startswith("the clock of rank") and " is as recorded" in line)
    ]
    return [*notes, *telling(of_devices(timeline.socs)), *of_changes(timeline.what_if)]
