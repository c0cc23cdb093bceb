"""The critical path and the slack of the rest, by op and by module: time on the path adds up to the step."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from opreplay.replay.timeline.graph import Floats, StepGraph
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.schedule import Schedule, critical_path, slack_us

HOST, DEVICE, WAIT = "host", "device", "wait"


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one op, or one kind of waiting, adds to the step."""

    name: str
    us: float
    where: str
    """"device", "host" or "wait" (latencies and gaps, in which neither works)."""
    times: int
    """Stretches on the path."""


class Slack(msgspec.Struct, frozen=True, kw_only=True):
    """Work off the critical path."""

    name: str
    us: float
    slack_us: float
    """How much longer its least free instance could take without the step taking longer."""
    where: str


def path_parts(names: Names, graph: StepGraph, schedule: Schedule) -> tuple[list[PathPart], list[tuple[str, float]]]:
    """(parts by op, longest first; (module, µs) of the same time, longest first).

    Host time counts for the op it is in; the scale of a stretch whose length was changed is shared by all its ops.
    """
    path, waits = critical_path(graph, schedule)
    nodes, slices, begin = graph.nodes, graph.slices, _begin(graph, schedule)
    us: defaultdict[tuple[str, str], float] = defaultdict(float)
    times: defaultdict[tuple[str, str], int] = defaultdict(int)
    modules: defaultdict[str, float] = defaultdict(float)
    owed = 0.0  # a task that starts before the one before it has ended: that one's part on the path is shorter

    def add(name: str, where: str, amount: float, module: str) -> None:
        us[name, where] += amount
        times[name, where] += 1
        modules[module] += amount

    for position in range(len(path) - 1, -1, -1):
        node, wait = int(path[position]), float(waits[position])
        start, end = float(schedule.start_us[node]), float(schedule.end_us[node])
        spent = max(0.0, end - max(start, begin)) - owed
        owed = max(0.0, -spent)
        spent = max(0.0, spent)
        if graph.lanes[nodes.lane[node]].device:
            add(names.task(node), DEVICE, spent, names.module_of_op(int(nodes.owner[node])))
        elif spent > 0.0:
            low, count = int(nodes.first_slice[node]), int(nodes.slices[node])
            lengths = slices.dur_us[low : low + count]
            total = float(lengths.sum())
            for op in np.unique(slices.op[low : low + count]).tolist():
                share = float(lengths[slices.op[low : low + count] == op].sum()) / total if total else 0.0
                add(names.op(op), HOST, spent * share, names.module_of_op(op))
        if wait < 0.0:
            owed -= wait
        elif wait > 0.0:
            counted = min(wait, max(0.0, start - begin))
            edge = int(schedule.cause[node])
            label = names.wait(int(graph.edges.kind[edge])) if edge >= 0 else "(start of the thread or stream)"
            if counted > 0.0:
                add(label, WAIT, counted, label)
    parts = [PathPart(name=n, us=v, where=w, times=times[n, w]) for (n, w), v in us.items() if v > 0.0]
    parts.sort(key=lambda part: (-part.us, part.name))
    return parts, sorted(((m, v) for m, v in modules.items() if v > 0.0), key=lambda item: (-item[1], item[0]))


def _begin(graph: StepGraph, schedule: Schedule) -> float:
    """Where the step that the path explains begins, on the graph's clock."""
    return max(0.0, float(schedule.end_us.max(initial=0.0)) - schedule.step_us)


def slack_of_ops(names: Names, graph: StepGraph, schedule: Schedule, lags_us: Floats | None = None) -> list[Slack]:
    """Device work off the critical path by op, that with most time first."""
    slack = slack_us(graph, schedule, lags_us)
    on_path = set(critical_path(graph, schedule)[0].tolist())
    device = np.array([lane.device for lane in graph.lanes] or [False])[graph.nodes.lane]
    us: defaultdict[str, float] = defaultdict(float)
    least: dict[str, float] = {}
    for node in np.flatnonzero(device & (graph.nodes.name >= 0)).tolist():
        if node in on_path:
            continue
        name = names.task(node)
        us[name] += float(schedule.end_us[node] - schedule.start_us[node])
        least[name] = min(least.get(name, np.inf), float(slack[node]))
    found = [Slack(name=name, us=spent, slack_us=least[name], where=DEVICE) for name, spent in us.items()]
    return sorted(found, key=lambda item: (-item.us, item.name))
