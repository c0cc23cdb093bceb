"""A device from calls that a user measured: rows that count, predictions with them, the file and what it holds."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from opreplay.replay.ascend import load_device, simulate_op
from opreplay.replay.ascend.calibrate.calls import validate_calls
from opreplay.replay.ascend.calibrate.own_calls import OwnFit, fit_calls, in_network_us, median_error, own_text
from opreplay.replay.ascend.cost.predictor import Predictor
from opreplay.replay.ascend.measured.call_tables import read_call_table
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ascend.simulate.op import explain_op
from opreplay.replay.ascend.simulate.step import simulate_step
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.resolve.written.sweep import Written, plan_of_calls
from opreplay.traces.errors import Malformed

DEVICE = load_device("910b3")
MM = "aten::mm(bf16[4096,4096], bf16[4096,4096])"
OTHER_MM = "aten::mm(bf16[4096,4096], bf16[4096,5120])"
ADD = "aten::add.Tensor(bf16[4096,4096], bf16[4096,4096])"
HEAD = "source,soc,cann,state,l2,op,torch_us,exact,other_us,other,note\n"


def op_of(text: str) -> ReplayOp:
    plan, ids = plan_of_calls([Written(text=text)])
    return next(op for op in plan.ops if op.id == ids[0])


def row(call: str, time_us: float, l2: str = "cold", soc: str = "910b3", note: str = "spread 1.0 %") -> str:
    return f'measure.py,{soc},8.3,events,{l2},"{call}",{time_us},yes,,,{note}\n'


def fitted(tmp_path: Path, *rows: str, device: DeviceProfile = DEVICE) -> OwnFit:
    path = tmp_path / "measured.csv"
    path.write_text(HEAD + "".join(rows))
    return fit_calls([read_call_table(path, soc=device.name)], device, lambda op: None)


def test_a_measured_call_is_predicted_as_measured_and_its_op_follows(tmp_path: Path) -> None:
    before = simulate_op(op_of(MM), DEVICE, l2="cold")
    fit = fitted(tmp_path, row(MM, 2 * before.time_us))
    after = simulate_op(op_of(MM), fit.after, l2="cold")
    assert after.time_us == pytest.approx(2 * before.time_us, rel=0.03)
    assert after.high_us / after.low_us < 1.25
    assert (after.measured, after.confidence, before.measured) == ("call", "calibrated", "")
    assert sum(after.terms_us.values()) == pytest.approx(sum(before.terms_us.values()) * after.time_us / before.time_us)
    ratios = {
        text: simulate_op(op_of(text), fit.after, l2="cold").time_us
        / simulate_op(op_of(text), DEVICE, l2="cold").time_us
        for text in (OTHER_MM, ADD)
    }
    assert 2.0 > ratios[OTHER_MM] > 1.3 > ratios[ADD] > 1.0
    assert simulate_op(op_of(OTHER_MM), fit.after, l2="cold").measured == "op"


def test_in_a_network_the_measured_time_counts_not_the_error_of_the_call_alone(tmp_path: Path) -> None:
    """Calls alone follow other constants: a measured time as the network's constants say changes nothing there."""
    us = in_network_us(op_of(ADD), Predictor(DEVICE), None, "cold")
    fit = fitted(tmp_path, row(ADD, us))
    before, after = (simulate_op(op_of(ADD), device) for device in (DEVICE, fit.after))
    assert after.time_us == pytest.approx(before.time_us, rel=0.02)
    assert after.high_us / after.time_us < before.high_us / before.time_us


def test_an_explanation_has_the_adjusted_kernels(tmp_path: Path) -> None:
    fit = fitted(tmp_path, row(MM, 5000.0))
    explained = explain_op(op_of(MM), fit.after, l2="cold")
    assert sum(k.prediction.time_us * k.count for k in explained.kernels) == pytest.approx(explained.simulated.time_us)


def test_rows_of_one_call_are_merged_and_others_left_out_with_a_reason(tmp_path: Path) -> None:
    fit = fitted(
        tmp_path,
        row(MM, 400.0),
        row(MM, 600.0),
        row(MM, 390.0, "warm"),
        row(ADD, 100.0, soc="910b2"),
        row(f"{ADD} ; {MM}", 700.0),
        row("aten::no_such_op(f32[4])", 3.0),
    )
    assert fit.rows == 6
    assert [(r.l2, r.measured_us) for r in fit.after.measured] == [("cold", 500.0), ("warm", 390.0)]
    assert fit.after.measured[0].spread == pytest.approx(0.2)
    assert fit.after.measured[1].spread == pytest.approx(0.01)
    assert fit.dropped["the call was measured on a 910b2"] == 1
    assert fit.dropped["several calls were timed together"] == 1
    assert sum(fit.dropped.values()) == 3


def test_a_table_without_a_call_of_the_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="measured on a 910b2"):
        fitted(tmp_path, row(MM, 400.0, soc="910b2"))


def test_the_file_means_the_same_device(tmp_path: Path) -> None:
    fit = fitted(tmp_path, row(MM, 1000.0), row(ADD, 150.0, "warm"))
    path = tmp_path / "mine.toml"
    path.write_text(own_text(fit, name="mine"))
    mine = load_device(path)
    assert mine.name == "mine"
    for call, kept in zip(mine.measured, fit.after.measured, strict=True):
        assert call.predicted_us == pytest.approx(kept.predicted_us, rel=1e-4)
    for l2 in ("cold", "warm", "sequence"):
        for text in (MM, OTHER_MM, ADD):
            read, made = (simulate_op(op_of(text), device, l2=l2).time_us for device in (mine, fit.after))
            assert read == pytest.approx(made, rel=1e-3)


OWN_FILE = """schema_version = 2
name = "my-910b3"
base = "910b3"
[datasheet.hbm_bytes_per_s]
value = 1.5e12
unit = "byte/s"
source = "our own stream benchmark"
confidence = "measured"
"""


def test_a_device_of_the_users_keeps_what_its_file_says_and_earlier_calls(tmp_path: Path) -> None:
    first_file, second_file = tmp_path / "first.toml", tmp_path / "second.toml"
    first_file.write_text(OWN_FILE)
    first = fitted(tmp_path, row(MM, 1000.0), row(ADD, 150.0), device=load_device(first_file))
    first_file.write_text(own_text(first, name="first", file_text=OWN_FILE))
    again = fitted(tmp_path, row(MM, 900.0), device=load_device(first_file))
    second_file.write_text(own_text(again, name="second", file_text=first_file.read_text()))
    mine = load_device(second_file)
    assert mine.name == "second"
    assert {(r.call, r.measured_us) for r in mine.measured} == {(MM, 900.0), (ADD, 150.0)}
    assert mine.hbm_bytes_per_s == 1.5e12
    assert not mine.is_own_fit, "measured calls are no constants: single calls are corrected as before"


def test_errors_are_before_and_of_calls_that_are_left_out(tmp_path: Path) -> None:
    device = DEVICE
    calls = [f"aten::mm(bf16[4096,4096], bf16[4096,{n}])" for n in (4096, 5120, 6144, 8192)]
    rows = [row(call, 1.5 * simulate_op(op_of(call), device, l2="cold").time_us) for call in calls]
    fit = fitted(tmp_path, *rows)
    before = median_error([error.before for error in fit.errors])
    held_out = median_error([error.held_out for error in fit.errors])
    assert before == pytest.approx(1 / 3, abs=0.01)
    assert held_out < 0.6 * before


def test_the_band_of_a_total_narrows_with_the_calls_that_are_measured(tmp_path: Path) -> None:
    ops = [op_of(MM), op_of(ADD)]
    cold, warm = (in_network_us(ops[0], Predictor(DEVICE), None, state) for state in ("cold", "warm"))
    fit = fitted(tmp_path, row(MM, cold), row(MM, warm, "warm"))
    before, after = (simulate_step(ops, device) for device in (DEVICE, fit.after))
    assert after.total_us == pytest.approx(before.total_us, rel=0.05)
    assert log(after.high_us / after.low_us) < 0.75 * log(before.high_us / before.low_us)
    assert after.measured["call"] > 0.5


def test_validation_on_a_device_file_uses_its_measurements(tmp_path: Path) -> None:
    fit = fitted(tmp_path, row(MM, 5000.0))
    file = tmp_path / "mine.toml"
    file.write_text(own_text(fit, name="mine"))
    table = tmp_path / "again.csv"
    table.write_text(HEAD + row(MM, 5000.0) + row(OTHER_MM, 900.0, soc=""))
    found = read_call_table(table, soc="mine")
    device = load_device(file)
    compared = validate_calls([found], soc=str(file)).compared
    expected = [simulate_op(op_of(text), device, l2="cold").time_us for text in (MM, OTHER_MM)]
    assert [one.predicted_us for one in compared] == pytest.approx(expected)
    assert compared[0].predicted_us == pytest.approx(5000.0, rel=0.03)
