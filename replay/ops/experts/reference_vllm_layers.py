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
from opreplay.replay.ops.maths.products import linear


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
    found = _run(
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
    hidden_states.copy_(found)


stands_for("vllm::outplace_fused_experts", "vllm::fused_experts", fake=_fake)(_run)
stands_for("vllm::inplace_fused_experts")(_run_inplace)


@stands_for("vllm::rocm_unquantized_gemm", "vllm::rocm_unquantized_gemm_impl")
def rocm_unquantized_gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., K] @ weight [N, K]ᵀ + bias."""
    return linear(x, weight, bias)
