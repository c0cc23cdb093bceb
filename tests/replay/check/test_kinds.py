"""Kinds of defects that only some arguments, ranks, values or states show, each beside the same op without it.

The reference of `kinds::x` is `kinds::right_x`, of which the check must say nothing bad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from opreplay.replay.session.checking import check

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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLANTED)
def test_a_defect_is_found_beside_the_right_op(name: str) -> None:
    point, case, call = PLANTED[name]
    right = f"kinds::right_{name}"
    assert any(case in text for text in failures(f"kinds::{name}", right, point, call))
    assert failures(right, right, point, call.replace(f"kinds::{name}", right)) == []
