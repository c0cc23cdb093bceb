# pyright: strict
"""The page of one step of several ranks."""

from __future__ import annotations

from opreplay.replay.report.page.model import Page, Strip
from opreplay.replay.report.page.of_timeline import MOST_ROWS, lanes, what_if_text
from opreplay.replay.report.step.ranks import (
    collectives_table,
    disagreements,
    head_line,
    note_lines,
    path_table,
    ranks_table,
    sum_facts,
)
from opreplay.replay.report.step.tracks import rank_processes
from opreplay.replay.report.table import cut
from opreplay.replay.report.text import time_text
from opreplay.replay.timeline.job.study import JobStudy

MOST_STRIPS = 16
"""Ranks that are drawn; the table has all."""


def page(study: JobStudy, command: str) -> Page:
    """Everything of a job's step that a page shows; timelines are the recorded ones, on the job's clock."""
    timeline = study.timeline
    drawn = rank_processes(study)
    until = max(float(process.end_us.max(initial=0.0)) for process in drawn)
    return Page(
        title=f"Timeline of {timeline.ranks[0].step} on {len(timeline.ranks)} ranks",
        headline=head_line(timeline),
        command=command,
        facts=(
            ("recorded step", time_text(timeline.recorded_step_us)),
            ("re-timed step", time_text(timeline.retimed_step_us)),
            *((name, text) for name, text, _ in sum_facts(timeline) if text),
            *((name, time_text(times.step_us)) for name, times in timeline.socs.items()),
            *(
                (
                    f"what if {change.change}",
                    what_if_text(change, {name: soc.step_us for name, soc in timeline.socs.items()}),
                )
                for change in timeline.what_if
            ),
        ),
        strips=tuple(
            Strip(title=process.title, until_us=until, lanes=lanes(process)) for process in drawn[:MOST_STRIPS]
        ),
        tables=tuple(
            cut(table, MOST_ROWS)
            for table in (ranks_table(timeline), collectives_table(timeline), path_table(timeline))
        ),
        notes=(
            *note_lines(timeline),
            *disagreements(timeline),
        ),
    )
