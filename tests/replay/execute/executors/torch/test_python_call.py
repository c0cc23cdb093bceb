"""The binding that replaces `torch.ops` is asked for the same overload and arguments, and nothing runs to find out."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from opreplay.replay.execute.executors.torch.python_call import python_call, with_gradients

X, Y = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
ATEN = torch.ops.aten
FACTORY = {"dtype": torch.float32, "layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}


@pytest.mark.parametrize(
    ("call", "args"),
    [
        (partial(ATEN.add.Tensor, X, Y, alpha=1), (X, Y)),
        (partial(ATEN.view.default, X, [4, 3]), (X, 4, 3)),
        (partial(ATEN.sum.dim_IntList, X, [-1], False, dtype=None), (X, -1)),
        (partial(ATEN.slice.Tensor, X, 0, 1, 3, 1), (X, slice(1, 3))),
        (partial(ATEN.slice.Tensor, X, 1, 0, 4, 2), (X, (slice(None), slice(0, 4, 2)))),
        (partial(ATEN.mul.Tensor, X, torch.tensor(2.0, dtype=torch.float64)), (X, 2.0)),
        (partial(ATEN.zeros.default, [2, 3], **FACTORY), (2, 3)),
        (partial(ATEN.linear.default, X, Y, None), (X, Y)),
        (partial(ATEN.gelu.default, X, approximate="none"), (X,)),
        (partial(ATEN.linalg_vector_norm.default, X, 2, None, False, dtype=None), (X,)),
    ],
)
def test_the_binding_gets_what_a_program_writes(call: partial[Any], args: tuple[Any, ...]) -> None:
    if call.func is ATEN.slice.Tensor and call.args[1] and torch.__version__.startswith("2.4."):
        pytest.skip("torch 2.4 calls aten::slice for `:` as well")
    bound = python_call(call)
    assert not isinstance(bound.func, torch._ops.OpOverload)
    assert len(bound.args) == len(args)
    assert all(value is wanted or value == wanted for value, wanted in zip(bound.args, args, strict=True))
    assert not bound.keywords
    assert torch.equal(bound(), call())


def test_arguments_that_are_no_default_stay() -> None:
    bound = python_call(partial(ATEN.add.Tensor, X, Y, alpha=3))
    assert bound.keywords == {"alpha": 3}
    assert torch.equal(bound(), X + 3 * Y)


def test_an_op_that_writes_is_not_run() -> None:
    target = torch.zeros(4)
    python_call(partial(ATEN.add_.Tensor, target, torch.ones(4), alpha=1))
    assert not target.any()


def test_gradients_stay_on() -> None:
    weight = torch.ones(3, requires_grad=True)
    bound = python_call(partial(with_gradients, ATEN.exp.default, weight))
    assert bound.args[0] is not ATEN.exp.default
    with torch.no_grad():
        assert bound().requires_grad


@pytest.mark.parametrize(
    "call",
    [
        partial(len, [1]),
        partial(torch.ops.prims.exp.default, X),
        partial(ATEN.lift_fresh_copy.default, X),
        partial(ATEN.add.Scalar, X, 2.0),
    ],
    ids=["no op", "not ATen's", "no binding", "a binding that calls another overload"],
)
def test_what_has_no_binding_is_called_as_it_stands(call: partial[Any]) -> None:
    assert python_call(call) is call
