"""`inspect` of a folder of traces: a line a rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result


def rank_file(folder: Path, rank: int) -> None:
    """A rank's product of 400 µs and an all-reduce of 100 µs times its rank, half beside it."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 2}
    kernel = {"ph": "X", "cat": "kernel", "pid": 0}
    product = {"device": 0, "stream": 7, "correlation": 1}
    reduce = {"device": 0, "stream": 20, "correlation": 2}
    events = [
        launch | {"ts": 10, "args": {"correlation": 1}},
        launch | {"ts": 20, "args": {"correlation": 2}},
        kernel | {"name": "gemm", "tid": 7, "ts": 100, "dur": 400, "args": product},
        kernel | {"name": "ncclDevKernel_AllReduce", "tid": 20, "ts": 450, "dur": 100 * rank, "args": reduce},
    ]
    info = {"backend": "nccl", "rank": rank, "world_size": 4}
    (folder / f"r{rank}.json").write_text(
        json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events})
    )


def test_a_line_a_rank(console: Callable[..., Result], tmp_path: Path) -> None:
    for rank in (3, 1, 2):
        rank_file(tmp_path, rank)
    (tmp_path / "notes.json").write_text("{}")
    done = console("inspect", tmp_path, "--format", "json")
    files = json.loads(done.stdout)["files"]
    assert [one["rank"] for one in files] == [1, 2, 3]
    assert [one["communication_us"] for one in files] == [100.0, 200.0, 300.0]
    assert [one["exposed_communication_us"] for one in files] == [50.0, 150.0, 250.0]
    assert [one["device_us"] for one in files] == [500.0, 600.0, 700.0]
    assert "r3.json" in console("inspect", tmp_path).stdout.splitlines()[0]


def test_options_for_one_trace_are_refused(console: Callable[..., Result], tmp_path: Path) -> None:
    rank_file(tmp_path, 1)
    assert "need a single trace" in console("inspect", tmp_path, "--by", "op", code=2).stderr


def test_a_folder_without_traces(console: Callable[..., Result], tmp_path: Path) -> None:
    assert "contains no .json" in console("inspect", tmp_path, code=2).stderr
