# pyright: strict
"""Join torch_npu's kernel table (kernel_details.csv, op_summary*.csv) to the tasks of its trace_view.json.

This module decides which row describes which task, and where a table may lie. `kernel_table` reads the table, and the
trace determines which op owns a task. A path that the trace contains is never opened.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import numpy as np

from opreplay.traces.dialects.kernel_table import MAX_ROWS, TableRow, open_table
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.folders import may_read
from opreplay.traces.model import KERNEL_CATEGORIES, DetailsJoin, KernelDetails, KernelKind, Trace
from opreplay.traces.names import plural

NAME = "kernel_details.csv"
SUMMARIES = "op_summary*.csv"
"""File name pattern of the tables that msprof writes; there may be several."""
MAX_ENTRIES = 10_000
"""Maximum number of entries of the trace's folder that are examined."""
SAME_START_NS = 1_000
"""Maximum difference between two start times that count as equal. The two writers round differently. Two launches of
one kernel never start this close together.
"""
SAME_OFFSET_NS = 1_000_000
"""Maximum change of the offset between two clocks during one profile."""
SAME_DURATION = 0.01
Pair = tuple[int, int]
_TASK = KERNEL_CATEGORIES.index("task")


def _summaries(folder: Path) -> list[str]:
    """Return the names of op_summary*.csv files in a folder.

    Return an empty list if the folder cannot be listed; its tables can still be named explicitly.
    """
    try:
        with os.scandir(folder) as entries:
            looked_at = itertools.islice(entries, MAX_ENTRIES)
            matching = (entry for entry in looked_at if fnmatchcase(entry.name, SUMMARIES))
            return [entry.name for entry in matching if entry.is_file() and may_read(entry.path)]
    except OSError:
        return []


def table_in_folder(path: str) -> str | None:
    """Return the table in the folder of a trace: kernel_details.csv, otherwise the only op_summary*.csv.

    Return None if there is neither. Raises UsageError for several op_summary*.csv files, because they belong to
    different devices or runs.
    """
    if path == "-" or not os.path.isfile(path):
        return None
    folder = Path(path).parent
    if (folder / NAME).is_file() and may_read(folder / NAME):
        return str(folder / NAME)
    tables = _summaries(folder)
    if len(tables) > 1:
        hint = "Select one with --set kernel_details=FILE."
        raise UsageError(f"{len(tables)} tables {SUMMARIES} are next to the trace", hint=hint)
    return str(folder / tables[0]) if tables else None


def with_table_in_folder(trace: Trace) -> Trace:
    """Return an NPU trace joined with the table in its folder, if there is one.

    If the table cannot be used, the trace stays unchanged and `info.kernel_details` says why.
    """
    if trace.info.dialect != "ascend":
        return trace
    name = SUMMARIES
    try:
        path = table_in_folder(trace.info.path)
        if path is None:
            return trace
        name = Path(path).name
        return join_kernel_details(trace, path, discovered=True)
    except (TraceError, UsageError) as error:
        return _informed(trace, DetailsJoin(file=name, discovered=True, problem=error.problem))


def join_kernel_details(trace: Trace, path: str, *, discovered: bool = False, max_rows: int = MAX_ROWS) -> Trace:
    """Return the trace with what the table says about its tasks: types, shapes, formats, waiting times and durations.

    Raises UsageError for a trace without NPU tasks, and TraceError for a file in another format or from another run.
    """
    if trace.info.dialect != "ascend":
        raise UsageError("kernel tables are only for traces of torch_npu", hint="Leave it out.")
    tasks = _tasks_by_name(trace)
    with open_table(path, max_rows=max_rows) as table:
        rows = _Rows()
        for row in table:
            rows.add(row, known=row.name in tasks)
        dropped = dict(table.dropped)
    kernels = trace.kernels
    kind, wait_ns = np.full(len(kernels), -1, np.int32), np.full(len(kernels), -1, np.int64)
    dur_ns = kernels.dur_ns.astype(np.int64)
    timed, ordered = rows.paired(tasks, kernels.start_ns)
    others = 0
    for index, at in (*timed, *ordered):
        kind[at], wait_ns[at] = rows.kind[index], rows.wait_ns[index]
        duration = rows.dur_ns[index]
        if duration >= 0:
            others += abs(duration - int(dur_ns[at])) > SAME_DURATION * duration
            dur_ns[at] = duration
    if not timed and not ordered:
        raise TraceError(
            f"{path}: none of its {rows.count} kernels is in the trace",
            hint="It belongs to another run or another rank.",
        )
    joined = DetailsJoin(
        file=Path(path).name,
        discovered=discovered,
        rows=rows.count,
        by_start=len(timed),
        by_order=len(ordered),
        communication_rows=rows.communication,
        other_durations=others,
        dropped=dropped,
        unmatched_rows=rows.count - rows.communication - len(timed) - len(ordered),
        unmatched_tasks=int(((kind < 0) & (kernels.category == _TASK)).sum()),
    )
    return msgspec.structs.replace(
        _informed(trace, joined),
        kernels=msgspec.structs.replace(kernels, dur_ns=dur_ns),
        details=KernelDetails(kinds=tuple(rows.kinds), kind=kind, wait_ns=wait_ns),
    )


def _informed(trace: Trace, joined: DetailsJoin) -> Trace:
    return msgspec.structs.replace(trace, info=msgspec.structs.replace(trace.info, kernel_details=joined))


def _tasks_by_name(trace: Trace) -> dict[str, list[int]]:
    """Return name → rows of `Trace.kernels` that are NPU tasks with this name, sorted by start."""
    kernels = trace.kernels
    tasks = np.flatnonzero(kernels.category == _TASK)
    by_name: dict[str, list[int]] = defaultdict(list)
    for at in tasks[np.argsort(kernels.start_ns[tasks], kind="stable")].tolist():
        by_name[trace.kernel_names[int(kernels.name[at])]].append(at)
    return dict(by_name)


class _Rows:
    """The few facts that the join needs about each table row, stored only for kernels that occur in the trace."""

    def __init__(self) -> None:
        self.count = self.communication = 0
        self.kinds: dict[KernelKind, int] = {}
        self.by_name: dict[str, list[int]] = defaultdict(list)
        self.kind: list[int] = []
        self.start_ns: list[int] = []
        self.dur_ns: list[int] = []
        self.wait_ns: list[int] = []

    def add(self, row: TableRow, *, known: bool) -> None:
        """Count a row, and keep it if a task of the trace has its name (`known`); missing values are -1."""
        self.count += 1
        if not known:
            self.communication += row.communication
            return
        kind = KernelKind(type=row.type, core=row.core, inputs=row.inputs, outputs=row.outputs)
        self.by_name[row.name].append(len(self.kind))
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.start_ns.append(-1 if row.start_ns is None else row.start_ns)
        self.dur_ns.append(-1 if row.duration_us is None else round(row.duration_us * 1000))
        self.wait_ns.append(-1 if row.wait_ns is None else row.wait_ns)

    def paired(self, tasks: dict[str, list[int]], start_ns: np.ndarray) -> tuple[list[Pair], list[Pair]]:
        """Return two lists of (row, task) pairs: those with equal starts, and those matched by order.

        For a name, order is used if equally many of its rows and tasks remain. Rows that give a start must also differ
        from their tasks by the same time, as if by two clocks, and no pair may have equal starts.
        """
        timed: list[Pair] = []
        ordered: list[Pair] = []
        for name, rows in self.by_name.items():
            open_rows, free = self._same_start(rows, tasks[name], start_ns, timed)
            if len(open_rows) == len(free):
                open_rows.sort(key=lambda row: (self.start_ns[row], row))
                ordered += zip(open_rows, free, strict=True)
        off = [int(start_ns[task]) - self.start_ns[row] for row, task in ordered if self.start_ns[row] >= 0]
        if off and (timed or max(off) - min(off) > SAME_OFFSET_NS):
            ordered = [(row, task) for row, task in ordered if self.start_ns[row] < 0]
        return timed, ordered

    def _same_start(
        self, rows: list[int], tasks: list[int], start_ns: np.ndarray, timed: list[Pair]
    ) -> tuple[list[int], list[int]]:
        """Add each pair (row, task) with equal starts to `timed`; return (remaining rows, remaining tasks)."""
        starts = start_ns[tasks]
        taken = np.zeros(len(tasks), bool)
        open_rows: list[int] = []
        for row in rows:
            wanted = self.start_ns[row]
            at = int(np.searchsorted(starts, wanted))
            near = [i for i in (at - 1, at) if 0 <= i < len(tasks) and not taken[i]] if wanted >= 0 else []
            best = min(near, key=lambda i: abs(int(starts[i]) - wanted), default=None)
            if best is None or abs(int(starts[best]) - wanted) > SAME_START_NS:
                open_rows.append(row)
            else:
                taken[best] = True
                timed.append((row, tasks[best]))
        return open_rows, [task for task, used in zip(tasks, taken.tolist(), strict=True) if not used]


def join_text(joined: DetailsJoin) -> str:
    """Return one line that describes how a table was joined. It says which table it was, how many rows were matched and
    by what, what was not matched, and how many durations come from the table.
    """
    where = "next to the trace" if joined.discovered else "as named"
    if joined.problem is not None:
        return f"{joined.file} {where} was not used: {joined.problem}"
    how = {"start": joined.by_start, "order": joined.by_order}
    matches = ", ".join(f"{count:,} by {name}" for name, count in how.items() if count)
    matched = joined.by_start + joined.by_order
    text = f"{joined.file} {where}: {matched:,} of {plural(joined.rows, 'kernel')} found ({matches})"
    counts = {
        plural(joined.communication_rows, "collective"): joined.communication_rows,
        f"{joined.unmatched_rows:,} not in the trace": joined.unmatched_rows,
        f"{plural(joined.unmatched_tasks, 'task')} of the trace not in the table": joined.unmatched_tasks,
        f"{plural(joined.other_durations, 'duration')} taken from the table": joined.other_durations,
        f"{plural(sum(joined.dropped.values()), 'broken row')} left out": sum(joined.dropped.values()),
    }
    return "; ".join([text, *(what for what, count in counts.items() if count)])
