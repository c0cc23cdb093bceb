# pyright: strict
"""Default values of all tensors, filled in before an op's own initializer runs.

Floats are N(0, 1), integers are valid as indices, and booleans are fair coins. Arguments with certain names get special
values. Initializers for specific ops are in `domains`, `indices`, `masks` and `attention`.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitReport
from opreplay.traces.errors import strict

POSITIVE = frozenset({
    "running_var", "save_var", "save_invstd", "saved_var", "save_variance", "saveVariance", "reserve_invstd",
    "invstd", "rstd", "var", "variance", "weight_sq", "exp_avg_sqs", "max_exp_avg_sqs", "state_sums",
    "square_avgs", "scale", "scales", "scale_a", "scale_b", "a_scale", "b_scale", "q_scale", "k_scale", "v_scale",
    "x_scale", "w_scale", "input_scale", "weight_scale", "inv_scale", "grad_scale", "total_weight", "bag_size",
})  # fmt: skip
"""Names of float arguments that are squares, standard deviations or scales: filled uniformly from [0.5, 1.5)."""
ZERO = frozenset({"found_inf"})
"""Names of float arguments that stop the op from working if they are nonzero: filled with 0."""
SMALL = frozenset({"lr"})
"""Names of float arguments that are step sizes: filled with 0.001."""
STEPS = frozenset({"state_steps"})
"""Names of arguments that count steps from 1: filled with integers from 1 to 10 in any dtype."""
INTEGERS_BELOW = 100
"""Exclusive upper bound of the integers filled by default, if no shape gives a bound."""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution: N(0, 1), uniform in [low, high), integers in [low, high), or fair coins."""

    kind: Literal["normal", "uniform", "integers", "coins"]
    low: float = 0.0
    high: float = 0.0


class DenseInit(CustomInit):
    """Fills default values for every op. It is not in the registry, because it applies to all ops."""

    name = "dense"

    def initialize(self, context: InitContext) -> InitReport:
        """Fill every tensor with default values.

        Integers are smaller than each dimension above 1 of the call's float tensors, which makes them valid indices.
        Raises InternalError if anything fails.
        """
        high = safe_bound(context)
        assumed: dict[str, str] = {}
        with strict(f"initializer dense for {context.op}"), fill.one_thread():
            for name, tensor in context.tensors():
                _fill(tensor, values_for(name, tensor.dtype, high), context.generator)
                if fill.is_integer(tensor.dtype) and tensor.numel():
                    assumed[name] = f"integers in [0, {high})"
        return InitReport(summary="plain values", assumed=assumed)


def safe_bound(context: InitContext) -> int:
    """Return a bound that keeps integers valid as indices of any float tensor: the smallest dimension above 1."""
    dims = [
        dim
        for _, tensor in context.tensors()
        if not fill.is_integer(tensor.dtype) and tensor.dtype is not torch.bool
        for dim in tensor.shape
        if dim > 1
    ]
    return max(2, min(dims, default=INTEGERS_BELOW))


def values_for(name: str, dtype: torch.dtype, high: int) -> Values:
    """Return the distribution of the initial values for an argument with this name and dtype.

    Integers stay below `high`. Only counts of steps do not: they are from 1 to 10.
    """
    if name in STEPS:
        return Values(kind="integers", low=1, high=11)
    if dtype is torch.bool:
        return Values(kind="coins")
    if fill.is_integer(dtype):
        return Values(kind="integers", low=0, high=high)
    if dtype.is_floating_point and name in POSITIVE:
        return Values(kind="uniform", low=0.5, high=1.5)
    if dtype.is_floating_point and name in ZERO:
        return Values(kind="uniform", low=0.0, high=0.0)
    if dtype.is_floating_point and name in SMALL:
        return Values(kind="uniform", low=1e-3, high=math.nextafter(1e-3, 1.0))
    return Values(kind="normal")


def _fill(tensor: torch.Tensor, values: Values, generator: torch.Generator) -> None:
    if values.kind == "integers":
        fill.integers(tensor, generator, int(values.low), int(values.high))
    elif values.kind == "coins":
        fill.coins(tensor, generator)
    elif values.kind == "uniform":
        fill.uniform(tensor, generator, values.low, values.high)
    else:
        fill.normal(tensor, generator)
