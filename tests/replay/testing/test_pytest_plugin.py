"""The fixture `opreplay` in a project of its own, run by a pytest of its own."""

from __future__ import annotations

import shutil
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import pytest

from opreplay.replay.results.reading import read_result_file
from opreplay.replay.results.writing import JsonLinesSink
from opreplay.replay.testing.expectations import Expectations, OpsNotAsExpected
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path
from tests.forked_children import python_module

pytestmark = pytest.mark.slow

PLUGIN = "opreplay.cli.pytest_plugin"
TESTS = """
from opreplay import RunOptions

QUICK = RunOptions(op_time_s=0.1, visits=1)


def test_replay(opreplay):
    results = opreplay.replay("trace.json.gz", include=("aten::silu",), baseline="ops.jsonl", options=QUICK,
                              fail_if=("total>400%", "lost>0"))
    assert {op.status for op in results.ops} == {"replayed"}


def test_one_op(opreplay):
    assert opreplay.op("aten::relu(f32[n])", n=8)().shape == (8,)
    assert len(opreplay.open("trace.json.gz", top=2)) == 2
"""


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    installed = any(one.value == PLUGIN for one in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", PLUGIN]
    given = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", *plugin, *arguments)
    done = python_module("pytest", *given, cwd=folder, timeout=180, OMP_NUM_THREADS="1")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_ops.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(sample_path("transformer_infer"), tmp_path / "trace.json.gz")
    return tmp_path


def test_a_project_writes_a_baseline_and_then_holds_its_ops_against_it(project: Path) -> None:
    code, text = run_pytest(project, "-k", "replay")
    assert code == 1
    assert "no baseline" in text
    assert "--opreplay-update" in text
    code, text = run_pytest(project, "--opreplay-update")
    assert code == 0, text
    code, text = run_pytest(project)
    assert code == 0, text
    _ten_times_faster(project / "ops.jsonl")
    code, text = run_pytest(project, "-k", "replay")
    assert code == 1
    assert "total>400%: " in text


def _ten_times_faster(path: Path) -> None:
    """As if the ops had taken a tenth before."""
    file = read_result_file(path)
    path.unlink()
    sink = JsonLinesSink.open(path)
    sink.write(file.header)
    for one in file.results:
        assert one.measurement is not None
        names = ("median_us", "min_us", "max_us", "iqr_us", "ci_low_us", "ci_high_us")
        faster = {name: us / 10 for name in names if (us := getattr(one.measurement, name)) is not None}
        relative = None if one.measurement.relative is None else one.measurement.relative / 10
        measurement = msgspec.structs.replace(one.measurement, relative=relative, **faster)
        sink.write(msgspec.structs.replace(one, measurement=measurement, measured_us=measurement.median_us))
    assert file.summary is not None
    sink.write(file.summary)
    sink.close()


def test_ops_that_cannot_be_replayed_fail_the_test(tmp_path: Path) -> None:
    ours = Expectations(tmp_path)
    trace = sample_path("ddp_step_rank0")
    with pytest.raises(OpsNotAsExpected, match="were not replayed") as raised:
        ours.replay(trace, select="top", include=("*",), top=40, options=_quick())
    assert "collective" in str(raised.value) or "label" in str(raised.value)
    with pytest.raises(OpsNotAsExpected, match="no baseline"):
        ours.replay(trace, top=1, baseline="none.jsonl")
    with pytest.raises(UsageError, match="is not a condition"):
        ours.replay(trace, top=1, fail_if="slow")
    with pytest.raises(UsageError, match="already open"):
        ours.replay(ours.open(trace), top=1)


def _quick():
    import opreplay

    return opreplay.RunOptions(op_time_s=0.001, isolation="none")


def test_a_wrong_op_fails_the_test(forked_children: None, tmp_path: Path) -> None:
    ours = Expectations(tmp_path)
    options = {"shapes": ("f32[8], f32[8]",), "points": ("correctness",), "require": ("correctness",)}
    with pytest.raises(OpsNotAsExpected, match="correctness: fail"):
        ours.check("aten::add.Tensor", against="aten::sub.Tensor", **options)
    assert ours.check("aten::add.Tensor", **options).points
