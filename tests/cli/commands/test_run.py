"""`opreplay run` with a made-up plan and the fake executor: reports, files, exit codes, interrupts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from opreplay.cli.main import opreplay
from opreplay.replay.execute import engines
from opreplay.replay.execute.executors.fake import FakeExecutor
from opreplay.replay.execute.options import RunOptions, WorkerConfig
from opreplay.replay.execute.processes.runner import InProcess
from opreplay.replay.ir.model import Reason, Recorded, ReplayOp, ReplayPlan
from opreplay.replay.plan import inputs
from opreplay.replay.plan.selection import Selection
from opreplay.replay.results.reading import read_results

SEEN: dict[str, object] = {}


def op(name: str, device_us: float, reason: Reason | None = None) -> ReplayOp:
    recorded = Recorded(host_us_total=9.0, host_us_median=9.0, device_us_total=device_us, device_us_median=device_us)
    return ReplayOp(id=f"{abs(hash(name)):012x}"[:12], name=name, count=1, recorded=recorded, reason=reason)


PLAN = ReplayPlan(
    source="t.json",
    device_us_total=100.0,
    host_us_total=40.0,
    ops=(
        op("fake::30us", 60.0),
        op("fake::5us", 20.0),
        op("fake::raise", 10.0),
        op("nccl:all_reduce", 10.0, Reason("collective", "all_reduce")),
    ),
)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A readable trace; its plan is made up, and the fake executor runs it in this process."""

    def make_plan(trace: object, selection: Selection, *, device: str, in_order: bool) -> ReplayPlan:
        SEEN.update(selection=selection, device=device, in_order=in_order)
        return PLAN

    def make_runner(options: RunOptions, recency: object = None) -> InProcess:
        SEEN["options"] = options
        return InProcess(FakeExecutor(), WorkerConfig(options=options, memory_bytes=1 << 30))

    monkeypatch.setattr(inputs, "make_plan", make_plan)
    monkeypatch.setattr(engines, "make_runner", make_runner)
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}))
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(opreplay, ["run", *map(str, args)], env={"COLUMNS": "100"})


def test_the_report_starts_with_coverage_and_shows_every_op(trace: Path) -> None:
    result = run(trace)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "replayed 2 of 4 ops = 80.0 % of device time; 1 skipped: 1 collective; 1 failed" in lines[:4]
    assert "fake::30us" in result.stdout
    assert "RuntimeError: the fake op raised" in result.stdout
    assert "collective: all_reduce" in result.stdout
    assert max(map(len, lines[1:])) <= 100


def test_check_work_reaches_the_library(trace: Path) -> None:
    assert run(trace, "--check", "work").exit_code == 0
    options = SEEN["options"]
    assert isinstance(options, RunOptions)
    assert options.check_work


def test_how_to_measure_reaches_the_library(trace: Path) -> None:
    assert run(trace, "--cache", "warm", "--set", "cuda_graph=true", "--check", "kernels,values").exit_code == 0
    options = SEEN["options"]
    assert isinstance(options, RunOptions)
    assert (options.cache, options.cuda_graph, options.check_kernels) == ("warm", True, True)
    assert options.check_values
    measured = options
    assert (measured.cache, measured.cuda_graph, measured.check_kernels) == ("warm", True, True)
    assert run(trace).exit_code == 0
    assert SEEN["options"].cache == "cold"  # type: ignore[attr-defined]


def test_values_of_options_reach_the_library(trace: Path) -> None:
    result = run(
        trace,
        "--device",
        "cpu",
        "--set",
        "op_time=20ms",
        "--set",
        "op_limit=9s",
        "--set",
        "seed=5",
        "--set",
        "threads=2",
        "--set",
        "max_op_memory=2GB",
        "--set",
        "over_budget=skip",
        "--set",
        "total_time=2min",
        "--allow-import",
        "mine=my.ops",
        "--select",
        "leaf",
        "--include",
        "aten::*",
        "--exclude",
        "aten::a*",
        "--top",
        "7",
        "--set",
        "min_share=0.1%",
        "--max-failed",
        "2",
        "--set",
        "limit=events=5",
    )
    assert result.exit_code == 0, result.stderr
    options = SEEN["options"]
    assert isinstance(options, RunOptions)
    assert (options.op_time_s, options.seed, options.threads, options.max_op_bytes) == (0.02, 5, 2, 2 * 10**9)
    assert (options.over_budget, options.limit_s) == ("skip", 9.0)
    assert options.hard_limit_s() == 9.0
    assert (options.total_time_s, options.allow_imports) == (120.0, {"mine": "my.ops"})
    assert SEEN["selection"] == Selection(
        select="leaf",
        include=("aten::*",),
        exclude=("aten::a*",),
        top=7,
        min_share=0.001,
        allow_imports={"mine": "my.ops"},
    )


@pytest.mark.parametrize(("allowed", "code"), [(0, 1), (1, 1), (2, 0)])
def test_how_many_may_fail(trace: Path, allowed: int, code: int) -> None:
    assert run(trace, "--max-failed", allowed).exit_code == code


def test_a_run_may_stop_at_the_first_failure(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    result = run(trace, "--stop-on-error", "-o", path)
    assert result.exit_code == 1
    assert "interrupted, 1 not reached" in result.stdout.splitlines()[0]
    assert "stopped at fake::raise" in result.stderr
    resumed = run(trace, "--resume", "-o", path)
    assert resumed.exit_code == 0, resumed.stderr
    assert [r.status for r in read_results(path)[1]] == ["replayed", "replayed", "failed", "skipped"]


def test_files_and_stdout_hold_the_same_records(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    result = run(trace, "-o", path, "-o", "-")
    assert result.stdout == path.read_text()
    assert "replayed 2 of 4 ops" in result.stderr.splitlines()[-1]
    header, results, summary = read_results(path)
    assert header.trace["events"] == 1
    assert [r.status for r in results] == ["replayed", "replayed", "failed", "skipped"]
    assert summary is not None


def test_an_interrupt_prints_and_keeps_the_part_that_is_done(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = InProcess.measure

    def measure(self: InProcess, op: ReplayOp) -> object:
        if op.name == "fake::5us":
            raise KeyboardInterrupt
        return measured(self, op)

    monkeypatch.setattr(InProcess, "measure", measure)
    result = run(trace, "-o", tmp_path / "r.jsonl", "-o", tmp_path / "r.csv")
    assert result.exit_code == 130
    assert "replayed 1 of 4 ops = 60.0 % of device time; interrupted, 3 not reached" in result.stdout
    assert len(read_results(tmp_path / "r.jsonl")[1]) == 1
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 2


def test_a_dry_run_shows_the_plan(trace: Path) -> None:
    result = run(trace, "--dry-run")
    assert result.exit_code == 0
    assert "would replay 3 of 4 ops = 90.0 % of device time; 1 skipped: 1 collective" in result.stdout


def test_two_devices_of_one_name_are_refused(trace: Path) -> None:
    result = run(trace, "--soc", "910b3", "--soc", "Ascend910B3")
    assert result.exit_code == 2
    assert "two simulated devices have the name 910b3" in result.stderr
    (trace.parent / "mine.toml").write_text('schema_version = 3\nname = "910b3"\nbase = "910b3"\n')
    result = run(trace, "--soc", "910b3", "--soc", trace.parent / "mine.toml")
    assert "Change `name` in" in result.stderr


def test_an_interrupted_run_is_resumed(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = InProcess.measure
    path, page = tmp_path / "r.jsonl", tmp_path / "r.csv"

    def interrupted(self: InProcess, op: ReplayOp) -> object:
        if op.name == "fake::5us":
            raise KeyboardInterrupt
        return measured(self, op)

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "measure", interrupted)
        assert run(trace, "-o", path).exit_code == 130
    with path.open("ab") as stream:
        stream.write(b'{"record": "op", "na')
    page.write_text("")
    result = run(trace, "--resume", "-o", path, "-o", page, "-o", "-")
    assert result.exit_code == 0, result.stderr
    assert [json.loads(line)["record"] for line in result.stdout.splitlines()] == [
        "header",
        "op",
        "resumed",
        "op",
        "op",
        "op",
        "summary",
    ]
    assert len(page.read_text().splitlines()) == 5
    _, results, summary = read_results(path)
    assert [r.name for r in results] == [op.name for op in PLAN.ops]
    assert summary is not None
    assert not summary.interrupted
    assert "replayed 2 of 4 ops" in run(trace, "--resume", "-o", path).stdout
    warm = run(trace, "--resume", "-o", path, "--l2", "warm")
    assert warm.exit_code == 2
    assert "--l2" in warm.stderr, "predictions for other caches are of another run"
    assert json.loads(path.read_text().splitlines()[0])["options"]["l2"] == "cold"
    other = run(trace, "--resume", "-o", path, "--set", "seed=9")
    assert other.exit_code == 2
    assert "seed (0 before, 9 now)" in other.stderr


def test_resume_begins_where_there_is_nothing_and_needs_one_file(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"record": "hea')
    assert run(trace, "--resume", "-o", path).exit_code == 0
    assert len(read_results(path)[1]) == 4
    for arguments in ([], ["-o", tmp_path / "r.csv"], ["-o", path, "-o", tmp_path / "s.jsonl"]):
        result = run(trace, "--resume", *arguments)
        assert result.exit_code == 2
        assert "--resume needs exactly one --output FILE.jsonl" in result.stderr
    (tmp_path / "full.csv").write_text("mine\n")
    assert run(trace, "--resume", "-o", path, "-o", tmp_path / "full.csv").exit_code == 2


def test_a_device_in_use_is_refused_unless_it_is_shared(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opreplay.replay.host import device_lock

    monkeypatch.delenv("OPREPLAY_SHARED_DEVICE")
    monkeypatch.setattr(device_lock, "WAIT_S", 0.0)
    with device_lock.hold_locks(["cuda:0"]), device_lock.hold_locks(["cpu"]):
        refused = run(trace, "--device", "cuda")
        assert refused.exit_code == 4
        assert "cuda-0 is in use by another opreplay" in refused.stderr
        assert run(trace, "--device", "cuda", "--set", "shared_device=true").exit_code == 0
        beside = run(trace)
        assert beside.exit_code == 0
        assert "another job is measuring on cpu" in beside.stderr
