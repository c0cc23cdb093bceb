"""Ops of ATen that are right and once raised an alarm: points at which they pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from opreplay.replay.session.checking import check

ALARMED = [
    # At 0 and 1 its derivative is infinite; that of the decomposition is infinity times zero.
    ("aten::logit(f32[16,32])", "gradient"),
    ("aten::special_entr(f32[16,32])", "gradient"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "point"), ALARMED)
def test_a_right_op_passes(call: str, point: str) -> None:
    name = call.partition("(")[0]
    report = check(name, against="decomposition", shapes=(call,), points=[point], isolation="none")
    assert [(checked.point, checked.verdict) for checked in report.points] == [(point, "pass")]


FUNCTIONS = """
import torch


def norm(x, weight, bias):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def norm_reference(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias)


def variance(x):
    return ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1) / (x.shape[-1] - 1)


def variance_reference(x):
    return torch.var(x, -1)


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not()
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def attention_reference(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call", "point", "passes"),
    [
        # A constant row leaves rounding errors, which the division by the root of epsilon makes 300 times larger.
        ("norm", "f32[4096,64], f32[64], f32[64]", "correctness", "expanded columns"),
        # 64 variances of 6,144 numbers of bfloat16: all are equal to one of them, by chance.
        ("variance", "f32[64,96]", "dtypes", "bfloat16"),
        # Torch's fused attention on the CPU returns 0 where a query has a NaN.
        ("attention", "f32[2,3,12,16], f32[2,3,12,16], f32[2,3,12,16]", "correctness", "NaN in rows"),
    ],
)
def test_a_right_function_passes(tmp_path: Path, name: str, call: str, point: str, passes: str) -> None:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    report = check(
        f"{path}:{name}", against=f"{path}:{name}_reference", shapes=(call,), points=[point], isolation="none"
    )
    (checked,) = report.points
    assert [case.verdict for case in checked.cases if case.kind == passes] == ["pass"]
