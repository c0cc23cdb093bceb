# pyright: strict
"""Durations that are whole coarse units are told from timings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.traces import read_trace
from opreplay.traces.times.clock import LEAST_TASKS, coarse_unit_us


def traced(folder: Path, *durations: float) -> Path:
    events: list[dict[str, Any]] = []
    for i, dur in enumerate(durations):
        ids = {"External id": i + 1, "correlation": i + 1}
        host = {"ph": "X", "pid": 1, "tid": 1, "args": ids}
        events += [
            {**host, "cat": "cpu_op", "name": "aten::relu", "ts": 100 * i, "dur": 20},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100 * i + 1, "dur": 2},
            {**host, "cat": "kernel", "name": "k", "ts": 100 * i + 5, "dur": dur, "args": {**ids, "stream": 7}},
        ]
    path = folder / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.mark.parametrize(
    ("durations", "unit"),
    [
        ([10.0] * LEAST_TASKS, 10.0),
        ([10.0, 30.0] * LEAST_TASKS, 10.0),
        ([10.0] * (LEAST_TASKS - 1), None),
        ([*[10.0] * LEAST_TASKS, 7.0], None),
        ([1.0, 2.0] * LEAST_TASKS, None),
    ],
)
def test_a_coarse_clock(tmp_path: Path, durations: list[float], unit: float | None) -> None:
    assert coarse_unit_us(read_trace(traced(tmp_path, *durations))) == unit


@pytest.mark.parametrize("command", [["inspect"], ["plan"], ["simulate", "--soc", "910b3"]])
def test_commands_say_that_durations_are_no_timings(tmp_path: Path, command: list[str]) -> None:
    path = traced(tmp_path, *[10.0] * LEAST_TASKS)
    told = " ".join(CliRunner().invoke(opreplay, [command[0], str(path), *command[1:]]).output.split())
    assert "are multiples of 10.0 µs: rounded values or placeholders" in told
