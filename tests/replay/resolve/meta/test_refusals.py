"""Sizes that torch refuses on meta tensors are an op's reason, and no device has a time for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opreplay.replay.ascend import load_device
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.reasons import refuses_arguments
from opreplay.replay.job.predicting import OpPredictor
from opreplay.replay.plan.make import make_plan
from opreplay.replay.plan.selection import Selection
from opreplay.traces import read_trace

Json = dict[str, Any]


def planned(folder: Path, name: str, dims: list[Any], concrete: list[str], types: list[str] | None = None) -> ReplayOp:
    """The op of a trace of one call with one kernel."""
    of_op: Json = {"External id": 1, "Input Dims": dims, "Concrete Inputs": concrete}
    of_op["Input type"] = types or [
        "float" if shape else "Scalar" if text else "" for shape, text in zip(dims, concrete, strict=True)
    ]
    placed: Json = {"ph": "X", "pid": 1, "tid": 1}
    ids = {"External id": 1, "correlation": 1}
    events: list[Json] = [
        {**placed, "cat": "cpu_op", "name": name, "ts": 1000, "dur": 20, "args": of_op},
        {**placed, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1005, "dur": 5, "args": ids},
        {
            **placed,
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "ts": 1030,
            "dur": 9,
            "args": {**ids, "device": 0, "stream": 7},
        },
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (op,) = make_plan(read_trace(path), Selection(), device="cpu").ops
    return op


def is_predicted(op: ReplayOp) -> bool:
    return bool(OpPredictor(devices={"910b3": load_device("910b3")})(op).simulated)


REFUSED: list[tuple[str, list[Any], list[str]]] = [
    ("aten::mm", [[64, 32], [33, 48]], ["", ""]),
    ("aten::bmm", [[4, 8, 16], [5, 16, 8]], ["", ""]),
    ("aten::addmm", [[48], [64, 32], [31, 48], [], []], ["", "", "", "1", "1"]),
    ("aten::topk", [[8, 64], [], [], [], []], ["", "100", "-1", "True", "True"]),
    ("aten::add", [[8, 64], [8, 63], []], ["", "", "1"]),
    ("aten::embedding", [[100, 64, 2], [7], [], [], []], ["", "", "-1", "False", "False"]),
]


@pytest.mark.parametrize(("name", "dims", "concrete"), REFUSED, ids=[case[0] for case in REFUSED])
def test_sizes_that_do_not_go_together_have_a_reason_and_no_prediction(
    tmp_path: Path, name: str, dims: list[Any], concrete: list[str]
) -> None:
    types = ["float", "long int", "Scalar", "Scalar", "Scalar"] if name == "aten::embedding" else None
    op = planned(tmp_path, name, dims, concrete, types)
    assert op.reason is not None
    assert refuses_arguments(op.reason)
    assert not is_predicted(op)


def test_sizes_that_go_together_are_predicted(tmp_path: Path) -> None:
    op = planned(tmp_path, "aten::mm", [[64, 32], [32, 48]], ["", ""])
    assert op.reason is None
    assert is_predicted(op)


def test_element_types_may_be_those_before_a_cast(tmp_path: Path) -> None:
    op = planned(tmp_path, "aten::mm", [[64, 32], [32, 48]], ["", ""], ["c10::BFloat16", "float"])
    assert op.reason is None
    assert is_predicted(op)


def test_a_negative_size_has_no_prediction(tmp_path: Path) -> None:
    op = planned(tmp_path, "aten::mm", [[64, -32], [-32, 48]], ["", ""])
    assert str(op.reason).startswith("metadata missing: a valid shape")
    assert not is_predicted(op)
