# pyright: strict
"""vLLM's `_C` activations (csrc/libtorch_stable/activation_kernels.cu): all write to their first argument."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gated, gelu_quick, gelu_tanh, swiglu_oai
from opreplay.replay.ops.maths.quantize import to_quantized
from opreplay.replay.ops.quantisation.reference_vllm import group_fp8_quant


def _declare(name: str, function: Callable[[Tensor], Tensor], into: str = "out") -> None:
    def of_input(input: Tensor) -> Tensor:
        return function(input)

    stands_for(f"_C::{name}", into=(into,))(of_input)


_declare("silu_and_mul", lambda x: gated(x, F.silu), into="result")
_declare("gelu_and_mul", lambda x: gated(x, F.gelu))
_declare("gelu_tanh_and_mul", lambda x: gated(x, gelu_tanh))
_declare("gelu_new", gelu_tanh)
_declare("gelu_fast", gelu_tanh)
_declare("gelu_quick", gelu_quick)
_declare("relu_squared", lambda x: F.relu(x).square())


@stands_for("_C::mul_and_silu")
def mul_and_silu(out: Tensor, input: Tensor) -> None:
    """Write first half · silu(second half) of `input` to `out`: [.., 2d] → [.., d]."""
    up, gate = input.chunk(2, dim=-1)
    out.copy_(up * F.silu(gate))


@stands_for("_C::fatrelu_and_mul")
def fatrelu_and_mul(out: Tensor, input: Tensor, threshold: float) -> None:
    """Write f(first half) · second half to `out`; f(x) is x if x > `threshold`, otherwise 0."""
    # Not F.threshold, which keeps NaN: what is not above the threshold is 0.
    out.copy_(gated(input, lambda gate: torch.where(gate > threshold, gate, torch.zeros_like(gate))))


@stands_for("_C::swigluoai_and_mul")
def swigluoai_and_mul(out: Tensor, input: Tensor, alpha: float, limit: float) -> None:
    """Compute the gated activation of gpt-oss; the elements of gate and up alternate in `input`."""
    out.copy_(swiglu_oai(input, alpha, limit))


@stands_for("_C::silu_and_mul_with_clamp")
def silu_and_mul_with_clamp(result: Tensor, input: Tensor, limit: float, alpha: float, beta: float) -> None:
    """Write gate · sigmoid(alpha · gate) · (up + beta) to result.

    gate is the first half of `input`, clamped to (−∞, limit]. up is the second half, clamped to [−limit, limit].
    """
    gate, up = input.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    result.copy_(gate * (alpha * gate).sigmoid() * (up.clamp(-limit, limit) + beta))


@stands_for("_C::silu_and_mul_quant")
def silu_and_mul_quant(result: Tensor, input: Tensor, scale: Tensor) -> None:
    """Apply silu_and_mul, then quantise with one fp8 scale for the whole tensor."""
    result.copy_(to_quantized(gated(input.float(), F.silu), scale, result.dtype))


@stands_for("vllm::rocm_aiter_act_mul_and_fp8_group_quant")
def act_mul_and_fp8_group_quant(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return silu(first half) · second half as (fp8, float32 scale of each group)."""
    return group_fp8_quant(gated(x, F.silu), group_size)
