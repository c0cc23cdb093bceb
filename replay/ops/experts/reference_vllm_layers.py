# pyright: strict
"""vLLM's fused experts: `vllm::fused_experts`, its in-place and out-of-place ops, and ROCm's unquantised GEMM.

Weights are 16-bit, or fp8/int8 with scales. Packed 4-bit and MXFP4 weights are rejected (ValueError).
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, fused_experts


def _fake(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@stands_for("vllm::outplace_fused_experts", "vllm::fused_experts", fake=_fake)
def fused(c: Call) -> Tensor:
    """Return the output [T, H] of fused experts for hidden_states [T, H], w1 [E, 2I, H], w2 [E, H, I] and topk_* [T,
    k].

    Activations stay 16-bit.
    """
    if c.use_int4_w4a16 or getattr(c, "use_mxfp4_w4a4", False) or getattr(c, "ocp_mx_scheme", None):
        raise ValueError("experts with packed 4-bit weights are not implemented")
    return fused_experts(
        c.hidden_states,
        Weights(c.w1, c.w2, c.w1_scale, c.w2_scale, getattr(c, "w1_bias", None), getattr(c, "w2_bias", None)),
        c.topk_weights,
        c.topk_ids,
        gate_by_name(c.activation),
        weigh_input=c.apply_router_weight_on_input,
        expert_map=c.expert_map,
    )


def _fake_hidden(hidden_states: Tensor, output_dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format, dtype=output_dtype)


@stands_for("vllm::rocm_aiter_fused_moe", fake=_fake_hidden)
def rocm_aiter_fused_moe(c: Call) -> Tensor:
    """Compute the experts of `aiter::fused_moe`.

    Weights are read as plain rows, though real weights are often pre-shuffled.
    """
    return run_aiter_experts(
        c.hidden_states,
        Weights(c.w1, c.w2, c.w1_scale, c.w2_scale, getattr(c, "bias1", None), getattr(c, "bias2", None)),
        c.topk_weight,
        c.topk_ids,
        expert_mask=c.expert_mask,
        activation=c.activation_method,
        weigh_input=c.doweight_stage1,
    ).to(getattr(c, "output_dtype", None) or c.hidden_states.dtype)


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
    """Compute fused experts with aiter's activation codes: 0 is silu, 1 gelu, 2 swiglu.

    expert_mask [E] is 1 for local experts.
    """
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
