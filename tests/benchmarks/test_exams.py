"""Exams: what figures are made of, and when a result is worse than the committed one."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from benchmarks.exams import ledger
from benchmarks.exams.scoring import Result, score
from benchmarks.exams.tables import compared, left_out, problems

pytestmark = pytest.mark.slow


def test_figures_are_those_of_the_rows() -> None:
    rows = [
        compared("mm", 10.0, 11.0, (9.0, 12.0)),
        compared("mm", 10.0, 15.0, (14.0, 16.0)),
        compared("add", 80.0, 30.0, (20.0, 40.0)),
    ]
    found = score(rows, 4, per_op=True)
    assert found.figures == {
        "rows": 3, "asked": 4, "median": 50.0, "weighted": 56.0, "within_25": 33.3, "within_2x": 66.7, "sum": -44.0,
        "in_band": 33.3, "ops": 2, "per_op": 46.2,
    }  # fmt: skip
    assert found.worst[0].startswith("   0.38 x")


def test_problems_are_asked_as_single_calls(tmp_path: Path) -> None:
    table = tmp_path / "kernelbench_910b4.csv"
    table.write_text(
        "problem,soc,input_shapes,input_dtypes,output_shape,torch_npu_us,n_nonview_aten_ops,aten_ops,init_args\n"
        '25_Swish,910B4,"16,1024",float32,"16,1024",12.5,2,aten.sigmoid.default aten.mul.Tensor,[]\n'
        '19_ReLU,910B4,"16,1024",float32,"16,1024",,1,aten.relu.default,[]\n'
    )
    assert problems(table, "910b4").figures["rows"] == 1


def test_calls_are_predicted_by_those_of_other_sources(tmp_path: Path) -> None:
    rows = [f'{source},910b2,loop,"aten::mish(f32[{n},1024])",{n / 8},yes' for source in "ab" for n in (256, 1024)]
    rows.append('a,910b2,cold,"aten::mm(bf16[64,64],bf16[64,64])",9,yes')
    (tmp_path / "ops.csv").write_text("\n".join(["source,soc,l2,op,torch_us,exact", *rows]))
    assert left_out(tmp_path, "unseen_source").figures["rows"] == 5
    assert left_out(tmp_path, "unseen_source", "product").figures["rows"] == 1


def test_a_result_is_worse_beyond_what_is_tolerated() -> None:
    committed = {"median": 10.0, "in_band": 80.0, "rows": 20}
    assert not ledger.worse("a", {"median": 10.5, "in_band": 78.0, "rows": 21}, committed)
    assert ledger.worse("a", {"median": 10.6, "in_band": 77.9, "rows": 19}, committed) == [
        "a: median is 10.6, was 10",
        "a: in_band is 77.9, was 80",
        "a: rows is 19, was 20",
    ]
    assert ledger.worse("a", {"median": 10.0, "rows": 20}, committed) == ["a: in_band is nan, was 80"]
    assert ledger.worse("a", {**committed, "median": 10.1}, committed, at_all=True) == ["a: median is 10.1, was 10"]


def test_a_threshold_is_lowered_with_a_reason_alone(tmp_path: Path) -> None:
    committed = {"blind": {}, "history": [], "exams": {"tile_kernels": {"median": 7.0}, "transfers": {"median": 1.0}}}
    with pytest.raises(ValueError, match="tile_kernels: median is 9, was 7"):
        ledger.updated(committed, {"tile_kernels": Result({"median": 9.0})})
    found = {"tile_kernels": Result({"median": 9.0}, details={"a": {"median": 1.0}})}
    after = ledger.updated(committed, found, "as told", datetime.date(2026, 1, 2))
    assert after["details"] == {"tile_kernels": {"a": {"median": 1.0}}}
    assert after["exams"] == {"transfers": {"median": 1.0}, "tile_kernels": {"median": 9.0}}
    assert after["history"] == [{"date": "2026-01-02", "why": "as told", "worse": ["tile_kernels: median is 9, was 7"]}]
    ledger.write(after, tmp_path / "results.json")
    assert ledger.read(tmp_path / "results.json") == after


def test_every_exam_that_needs_nothing_else_has_a_committed_result() -> None:
    assert set(ledger.read()["exams"]) == set(ledger.EXAMS)
