# pyright: strict
"""Convert a step's graph and schedule to the nodes of a Chakra trace: activities, dependencies and latencies.

A Chakra dependency has no lag. If a node started some time after its last dependency had ended, a node as long as that
gap is inserted between them. If a node started before a dependency had ended, it depends instead on what that
dependency depends on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opreplay.replay.export.chakra import Attributes, ChakraNode, ChakraTrace, encode_file
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.step import PYTHON
from opreplay.replay.plan.recorded.groups import signature_id
from opreplay.replay.timeline.graph.model import COLLECTIVE, HOST, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.timeline import Study
from opreplay.traces import Trace
from opreplay.traces.arrays import distinct
from opreplay.traces.names import plural

_ROUNDING_US = 1e-6


def chakra_of_step(study: Study, plan: ReplayPlan, *, clock: str = "recorded") -> ChakraTrace:
    """Return the step as a Chakra trace.

    `clock` selects the times: "recorded", or the name of a simulated device. A replay that uses only the dependencies
    and durations of the trace takes `beyond_us` longer than the step (see `Attributes`).
    """
    on = study.simulated.get(clock)
    step = study if on is None else on
    graph, names, schedule = step.graph, step.names, step.schedule
    export = _Export(graph, names, schedule, plan)
    step_us = schedule.step_us
    beyond_us = float(schedule.end_us.max(initial=step_us)) - step_us
    waiting = on is None and bool((graph.nodes.kind == COLLECTIVE).any())
    notes = [
        "collectives take their recorded time, including waiting for other ranks" if waiting else "",
        f"exported without arguments: {plural(export.unplanned, 'kernel')} that belong to no planned op"
        if export.unplanned
        else "",
    ]
    return encode_file(export.nodes, clock, notes, Attributes(step_us=step_us, beyond_us=beyond_us))


class _Export:
    """Converts one schedule to Chakra nodes."""

    def __init__(self, graph: StepGraph, names: Names, schedule: Schedule, plan: ReplayPlan) -> None:
        self.graph, self.names, self.schedule = graph, names, schedule
        self.nodes: list[ChakraNode] = []
        self.unplanned = 0
        self._ops = {op.id: op for op in plan.ops}
        self._ids = _signature_ids(names.trace, graph)
        self._first_of_call: dict[int, int] = {}
        self._number = [0] * len(graph.nodes)
        """Chakra node number of each graph node; 0 if it has none yet."""
        self._waits_for: list[tuple[int, ...]] = [()] * len(graph.nodes)
        bounds = np.searchsorted(graph.edges.target, np.arange(len(graph.nodes) + 1)).tolist()
        sources: list[int] = graph.edges.source.tolist()
        order = np.arange(len(graph.nodes))
        if graph.kernels_take_turns:  # a kernel may wait for one of a later row
            order = np.lexsort((order, schedule.start_us))
        for node in order.tolist():
            self._add(node, sources[bounds[node] : bounds[node + 1]])

    def _add(self, node: int, sources: Sequence[int]) -> None:
        start, end = self._start(node), self._end(node)
        cause = int(self.schedule.cause[node])
        waits: dict[int, None] = {}
        for source in (*sources, *([cause] if cause >= 0 else [])):
            if not self._number[source]:
                continue
            if self._end(source) <= start + _ROUNDING_US:
                waits[self._number[source]] = None
            else:  # it began before that end
                waits.update(dict.fromkeys(self._waits_for[source]))
        since = max((self._end_of(number) for number in waits), default=0.0)
        if start - since > _ROUNDING_US:
            self.nodes.append(self._latency(node, cause, tuple(waits), since, start))
            waits = {len(self.nodes): None}
        self._waits_for[node] = tuple(waits)
        self.nodes.append(self._of(node, tuple(waits), start, end))
        self._number[node] = len(self.nodes)

    def _start(self, node: int) -> float:
        return float(self.schedule.start_us[node])

    def _end(self, node: int) -> float:
        return float(self.schedule.end_us[node])

    def _end_of(self, number: int) -> float:
        node = self.nodes[number - 1]
        return node.start_us + node.duration_us

    def _latency(self, node: int, cause: int, waits: tuple[int, ...], since: float, start: float) -> ChakraNode:
        name = self.names.wait(int(self.schedule.cause_kind[node])) if cause >= 0 else "(earlier step)"
        return _stretch(name, waits, since, start, on_host=bool(self.graph.nodes.kind[node] == HOST))

    def _of(self, node: int, waits: tuple[int, ...], start: float, end: float) -> ChakraNode:
        nodes = self.graph.nodes
        if nodes.name[node] < 0:
            return _stretch(self._host_name(node), waits, start, end, on_host=True)
        owner = int(nodes.owner[node])
        op = self._op(owner)
        self.unplanned += op is None
        parent = self._first_of_call.get(owner) if op is not None else None
        if parent is not None and self._end_of(parent) > start + _ROUNDING_US:
            parent = None  # further work of the call beside it
        first = op if owner not in self._first_of_call else None
        if first is not None:
            self._first_of_call[owner] = len(self.nodes) + 1
        memories, kernels, row = self.names.trace.ops.memories, self.names.trace.kernels, int(nodes.row[node])
        return ChakraNode(
            name=first.name if first is not None else self.names.kernel(node),
            waits_for=waits,
            parent=parent,
            start_us=start,
            duration_us=end - start,
            on_host=False,
            device=int(kernels.device[row]) if row >= 0 else None,
            stream=int(kernels.stream[row]) if row >= 0 else None,
            op=first,
            memories=memories.of_row(owner)[0] if first is not None and memories is not None else None,
            whole_us=round(end) - round(start),
        )

    def _op(self, row: int) -> ReplayOp | None:
        return None if row < 0 else self._ops.get(self._ids[int(self.names.trace.ops.signature[row])])

    def _host_name(self, node: int) -> str:
        """Return the name of the op that takes most of a host interval, or `PYTHON`."""
        low, count = int(self.graph.nodes.first_slice[node]), int(self.graph.nodes.slices[node])
        if not count:
            return PYTHON
        slices = self.graph.slices
        longest = low + int(np.argmax(slices.dur_us[low : low + count]))
        row = int(slices.op[longest])
        return self.names.op(row) if row >= 0 else PYTHON


def _stretch(name: str, waits: tuple[int, ...], start: float, end: float, *, on_host: bool) -> ChakraNode:
    """Return a node for host time or a latency.

    Start and end are rounded separately. Otherwise the times along a path would not add up.
    """
    return ChakraNode(
        name=name,
        waits_for=waits,
        start_us=start,
        duration_us=end - start,
        on_host=on_host,
        whole_us=round(end) - round(start),
        is_work=False,
    )


def _signature_ids(trace: Trace, graph: StepGraph) -> dict[int, str]:
    """Map each signature index to the op id, for the ops that own device work of the step."""
    owners = graph.nodes.owner[graph.nodes.owner >= 0]
    used: list[int] = distinct(trace.ops.signature[owners]).tolist()
    return {index: signature_id(trace.signatures[index]) for index in used}
