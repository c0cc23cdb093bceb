# pyright: strict
"""What an argument is by what reads it, where the latest result of its shape is not it: saved outputs, the state of an
optimizer, what is no gradient. Pure tables and look-ups; the inference itself is `linking`'s."""

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
"""Op → argument → the ops whose results it may be; it comes from outside where none made one."""
SQUARED = "aten::addcmul_"
"""Its last two tensors are one, a gradient, where they look alike and `self` is a state."""
SCALED, DECAYED = "aten::mul_", frozenset({"aten::lerp_", SQUARED})
"""What is scaled in place before one of these is a parameter or a state, and is scaled by a number."""
FACTORS = frozenset({"aten::mm", "aten::bmm", "aten::matmul", "aten::mul"})
"""Ops of which a step of training gives at most one argument a gradient."""


def is_backward(op: str) -> bool:
    """Whether the op makes a gradient out of one."""
    return "_backward" in op


def is_saved(op: str, argument: str) -> bool:
    """Whether an argument was saved by the forward pass and is no gradient: all but those that say so of backward ops.

    Neither is the second factor of a product with a gradient (`FACTORS`): the gradient of a weight is the product of a
    gradient and of what was saved, though results of the same shape that are gradients came later. Products of
    gradients square their size, op by op.
    """
    return is_backward(op) and not argument.startswith("grad")


def is_number(argument: str, meta: TensorMeta, first: TensorMeta | None) -> bool:
    """Whether an argument is a number of Python's, which is recorded as a tensor of its type beside one of another."""
    wide = meta.dtype in ("float64", "int64")
    return argument == "other" and wide and not meta.shape and first is not None and first.dtype != meta.dtype
