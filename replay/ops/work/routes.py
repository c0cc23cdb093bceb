# pyright: strict
"""Reading of the routing from MoE ops' arguments.

The routing is the expert of each slot (a token's k-th choice). This module counts nothing.
"""

from __future__ import annotations

import math
from typing import cast

import msgspec
import torch

from opreplay.initializers.base import InitContext, extent
from opreplay.initializers.fill import integer_values
from opreplay.initializers.rules import moe_routing as names

TOP_K = ("topk", "top_k", "k", "num_experts_per_tok")
TOKEN_MASK = (1 << names.TOKEN_BITS) - 1


class Routes(msgspec.Struct, frozen=True):
    """Routed slots (each is a token's choice of an expert) of a call, on the CPU."""

    expert: torch.Tensor
    """Expert of each routed slot, int64 [slots]."""
    token: torch.Tensor
    """Token of each routed slot, int64 [slots]."""
    experts: int
    tokens: int
    slots: int
    """Number of slots according to the shapes, routed or not."""
    twice: int = 0
    """Number of tokens that list an expert more than once."""
    routed: int = 0
    """Number of distinct routed slots."""
    padding: int = 0
    """Number of used entries of sorted lists that are padding."""
    used: int = 0
    """Number of used entries of sorted lists."""
    warnings: tuple[str, ...] = ()


def routes_of(context: InitContext) -> Routes | None:
    """Return the routing in a call's arguments, or None for an op without routing arguments."""
    if context.role == "router":
        return _by_scores(context)
    if context.role in ("chosen", "numbered_from_one", "summed"):
        return _chosen(context)
    return _sorted(context) if context.role in ("sorted", "stage") else None


def loads_of(context: InitContext) -> torch.Tensor | None:
    """Return the number of rows that each expert processes, int64 [experts], or None if no argument gives it."""
    if (sizes := group_sizes(context)) is not None:
        return sizes.clamp(min=0)
    routes = routes_of(context)
    return None if routes is None else torch.bincount(routes.expert, minlength=routes.experts)


def group_sizes(context: InitContext) -> torch.Tensor | None:
    """Return the sizes of the experts' groups, int64 [experts], or None for other ops.

    A size is negative if the ends of the groups decrease.
    """
    groups = (
        context.first(("group_list", "offs", "expert_num_tokens"), elements=True) if context.role == "groups" else None
    )
    if groups is None:
        return None
    values = integer_values(groups)
    if groups.dim() == 2:
        return values.view(groups.shape)[:, -1]
    if context.tensor("expert_num_tokens") is not None or names.number(context, "group_list_type") == 1:
        return values
    return values.diff(prepend=values.new_zeros(1))


def _by_scores(context: InitContext) -> Routes | None:
    """Return the top-k routing by scores. Tokens with equal scores for all experts do not count as routed."""
    scores = context.first(names.SCORES, elements=True)
    if scores is None or not scores.dim():
        return None
    experts = scores.shape[-1]
    rows = scores.detach().reshape(-1, experts).to("cpu", torch.float32)
    weights = context.first(names.CHOSEN_WEIGHTS, elements=True)
    said = names.number(context, *TOP_K) or (weights.shape[-1] if weights is not None and weights.dim() == 2 else None)
    topk = min(said or 1, experts)
    decided = rows.amax(-1) > rows.amin(-1)
    token = torch.arange(len(rows))[decided].repeat_interleave(topk)
    best = rows[decided].topk(topk, dim=-1).indices
    return Routes(best.reshape(-1), token, experts, len(rows), len(rows) * topk)


def _chosen(context: InitContext) -> Routes | None:
    """Return the routing from ids [tokens, topk]; an id out of range is a non-local expert."""
    ids = context.first(names.CHOSEN, elements=True)
    if ids is None:
        return None
    experts = names.expert_count(context)
    tokens, topk = (ids.shape[0], math.prod(ids.shape[1:])) if ids.dim() > 1 else (ids.numel(), 1)
    values = integer_values(ids).view(tokens, topk)
    there = (values >= 0) & (values < experts)
    ordered = values.sort(-1).values
    twice = int(((ordered.diff(dim=-1) == 0) & (ordered[:, 1:] >= 0)).any(-1).sum())
    weights = context.first(names.CHOSEN_WEIGHTS, elements=True)
    if weights is not None and weights.shape == ids.shape:
        # A slot of weight zero adds nothing to the result.
        there &= weights.detach().reshape(tokens, topk).to("cpu") != 0
    token = torch.arange(tokens).unsqueeze(1).expand(tokens, topk)[there]
    return Routes(
        values[there],
        token,
        experts,
        tokens,
        tokens * topk,
        twice=twice,
        routed=len(token),
        warnings=(f"{twice:,} tokens go to the same expert twice",) if twice else (),
    )


def _distinct(ids: torch.Tensor) -> int:
    unique_ids = cast("torch.Tensor", torch.unique(ids))  # pyright: ignore[reportUnknownMemberType]
    return unique_ids.numel()


def _sorted(context: InitContext) -> Routes | None:
    """Return the routing from a list that is sorted by expert.

    The list is divided into blocks of one expert each. In aiter, an entry of the list packs slot and token. In vLLM, an
    entry is the number token · topk + slot.
    """
    order = context.tensor("sorted_token_ids")
    owners = context.first(("sorted_expert_ids", "expert_ids", "experts_ids"), elements=True)
    valid = context.first(("num_valid_ids", "num_tokens_post_pad", "num_tokens_past_padded"), elements=True)
    if order is None or owners is None or valid is None:
        return None
    packed = context.role == "stage"
    tokens, topk = _tokens(context)
    block = names.number(context, "block_m", "block_size_m", "moe_block_size", "BLOCK_SIZE_M")
    block = block or max(1, -(-order.numel() // owners.numel()))
    entries = integer_values(order)
    used = min(max(0, int(integer_values(valid)[0])), len(entries), owners.numel() * block)
    owner = integer_values(owners).repeat_interleave(block)[:used]
    token, slot = (entries & TOKEN_MASK, entries >> names.TOKEN_BITS) if packed else (entries // topk, entries % topk)
    filler = topk << names.TOKEN_BITS | tokens if packed else tokens * topk
    real = (token[:used] < tokens) & (slot[:used] < topk) & (entries[:used] >= 0)
    experts = names.expert_count(context)
    done = real & (owner >= 0) & (owner < experts)
    pair = token[:used][done] * experts + owner[done]
    twice = len(pair) - _distinct(pair)
    warnings: list[str] = []
    if twice:
        warnings.append(f"{twice:,} routed slots send a token to an expert that it already has")
    if odd := int((entries[:used][~real] != filler).sum()) + int((entries[used:] != filler).sum()):
        warnings.append(f"{odd:,} padding entries are not {filler}")
    if used % block:
        warnings.append(f"{used:,} valid entries are not a multiple of the block size {block}")
    return Routes(
        owner[done],
        token[:used][done],
        experts,
        tokens,
        tokens * topk,
        twice=twice,
        routed=_distinct((token[:used] * topk + slot[:used])[done]),
        padding=used - int(real.sum()),
        used=used,
        warnings=tuple(warnings),
    )


def _tokens(context: InitContext) -> tuple[int, int]:
    """Return (number of tokens, experts per token) from the shapes."""
    weights = context.first(("topk_weights",), elements=True)
    if weights is not None and weights.dim() == 2:
        return weights.shape[0], weights.shape[1]
    hidden = context.tensor("hidden_states")
    hidden = hidden if hidden is not None else context.first(names.HIDDEN, elements=True)
    return (extent(hidden) if hidden is not None else 0), names.number(context, *TOP_K) or 1
