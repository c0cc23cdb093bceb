# pyright: strict
"""The page of one step of several ranks."""

from __future__ import annotations

from opreplay.replay.report.page.model import Cell, Column, Page, Strip, Table
from opreplay.replay.report.page.of_timeline import MOST_ROWS, lanes, what_if_text
from opreplay.replay.report.page.parts import count_cell, numbers, time_cell
from opreplay.replay.report.step.ranks import NOTHING_MET, collective_name, head_line, note_lines
from opreplay.replay.report.step.tracks import rank_processes
from opreplay.replay.report.text import DASH, time_text
from opreplay.replay.timeline.job.study import JobStudy
from opreplay.replay.timeline.job.values import JobTimeline

MOST_STRIPS = 16
"""Ranks that are drawn; the table has all."""


def page(study: JobStudy, command: str) -> Page:
    """Everything of a job's step that a page shows; timelines are the recorded ones, on the job's clock."""
    found = study.timeline
    drawn = rank_processes(study)
    until = max(float(one.end_us.max(initial=0.0)) for one in drawn)
    return Page(
        title=f"Timeline of {found.ranks[0].step} on {len(found.ranks)} ranks",
        headline=head_line(found),
        command=command,
        facts=(
            ("recorded step", time_text(found.recorded_step_us)),
            ("re-timed step", time_text(found.retimed_step_us)),
            *_waiting(found),
            *((name, time_text(one.step_us)) for name, one in found.socs.items()),
            *(
                (f"what if {one.change}", what_if_text(one, {name: soc.step_us for name, soc in found.socs.items()}))
                for one in found.what_if
            ),
        ),
        strips=tuple(Strip(title=one.title, until_us=until, lanes=lanes(one)) for one in drawn[:MOST_STRIPS]),
        tables=(_ranks(found), _collectives(found), _path(found)),
        notes=(
            *note_lines(found),
            *(
                f"{one.what} of collective {one.collective} disagree: "
                + ", ".join(f"rank {rank}: {value}" for rank, value in one.values.items())
                for one in found.disagreements
            ),
        ),
    )


def _waiting(found: JobTimeline) -> tuple[tuple[str, str], ...]:
    if not found.collectives:
        return (("waiting for ranks", NOTHING_MET),)
    return (
        ("waiting for ranks", f"{time_text(found.waiting_us)}, collectives and ranks added up"),
        ("without waiting", time_text(found.without_waiting_us)),
    )


def _ranks(found: JobTimeline) -> Table:
    titles = ("step", "begins", "waits", "transfers", "collectives it was last in", "late by", "clock moved")
    return Table(
        title="Ranks",
        columns=(Column(title="rank"), Column(title="trace"), *numbers(*titles)),
        rows=tuple(
            (
                Cell(text=str(one.rank)),
                Cell(text=one.source),
                time_cell(one.recorded_step_us),
                time_cell(one.begins_us),
                *(time_cell(us if found.collectives else None) for us in (one.waiting_us, one.transfer_us)),
                count_cell(one.late),
                time_cell(one.late_us),
                time_cell(one.clock.shift_us if one.clock.corrected else None),
            )
            for one in found.ranks
        ),
    )


def _collectives(found: JobTimeline) -> Table:
    order = sorted(found.collectives, key=lambda one: -one.waiting_us)
    return Table(
        title="Collectives",
        left_out=max(0, len(order) - MOST_ROWS),
        columns=(
            Column(title="collective"),
            Column(title="matched by"),
            *numbers("elements", "members given", "skew", "waiting", "transfer"),
            Column(title="last"),
        ),
        rows=tuple(
            (
                Cell(text=collective_name(one)),
                Cell(text=one.matched_by),
                Cell(text=DASH) if one.elements is None else count_cell(one.elements),
                count_cell(len(one.members)),
                time_cell(one.skew_us),
                time_cell(one.waiting_us),
                time_cell(one.transfer_us),
                Cell(text=f"rank {one.late_rank}" if one.late_us > 0.0 else ""),
            )
            for one in order[:MOST_ROWS]
        ),
    )


def _path(found: JobTimeline) -> Table:
    return Table(
        title="Critical path across ranks",
        left_out=max(0, len(found.critical_path) - MOST_ROWS),
        columns=(Column(title="what"), Column(title="rank"), Column(title="where"), *numbers("time", "stretches")),
        rows=tuple(
            (
                Cell(text=part.name),
                Cell(text="" if part.rank is None else str(part.rank)),
                Cell(text=part.where),
                time_cell(part.us),
                count_cell(part.times),
            )
            for part in found.critical_path[:MOST_ROWS]
        ),
    )
