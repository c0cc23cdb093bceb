"""Grids of launches: CUDA's kernels have them, of ROCm's the runtime calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.traces import Limits, read_trace
from opreplay.traces.joins.launch_grids import with_launch_grids
from opreplay.traces.reading.grids import grid_number, grid_sizes


def events(vendor: str) -> list[dict[str, Any]]:
    at = {"pid": 1, "tid": 1, "ph": "X"}
    grid = {"grid": [46, 144, 1]}
    types = {"Input Dims": [[64, 3072], [64, 128]], "Input type": ["c10::BFloat16"] * 2}
    return [
        {**at, "cat": "cpu_op", "name": "vllm::moe_forward", "ts": 1, "dur": 9, "args": {"External id": 1, **types}},
        {**at, "cat": "cuda_runtime", "name": f"{vendor}LaunchKernel", "ts": 2, "dur": 1,
         "args": {"correlation": 5, "External id": 1, **(grid if vendor == "hip" else {})}},
        {**at, "cat": "kernel", "name": "bmm", "ts": 20, "dur": 9, "pid": 0, "tid": 7,
         "args": {"correlation": 5, "External id": 1, "device": 0, "stream": 7, **(grid if vendor == "cuda" else {})}},
    ]  # fmt: skip


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
def test_grids_are_read_for_layers_of_experts(tmp_path: Path, vendor: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events(vendor)}))
    trace = read_trace(path)
    assert trace.kernels.grid is None
    grids = with_launch_grids(trace, Limits()).kernels.grid
    assert grids is not None
    assert [grid_sizes(number) for number in grids.tolist()] == [(46, 144, 1)]


@pytest.mark.parametrize("grid", [[1, 2, 3], [2**31 - 1, 65535, 65535], [0, 0, 0]])
def test_a_grid_is_one_number(grid: list[int]) -> None:
    assert grid_sizes(grid_number(grid)) == tuple(grid)


@pytest.mark.parametrize("grid", [None, "[1, 1, 1]", [1, 2], [1, 2, -3], [2**31, 1, 1], [1.5, 1, 1], [True, 1, 1]])
def test_what_is_no_grid_is_none(grid: object) -> None:
    assert grid_sizes(grid_number(grid)) is None
