"""Ops of ATen that are right and once raised an alarm: points at which they pass."""

from __future__ import annotations

import pytest

from opreplay.replay.session.checking import check

ALARMED = [
    # At 0 and 1 its derivative is infinite; that of the decomposition is infinity times zero.
    ("aten::logit(f32[16,32])", "gradient"),
    ("aten::special_entr(f32[16,32])", "gradient"),
]


@pytest.mark.parametrize(("call", "point"), ALARMED)
def test_a_right_op_passes(call: str, point: str) -> None:
    name = call.partition("(")[0]
    report = check(name, against="decomposition", shapes=(call,), points=[point], isolation="none")
    assert [(checked.point, checked.verdict) for checked in report.points] == [(point, "pass")]
