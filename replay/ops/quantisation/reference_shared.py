"""Quantisation, activation and router ops of SGLang and vLLM, Hadamard transforms, aiter's experts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_sglang import moe_fused_gate
from opreplay.replay.ops.experts.reference_vllm import write_choice, write_grouped
from opreplay.replay.ops.experts.reference_vllm_layers import run_aiter_experts
from opreplay.replay.ops.maths.activations import gelu_tanh
from opreplay.replay.ops.maths.experts import Weights
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups, tensor_scale
from opreplay.replay.ops.quantisation.reference_vllm import FP8


def _gated(op_name: str, input: Tensor) -> Tensor:
    gate, up = input.float().chunk(2, -1)
    return _activated(op_name, gate) * up


def _activated(op_name: str, x: Tensor) -> Tensor:
    functions = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "relu2": lambda v: F.relu(v).square()}
    plain = (op_name or "silu").removesuffix("_and_mul")
    if plain not in functions:
        raise ValueError(f"unknown activation {op_name!r}; known: {', '.join(functions)}")
    return functions[plain](x)


@stands_for("sglang::_run_activation_inplace", "sglang::_run_activation_with_rounding_inplace")
def run_activation(op_name: str, input: Tensor, out: Tensor) -> None:
    """Write activation(first half of input) · second half to out. The activation is silu if no name was recorded."""
    out.copy_(_gated(op_name, input))


@stands_for("sglang::_run_activation_filtered_inplace")
def run_activation_filtered(op_name: str, input: Tensor, out: Tensor, expert_ids: Tensor, expert_step: int) -> None:
    """Do the same as run_activation, but skip blocks whose expert is −1. An expert id covers expert_step rows."""
    row = torch.arange(input.shape[0], device=input.device) // max(expert_step, 1)
    mine = expert_ids.flatten()[row.clamp(max=expert_ids.numel() - 1)] >= 0
    out.copy_(torch.where(mine.unsqueeze(-1), _gated(op_name, input).to(out.dtype), out))


@stands_for("sglang::_run_unary_activation_inplace")
def run_unary_activation(op_name: str, input: Tensor, out: Tensor) -> None:
    """Write activation(input) to out."""
    out.copy_(_activated(op_name, input.float()))


@stands_for("_C::silu_and_mul_per_block_quant")
def silu_and_mul_per_block_quant(c: Call) -> None:
    """Apply silu_and_mul, then quantise to 8 bits with one scale per group. Transposed scales are [groups, T]."""
    value = _gated("silu", c.input)
    groups = group_scale(value, c.group_size, largest(c.out.dtype))
    turned = c.is_scale_transposed and c.scales.shape != groups.shape
    c.scales.copy_(groups.t() if turned else groups)
    c.out.copy_(quantize_groups(value, groups, c.out.dtype))


def _by_groups(c: Call, limit: float) -> None:
    """Quantise input, or silu(first half) · second half of it, by groups. masked_m limits the rows per expert."""
    output_q, output_s = c.output_q, c.output_s
    masked_m = getattr(c, "masked_m", None)
    value = _gated("silu", c.input) if getattr(c, "fuse_silu_and_mul", False) else c.input
    scale = group_scale(value, c.group_size, limit, eps=c.eps, power_of_two=c.scale_ue8m0)
    data = quantize_groups(value, scale, output_q.dtype)
    if output_s.shape != scale.shape:
        if output_s.dtype == torch.int32 or output_s.numel() != scale.numel():
            raise ValueError("packed scales (four exponents a word) are not implemented")
        scale = scale.reshape(output_s.shape)
    if masked_m is None:
        output_q.copy_(data)
        output_s.copy_(scale)
        return
    real = (torch.arange(c.input.shape[1], device=c.input.device) < masked_m.unsqueeze(1)).unsqueeze(-1)
    output_q.copy_(torch.where(real, data.float(), output_q.float()))
    output_s.copy_(torch.where(real, scale, output_s.float()))


@stands_for(
    "sgl_kernel::sgl_per_token_group_quant_8bit_v2",
    "sglang::per_token_group_quant_8bit_v2",
    "sglang::per_token_group_quant_8bit",
    writes=("output_q", "output_s"),
)
def per_token_group_quant_8bit(c: Call) -> None:
    """Quantise input, or silu(first half) · second half of it, to 8 bits by groups.

    masked_m limits the rows per expert.
    """
    fp8_max = getattr(c, "fp8_max", None)
    limit = fp8_max if fp8_max is not None else getattr(c, "max_8bit", None)
    _by_groups(c, limit or largest(c.output_q.dtype))


@stands_for("sglang::per_token_group_quant")
def per_token_group_quant(c: Call) -> None:
    """Same as per_token_group_quant_8bit, with the dtype's maximum as limit."""
    _by_groups(with_changes(c, eps=1e-10), largest(c.output_q.dtype))


@stands_for("sglang::per_tensor_absmax_fp8")
def per_tensor_absmax(input: Tensor, output_s: Tensor) -> None:
    """Write only the fp8 scale of the whole input."""
    output_s.copy_(tensor_scale(input, FP8).reshape(output_s.shape))


@stands_for("vllm::quantize")
def quantize(in_tensor: Tensor, input_scale: Tensor, input_offset: Tensor) -> Tensor:
    """Return in_tensor / input_scale + input_offset, rounded and saturated to int8."""
    return (in_tensor.float() / input_scale.float() + input_offset.float()).round().clamp(-128, 127).to(torch.int8)


@stands_for("vllm::muls_add")
def muls_add(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return x · scale + y."""
    return x * scale + y


@stands_for("sglang::layernorm")
def layernorm(input: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """Return the layer norm over the last dim."""
    return F.layer_norm(input.float(), (input.shape[-1],), gamma.float(), beta.float(), eps).to(input.dtype)


def hadamard(x: Tensor) -> Tensor:
    """Return x [.., n] @ the n x n Hadamard matrix in Sylvester's order (n a power of two), float32."""
    width = x.shape[-1]
    if width & (width - 1):
        raise ValueError(f"a Hadamard transform of {width} elements is not implemented: no power of two")
    out = x.float().reshape(-1, width)
    step = 1
    while step < width:
        first, second = out.unflatten(1, (-1, 2, step)).unbind(2)
        out = torch.stack((first + second, first - second), 2).flatten(1)
        step *= 2
    return out.reshape(x.shape)


@stands_for("sgl_kernel::fast_hadamard_transform", "sglang::hadamard_transform", "torchao::hadamard_transform")
def hadamard_transform(x: Tensor, scale: float) -> Tensor:
    """Return scale · the Hadamard transform of the last dim."""
    return (hadamard(x) * (scale or 1.0)).to(x.dtype)


@stands_for("_C::hadacore_transform", fake=lambda x: torch.empty_like(x))
def hadacore_transform(x: Tensor, inplace: bool) -> Tensor:
    """Return the orthonormal Hadamard transform of the last dim; overwrite `x` if `inplace` is set."""
    transformed = (hadamard(x) / math.sqrt(x.shape[-1])).to(x.dtype)
    if inplace:
        x.copy_(transformed)
    return transformed


@stands_for("sglang::moe_topk_softmax_out")
def moe_topk_softmax(c: Call) -> None:
    """Write the top-k of the softmax, as `sgl_kernel::topk_softmax` does. The logits may be softcapped first."""
    logits = c.gating_output.float()
    if c.moe_softcapping > 0:
        logits = c.moe_softcapping * torch.tanh(logits / c.moe_softcapping)
    write_choice(logits.softmax(-1), c.topk_weights, c.topk_ids, renormalize=c.renormalize, bias=c.correction_bias)


@stands_for("sglang::moe_topk_sigmoid_out")
def moe_topk_sigmoid(c: Call) -> None:
    """Write the top-k experts by sigmoid score. Raises ValueError for shared experts after the routed ones."""
    if c.num_fused_shared_experts:
        raise ValueError("moe_topk_sigmoid with shared experts is not implemented")
    write_choice(
        c.gating_output.float().sigmoid(),
        c.topk_weights,
        c.topk_ids,
        renormalize=c.renormalize,
        bias=c.correction_bias,
        scaling=c.routed_scaling_factor,
    )


@stands_for("sglang::fused_topk_deepseek")
def fused_topk_deepseek(c: Call) -> None:
    """Write DeepSeek-V3's grouped top-k of experts."""
    write_grouped(
        c.gating_output.float().sigmoid(),
        c.topk_weights,
        c.topk_ids,
        c.num_expert_group,
        c.topk_group,
        c.renormalize,
        c.scaling_factor,
        c.correction_bias.float(),
    )


@stands_for(
    "sgl_kernel::kimi_k2_moe_fused_gate",
    fake=lambda input, topk: [
        input.new_empty((input.shape[0], topk), dtype=torch.float32),
        input.new_empty((input.shape[0], topk), dtype=torch.int32),
    ],
)
def kimi_k2_moe_fused_gate(c: Call) -> list[Tensor]:
    """Same as `sgl_kernel::moe_fused_gate`, with a single group."""
    if not c.renormalize:
        raise ValueError("kimi_k2_moe_fused_gate without renormalisation is not implemented")
    return moe_fused_gate(with_changes(c, num_expert_group=1, topk_group=1, num_fused_shared_experts=0))


@stands_for(
    "vllm::rocm_aiter_fused_topk",
    fake=lambda x, router_logits, top_k: (
        x.new_empty((x.shape[0], top_k), dtype=torch.float32),
        x.new_empty((x.shape[0], top_k), dtype=torch.int32),
    ),
)
def rocm_aiter_fused_topk(router_logits: Tensor, top_k: int, gate_up: bool) -> tuple[Tensor, Tensor]:
    """Return (weights float32 [T, k], ids int32) of the top-k by softmax.

    The weights are renormalised if gate_up is set.
    """
    weights, ids = router_logits.float().softmax(-1).topk(top_k, -1)
    return weights / weights.sum(-1, keepdim=True) if gate_up else weights, ids.to(torch.int32)


@stands_for(
    "vllm::rocm_aiter_ck_moe",
    "vllm::rocm_aiter_ck_moe_2stages",
    "vllm::rocm_aiter_asm_moe",
    "vllm::rocm_aiter_asm_moe_tkw1",
    "sglang::rocm_aiter_asm_moe_tkw1",
    fake=lambda hidden_states: torch.empty_like(hidden_states),
)
def rocm_aiter_moe(c: Call) -> Tensor:
    """Compute fused experts of aiter's older API. Smoothing scales are ignored, and weights are read as plain rows."""
    topk_weights = getattr(c, "topk_weights", None)
    weights = getattr(c, "topk_weight", None) if topk_weights is None else topk_weights
    assert weights is not None
    return run_aiter_experts(
        c.hidden_states,
        Weights(c.w1, c.w2, getattr(c, "fc1_scale", None), getattr(c, "fc2_scale", None)),
        weights,
        c.topk_ids,
        expert_mask=getattr(c, "expert_mask", None),
        activation=getattr(c, "activation_method", 0),
        weigh_input=False,
    )
