# pyright: strict
"""aiter's MoE (aiter/fused_moe.py, aiter/ops/moe_op.py, moe_sorting.py): sorting with packed ids, two stages, routing.

A packed id is slot << 24 | token, with slot < topk. Padding entries are topk << 24 | T. Pre-shuffled weights are read
as plain rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import write_choice, write_grouped
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import expert_scale
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import dequantize
from opreplay.replay.ops.maths.routing import align
from opreplay.replay.ops.products.reference_aiter_gemm import dequantized

TOKEN_BITS = 24
_TOKEN_MASK = (1 << TOKEN_BITS) - 1
ACTIVATIONS: dict[int, str] = {0: "silu", 1: "gelu", 2: "swigluoai"}
"""aiter's ActivationType (csrc/include/aiter_enum.h) → vLLM's name."""


@stands_for("aiter::moe_sorting_fwd", "aiter::moe_sorting_opus_fwd")
def moe_sorting_fwd(c: Call) -> None:
    """Sort topk_ids [T, k] by expert, padding each expert to unit_size; also clear moe_buf."""
    tokens, topk = c.topk_ids.shape
    ids = c.topk_ids.to(torch.int64)
    experts = c.num_experts
    if c.local_expert_mask is not None:
        mask = c.local_expert_mask.to(torch.int64)
        local = torch.where(mask > 0, mask.cumsum(0) - 1, torch.full_like(mask, -1))
        ids, experts = local[ids], int(mask.sum())
    if c.num_local_tokens is not None:
        row = torch.arange(tokens, device=ids.device).unsqueeze(1)
        ids = torch.where(row < c.num_local_tokens.reshape(()), ids, torch.full_like(ids, -1))
    length = max(c.sorted_token_ids.numel(), c.sorted_expert_ids.numel() * c.unit_size)
    filler = tokens * topk
    order, owners, total = align(ids, experts, c.unit_size, filler, length)
    real = order < filler
    packed = torch.where(real, (order % topk) << TOKEN_BITS | order // topk, (topk << TOKEN_BITS) | tokens)
    weights = F.pad(c.topk_weights.flatten().float(), (0, 1))[order]
    c.sorted_token_ids.copy_(packed[: c.sorted_token_ids.numel()])
    c.sorted_weights.copy_(weights[: c.sorted_weights.numel()])
    c.sorted_expert_ids.copy_(owners[: c.sorted_expert_ids.numel()])
    c.num_valid_ids[:1] = total.to(c.num_valid_ids.dtype)
    c.num_valid_ids[1:] = tokens
    c.moe_buf.zero_()


def blocks_by_expert(
    sorted_token_ids: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, block: int, tokens: int, topk: int
) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    """Return (expert, tokens, slots, positions in the sorted list) for each run of consecutive blocks of one expert.

    Padding entries are left out. Raises ValueError if num_valid_ids is larger than the number of ids.
    """
    valid = int(num_valid_ids.flatten()[0])
    if not 0 <= valid <= sorted_token_ids.numel():
        raise ValueError(f"num_valid_ids is {valid}, but there are {sorted_token_ids.numel()} sorted ids")
    owners = [int(expert) for expert in sorted_expert_ids[: -(-valid // block)]]
    packed = sorted_token_ids[:valid].to(torch.int64)
    token, slot = packed & _TOKEN_MASK, packed >> TOKEN_BITS
    runs: list[tuple[int, Tensor, Tensor, Tensor]] = []
    start = 0
    while start < len(owners):
        stop = start
        while stop < len(owners) and owners[stop] == owners[start]:
            stop += 1
        place = torch.arange(start * block, min(stop * block, valid), device=packed.device)
        place = place[(token[place] < tokens) & (slot[place] < topk)]
        if owners[start] >= 0 and place.numel():
            runs.append((owners[start], token[place], slot[place], place))
        start = stop
    return runs


@stands_for("aiter::ck_moe_stage1")
def ck_moe_stage1(c: Call) -> None:
    """Compute stage 1 of the experts: from hidden_states [T, H] and w1 [E, 2I, H], write out [T, k, I].

    In w1, the gate comes before up. The results are multiplied by sorted_weights if given.
    """
    gate = gate_by_name(ACTIVATIONS[c.activation])
    hidden = dequantized(c.hidden_states, c.a1_scale, c.out.dtype)
    tokens = c.hidden_states.shape[0]
    rows = c.out.view(tokens, c.topk, -1)
    for expert, token, slot, place in blocks_by_expert(
        c.sorted_token_ids, c.sorted_expert_ids, c.num_valid_ids, c.block_m or 32, tokens, c.topk
    ):
        weight = dequantize(c.w1[expert], expert_scale(c.w1_scale, expert, c.w1.shape[0]), c.out.dtype)
        result = gate(linear(hidden[token], weight))
        if c.sorted_weights is not None:
            result = result * c.sorted_weights[place].unsqueeze(1)
        rows[token, slot] = result.to(c.out.dtype)


@stands_for("aiter::ck_moe_stage2")
def ck_moe_stage2(c: Call) -> None:
    """Compute stage 2 of the experts: from inter_states [T, k, I] and w2 [E, H, I], add the sum over k to out [T, H].

    The results are multiplied by sorted_weights if given.
    """
    tokens = c.inter_states.shape[0]
    inner = dequantized(c.inter_states.reshape(tokens * c.topk, -1), c.a2_scale, c.out.dtype)
    for expert, token, slot, place in blocks_by_expert(
        c.sorted_token_ids, c.sorted_expert_ids, c.num_valid_ids, c.block_m or 32, tokens, c.topk
    ):
        weight = dequantize(c.w2[expert], expert_scale(c.w2_scale, expert, c.w2.shape[0]), c.out.dtype)
        result = linear(inner[token * c.topk + slot], weight)
        if c.sorted_weights is not None:
            result = result * c.sorted_weights[place].unsqueeze(1)
        c.out.index_add_(0, token, result.to(c.out.dtype))


@stands_for("aiter::moe_sum")
def moe_sum(input: Tensor, output: Tensor) -> None:
    """Write the sum over k of input [T, k, H] to output [T, H]."""
    output.copy_(input.sum(1) if input.dim() == 3 else input)


@stands_for("aiter::topk_sigmoid")
def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    """Write the weights and indices of the top-k experts by sigmoid score."""
    write_choice(gating_output.float().sigmoid(), topk_weights, topk_indices, renormalize=False)


@stands_for("aiter::grouped_topk")
def grouped_topk(c: Call) -> None:
    """Write the weights and ids of the experts that DeepSeek-V2's grouped top-k selects."""
    logits = c.gating_output.float()
    scores = logits.softmax(-1) if c.is_softmax else logits.sigmoid()
    write_grouped(
        scores, c.topk_weights, c.topk_ids, c.num_expert_group, c.topk_group, c.need_renorm, c.routed_scaling_factor
    )
