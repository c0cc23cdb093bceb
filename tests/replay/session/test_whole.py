"""Whole traces: what `run` gives is what its file holds, and what workers lack is refused rather than left out."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import opreplay
from opreplay.cli.main import opreplay as command
from opreplay.replay.plugins import clear_registrations
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path

SAMPLE = sample_path("transformer_infer")
FAKE = opreplay.RunOptions(executor="fake", isolation="none", op_time_s=0.001)


@pytest.fixture
def no_registrations() -> Iterator[None]:
    from opreplay.initializers import extensions

    yield
    clear_registrations()
    extensions.clear_registrations()


def test_results_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    told: list[int] = []
    trace = opreplay.open(SAMPLE, top=4)
    results = opreplay.run(
        trace, soc=("910b3", "910b1"), options=FAKE, output=path, on_progress=lambda now: told.append(now.done)
    )
    again = opreplay.read_results(path)
    assert again.ops == results.ops
    assert again.summary == results.summary
    assert [op.id for op in results.ops] == [op.id for op in trace]
    assert set(results.ops[0].simulated) == {"910b3", "910b1"}
    assert told[-1] == 4
    frame = again.frame()
    assert list(frame["measured_us"]) == [op.measured_us for op in results.ops]
    assert list(frame["simulated_us_910b1"]) == [op.simulated_us["910b1"] for op in results.ops]
    assert frame.dtypes[["name", "count", "recorded_device_us"]].astype(str).tolist() == ["string", "Int64", "float64"]
    assert "replayed 4 of 4 ops" in repr(results)
    shown = CliRunner().invoke(command, ["show", str(path)], catch_exceptions=False).stdout
    assert repr(results).splitlines()[:3] == shown.splitlines()[:3]
    assert results._repr_html_().startswith("<iframe")
    with pytest.raises(UsageError, match="exists"):
        opreplay.run(trace, options=FAKE, output=path)


@pytest.mark.parametrize(
    "how",
    [
        lambda: opreplay.RunOptions(op_time_s=-1),
        lambda: opreplay.RunOptions(op_time_s=float("nan")),
        lambda: opreplay.run(SAMPLE, top=1, options=FAKE, workers=0),
        lambda: opreplay.run(SAMPLE, top=1, options=FAKE, repeats=0),
        lambda: opreplay.run(SAMPLE, top=0, options=FAKE),
        lambda: opreplay.open(SAMPLE, min_share=2.0),
        lambda: opreplay.run(SAMPLE, top=1, options=FAKE, output="results.csv"),
    ],
)
def test_what_the_command_line_refuses_is_refused(how: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        how()


def test_two_runs_are_compared(tmp_path: Path) -> None:
    runs = [opreplay.run(opreplay.open(SAMPLE, top=4), options=FAKE) for _ in range(2)]
    found = opreplay.compare(*runs)
    assert len(found.ops) == 4
    assert "compared 4 ops" in repr(found)


def test_a_simulation_is_fitted_to_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    from opreplay.replay.report.views import simulation

    widths: list[int] = []
    monkeypatch.setattr(simulation, "render", lambda *of, width, **how: widths.append(width) or "")
    monkeypatch.setenv("COLUMNS", "60")
    repr(opreplay.simulate(opreplay.open(SAMPLE, top=1)))
    assert widths == [60]


def test_a_simulation_begins_with_the_answer_of_the_command() -> None:
    trace = sample_path("cnn_train")
    shown = CliRunner().invoke(command, ["simulate", str(trace)], catch_exceptions=False).stdout
    simulated = opreplay.simulate(trace)
    assert repr(simulated).splitlines()[:3] == shown.splitlines()[:3]
    assert simulated.frame()["recorded_device_us"].isna().all(), "it ran on the host alone"


def test_a_simulation_reads_its_trace_once(tmp_path: Path) -> None:
    trace = tmp_path / SAMPLE.name
    shutil.copy(SAMPLE, trace)
    simulated = opreplay.simulate(trace)
    trace.unlink()
    assert simulated._view().facts()["step"] is not None


def test_a_simulation_is_that_of_its_ops() -> None:
    trace = opreplay.open(SAMPLE, top=4)
    step = opreplay.simulate(trace)
    assert step.total_us["910b3"] == pytest.approx(
        sum(one.simulated.time_us * one.count for one in step.steps["910b3"].ops)
    )
    assert "nothing was executed" in repr(step)
    with pytest.raises(UsageError, match="no simulated device"):
        opreplay.simulate(trace, ())


@pytest.mark.usefixtures("no_registrations")
def test_workers_are_not_given_ops_that_only_this_program_knows() -> None:
    @opreplay.register_initializer
    class Mine(opreplay.CustomInit):
        name = "mine"
        op_patterns = ("aten::linear",)

        def initialize(self, context: opreplay.InitContext) -> str:
            return "as it is"

    trace = opreplay.open(SAMPLE, include=["aten::linear"], top=1)
    with pytest.raises(UsageError, match="do not have the initializer mine") as caught:
        opreplay.run(trace)
    assert "isolation" in caught.value.hint
    assert trace[0].prepare().initializer == "mine"
    assert opreplay.run(trace, options=FAKE).summary.replayed == 1


def test_wrong_options_and_operands_of_whole_traces_are_usage_errors() -> None:
    opened = opreplay.open(SAMPLE, top=1)
    for ask, match in (
        (lambda: opreplay.run(opened, workers=0), "workers is 0"),
        (lambda: opreplay.run(opened, repeats=0), "repeats is 0"),
        (lambda: opreplay.compare(opened, SAMPLE), "not OpenTrace"),  # pyright: ignore[reportArgumentType]
        (lambda: opreplay.compare(SAMPLE, SAMPLE, method="mean"), "method is 'mean'"),  # pyright: ignore[reportArgumentType]
        (lambda: opreplay.compare(SAMPLE, SAMPLE, threshold=-1), "threshold is -1"),
        (lambda: opreplay.timeline(SAMPLE, host_scale=0), "host_scale is 0"),
    ):
        with pytest.raises(UsageError, match=match):
            ask()
