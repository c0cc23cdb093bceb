# pyright: strict
"""Lowering of fused and foreach optimizer steps and gradient bookkeeping."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.replay.ops.table import Cost, costs

FOREACH: dict[str, tuple[str, ...]] = {
    "add": ("ForeachAddList", "ForeachAddScalar"), "sub": ("ForeachSubList", "ForeachAddScalar"),
    "mul": ("ForeachMulList", "ForeachMulScalar"), "div": ("ForeachDivList", "ForeachDivScalar"),
    "addcmul": ("ForeachAddcmulScalar",) * 2, "addcdiv": ("ForeachAddcdivScalar",) * 2,
    "sqrt": ("ForeachSqrt",) * 2, "neg": ("ForeachNeg",) * 2, "lerp": ("ForeachLerpScalar",) * 2,
    "copy": ("ForeachCopy",) * 2, "zero": ("ForeachZero",) * 2, "maximum": ("ForeachMaximumList",) * 2,
    "reciprocal": ("ForeachReciprocal",) * 2, "sign": ("ForeachSign",) * 2, "abs": ("ForeachAbs",) * 2,
    "exp": ("ForeachExp",) * 2, "pow": ("ForeachPowScalar",) * 2, "clamp_min": ("ForeachClampMin",) * 2,
    "clamp_max": ("ForeachClampMin",) * 2, "rsqrt": ("ForeachSqrt",) * 2, "log": ("ForeachExp",) * 2,
    "minimum": ("ForeachMaximumList",) * 2, "sigmoid": ("ForeachExp",) * 2, "tanh": ("ForeachExp",) * 2,
    "round": ("ForeachAbs",) * 2, "ceil": ("ForeachAbs",) * 2, "floor": ("ForeachAbs",) * 2,
    "trunc": ("ForeachAbs",) * 2, "frac": ("ForeachAbs",) * 2,
    **dict.fromkeys(
        ("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "expm1", "lgamma", "log10", "log1p", "log2", "sin",
         "sinh", "tan"), ("ForeachExp",) * 2,
    ),
}  # fmt: skip
"""CANN kernel types by the suffix of aten::_foreach_*.

The first type is for a second list of tensors, the second for scalars.
"""


def _foreach(name: str, kinds: tuple[str, ...]) -> Cost:
    def rule(op: OpView) -> Iterable[KernelCall]:
        lists = [a for a in op.op.args if len(a.tensors) > 1]
        first = op.metas("self") or op.tensors
        outs = [spec(t.shape, t.dtype) for t in first]
        inputs = [spec(t.shape, t.dtype) for t in op.tensors]
        return [kernel(kinds[0] if len(lists) > 1 else kinds[1], inputs, outs)]

    rule.__name__ = f"foreach_{name}"
    return rule


for _name, _kinds in FOREACH.items():
    costs(f"aten::_foreach_{_name}")(_foreach(_name, _kinds))


@costs("aten::_foreach_norm aten::_foreach_max aten::_foreach_powsum")
def foreach_norm(op: OpView) -> Iterable[KernelCall]:
    """Return one LpNormV2 per tensor."""
    return [kernel("LpNormV2", [spec(t.shape, t.dtype)], [spec((), "float32")]) for t in op.metas("self")]


@costs("aten::_amp_foreach_non_finite_check_and_unscale npu::_amp_foreach_non_finite_check_")
def unscale(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that unscales the gradients and checks them for inf and nan."""
    tensors = [spec(t.shape, t.dtype) for t in op.metas("self")]
    return [kernel("ForeachNonFiniteCheckAndUnscale", tensors, tensors)]


@costs("aten::_fused_adamw aten::_fused_adam aten::_fused_adagrad npu::npu_apply_adam_w")
def adam(op: OpView) -> Iterable[KernelCall]:
    """Return ApplyAdamWV2 for each parameter, with parameter, gradient and both moments."""
    params = op.metas("self") if "self" in op.args else op.tensors[:1]
    kernels: list[KernelCall] = []
    for t in params:
        p = spec(t.shape, t.dtype)
        kernels.append(kernel("ApplyAdamWV2", [p, p, p, p, spec((1,), "int64")], []))
    return kernels


@costs("aten::_fused_sgd")
def sgd(op: OpView) -> Iterable[KernelCall]:
    """Return ApplyMomentum for each parameter."""
    params = [spec(t.shape, t.dtype) for t in op.metas("self") or op.tensors[:1]]
    return [kernel("ApplyMomentum", [p, p, p], []) for p in params]
