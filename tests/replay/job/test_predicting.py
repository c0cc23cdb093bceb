"""Predictions of single ops on several simulated devices."""

from __future__ import annotations

from opreplay.replay.ascend.simulate.devices import load_socs
from opreplay.replay.ir.model import Reason, ReplayOp
from opreplay.replay.job.predicting import OpPredictor
from tests.factories import RECORDED, op, tensor


def test_labels_are_not_simulated_as_if_they_were_free() -> None:
    predict = OpPredictor(devices=load_socs(["910b3"]))
    label = ReplayOp(id="d" * 12, name="ProfilerStep#1", count=1, recorded=RECORDED, reason=Reason("label, not an op"))
    assert predict(label).simulated == {}
    mm = op("aten::mm", tensor("a", 8, 8, dtype="float16"), tensor("b", 8, 8, dtype="float16"))
    assert predict(mm).simulated["910b3"].time_us > 0
