# pyright: strict
"""The critical path of a step and the slack of work off the path, by op and by module.

Times on the path add up to the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec
import numpy as np

from opreplay.replay.timeline.graph.model import NO_OP, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path, slack_us
from opreplay.replay.timeline.names import Names
from opreplay.traces.arrays import Floats, Ints
from opreplay.traces.sums import summed

HOST, DEVICE, WAIT = "host", "device", "wait"


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """Time that one op, or one kind of wait, contributes to the step."""

    name: str
    us: float
    where: str
    """"device", "host" or "wait" (latencies and gaps in which neither device nor host works)."""
    times: int
    """Number of calls on the path.

    For device work, it is the number of tasks. For waits and Python between ops, it is the number of intervals.
    """


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """Work off the critical path."""

    name: str
    us: float
    slack_us: float
    """Additional time that the most critical of the op's tasks could take without lengthening the step."""
    where: str


def path_parts(names: Names, graph: StepGraph, schedule: Schedule) -> tuple[list[PathPart], dict[int | str, float]]:
    """Return (parts of the path by op, longest first; µs on the path by key).

    A key is an op row, -1 for no op, or a kind of wait.

    Host time counts for the op that runs in it. If the length of a host interval was changed, all its ops are scaled by
    the same factor.
    """
    path, waits = critical_path(graph, schedule)
    nodes, slices, begin = graph.nodes, graph.slices, _begin(graph, schedule)
    spent, waited = path_times(schedule, path, waits, begin)
    device = np.array([lane.device for lane in graph.lanes] or [False])[nodes.lane[path]]
    us: defaultdict[tuple[str, str], float] = defaultdict(float)
    times: defaultdict[tuple[str, str], int] = defaultdict(int)
    by_row: defaultdict[int | str, float] = defaultdict(float)

    def add(name: str, where: str, amount: float, row: int | str) -> None:
        us[name, where] += amount
        times[name, where] += 1
        by_row[row] += amount

    where = DEVICE if graph.on_device else HOST  # collectives that the host runs are no work of a device
    for place in np.flatnonzero(device).tolist():
        node = int(path[place])
        add(names.task(node), where, float(spent[place]), int(nodes.owner[node]))
    for place in np.flatnonzero(waited > 0.0).tolist():
        waits = schedule.cause[path[place]] >= 0
        label = names.wait(int(schedule.cause_kind[path[place]])) if waits else "(start of the thread or stream)"
        add(label, WAIT, float(waited[place]), label)
    host = path[~device]
    counts = nodes.slices[host]
    before_each = np.cumsum(counts) - counts
    rows = np.repeat(nodes.first_slice[host] - before_each, counts) + np.arange(int(counts.sum()))
    total = np.add.reduceat(np.append(slices.dur_us[rows], 0.0), np.cumsum(counts) - counts) if len(host) else counts
    scale = np.where((total > 0) & (counts > 0), spent[~device] / np.where(total > 0, total, 1.0), 0.0)
    amount = slices.dur_us[rows] * np.repeat(scale, counts)
    ops, index = np.unique(slices.op[rows], return_inverse=True)
    for op, part, n in zip(ops.tolist(), np.bincount(index, weights=amount), np.bincount(index), strict=True):
        add(names.op(op), HOST, float(part), op)
        if op == NO_OP:
            times[names.op(op), HOST] += int(n) - 1
    parts = [PathPart(name=n, us=v, where=w, times=times[n, w]) for (n, w), v in us.items() if v > 0.0]
    parts.sort(key=lambda part: (-part.us, part.name))
    return parts, by_row


def path_modules(names: Names, by_row: Mapping[int | str, float]) -> dict[str, float]:
    """Map each innermost module, and each kind of wait, to its time on the path; longest first."""
    modules = summed((row if isinstance(row, str) else names.module_of_op(row), us) for row, us in by_row.items())
    return dict(sorted(((m, v) for m, v in modules.items() if v > 0.0), key=lambda item: (-item[1], item[0])))


def path_times(schedule: Schedule, path: Ints, waits: Floats, begin: float) -> tuple[Floats, Floats]:
    """Return (time that each node of the path adds to the step, waiting time before each node), in µs."""
    spent, waited = np.zeros(len(path)), np.zeros(len(path))
    owed = 0.0  # a task that starts before the one before it has ended: that one's part of the path is shorter
    for place in range(len(path) - 1, -1, -1):
        node, wait = path[place], float(waits[place])
        start, end = float(schedule.start_us[node]), float(schedule.end_us[node])
        rest = max(0.0, end - max(start, begin)) - owed
        owed = max(0.0, -rest)
        spent[place] = max(0.0, rest)
        if wait < 0.0:
            owed -= wait
        else:
            waited[place] = min(wait, max(0.0, start - begin))
    return spent, waited


def _begin(graph: StepGraph, schedule: Schedule) -> float:
    """Return the time on the graph's clock at which the part of the schedule that the path explains begins."""
    return max(0.0, float(schedule.end_us.max(initial=0.0)) - schedule.step_us)


def slack_of_ops(names: Names, graph: StepGraph, schedule: Schedule, lags_us: Floats | None = None) -> list[Slack]:
    """Return, by op, the device work that is not on the critical path; most time first."""
    slack = slack_us(graph, schedule, lags_us)
    device = np.array([lane.device for lane in graph.lanes] or [False])[graph.nodes.lane]
    off = np.flatnonzero(device & (graph.nodes.name >= 0))
    off = off[~np.isin(off, critical_path(graph, schedule)[0])]
    signature = np.full(len(off), -1, np.int64)
    owned = graph.nodes.owner[off] >= 0
    signature[owned] = names.trace.ops.signature[graph.nodes.owner[off[owned]]]
    kinds, index = np.unique(
        np.stack([signature, np.where(owned, 0, graph.nodes.name[off])]), axis=1, return_inverse=True
    )
    spent = np.bincount(index.reshape(-1), weights=(schedule.end_us - schedule.start_us)[off], minlength=kinds.shape[1])
    smallest = np.full(kinds.shape[1], np.inf)
    np.minimum.at(smallest, index.reshape(-1), slack[off])
    by_name: dict[str, tuple[float, float]] = {}
    for (op, kernel), us, free in zip(kinds.T.tolist(), spent.tolist(), smallest.tolist(), strict=True):
        name = names.trace.signatures[int(op)].name if op >= 0 else names.trace.kernel_names[int(kernel)]
        before = by_name.get(name, (0.0, np.inf))
        by_name[name] = (before[0] + us, min(before[1], free))
    where = DEVICE if graph.on_device else HOST
    slacks = [Slack(name=name, us=us, slack_us=free, where=where) for name, (us, free) in by_name.items()]
    return sorted(slacks, key=lambda item: (-item.us, item.name))
