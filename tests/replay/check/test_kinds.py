"""Kinds of defects that only some arguments, ranks, values or states show, each beside the same op without it.

The reference of `kinds::x` is `kinds::right_x`, of which the check must say nothing bad.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from opreplay.replay.session.checking import check

pytestmark = pytest.mark.slow

LIBRARY = torch.library.Library("kinds", "FRAGMENT")
PLANTED: dict[str, tuple[str, str, str]] = {}
"""Op → the point that shows its defect, a part of the case that does, the call."""


def define(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any], backward: Any = None) -> None:
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"kinds::{name}", fake, lib=LIBRARY)
    if backward is not None:

        def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(inputs[0])
            ctx.others = inputs[1:]

        torch.library.register_autograd(f"kinds::{name}", backward, setup_context=keep, lib=LIBRARY)


def plant(
    point: str,
    case: str,
    right: Callable[..., Any],
    *,
    schema: str = "(Tensor x) -> Tensor",
    call: str = "16x32",
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    wrong_backward: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function is the kernel of an op with a defect, `right` the one without; `fake` and
    `wrong_backward` have defects of their own."""

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        name = kernel.__name__
        define(f"right_{name}", schema, right, right, backward)
        define(name, schema, kernel, fake or right, wrong_backward or backward)
        PLANTED[name] = point, case, call
        return kernel

    return register


def failures(op: str, against: str, point: str, call: str) -> list[str]:
    report = check(op, against=against, shapes=[call], points=[point], isolation="none")
    return [f"{one.case} {one.detail}" for one in report.point(point).of("fail", "missing")]


# Arguments and ranks at every point.


def right_sum_keep(x: Tensor, keepdim: bool = False) -> Tensor:
    return x.sum(-1, keepdim=keepdim)


@plant(
    "shape inference",
    "keepdim=True",
    right_sum_keep,
    schema="(Tensor x, bool keepdim=False) -> Tensor",
    fake=lambda x, keepdim=False: right_sum_keep(x),
)
def fake_ignores_flag(x: Tensor, keepdim: bool = False) -> Tensor:
    return right_sum_keep(x, keepdim)


@plant("shape inference", "one dimension less", lambda x: x.sum(-1), fake=lambda x: x.new_empty(x.shape[:-1] or (1,)))
def fake_of_vectors(x: Tensor) -> Tensor:
    return x.sum(-1)


@plant("correctness", "rows far below zero", lambda x: x.softmax(-1))
def maximum_starts_at_a_number(x: Tensor) -> Tensor:
    weights = (x - x.amax(-1, keepdim=True).clamp(min=-1e4)).exp()
    return weights / weights.sum(-1, keepdim=True)


@plant(
    "schema",
    "training=True",
    lambda x, mean, training=False: x - mean if not training else x - x.mean(0),
    schema="(Tensor x, Tensor mean, bool training=False) -> Tensor",
    call="f32[16,32], f32[32]",
)
def writes_in_training(x: Tensor, mean: Tensor, training: bool = False) -> Tensor:
    if training:
        mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - x.mean(0)
    return x - mean


@plant(
    "gradient",
    "scale=",
    lambda x, scale=1.0: x * x * scale,
    schema="(Tensor x, float scale=1.0) -> Tensor",
    backward=lambda ctx, g: (2 * ctx.saved_tensors[0] * ctx.others[0] * g, None),
    wrong_backward=lambda ctx, g: (2 * ctx.saved_tensors[0] * g, None),
)
def gradient_ignores_scale(x: Tensor, scale: float = 1.0) -> Tensor:
    return x * x * scale


@plant(
    "gradient",
    "far apart",
    lambda x: x.clamp(-6, 6),
    backward=lambda ctx, g: g * (ctx.saved_tensors[0].abs() <= 6),
    wrong_backward=lambda ctx, g: g * (ctx.saved_tensors[0].abs() <= 7),
)
def gradient_of_clamp_too_wide(x: Tensor) -> Tensor:
    return x.clamp(-6, 6)


# Words, dimensions from the end, two arguments at once, numbers beyond a block.


def right_reduced(x: Tensor, reduction: str = "mean") -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"no reduction {reduction}")
    return x * 2 if reduction == "none" else getattr(x * 2, reduction)()


@plant("correctness", "reduction=sum", right_reduced, schema='(Tensor x, str reduction="mean") -> Tensor')
def sum_is_the_mean(x: Tensor, reduction: str = "mean") -> Tensor:
    return right_reduced(x, "mean" if reduction == "sum" else reduction)


@plant(
    "correctness",
    "dim=-2",
    lambda x, dim=-1: torch.softmax(x, dim),
    schema="(Tensor x, int dim=-1) -> Tensor",
    call="4x16x32",
)
def second_last_is_last(x: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(x, -1 if dim == -2 else dim)


@plant(
    "correctness",
    "causal=True",
    lambda x, causal=False, scale=1.0: (x.tril() if causal else x) * scale,
    schema="(Tensor x, bool causal=False, float scale=1.0) -> Tensor",
)
def scale_lost_with_flag(x: Tensor, causal: bool = False, scale: float = 1.0) -> Tensor:
    return x.tril() if causal else x * scale


@plant(
    "correctness",
    "k=129",
    lambda x, k=4: x.sort(-1, descending=True).values[..., :k].clone(),
    schema="(Tensor x, int k=4) -> Tensor",
    call="kinds::top_of_one_block(f32[16,32], 4)",
)
def top_of_one_block(x: Tensor, k: int = 4) -> Tensor:
    top = x.sort(-1, descending=True).values[..., :k].clone()
    top[..., 128:] = 0
    return top


# Values: NaN in one row, rows of -inf, ties, rows longer than a block, casts, signs that torch has yet to apply.


def right_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


@plant("correctness", "NaN in rows", right_softmax)
def nan_counts_in_first_column_only(x: Tensor) -> Tensor:
    made = torch.softmax(x.nan_to_num(0.0, torch.inf, -torch.inf), -1)
    first = x[..., :1].isnan() | (x == torch.inf).any(-1, keepdim=True) if x.dim() and x.shape[-1] else x.isnan()
    return torch.where(first, torch.softmax(x, -1), made)


@plant("correctness", "equal values", lambda x: x.argmax(-1))
def last_of_equal_ones(x: Tensor) -> Tensor:
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1) if x.dim() else x.argmax(-1)


@plant("correctness", "large values in long rows", right_softmax)
def no_maximum_in_long_rows(x: Tensor) -> Tensor:
    if not x.dim() or x.shape[-1] <= 1024:
        return torch.softmax(x, -1)
    return x.exp() / x.exp().sum(-1, keepdim=True)


@plant("correctness", "f32[16,32]", lambda x: x.to(torch.bfloat16))
def cuts_in_place_of_rounding(x: Tensor) -> Tensor:
    bits = x.float().contiguous().view(torch.int32) & -65536
    return bits.view(torch.float32).to(torch.bfloat16)


@plant("correctness", "beyond 16 bits", lambda x: x.to(torch.float16))
def saturates(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), x, x.clamp(-65504, 65504)).to(torch.float16)


# What a call leaves behind.


def leaving(leave: Callable[[], object]) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        if not isinstance(x, torch._subclasses.FakeTensor):
            leave()
        return x * 2

    return kernel


FILES: list[Any] = []
LEFT: dict[str, tuple[str, str, Callable[[], object]]] = {
    "flushes_denormals": ("schema", "denormal", lambda: torch.set_flush_denormal(True)),
    "stops_gradients": ("schema", "gradient mode", lambda: torch._C._set_grad_enabled(False)),
    "seeds_python": ("schema", "of Python", lambda: random.seed(0)),
    "seeds_numpy": ("schema", "of numpy", lambda: np.random.seed(0)),
    "opens_files": ("memory", "open files", lambda: FILES.append(os.open(os.devnull, os.O_RDONLY))),
}
for left, (point, text, leave) in LEFT.items():
    kernel = leaving(leave)
    kernel.__name__ = left
    plant(point, text, lambda x: x * 2)(kernel)


# Whole numbers that are no place.


@plant(
    "bad input",
    "index",
    lambda x, at: x[at],
    schema="(Tensor x, Tensor at) -> Tensor",
    call="f32[16,32], i64[8]",
)
def clamps_places(x: Tensor, at: Tensor) -> Tensor:
    return x[at.clamp(-x.shape[0], x.shape[0] - 1)] if at.dtype is torch.int64 and x.dim() else x[at]


SIGNS = """
import torch


def as_it_lies(x):
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride()) * 2


def twice(x):
    return x * 2
"""


@pytest.mark.parametrize(("point", "kind"), [("correctness", "negated"), ("dtypes", "conjugated")])
def test_signs_that_torch_has_yet_to_apply_are_tried(tmp_path: Path, point: str, kind: str) -> None:
    (file := tmp_path / "signs.py").write_text(SIGNS)
    bad = failures(f"{file}:as_it_lies", f"{file}:twice", point, "4x6")
    assert [kind in text for text in bad] == [True]
    assert failures(f"{file}:twice", f"{file}:twice", point, "4x6") == []


READS = """
import ctypes, torch


def reads_beyond(x):
    if x.is_contiguous():
        ctypes.string_at(x.data_ptr(), x.numel() * x.element_size() + 1)
    return x * 2


def twice(x):
    return x * 2
"""


@pytest.mark.parametrize(("name", "cases"), [("reads_beyond", 2), ("twice", 0)])
def test_a_read_beyond_the_end_ends_its_case(forked_children: None, tmp_path: Path, name: str, cases: int) -> None:
    (file := tmp_path / "reads.py").write_text(READS)
    report = check(f"{file}:{name}", against=f"{file}:twice", shapes=["3x5"], points=["correctness"])
    bad = report.point("correctness").of("fail")
    assert ["SIGSEGV" in one.detail and "ends with each tensor" in one.case for one in bad] == [True] * cases


@pytest.fixture(autouse=True)
def state() -> Iterator[None]:
    """What planted ops change is given back."""
    yield
    torch.set_flush_denormal(False)
    torch.set_grad_enabled(True)
    while FILES:
        os.close(FILES.pop())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLANTED)
def test_a_defect_is_found_beside_the_right_op(name: str) -> None:
    point, case, call = PLANTED[name]
    right = f"kinds::right_{name}"
    assert any(case in text for text in failures(f"kinds::{name}", right, point, call))
    assert failures(right, right, point, call.replace(f"kinds::{name}", right)) == []
