"""`opreplay batch`: files found, merged, measured once; sums, refused files, interrupts and continuation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.execute import engines
from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.report.run.batch import collective_notes
from opreplay.replay.results.reading import read_result_file
from tests.replay.timeline.job_machine import Job

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_children")]

SEEN: dict[str, object] = {}


def write_rank(path: Path, rank: int, *, own: int = 0, world_size: int = 2) -> Path:
    """A trace with one op that all ranks have, and one of its own size."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::relu",
            "ts": 10 * i,
            "dur": 5,
            "pid": 1,
            "tid": 1,
            "args": {
                "Input Dims": [[8, size]],
                "Input type": ["float"],
                "Input Strides": [[size, 1]],
                "Concrete Inputs": [""],
            },
        }
        for i, size in enumerate([4, 4, 16 + own])
    ]
    content = json.dumps({"distributedInfo": {"rank": rank, "world_size": world_size}, "traceEvents": events})
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two ranks of a job; the fake executor runs their ops in this process."""

    def make_runner(options: RunOptions, recency: object = None) -> InProcess:
        SEEN["options"] = options
        return InProcess(FakeExecutor(), WorkerConfig(options=options, memory_bytes=1 << 30))

    monkeypatch.setattr(engines, "make_runner", make_runner)
    folder = tmp_path / "job"
    folder.mkdir()
    write_rank(folder / "rank0.json", 0)
    write_rank(folder / "rank1.json.gz", 1, own=1)
    return folder


def batch(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["batch", *map(str, args)], env={"COLUMNS": "100"})


def test_a_folder_of_ranks_is_reported_by_trace_and_by_job(ranks: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    result = batch(ranks, "-o", path, "-o", tmp_path / "r.md", "-o", tmp_path / "r.csv")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "replayed 3 of 3 ops = " in "\n".join(lines)
    assert "2 traces with 4 ops, 3 of them unique" in lines
    assert any(line.split()[:3] == ["rank0", "0", "2"] for line in lines)
    assert any(line.split()[:6] == ["rank*", "2", "of", "2", "4", "3"] for line in lines)
    assert max(map(len, lines[4:])) <= 100
    file = read_result_file(path)
    assert [op.count for op in file.results] == [4, 1, 1]
    assert [(trace.source, trace.rank, trace.shared) for trace in file.traces] == [
        ("rank0.json", 0, 1),
        ("rank1.json.gz", 1, 1),
    ]
    assert [(job.ranks, job.world_size) for job in file.jobs] == [((0, 1), 2)]
    assert str(tmp_path) not in path.read_text()
    page = (tmp_path / "r.md").read_text()
    assert "replayed 3 of 3 ops" in page
    assert "| rank0.json | 0 | 2 | 2 |" in page
    assert "| rank\\*.json | 2 of 2 | 4 | 3 |" in page


def test_one_trace_under_several_names_counts_once(ranks: Path, tmp_path: Path) -> None:
    """A packed copy of a rank was a third trace, and a link a fourth: every sum was of more than there was."""
    (ranks / "backup").mkdir()
    (ranks / "backup" / "rank0.json.gz").write_bytes(gzip.compress((ranks / "rank0.json").read_bytes()))
    (ranks / "latest.json.gz").symlink_to(ranks / "rank1.json.gz")
    path = tmp_path / "r.jsonl"
    result = batch(ranks, "-o", path)
    assert result.exit_code == 0, result.stderr
    assert "2 traces with 4 ops, 3 of them unique" in result.stdout.splitlines()
    told = "latest.json.gz: duplicate of rank1.json.gz, counted only once"
    assert told in result.stderr
    assert f"left out: {told}" in result.stdout
    file = read_result_file(path)
    assert [op.count for op in file.results] == [4, 1, 1]
    given = json.loads(path.read_text().splitlines()[0])["trace"]["not_read"]
    assert [one["file"] for one in given] == ["rank0.json.gz", "latest.json.gz"]
    assert str(tmp_path) not in path.read_text()
    named = batch(ranks / "rank0.json", ranks / "backup" / "rank0.json.gz")
    assert "duplicate of ../rank0.json" in named.stderr
    assert "2 of them unique" in named.stdout


def test_filters_and_options_are_those_of_run(ranks: Path) -> None:
    result = batch(
        ranks / "*.json*",
        "--top",
        "1",
        "--include",
        "aten::*",
        "--exclude",
        "aten::mm",
        "--select",
        "top",
        "--set",
        "seed=7",
        "--set",
        "op_time=5ms",
        "--set",
        "op_limit=9s",
        "--set",
        "threads=1",
        "--set",
        "max_op_memory=1GB",
        "--device",
        "cpu",
    )
    assert result.exit_code == 0, result.stderr
    assert "2 traces with 2 ops, 1 of them unique" in result.stdout
    options = SEEN["options"]
    assert isinstance(options, RunOptions)
    assert (options.seed, options.op_time_s, options.threads, options.max_op_bytes) == (7, 0.005, 1, 10**9)
    assert options.limit_s == 9.0
    assert (options.lanes, options.shared_device) == (1, True)


def test_a_file_that_is_refused_costs_itself(ranks: Path, tmp_path: Path) -> None:
    (ranks / "notes.json").write_text('{"a": 1}')
    beside = batch(ranks)
    assert beside.exit_code == 0, beside.stderr
    assert "left out: " in beside.stderr
    named = batch(ranks, ranks / "notes.json", ranks / "absent.json")
    assert named.exit_code == 3
    assert named.stderr.count("refused: ") == 2
    assert "absent.json" in named.stderr
    assert "replayed 3 of 3 ops" in named.stdout
    assert "refused: absent.json: " in named.stdout
    assert str(ranks) not in named.stdout
    told = batch(ranks, ranks / "absent.json", "--format", "json", "--quick")
    value = json.loads(told.stdout)
    assert [(one["file"], one["left_out"]) for one in value["header"]["trace"]["not_read"]] == [
        ("notes.json", True),
        ("absent.json", False),
    ]
    assert len(value["traces"]) == 2
    assert value["header"]["options"]["op_time_s"] == 0.02
    assert batch(ranks, "--format", "json", "-o", "-").exit_code == 2
    nothing = batch(ranks / "notes.json", "-o", tmp_path / "r.jsonl")
    assert nothing.exit_code == 3
    assert nothing.stdout == ""
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["-"], 2, "several traces cannot be read from stdin"),
        (["EMPTY"], 2, "contains no .json"),
        (["no*such"], 3, "no file matches"),
        (["RANKS", "--address", "auto"], 2, "--engine ray"),
        (["RANKS", "--device", "cuda:0", "--workers", "2"], 2, "workers"),
        (["RANKS", "--max-failed", "0", "--include", "aten::relu"], 0, ""),
    ],
)
def test_usage(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, says: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("OPREPLAY_SHARED_DEVICE")
    places = {"RANKS": ranks, "EMPTY": tmp_path / "empty"}
    result = batch(*(places.get(arg, arg) for arg in args))
    assert result.exit_code == code, result.stderr
    assert says in result.stderr


def test_a_link_to_nothing_in_a_folder_is_a_missing_trace(ranks: Path) -> None:
    (ranks / "rank9.json").symlink_to(ranks / "gone.json")
    result = batch(ranks, "--dry-run")
    assert result.exit_code == 3
    assert "rank9.json" in result.stderr
    assert "with --notes" not in result.stdout


def test_a_dry_run_shows_the_merged_plan(ranks: Path) -> None:
    result = batch(ranks, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "would replay 3 of 3 ops" in result.stdout


def test_an_interrupted_batch_is_resumed(ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, measured = tmp_path / "r.jsonl", InProcess.measure
    calls = []

    def interrupted(self: InProcess, op: ReplayOp) -> object:
        calls.append(op.id)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(self, op)

    monkeypatch.setattr(InProcess, "measure", interrupted)
    first = batch(ranks, "-o", path)
    assert first.exit_code == 130
    assert "replayed 1 of 3 ops" in first.stdout
    again = batch(ranks, "-o", path, "--resume")
    assert again.exit_code == 0, again.stderr
    assert calls[0] not in calls[2:]
    assert len(calls) == 4
    file = read_result_file(path)
    assert [trace.replayed for trace in file.traces] == [2, 2]
    write_rank(ranks / "rank2.json", 2, own=5)
    other = batch(ranks, "-o", path, "--resume")
    assert other.exit_code == 2
    assert "another trace" in other.stderr


def test_several_processes_read_the_files(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opreplay.replay.batch.reading.POOL_FROM_BYTES", 1)
    (ranks / "rank0_a.json").write_bytes(b"")
    result = batch(ranks, "--workers", "2", "--dry-run")
    assert result.exit_code == 3, result.stderr
    assert "refused: " in result.stderr, "a bad file in the middle costs itself"
    assert "would replay 3 of 3 ops" in result.stdout


def test_bad_files_in_the_middle_lose_nothing_else(ranks: Path, tmp_path: Path) -> None:
    """Empty, cut, compressed and cut, another format, unreadable: each is named, all others are there, also resumed."""
    packed = write_rank(tmp_path / "whole.json.gz", 7).read_bytes()
    bad = {"rank0_a.json": b"", "rank0_b.json": b'{"traceEvents": [', "rank0_c.json.gz": packed[: len(packed) // 2]}
    bad |= {"rank0_d.json": b"PK\x03\x04...", "rank0_e.json.gz": b"\x1f\x8b", "rank0_f.json": b"\0" * 100}
    for name, content in bad.items():
        (ranks / name).write_bytes(content)
    path = tmp_path / "r.jsonl"
    for more in ((), ("--resume",)):
        result = batch(ranks, "-o", path, *more)
        assert result.exit_code == 3, result.stderr
        assert [trace.source for trace in read_result_file(path).traces] == ["rank0.json", "rank1.json.gz"]
        assert sum(f"{name}: " in result.stderr for name in bad) == len(bad)
    not_read = json.loads(path.read_text().splitlines()[0])["trace"]["not_read"]
    assert [one["file"] for one in not_read] == list(bad)
    for name in bad:
        (ranks / name).unlink()
    alone = batch(ranks, "--format", "json")
    assert alone.exit_code == 0
    whole = json.loads(alone.stdout)
    assert [one.id for one in read_result_file(path).results] == [one["id"] for one in whole["ops"]]


def test_a_trace_that_is_cut_short_is_no_success(ranks: Path, tmp_path: Path) -> None:
    """A nightly folder with half a trace in it was green, and its ops were in the totals."""
    whole = (ranks / "rank0.json").read_bytes()
    (ranks / "rank0.json").write_bytes(whole[: whole.rindex(b"{")])
    path = tmp_path / "r.jsonl"
    for arguments, code in (((), 3), (("--resume",), 3), (("--resume", "--allow-damaged"), 0), (("--dry-run",), 3)):
        more = () if "--dry-run" in arguments else ("-o", path)
        result = batch(ranks, *more, *arguments)
        assert (result.exit_code, "error: " in result.stderr) == (code, code == 3), (arguments, result.stderr)
    assert sorted(bool(trace.losses) for trace in read_result_file(path).traces) == [False, True]


def test_stdout_can_take_the_records(ranks: Path) -> None:
    result = batch(ranks, "-o", "-")
    records = [json.loads(line)["record"] for line in result.stdout.splitlines()]
    assert records == ["header", "op", "op", "op", "trace", "trace", "job", "summary"]


def bare_rank(path: Path, rank: int) -> Path:
    """A trace whose op has no arguments but an id."""
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "ts": 1,
        "dur": 5,
        "pid": 1,
        "tid": 1,
        "args": {"Record function id": 5},
    }
    content = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": [event]}
    path.write_text(json.dumps(content))
    return path


def execution_trace(path: Path, rows: int) -> Path:
    """The arguments of that op."""
    node = {
        "id": 5,
        "name": "aten::mm",
        "ctrl_deps": 1,
        "inputs": {
            "values": [[3, 3, 0, 32, 4, "cpu"], [4, 4, 0, 8, 4, "cpu"]],
            "shapes": [[rows, 4], [4, 2]],
            "types": ["Tensor(float)"] * 2,
        },
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": "rf_id", "type": "uint64", "value": 5}, {"name": "tid", "type": "uint64", "value": 1}],
    }
    path.write_text(json.dumps({"schema": "1.1.0-chakra.0.0.4", "pid": 77, "nodes": [node]}))
    return path


def test_each_trace_gets_the_execution_trace_of_its_rank(ranks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    for rank in range(2):
        bare_rank(folder / f"node{7 - rank}.json", rank)
        execution_trace(folder / f"et_rank{rank}.json", 8 + rank)
    execution_trace(folder / "et_rank5.json", 3)
    result = batch(folder, "--execution-trace", folder / "et_*.json", "-o", tmp_path / "r.jsonl")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("--execution-trace provided the arguments of 1 of 1 calls") == 2
    assert "1 of 3 ExecutionTraces have no trace: " in result.stderr
    file = read_result_file(tmp_path / "r.jsonl")
    assert sorted(op.inputs[:8] for op in file.results) == ["f32[8,4]", "f32[9,4]"]
    assert [(trace.rank, trace.source) for trace in file.traces] == [(1, "node6.json"), (0, "node7.json")]
    none = batch(ranks, "--execution-trace", folder / "et_rank5.json", "--dry-run")
    assert none.exit_code == 2
    assert "no trace matches an ExecutionTrace" in none.stderr


def test_values_and_checks_are_those_of_run(ranks: Path, tmp_path: Path) -> None:
    entry = {"aten::relu.self": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}}
    text = json.dumps(entry).encode()
    values = tmp_path / "v.safetensors"
    values.write_bytes(len(text).to_bytes(8, "little") + text + bytes(128))
    refused = batch(ranks, "--set", f"values={values}", "--dry-run")
    assert refused.exit_code == 2
    assert "aten::relu.self is float32[8, 4]" in refused.stderr
    assert batch(ranks, "--set", f"values={values}").exit_code == 2
    first = batch(
        ranks / "rank0.json",
        "--set",
        f"values={values}",
        "--include",
        "aten::relu",
        "--top",
        "1",
        "--check",
        "work,kernels,values",
    )
    assert first.exit_code == 0, first.stderr
    options = SEEN["options"]
    assert isinstance(options, RunOptions)
    assert (options.values, options.check_work, options.check_kernels) == (str(values), True, True)
    assert options.check_values


def test_traces_that_are_as_they_were_are_read_once(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, measured = tmp_path / "r.jsonl", InProcess.measure

    def interrupted(self: InProcess, op: ReplayOp) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcess, "measure", interrupted)
    assert batch(ranks, "-o", path).exit_code == 130
    write_rank(ranks / "rank0.json", 0)
    monkeypatch.setattr(InProcess, "measure", measured)
    again = batch(ranks, "-o", path, "--resume")
    assert again.exit_code == 0, again.stderr
    assert "plans of 1 of 2 traces are cached" in again.stderr
    file = read_result_file(path)
    assert [op.count for op in file.results] == [4, 1, 1]
    assert [trace.rank for trace in file.traces] == [0, 1]


def test_a_trace_that_changed_is_named_each_time_and_its_plan_stays_that_of_the_run(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused run kept the new plan, so that the next one called all traces those of before."""
    path = tmp_path / "r.jsonl"

    def interrupted(self: InProcess, op: ReplayOp) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcess, "measure", interrupted)
    assert batch(ranks, "-o", path).exit_code == 130
    changed = write_rank(ranks / "rank0.json", 0, own=99)
    for _ in range(2):
        again = batch(ranks, "-o", path, "--resume")
        assert again.exit_code == 2
        assert "plans of 1 of 2 traces" in again.stderr
        assert f"changed since the run to resume: {changed}\n" in again.stderr


def test_a_batch_interrupted_while_reading_goes_on_there(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opreplay.replay.batch import reading as batch_files

    planned, read = batch_files._planned, []

    def counting(path: str, how: batch_files.HowToRead) -> object:
        read.append(path)
        if len(read) == 2:
            raise KeyboardInterrupt
        return planned(path, how)

    monkeypatch.setattr(batch_files, "_planned", counting)
    assert batch(ranks, "-o", tmp_path / "r.jsonl").exit_code == 130
    assert not (tmp_path / "r.jsonl").exists()
    assert batch(ranks, "-o", tmp_path / "r.jsonl", "--resume").exit_code == 0
    assert [Path(path).name for path in read] == ["rank0.json", "rank1.json.gz", "rank1.json.gz"]
    assert batch(ranks, "-o", tmp_path / "s.jsonl", "--top", "1", "--set", "total_time=1us").exit_code == 0
    other = batch(ranks, "-o", tmp_path / "s.jsonl", "--top", "1", "--resume")
    assert other.exit_code == 0, other.stderr
    assert "plans of 2 of 2 traces" in other.stderr
    assert "replayed 1 of 1 op " in other.stdout
    assert other.stdout.count("aten::relu") == 1


@pytest.mark.slow
def test_processes_that_read_end_when_nobody_waits_for_them(ranks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import time

    from opreplay.replay.batch import reading
    from opreplay.replay.batch.reading import HowToRead, read_plans
    from opreplay.replay.execute.processes.child import Child

    started_children: list[Child] = []

    def starting(*config: Any, **named: Any) -> Child:
        started_children.append(Child(*config, **named))
        return started_children[-1]

    monkeypatch.setattr(reading, "Child", starting)
    from opreplay.replay.plan.selection import Selection

    monkeypatch.setattr("opreplay.replay.batch.reading.POOL_FROM_BYTES", 1)
    pipes = [ranks / "one", ranks / "two"]
    for pipe in pipes:
        os.mkfifo(pipe)  # which nobody writes: reading it takes for ever
    selection = Selection(select="owner", include=(), exclude=(), top=None, min_share=None, allow_imports={})
    how = HowToRead(selection=selection, device="cpu")
    plans = read_plans([str(ranks / "rank0.json"), *map(str, pipes)], how, processes=2)
    assert next(plans).path == str(ranks / "rank0.json")
    started = time.monotonic()
    plans.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 20
    assert [child.process.poll() is not None for child in started_children] == [True, True]


def test_collectives_of_ranks_are_matched(tmp_path: Path) -> None:
    job = Job(2)
    for machine in job.ranks:
        machine.begin()
        machine.op("aten::mm", 12.0, ("gemm", 5.0))
    job.ranks[1].host(500.0)
    job.all_reduce(50.0)
    job.all_reduce(50.0, r1=2000)
    for machine in job.ranks:
        machine.synchronize()
        machine.end()
    paths, target = job.write(tmp_path), tmp_path / "out.jsonl"
    result = CliRunner().invoke(opreplay, ["batch", *paths, "--select", "all", "--output", str(target), "--force"])
    assert result.exit_code == 0, result.stderr
    (found,) = read_result_file(target).jobs
    assert found.collectives is not None
    assert (found.collectives.matched, found.collectives.inferred, found.collectives.missing) == (2, 0, 0)
    assert [(one.rank, one.late) for one in found.collectives.ranks] == [(0, 0), (1, 1)]
    assert found.collectives.ranks[0].waiting_us == pytest.approx(500.0, rel=0.1)
    assert [(one.what, one.values) for one in found.collectives.disagreeing[:1]] == [
        ("elements in", {"0": "1000", "1": "2000"})
    ]
    assert "rank 1, 1×" in result.stdout
    lost = msgspec.structs.replace(found, collectives=msgspec.structs.replace(found.collectives, unmatched=10))
    assert not any("counterpart" in note for note in collective_notes([found])), "all are matched"
    assert any("10 collectives of these traces have no counterpart" in note for note in collective_notes([lost]))
    assert "elements in of collective 1 disagree: rank 0: 1000, rank 1: 2000" in " ".join(result.stdout.split())


def on_device(path: Path, rank: int) -> Path:
    """A rank as `write_rank` makes it, whose ops launch kernels of 2 µs."""
    trace = json.loads(write_rank(path, rank).read_text())
    for i, one in enumerate(list(trace["traceEvents"])):
        one["args"]["External id"] = i + 1
        common = {"ph": "X", "pid": 1, "tid": 1, "dur": 1, "ts": one["ts"] + 1}
        launch = {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "args": {"correlation": i + 1, "External id": i + 1},
        }
        kernel = {"cat": "kernel", "name": "relu", "pid": 0, "tid": 7, "ts": one["ts"] + 3, "dur": 2}
        args = {"correlation": i + 1, "External id": i + 1, "device": 0, "stream": 7}
        trace["traceEvents"] += [{**common, **launch}, {**common, **kernel, "args": args}]
    path.write_text(json.dumps(trace))
    return path


def test_host_and_device_times_are_never_added(ranks: Path, tmp_path: Path) -> None:
    other = on_device(tmp_path / "gpu.json", 0)
    told = json.loads(batch(ranks, other, "--format", "json").stdout)
    assert told["header"]["trace"]["clocks"] == {"host": 2, "device": 1}
    assert {one["source"]: (one["clock"], one["recorded_us"]) for one in told["traces"]} == {
        "rank0.json": ("host", 15.0),
        "rank1.json.gz": ("host", 15.0),
        "gpu.json": ("device", 6.0),
    }
    assert told["summary"]["recorded_us"] == 6.0
    assert {(one["count"], one["recorded_device_us"]) for one in told["ops"]} == {
        (4, None),
        (1, None),
        (2, 2.0),
        (1, 2.0),
    }
    assert len({one["id"] for one in told["ops"]}) == len(told["ops"]) == 5
    text = batch(ranks, other).stdout
    assert "clocks: 2 traces of 3 have only host time" in " ".join(text.split())
    assert "15.0 µs host" in text
    assert "6.00 µs device" in text
    both = tmp_path / "both"
    both.mkdir()
    write_rank(both / "rank0.json", 0)
    on_device(both / "rank1.json", 1)
    [job] = json.loads(batch(both, "--format", "json").stdout)["jobs"]
    assert job["ranks"] == [0, 1]
    assert (job["clock"], job["recorded_us"], job["slowest_rank_us"], job["covered_share"]) == (None, None, None, None)


def test_nothing_measured_is_no_time(ranks: Path) -> None:
    for path in ranks.iterdir():
        path.unlink()
    for rank in range(2):
        path = write_rank(ranks / f"rank{rank}.json", rank)
        path.write_text(path.read_text().replace("aten::relu", "mylib::relu"))
    told = json.loads(batch(ranks, "--format", "json").stdout)
    assert told["summary"]["replayed"] == 0
    assert {one["measured_us"] for one in (*told["traces"], *told["jobs"])} == {None}
    assert " 0 µs" not in batch(ranks, "-o", ranks / "r.md").stdout
    assert " 0 µs" not in (ranks / "r.md").read_text()


def test_a_truncated_trace_is_marked_everywhere(ranks: Path, tmp_path: Path) -> None:
    (ranks / "rank2.json").write_bytes(b"")
    cut = write_rank(ranks / "rank3.json", 3, own=2)
    cut.write_bytes(cut.read_bytes()[:-30])
    write_rank(ranks / "rank4.json", 4)
    result = batch(ranks, "--format", "json", "-o", tmp_path / "r.md")
    assert result.exit_code == 3  # the empty one is refused, and costs itself alone
    told = json.loads(result.stdout)
    assert [(one["source"], bool(one["losses"]), one["ops"]) for one in told["traces"]] == [
        ("rank0.json", False, 2),
        ("rank1.json.gz", False, 2),
        ("rank3.json", True, 1),
        ("rank4.json", False, 2),
    ]
    assert told["header"]["trace"]["losses"] == told["traces"][2]["losses"] == {"truncated file": 1}
    assert [one["file"] for one in told["header"]["trace"]["not_read"]] == ["rank2.json"]
    text = batch(ranks).stdout
    assert "! rank3" in text
    assert "its numbers are of the rest" in " ".join(text.split())
    assert "! rank3" in (tmp_path / "r.md").read_text()


def test_plans_and_simulations_say_what_reading_lost(ranks: Path, tmp_path: Path) -> None:
    trace = ranks / "rank0.json"
    trace.write_bytes(trace.read_bytes()[:-30])
    made = tmp_path / "p.json"

    def losses(*args: object) -> dict[str, Any]:
        done = CliRunner().invoke(opreplay, [*map(str, args), "--format", "json"])
        assert done.exit_code == 0, done.stderr
        assert "not everything could be read (truncated file" in done.stderr or args[0] == "inspect"
        return json.loads(done.stdout)

    lost = {"truncated file": 1}
    assert losses("inspect", trace)["losses"] == lost
    assert losses("plan", trace, "-o", made)["losses"] == lost
    for given in (trace, made):
        assert losses("simulate", given)["losses"] == lost
        assert losses("run", given, "--quick")["header"]["trace"]["losses"] == lost
