# pyright: strict
"""vLLM's fused experts: `vllm::fused_experts`, its forms in place and out of place, and the unquantised GEMM of ROCm.

Weights may be 16 bits wide or fp8/int8 with scales; packed 4-bit and MXFP4 weights are refused (ValueError).
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, fused_experts


def _run(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    expert_map: Tensor | None,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    ocp_mx_scheme: str | None = None,
    use_mxfp4_w4a4: bool = False,
    w1_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> Tensor:
    """hidden_states [T, H], w1 [E, 2I, H], w2 [E, H, I], topk_* [T, k] → [T, H]; activations stay 16 bits wide."""
    if use_int4_w4a16 or use_mxfp4_w4a4 or ocp_mx_scheme:
        raise ValueError("experts with packed 4-bit weights are not implemented")
    return fused_experts(
        hidden_states,
        Weights(w1, w2, w1_scale, w2_scale, w1_bias, w2_bias),
        topk_weights,
        topk_ids,
        gate_by_name(activation),
        weigh_input=apply_router_weight_on_input,
        expert_map=expert_map,
    )


def _fake(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


def _run_inplace(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    expert_map: Tensor | None,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    ocp_mx_scheme: str | None = None,
    use_mxfp4_w4a4: bool = False,
    w1_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
) -> None:
    """As the out-of-place form; the result overwrites hidden_states."""
    output = _run(
        hidden_states,
        w1,
        w2,
        topk_weights,
        topk_ids,
        activation,
        apply_router_weight_on_input,
        use_int4_w4a16,
        expert_map,
        w1_scale,
        w2_scale,
        ocp_mx_scheme,
        use_mxfp4_w4a4,
        w1_bias,
        w2_bias,
    )
    hidden_states.copy_(output)


stands_for("vllm::outplace_fused_experts", "vllm::fused_experts", fake=_fake)(_run)
stands_for("vllm::inplace_fused_experts")(_run_inplace)


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
