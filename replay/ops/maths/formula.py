# pyright: strict
"""What a formula is, which ops have one, and what several of them are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from opreplay.replay.ops.table import Formula, row

Values = Mapping[str, Any]
FP8 = 448.0
"""Largest finite number of float8 e4m3fn."""


def formula(names: str, call: str) -> Callable[[Callable[[Values], Any]], Callable[[Values], Any]]:
    """Decorator: what these ops compute; `call` as in `Formula`."""

    def add(compute: Callable[[Values], Any]) -> Callable[[Values], Any]:
        for name in names.split():
            row(name).give(formula=Formula(call=call, compute=compute))
        return compute

    return add


def of(values: Values, *names: str, otherwise: Any = None) -> Any:
    """The first of these arguments that was given."""
    return next((values[name] for name in names if name in values), otherwise)


def covers(condition: object, what: str) -> None:
    """Refuse a call that a formula is not for. Raises ValueError."""
    if not condition:
        raise ValueError(f"the formula is for {what}")


def epsilon(values: Values, otherwise: float = 1e-6) -> float:
    return of(values, "epsilon", "eps", "variance_epsilon", otherwise=otherwise)


def gradients(forward: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Of the inputs of `forward`, by autograd, from that of its result. Refuses a gradient of other sizes."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        y = forward(*leaves)
    covers(y.shape == grad.shape, "a gradient of the result's sizes")
    return torch.autograd.grad(y, leaves, grad.to(y.dtype))


def halves(values: Values) -> tuple[Tensor, Tensor]:
    return of(values, "input", "self", "x").chunk(2, -1)


def numbers(tensor: Tensor) -> list[int]:
    """Whole numbers of a vector."""
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def split(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """With one dimension as two; -1 for what is left."""
    return cast("Tensor", x.unflatten(dim, sizes))


def wide(x: Tensor) -> Tensor:
    """In float32, or float64 where it is: kernels compute so."""
    return x if x.dtype is torch.float64 else x.float()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (wide(x) * scale_of(x, eps) * wide(weight)).to(x.dtype)


def scale_of(x: Tensor, eps: float) -> Tensor:
    """What a row is multiplied with by a root-mean-square norm."""
    return torch.rsqrt(wide(x).pow(2).mean(-1, keepdim=True) + eps)
