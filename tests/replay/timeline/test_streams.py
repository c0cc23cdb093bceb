"""Dependencies between streams: no more of them a task where there are more streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opreplay.replay.timeline.graph.build import step_graph
from opreplay.replay.timeline.graph.model import CROSS_STREAM, StepGraph
from opreplay.replay.timeline.graph.schedule import paced
from opreplay.traces import read_trace
from opreplay.traces.links.steps import busy_steps

CALL = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "dur": 2}


def graph_of(tmp_path: Path, kernels: int, streams: int, late_us: float, waits: bool = False) -> StepGraph:
    """Kernels launched every 8 µs, round robin; each starts `late_us` after its launch, or as its stream is free."""
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1000}
    events: list[dict[str, Any]] = [step | {"dur": kernels * 8 + 200}]
    free_us = [0.0] * streams
    for i in range(kernels):
        at, stream = 1010 + 8 * i, i % streams
        start = max(at + 4 + late_us * (i % 2), free_us[stream])
        free_us[stream] = start + 5
        args = {"device": 0, "context": 1, "stream": 7 + stream, "correlation": i + 1}
        kernel = {"ph": "X", "cat": "kernel", "name": f"k{i % 5}", "pid": 0, "tid": 7 + stream, "ts": start, "dur": 4}
        if waits:
            events.append(CALL | {"name": "cudaEventRecord", "ts": at - 4, "args": {"correlation": 10000 + 2 * i}})
            events.append(CALL | {"name": "cudaStreamWaitEvent", "ts": at - 2, "args": {"correlation": 10001 + 2 * i}})
        events.append(CALL | {"name": "cudaLaunchKernel", "ts": at, "args": {"correlation": i + 1}})
        events.append(kernel | {"args": args})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read_trace(path, activity=True)
    return step_graph(trace, busy_steps(trace)[0])


def test_no_dependency_delays_a_task_whose_launch_explains_its_start(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, kernels=300, streams=16, late_us=0.0)
    across = graph.edges.kind == CROSS_STREAM
    assert not np.isnan(graph.edges.possible_us[across]).any()
    assert np.bincount(graph.edges.target[across]).max() == 1
    assert paced(graph).step_us == pytest.approx(graph.recorded_us)


def test_at_most_one_inferred_dependency_a_task(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, kernels=300, streams=16, late_us=6.0)
    into = np.bincount(graph.edges.target[graph.edges.kind == CROSS_STREAM])
    assert into.max() == 1
    assert 0 < into.sum() <= 300


def test_waits_for_events_on_many_streams(tmp_path: Path) -> None:
    few = graph_of(tmp_path, kernels=300, streams=4, late_us=6.0, waits=True)
    many = graph_of(tmp_path, kernels=300, streams=64, late_us=6.0, waits=True)
    assert len(many.edges) <= 1.5 * len(few.edges)
