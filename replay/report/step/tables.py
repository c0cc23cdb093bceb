# pyright: strict
"""The tables of a step with all rows and plain values, for data frames; module `text` has the tables for terminals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from opreplay.replay.ir.step import IDLE_CAUSES, ModuleTime, StepReport
from opreplay.replay.report.step.text import CATEGORY_ROWS
from opreplay.replay.report.steps import launches_table, steps_table
from opreplay.replay.report.table import COUNT, FLAG, SHARE, TEXT, TIME, AnyTable, Column, Table, Unit, of_fields
from opreplay.replay.report.text import quotient
from opreplay.replay.timeline.advice import advise
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.job.values import JobChange, JobTimeline
from opreplay.replay.timeline.timeline import Study, WhatIf
from opreplay.traces.times.steps import launch_table, step_table

if TYPE_CHECKING:
    from opreplay.replay.report.page.step_parts import StepOp, Tasks
    from opreplay.replay.timeline.captured import CapturedTimeline

Tables = Mapping[str, Callable[[], AnyTable]]

_PATH = {"name": TEXT, "where": TEXT, "us": TIME, "times": COUNT}
_KEYS = {"us": "time_us", "times": "stretches"}
_ADVICE = {
    **dict.fromkeys(("what", "change"), TEXT),
    **dict.fromkeys(("gain_us", "low_us", "high_us"), TIME),
    "share": SHARE,
    **dict.fromkeys(("certainty", "why", "basis", "module", "function", "command"), TEXT),
}
_MODULES = {"depth": COUNT, "label": TEXT, "count": COUNT, "device_us": TIME, "path_us": TIME}


def tables(study: Study) -> Tables:
    """Return the tables of one step by name, such as ops, kernels, critical path, Python, modules and idle causes."""
    timeline, trace = study.timeline, study.names.trace
    tasks = cache(lambda: _tasks(study))
    together = [] if timeline.what_if_together is None else [timeline.what_if_together]
    return {
        "ops": lambda: _ops(study, tasks()),
        "kernels": lambda: _kernels(tasks()),
        "critical_path": lambda: of_fields("Critical path", timeline.critical_path, _PATH, _KEYS),
        "python": lambda: _times("Python on the critical path", "function", timeline.critical_path_python_us),
        "modules": lambda: _modules(timeline.step.modules),
        "idle": lambda: _times(
            "Causes of idle time", "cause", {IDLE_CAUSES[cause]: us for cause, us in timeline.step.idle_us.items()}
        ),
        "categories": lambda: _categories(
            {"recorded": timeline.categories_us, **{name: soc.categories_us for name, soc in timeline.socs.items()}}
        ),
        "slack": lambda: of_fields(
            "Off the critical path",
            timeline.slack,
            {"name": TEXT, "where": TEXT, "us": TIME, "slack_us": TIME},
            {"us": "time_us"},
        ),
        "what_if": lambda: _changes([*timeline.what_if, *together], timeline.socs, "work_gain_us"),
        "advice": lambda: of_fields("What to do first", advise(study).items, _ADVICE),
        "simulated": lambda: of_fields(
            "Simulated",
            list(timeline.socs.values()),
            {
                "device": TEXT,
                **dict.fromkeys(("step_us", "low_us", "high_us"), TIME),
                **dict.fromkeys(("predicted_share", "uncalibrated_share", "invented_share"), SHARE),
                "host_bound": FLAG,
            },
        ),
        "steps": lambda: steps_table(step_table(trace)),
        "launches": lambda: launches_table(launch_table(trace)),
    }


def tables_of_ranks(timeline: JobTimeline) -> Tables:
    """Return table name → table, for one step of several ranks."""
    ranks = {"rank": COUNT, "source": TEXT, "step": TEXT, "late": COUNT, "unmatched": COUNT}
    times = ("recorded_step_us", "retimed_step_us", "begins_us", "waiting_us", "transfer_us", "late_us")
    collectives: dict[str, Unit] = dict.fromkeys(("kind", "group", "dtype", "matched_by"), TEXT)
    collectives |= dict.fromkeys(("group_size", "sequence", "elements", "late_rank", "missing"), COUNT)
    collectives |= dict.fromkeys(("skew_us", "waiting_us", "transfer_us", "late_us"), TIME)
    return {
        "ranks": lambda: of_fields("Ranks", timeline.ranks, {**ranks, **dict.fromkeys(times, TIME)}),
        "collectives": lambda: of_fields("Collectives", timeline.collectives, collectives),
        "critical_path": lambda: of_fields(
            "Critical path across ranks", timeline.critical_path, {"rank": COUNT, **_PATH}, _KEYS
        ),
        "categories": lambda: _categories({"mean": timeline.categories_us}),
        "what_if": lambda: _changes(timeline.what_if, timeline.socs),
        "simulated": lambda: of_fields(
            "Simulated", [_OnSoc(name, soc.step_us) for name, soc in timeline.socs.items()], _ON_SOC
        ),
    }


def tables_of_captured(timeline: CapturedTimeline) -> Tables:
    """Return table name → table, for a captured step."""
    times = ("step_us", "low_us", "high_us", "computing_us", "communication_us", "idle_us", "host_us")
    changed = Column[Any]("change", lambda change: change.change)
    calls = Column[Any]("calls", lambda change: change.matched, COUNT)
    return {
        "simulated": lambda: Table(
            "Captured step",
            [
                Column[Any]("device", lambda row: row[0]),
                *(Column[Any](field, lambda row, field=field: getattr(row[1], field), TIME) for field in times),
            ],
            list(timeline.socs.items()),
        ),
        "modules": lambda: _modules(timeline.modules),
        "what_if": lambda: Table("What if", [changed, calls, *_on_socs(timeline.socs)], timeline.what_if),
    }


def segments(step: StepReport) -> Table[tuple[str, float]]:
    """Return the segments that add up to a step: computing, communication, and idle time by cause."""
    times_us = {
        "computing": step.busy_us - step.communication_us,
        "communication": step.communication_us,
        **{f"idle: {IDLE_CAUSES[cause]}": us for cause, us in step.idle_us.items()},
    }
    total_us = sum(times_us.values())
    table = _times("Segments of the step", "segment", times_us)
    share = Column[tuple[str, float]]("share", lambda row: row[1] / total_us if total_us else 0.0, SHARE)
    return msgspec.structs.replace(table, columns=[*table.columns, share])


class _OnSoc(msgspec.Struct, frozen=True):
    device: str
    step_us: float


_ON_SOC = {"device": TEXT, "step_us": TIME}


def _tasks(study: Study) -> dict[str, dict[str, Tasks]]:
    from opreplay.replay.report.page.step_parts import tasks_by_op
    from opreplay.replay.report.step.tracks import processes

    return {process.title.removeprefix("simulated "): tasks_by_op(process) for process in processes(study)}


def _ops(study: Study, tasks: dict[str, dict[str, Tasks]]) -> Table[StepOp]:
    """Return all ops of the step, with their times on the recorded and on each simulated timeline."""
    from opreplay.replay.report.page.step_parts import device_us, ops_of_step, weight

    column, step_us = Column["StepOp"], study.timeline.step.window.step_us
    columns = [
        column("name", lambda op: op.name),
        column("path_us", lambda op: op.path_us, TIME),
        column("path_share", lambda op: quotient(op.path_us, step_us), SHARE),
        *(column(f"device_us{_suffix(title)}", partial(device_us, title=title), TIME) for title in tasks),
        column("launches", lambda op: op.launches, COUNT),
        column("host_us", lambda op: op.host_us, TIME),
        column("slack_us", lambda op: op.slack_us, TIME),
    ]
    rows = sorted(ops_of_step(study, tasks), key=lambda op: -weight(op))
    return Table("Ops of the step", columns, rows, noun="op")


def _kernels(tasks: dict[str, dict[str, Tasks]]) -> Table[tuple[str, str, str, int, float]]:
    """Return all kernels of the step on the recorded and on each simulated timeline, with the op that launched them."""
    rows = [
        (title, op, kernel, launches, us)
        for title, ops in tasks.items()
        for op, work in ops.items()
        for kernel, (launches, us) in work.kernels.items()
    ]
    column = Column[tuple[str, str, str, int, float]]
    columns = [
        column("name", lambda row: row[2]),
        column("op", lambda row: row[1]),
        column("device", lambda row: row[0]),
        column("launches", lambda row: row[3], COUNT),
        column("time_us", lambda row: row[4], TIME),
    ]
    return Table("Kernels of the step", columns, sorted(rows, key=lambda row: -row[4]), noun="kernel")


def _suffix(title: str) -> str:
    return "" if title == "recorded" else f"_{title}"


def _times(title: str, what: str, times_us: Mapping[str, float]) -> Table[tuple[str, float]]:
    column = Column[tuple[str, float]]
    columns = [column(what, lambda row: row[0]), column("time_us", lambda row: row[1], TIME)]
    return Table(title, columns, list(times_us.items()))


def _modules(modules: Sequence[ModuleTime]) -> AnyTable:
    return of_fields("Modules", modules, _MODULES, {"label": "module"}, noun="module")


def _categories(clocks: Mapping[str, Categories]) -> Table[tuple[str, str, bool]]:
    """Return a table of categories. Do not add up rows with `part` set: the category above includes them."""
    column = Column[tuple[str, str, bool]]
    columns = [
        column("category", lambda row: row[0]),
        column("part", lambda row: row[2], FLAG),
        *(
            column(f"time_us{_suffix(name)}", lambda row, of=of: getattr(of, row[1]), TIME)
            for name, of in clocks.items()
        ),
    ]
    return Table("Time of the step", columns, CATEGORY_ROWS)


def _changes(changes: Sequence[WhatIf] | Sequence[JobChange], socs: Mapping[str, object], *more: str) -> AnyTable:
    """Return the step length after each change, and `more` times of it.

    Changes that match nothing in the step have no times.
    """
    times = [
        Column[Any](field, lambda change, field=field: getattr(change, field) if change.matched else None, TIME)
        for field in ("step_us", "low_us", "high_us", "gain_us", *more)
    ]
    table = of_fields("What if", changes, {"change": TEXT, "matched": COUNT})
    return msgspec.structs.replace(table, columns=[*table.columns, *times, *_on_socs(socs)])


def _on_socs(socs: Mapping[str, object]) -> list[Column[Any]]:
    return [Column[Any](f"step_us_{name}", lambda change, name=name: change.socs_us.get(name), TIME) for name in socs]
