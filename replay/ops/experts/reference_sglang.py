# pyright: strict
"""SGLang's MoE ops: choosing experts, sorting tokens, fused experts, summing outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import write_choice
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, fused_experts
from opreplay.replay.ops.maths.routing import align, counts, grouped_topk


@stands_for("sgl_kernel::topk_softmax")
def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    moe_softcapping: float = 0.0,
    correction_bias: Tensor | None = None,
) -> None:
    """Softmax (of softcapped logits) over E experts, the k best; the bias counts for the choice only."""
    logits = gating_output.float()
    if moe_softcapping > 0:
        logits = moe_softcapping * torch.tanh(logits / moe_softcapping)
    write_choice(logits.softmax(-1), topk_weights, topk_indices, renormalize=renormalize, bias=correction_bias)


@stands_for("sgl_kernel::topk_sigmoid")
def topk_sigmoid(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    correction_bias: Tensor | None,
) -> None:
    """As topk_softmax, each expert's sigmoid as its score."""
    scores = gating_output.float().sigmoid()
    write_choice(scores, topk_weights, topk_indices, renormalize=renormalize, bias=correction_bias)


@stands_for("sgl_kernel::moe_align_block_size")
def moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    cumsum_buffer: Tensor,
    pad_sorted_token_ids: bool,
) -> None:
    """As vLLM's, every id shifted by one: −1 is the first bucket, whose blocks come out as expert −1.

    num_experts counts that bucket. Without pad_sorted_token_ids the gaps keep what the buffer held.
    """
    length = max(sorted_token_ids.numel(), experts_ids.numel() * block_size)
    shifted = topk_ids.to(torch.int64) + 1
    order, owners, total = align(shifted, num_experts, block_size, topk_ids.numel(), length)
    order, owners = order[: sorted_token_ids.numel()], owners[: experts_ids.numel()]
    if not pad_sorted_token_ids:
        order = torch.where(order == topk_ids.numel(), sorted_token_ids.flatten().to(torch.int64), order)
    sorted_token_ids.copy_(order)
    # −1 already marks blocks behind the end; the first bucket becomes −1 as well.
    experts_ids.copy_((owners - 1).clamp(min=-1))
    num_tokens_post_pad.copy_(total)
    padded = (counts(shifted, num_experts) + block_size - 1) // block_size * block_size
    edges = torch.cat((padded.new_zeros(1), padded.cumsum(0)))[: cumsum_buffer.numel()]
    cumsum_buffer[: edges.numel()] = edges.to(cumsum_buffer.dtype)


def _fake_gate(input: Tensor, topk: int) -> list[Tensor]:
    shape = (input.shape[0], topk)
    return [input.new_empty(shape, dtype=torch.float32), input.new_empty(shape, dtype=torch.int32)]


@stands_for("sgl_kernel::moe_fused_gate", fake=_fake_gate)
def moe_fused_gate(
    input: Tensor,
    bias: Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    num_fused_shared_experts: int = 0,
    routed_scaling_factor: float = 1.0,
    apply_routed_scaling_factor_on_output: bool = False,
) -> list[Tensor]:
    """DeepSeek-V3's gate of input [T, E] → [weights float32 [T, k], ids int32 [T, k]].

    Shared experts take the last columns with ids from E on and the weight (sum of the others) / routed_scaling_factor.
    """
    weights, ids = grouped_topk(
        input.float().sigmoid(),
        topk - num_fused_shared_experts,
        groups=num_expert_group,
        keep=topk_group,
        renormalize=False,
        bias=bias.float(),
    )
    total = weights.sum(-1, keepdim=True)
    if num_fused_shared_experts:
        extra = torch.arange(num_fused_shared_experts, device=ids.device) + input.shape[1]
        ids = torch.cat((ids, extra.expand(ids.shape[0], -1)), dim=-1)
        share = (total / routed_scaling_factor).expand(-1, num_fused_shared_experts)
        weights = torch.cat((weights, share), dim=-1)
    weights = weights / total.clamp(min=1e-20)
    if apply_routed_scaling_factor_on_output:
        weights = weights * routed_scaling_factor
    return [weights, ids.to(torch.int32)]


@stands_for("sgl_kernel::moe_sum", "sgl_kernel::moe_sum_reduce")
def moe_sum(input: Tensor, output: Tensor, routed_scaling_factor: float = 1.0) -> None:
    """output [T, H] = routed_scaling_factor · Σ over k of input [T, k, H]."""
    output.copy_(input.sum(1) * routed_scaling_factor)


def _outplace(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    routed_scaling_factor: float | None,
    no_combine: bool = False,
) -> Tensor:
    """As `vllm::outplace_fused_experts`, times routed_scaling_factor; no_combine and 4-bit weights are refused."""
    if no_combine or use_int4_w4a16:
        raise ValueError("experts without the sum or with packed 4-bit weights are not implemented")
    output = fused_experts(
        hidden_states,
        Weights(w1, w2, w1_scale, w2_scale, b1, b2),
        topk_weights,
        topk_ids,
        gate_by_name(activation),
        weigh_input=apply_router_weight_on_input,
    )
    return output if routed_scaling_factor is None else output * routed_scaling_factor


def _inplace(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    activation: str,
    apply_router_weight_on_input: bool,
    use_int4_w4a16: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    routed_scaling_factor: float | None,
) -> None:
    """As the out-of-place form; the result overwrites hidden_states."""
    output = _outplace(
        hidden_states,
        w1,
        w2,
        topk_weights,
        topk_ids,
        b1,
        b2,
        activation,
        apply_router_weight_on_input,
        use_int4_w4a16,
        w1_scale,
        w2_scale,
        routed_scaling_factor,
    )
    hidden_states.copy_(output)


def _like(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


stands_for("sglang::inplace_fused_experts")(_inplace)


stands_for(
    "sglang::outplace_fused_experts",
    fake=_like,
)(_outplace)
