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


def merged_steps(path: Path, *, steps: int = 3) -> Path:
    """Two processes that mark steps of the same numbers, out of step: those of the second take twice as long."""
    events: list[dict[str, Any]] = []
    for rank in (0, 1):
        for number in range(steps):
            start, dur = 1000 + 100 * (rank + 1) * number, 40 * (rank + 1)
            host, device = {"pid": f"[TP0{rank}] 9", "tid": 1}, {"pid": f"[TP0{rank}] 0", "tid": 7}
            ids = {"External id": 10 + number, "correlation": 10 + number}
            shapes = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"], "External id": 10 + number}
            call = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": start + 5, "dur": 2, "args": ids}
            work = {"name": "sgemm", "cat": "kernel", "ts": start + 10, "dur": dur}
            events += [
                {"ph": "X", "name": f"ProfilerStep#{number}", "cat": "user_annotation", "ts": start, **host}
                | {"dur": 100 * (rank + 1) - 5},
                {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": start + 2, "dur": 8, "args": shapes, **host},
                {"ph": "X", **call, **host},
                {"ph": "X", **work, "args": {**ids, "device": 0, "stream": 7}, **device},
            ]
    return write(path, {"traceEvents": events}, "steps.json")


def test_steps_shown_are_those_of_one_process(tmp_path: Path) -> None:
    path = merged_steps(tmp_path)
    (inspected, timed) = (invoke(command, path).stdout.splitlines()[0] for command in ("inspect", "timeline"))
    assert inspected == timed
    assert "This is process [TP01] 9, one of 2 in the file: select another with --process." in inspected
    table = facts("inspect", path, "--by", "step")
    assert [(row["host_us"], row["busy_us"]) for row in table["rows"]] == [(195.0, 80.0)] * 3
    assert "the steps of process [TP01] 9, one of 2" in invoke("inspect", path, "--by", "step").stdout
    assert facts("inspect", path)["iterations"] == 6


def test_compare_says_which_process_of_a_merged_file_was_taken(tmp_path: Path) -> None:
    path = merged_steps(tmp_path)
    comparison = facts("compare", path, path)
    assert comparison["before_us"] == comparison["after_us"] == 240.0
    said = "steps.json was merged from 2 processes; [TP01] 9 is used. Select another with --process"
    assert said in comparison["notes"]


def test_plans_say_in_line_one_that_processes_are_added_up(tmp_path: Path) -> None:
    path = merged_steps(tmp_path)
    assert "2 processes of the file added up" in invoke("plan", path).stdout.splitlines()[0]
    assert "processes" not in invoke("plan", path, "--process", "TP01").stdout.splitlines()[0]
    assert facts("plan", path)["where"]["processes"] == 2


def test_simulate_takes_the_busiest_process(tmp_path: Path) -> None:
    path = merged_steps(tmp_path)
    result = invoke("simulate", path, "--soc", "910b3")
    assert "shown is '[TP01] 9'" in result.stderr
    assert "This is process [TP01] 9, one of 2" in result.stdout
    whole, part = (facts("simulate", path, "--soc", "910b3", *asked) for asked in ((), ("--process", "TP01")))
    assert whole == part
    assert whole["where"]["total_us"] == 240.0


def test_a_batch_says_that_processes_are_added_up(tmp_path: Path) -> None:
    path = merged_steps(tmp_path)
    result = invoke("batch", path, MERGED, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("2 processes of the file are added up") == 2


def test_a_file_written_twice_is_not_damaged(tmp_path: Path) -> None:
    events = json.loads(merged_steps(tmp_path).read_text())["traceEvents"]
    twice = write(tmp_path, {"traceEvents": events + events}, "twice.json")
    result = invoke("batch", twice, MERGED, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "twice.json: 12 duplicate events in the file were counted only once" in result.stderr
    assert "damaged" not in result.stderr


def test_a_folder_gives_no_busy_share_of_wrong_times(tmp_path: Path) -> None:
    events = json.loads(merged_steps(tmp_path).read_text())["traceEvents"]
    for event in events:
        event["dur"] = 0 if event["cat"] == "kernel" else event["dur"]
    write(tmp_path, {"traceEvents": events}, "zero.json")
    files = facts("inspect", tmp_path)["files"]
    assert [(one["file"], one["busy_share"] is None) for one in files] == [("steps.json", False), ("zero.json", True)]


@pytest.mark.parametrize("command", ["run", "batch"])
def test_many_traces_of_one_process(command: str, tmp_path: Path) -> None:
    """Each file gives the ops of the process; a file of one process alone is refused, and costs only itself."""
    longer = json.loads(MERGED.read_text())
    longer["traceEvents"][0]["name"] = "aten::other"
    paths = [MERGED, write(tmp_path, longer, "longer.json")]
    options = ("--dry-run", "--device", "cpu")
    both = facts(command, *paths, *options)["unique_ops"]
    one = facts(command, *paths, *options, "--process", "2")["unique_ops"]
    assert sum(op["count"] * op["recorded_device_us"] for op in both) == 300.0
    assert sum(op["count"] * op["recorded_device_us"] for op in one) == 240.0
    result = invoke(command, MERGED, CASES / "duration_overflow.json", *options, "--process", "2")
    assert result.exit_code == ExitCode.REFUSED
    assert "contains only one process" in result.stderr
