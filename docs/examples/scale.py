"""scale::shift(x, y, by) = x + by * y in Python: the least that an op needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("scale::shift", mutates_args=())
def shift(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    return torch.add(x, y, alpha=by).contiguous()


@shift.register_fake
def _(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return torch.empty(shape, dtype=torch.result_type(x, y), device=x.device)


def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return gradient.sum_to_size(ctx.shapes[0]), (gradient * ctx.by).sum_to_size(ctx.shapes[1]), None


def save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.shapes, ctx.by = (inputs[0].shape, inputs[1].shape), inputs[2]


shift.register_autograd(backward, setup_context=save)


def reference(x: Tensor, y: Tensor, by: float = 2.0) -> Tensor:
    """The same of torch's own ops."""
    return x + y * by
