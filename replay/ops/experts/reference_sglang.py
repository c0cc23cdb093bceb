# pyright: strict
"""SGLang's MoE ops: expert selection, token sorting, fused experts, sum of outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import write_choice
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, fused_experts
from opreplay.replay.ops.maths.routing import align, counts, grouped_topk


@stands_for("sgl_kernel::topk_softmax")
def topk_softmax(c: Call) -> None:
    """Write the top-k of the softmax over E experts.

    The logits may be softcapped first. The bias affects only the selection.
    """
    moe_softcapping = getattr(c, "moe_softcapping", 0.0)
    logits = c.gating_output.float()
    if moe_softcapping > 0:
        logits = moe_softcapping * torch.tanh(logits / moe_softcapping)
    write_choice(
        logits.softmax(-1),
        c.topk_weights,
        c.topk_indices,
        renormalize=c.renormalize,
        bias=getattr(c, "correction_bias", None),
    )


@stands_for("sgl_kernel::topk_sigmoid")
def topk_sigmoid(c: Call) -> None:
    """Write the top-k experts of each token by sigmoid score. The bias affects only the selection."""
    scores = c.gating_output.float().sigmoid()
    write_choice(scores, c.topk_weights, c.topk_indices, renormalize=c.renormalize, bias=c.correction_bias)


@stands_for("sgl_kernel::moe_align_block_size")
def moe_align_block_size(c: Call) -> None:
    """Do the same as vLLM's op, with all ids shifted by one.

    Id −1 becomes the first bucket. num_experts includes this bucket, and its blocks are assigned to expert −1. Without
    pad_sorted_token_ids, padding entries keep the buffer's old contents.
    """
    block_size = c.block_size
    length = max(c.sorted_token_ids.numel(), c.experts_ids.numel() * block_size)
    shifted = c.topk_ids.to(torch.int64) + 1
    order, owners, total = align(shifted, c.num_experts, block_size, c.topk_ids.numel(), length)
    order, owners = order[: c.sorted_token_ids.numel()], owners[: c.experts_ids.numel()]
    if not c.pad_sorted_token_ids:
        order = torch.where(order == c.topk_ids.numel(), c.sorted_token_ids.flatten().to(torch.int64), order)
    c.sorted_token_ids.copy_(order)
    # −1 already marks blocks behind the end; the first bucket becomes −1 as well.
    c.experts_ids.copy_((owners - 1).clamp(min=-1))
    c.num_tokens_post_pad.copy_(total)
    padded = (counts(shifted, c.num_experts) + block_size - 1) // block_size * block_size
    edges = torch.cat((padded.new_zeros(1), padded.cumsum(0)))[: c.cumsum_buffer.numel()]
    c.cumsum_buffer[: edges.numel()] = edges.to(c.cumsum_buffer.dtype)


def _fake_gate(input: Tensor, topk: int) -> list[Tensor]:
    shape = (input.shape[0], topk)
    return [input.new_empty(shape, dtype=torch.float32), input.new_empty(shape, dtype=torch.int32)]


@stands_for("sgl_kernel::moe_fused_gate", fake=_fake_gate)
def moe_fused_gate(c: Call) -> list[Tensor]:
    """Return weights float32 [T, k] and ids int32 [T, k] of DeepSeek-V3's gate for input [T, E].

    The last columns are shared experts, whose ids start at E. The weights of a token's other experts are divided by
    their sum, and each shared expert has the weight 1 / routed_scaling_factor. With
    apply_routed_scaling_factor_on_output, all weights are multiplied by that factor.
    """
    num_fused_shared_experts = getattr(c, "num_fused_shared_experts", 0)
    routed_scaling_factor = getattr(c, "routed_scaling_factor", 1.0)
    weights, ids = grouped_topk(
        c.input.float().sigmoid(),
        c.topk - num_fused_shared_experts,
        groups=c.num_expert_group,
        keep=c.topk_group,
        renormalize=False,
        bias=c.bias.float(),
    )
    total = weights.sum(-1, keepdim=True)
    if num_fused_shared_experts:
        extra = torch.arange(num_fused_shared_experts, device=ids.device) + c.input.shape[1]
        ids = torch.cat((ids, extra.expand(ids.shape[0], -1)), dim=-1)
        share = (total / routed_scaling_factor).expand(-1, num_fused_shared_experts)
        weights = torch.cat((weights, share), dim=-1)
    weights = weights / total.clamp(min=1e-20)
    if getattr(c, "apply_routed_scaling_factor_on_output", False):
        weights = weights * routed_scaling_factor
    return [weights, ids.to(torch.int32)]


@stands_for("sgl_kernel::moe_sum", "sgl_kernel::moe_sum_reduce")
def moe_sum(input: Tensor, output: Tensor, routed_scaling_factor: float = 1.0) -> None:
    """Write routed_scaling_factor · the sum over k of input [T, k, H] to output [T, H]."""
    output.copy_(input.sum(1) * routed_scaling_factor)


def _like(hidden_states: Tensor) -> Tensor:
    return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)


@stands_for("sglang::outplace_fused_experts", fake=_like)
def outplace(c: Call) -> Tensor:
    """Do the same as `vllm::outplace_fused_experts`, and multiply the result by routed_scaling_factor.

    no_combine and 4-bit weights are rejected.
    """
    if getattr(c, "no_combine", False) or c.use_int4_w4a16:
        raise ValueError("experts without the sum or with packed 4-bit weights are not implemented")
    output = fused_experts(
        c.hidden_states,
        Weights(c.w1, c.w2, c.w1_scale, c.w2_scale, c.b1, c.b2),
        c.topk_weights,
        c.topk_ids,
        gate_by_name(c.activation),
        weigh_input=c.apply_router_weight_on_input,
    )
    return output if c.routed_scaling_factor is None else output * c.routed_scaling_factor
