"""All steps side by side, and how kernels are launched: values of a trace written by hand, and of public ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opreplay.cli.main import opreplay
from opreplay.traces import read_trace
from opreplay.traces.errors import NothingRan
from opreplay.traces.times.steps import launch_queue, launch_table, step_table


def complete(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    tid = 7 if category == "kernel" else 1
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(number: int, name: str, at: float, call: float, start: float, dur: float) -> list[dict[str, Any]]:
    """A call that launches a kernel."""
    return [
        complete("cuda_runtime", "cudaLaunchKernel", at, call, correlation=number),
        complete("kernel", name, start, dur, correlation=number, stream=7, device=0),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three steps of 100, 100 and 300 us; the last one's kernels overlap, and one kernel's launch is not recorded."""
    events = [
        complete("user_annotation", "ProfilerStep#1", 0, 100),
        complete("user_annotation", "ProfilerStep#2", 100, 100),
        complete("user_annotation", "ProfilerStep#3", 200, 300),
        *launched(1, "gemm", 10, 5, 20, 30),
        *launched(2, "add", 110, 5, 125, 2),
        *launched(3, "add", 120, 5, 145, 4),
        *launched(4, "gemm", 210, 5, 220, 40),
        *launched(5, "gemm", 230, 5, 250, 20),
        complete("kernel", "early", 1, 5, stream=7, device=0),
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_steps_have_the_work_that_they_launched(path: Path) -> None:
    table = step_table(read_trace(path, activity=True))
    assert (table.median_us, table.unlinked) == (100.0, 1)
    rows = [(row.name, row.start_us, row.host_us, row.tasks, row.busy_us, row.gaps_us) for row in table.rows]
    assert rows == [
        ("ProfilerStep#1", 0.0, 100.0, 1, 30.0, 0.0),
        ("ProfilerStep#2", 100.0, 100.0, 2, 6.0, 18.0),
        ("ProfilerStep#3", 200.0, 300.0, 2, 50.0, 0.0),
    ]
    assert [row.outlier for row in table.rows] == [False, False, True]
    assert table.rows[2].over_median == 3.0


def test_launches_say_how_long_kernels_wait_and_which_are_short(path: Path) -> None:
    table = launch_table(read_trace(path, activity=True))
    assert (table.launches, table.unlinked) == (5, 1)
    gemm, add = table.rows
    assert (gemm.name, gemm.launches, gemm.time_us, gemm.median_us) == ("gemm", 3, 90.0, 30.0)
    assert (gemm.short_share, gemm.below_call_share) == (0.0, 0.0)
    # From the end of the call: 20 - 15, 220 - 215, 250 - 235.
    assert (gemm.delay_us, gemm.delay_p90_us) == (5.0, pytest.approx(13.0))
    assert (add.short_share, add.below_call_share, add.delay_us) == (1.0, 1.0, 15.0)


def test_launches_of_an_npu_without_calls_begin_where_their_arrows_do(tmp_path: Path) -> None:
    names = {800: "Ascend Hardware", 7702: "CANN"}
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": n}} for pid, n in names.items()
    ]
    for number, (launched, begun, took) in enumerate([(100.0, 150.0, 20.0), (200.0, 210.0, 5.0)], start=1):
        args = {"Task Type": "AI_CORE", "Physic Stream Id": 3, "connection_id": number}
        events.append(
            {"ph": "X", "pid": 800, "tid": 3, "name": "MatMulV2", "ts": f"{begun:.3f}", "dur": took, "args": args}
        )
        common = {"cat": "HostToDevice", "id": str(number), "name": f"HostToDevice{number}"}
        events.append({**common, "ph": "s", "pid": 7702, "tid": 9, "ts": f"{launched:.3f}"})
        events.append({**common, "ph": "f", "bp": "e", "pid": 800, "tid": 3, "ts": f"{begun:.3f}"})
    (tmp_path / "npu.json").write_text(json.dumps(events))
    table = launch_table(read_trace(tmp_path / "npu.json", activity=True))
    (row,) = table.rows
    assert (table.launches, row.name, row.delay_us, row.short_share) == (2, "MatMulV2", 30.0, 0.5)
    assert row.below_call_share is None


def test_a_trace_without_steps_or_launches_says_what_to_record(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": [complete("cpu_op", "aten::mm", 0, 10)]}))
    trace = read_trace(file, activity=True)
    for table in (step_table, launch_table):
        with pytest.raises(NothingRan):
            table(trace)


@pytest.mark.parametrize("by", ["step", "launch"])
def test_the_command_gives_a_table_facts_and_csv(by: str, path: Path) -> None:
    def answer(*flags: str) -> str:
        done = CliRunner().invoke(opreplay, ["inspect", str(path), "--by", by, *flags], env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
        return done.stdout

    facts = json.loads(answer("--format", "json", "--top", "1"))
    assert (facts["by"], len(facts["rows"]), facts["all_rows"]) == (by, 1, 3 if by == "step" else 2)
    sheet = answer("--format", "csv").splitlines()
    assert len(sheet) == facts["all_rows"] + 1
    assert ("over_median" if by == "step" else "delay_us") in sheet[0]
    table = answer()
    assert ("ProfilerStep#3 3.00×" if by == "step" else "40 % below 10 µs") in table
    assert all(len(line) <= 80 for line in table.splitlines()[1:])


def test_graph_launches_count_for_their_step(shared_traces: Path) -> None:
    """A server's decode step runs in graphs: without their kernels it looked idle."""
    table = step_table(read_trace(shared_traces / "mi300_vllm_piecewise_exec.json.gz", activity=True))
    (row,) = table.rows
    assert row.tasks > 400
    assert (row.busy_us or 0.0) > 140_000


def test_the_queue_holds_what_is_launched_and_has_not_begun(path: Path) -> None:
    at, waiting = launch_queue(read_trace(path, activity=True), 100_000, 200_000)
    changes = list(zip((at / 1e3).tolist(), waiting.tolist(), strict=True))
    assert changes == [(100.0, 0), (115.0, 1), (125.0, 1), (145.0, 0)], "at 125 one begins and another is launched"
