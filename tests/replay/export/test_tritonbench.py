"""Files for TritonBench: what its loader evaluates makes the very calls, and counts are those of the trace."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import opreplay
from opreplay.replay.export.tritonbench import DTYPES, input_configs, json_text, log_text
from opreplay.replay.ir.model import ReplayPlan
from opreplay.traces.samples import sample_path

NAMES = {short: getattr(torch, name) for name, short in DTYPES.items()}


def tensor(shape: list[int], dtype: torch.dtype, stride: tuple[int, ...] | None = None) -> torch.Tensor:
    """What `T(...)` stands for in PyTorch's operator benchmarks."""
    if stride is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def evaluated(text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return eval(text, {"T": tensor, "torch": torch, **NAMES})  # noqa: S307


@pytest.fixture(scope="module", params=["transformer_infer", "cnn_train"])
def plan(request: pytest.FixtureRequest) -> ReplayPlan:
    return opreplay.open(sample_path(request.param), select="leaf").plan


@pytest.mark.slow
def test_each_signature_is_a_call_that_the_op_takes(plan: ReplayPlan) -> None:
    found = json.loads(json_text(input_configs(plan)))
    assert found
    called = 0
    for name, signatures in found.items():
        namespace, op, overload = name.split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), op), overload)
        for text in signatures:
            args, kwargs = evaluated(text)
            try:
                function(*args, **kwargs)
            except NotImplementedError:
                continue  # no kernel for meta tensors: the arguments were taken
            called += 1
    assert called > 10


@pytest.mark.slow
def test_numbers_in_place_of_tensors_stay_numbers() -> None:
    """As those that an optimizer scales by: torch makes a tensor of no dimension of them."""
    net = torch.nn.Linear(4, 3)
    plan = opreplay.capture(net, torch.ones(2, 4), optimizer=torch.optim.AdamW(net.parameters()), loss=torch.sum)
    found = input_configs(plan)
    assert "((T([3, 4], f32), 0.99999), {})" in found.ops["aten.mul_.Tensor"]
    for name, signatures in found.ops.items():
        namespace, op, overload = name.split(".")
        for text in signatures if op != "_local_scalar_dense" else ():  # which needs a value
            args, kwargs = evaluated(text)
            getattr(getattr(getattr(torch.ops, namespace), op), overload)(*args, **kwargs)


def test_counts_are_those_of_the_trace(plan: ReplayPlan) -> None:
    found = input_configs(plan)
    expected: Counter[str] = Counter()
    for op in plan.ops:
        if op.reason is None:
            expected[f"{op.called.replace('::', '.')}.{op.overload or 'default'}"] += op.count
    assert {name: sum(counts.values()) for name, counts in found.ops.items()} == dict(expected)
    lines = log_text(found).splitlines()
    assert lines[0] == f"Operator: {next(iter(found.ops))}"
    assert sum(int(line.split()[1].rstrip(",")) for line in lines if line.startswith("cnt: ")) == expected.total()


def test_what_the_form_has_no_name_for_is_left_out_and_said() -> None:
    op = opreplay.op("aten::relu(f32[4])")
    odd = opreplay.op("aten::clone(f8e4m3[4])")
    plan = msgspec.structs.replace(op._plan, ops=(op.ir, odd.ir))
    found = input_configs(plan)
    assert found.ops == {"aten.relu.default": {"((T([4], f32),), {})": 1}}
    assert found.left_out == {"the file has no name for float8_e4m3fn": {"aten::clone": 1}}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("aten::sum(f32[4,8]{1,4}, [1], True)", "((T([4, 8], f32, stride=(1, 4)), [1], True), {})"),
        ("aten::cat([f32[2], i64[3]], 0)", "(([T([2], f32), T([3], i64)], 0), {})"),
        ("aten::add(f32[2], f32[2], alpha=inf)", "((T([2], f32), T([2], f32)), {'alpha': float('inf')})"),
        ("aten::softmax(bool[2], 0, dtype=torch.float32)", "((T([2], b8), 0, f32), {})"),
        ("aten::gelu(f32[2], approximate='tanh')", "((T([2], f32),), {'approximate': 'tanh'})"),
    ],
)
def test_signatures(call: str, text: str, tmp_path: Path) -> None:
    plan = opreplay.op(call)._plan
    ((made,),) = input_configs(plan).ops.values()
    assert made == text
