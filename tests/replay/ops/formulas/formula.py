# pyright: strict
"""Formulas: a second way to compute an op, written from its documentation alone, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

Values = Mapping[str, Any]
"""Arguments of a call by name; arguments with default values may be missing, see `of`."""
FP8 = 448.0
"""Largest finite number of float8 e4m3fn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """What an op computes, and the calls that it is compared in."""

    compute: Callable[[Values], Any]
    calls: list[str] = field(default_factory=list[str])
    """Tensors, or a whole call without the op's name: "(f32[8,16], ...)"."""


_by_op: dict[str, Formula] = {}


def all_formulas() -> Mapping[str, Formula]:
    """Import every module of formulas; return the formulas by op."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        import_module(f"tests.replay.ops.formulas.{path.stem}")
    return _by_op


def formula(names: str, call: str) -> Callable[[Callable[[Values], Any]], Callable[[Values], Any]]:
    """Decorator: register the formula of these ops; registering an op again adds a call.

    Raises ValueError for an op that has another formula.
    """

    def add(compute: Callable[[Values], Any]) -> Callable[[Values], Any]:
        for op in names.split():
            known = _by_op.setdefault(op, Formula(compute=compute))
            if known.compute is not compute:
                raise ValueError(f"{op} has a formula already")
            known.calls.append(call)
        return compute

    return add


def formulas(table: str) -> Callable[[Callable[[Values], Any]], Callable[[Values], Any]]:
    """Decorator: same as `formula`, for lines "names | call"; names may span several lines."""

    def add(compute: Callable[[Values], Any]) -> Callable[[Values], Any]:
        names = ""
        for line in table.splitlines():
            listed, bar, call = line.partition("|")
            names = f"{names} {listed}"
            if bar:
                formula(names, call.strip())(compute)
                names = ""
        return compute

    return add


def expressions(call: str, computes: Mapping[str, Callable[[Values], Any]]) -> None:
    """Declare formulas that are one expression, for ops with the same call: space-separated names → expression."""
    for names, compute in computes.items():
        formula(names, call)(compute)


def of(values: Values, *names: str, otherwise: Any = None) -> Any:
    """Return the first of these arguments that the call gives, or `otherwise`."""
    return next((values[name] for name in names if name in values), otherwise)


def covers(condition: object, what: str) -> None:
    """Reject a call that a formula does not cover. Raises ValueError."""
    if not condition:
        raise ValueError(f"the formula is for {what}")


def epsilon(values: Values, otherwise: float = 1e-6) -> float:
    return of(values, "epsilon", "eps", "variance_epsilon", otherwise=otherwise)


def gradients(forward: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of the inputs of `forward` by autograd, from the gradient of its result.

    Rejects a gradient whose size differs from the result's.
    """
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        y = forward(*leaves)
    covers(y.shape == grad.shape, "a gradient of the result's sizes")
    return torch.autograd.grad(y, leaves, grad.to(y.dtype))


def halves(values: Values) -> tuple[Tensor, Tensor]:
    return of(values, "input", "self", "x").chunk(2, values.get("dim", -1))


def numbers(tensor: Tensor) -> list[int]:
    """Return an integer vector as a list."""
    return cast("list[int]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def split(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """Return x with one dimension split into two; a size of -1 is inferred."""
    return cast("Tensor", x.unflatten(dim, sizes))


def wide(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if it is float64, as kernels compute in these dtypes."""
    return x if x.dtype is torch.float64 else x.float()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (wide(x) * scale_of(x, eps) * wide(weight)).to(x.dtype)


def scale_of(x: Tensor, eps: float) -> Tensor:
    """Return the factor by which a root-mean-square norm multiplies a row."""
    return torch.rsqrt(wide(x).pow(2).mean(-1, keepdim=True) + eps)


LEAST = 1 / (FP8 * 512)
"""Least scale of a row in vLLM and FBGEMM."""


SMALLEST = 1e-36
"""Magnitude below which scales of float32 lose places."""


def eight(x: Tensor) -> Tensor:
    """Return x rounded to float8 e4m3fn, saturated at the largest number."""
    return x.clamp(-FP8, FP8).to(torch.float8_e4m3fn)


def largest(x: Tensor) -> Tensor:
    """Return the maximum magnitude of each row [.., 1], ignoring rows so small that their scale would be subnormal."""
    magnitude = wide(x).abs().amax(-1, keepdim=True)
    covers(not bool((magnitude < SMALLEST).any()), "rows that are not nearly zero")
    return magnitude


def grouped(x: Tensor, size: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return rows in groups [.., groups, size], and the maximum magnitude of each group, at least eps."""
    groups = split(wide(x), -1, (-1, size))
    return groups, groups.abs().amax(-1).clamp(min=eps)


def token_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 numbers and the scale of each row [.., 1]."""
    covers(x.numel(), "rows")
    scale = largest(x) / 127
    return (wide(x) / scale).round().clamp(-128, 127).to(torch.int8), scale.float()


def quantised_groups(x: Tensor, size: int, dtype: torch.dtype, eps: float = 1e-10) -> tuple[Tensor, Tensor]:
    """Return 8-bit numbers in the shape of x [.., columns], and scales [.., columns / size]."""
    covers(dtype in (torch.int8, torch.float8_e4m3fn), "these dtypes")
    covers(x.numel() and size > 0 and x.shape[-1] % size == 0, "whole groups")
    groups, magnitude = grouped(x, size, eps)
    scale = magnitude / (127 if dtype is torch.int8 else FP8)
    scaled = groups / scale.unsqueeze(-1)
    data = scaled.round().to(torch.int8) if dtype is torch.int8 else eight(scaled)
    return data.flatten(-2), scale


def quantised_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return 8-bit numbers and the scale of each row [.., 1]."""
    covers(dtype in (torch.int8, torch.float8_e4m3fn) and x.numel(), "rows in these dtypes")
    if dtype is torch.int8:
        return token_int8(x)
    scale = (largest(x) / FP8).clamp(min=LEAST)
    return eight(wide(x) / scale), scale.float()
