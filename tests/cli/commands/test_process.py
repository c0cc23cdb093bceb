"""--process on every command that reads a trace, and ranks of a merged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.main import opreplay
from tests.traces.events import write

CASES = Path(__file__).parents[2] / "traces" / "cases"
MERGED = CASES / "merged_two_processes.json"


def invoke(*args: object) -> Result:
    return CliRunner().invoke(opreplay, [*map(str, args)], env={"COLUMNS": "100"})


def facts(*args: object) -> Any:
    result = invoke(*args, "--format", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_plan_and_inspect_of_one_process() -> None:
    ops = facts("plan", MERGED)["unique_ops"]
    assert sorted(op["count"] * op["recorded_device_us"] for op in ops) == [30.0, 120.0]
    (op,) = facts("plan", MERGED, "--process", "2")["unique_ops"]
    assert op["count"] * op["recorded_device_us"] == 120.0
    assert facts("inspect", MERGED, "--process", "1")["device_time_us"] == 30.0
    processes = facts("inspect", MERGED)["merged"]["processes"]
    assert [process["name"] for process in processes] == ["1", "2"]
    assert "processes" in invoke("inspect", MERGED).stdout


def test_timeline_of_one_process_is_the_busiest_by_default() -> None:
    assert invoke("timeline", MERGED).stdout == invoke("timeline", MERGED, "--process", "2").stdout
    assert facts("timeline", MERGED) == facts("timeline", MERGED, "--process", "2")
    assert facts("timeline", MERGED) != facts("timeline", MERGED, "--process", "1")


def test_compare_takes_the_same_process_of_both() -> None:
    rows = facts("compare", MERGED, MERGED, "--process", "1", "--all")["ops"]
    assert len(rows) == 1


@pytest.mark.parametrize("name", ["merged_two_processes", "merged_pid_prefix"])
def test_an_unknown_process_is_refused(name: str) -> None:
    result = invoke("inspect", CASES / f"{name}.json", "--process", "TP07")
    assert result.exit_code == ExitCode.USAGE
    assert "hint" in result.stderr


def collective(rank: int) -> list[dict[str, Any]]:
    """An all-reduce of rank 0 that waits 100 us for rank 1."""
    start = 1000 + 100 * rank
    args = {"Collective name": "allreduce", "In msg nelems": 64, "Group size": 2, "Process Group Name": "0", "Seq": 1}
    device = {"device": 0, "stream": 7, "correlation": 5, "External id": 5}
    base = {"ph": "X", "pid": f"[TP0{rank}] 9", "tid": 1}
    return [
        {**base, "cat": "cpu_op", "name": "c10d::allreduce_", "ts": start, "dur": 20, "args": {"External id": 5}},
        {
            **base,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": start + 5,
            "dur": 5,
            "args": {"correlation": 5},
        },
        {
            **base,
            "pid": f"[TP0{rank}] 0",
            "tid": 7,
            "cat": "kernel",
            "name": "ncclDevKernel_AllReduce",
            "ts": start + 20,
            "dur": 200 - 100 * rank,
            "args": {**device, **args},
        },
    ]


def test_ranks_of_a_merged_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"traceEvents": [*collective(0), *collective(1)]})
    result = invoke("timeline", path, "--ranks")
    assert result.exit_code == 0, result.stderr
    assert "2 ranks" in result.stdout


def test_ids_that_collide_are_warned_of(tmp_path: Path) -> None:
    events = [event for pair in zip(collective(0), collective(0), strict=True) for event in pair]
    for number, event in enumerate(events):
        event["pid"] = 0 if event["cat"] == "kernel" else 9 + number % 2
        event["name"] += f"_{number % 2}"
    result = invoke("inspect", write(tmp_path, {"traceEvents": events}))
    assert "collide: 100 %" in result.stderr


def test_a_plan_has_no_process(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert invoke("plan", MERGED, "--output", plan).exit_code == 0
    assert invoke("plan", plan, "--process", "1").exit_code == ExitCode.USAGE
