"""`run --check values`: an executor that computes something else is found; what cannot be compared is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

pytestmark = pytest.mark.slow

Console = Callable[..., Result]

SHAPE = [64, 48]
PLUGIN = """
import torch
from opreplay.replay import register_executor

@register_executor("aten::add", override=True)
def subtracts(x, y, alpha):
    return x - alpha * y

@register_executor("aten::mul", schema="(Tensor x, Tensor y) -> Tensor", override=True)
def multiplies(x, y):
    return torch.exp(torch.log(x.abs().double()) + torch.log(y.abs().double())).float() * x.sign() * y.sign()

@register_executor("aten::relu_", mutates=("x",), override=True)
def negates(x):
    return x.neg_()

@register_executor("aten::dropout", override=True)
def drops(x, p, train):
    return x

@register_executor("aten::softmax", override=True)
def half(x, dim, dtype):
    return torch.softmax(x, dim).half()

@register_executor("nowhere::op", override=True)
def anything(x):
    return x

@register_executor("_C::silu_and_mul", mutates=("out",), override=True)
def forgets_to_multiply(out, x):
    out.copy_(torch.nn.functional.silu(x[..., : x.shape[-1] // 2]))
"""


def call(name: str, ts: float, *args: tuple[str, str] | str) -> dict[str, Any]:
    """A call with float tensors of one shape ("T"), or of twice its width ("W"), and scalars (type, value)."""
    sizes = {"T": SHAPE, "W": [SHAPE[0], 2 * SHAPE[1]]}
    dims = [sizes[a] if isinstance(a, str) else [] for a in args]
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": 5.0,
        "args": {
            "Input Dims": dims,
            "Input type": ["float" if isinstance(a, str) else a[0] for a in args],
            "Input Strides": [[d[1], 1] if d else [] for d in dims],
            "Concrete Inputs": ["" if isinstance(a, str) else a[1] for a in args],
            "External id": int(ts),
        },
    }


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def test_an_executor_that_computes_something_else_is_found(
    console: Console, trace_of: Callable[..., Path], plugin: Path, tmp_path: Path
) -> None:
    trace = trace_of(
        call("aten::add", 10, "T", "T", ("Scalar", "1")),
        call("aten::mul", 20, "T", "T"),
        call("aten::relu_", 30, "T"),
        call("aten::dropout", 40, "T", ("Scalar", "0.5"), ("Scalar", "True")),
        call("aten::softmax", 50, "T", ("Scalar", "1"), ("", "")),
        call("nowhere::op", 60, "T"),
        call("_C::silu_and_mul", 70, "T", "W"),
        call("aten::sigmoid", 80, "T"),
        call("_C::gelu_and_mul", 90, "T", "W"),
        device=None,
    )
    flags = ["run", trace, "--plugin", plugin, "--set", "op_time=5ms", "-o", tmp_path / "r.jsonl", "--force"]
    done = console(*flags, "--check", "values")
    ops = {
        record["name"]: record
        for record in map(json.loads, (tmp_path / "r.jsonl").read_text().splitlines())
        if record["record"] == "op"
    }
    assert {op["status"] for op in ops.values()} == {"replayed"}, [op["reason"] for op in ops.values()]
    values = {name: op["values"] for name, op in ops.items()}
    found = {name: (check["status"], check["against"]) for name, check in values.items()}
    assert found == {
        "aten::add": ("differs", "torch"),
        "aten::mul": ("agrees", "torch"),
        "aten::relu_": ("differs", "torch"),
        "aten::dropout": ("not compared", None),
        "aten::softmax": ("differs", "torch"),
        "nowhere::op": ("not compared", None),
        "_C::silu_and_mul": ("differs", "stand-in"),
        "aten::sigmoid": ("own", None),
        "_C::gelu_and_mul": ("not compared", None),
    }
    assert "of 3,072 elements differ" in values["aten::add"]["detail"]
    assert values["aten::softmax"]["detail"] == "result 0: torch.float16 instead of torch.float32"
    assert values["aten::dropout"]["detail"] == "its results are random"
    assert "nowhere" in values["nowhere::op"]["detail"]
    text = " ".join(done.stdout.split())
    assert "values: aten::add differs from its own implementation (torch): result 0: " in text
    assert (
        "values of 9 ops: 4 differ from the op's own implementation; 1 agree with the op's own implementation; 1 ran "
        "the op's own implementation; 3 cannot" in text
    )
    assert "results differ from the op's own implementation (4)" in text, "their times are marked"
    console(*flags, "--check", "values", "--max-failed", "0", code=1)
    console(*flags, "--max-failed", "0")
    assert '"values":null' in (tmp_path / "r.jsonl").read_text()
