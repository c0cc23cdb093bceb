# pyright: strict
"""A step's timeline, and one step of several ranks, in every output format including HTML pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath

import msgspec
import numpy as np

from opreplay.replay.ir.step import PYTHON
from opreplay.replay.ops.recorded.roofline import roofline
from opreplay.replay.report.page.model import Lane, Opened, Page, Stretch, Strip
from opreplay.replay.report.page.parts import (
    bars_by_name,
    module_trees,
    opened_roofline,
    roofline_of,
    step_answers,
    waterfall,
)
from opreplay.replay.report.page.step_parts import (
    MOST_ROWS,
    all_steps,
    flames,
    launches,
    ops_table,
    over_time,
    spread_table,
    tasks_by_op,
)
from opreplay.replay.report.step import advice, ranks, tables, text
from opreplay.replay.report.step.text import (
    CATEGORY_ROWS,
    band_text,
    head_facts,
    head_line,
    note_lines,
    path_table,
)
from opreplay.replay.report.step.tracks import Process, host_slices, processes, rank_processes
from opreplay.replay.report.table import cut
from opreplay.replay.report.text import plural, time_text
from opreplay.replay.report.view import View
from opreplay.replay.timeline.advice import advise
from opreplay.replay.timeline.graph.model import HOST, NODE_KINDS
from opreplay.replay.timeline.job.study import JobStudy
from opreplay.replay.timeline.job.values import JobChange, JobTimeline
from opreplay.replay.timeline.paths import PathPart
from opreplay.replay.timeline.timeline import Study, Timeline, WhatIf
from opreplay.traces.joins.launch_grids import with_launch_grids
from opreplay.traces.limits import Limits
from opreplay.traces.names import trace_name
from opreplay.traces.sums import summed

MOST_LANES = 8
MOST_STRIPS = 16
"""Maximum number of ranks drawn; the table lists all ranks."""


def view(study: Study, *, everything: bool, all_rows: bool = True) -> View:
    """Return the timeline of a step in every output format."""
    return View(
        lines=text.first_lines(study.timeline),
        render=lambda width: text.render(study.timeline, width, everything=everything, all_rows=all_rows),
        facts=lambda: text.facts(study.timeline),
        page=lambda command: page(study, command),
        tables=tables.tables(study),
    )


def view_of_advice(study: Study, *, everything: bool) -> View:
    """Return advice on what to change first in a step, in every output format.

    JSON and the page include the timeline.
    """
    found = advise(study)
    whole = view(study, everything=everything)
    return msgspec.structs.replace(
        whole,
        lines=[advice.head_line(found, trace_name(study.timeline.source)), *whole.lines],
        render=partial(advice.render, found),
        facts=lambda: {"advice": advice.facts(found), **whole.facts()},
    )


def view_of_ranks(study: JobStudy, *, everything: bool, all_rows: bool = True) -> View:
    """Return one step of several ranks in every output format."""
    return View(
        lines=ranks.first_lines(study.timeline),
        render=lambda width: ranks.render(study.timeline, width, everything=everything, all_rows=all_rows),
        facts=lambda: ranks.facts(study.timeline),
        page=lambda command: page_of_ranks(study, command),
        tables=tables.tables_of_ranks(study.timeline),
    )


def page(study: Study, command: str) -> Page:
    """Return the page of a step."""
    timeline = study.timeline
    drawn = processes(study)
    tasks = {process.title.removeprefix("simulated "): tasks_by_op(process) for process in drawn}
    work = {title: {name: of.us for name, of in ops.items()} for title, ops in tasks.items()}
    strips, zero_us = _strips_of_a_step(drawn)
    steps, steps_tables = all_steps(study)
    launched, launch_tables = launches(study)
    rates = roofline(with_launch_grids(study.names.trace, Limits()))
    changes = advise(study)
    return Page(
        title=f"Timeline of {timeline.step.name}: {timeline.source}",
        headline=text.answer(timeline),
        command=command,
        answers=(*step_answers(timeline.step), *advice.answers(changes)),
        facts=(
            *_what_if_facts(timeline),
            *([("verdict", head_line(timeline))] if timeline.what_if else []),
            *(
                (name, f"{time_text(simulated.step_us)} with gaps, 80 % band {band_text(simulated)}")
                for name, simulated in timeline.socs.items()
            ),
            *((name, text) for name, text, _ in head_facts(timeline) if text),
            *([("launches", launched)] if launched else []),
        ),
        strips=strips,
        over_time=over_time(study, zero_us),
        steps=steps,
        flames=flames(study),
        bars=(
            bars_by_name("Where the step goes", _by_category(timeline), "part"),
            bars_by_name("Device time by op", work, note="times of ops, which may overlap"),
        ),
        trees=module_trees(timeline.step),
        roofline=roofline_of(rates),
        waterfalls=tuple(
            waterfall(
                f"From the recorded step to {name}",
                ("recorded", _path_us(timeline.critical_path)),
                (name, _path_us(simulated.critical_path)),
                "time on the critical path, by op",
            )
            for name, simulated in timeline.socs.items()
        ),
        tables=(
            advice.section(changes),
            ops_table(study, tasks),
            opened_roofline(rates),
            Opened(table=cut(path_table(timeline), MOST_ROWS), key=lambda part: part.name),
            *steps_tables,
            *launch_tables,
        ),
        notes=tuple(note_lines(timeline)),
    )


def _by_category(timeline: Timeline) -> dict[str, dict[str, float]]:
    columns = {"recorded": timeline.categories_us} | {
        name: simulated.categories_us for name, simulated in timeline.socs.items()
    }
    # What is part of a row above stands in its place: idle by cause.
    parts = [
        (f"idle: {title}" if part and field.startswith("idle") else title, field)
        for title, field, part in CATEGORY_ROWS
        if field not in ("idle", "communication_overlapped")
    ]
    return {
        name: {title: us for title, field in parts if (us := float(getattr(times, field))) > 0.0}
        for name, times in columns.items()
    }


def _path_us(parts: Sequence[PathPart]) -> dict[str, float]:
    return summed((f"{part.name}, host" if part.where == "host" else part.name, part.us) for part in parts)


def page_of_ranks(study: JobStudy, command: str) -> Page:
    """Return the page of one step of a job. It shows the recorded timelines of all ranks on one common clock."""
    timeline = study.timeline
    drawn = rank_processes(study)
    differing = spread_table({process.title: tasks_by_op(process) for process in drawn})
    tables = (ranks.ranks_table(timeline), differing, ranks.collectives_table(timeline), ranks.path_table(timeline))
    return Page(
        title=f"Timeline of {timeline.ranks[0].step} on {len(timeline.ranks)} ranks",
        headline=ranks.head_line(timeline),
        command=command,
        facts=(
            ("traces", ", ".join(PurePath(rank.source).name for rank in timeline.ranks)),
            ("recorded step", time_text(timeline.recorded_step_us)),
            ("re-timed step", time_text(timeline.retimed_step_us)),
            *((name, text) for name, text, _ in ranks.sum_facts(timeline) if text),
            *((name, time_text(simulated.step_us)) for name, simulated in timeline.socs.items()),
            *_what_if_facts(timeline),
        ),
        strips=_strips(drawn, MOST_STRIPS),
        tables=tuple(cut(table, MOST_ROWS) for table in tables),
        notes=(*ranks.note_lines(timeline), *ranks.disagreements(timeline)),
    )


def _strips(drawn: Sequence[Process], limit: int | None = None) -> tuple[Strip, ...]:
    """Return one strip per rank, on the common clock of the job."""
    return tuple(Strip(title=process.title, lanes=lanes(process)) for process in drawn[:limit])


def _strips_of_a_step(drawn: Sequence[Process]) -> tuple[tuple[Strip, ...], float]:
    """Return the strips of a step, each shifted to start at its first activity, and the first strip's shift in µs.

    The time that the host waits before the first activity differs between devices. Therefore strips do not start at the
    start of the step.
    """
    strips = _strips(drawn)
    first = [min((of.start_us for lane in strip.lanes for of in lane.stretches), default=0.0) for strip in strips]
    moved = (
        msgspec.structs.replace(strip, lanes=_moved(strip.lanes, zero))
        for strip, zero in zip(strips, first, strict=True)
    )
    return tuple(moved), first[0]


def _moved(rows: tuple[Lane, ...], first: float) -> tuple[Lane, ...]:
    return tuple(
        msgspec.structs.replace(
            lane,
            stretches=tuple(
                msgspec.structs.replace(stretch, start_us=stretch.start_us - first, end_us=stretch.end_us - first)
                for stretch in lane.stretches
            ),
        )
        for lane in rows
    )


def _what_if_facts(timeline: Timeline | JobTimeline) -> list[tuple[str, str]]:
    socs_us = {name: soc.step_us for name, soc in timeline.socs.items()}
    return [(f"what if {change.change}", _what_if_text(change, socs_us)) for change in timeline.what_if]


def _what_if_text(change: WhatIf | JobChange, socs_us: Mapping[str, float]) -> str:
    """Return the step length after a change, also on each simulated device.

    `socs_us` holds the lengths without the change.
    """
    if not change.matched:
        return "matches nothing"
    parts = [f"{time_text(change.step_us)}, gains {time_text(change.gain_us)}"]
    parts += [
        f"on {name} {time_text(us)}, gains {time_text(socs_us[name] - us)}" for name, us in change.socs_us.items()
    ]
    return "; ".join(parts)


def lanes(process: Process) -> tuple[Lane, ...]:
    """Return the busiest rows of a timeline. Rows of host threads show ops, rows of streams show tasks."""
    graph, nodes = process.graph, process.graph.nodes
    spent = np.bincount(nodes.lane, weights=process.end_us - process.start_us, minlength=len(graph.lanes))
    chosen = sorted(np.argsort(-spent)[:MOST_LANES].tolist())
    out: list[Lane] = []
    for lane in chosen:
        stretches: list[Stretch] = []
        for node in np.flatnonzero(nodes.lane == lane).tolist():
            start, end = float(process.start_us[node]), float(process.end_us[node])
            if nodes.name[node] >= 0:
                stretches.append(
                    Stretch(
                        start_us=start,
                        end_us=end,
                        kind=NODE_KINDS[int(nodes.kind[node])],
                        name=process.names.kernel(node),
                        op=process.names.task(node),
                        is_critical=node in process.critical,
                    )
                )
            elif nodes.kind[node] == HOST and nodes.slices[node]:
                stretches += [
                    Stretch(start_us=low, end_us=high, kind="host", name=name, op=name)
                    for low, high, name in host_slices(process, node, start, end)
                    if name != PYTHON
                ]
        if stretches:
            out.append(Lane(name=graph.lanes[int(lane)].name, stretches=tuple(stretches)))
    rest = len(graph.lanes) - len(chosen)
    return (*out, Lane(name=plural(rest, "quieter lane"), stretches=())) if rest > 0 else tuple(out)
