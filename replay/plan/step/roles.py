# pyright: strict
"""What an argument is by what reads it, where the latest result of its shape is not it: saved outputs, the state of an
optimizer, what is no gradient. Pure tables and look-ups; the inference itself is `linking`'s."""

from __future__ import annotations

from collections.abc import Collection

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
SQUARED = {"aten::addcmul_": "tensor2"}
"""Op → the argument that is the one before it once more, where `self` is the state of an optimizer."""
DECAYED = frozenset({"aten::lerp_", "aten::addcmul_"})
"""Ops before which a tensor of the same look that is multiplied in place is a parameter or a state, by a number."""
FACTORS = frozenset({"aten::mm", "aten::bmm", "aten::matmul", "aten::mul"})
"""Ops of which a step of training gives at most one argument a gradient."""


def producers(op: str, argument: str, following: str | None, alike: bool) -> Collection[str] | None:
    """The ops whose results an argument may be, or None for any; `following` is the next call, `alike` whether the
    first arguments of both look the same."""
    if op == "aten::mul_" and alike and following in DECAYED:
        return ()
    return MADE_BY.get(op, {}).get(argument)


def is_backward(op: str) -> bool:
    """Whether the op makes a gradient out of one."""
    return "_backward" in op


def may_be_gradient(op: str, argument: str, *, beside: bool) -> bool:
    """Whether an argument may be a gradient; `beside` says that one before it is.

    What else a backward op reads was saved by the forward pass, and the gradient of a weight is the product of a
    gradient and of what was saved, though results of the same shape that are gradients came later: products of
    gradients square their size, op by op.
    """
    if is_backward(op):
        return argument.startswith("grad")
    return not (beside and op in FACTORS)


def is_number(argument: str, meta: TensorMeta, first: TensorMeta | None) -> bool:
    """Whether an argument is a number of Python's, which is recorded as a tensor of its type beside one of another."""
    wide = meta.dtype in ("float64", "int64")
    return argument == "other" and wide and not meta.shape and first is not None and first.dtype != meta.dtype
