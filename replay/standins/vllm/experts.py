"""vLLM's fused experts: `vllm::fused_experts`, `inplace_`/`outplace_fused_experts`, and the unquantised GEMM of ROCm.

Weights may be 16 bits wide or fp8/int8 with scales; packed 4-bit and MXFP4 weights are refused (ValueError).
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.standins.declared.register import reference
from opreplay.replay.standins.maths.activations import gate_by_name
from opreplay.replay.standins.maths.experts import Weights, fused_experts
from opreplay.replay.standins.maths.products import linear

_HEAD = 'Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids, str activation="silu", '
_GATE = "bool is_act_and_mul=True, "
_INPUT = "bool apply_router_weight_on_input=False, "
_FLAGS = "bool use_fp8_w8a8=False, bool use_int8_w8a8=False, bool use_int8_w8a16=False, bool use_int4_w4a16=False, "
_SCHEME = "str? ocp_mx_scheme=None, "
_MXFP4 = "bool use_mxfp4_w4a4=False, "
_TAIL = (
    "bool per_channel_quant=False, SymInt global_num_experts=-1, Tensor? expert_map=None, Tensor? w1_scale=None, "
    "Tensor? w2_scale=None, Tensor? w1_zp=None, Tensor? w2_zp=None, Tensor? a1_scale=None, Tensor? a2_scale=None, "
    "SymInt[]? block_shape=None"
)
_BIAS = ", Tensor? w1_bias=None, Tensor? w2_bias=None"
VERSIONS: dict[str, str] = {
    "2025-10-10": _HEAD + _INPUT + _FLAGS + _SCHEME + _TAIL + _BIAS,
    "2025-09-26": _HEAD + _INPUT + _FLAGS + _MXFP4 + _TAIL + _BIAS,
    "2025-08-15": _HEAD + _GATE + _INPUT + _FLAGS + _MXFP4 + _TAIL + _BIAS,
    "2025-08-01": _HEAD + _GATE + _INPUT + _FLAGS + _MXFP4 + _TAIL,
    "2025-07-18": _HEAD + _INPUT + _FLAGS + _MXFP4 + _TAIL,
    "2025-04-25": _HEAD + _INPUT + _FLAGS + _TAIL,
}
"""Arguments behind hidden_states, by the date since when they hold."""


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


for _since, _arguments in VERSIONS.items():
    reference(f"vllm::outplace_fused_experts(Tensor hidden_states, {_arguments}) -> Tensor", since=_since, fake=_fake)(
        _run
    )
    reference(f"vllm::inplace_fused_experts(Tensor! hidden_states, {_arguments}) -> ()", since=_since)(_run_inplace)
reference(
    f"vllm::fused_experts(Tensor hidden_states, {VERSIONS['2025-10-10']}) -> Tensor", since="2026-06-05", fake=_fake
)(_run)


@reference("vllm::rocm_unquantized_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", since="2025-11-07")
@reference("vllm::rocm_unquantized_gemm_impl(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", since="2025-08-01")
def rocm_unquantized_gemm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., K] @ weight [N, K]ᵀ + bias."""
    return linear(x, weight, bias)
