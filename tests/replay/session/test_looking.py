"""A trace looked into from Python: the tables are those of `inspect` and `timeline`, with all rows and plain values."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.replay.ir.step import IDLE_CAUSES
from opreplay.replay.timeline.timeline import Timeline
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path

SAMPLE, RANKS = str(sample_path("cnn_train")), [str(sample_path(f"ddp_step_rank{rank}")) for rank in (0, 1)]


def told(*arguments: str) -> str:
    return CliRunner().invoke(command, arguments, catch_exceptions=False).stdout


@pytest.fixture(scope="module")
def inspected() -> opreplay.Inspection:
    return opreplay.inspect(SAMPLE)


@pytest.fixture(scope="module")
def step() -> opreplay.Timeline:
    return opreplay.timeline(SAMPLE, what_if="aten::convolution_backward*=0.5x")


@pytest.mark.parametrize(("name", "by"), [("ops", "op"), ("kernels", "kernel"), ("steps", "step")])
def test_tables_of_inspect_are_those_of_the_command(inspected: opreplay.Inspection, name: str, by: str) -> None:
    there = pandas.read_csv(StringIO(told("inspect", SAMPLE, "--by", by, "--format", "csv")))
    here = inspected.frame(name)
    assert list(here.columns) == list(there.columns)
    assert here["name"].tolist() == there["name"].tolist()
    times = [column for column in here.columns if column.endswith("_us")]
    for column in times:
        assert here[column].tolist() == pytest.approx(there[column].tolist(), nan_ok=True)


def test_every_table_of_a_trace_without_steps_and_launches_is_a_frame() -> None:
    found = opreplay.inspect(sample_path("transformer_infer"))
    sizes = {name: found.frame(name).shape for name in found.tables}
    assert all(columns for _, columns in sizes.values())
    assert sizes["launches"][0] == 0 < sizes["ops"][0]


def test_a_table_is_an_attribute(inspected: opreplay.Inspection) -> None:
    assert set(inspected.tables) <= set(dir(inspected))
    assert inspected.frame().equals(inspected.ops.frame())
    assert len(inspected.modules) == len(inspected.frame("modules"))
    assert repr(inspected.categories).splitlines()[0] == "Time by category"
    assert "<pre" in inspected.ops._repr_html_()
    assert inspected.summary.cpu_ops == len(inspected.trace.ops)
    with pytest.raises(UsageError, match="no table roofs") as caught:
        inspected.frame("roofs")
    assert "kernels" in caught.value.hint
    with pytest.raises(AttributeError, match="roofs"):
        inspected.roofs  # noqa: B018


def test_tables_of_a_step_are_those_of_the_command(step: opreplay.Timeline) -> None:
    facts = json.loads(told("timeline", SAMPLE, "--format", "json"))
    path = step.frame("critical_path")
    assert list(zip(path["name"], path["time_us"], strict=True)) == [
        (part["name"], pytest.approx(part["us"])) for part in facts["critical_path"]
    ]
    assert dict(zip(step.idle.frame()["cause"], step.idle.frame()["time_us"], strict=True)) == pytest.approx(
        {IDLE_CAUSES[cause]: us for cause, us in facts["idle_us"].items()}
    )
    categories = step.frame("categories")
    whole = categories[~categories["part"]]["time_us"].sum()
    assert whole == pytest.approx(step.found.recorded_step_us)
    changed = step.what_if.frame().iloc[0]
    assert changed["matched"] > 0
    assert changed["step_us"] + changed["gain_us"] == pytest.approx(step.found.retimed_step_us)
    assert step._repr_html_().startswith("<iframe")


def test_a_change_of_nothing_gains_no_time_and_is_told() -> None:
    with pytest.warns(UserWarning, match="nothing_of_the_kind"):
        found = opreplay.timeline(SAMPLE, what_if=["nothing_of_the_kind=0", "aten::add=0"])
    changed = found.what_if.frame()
    assert changed["matched"].gt(0).tolist() == changed["gain_us"].notna().tolist() == [False, True, True]


def test_changes_together_and_the_work_that_they_save_are_in_the_frame() -> None:
    changes = ["aten::convolution_backward*=0.5x", "aten::add=0"]
    found = opreplay.timeline(SAMPLE, what_if=changes)
    frame, step = found.what_if.frame(), found.found
    assert isinstance(step, Timeline)
    together = step.what_if_together
    assert together is not None
    assert frame["change"].tolist() == [*changes, together.change]
    expected = [change.work_gain_us for change in (*step.what_if, together)]
    assert frame["work_gain_us"].tolist() == pytest.approx(expected)
    assert frame["gain_us"].iloc[-1] == pytest.approx(together.gain_us)


def test_kernels_of_a_step_add_up_to_its_ops() -> None:
    found = opreplay.timeline(SAMPLE, soc="910b3")
    ops, kernels = found.frame("ops"), found.frame("kernels")
    on_device = kernels[kernels["device"] == "910b3"]
    assert on_device["time_us"].sum() == pytest.approx(ops["device_us_910b3"].sum())
    assert found.simulated.frame()["step_us"].tolist() == [found.found.socs["910b3"].step_us]


def test_several_traces_are_ranks() -> None:
    job = opreplay.timeline(RANKS, what_if=["gloo*=0"])
    assert job.frame("ranks")["rank"].tolist() == [0, 1]
    assert job.frame("collectives")["waiting_us"].sum() == pytest.approx(
        sum(one.waiting_us for one in job.found.collectives)
    )
    assert len(job.frame("what_if")) == 1


def test_a_read_trace_and_an_open_one_will_do(inspected: opreplay.Inspection) -> None:
    again = opreplay.inspect(opreplay.open(SAMPLE))
    assert again.frame().equals(inspected.frame())
    assert opreplay.timeline(inspected.trace).frame("modules").shape[1] == 5
    assert inspected.step is not None
    assert inspected.step.frame()["time_us"].sum() == pytest.approx(inspected.step.window.step_us)


def test_a_captured_step_has_simulated_times() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU())
    plan = opreplay.capture(net, torch.randn(32, 64))
    found = opreplay.timeline(plan, soc=["910b3", "910b1"], what_if="aten::relu=0")
    assert found.simulated.frame()["device"].tolist() == ["910b3", "910b1"]
    assert found.what_if.frame().columns.tolist() == ["change", "calls", "step_us_910b3", "step_us_910b1"]
    for refused in ({}, {"soc": "910b3", "step": 1}):
        with pytest.raises(UsageError):
            opreplay.timeline(plan, **refused)
    with pytest.raises(UsageError, match="for one trace"):
        opreplay.timeline(RANKS, process="one")


@pytest.mark.parametrize("made", [lambda: opreplay.plan(SAMPLE), lambda: RANKS])
def test_what_has_no_recorded_times_is_refused(made: Any) -> None:
    with pytest.raises(UsageError):
        opreplay.inspect(made())


def test_asking_for_names_resolves_no_ops() -> None:
    trace = opreplay.open(SAMPLE, top=3)
    assert trace.tables == ("ops", "plan", "reasons")
    assert not hasattr(trace, "kernels")
    assert {"ops", "plan"} <= set(dir(trace))
    assert "plan" not in vars(trace)
    assert not hasattr(trace[0], "frame")


def test_other_results_have_tables() -> None:
    trace = opreplay.open(SAMPLE, top=3)
    fake = opreplay.RunOptions(executor="fake", isolation="none", op_time_s=0.001)
    results = opreplay.run(trace, options=fake)
    assert results.tables == ("ops", "reasons", "traces", "jobs")
    predicted = opreplay.simulate(trace, ("910b3", "910b1"))
    families = predicted.families.frame()
    assert families[families["device"] == "910b3"]["total_us"].sum() == pytest.approx(predicted.total_us["910b3"])
    compared = opreplay.compare(results, results)
    assert compared.classes.frame()["name"].tolist() == [total.name for total in compared.found.classes]
    assert trace.reasons.frame().empty


def test_a_call_with_an_unknown_type_is_counted_and_not_called_left_out(tmp_path: Path) -> None:
    args = {"Input Dims": [[8]], "Input type": ["mylib::Mine"], "Input Strides": [[1]], "Concrete Inputs": [""]}
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 10, "dur": 4, "pid": 1, "tid": 1, "args": args}
    marked = {**op, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 9, "dur": 6, "args": {}}
    path = tmp_path / "unknown.json"
    path.write_text(json.dumps({"traceEvents": [marked, op]}))
    with pytest.warns(UserWarning, match="mylib::Mine"):
        found = opreplay.inspect(path)
    assert found.frame("ops")["time_us"].tolist() == [4.0]
    assert "mylib::Mine" in repr(found)
    assert "left out" not in repr(found)
