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
            *((name, text) for name, text, _ in sum_facts(found) if text),
            *((name, time_text(one.step_us)) for name, one in found.socs.items()),
            *(
                (f"what if {one.change}", what_if_text(one, {name: soc.step_us for name, soc in found.socs.items()}))
                for one in found.what_if
            ),
        ),
        strips=tuple(Strip(title=one.title, until_us=until, lanes=lanes(one)) for one in drawn[:MOST_STRIPS]),
        tables=tuple(
            cut(table, MOST_ROWS) for table in (ranks_table(found), collectives_table(found), path_table(found))
        ),
        notes=(
            *note_lines(found),
            *disagreements(found),
        ),
    )
