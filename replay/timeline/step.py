# pyright: strict
"""The step report that all commands show, made from a step's graph, its schedule and its critical path."""

from __future__ import annotations

from typing import Literal

import numpy as np

from opreplay.replay.ir.step import (
    IDLE_CAUSES,
    Bound,
    ModuleTime,
    PythonTime,
    StepOnDevice,
    StepReport,
    Window,
)
from opreplay.replay.timeline.categories import Categories, device_work
from opreplay.replay.timeline.graph.model import HOST, LAUNCH, STREAM, StepGraph
from opreplay.replay.timeline.graph.schedule import Schedule, critical_path
from opreplay.replay.timeline.names import Names
from opreplay.replay.timeline.paths import PathPart
from opreplay.traces.links.steps import busy_steps, launches_in, steps_of
from opreplay.traces.times.clock import coarse_unit_us
from opreplay.traces.times.doubts import LEAST_SHARE, Doubts, doubts_of

HOST_BOUND_SHARE = 0.3
"""A step is host-bound if the device waits for the host for more than this share of the step."""
COMMUNICATION_SHARE = 0.3
"""A step is communication-bound if communication not overlapped with computing takes more than this share of
the step.
"""
BUSY_SHARE = 0.7
"""A step is device-bound if the device is busy for at least this share of the step."""


def step_report(
    names: Names,
    schedule: Schedule,
    times: Categories,
    path: tuple[PathPart, ...],
    python: tuple[PythonTime, ...],
    modules: tuple[ModuleTime, ...],
    socs: dict[str, StepOnDevice],
    *,
    asked: bool,
) -> StepReport:
    """Return the report of a step from its graph, its schedule, its device activity, and its critical path."""
    trace, graph = names.trace, names.graph
    nodes, chosen = graph.nodes, graph.step
    work = device_work(graph) if graph.on_device else nodes.row >= 0
    ends = nodes.start_us + nodes.dur_us
    device_us = float(ends[work].max() - nodes.start_us[work].min()) if work.any() else 0.0
    doubts = doubts_of(trace)
    launches, without = launches_in(trace, chosen)
    uncertain = doubts != Doubts() or without >= LEAST_SHARE * max(1, launches)
    ranges = [(step.end_ns - step.start_ns) / 1e3 for step in busy_steps(trace)]
    bound, launched = _bound(graph, times), bool((graph.edges.kind == LAUNCH).any())
    uncertain |= bound == "mixed" and not launched
    path_us = sum(part.us for part in path)
    host = [part for part in path if part.where == "host"]
    return StepReport(
        name=chosen.name,
        number=chosen.number,
        marked=chosen.marked,
        steps=len(steps_of(trace)),
        steps_with_work=len(ranges),
        doubts=doubts,
        asked=asked,
        host_us=graph.host_us,
        all_host_us=(min(ranges), max(ranges)) if len(ranges) > 1 else None,
        begin_us=graph.begin_us,
        accelerator=_ACCELERATORS.get(str(trace.info.vendor), "device"),
        launches=launches,
        launches_without_kernel=without,
        bound="unknown" if graph.on_device and uncertain else bound,
        launches_unknown=bound == "mixed" and not launched,
        window=Window(host_us=graph.host_us, device_us=device_us, step_us=graph.recorded_us),
        device_sum_us=float(nodes.dur_us[work].sum()),
        busy_us=max(0.0, graph.recorded_us - times.idle),
        communication_us=times.communication_not_overlapped,
        idle_us={
            cause: getattr(times, f"idle_{cause}")
            for cause in IDLE_CAUSES
            if cause != "unknown_cause" or times.idle_unknown_cause
        },
        largest=tuple((part.name, part.us) for part in host[:3]),
        python=python[:3],
        copied_host_share=sum(part.us for part in host) / path_us if path_us else 0.0,
        unknown_wait_us=_unknown_on_path(graph, schedule),
        blocked_us=graph.blocked_us,
        modules=modules,
        socs=socs,
        losses=trace.info.report.losses,
        coarse_unit_us=coarse_unit_us(trace),
        process=trace.info.process,
        processes=trace.info.processes,
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
    """Return the waiting time on the critical path, in µs, that no recorded dependency explains."""
    edges = graph.edges
    unexplained = (edges.unknown_us > 0) & np.isin(edges.kind, (LAUNCH, STREAM))
    if not unexplained.any():
        return 0.0
    path, _ = critical_path(graph, schedule)
    on_path = np.zeros(len(graph.nodes), bool)
    on_path[path[graph.nodes.kind[path] != HOST]] = True
    binding = unexplained & on_path[edges.target] & (schedule.cause[edges.target] == edges.source)
    return float(edges.unknown_us[binding].sum())
