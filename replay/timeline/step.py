# pyright: strict
"""One step as every command tells it: how long it took, what the device did in it, what bounds it; one value."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from opreplay.replay.timeline.categories import Categories
from opreplay.replay.timeline.graph.model import HOST, LAUNCH, STREAM, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path
from opreplay.replay.timeline.paths import PathPart
from opreplay.traces import Trace
from opreplay.traces.links.steps import Step, busy_steps, steps_of

HOST_BOUND_SHARE = 0.3
"""Share of the step in which the device waits for the host from which a step is bound by the host."""
COMMUNICATION_SHARE = 0.3
"""The same of communication beside which nothing computes."""
BUSY_SHARE = 0.7
"""Share of the step in which the device works from which a step is bound by the device."""

Bound = Literal["host", "communication", "device", "mixed", "host alone"]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step took, µs."""

    host_us: float
    """The marked range on its host thread."""
    device_us: float
    """From the start of the first to the end of the last device task that was launched in that range; 0 without any."""
    step_us: float
    """From the completion of the step before to that of this one; of a step that follows no recorded one the longer of
    what the host needed and the device's time. A trace that marks no steps is one step from its first event to its
    last."""


class StepOnDevice(msgspec.Struct, frozen=True, kw_only=True):
    """The step on a simulated device, µs."""

    step_us: float
    low_us: float | None
    high_us: float | None
    """80 % band; None where less than half of the computing is predicted."""
    predicted_share: float
    """Of the recorded device time: what has a prediction."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step; times in µs."""

    name: str
    number: int | None
    marked: bool
    """False: the trace marks no steps, the whole of it was taken for one."""
    steps: int
    """Marked steps of the trace."""
    host_us: float
    """The marked range on its host thread."""
    asked: bool = False
    """False: it is the one of median length among those that launch work."""
    all_host_us: tuple[float, float] | None = None
    """Of all marked steps with work: the shortest and the longest range on the host."""
    begin_us: float
    """When the device was done with what it still had to do of the step before, after this range began."""
    accelerator: Literal["GPU", "NPU", "device"]
    bound: Bound
    window: Window
    device_sum_us: float
    """Of all device tasks, whether beside each other or not."""
    busy_us: float
    """Of the step: with any work on the device; of a step of the host with an op on any thread."""
    communication_us: float
    """Of the step: communication beside which nothing computes."""
    idle_us: dict[str, float]
    """The rest of the step, by what the device waited for; they add up to it."""
    largest: tuple[tuple[str, float], ...]
    """What the host did on the critical path: names and times, longest first; at most three."""
    copied_host_share: float
    """Of the critical path: host time, which re-timing copies from the recording."""
    unknown_wait_us: float
    """Of the critical path: waiting that nothing recorded explains."""
    blocked_us: float
    """Host time in calls that wait for the device by their nature, of which nothing says for what."""
    socs: dict[str, StepOnDevice] = {}
    """By the name of the simulated device."""


IDLE_CAUSES = {
    "before_first": "idle_before_first",
    "host": "idle_host_bound",
    "launch_latency": "idle_launch_latency",
    "dependency": "idle_dependency",
    "after_last": "idle_after_last",
}
"""Key of `StepReport.idle_us` → field of `Categories`."""


def step_report(
    trace: Trace,
    chosen: Step,
    graph: StepGraph,
    schedule: Schedule,
    times: Categories,
    path: tuple[PathPart, ...],
    socs: dict[str, StepOnDevice],
    *,
    asked: bool,
) -> StepReport:
    """What is told of a step: its graph, the schedule of that, what the device did, and the critical path."""
    nodes = graph.nodes
    work = nodes.row >= 0
    ends = nodes.start_us + nodes.dur_us
    device_us = float(ends[work].max() - nodes.start_us[work].min()) if work.any() else 0.0
    ranges = [(step.end_ns - step.start_ns) / 1e3 for step in busy_steps(trace)]
    path_us = sum(part.us for part in path)
    host = [part for part in path if part.where == "host"]
    return StepReport(
        name=chosen.name,
        number=chosen.number,
        marked=chosen.marked,
        steps=len(steps_of(trace)),
        asked=asked,
        host_us=graph.host_us,
        all_host_us=(min(ranges), max(ranges)) if len(ranges) > 1 else None,
        begin_us=graph.begin_us,
        accelerator=_ACCELERATORS.get(trace.info.vendor or "", "device"),
        bound=_bound(graph, times),
        window=Window(host_us=graph.host_us, device_us=device_us, step_us=graph.recorded_us),
        device_sum_us=float(nodes.dur_us[work].sum()),
        busy_us=max(0.0, graph.recorded_us - times.idle),
        communication_us=times.communication_not_overlapped,
        idle_us={cause: getattr(times, field) for cause, field in IDLE_CAUSES.items()},
        largest=tuple((part.name, part.us) for part in host[:3]),
        copied_host_share=sum(part.us for part in host) / path_us if path_us else 0.0,
        unknown_wait_us=_unknown_on_path(graph, schedule),
        blocked_us=graph.blocked_us,
        socs=socs,
    )


_ACCELERATORS: dict[str, Literal["GPU", "NPU"]] = {"nvidia": "GPU", "amd": "GPU", "intel": "GPU", "ascend": "NPU"}


def _bound(graph: StepGraph, times: Categories) -> Bound:
    if not graph.on_device:
        return "host alone"
    step_us = graph.recorded_us or 1.0
    if times.idle_for_host > HOST_BOUND_SHARE * step_us:
        return "host"
    if times.communication_not_overlapped > COMMUNICATION_SHARE * step_us:
        return "communication"
    return "device" if step_us - times.idle >= BUSY_SHARE * step_us else "mixed"


def _unknown_on_path(graph: StepGraph, schedule: Schedule) -> float:
    """Of the critical path: waiting that nothing explains."""
    edges = graph.edges
    unexplained = (edges.unknown_us > 0) & np.isin(edges.kind, (LAUNCH, STREAM))
    if not unexplained.any():
        return 0.0
    path, _ = critical_path(graph, schedule)
    on_path = np.zeros(len(graph.nodes), bool)
    on_path[path[graph.nodes.kind[path] != HOST]] = True
    binding = unexplained & on_path[edges.target] & (schedule.cause[edges.target] == edges.source)
    return float(edges.unknown_us[binding].sum())
