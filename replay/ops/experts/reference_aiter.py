# pyright: strict
"""aiter's MoE (aiter/fused_moe.py, aiter/ops/moe_op.py, moe_sorting.py): sorting with packed ids, two stages, routing.

Packed ids are slot << 24 | token with filler topk << 24 | T. Pre-shuffled weights are read as plain rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_vllm import write_choice, write_grouped
from opreplay.replay.ops.experts.reference_vllm_layers import run_aiter_experts
from opreplay.replay.ops.maths.activations import gate_by_name
from opreplay.replay.ops.maths.experts import Weights, expert_scale
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import dequantize
from opreplay.replay.ops.maths.routing import align
from opreplay.replay.ops.products.reference_aiter_gemm import dequantized

TOKEN_BITS = 24
_TOKEN_MASK = (1 << TOKEN_BITS) - 1
ACTIVATIONS: dict[int, str] = {0: "silu", 1: "gelu", 2: "swigluoai"}
"""aiter's ActivationType (csrc/include/aiter_enum.h) → vLLM's name."""


@stands_for("aiter::moe_sorting_fwd", "aiter::moe_sorting_opus_fwd")
def moe_sorting_fwd(
    topk_ids: Tensor,
    topk_weights: Tensor,
    sorted_token_ids: Tensor,
    sorted_weights: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    moe_buf: Tensor,
    num_experts: int,
    unit_size: int,
    local_expert_mask: Tensor | None,
    num_local_tokens: Tensor | None,
) -> None:
    """Sort topk_ids [T, k] by expert, each padded to unit_size; also clears moe_buf."""
    tokens, topk = topk_ids.shape
    ids = topk_ids.to(torch.int64)
    experts = num_experts
    if local_expert_mask is not None:
        mask = local_expert_mask.to(torch.int64)
        local = torch.where(mask > 0, mask.cumsum(0) - 1, torch.full_like(mask, -1))
        ids, experts = local[ids], int(mask.sum())
    if num_local_tokens is not None:
        row = torch.arange(tokens, device=ids.device).unsqueeze(1)
        ids = torch.where(row < num_local_tokens.reshape(()), ids, torch.full_like(ids, -1))
    length = max(sorted_token_ids.numel(), sorted_expert_ids.numel() * unit_size)
    filler = tokens * topk
    order, owners, total = align(ids, experts, unit_size, filler, length)
    real = order < filler
    packed = torch.where(real, (order % topk) << TOKEN_BITS | order // topk, (topk << TOKEN_BITS) | tokens)
    weights = F.pad(topk_weights.flatten().float(), (0, 1))[order]
    sorted_token_ids.copy_(packed[: sorted_token_ids.numel()])
    sorted_weights.copy_(weights[: sorted_weights.numel()])
    sorted_expert_ids.copy_(owners[: sorted_expert_ids.numel()])
    num_valid_ids[:1] = total.to(num_valid_ids.dtype)
    num_valid_ids[1:] = tokens
    moe_buf.zero_()


def blocks_by_expert(
    sorted_token_ids: Tensor, sorted_expert_ids: Tensor, num_valid_ids: Tensor, block: int, tokens: int, topk: int
) -> list[tuple[int, Tensor, Tensor, Tensor]]:
    """(expert, tokens, slots, places in the sorted list) of each run of blocks with one expert; fillers left out.

    Raises ValueError when num_valid_ids says more ids than there are.
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
def ck_moe_stage1(
    hidden_states: Tensor,
    w1: Tensor,
    sorted_token_ids: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    out: Tensor,
    topk: int,
    w1_scale: Tensor | None,
    a1_scale: Tensor | None,
    block_m: int | None,
    sorted_weights: Tensor | None,
    activation: int,
) -> None:
    """hidden_states [T, H], w1 [E, 2I, H] → out [T, k, I], gate first; sorted_weights are applied where given."""
    gate = gate_by_name(ACTIVATIONS[activation])
    hidden = dequantized(hidden_states, a1_scale, out.dtype)
    tokens = hidden_states.shape[0]
    rows = out.view(tokens, topk, -1)
    for expert, token, slot, place in blocks_by_expert(
        sorted_token_ids, sorted_expert_ids, num_valid_ids, block_m or 32, tokens, topk
    ):
        weight = dequantize(w1[expert], expert_scale(w1_scale, expert, w1.shape[0]), out.dtype)
        result = gate(linear(hidden[token], weight))
        if sorted_weights is not None:
            result = result * sorted_weights[place].unsqueeze(1)
        rows[token, slot] = result.to(out.dtype)


@stands_for("aiter::ck_moe_stage2")
def ck_moe_stage2(
    inter_states: Tensor,
    w2: Tensor,
    sorted_token_ids: Tensor,
    sorted_expert_ids: Tensor,
    num_valid_ids: Tensor,
    out: Tensor,
    topk: int,
    w2_scale: Tensor | None,
    a2_scale: Tensor | None,
    block_m: int | None,
    sorted_weights: Tensor | None,
) -> None:
    """inter_states [T, k, I], w2 [E, H, I]: adds Σ over k to out [T, H]; sorted_weights are applied where given."""
    tokens = inter_states.shape[0]
    inner = dequantized(inter_states.reshape(tokens * topk, -1), a2_scale, out.dtype)
    for expert, token, slot, place in blocks_by_expert(
        sorted_token_ids, sorted_expert_ids, num_valid_ids, block_m or 32, tokens, topk
    ):
        weight = dequantize(w2[expert], expert_scale(w2_scale, expert, w2.shape[0]), out.dtype)
        result = linear(inner[token * topk + slot], weight)
        if sorted_weights is not None:
            result = result * sorted_weights[place].unsqueeze(1)
        out.index_add_(0, token, result.to(out.dtype))


def _fake_fused(hidden_states: Tensor, w2: Tensor, dtype: torch.dtype | None) -> Tensor:
    return hidden_states.new_empty((hidden_states.shape[0], w2.shape[1]), dtype=dtype or hidden_states.dtype)


@stands_for("aiter::fused_moe_", fake=_fake_fused)
def fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor | None,
    activation: int,
    doweight_stage1: bool,
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
    dtype: torch.dtype | None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
) -> Tensor:
    """Sorting, both stages and the sum in one: hidden_states [T, H] → [T, H] in dtype."""
    summed = run_aiter_experts(
        hidden_states,
        Weights(w1, w2, w1_scale, w2_scale, bias1, bias2),
        topk_weight,
        topk_ids,
        expert_mask=expert_mask,
        activation=activation,
        weigh_input=doweight_stage1,
    )
    return summed.to(dtype or hidden_states.dtype)


@stands_for("aiter::moe_sum")
def moe_sum(input: Tensor, output: Tensor) -> None:
    """output [T, H] = Σ over k of input [T, k, H]."""
    output.copy_(input.sum(1) if input.dim() == 3 else input)


@stands_for("aiter::topk_softmax", "aiter::topk_softmax_asm")
def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    need_renorm: bool,
    num_shared_experts: int = 0,
) -> None:
    """Softmax over E experts, the k best; token_expert_indices is scratch. Raises ValueError for shared experts."""
    if num_shared_experts:
        raise ValueError("topk_softmax with shared experts is not implemented")
    write_choice(torch.softmax(gating_output.float(), -1), topk_weights, topk_indices, renormalize=need_renorm)


@stands_for("aiter::topk_sigmoid")
def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    """The k best experts by sigmoid."""
    write_choice(gating_output.float().sigmoid(), topk_weights, topk_indices, renormalize=False)


@stands_for("aiter::grouped_topk")
def grouped_topk(
    gating_output: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    is_softmax: bool,
    routed_scaling_factor: float,
) -> None:
    """DeepSeek-V2's choice among groups of experts."""
    logits = gating_output.float()
    scores = logits.softmax(-1) if is_softmax else logits.sigmoid()
    write_grouped(scores, topk_weights, topk_ids, num_expert_group, topk_group, need_renorm, routed_scaling_factor)


@stands_for("aiter::biased_grouped_topk_hip")
def biased_grouped_topk(
    gating_output: Tensor,
    correction_bias: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    num_expert_group: int,
    topk_group: int,
    need_renorm: bool,
    routed_scaling_factor: float,
) -> None:
    """DeepSeek-V3's choice: sigmoid scores, a bias for the choice only."""
    write_grouped(
        gating_output.float().sigmoid(),
        topk_weights,
        topk_ids,
        num_expert_group,
        topk_group,
        need_renorm,
        routed_scaling_factor,
        correction_bias.float(),
    )
