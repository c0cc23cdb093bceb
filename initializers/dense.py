"""Values that every tensor gets before an op's own rule: N(0, 1), safe integers, fair coins, and by argument name.

Owns no rule for a single op: see `domains`, `indices`, `masks` and `attention`.
"""

from __future__ import annotations

import math

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitReport

POSITIVE = frozenset({
    "running_var", "save_var", "save_invstd", "saved_var", "save_variance", "saveVariance", "reserve_invstd",
    "invstd", "rstd", "var", "variance", "weight_sq", "exp_avg_sqs", "max_exp_avg_sqs", "state_sums", "square_avgs",
    "scale", "scales", "scale_a", "scale_b", "a_scale", "b_scale", "q_scale", "k_scale", "v_scale", "x_scale",
    "w_scale", "input_scale", "weight_scale", "inv_scale", "grad_scale", "total_weight", "bag_size",
})  # fmt: skip
"""Names of float arguments that a square, a standard deviation or a scale stands behind: uniform in [0.5, 1.5)."""
ZERO = frozenset({"found_inf"})
"""Names of float arguments that switch work off when they are not zero."""
SMALL = frozenset({"lr"})
"""Names of float arguments that stand for a step size: 0.001."""
STEPS = frozenset({"state_steps"})
"""Names of arguments that count steps from one, whatever their type."""
INTEGERS_BELOW = 100
"""Bound of integers where no shape gives one."""


class DenseInit(CustomInit):
    """The values that every op starts from; never registered, since it holds for all ops."""

    name = "dense"

    def initialize(self, context: InitContext) -> InitReport:
        """Fill every tensor; integers stay below every dimension that they could possibly index."""
        high = safe_bound(context)
        assumed: dict[str, str] = {}
        for name, tensor in context.tensors():
            _fill(name, tensor, context.generator, high)
            if fill.is_integer(tensor.dtype) and tensor.numel():
                assumed[name] = f"integers in [0, {high})"
        return InitReport(summary="plain values", assumed=assumed)


def safe_bound(context: InitContext) -> int:
    """A bound that keeps integers inside every tensor they may index: the least dimension above 1 of the float ones."""
    dims = [
        dim
        for _, tensor in context.tensors()
        if not fill.is_integer(tensor.dtype) and tensor.dtype is not torch.bool
        for dim in tensor.shape
        if dim > 1
    ]
    return max(2, min(dims, default=INTEGERS_BELOW))


def _fill(name: str, tensor: torch.Tensor, generator: torch.Generator, high: int) -> None:
    if name in STEPS:
        fill.integers(tensor, generator, 1, 11)
    elif not tensor.dtype.is_floating_point:
        fill.plain(tensor, generator, high=high)
    elif name in POSITIVE:
        fill.uniform(tensor, generator, 0.5, 1.5)
    elif name in ZERO:
        fill.uniform(tensor, generator, 0.0, 0.0)
    elif name in SMALL:
        fill.uniform(tensor, generator, 1e-3, math.nextafter(1e-3, 1.0))
    else:
        fill.plain(tensor, generator)
