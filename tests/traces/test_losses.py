"""Type names that opreplay does not know are losses; the op is neither replayed nor predicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opreplay.replay.plan.inputs import plan_of
from opreplay.replay.plan.selection import Selection
from opreplay.traces import read_trace
from tests.scenarios.events import owner

OTHERS = Path(__file__).parent / "dialects" / "others"


def test_windows_names_are_replayed_as_they_were() -> None:
    trace = read_trace(OTHERS / "windows_type_names.json")
    plan = plan_of(trace, Selection(select="owner"), device="cpu")
    dtypes = {op.name + str(i): [m.dtype for a in op.args for m in a.tensors if m] for i, op in enumerate(plan.ops)}
    assert not trace.info.report.losses
    assert sorted(map(str, dtypes.values())) == [
        "['bfloat16', 'bfloat16']",
        "['float16', 'float16']",
        "['float32', 'int64']",
        "['float32', 'int64']",
        "['uint8', 'uint8']",
    ]


@pytest.mark.parametrize("dims", [[[64, 64], [64, 64]], [[64, 64], []]])
def test_an_unknown_type_is_a_loss_and_never_float32(tmp_path: Path, dims: list[list[int]]) -> None:
    events = [*owner("aten::mul", 1, dims, 10.0, ["float", "c11::Quux"]), *owner("aten::relu", 2, [[4]], 1.0)]
    events += owner("aten::mul", 3, dims, 10.0, ["float", "c11::Quux"])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    assert trace.info.report.losses == {"unknown type name 'c11::Quux'": 2}
    plan = plan_of(trace, Selection(select="owner"), device="cpu")
    mul = next(op for op in plan.ops if op.name == "aten::mul")
    assert mul.reason is not None
    assert (mul.reason.kind, mul.args) == ("metadata missing", ())
    assert "c11::Quux" in mul.reason.detail


def test_many_unknown_types_are_counted_together(tmp_path: Path) -> None:
    events = [event for i in range(9) for event in owner("aten::relu", i, [[4]], 1.0, [f"T{i}"])]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    losses = read_trace(path).info.report.losses
    assert losses["other unknown type names"] == 4
    assert len(losses) == 6


def test_an_unknown_type_of_an_execution_trace_is_a_loss(tmp_path: Path) -> None:
    node = {
        "id": 2, "name": "aten::relu", "ctrl_deps": 1,
        "inputs": {"values": [[1, 2, 0, 4, 4, "cpu"], 7], "shapes": [[4], []], "types": ["Tensor(c11::Quux)", "Thing"]},
        "outputs": {"values": [], "shapes": [], "types": []}, "attrs": [],
    }  # fmt: skip
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [node]}))
    losses = read_trace(path).info.report.losses
    assert losses == {"unknown type name 'c11::Quux'": 1, "unknown type name 'Thing'": 1}


@pytest.mark.parametrize(
    "more",
    [
        {"Input type": ["float", "float", "float"]},
        {"Input Strides": [[64, 1]]},
        {"Concrete Inputs": ["", "", "", ""]},
    ],
)
def test_argument_lists_of_different_lengths_are_a_loss(tmp_path: Path, more: dict[str, list[object]]) -> None:
    events = owner("aten::mm", 1, [[64, 64], [64, 64]], 10.0, ["float", "float"])
    events[0]["args"] |= more
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    assert trace.info.report.losses == {"the argument lists have different lengths": 1}
    (op,) = plan_of(trace, Selection(select="owner"), device="cpu").ops
    assert op.reason is not None
    assert str(op.reason) == "metadata missing: shapes"
