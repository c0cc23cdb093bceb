# pyright: strict
"""vLLM's `_moe_C` (csrc/libtorch_stable/moe): expert selection, token sorting, sum of the experts' outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
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
    """Write the top-k experts of scores [T, E] to topk_weights and topk_indices [T, k]."""
    weights, ids = choose(scores, topk_weights.shape[-1], renormalize=renormalize, bias=bias)
    topk_weights.copy_(weights * scaling)
    topk_indices.copy_(ids)


@stands_for("_moe_C::topk_softmax")
def topk_softmax(c: Call) -> None:
    """Write the top-k experts of each token by softmax over E experts.

    Also writes token_expert_indices = slot · T + token.
    """
    scores = torch.softmax(c.gating_output.float(), dim=-1)
    write_choice(
        scores,
        c.topk_weights,
        c.topk_indices,
        renormalize=getattr(c, "renormalize", False),
        bias=getattr(c, "bias", None),
    )
    c.token_expert_indices.copy_(slot_major(c.gating_output.shape[0], c.topk_weights.shape[-1], c.gating_output.device))


@stands_for("_moe_C::topk_sigmoid")
def topk_sigmoid(c: Call) -> None:
    """Write the top-k experts of each token by sigmoid score over E experts.

    Also writes token_expert_indices = slot · T + token.
    """
    scores = torch.sigmoid(c.gating_output.float())
    write_choice(
        scores,
        c.topk_weights,
        c.topk_indices,
        renormalize=c.renormalize,
        bias=c.bias,
        scaling=getattr(c, "routed_scaling_factor", 1.0),
    )
    c.token_expert_indices.copy_(slot_major(c.gating_output.shape[0], c.topk_weights.shape[-1], c.gating_output.device))


def _fake_grouped(scores: Tensor, topk: int) -> tuple[Tensor, Tensor]:
    shape = (scores.shape[0], topk)
    return scores.new_empty(shape, dtype=torch.float32), scores.new_empty(shape, dtype=torch.int32)


@stands_for("_moe_C::grouped_topk", fake=_fake_grouped)
def grouped_topk_biased(c: Call) -> tuple[Tensor, Tensor]:
    """Return the result of DeepSeek-V3's router. scoring_func 0 uses the scores unchanged, 1 their sigmoid."""
    values = c.scores.float().sigmoid() if c.scoring_func == 1 else c.scores.float()
    weights, ids = grouped_topk(
        values,
        c.topk,
        groups=c.n_group,
        keep=c.topk_group,
        renormalize=c.renormalize,
        scaling=c.routed_scaling_factor,
        bias=c.bias.float(),
    )
    return weights, ids.to(torch.int32)


@stands_for("_moe_C::moe_align_block_size")
def moe_align_block_size(c: Call) -> None:
    """Sort the flat indices of topk_ids [T, k] by expert.

    Each expert is padded to a multiple of block_size with entries of T · k.
    """
    maybe_expert_map = getattr(c, "maybe_expert_map", None)
    ids = c.topk_ids if maybe_expert_map is None else maybe_expert_map[c.topk_ids.to(torch.int64)]
    # The buffers hold whole blocks for experts_ids, though the token buffer may end inside one.
    length = max(c.sorted_token_ids.numel(), c.experts_ids.numel() * c.block_size)
    order, owners, total = align(ids, c.num_experts, c.block_size, c.topk_ids.numel(), length)
    c.sorted_token_ids.copy_(order[: c.sorted_token_ids.numel()])
    c.experts_ids.copy_(owners[: c.experts_ids.numel()])
    c.num_tokens_post_pad.copy_(total)


@stands_for("_moe_C::batched_moe_align_block_size")
def batched_moe_align_block_size(c: Call) -> None:
    """List the rows of each expert.

    Each expert is padded to a multiple of block_size with entries of E · M, where M = max_tokens_per_batch. Expert e
    has expert_num_tokens[e] rows, the first of which is e · M.
    """
    experts = c.expert_num_tokens.shape[0]
    number = c.expert_num_tokens.to(torch.int64)
    row = torch.arange(c.max_tokens_per_batch, device=number.device)
    ids = torch.where(row < number.unsqueeze(1), torch.arange(experts, device=number.device).unsqueeze(1), -1)
    moe_align_block_size(with_changes(c, topk_ids=ids, num_experts=experts))


@stands_for("_moe_C::moe_sum")
def moe_sum(input: Tensor, output: Tensor, topk_ids: Tensor | None = None, expert_map: Tensor | None = None) -> None:
    """Write the sum over k of input [T, k, H] to output [T, H]. With an expert map, only local experts are summed."""
    if topk_ids is not None and expert_map is not None:
        local = expert_map[topk_ids.to(torch.int64)] >= 0
        input = input.masked_fill(~local.unsqueeze(-1), 0)
    output.copy_(input.sum(1))


@stands_for("_moe_C::moe_permute")
def moe_permute(c: Call) -> None:
    """Sort the rows of input [T, H] by local expert.

    Also writes the start of each expert and the permutation in both directions. permuted_idx[i] is the flat index t · k
    + slot of sorted row i, and inv_permuted_idx is its inverse. Rows of non-local experts come last and are not copied.
    """
    flat = c.topk_ids.flatten().to(torch.int64)
    local = flat if c.expert_map is None else c.expert_map[flat].to(torch.int64)
    bucket = torch.where((local >= 0) & (local < c.n_local_expert), local, torch.full_like(local, c.n_local_expert))
    order = torch.argsort(bucket, stable=True)
    edges = torch.searchsorted(bucket[order], torch.arange(c.n_local_expert + 1, device=flat.device))
    c.expert_first_token_offset.copy_(edges)
    c.permuted_idx.copy_(order.reshape(c.permuted_idx.shape))
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    c.inv_permuted_idx.copy_(inverse.reshape(c.inv_permuted_idx.shape))
    rows = min(order.numel(), c.permuted_input.shape[0])
    c.permuted_input[:rows] = c.input.index_select(0, order[:rows] // c.topk)


@stands_for("_moe_C::moe_unpermute")
def moe_unpermute(c: Call) -> None:
    """Write the sum over k of weight · permuted row to hidden_states [T, H]. Non-local experts add nothing."""
    place = c.inv_permuted_idx.reshape(-1, c.topk).to(torch.int64)
    weights = c.topk_weights.float()
    if c.expert_first_token_offset is not None:
        weights = weights.masked_fill(place >= c.expert_first_token_offset[-1], 0.0)
    last = c.permuted_hidden_states.shape[0] - 1
    rows = c.permuted_hidden_states[place.clamp(max=last)].float()
    c.hidden_states.copy_((rows * weights.unsqueeze(-1)).sum(1))


@stands_for("vllm::rocm_aiter_topk_softmax")
def rocm_aiter_topk_softmax(c: Call) -> None:
    """Write the top-k experts by softmax, but not token_expert_indices. Raises ValueError for shared experts."""
    if getattr(c, "num_shared_experts", 0):
        raise ValueError("topk_softmax with shared experts is not implemented")
    write_choice(torch.softmax(c.gating_output.float(), -1), c.topk_weights, c.topk_indices, renormalize=c.renormalize)


def _write_grouped(c: Call, scores: Tensor, bias: Tensor | None) -> None:
    scaling = getattr(c, "routed_scaling_factor", 1.0)
    groups, keep = c.num_expert_group, c.topk_group
    write_grouped(scores, c.topk_weights, c.topk_ids, groups, keep, c.need_renorm, scaling, bias)


@stands_for("vllm::rocm_aiter_grouped_topk")
def rocm_aiter_grouped_topk(c: Call) -> None:
    """Write the weights and ids of the experts that DeepSeek-V2's grouped top-k selects."""
    logits = c.gating_output.float()
    _write_grouped(
        c, logits.sigmoid() if getattr(c, "scoring_func", "softmax") == "sigmoid" else logits.softmax(-1), None
    )


@stands_for("vllm::rocm_aiter_biased_grouped_topk")
def rocm_aiter_biased_grouped_topk(c: Call) -> None:
    """Write DeepSeek-V3's grouped top-k, with sigmoid scores and a bias that affects only the selection."""
    _write_grouped(c, c.gating_output.float().sigmoid(), c.correction_bias.float())


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
    """Write DeepSeek's grouped top-k to topk_weights and topk_ids [T, k]."""
    weights, ids = grouped_topk(
        scores, topk_ids.shape[-1], groups=groups, keep=keep, renormalize=renormalize, scaling=scaling, bias=bias
    )
    topk_weights.copy_(weights)
    topk_ids.copy_(ids)
