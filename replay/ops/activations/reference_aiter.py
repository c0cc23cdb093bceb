# pyright: strict
"""aiter's elementwise arithmetic and activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gated, gelu_tanh
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups


def _arithmetic(plain_name: str, in_place_name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Declare an op of two tensors and its in-place form, which writes to the first tensor."""

    def plain(input: Tensor, other: Tensor) -> Tensor:
        return function(input, other).to(torch.promote_types(input.dtype, other.dtype))

    def in_place(input: Tensor, other: Tensor) -> Tensor:
        input.copy_(function(input, other))
        return input.clone()

    stands_for(plain_name, writes=())(plain)
    stands_for(in_place_name, writes=("input",))(in_place)


_arithmetic("aiter::add", "aiter::add_", torch.add)


_arithmetic("aiter::sub", "aiter::sub_", torch.sub)


_arithmetic("aiter::mul", "aiter::mul_", torch.mul)


_arithmetic("aiter::div", "aiter::div_", torch.div)


@stands_for("aiter::sigmoid", writes=())
def sigmoid(input: Tensor) -> Tensor:
    """Return the sigmoid."""
    return torch.sigmoid(input)


@stands_for("aiter::tanh", writes=())
def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return torch.tanh(input)


@stands_for("aiter::gelu_fast", writes=("out",))
def gelu_fast(out: Tensor, input: Tensor) -> None:
    """Write x/2 · (1 + tanh(0.7978845608 x (1 + 0.044715 x²))) to `out`, where x is `input`."""
    out.copy_(F.gelu(input.float(), approximate="tanh"))


@stands_for("aiter::swiglu_and_mul", writes=("out",))
def swiglu_and_mul(out: Tensor, input: Tensor) -> None:
    """Write gate · sigmoid(1.702 gate) · (up + 1) to out, as in gpt-oss.

    gate is the first half of `input`, clamped to (−∞, 7]; up is the second half, clamped to [−7, 7].
    """
    gate, up = input.float().chunk(2, -1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    out.copy_(gate * torch.sigmoid(1.702 * gate) * (up + 1))


@stands_for("aiter::silu_and_mul_quant", writes=("out", "scale"))
def silu_and_mul_quant(out: Tensor, input: Tensor, scale: Tensor, group_size: int, limit: float) -> None:
    """Multiply silu(first half) by the second half and quantise the product by groups.

    Both halves are clamped first if limit > 0. Scales are never shuffled.
    """
    gate, up = input.float().chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    value = F.silu(gate) * up
    groups = group_scale(value, group_size, largest(out.dtype))
    scale.copy_(groups.reshape(scale.shape))
    out.copy_(quantize_groups(value, groups, out.dtype))


def _declare_gated(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    def write_out(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
        if limit > 0:
            gate, up = input.chunk(2, dim=-1)
            out.copy_(activation(gate.clamp(max=limit)) * up.clamp(-limit, limit))
        else:
            out.copy_(gated(input, activation))

    stands_for(f"aiter::{name}")(write_out)


for _name, _activation in {"silu_and_mul": F.silu, "gelu_and_mul": F.gelu, "gelu_tanh_and_mul": gelu_tanh}.items():
    _declare_gated(_name, _activation)
