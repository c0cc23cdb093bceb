# pyright: strict
"""Activations of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from opreplay.replay.ops.maths.formula import Values, covers, formula, halves, of

GATED = "f32[8,16], f32[8,32]"


@formula("_C::silu_and_mul sgl_kernel::silu_and_mul aiter::silu_and_mul", GATED)
def silu_and_mul(values: Values) -> Tensor:
    covers(not values.get("limit"), "numbers without a limit")
    gate, up = halves(values)
    return gate / (1 + torch.exp(-gate)) * up


@formula("_C::mul_and_silu", GATED)
def mul_and_silu(values: Values) -> Tensor:
    up, gate = halves(values)
    return gate * torch.sigmoid(gate) * up


@formula("_C::gelu_and_mul sgl_kernel::gelu_and_mul aiter::gelu_and_mul", GATED)
def gelu_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return 0.5 * gate * (1 + torch.erf(gate / math.sqrt(2))) * up


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@formula("_C::gelu_tanh_and_mul sgl_kernel::gelu_tanh_and_mul aiter::gelu_tanh_and_mul", GATED)
def gelu_tanh_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return tanh_gelu(gate) * up


@formula("_C::gelu_new _C::gelu_fast aiter::gelu_fast", "f32[8,16], f32[8,16]")
def gelu_new(values: Values) -> Tensor:
    return tanh_gelu(of(values, "input"))


@formula("_C::gelu_quick sgl_kernel::gelu_quick", "f32[8,16], f32[8,16]")
def gelu_quick(values: Values) -> Tensor:
    x = of(values, "input")
    return x / (1 + torch.exp(-1.702 * x))


@formula("_C::relu_squared", "f32[8,16], f32[8,16]")
def relu_squared(values: Values) -> Tensor:
    return of(values, "input").clamp(min=0) ** 2


@formula("_C::fatrelu_and_mul", "(f32[8,16], f32[8,32], 0.25)")
def fatrelu_and_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return torch.where(gate > values["threshold"], gate, torch.zeros_like(gate)) * up


@formula("_C::swigluoai_and_mul", GATED)
def swigluoai_and_mul(values: Values) -> Tensor:
    x, alpha, limit = of(values, "input"), values.get("alpha", 1.702), values.get("limit", 7.0)
    gate, up = x[..., ::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@formula("npu::npu_swiglu", "f32[8,32]")
def npu_swiglu(values: Values) -> Tensor:
    gate, up = values["self"].chunk(2, values.get("dim", -1))
    return functional.silu(gate) * up


@formula("npu::npu_swiglu_backward", "f32[8,16], f32[8,32]")
def npu_swiglu_backward(values: Values) -> Tensor:
    dim = values.get("dim", -1)
    gate, up = values["self"].chunk(2, dim)
    grad, gated = values["grad_output"], torch.sigmoid(gate)
    return torch.cat([grad * up * gated * (1 + gate * (1 - gated)), grad * gate * gated], dim)


@formula("fbgemm::silu_mul", "f32[8,16], f32[8,16]")
def silu_mul(values: Values) -> Tensor:
    return functional.silu(values["x0"]) * values["x1"]


@formula("npu::npu_fast_gelu npu::fast_gelu", "f32[8,16]")
def npu_fast_gelu(values: Values) -> Tensor:
    x = of(values, "self")
    return x * torch.sigmoid(1.702 * x)


@formula("npu::npu_fast_gelu_backward", "f32[8,16], f32[8,16]")
def npu_fast_gelu_backward(values: Values) -> Tensor:
    x, gate = values["self"], torch.sigmoid(1.702 * values["self"])
    return values["grad"] * (gate + 1.702 * x * gate * (1 - gate))


@formula("npu::npu_gelu", "f32[8,16]")
def npu_gelu(values: Values) -> Tensor:
    x = values["self"]
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


@formula("npu::npu_gelu_backward", "f32[8,16], f32[8,16]")
def npu_gelu_backward(values: Values) -> Tensor:
    x = values["self"]
    cdf = (1 + torch.erf(x / math.sqrt(2))) / 2
    return values["grad_output"] * (cdf + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))


@formula("npu::npu_gelu_mul", "f32[8,32]")
def npu_gelu_mul(values: Values) -> Tensor:
    gate, up = halves(values)
    return gate * (1 + torch.erf(gate / math.sqrt(2))) / 2 * up


@formula("aiter::sigmoid", "f32[8,16]")
def sigmoid(values: Values) -> Tensor:
    return 1 / (1 + torch.exp(-values["input"]))


@formula("aiter::tanh", "f32[8,16]")
def tanh(values: Values) -> Tensor:
    grown = torch.expm1(-2 * values["input"].abs())
    return torch.copysign(grown / (grown + 2), values["input"])


@formula("_C::silu_and_mul_with_clamp", "(f32[8,16], f32[8,32], 0.5)")
def silu_and_mul_with_clamp(values: Values) -> Tensor:
    gate, up = halves(values)
    limit, alpha, beta = values["limit"], values.get("alpha", 1.0), values.get("beta", 0.0)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + beta)


@formula("npu::npu_silu", "f32[8,16]")
def npu_silu(values: Values) -> Tensor:
    return values["self"] / (1 + torch.exp(-values["self"]))


@formula("npu::npu_geglu", "f32[8,32]")
def npu_geglu(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("approximate", 1) in (0, 1), "erf and tanh")
    first, second = values["self"].chunk(2, values.get("dim", -1))
    up, gate = (second, first) if values.get("activate_left") else (first, second)
    smooth = tanh_gelu(gate) if values.get("approximate", 1) else gate * (1 + torch.erf(gate / math.sqrt(2))) / 2
    return up * smooth, smooth


@formula("npu::npu_dtype_cast", "(f32[8,16], torch.bfloat16)")
def npu_dtype_cast(values: Values) -> Tensor:
    return values["self"].to(values["dtype"])


@formula("npu::npu_scaled_masked_softmax", "(f32[2,3,32,32], bool[2,1,32,32], 0.5)")
def npu_masked_softmax(values: Values) -> Tensor:
    covers(not values.get("fixed_triu_mask"), "the plain form")
    x = (
        values["x"].float() * values.get("scale", 1)
        if values["x"].dtype is not torch.float64
        else values["x"] * values.get("scale", 1)
    )
    return torch.softmax(x.masked_fill(values["mask"].bool(), -10000.0), -1).to(values["x"].dtype)


ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "aiter::add": torch.add,
    "aiter::sub": torch.sub,
    "aiter::mul": torch.mul,
    "aiter::div": torch.div,
}


for _name, _function in ARITHMETIC.items():
    formula(_name, "f32[8,16], f32[8,16]")(
        lambda values, function=_function: function(values["input"], values["other"])
    )
