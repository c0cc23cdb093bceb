"""Ops that public reports showed as misread: MX types by their codes, and products with scales of blocks."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from opreplay.replay.execute.attempt import attempt
from opreplay.replay.execute.executors.torch.device import TorchExecutor
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.plan.build import build_plan
from opreplay.replay.resolve.names import find_overload
from opreplay.replay.resolve.policy import Policy
from opreplay.traces import read_trace

FP8, E8M0, FP4 = "c10::Float8_e4m3fn", "c10::Float8_e8m0fnu", "c10::Float4_e2m1fn_x2"


def test_casts_to_mx_types_are_planned_as_recorded(tmp_path: Path) -> None:
    x = torch.rand(64, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        x.to(torch.float8_e8m0fnu)
        torch.empty(64, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        torch.zeros(64, 4, dtype=torch.float8_e8m0fnu)
        torch.ones_like(x, dtype=torch.float8_e8m0fnu)
    file = tmp_path / "mx.json"
    profiler.export_chrome_trace(str(file))
    ops = {op.name: op for op in build_plan(read_trace(file)).ops}
    assert [op.reason for op in ops.values()] == [None] * 5
    overloads = {name: op.overload for name, op in ops.items()}
    assert overloads["aten::view"] == "dtype"
    assert overloads["aten::to"] == "dtype"
    assert ops["aten::view"].values["dtype"] == "torch.float4_e2m1fn_x2"
    assert {ops[f"aten::{name}"].values["dtype"] for name in ("to", "zeros", "ones_like")} == {"torch.float8_e8m0fnu"}


def scaled_product(start: int, sizes: list[list[int]], types: list[str], strides: list[list[int]]) -> dict[str, Any]:
    args = {
        "Input Dims": [*sizes, [], [], [], []],
        "Input type": [*types, "", "", "Scalar", "Scalar"],
        "Input Strides": [*strides, [], [], [], []],
        "Concrete Inputs": ["", "", "", "", "", "", "15", "False"],
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::_scaled_mm", "ts": start, "dur": 50, "pid": 1, "tid": 1}
    return {**event, "args": args}


PRODUCTS = {
    "mxfp8": ([[64, 128], [128, 32], [512], [512]], [FP8, FP8, E8M0, E8M0], [[128, 1], [1, 128], [1], [1]]),
    "nvfp4": ([[64, 64], [64, 32], [1024], [1024]], [FP4, FP4, FP8, FP8], [[64, 1], [1, 64], [1], [1]]),
    "blocks": (
        [[64, 256], [256, 128], [64, 2], [2, 1]],
        [FP8, FP8, "float", "float"],
        [[256, 1], [1, 256], [1, 64], [1, 2]],
    ),
    "rows": (
        [[64, 256], [256, 128], [64, 1], [1, 128]],
        [FP8, FP8, "float", "float"],
        [[256, 1], [1, 256], [1, 1], [128, 1]],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("scales", PRODUCTS)
def test_what_plan_promises_of_scaled_products_is_replayed(tmp_path: Path, scales: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": [scaled_product(0, *PRODUCTS[scales])]}))
    plan = build_plan(read_trace(file))
    (op,) = plan.ops
    assert op.reason is None
    assert op.resolved_by == ("jit" if scales == "rows" else "equivalent")
    with closing(TorchExecutor("cpu", lambda op: find_overload(op, Policy()), memory_bytes=10**8)) as executor:
        outcome = attempt(executor, op, seed=0, options=MeasureOptions(op_time_s=0.01))
    assert outcome.status == "replayed", outcome.reason
