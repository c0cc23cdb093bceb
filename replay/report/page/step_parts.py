# pyright: strict
"""More parts of a timeline's page: ops with their kernels, all steps, launches, memory, call stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from opreplay.replay.ir.step import IDLE_CAUSES
from opreplay.replay.report.page.model import Flames, Opened, OverTime, Steps
from opreplay.replay.report.step.tracks import Process
from opreplay.replay.report.steps import launch_line, launches_table, step_line, steps_table
from opreplay.replay.report.table import COUNT, SHARE, TIME, Column, Table, cut, heaviest
from opreplay.replay.report.text import plural, quotient, ratio_text, time_text
from opreplay.replay.timeline.all_steps import MOST_STEPS, categories_of_steps
from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.flames import frames_of
from opreplay.replay.timeline.graph.model import NO_OP
from opreplay.replay.timeline.memory import memory_over_step
from opreplay.replay.timeline.timeline import Study
from opreplay.traces.errors import NothingRan
from opreplay.traces.sums import summed
from opreplay.traces.times.steps import StepRow, launch_queue, launch_table, step_table

MOST_ROWS = 300
MOST_KERNELS = 12
MOST_POINTS = 4000
"""Maximum number of points of a line over time. A longer line is cut into intervals, each drawn at its maximum."""


class Tasks(msgspec.Struct):
    """All device tasks of one op."""

    us: float = 0.0
    kernels: dict[str, tuple[int, float]] = {}
    """Kernel name → (launches, µs)."""

    @property
    def text(self) -> str:
        """The longest-running kernels, each with its number of launches."""
        order = sorted(self.kernels.items(), key=lambda kernel: -kernel[1][1])
        parts = [f"{name} ×{count}, {time_text(us)}" for name, (count, us) in order[:MOST_KERNELS]]
        rest = order[MOST_KERNELS:]
        parts += [f"{plural(len(rest), 'other')}, {time_text(sum(us for _, (_, us) in rest))}"] if rest else []
        return "; ".join(parts)


class StepOp(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one op in a step; times in µs."""

    name: str
    device: dict[str, Tasks]
    """Name of a timeline (recorded, or of a simulated device) → tasks of the op on the device."""
    host_us: float
    """Recorded host time of the op itself, without the ops that it calls."""
    path_us: float
    """Time on the recorded critical path."""
    slack_us: float | None
    """Smallest slack among the op's device tasks off the critical path; None if all its tasks are on it."""

    @property
    def launches(self) -> int:
        """Number of recorded device tasks."""
        return sum(count for count, _ in self.device[RECORDED].kernels.values()) if RECORDED in self.device else 0


RECORDED = "recorded"


def tasks_by_op(process: Process) -> dict[str, Tasks]:
    """Return the device tasks of a timeline, grouped by op. Tasks that belong to no op are grouped by kernel name."""
    out: defaultdict[str, Tasks] = defaultdict(Tasks)
    spent = (process.end_us - process.start_us).tolist()
    for node in np.flatnonzero(process.graph.nodes.name >= 0).tolist():
        tasks, kernel = out[process.names.task(node)], process.names.kernel(node)
        count, us = tasks.kernels.get(kernel, (0, 0.0))
        tasks.us += spent[node]
        tasks.kernels[kernel] = (count + 1, us + spent[node])
    return dict(out)


def host_by_op(study: Study) -> dict[str, float]:
    """Return the host time of each op itself, without the ops that it calls."""
    rows, index = np.unique(study.graph.slices.op, return_inverse=True)
    sums = np.bincount(index, weights=study.graph.slices.dur_us, minlength=len(rows))
    by_row = zip(rows.tolist(), sums.tolist(), strict=True)
    return summed((study.names.op(row), us) for row, us in by_row if row != NO_OP)


def device_us(op: StepOp, title: str) -> float | None:
    return op.device[title].us if title in op.device else None


def ops_of_step(study: Study, tasks: dict[str, dict[str, Tasks]]) -> list[StepOp]:
    """Return the ops of a step; `tasks` holds the result of `tasks_by_op` for each timeline."""
    timeline, host = study.timeline, host_by_op(study)
    path = summed((part.name, part.us) for part in timeline.critical_path)
    slack = {entry.name: entry.slack_us for entry in timeline.slack}
    names = dict.fromkeys([*(name for ops in tasks.values() for name in ops), *host])
    return [
        StepOp(
            name=name,
            device={title: ops[name] for title, ops in tasks.items() if name in ops},
            host_us=host.get(name, 0.0),
            path_us=path.get(name, 0.0),
            slack_us=slack.get(name),
        )
        for name in names
    ]


def ops_table(study: Study, tasks: dict[str, dict[str, Tasks]]) -> Opened:
    """Return a table of the step's ops; each row expands to the kernels on each timeline."""
    timeline, rows = study.timeline, ops_of_step(study, tasks)
    column, step_us = Column[StepOp], timeline.step.window.step_us
    columns = [
        column("op", lambda op: op.name, form="name"),
        column("critical path", lambda op: op.path_us, TIME),
        column("share", lambda op: quotient(op.path_us, step_us), SHARE),
        *(column(f"device, {title}", partial(device_us, title=title), TIME) for title, ops in tasks.items() if ops),
        column("launches", lambda op: op.launches or None, COUNT),
        column("host", lambda op: op.host_us or None, TIME),
        column("least slack", lambda op: op.slack_us, TIME),
    ]
    table = heaviest("Ops of the step", columns, rows, weight, MOST_ROWS)
    return Opened(table=table, key=lambda op: op.name, details=lambda op: _details(op, timeline.source))


def weight(op: StepOp) -> float:
    """Return the time by which an op is ranked: the longest of its critical-path, host and device times."""
    return max(op.path_us, op.host_us, *(tasks.us for tasks in op.device.values()), 0.0)


def _details(op: StepOp, source: str) -> list[tuple[str, str]]:
    kernels = [(f"kernels, {title}", tasks.text) for title, tasks in op.device.items()]
    replay = [("reproduce", f"opreplay run {source} --include '{op.name}'")] if "::" in op.name else []
    return [*kernels, ("host", time_text(op.host_us)), *replay]


def spread_table(tasks: dict[str, dict[str, Tasks]]) -> Table[tuple[str, dict[str, float]]]:
    """Return the ops whose device time differs between ranks, largest difference first."""
    names = dict.fromkeys(name for ops in tasks.values() for name in ops)
    rows = [(name, {title: ops[name].us if name in ops else 0.0 for title, ops in tasks.items()}) for name in names]
    column = Column[tuple[str, dict[str, float]]]
    columns = [
        column("op", lambda row: row[0], form="name"),
        column("difference", _spread, TIME),
        column("longest on", lambda row: max(row[1], key=lambda title: row[1][title])),
        *(column(title, lambda row, title=title: row[1][title], TIME) for title in tasks),
    ]
    rows = [row for row in rows if _spread(row) > 0.0] if len(tasks) > 1 else []
    return heaviest("Device time by op and rank", columns, rows, _spread, MOST_ROWS)


def _spread(row: tuple[str, dict[str, float]]) -> float:
    return max(row[1].values()) - min(row[1].values())


def over_time(study: Study, zero_us: float) -> tuple[OverTime, ...]:
    """Return the memory in use and the queued device work over time, one entry each.

    A quantity that the trace lacks is omitted. Times start `zero_us` after the start of the step.
    """
    step, trace = study.graph.step, study.names.trace
    at_us, in_use = memory_over_step(trace, step)
    at_ns, waiting = launch_queue(trace, step.start_ns, step.end_ns)
    drawn = [
        OverTime(title="Memory in use", unit="MB", points=_points(at_us - zero_us, in_use / 1e6)),
        OverTime(
            title="Launched and waiting",
            unit="tasks",
            points=_points((at_ns - step.start_ns) / 1e3 - zero_us, waiting.astype(np.float64)),
            note="number of launched but not yet started device tasks; at 0, the device waits for the host",
        ),
    ]
    return tuple(figure for figure in drawn if len(figure.points) > 1)


def _points(at_us: np.ndarray, values: np.ndarray) -> tuple[tuple[float, float], ...]:
    if len(at_us) > MOST_POINTS:
        first = np.linspace(0, len(at_us), MOST_POINTS, endpoint=False).astype(np.int64)
        at_us, values = at_us[first], np.maximum.reduceat(values, first)
    return tuple(zip(at_us.tolist(), values.tolist(), strict=True))


_PARTS: tuple[tuple[str, Callable[[Categories], float]], ...] = (
    ("computing and copies", lambda times: times.computing + times.copies),
    ("communication alone", lambda times: times.communication_not_overlapped),
    *(
        (f"idle: {name}", lambda times, field=f"idle_{cause}": getattr(times, field))
        for cause, name in IDLE_CAUSES.items()
    ),
)


def all_steps(study: Study) -> tuple[Steps | None, tuple[Opened, ...]]:
    """Return the parts of each marked step as a figure and a table; nothing if fewer than two steps are marked."""
    trace = study.names.trace
    times = dict(categories_of_steps(trace))
    if not times:
        return None, ()
    marked = step_table(trace)
    column = Column[StepRow]
    causes = [
        column(
            f"idle: {name}",
            lambda row, field=f"idle_{cause}": getattr(times[row.name], field) if row.name in times else None,
            TIME,
        )
        for cause, name in IDLE_CAUSES.items()
        if any(getattr(step, f"idle_{cause}") for step in times.values())
    ]
    table = steps_table(marked)
    *before, name = table.columns
    table = msgspec.structs.replace(table, columns=[name, *before, *causes])
    parts = [part for part in _PARTS if any(part[1](step) > 0.0 for step in times.values())]
    figure = Steps(
        title="All steps",
        parts=tuple(name for name, _ in parts),
        steps=tuple((name, tuple(us(step) for _, us in parts)) for name, step in times.items()),
        outliers={row.name: ratio_text(row.over_median, 1.0) for row in marked.rows if row.outlier},
        note=step_line(marked) + (f"; the first {MOST_STEPS} are drawn" if len(marked.rows) > MOST_STEPS else ""),
    )
    return figure, (Opened(table=cut(table, MOST_ROWS), key=lambda row: row.name),)


def launches(study: Study) -> tuple[str, tuple[Opened, ...]]:
    """Return a summary of how kernels were launched, and a table by kernel; both empty if the trace lacks the data."""
    try:
        table = launch_table(study.names.trace)
    except NothingRan:
        return "", ()
    rows = launches_table(table)
    *before, name = rows.columns
    rows = msgspec.structs.replace(rows, columns=[name, *before])
    return launch_line(table), (Opened(table=cut(rows, MOST_ROWS), key=lambda row: row.name),)


def flames(study: Study) -> Flames | None:
    """Return the call stacks as a flame graph; None if the trace has no frames."""
    frames = frames_of(study.names.trace, study.graph)
    note = "host time of the step, calls with the same stack added up; click a frame to zoom in"
    return Flames(title="Call stacks", frames=frames, note=note) if frames else None
