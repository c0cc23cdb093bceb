"""Several traces from Python: the same merged ops, sums and refusals as `opreplay run` has for several files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.traces.errors import TraceError, UsageError
from opreplay.traces.samples import sample_path

FAKE = opreplay.RunOptions(executor="fake", isolation="none", op_time_s=0.001)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two traces, one of them twice, and a file that is none."""
    path = tmp_path_factory.mktemp("traces")
    for name in ("transformer_infer", "moe_block"):
        shutil.copy(sample_path(name), path / f"{name}.json.gz")
    shutil.copy(sample_path("moe_block"), path / "z_again.json.gz")
    return path


@pytest.mark.usefixtures("forked_children")
def test_a_folder_runs_as_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "r.jsonl"
    with pytest.warns(UserWarning, match="left out"):
        found = opreplay.run(folder, include="aten::*lu", exclude="aten::relu", options=FAKE)
    options = ("--op-filter", "aten::*lu", "--exclude", "aten::relu", "--set", "op_time=1ms")
    assert CliRunner().invoke(command, ["run", str(folder), *options, "--output", str(output)]).exit_code == 0
    there = opreplay.read_results(output)
    assert [(op.id, op.count) for op in found.ops] == [(op.id, op.count) for op in there.ops]
    assert [(one.source, one.ops, one.recorded_us) for one in found.file.traces] == [
        (one.source, one.ops, one.recorded_us) for one in there.file.traces
    ]
    assert {op.name for op in found.ops} == {"aten::silu"}


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
    with pytest.raises(UsageError, match="top is for a file"):
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
