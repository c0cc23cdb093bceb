"""One op: its tensors, its result, its time, its prediction, its bundle; the caller's settings of torch are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import opreplay
from opreplay.traces.errors import UsageError

pytestmark = pytest.mark.usefixtures("forked_children")

QUICK = opreplay.RunOptions(op_time_s=0.005, isolation="none")
MM = {
    "name": "aten::mm",
    "dur": 3.0,
    "args": {
        "Input Dims": [[8, 4], [4, 2]],
        "Input type": ["float", "float"],
        "Input Strides": [[4, 1], [1, 4]],
        "Concrete Inputs": ["", ""],
    },
}


@pytest.fixture
def op() -> opreplay.Op:
    return opreplay.op_of_event(MM)


def test_calling_gives_the_result_of_seeded_inputs(op: opreplay.Op) -> None:
    call = op.prepare()
    a, b = call.args
    assert b.stride() == (1, 4)
    torch.testing.assert_close(op(), a @ b)
    assert torch.equal(op(), op())


def test_the_tensors_may_be_changed(op: opreplay.Op) -> None:
    call = op.prepare()
    call.args[0].zero_()
    assert not call().any()
    assert call.measure(QUICK).median_us > 0
    assert not call.args[0].any()


def test_settings_of_torch_are_the_callers_again(op: opreplay.Op) -> None:
    before = torch.get_num_threads(), torch.is_grad_enabled()
    op.prepare(options=opreplay.RunOptions(threads=1))()
    op.measure(options=QUICK)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == before == (before[0], True)


def test_measuring_gives_a_measurement_that_can_be_read(op: opreplay.Op) -> None:
    found = op.measure(options=QUICK)
    assert found.median_us > 0
    assert "per call (" in repr(found)
    assert ("95 %" in repr(found)) == (found.samples >= 6)
    assert "caches" in repr(found)


@pytest.mark.slow
def test_a_worker_process_measures_too(op: opreplay.Op) -> None:
    assert op.measure(options=opreplay.RunOptions(op_time_s=0.005, isolation="process")).median_us > 0


def test_an_op_that_cannot_be_replayed_says_why_in_every_way(tmp_path: Path) -> None:
    label = opreplay.op_of_event({"name": "ProfilerStep#3"})
    assert label.reason is not None
    for act in (label, label.prepare, label.measure, label.simulate, lambda: label.export(tmp_path / "b")):
        with pytest.raises(opreplay.NotReplayable, match="label, not an op"):
            act()
    assert not (tmp_path / "b").exists()
    assert "not replayed" in repr(label.explain())


def test_prediction_and_explanation_agree(op: opreplay.Op) -> None:
    explained = op.explain("910b3", "910b1")
    assert list(explained.devices) == ["910b3", "910b1"]
    assert explained.devices["910b3"].simulated == op.simulate("910b3")
    assert "MatMul" in repr(explained)
    with pytest.raises(UsageError, match="910x"):
        op.simulate("910x")


def test_an_exported_op_is_in_the_bundle(op: opreplay.Op, tmp_path: Path) -> None:
    assert (op.export(tmp_path / "b") / "ops.json").is_file()
    assert op.export(tmp_path / "b.zip").stat().st_size > 0
    with pytest.raises(UsageError, match="not empty"):
        op.export(tmp_path / "b")


def test_options_for_another_device_are_refused(op: opreplay.Op) -> None:
    with pytest.raises(UsageError, match="resolved for cpu, but the options name cuda"):
        op.measure(options=opreplay.RunOptions(device="cuda"))


def test_an_event_alone_shows_no_times(op: opreplay.Op) -> None:
    assert "no times" in repr(opreplay.op_of_event({**MM, "dur": 0}))
    assert "3.00 µs on the host" in repr(op)
