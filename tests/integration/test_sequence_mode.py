"""`run --mode sequence` from the outside: samples, a public trace, plans, files, and what does not go with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from opreplay.replay.results.reading import ResultFile, read_result_file
from opreplay.traces.samples import sample_path
from tests.forked_children import opreplay_here

QUICK = ["--mode", "sequence", "--set", "op_time=5ms", "--set", "threads=1", "--set", "max_op_memory=1GB"]

pytestmark = pytest.mark.slow


def opreplay(*args: object, width: int = 80) -> subprocess.CompletedProcess[str]:
    return opreplay_here(*args, COLUMNS=str(width))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], ResultFile, Path]:
    """One run of a bundled sample: what was printed, and the file."""
    path = tmp_path_factory.mktemp("run") / "r.jsonl"
    done = opreplay("run", sample_path("ddp_step_rank0"), *QUICK, "-o", path, "-o", path.with_suffix(".md"))
    assert done.returncode == 0, done.stderr
    return done, read_result_file(path), path


def test_the_report_begins_with_the_step(
    whole: tuple[subprocess.CompletedProcess[str], ResultFile, Path],
) -> None:
    done, file, path = whole
    lines = done.stdout.splitlines()
    assert any("On the host alone: " in line for line in lines)
    assert "replayed 71 of 73 ops = " in "\n".join(lines)
    assert any(line.startswith("sequence of ProfilerStep#3: 108 of 110 calls, ") for line in lines)
    assert "sequence of ProfilerStep" in path.with_suffix(".md").read_text()
    assert file.header.options["mode"] == "sequence"
    found = file.sequence
    assert found is not None
    assert (found.step, found.calls, found.calls_replayed, found.calls_cut) == ("ProfilerStep#3", 110, 108, 0)
    assert found.recorded_step_us == pytest.approx(28060.4, rel=1e-3)
    assert found.sum_us is not None
    assert found.wall_us is not None
    assert 0 < found.sum_us < found.wall_us
    assert sum(r.count for r in file.results if r.status == "replayed") == 108
    assert found.tensors.results > found.tensors.outside > 0


def test_a_saved_sequence_is_shown_again(whole: tuple[subprocess.CompletedProcess[str], ResultFile, Path]) -> None:
    _, _, path = whole
    table = opreplay("show", path, width=160).stdout.splitlines()
    assert any(line.startswith("sequence of ProfilerStep#3") for line in table)
    assert json.loads(opreplay("show", path, "--format", "json").stdout)["sequence"]["step"] == "ProfilerStep#3"
    assert "replayed, whole pass" in opreplay("show", path, "--format", "markdown").stdout
    assert opreplay("show", path, "--format", "csv").stdout.count("\n") == 74


def test_a_finished_one_has_nothing_left_to_do(
    whole: tuple[subprocess.CompletedProcess[str], ResultFile, Path],
) -> None:
    _, _, path = whole
    before = path.read_bytes()
    again = opreplay("run", sample_path("ddp_step_rank0"), *QUICK, "-o", path, "--resume")
    assert again.returncode == 0, again.stderr
    assert path.read_bytes() == before


def test_it_is_not_compared_with_single_ops(
    whole: tuple[subprocess.CompletedProcess[str], ResultFile, Path], tmp_path: Path
) -> None:
    _, _, path = whole
    other = tmp_path / "u.jsonl"
    made = opreplay(
        "run", sample_path("ddp_step_rank0"), "--top", 1, "--set", "op_time=5ms", "--set", "threads=1", "-o", other
    )
    assert made.returncode == 0, made.stderr
    done = opreplay("compare", other, path)
    assert done.returncode == 4
    assert "mode: unique → sequence" in " ".join(done.stderr.split())


def test_a_plan_file_holds_the_order_of_a_step(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert opreplay("plan", sample_path("ddp_step_rank0"), "-o", plan).returncode == 0
    path = tmp_path / "r.jsonl"
    done = opreplay("run", plan, *QUICK, "--include", "aten::*", "--set", "total_time=5s", "-o", path)
    assert done.returncode == 0, done.stderr
    found = read_result_file(path).sequence
    assert found is not None
    assert found.step == "ProfilerStep#3"
    old = json.loads(plan.read_text())
    old.update(schema_version=2, sequence=None)
    plan.write_text(json.dumps(old))
    done = opreplay("run", plan, *QUICK)
    assert done.returncode == 2
    assert "does not record the order of its ops" in " ".join(done.stderr.split())


def test_memory_of_a_public_trace_stays_below_the_limit(shared_traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    trace = shared_traces / "mi300_resnet_ddp_act_checkpoint.json.gz"
    done = opreplay("run", trace, *QUICK, "--exclude", "aten::*conv*", "--set", "max_live_memory=8MB", "-o", path)
    assert done.returncode == 0, done.stderr
    found = read_result_file(path).sequence
    assert found is not None
    assert found.tensors.peak_bytes <= found.tensors.budget_bytes == 8_000_000
    assert found.tensors.recycled > 0
    assert found.calls_replayed > 200
    assert "recycled: " in done.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--mode", "sequence", "--cache", "cold"], "--cache cannot be combined with --mode sequence"),
        (["--mode", "sequence", "--check", "work"], "--check cannot be combined with --mode sequence"),
        (["--mode", "sequence", "--check", "kernels"], "--check cannot be combined with --mode sequence"),
        (
            ["--mode", "sequence", "--set", "cuda_graph=true"],
            "--set cuda_graph cannot be combined with --mode sequence",
        ),
        (
            ["--mode", "sequence", "--set", "over_budget=shrink"],
            "--set over_budget cannot be combined with --mode sequence",
        ),
        (["--set", "max_live_memory=1GB"], "--set max_live_memory needs --mode sequence"),
        (["--mode", "unique", "--set", "max_live_memory=1GB"], "--set max_live_memory needs --mode sequence"),
    ],
)
def test_what_does_not_go_with_it_is_refused(args: list[str], says: str) -> None:
    done = opreplay("run", sample_path("cnn_train"), *args)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
