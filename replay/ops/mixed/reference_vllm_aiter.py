# pyright: strict
"""vLLM's wrappers around aiter: `vllm::rocm_aiter_*` norms, experts, routing, GEMMs and quantisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import topk_softmax, write_choice
from opreplay.replay.ops.maths.activations import gate_by_name, gated
from opreplay.replay.ops.maths.experts import Weights, fused_experts
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    scaled_linear,
    tensor_scale,
    to_quantized,
)
from opreplay.replay.ops.maths.rope import rotate_by_position
from opreplay.replay.ops.maths.routing import grouped_topk

FP8 = torch.float8_e4m3fn
"""Element type of fp8 results whose dtype no argument tells."""


@stands_for("vllm::rocm_aiter_rms_norm")
def rocm_aiter_rms_norm(x: Tensor, weight: Tensor, variance_epsilon: float) -> Tensor:
    """rms_norm(x) · weight."""
    return rms_norm(x, weight, variance_epsilon)


@stands_for("vllm::rocm_aiter_rmsnorm2d_fwd_with_add")
def rocm_aiter_rmsnorm2d_fwd_with_add(
    x: Tensor, residual: Tensor, weight: Tensor, variance_epsilon: float
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual)."""
    return fused_add_rms_norm(x, residual, weight, variance_epsilon)


@stands_for("vllm::rocm_aiter_rmsnorm_fp8_group_quant")
def rmsnorm_fp8_group_quant(
    x: Tensor, weight: Tensor, variance_epsilon: float, group_size: int
) -> tuple[Tensor, Tensor]:
    """The norm in fp8 and its scale for each group."""
    return group_fp8_quant(rms_norm(x, weight, variance_epsilon), group_size)


@stands_for("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant")
def rmsnorm_with_add_fp8_group_quant(
    x: Tensor, residual: Tensor, weight: Tensor, variance_epsilon: float, group_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(norm in fp8, x + residual, scales)."""
    normed, total = fused_add_rms_norm(x, residual, weight, variance_epsilon)
    quantized, scale = group_fp8_quant(normed, group_size)
    return quantized, total, scale


@stands_for("vllm::rocm_aiter_rmsnorm_fused_dynamic_quant")
def rmsnorm_fused_dynamic_quant(
    x: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(norm quantised, scale of each row)."""
    return per_token_quant(rms_norm(x, weight, epsilon), quant_dtype)


@stands_for("vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant")
def rmsnorm_fused_add_dynamic_quant(
    x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """(norm quantised, x + residual, scale of each row)."""
    normed, total = fused_add_rms_norm(x, residual, weight, epsilon)
    quantized, scale = per_token_quant(normed, quant_dtype)
    return quantized, total, scale


@stands_for("vllm::rocm_aiter_triton_add_rmsnorm_pad")
def add_rmsnorm_pad(
    x: Tensor, weight: Tensor, variance_epsilon: float, residual: Tensor, x_pad_to_multiple: int
) -> tuple[Tensor, Tensor]:
    """(norm(x + residual) with zeros up to a multiple of the width, x + residual)."""
    normed, total = fused_add_rms_norm(x, residual, weight, variance_epsilon)
    return F.pad(normed, (0, -x.shape[-1] % max(x_pad_to_multiple, 1))), total


@stands_for("vllm::rocm_aiter_group_fp8_quant")
def group_fp8_quant(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """(fp8, float32 scales [.., groups])."""
    scale = group_scale(x, group_size, largest(FP8))
    return quantize_groups(x, scale, FP8), scale


@stands_for("vllm::rocm_aiter_act_mul_and_fp8_group_quant")
def act_mul_and_fp8_group_quant(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """silu_and_mul, then as group_fp8_quant."""
    return group_fp8_quant(gated(x, F.silu), group_size)


@stands_for("vllm::rocm_aiter_per_tensor_quant")
def per_tensor_quant(x: Tensor, quant_dtype: torch.dtype, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """(quantised, scale [1]); the scale computed when it is not given."""
    found = tensor_scale(x, quant_dtype).clamp(min=1e-12) if scale is None else scale.clone()
    return to_quantized(x, found, quant_dtype), found.reshape(1)


@stands_for("vllm::rocm_aiter_per_token_quant")
def per_token_quant(x: Tensor, quant_dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(quantised, scale of each row [.., 1])."""
    found = row_scale(x, quant_dtype) if scale is None else scale.clone()
    return to_quantized(x, found, quant_dtype), found


@stands_for(
    "vllm::rocm_aiter_gemm_a8w8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_gemm_w8a8",
    "vllm::rocm_aiter_gemm_w8a8_blockscale",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_w8a8_gemm",
)
def gemm_a8w8(
    A: Tensor, B: Tensor, As: Tensor, Bs: Tensor, output_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """A [M, K] and B [N, K] quantised, scales whole, by row or by block → [M, N]."""
    return scaled_linear(A, B, As, Bs, bias, output_dtype)


def _fake_hidden(hidden_states: Tensor, output_dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format, dtype=output_dtype)


@stands_for("vllm::rocm_aiter_fused_moe", fake=_fake_hidden)
def rocm_aiter_fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor | None,
    activation_method: int,
    doweight_stage1: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """The experts of `aiter::fused_moe`; weights are read as plain rows, though real ones are often pre-shuffled."""
    return run_aiter_experts(
        hidden_states,
        Weights(w1, w2, w1_scale, w2_scale, bias1, bias2),
        topk_weight,
        topk_ids,
        expert_mask=expert_mask,
        activation=activation_method,
        weigh_input=doweight_stage1,
    ).to(output_dtype or hidden_states.dtype)


def run_aiter_experts(
    hidden: Tensor,
    weights: Weights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    expert_mask: Tensor | None,
    activation: int,
    weigh_input: bool,
) -> Tensor:
    """Fused experts with aiter's numbers: activation 0 silu, 1 gelu, 2 swiglu; expert_mask [E] is 1 where local."""
    names = {0: "silu", 1: "gelu", 2: "swigluoai"}
    if activation not in names:
        raise ValueError(f"unknown aiter activation {activation}; known: 0 silu, 1 gelu, 2 swiglu")
    expert_map = None
    if expert_mask is not None:
        mask = expert_mask.to(torch.int64)
        expert_map = torch.where(mask > 0, mask.cumsum(0) - 1, torch.full_like(mask, -1))
    return fused_experts(
        hidden,
        weights,
        topk_weights,
        topk_ids,
        gate_by_name(names[activation]),
        weigh_input=weigh_input,
        expert_map=expert_map,
    )


@stands_for("vllm::rocm_aiter_topk_softmax")
def rocm_aiter_topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    num_shared_experts: int = 0,
) -> None:
    """As `_moe_C::topk_softmax`; raises ValueError for shared experts behind the routed ones."""
    if num_shared_experts:
        raise ValueError("topk_softmax with shared experts is not implemented")
    topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, renormalize)


@stands_for("vllm::rocm_aiter_topk_sigmoid")
def rocm_aiter_topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    """The k best experts by sigmoid."""
    write_choice(torch.sigmoid(gating_output.float()), topk_weights, topk_indices, renormalize=False)


@stands_for("vllm::rocm_aiter_grouped_topk")
def rocm_aiter_grouped_topk(
    gating_output: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    scoring_func: str = "softmax",
    routed_scaling_factor: float = 1.0,
) -> None:
    """DeepSeek-V2's choice among groups of experts."""
    logits = gating_output.float()
    scores = logits.sigmoid() if scoring_func == "sigmoid" else logits.softmax(-1)
    write_grouped(scores, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, routed_scaling_factor)


@stands_for("vllm::rocm_aiter_biased_grouped_topk")
def rocm_aiter_biased_grouped_topk(
    gating_output: Tensor,
    correction_bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    routed_scaling_factor: float = 1.0,
) -> None:
    """DeepSeek-V3's choice: sigmoid scores, a bias for the choice only."""
    scores = gating_output.float().sigmoid()
    write_grouped(
        scores,
        topk_weights,
        topk_ids,
        num_expert_group,
        topk_group,
        need_renorm,
        routed_scaling_factor,
        correction_bias.float(),
    )


def write_grouped(
    scores: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    groups: int,
    keep: int,
    renormalize: bool,
    scaling: float,
    bias: Tensor | None = None,
) -> None:
    """Write DeepSeek's grouped choice to topk_weights and topk_ids [T, k]."""
    weights, ids = grouped_topk(
        scores,
        topk_ids.shape[-1],
        groups=groups,
        keep=keep,
        renormalize=renormalize,
        scaling=scaling,
        bias=bias,
    )
    topk_weights.copy_(weights)
    topk_ids.copy_(ids)


@stands_for("vllm::flashinfer_rotary_embedding", "vllm::rocm_aiter_triton_rotary_embedding")
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    offsets: Tensor | None = None,
) -> None:
    """As `_C::rotary_embedding`; offsets are added to the positions."""
    moved = positions if offsets is None else positions + offsets.reshape(positions.shape)
    for tensor in (query, key):
        tensor.copy_(rotate_by_position(tensor, moved, cos_sin_cache, head_size=head_size, neox=is_neox))
