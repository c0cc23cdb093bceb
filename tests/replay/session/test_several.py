"""Several traces from Python: the same merged ops, sums and refusals as `opreplay run` has for several files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.samples import sample_path

NAMES = ("moe_block", "transformer_infer")
FAKE = opreplay.RunOptions(executor="fake", isolation="none", op_time_s=0.001)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces, one of them twice, and a file that is none."""
    path = tmp_path_factory.mktemp("traces")
    for name in NAMES:
        shutil.copy(sample_path(name), path / f"{name}.json.gz")
    shutil.copy(sample_path("moe_block"), path / "z_again.json.gz")
    return path


def test_a_folder_runs_as_on_the_command_line(folder: Path) -> None:
    with pytest.warns(UserWarning, match="duplicate of"):
        found = opreplay.run(folder, include="aten::*lu", exclude="aten::relu", top=2, options=FAKE)
    options = ["--op-filter", "aten::*lu", "--exclude", "aten::relu", "--top", "2", "--dry-run", "--format", "json"]
    told = CliRunner().invoke(command, ["run", str(folder), *options])
    there = json.loads(told.stdout)["unique_ops"]
    assert [(op.id, op.count, op.recorded_host_us) for op in found.ops] == [
        (op["id"], op["count"], op["recorded_host_us"]) for op in there
    ]
    alone = [opreplay.open(sample_path(name), include="aten::*lu", top=2) for name in NAMES]
    assert {trace.source: trace.recorded_us for trace in found.file.traces} == {
        f"{name}.json.gz": pytest.approx(sum(op.ir.recorded.host_us_total for op in trace))
        for name, trace in zip(NAMES, alone, strict=True)
    }


def test_a_list_and_a_glob_are_the_same_files(folder: Path) -> None:
    paths = [folder / "moe_block.json.gz", folder / "transformer_infer.json.gz"]
    listed, found = opreplay.open(paths, top=3), opreplay.open(str(folder / "[mt]*.gz"), top=3)
    assert [op.id for op in listed] == [op.id for op in found]
    results = opreplay.run(listed, options=FAKE, soc="910b3")
    assert [trace.ops for trace in results.file.traces] == [3, 3]
    assert opreplay.run(listed, options=FAKE).file.traces == tuple(opreplay.run(paths, top=3, options=FAKE).file.traces)
    assert set(opreplay.simulate(listed).total_us) == {"910b3"}


def test_one_text_is_one_pattern() -> None:
    sample = sample_path("transformer_infer")
    names = {op.name for op in opreplay.open(sample, include="aten::*norm*")}
    assert names == {"aten::rms_norm"}
    assert names.isdisjoint(op.name for op in opreplay.open(sample, exclude="aten::*norm*"))
    assert len(opreplay.plan(sample, include="aten::*norm*", top=1).ops) == 1


@pytest.mark.filterwarnings("ignore:refused", "ignore:left out")
def test_what_makes_no_sense_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no trace is named"):
        opreplay.open([])
    with pytest.raises(TraceError, match="no file matches"):
        opreplay.run(str(folder / "none*.json"))
    with pytest.raises(TraceError, match="nothing_of_the_kind"):
        len(opreplay.open(folder, include="aten::nothing_of_the_kind"))
    with pytest.raises(UsageError, match="top only applies when opening a file"):
        opreplay.run(opreplay.open(sample_path("moe_block")), top=3)
    with pytest.raises(UsageError, match="for one trace"):
        opreplay.open(folder, kernel_details="op_summary.csv")


def test_workers_and_repeats_are_options_of_the_run() -> None:
    trace = opreplay.open(sample_path("transformer_infer"), top=2)
    options = opreplay.run(trace, options=FAKE, workers=1, repeats=1).header.options
    assert (options["lanes"], options["visits"]) == (1, 1)
    with pytest.raises(UsageError, match="no effect"):
        opreplay.run(trace, options=FAKE, workers=2, repeats=3)


def test_an_error_tells_its_hint() -> None:
    with pytest.raises(UsageError) as caught:
        opreplay.open(sample_path("transformer_infer"), include="aten::mmm").plan  # noqa: B018
    error = caught.value
    assert error.hint
    assert str(error) == f"{error.problem}\nhint: {error.hint}"
    assert str(opreplay.OpReplayError("plain")) == "plain"
