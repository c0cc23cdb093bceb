"""The kernels of an NPU's trace as text: how a kernel table was joined, and what each op owns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from opreplay.replay.report.columns import plain_table
from opreplay.replay.report.text import end, middle, plural, safe, time_text
from opreplay.traces.npu import DetailsJoin
from opreplay.traces.op_kernels import OpKernels

OPS_SHOWN = 12
KERNELS_SHOWN = 4
NO_OP = "(no op)"
_TYPE_CHARS = 32
_NARROW = 100
"""Width below which shapes are left out."""


def join_text(joined: DetailsJoin) -> str:
    """One line: which table, how many of its rows were found and how, what was not, and whose durations count."""
    where = "beside the trace" if joined.discovered else "as named"
    if joined.problem is not None:
        return f"{joined.file} {where} is not used: {joined.problem}"
    how = {"start": joined.by_start, "order": joined.by_order}
    found = ", ".join(f"{count:,} by {name}" for name, count in how.items() if count)
    matched = joined.by_start + joined.by_order
    text = f"{joined.file} {where}: {matched:,} of {plural(joined.rows, 'kernel')} found ({found})"
    counts = {
        plural(joined.communication_rows, "collective"): joined.communication_rows,
        f"{joined.unmatched_rows:,} not in the trace": joined.unmatched_rows,
        f"{plural(joined.unmatched_tasks, 'task')} of the trace without a row": joined.unmatched_tasks,
        f"{plural(joined.other_durations, 'duration')} taken from the table": joined.other_durations,
        f"{plural(sum(joined.dropped.values()), 'broken row')} left out": sum(joined.dropped.values()),
    }
    return "; ".join([text, *(what for what, count in counts.items() if count)])


def kernels_table(ops: Sequence[OpKernels], *, width: int) -> Table:
    """The heaviest ops with the heaviest of their kernels: type, launches, time, core and, if there is room, shapes."""
    table = plain_table()
    table.add_column("op", no_wrap=True)
    for title in ("time", "launches"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    wide = width >= _NARROW
    if wide:
        table.add_column("core", no_wrap=True, style="dim")
        table.add_column("waited", justify="right", no_wrap=True, style="dim")
        table.add_column("heaviest", no_wrap=True, style="dim", overflow="ellipsis")
    for op in ops[:OPS_SHOWN]:
        name = middle(safe(op.op or NO_OP), 40 if wide else 24)
        for kernel in op.kernels[:KERNELS_SHOWN]:
            cells = [name, time_text(kernel.total_us), f"{kernel.count:,}", end(safe(kernel.type), _TYPE_CHARS)]
            more = [safe(kernel.core), time_text(kernel.wait_us), safe(kernel.tensors)] if wide else []
            table.add_row(*map(Text, (*cells, *more)))
            name = ""
        if len(op.kernels) > KERNELS_SHOWN:
            table.add_row("", "", "", Text(f"and {len(op.kernels) - KERNELS_SHOWN} more types", style="dim"))
    if len(ops) > OPS_SHOWN:
        rest = sum(op.device_us for op in ops[OPS_SHOWN:])
        table.add_row(Text(plural(len(ops) - OPS_SHOWN, "more op"), style="dim"), Text(time_text(rest), style="dim"))
    return table
