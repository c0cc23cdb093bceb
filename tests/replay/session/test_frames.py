"""Data frames of everything tabular: rows, values, units in names, and types that Parquet keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opreplay
from opreplay.traces.errors import UsageError
from opreplay.traces.samples import sample_path

SAMPLE = sample_path("transformer_infer")
FAKE = opreplay.RunOptions(executor="fake", isolation="none", op_time_s=0.001)
UNITLESS = {"recorded_share", "share", "ratio", "ratio_low", "ratio_high", "work", "fidelity"}


def trace() -> opreplay.OpenTrace:
    return opreplay.open(SAMPLE, top=4)


FRAMES: dict[str, Any] = {
    "trace": lambda: (trace().frame(), 4),
    "plan": lambda: (trace().frame("plan"), 4),
    "results": lambda: (opreplay.run(trace(), soc="910b3", options=FAKE).frame(), 4),
    "simulation": lambda: (opreplay.simulate(trace(), ("910b3", "910b1")).frame(), 4),
    "comparison": lambda: (opreplay.compare(*(opreplay.run(trace(), options=FAKE) for _ in range(2))).frame(), 4),
    "step": lambda: (opreplay.step(SAMPLE).frame(), 2 + len(opreplay.step(SAMPLE).idle_us)),
    "sweep": lambda: (opreplay.sweep("aten::mm(bf16[64,n], bf16[n,32])", vary=["n=64,128"]).frame(), 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FRAMES))
def test_types_survive_parquet_and_names_have_units(name: str, tmp_path: Path) -> None:
    import pandas

    frame, rows = FRAMES[name]()
    assert len(frame) == rows
    assert len(set(frame.columns)) == len(frame.columns)
    path = tmp_path / "frame.parquet"
    frame.to_parquet(path)
    pandas.testing.assert_frame_equal(pandas.read_parquet(path), frame)
    assert {str(kind) for kind in frame.dtypes} <= {"string", "Int64", "float64", "boolean"}
    times = [column for column, kind in frame.dtypes.items() if str(kind) == "float64"]
    assert all("_us" in column or column in UNITLESS for column in times), times


def test_rows_are_those_of_the_trace() -> None:
    read = trace()
    frame = read.frame()
    assert len(frame) == len(read)
    assert list(frame["id"]) == [op.id for op in read]
    assert list(frame["count"]) == [op.count for op in read]
    recorded = [op.ir.recorded.host_us_total / op.count for op in read]
    assert list(frame["recorded_host_us"]) == pytest.approx(recorded)
    planned = read.frame("plan")
    for column in ("id", "name", "inputs", "count", "recorded_share"):
        assert list(frame[column]) == list(planned[column])


def test_ops_of_a_written_plan_are_those_of_its_trace(tmp_path: Path) -> None:
    import pandas

    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(opreplay.plan(SAMPLE)))
    columns = ["id", "name", "count", "recorded_host_us", "recorded_share", "flops", "bytes"]
    with pytest.raises(UsageError, match="one pattern"):
        opreplay.open(path, exclude="aten::mm,aten::add").frame()
    of_plan, of_trace = (opreplay.open(file, exclude="aten::l*", top=3).frame()[columns] for file in (path, SAMPLE))
    pandas.testing.assert_frame_equal(of_plan, of_trace)


def test_a_selection_that_keeps_no_op_names_the_nearest() -> None:
    for table in ("ops", "plan"):
        with pytest.raises(UsageError, match="no selected op matches"):
            opreplay.open(SAMPLE, include="aten::mmm").frame(table)


def test_predictions_are_those_of_the_step() -> None:
    simulation = opreplay.simulate(trace(), "910b3")
    frame = simulation.frame()
    total_us = (frame["simulated_us_910b3"] * frame["count"]).sum()
    assert total_us == pytest.approx(simulation.total_us["910b3"])
    assert frame.groupby("bound_910b3")["count"].sum().sum() == sum(op.count for op in trace())
    assert frame["extrapolated_910b3"].dtype == "boolean"


def test_segments_add_up_to_the_step() -> None:
    step = opreplay.step(SAMPLE)
    frame = step.frame()
    assert frame["time_us"].sum() == pytest.approx(step.window.step_us)
    assert frame["share"].sum() == pytest.approx(1.0)


def test_a_comparison_has_what_it_judged() -> None:
    judged = opreplay.compare(*(opreplay.run(trace(), options=FAKE) for _ in range(2)))
    frame = judged.frame()
    assert list(frame["verdict"]) == [op.verdict for op in judged.ops]
    assert list(frame["ratio_low"].dropna()) == [op.low for op in judged.ops if op.low is not None]


def test_a_sweep_is_measured_where_options_are_given() -> None:
    sweep = opreplay.sweep("aten::relu(f32[n])", vary=["n=8,16"], soc="910b3", options=FAKE)
    frame = sweep.frame()
    assert list(frame["n"]) == [8, 16]
    assert list(frame["measured_us"]) == [case.result.measured_us for case in sweep.cases]
    assert frame["measured_us"].notna().all()
    assert repr(sweep).startswith("2 calls: 910b3 would take ")


def test_what_says_no_times_has_no_step(tmp_path: Path) -> None:
    path = tmp_path / "ops.txt"
    path.write_text("Operator: aten.relu.default\ncnt: 1, ((T([4], f32),), {})\n")
    with pytest.raises(opreplay.OpReplayError):
        opreplay.step(path)


def test_pandas_is_imported_when_a_frame_is_made() -> None:
    code = "import opreplay, sys; opreplay.open, opreplay.sweep, opreplay.step; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
