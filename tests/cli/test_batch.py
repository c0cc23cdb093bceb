"""`opreplay batch`: files found, merged, measured once; sums, refused files, interrupts and continuation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay import run as orchestrator
from opreplay.replay.executors.fake import FakeExecutor
from opreplay.replay.ir import ReplayOp
from opreplay.replay.isolation import InProcess
from opreplay.replay.measure import MeasureOptions
from opreplay.replay.results import read_result_file

SEEN: dict[str, object] = {}


def write_rank(path: Path, rank: int, *, own: int = 0, world_size: int = 2) -> Path:
    """A trace with one op that all ranks have, and one of its own size."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 10 * i, "dur": 5, "pid": 1, "tid": 1,
         "args": {"Input Dims": [[8, size]], "Input type": ["float"], "Input Strides": [[size, 1]],
                  "Concrete Inputs": [""]}}
        for i, size in enumerate([4, 4, 16 + own])
    ]  # fmt: skip
    content = json.dumps({"distributedInfo": {"rank": rank, "world_size": world_size}, "traceEvents": events})
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two ranks of a job; the fake executor runs their ops in this process."""

    def make_runner(options: orchestrator.RunOptions) -> InProcess:
        SEEN["options"] = options
        return InProcess(FakeExecutor(), seed=options.seed, options=MeasureOptions(op_time_s=options.op_time_s))

    monkeypatch.setattr(orchestrator, "make_runner", make_runner)
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
    assert lines[0].startswith("replayed 3 of 3 ops = ")
    assert lines[1] == "2 traces with 4 ops are 3 unique ops"
    assert any(line.split()[:3] == ["rank0", "0", "2"] for line in lines)
    assert any(line.split()[:6] == ["rank*", "2", "of", "2", "4", "3"] for line in lines)
    assert max(map(len, lines[2:])) <= 100
    file = read_result_file(path)
    assert [op.count for op in file.results] == [4, 1, 1]
    assert [(trace.source, trace.rank, trace.shared) for trace in file.traces] == [
        ("rank0.json", 0, 1), ("rank1.json.gz", 1, 1)
    ]  # fmt: skip
    assert [(job.ranks, job.world_size) for job in file.jobs] == [((0, 1), 2)]
    assert str(tmp_path) not in path.read_text()
    page = (tmp_path / "r.md").read_text()
    assert page.startswith("replayed 3 of 3 ops")
    assert "| rank0.json | 0 | 2 | 2 |" in page
    assert "| rank\\*.json | 2 of 2 | 4 | 3 |" in page


def test_filters_and_options_are_those_of_run(ranks: Path) -> None:
    result = batch(
        ranks / "*.json*", "--top", "1", "--op-filter", "aten::*", "--exclude", "aten::mm", "--select", "top",
        "--seed", "7", "--op-time", "5ms", "--threads", "1", "--max-op-memory", "1GB", "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "2 traces with 2 ops are 1 unique op" in result.stdout
    options = SEEN["options"]
    assert isinstance(options, orchestrator.RunOptions)
    assert (options.seed, options.op_time_s, options.threads, options.max_op_bytes) == (7, 0.005, 1, 10**9)
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
    assert named.stdout.startswith("replayed 3 of 3 ops")
    nothing = batch(ranks / "notes.json", "-o", tmp_path / "r.jsonl")
    assert nothing.exit_code == 3
    assert nothing.stdout == ""
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [(["-"], 2, "a batch reads files"), (["EMPTY"], 2, "there is no .json"), (["no*such"], 3, "no file matches"),
     (["RANKS", "--address", "auto"], 2, "--engine ray"), (["RANKS", "--device", "cuda:0", "--lanes", "2"], 2, "lanes"),
     (["RANKS", "--max-failed", "0", "--op-filter", "aten::relu"], 0, "")],
)  # fmt: skip
def test_usage(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], code: int, says: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("OPREPLAY_SHARED_DEVICE")
    places = {"RANKS": ranks, "EMPTY": tmp_path / "empty"}
    result = batch(*(places.get(arg, arg) for arg in args))
    assert result.exit_code == code, result.stderr
    assert says in result.stderr


def test_a_dry_run_shows_the_merged_plan(ranks: Path) -> None:
    result = batch(ranks, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("would replay 3 of 3 ops")


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
    assert first.stdout.startswith("replayed 1 of 3 ops")
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
    monkeypatch.setattr("opreplay.replay.batch_reading.POOL_FROM_BYTES", 1)
    result = batch(ranks, "--lanes", "2", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("would replay 3 of 3 ops")


def test_stdout_can_take_the_records(ranks: Path) -> None:
    result = batch(ranks, "-o", "-")
    records = [json.loads(line)["record"] for line in result.stdout.splitlines()]
    assert records == ["header", "op", "op", "op", "trace", "trace", "job", "summary"]
