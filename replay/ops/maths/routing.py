"""Mathematics of MoE routing: selecting experts, sorting tokens by expert; no ops are declared here.

All functions are vectorised over tokens. Their output shapes are fixed, so they never wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose(scores: Tensor, topk: int, *, renormalize: bool, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Select the topk experts of each token from scores [T, E].

    Returns (weights float32 [T, k], ids int64 [T, k]). `bias` [E] affects only the selection. `renormalize` scales each
    token's weights to a sum of one.
    """
    if bias is None:
        weights, ids = scores.topk(topk, dim=-1)
    else:
        ids = (scores + bias).topk(topk, dim=-1).indices
        weights = scores.gather(-1, ids)
    return _renormalized(weights) if renormalize else weights, ids


def _renormalized(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-20)


def mask_groups(choice: Tensor, groups: int, keep: int, *, best_of: int) -> Tensor:
    """Return choice [T, E] with −inf outside the `keep` best groups.

    A group's score is the sum of its `best_of` highest scores.
    """
    if groups <= 1 or keep >= groups:
        return choice
    grouped = choice.unflatten(-1, (groups, -1))
    score = grouped.topk(min(best_of, grouped.shape[-1]), dim=-1).values.sum(-1)
    chosen = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, score.topk(keep, dim=-1).indices, True)
    return grouped.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(-2)


def grouped_topk(
    scores: Tensor,
    topk: int,
    *,
    groups: int,
    keep: int,
    renormalize: bool,
    scaling: float = 1.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Select experts only from the best groups of experts (DeepSeek's grouped top-k).

    A group's score is its highest score or, with a bias, the sum of its two highest. scores [T, E] are probabilities or
    sigmoids. Returns (weights float32 [T, k], multiplied by `scaling`; ids int64 [T, k]).
    """
    choice = scores if bias is None else scores + bias
    ids = mask_groups(choice, groups, keep, best_of=1 if bias is None else 2).topk(topk, dim=-1).indices
    weights = scores.gather(-1, ids)
    return (_renormalized(weights) if renormalize else weights).float() * scaling, ids


def counts(ids: Tensor, experts: int) -> Tensor:
    """Return how often experts 0 .. experts − 1 occur in ids, int64 [experts]. Other ids are ignored."""
    flat = ids.flatten().to(torch.int64)
    known = (flat >= 0) & (flat < experts)
    return torch.zeros(experts, dtype=torch.int64, device=ids.device).scatter_add_(
        0, flat.clamp(0, max(experts - 1, 0)), known.to(torch.int64)
    )


def align(ids: Tensor, experts: int, block: int, filler: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the flat positions of ids by expert and pad every expert to a multiple of `block`.

    Returns the sorted positions int64 [length], the expert of each block int64 [ceil(length / block)], and the padded
    total int64 [1]. Padding entries of the positions are `filler`. Blocks after the last used one have expert −1. Ids
    outside 0 .. experts − 1 and positions beyond `length` are dropped.
    """
    flat = ids.flatten().to(torch.int64)
    number = counts(ids, experts)
    padded = (number + block - 1) // block * block
    end = padded.cumsum(0)
    known = (flat >= 0) & (flat < experts)
    # A bucket of its own behind the experts takes those that are mapped away.
    bucket = torch.where(known, flat, torch.full_like(flat, experts))
    order = torch.argsort(bucket, stable=True)
    in_order = bucket[order]
    first = torch.cat((number.cumsum(0) - number, number.sum().reshape(1)))
    start = torch.cat((end - padded, end.new_full((1,), length)))
    place = start[in_order] + torch.arange(flat.numel(), device=ids.device) - first[in_order]
    # One place behind the buffer takes what does not go into it.
    buffer = torch.full((length + 1,), filler, dtype=torch.int64, device=ids.device)
    buffer[place.clamp(max=length)] = torch.where(in_order < experts, order, torch.full_like(order, filler))
    blocks = torch.arange(0, length, block, device=ids.device)
    owner = torch.searchsorted(end, blocks, right=True)
    owner = torch.where(owner < experts, owner, torch.full_like(owner, -1))
    return buffer[:length], owner, end[-1:].clone() if experts else end.new_zeros(1)


def slot_major(tokens: int, topk: int, device: torch.device) -> Tensor:
    """Return int32 [T, k] with slot · T + token, the numbering of vLLM's token_expert_indices and torch_npu's
    row_idx.
    """
    return torch.arange(tokens * topk, dtype=torch.int32, device=device).reshape(topk, tokens).t().contiguous()
