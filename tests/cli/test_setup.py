"""What `run` and `plan` make of their values: one trace, limits, devices, ops to explain."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.cli import setup as planning
from opreplay.cli.opening import open_trace, parse_limits
from opreplay.replay.ir.model import Reason, Recorded, ReplayArg, ReplayOp, ReplayPlan
from opreplay.replay.plan.make import find_ops
from opreplay.traces import Limits
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta


def op(id_: str, name: str, **more: object) -> ReplayOp:
    return ReplayOp(id=id_, name=name, count=1, recorded=Recorded(host_us_total=1.0, host_us_median=1.0), **more)  # type: ignore[arg-type]


PLAN = ReplayPlan(
    source="t", device_us_total=0.0, host_us_total=3.0,
    ops=(op("aaaaaaaaaaaa", "aten::mm"), op("bbbbbbbbbbbb", "aten::bmm"), op("cccccccccccc", "aten::mm")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [("aten::mm", "ac"), ("aten::*mm", "abc"), ("bbbb", "b"), ("cccccccccccc", "c"), ("aten::b?m", "b")],
)
def test_an_op_is_found_by_name_glob_or_id(wanted: str, ids: str) -> None:
    assert "".join(found.id[0] for found in find_ops(PLAN, wanted)) == ids


def test_an_unknown_op_is_a_usage_error_that_names_some() -> None:
    with pytest.raises(UsageError, match="no selected op matches 'aten::conv'") as caught:
        find_ops(PLAN, "aten::conv")
    assert "aten::mm, aten::bmm" in caught.value.hint


def test_limits_take_units() -> None:
    assert parse_limits([("decompressed_bytes", "128GiB"), ("events", "7")]) == Limits(
        decompressed_bytes=128 << 30, events=7
    )
    with pytest.raises(UsageError, match="no limit is called 'colour'"):
        parse_limits([("colour", "1")])


def test_a_glob_must_mean_one_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": []}')
    assert open_trace(str(tmp_path / "a*.json"), []).info.events == 0
    with pytest.raises(UsageError, match="matches 2 files"):
        open_trace(str(tmp_path / "*.json"), [])


def test_labels_are_not_simulated_as_if_they_were_free() -> None:
    devices = planning.load_socs(["910b3"])
    label = op("dddddddddddd", "ProfilerStep#1", reason=Reason("label, not an op"))
    assert planning.simulate_on(label, devices) == {}
    tensors = tuple(
        ReplayArg(name=name, type="Tensor", tensors=(TensorMeta(shape=(8, 8), dtype="float16"),)) for name in ("a", "b")
    )
    assert planning.simulate_on(op("eeeeeeeeeeee", "aten::mm", args=tensors), devices)["910b3"].time_us > 0
