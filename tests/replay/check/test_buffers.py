"""Result buffers of out= variants: strided, empty, or an argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from opreplay.replay.session.checking import check

LIBRARY = torch.library.Library("buffers", "FRAGMENT")


def define(name: str, into: Callable[..., Tensor]) -> None:
    LIBRARY.define(f"{name}(Tensor x, Tensor y) -> Tensor")
    LIBRARY.define(f"{name}.out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
    LIBRARY.impl(name, lambda x, y: x + x * y, "CPU")
    LIBRARY.impl(f"{name}.out", into, "CPU")


def right(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    return torch.add(x, x * y, out=out)


def refusing(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    if out.shape != x.shape or not out.is_contiguous() or out.data_ptr() in (x.data_ptr(), y.data_ptr()):
        raise RuntimeError("out must be a contiguous tensor of its own")
    return out.copy_(x + x * y)


def as_if_dense(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    out.resize_(x.shape).as_strided(x.shape, x.contiguous().stride()).copy_(x + x * y)
    return out


def as_many_as_fit(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(x + x * y) if out.shape == x.shape else out


def in_two_steps(x: Tensor, y: Tensor, *, out: Tensor) -> Tensor:
    torch.mul(x, y, out=out)
    return out.add_(x)


for each in (right, refusing, as_if_dense, as_many_as_fit, in_two_steps):
    define(each.__name__, each)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "found"),
    {
        "right": "",
        "refusing": "",
        "as_if_dense": "transposed buffers with gaps",
        "as_many_as_fit": "empty buffers",
        "in_two_steps": "an argument as buffer",
    }.items(),
)
def test_results_are_right_in_unusual_buffers(name: str, found: str) -> None:
    report = check(f"buffers::{name}", shapes=["f32[4,6], f32[4,6]"], points=["in-place"], isolation="none")
    (point,) = report.points
    assert point.verdict == ("fail" if found else "pass")
    assert [found in case.case for case in point.of("fail")] == [True] * bool(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "call",
    [
        "aten::add(f32[4,6], f32[4,6])",
        "aten::mm(f32[6,6], f32[6,6])",
        "aten::transpose_copy(f32[6,6], 0, 1)",
        "aten::softmax(f32[4,6], 1)",
        "aten::sort(f32[4,6])",
    ],
)
def test_ops_of_torch_pass(call: str) -> None:
    report = check(call.partition("(")[0], shapes=[call], points=["in-place"], isolation="none")
    assert not report.points[0].of("fail")
