# pyright: strict
"""Determines the role of an argument from the op that reads it: saved output, optimizer state, or no gradient.

A result that fits the role is preferred to the latest result of the same shape. This module has only tables and
look-ups; `linking` uses them.
"""

from __future__ import annotations

from opreplay.traces.model import TensorMeta

MADE_BY: dict[str, dict[str, frozenset[str]]] = {
    "aten::_softmax_backward_data": {"output": frozenset({"aten::_softmax", "aten::softmax"})},
    "aten::_log_softmax_backward_data": {"output": frozenset({"aten::_log_softmax", "aten::log_softmax"})},
    "aten::sigmoid_backward": {"output": frozenset({"aten::sigmoid", "aten::sigmoid_"})},
    "aten::tanh_backward": {"output": frozenset({"aten::tanh", "aten::tanh_"})},
    # torch.optim.adam, one tensor after the other: exp_avg.lerp_(grad, w), exp_avg_sq.mul_(b).addcmul_(grad, grad),
    # denom = exp_avg_sq.sqrt() / c, param.addcdiv_(exp_avg, denom)
    "aten::lerp_": {"self": frozenset()},
    "aten::addcmul_": {"self": frozenset({"aten::mul_"})},
    "aten::addcdiv_": {"self": frozenset(), "tensor1": frozenset({"aten::lerp_"})},
}
"""Op → argument → ops that may have created the argument. If none of them did, the argument comes from outside the
sequence.
"""
SQUARED = "aten::addcmul_"
"""The last two tensors of this op are the same gradient if their metadata are equal and `self` is optimizer state."""
SCALED, DECAYED = "aten::mul_", frozenset({"aten::lerp_", SQUARED})
"""A tensor is a parameter or optimizer state if `SCALED` scales it in place, and if the next op is in `DECAYED` and
takes the tensor first.
"""
FACTORS = frozenset({"aten::mm", "aten::bmm", "aten::matmul", "aten::mul"})
"""Ops of which, in a training step, at most one argument is a gradient."""


def is_backward(op: str) -> bool:
    """Check whether the op computes a gradient from a gradient."""
    return "_backward" in op


def is_saved(op: str, argument: str) -> bool:
    """Check whether an argument was saved by the forward pass. It is then not a gradient.

    In backward ops, these are all arguments whose names do not start with "grad". Callers also treat the second factor
    of a product with a gradient (`FACTORS`) as saved: a weight's gradient is the product of a gradient and a saved
    tensor. If that factor were linked to a later gradient of the same shape, the op would square the gradients.
    """
    return is_backward(op) and not argument.startswith("grad")


def is_number(argument: str, meta: TensorMeta, first: TensorMeta | None) -> bool:
    """Check whether an argument is a Python number, recorded as a 0-dim tensor next to a tensor of another dtype."""
    wide = meta.dtype in ("float64", "int64")
    return argument == "other" and wide and not meta.shape and first is not None and first.dtype != meta.dtype
