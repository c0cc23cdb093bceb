# pyright: strict
"""vLLM's `_moe_C` (csrc/libtorch_stable/moe): choosing experts, sorting tokens, summing the experts' outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.routing import align, choose, grouped_topk, slot_major


def write_choice(
    scores: Tensor,
    topk_weights: Tensor,
    topk_indices: Tensor,
    *,
    renormalize: bool,
    bias: Tensor | None = None,
    scaling: float = 1.0,
) -> None:
    """Write the best experts of scores [T, E] to topk_weights and topk_indices [T, k]."""
    weights, ids = choose(scores, topk_weights.shape[-1], renormalize=renormalize, bias=bias)
    topk_weights.copy_(weights * scaling)
    topk_indices.copy_(ids)


@stands_for("_moe_C::topk_softmax")
def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool = False,
    bias: Tensor | None = None,
) -> None:
    """Softmax over E experts, the k best of each token; token_expert_indices = slot · T + token."""
    scores = torch.softmax(gating_output.float(), dim=-1)
    write_choice(scores, topk_weights, topk_indices, renormalize=renormalize, bias=bias)
    token_expert_indices.copy_(slot_major(gating_output.shape[0], topk_weights.shape[-1], gating_output.device))


@stands_for("_moe_C::topk_sigmoid")
def topk_sigmoid(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    bias: Tensor | None,
    routed_scaling_factor: float = 1.0,
) -> None:
    """As topk_softmax, each expert's sigmoid as its score."""
    scores = torch.sigmoid(gating_output.float())
    write_choice(scores, topk_weights, topk_indices, renormalize=renormalize, bias=bias, scaling=routed_scaling_factor)
    token_expert_indices.copy_(slot_major(gating_output.shape[0], topk_weights.shape[-1], gating_output.device))


def _fake_grouped(scores: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    shape = (scores.shape[0], topk)
    return scores.new_empty(shape, dtype=torch.float32), scores.new_empty(shape, dtype=torch.int32)


@stands_for("_moe_C::grouped_topk", fake=_fake_grouped)
def grouped_topk_biased(
    scores: Tensor,
    n_group: int,
    topk_group: int,
    topk: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: Tensor,
    scoring_func: int,
) -> tuple[Tensor, Tensor]:
    """DeepSeek-V3's router: scoring_func 0 takes scores as they are, 1 their sigmoid."""
    values = scores.float().sigmoid() if scoring_func == 1 else scores.float()
    weights, ids = grouped_topk(
        values,
        topk,
        groups=n_group,
        keep=topk_group,
        renormalize=renormalize,
        scaling=routed_scaling_factor,
        bias=bias.float(),
    )
    return weights, ids.to(torch.int32)


@stands_for("_moe_C::moe_align_block_size")
def moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    maybe_expert_map: Tensor | None = None,
) -> None:
    """Flat indices of topk_ids [T, k] sorted by expert, each padded to block_size with the filler T · k."""
    ids = topk_ids if maybe_expert_map is None else maybe_expert_map[topk_ids.to(torch.int64)]
    # The buffers hold whole blocks for experts_ids, though the token buffer may end inside one.
    length = max(sorted_token_ids.numel(), experts_ids.numel() * block_size)
    order, owners, total = align(ids, num_experts, block_size, topk_ids.numel(), length)
    sorted_token_ids.copy_(order[: sorted_token_ids.numel()])
    experts_ids.copy_(owners[: experts_ids.numel()])
    num_tokens_post_pad.copy_(total)


@stands_for("_moe_C::batched_moe_align_block_size")
def batched_moe_align_block_size(
    max_tokens_per_batch: int,
    block_size: int,
    expert_num_tokens: Tensor,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
) -> None:
    """Expert e's tokens are rows e · max_tokens_per_batch and on, expert_num_tokens[e] of them; filler E · max."""
    experts = expert_num_tokens.shape[0]
    number = expert_num_tokens.to(torch.int64)
    row = torch.arange(max_tokens_per_batch, device=number.device)
    ids = torch.where(row < number.unsqueeze(1), torch.arange(experts, device=number.device).unsqueeze(1), -1)
    moe_align_block_size(ids, experts, block_size, sorted_token_ids, experts_ids, num_tokens_post_pad)


@stands_for("_moe_C::moe_sum")
def moe_sum(input: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None) -> None:
    """output [T, H] = Σ over k of input [T, k, H]; with a map only over the slots whose expert is local."""
    if topk_ids is not None and expert_map is not None:
        local = expert_map[topk_ids.to(torch.int64)] >= 0
        input = input.masked_fill(~local.unsqueeze(-1), 0)
    output.copy_(input.sum(1))


@stands_for("_moe_C::moe_permute")
def moe_permute(
    input: Tensor,
    topk_ids: Tensor,
    expert_map: Tensor | None,
    n_local_expert: int,
    topk: int,
    permuted_input: Tensor,
    expert_first_token_offset: Tensor,
    inv_permuted_idx: Tensor,
    permuted_idx: Tensor,
) -> None:
    """Rows of input [T, H] sorted by local expert; where each expert starts, and the permutation both ways.

    permuted_idx[i] is the flat index t · k + slot of sorted row i; inv_permuted_idx is its inverse. Rows of experts
    elsewhere come last and are not copied.
    """
    flat = topk_ids.flatten().to(torch.int64)
    local = flat if expert_map is None else expert_map[flat].to(torch.int64)
    bucket = torch.where((local >= 0) & (local < n_local_expert), local, torch.full_like(local, n_local_expert))
    order = torch.argsort(bucket, stable=True)
    edges = torch.searchsorted(bucket[order], torch.arange(n_local_expert + 1, device=flat.device))
    expert_first_token_offset.copy_(edges)
    permuted_idx.copy_(order.reshape(permuted_idx.shape))
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    inv_permuted_idx.copy_(inverse.reshape(inv_permuted_idx.shape))
    rows = min(order.numel(), permuted_input.shape[0])
    permuted_input[:rows] = input.index_select(0, order[:rows] // topk)


@stands_for("_moe_C::moe_unpermute")
def moe_unpermute(
    permuted_hidden_states: Tensor,
    topk_weights: Tensor,
    inv_permuted_idx: Tensor,
    expert_first_token_offset: Tensor | None,
    topk: int,
    hidden_states: Tensor,
) -> None:
    """hidden_states [T, H] = Σ over slots of weight · the row that the slot was moved to; others add nothing."""
    place = inv_permuted_idx.reshape(-1, topk).to(torch.int64)
    weights = topk_weights.float()
    if expert_first_token_offset is not None:
        weights = weights.masked_fill(place >= expert_first_token_offset[-1], 0.0)
    last = permuted_hidden_states.shape[0] - 1
    rows = permuted_hidden_states[place.clamp(max=last)].float()
    hidden_states.copy_((rows * weights.unsqueeze(-1)).sum(1))


@stands_for("vllm::rocm_aiter_topk_softmax")
def rocm_aiter_topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool,
    num_shared_experts: int = 0,
) -> None:
    """As `aiter::topk_softmax`, which leaves token_expert_indices; raises ValueError for shared experts."""
    if num_shared_experts:
        raise ValueError("topk_softmax with shared experts is not implemented")
    write_choice(torch.softmax(gating_output.float(), -1), topk_weights, topk_indices, renormalize=renormalize)


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
