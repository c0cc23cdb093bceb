"""Ops of a plan are found by name, glob, id and rank."""

from __future__ import annotations

import pytest

from opreplay.replay.ir.model import Recorded, ReplayOp, ReplayPlan
from opreplay.replay.plan.make import find_ops
from opreplay.traces.errors import UsageError


def op(id_: str, name: str, **more: object) -> ReplayOp:
    return ReplayOp(id=id_, name=name, count=1, recorded=Recorded(host_us_total=1.0, host_us_median=1.0), **more)  # type: ignore[arg-type]


PLAN = ReplayPlan(
    source="t",
    device_us_total=0.0,
    host_us_total=3.0,
    ops=(op("aaaaaaaaaaaa", "aten::mm"), op("bbbbbbbbbbbb", "aten::bmm"), op("cccccccccccc", "aten::mm")),
)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [("aten::mm", "ac"), ("aten::*mm", "abc"), ("bbbb", "b"), ("cccccccccccc", "c"), ("aten::b?m", "b"), ("#2", "b")],
)
def test_an_op_is_found_by_name_glob_or_id(wanted: str, ids: str) -> None:
    assert "".join(found.id[0] for found in find_ops(PLAN, wanted)) == ids


def test_an_unknown_op_is_a_usage_error_that_names_some() -> None:
    with pytest.raises(UsageError, match="no selected op matches 'aten::conv'") as caught:
        find_ops(PLAN, "aten::conv")
    assert "aten::mm, aten::bmm" in caught.value.hint


@pytest.mark.parametrize("wanted", ["#0", "#4", "#", "#x", "#-1"])
def test_a_rank_that_no_op_has_is_a_usage_error(wanted: str) -> None:
    with pytest.raises(UsageError, match="no op matches") as caught:
        find_ops(PLAN, wanted)
    assert caught.value.hint == "The selection contains 3 ops, #1 to #3."
