"""The plain PyTorch of an op makes the call, and nothing of a trace becomes code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.report.snippet import snippet
from opreplay.traces.model import TensorMeta
from tests.factories import jit_op as op
from tests.factories import tensor as t


def ran(one: ReplayOp) -> Any:
    space: dict[str, Any] = {}
    exec(snippet(one), space)  # noqa: S102
    return space["result"]


def test_calls_are_made() -> None:
    assert ran(op("aten::mm", t("self", 3, 4), t("mat2", 4, 5, strides=(1, 4)))).shape == (3, 5)
    index = t("index", 7, dtype="int64")
    dim = ReplayArg(name="dim", type="int", value=1)
    assert ran(op("aten::index_select", t("self", 3, 4), dim, index)).shape == (3, 7)
    values = (
        ReplayArg(name="dtype", type="ScalarType", value="torch.float64", keyword_only=True),
        ReplayArg(name="layout", type="Layout", value=None, keyword_only=True),
        ReplayArg(name="device", type="Device", value="cuda:0", keyword_only=True),
        ReplayArg(name="pin_memory", type="bool", value=None, keyword_only=True),
    )
    made = ran(
        op(
            "aten::full",
            ReplayArg(name="size", type="int[]", value=(2, 3)),
            ReplayArg(name="fill_value", type="Scalar", value="inf"),
            *values,
        )
    )
    assert made.dtype == torch.float64
    assert bool(made.isinf().all())
    cat = ReplayArg(name="tensors", type="Tensor[]", tensors=(TensorMeta(shape=(2, 3), dtype="bfloat16"),) * 2)
    assert ran(op("aten::cat", cat, ReplayArg(name="dim", type="int", value=0))).shape == (4, 3)
    assert ran(op("aten::relu", t("self", 4, 4, strides=(0, 1), storage_offset=3))).stride() is not None


@pytest.mark.parametrize("text", ["torch.save", "'); import os; ('", "__import__('os')", "\n1"])
def test_texts_of_a_trace_stay_texts(text: str) -> None:
    for kind in ("str", "ScalarType", "Device", "Scalar", "complex"):
        made = snippet(op("aten::relu", t("self", 2), ReplayArg(name="x", type=kind, value=text)))
        last = made.splitlines()[-1]
        assert last.startswith("result = torch.ops.aten.relu.default(self, ")
        assert kind == "Device" or repr(text) in last
    assert snippet(op("aten::relu; import os", t("self", 2))) == ""
    assert "argument = torch" in snippet(op("aten::relu", t("a b", 2)))
