"""Work of mixture-of-experts ops: tokens and experts that the values route, what is dropped, padding and packing."""

from __future__ import annotations

import math

import torch

from opreplay.initializers import moe_routing as names
from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.replay.work.amounts import Amount, Work, work
from opreplay.replay.work.registry import counts

TOP_K = ("topk", "top_k", "k", "num_experts_per_tok", "topk_softmax_k")
TOKEN_MASK = (1 << names.TOKEN_BITS) - 1


def _find(context: InitContext, wanted: tuple[str, ...]) -> torch.Tensor | None:
    return next((t for name in wanted if (t := context.tensor(name)) is not None and t.numel()), None)


def _number(context: InitContext, wanted: tuple[str, ...]) -> int | None:
    found = (context.args.get(name) for name in wanted)
    return next((v for v in found if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def _used(experts: torch.Tensor, count: int) -> Amount:
    return Amount(what="experts", done=int(torch.unique(experts).numel()), most=count)


@counts(*names.ROUTERS)
def count_scores(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Tokens whose scores decide which experts they go to: no tie between the last one chosen and the next."""
    scores = _find(context, names.SCORES)
    if scores is None or not scores.dim():
        return None
    experts = scores.shape[-1]
    rows = scores.detach().reshape(-1, experts).to("cpu", torch.float32)
    weights = _find(context, names.CHOSEN_WEIGHTS)
    said = _number(context, TOP_K) or (weights.shape[-1] if weights is not None and weights.dim() == 2 else None)
    topk = min(said or 1, experts)
    best = rows.topk(min(topk + 1, experts), dim=-1)
    decided = best.values[:, topk - 1] > best.values[:, topk] if topk < experts else torch.ones(len(rows)).bool()
    chosen = best.indices[decided, :topk]
    return work(
        Amount(what="tokens routed", done=int(decided.sum()), most=len(rows)),
        _used(chosen, experts),
    )  # fmt: skip


@counts(*names.EXPERT_OPS)
def count_chosen(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Tokens that go to as many different experts as they have slots."""
    ids = _find(context, names.CHOSEN)
    if ids is None:
        return None
    experts = names.expert_count(context)
    tokens, topk = (ids.shape[0], math.prod(ids.shape[1:])) if ids.dim() > 1 else (ids.numel(), 1)
    values = ids.detach().reshape(tokens, topk).to("cpu", torch.int64)
    there = (values >= 0) & (values < experts)
    ordered = values.sort(-1).values
    twice = ((ordered.diff(dim=-1) == 0) & (ordered[:, 1:] >= 0)).any(-1)
    weights = _find(context, names.CHOSEN_WEIGHTS)
    if weights is not None and weights.shape == ids.shape:
        # A slot of weight zero adds nothing to the result.
        there &= weights.detach().reshape(tokens, topk).to("cpu") != 0
    return work(
        Amount(what="routed slots", done=int(there.sum()), most=tokens * topk),
        Amount(what="tokens", done=int(there.any(-1).sum()), most=tokens),
        _used(values[there], experts),
        Amount(what="tokens with an expert twice", done=int(twice.sum()), most=tokens),
        warnings=(f"{int(twice.sum()):,} tokens go to an expert twice",) if bool(twice.any()) else (),
    )  # fmt: skip


@counts(*names.SORTED_OPS)
def count_sorted(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Slots in the sorted lists that an expert's block really computes, and whether the lists keep the convention."""
    order = context.tensor("sorted_token_ids")
    owners = _find(context, ("sorted_expert_ids", "expert_ids", "experts_ids"))
    valid = _find(context, ("num_valid_ids", "num_tokens_post_pad", "num_tokens_past_padded"))
    if order is None or owners is None or valid is None:
        return None
    packed = context.op in names.STAGES
    tokens, topk = _tokens(context)
    block = _number(context, ("block_m", "block_size_m", "moe_block_size", "BLOCK_SIZE_M"))
    block = block or max(1, -(-order.numel() // owners.numel()))
    entries = order.detach().reshape(-1).to("cpu", torch.int64)
    used = min(max(0, int(valid.detach().reshape(-1)[0])), len(entries), owners.numel() * block)
    owner = owners.detach().reshape(-1).to("cpu", torch.int64).repeat_interleave(block)[:used]
    token, slot = (entries & TOKEN_MASK, entries >> names.TOKEN_BITS) if packed else (entries // topk, entries % topk)
    filler = topk << names.TOKEN_BITS | tokens if packed else tokens * topk
    real = (token[:used] < tokens) & (slot[:used] < topk) & (entries[:used] >= 0)
    experts = names.expert_count(context)
    done = real & (owner >= 0) & (owner < experts)
    pair = token[:used][done] * experts + owner[done]
    routed = int(torch.unique((token[:used] * topk + slot[:used])[done]).numel())
    twice = len(pair) - int(torch.unique(pair).numel())
    warnings = []
    if twice:
        warnings.append(f"{twice:,} routed slots go to an expert that their token has already")
    if odd := int((entries[:used][~real] != filler).sum()) + int((entries[used:] != filler).sum()):
        warnings.append(f"{odd:,} entries of the padding are not {filler}")
    if used % block:
        warnings.append(f"{used:,} valid entries are not whole blocks of {block}")
    return work(
        Amount(what="routed slots", done=routed, most=tokens * topk),
        Amount(what="tokens", done=int(torch.unique(token[:used][done]).numel()), most=tokens),
        _used(owner[done], experts),
        Amount(what="dropped slots", done=tokens * topk - routed, most=tokens * topk),
        Amount(what="padding entries", done=used - int(real.sum()), most=used),
        warnings=tuple(warnings),
    )  # fmt: skip


def _tokens(context: InitContext) -> tuple[int, int]:
    """Tokens and experts of each, by the shapes."""
    weights = _find(context, ("topk_weights",))
    if weights is not None and weights.dim() == 2:
        return weights.shape[0], weights.shape[1]
    hidden = context.tensor("hidden_states")
    hidden = hidden if hidden is not None else _find(context, names.HIDDEN)
    return (hidden.shape[0] if hidden is not None else 0), _number(context, TOP_K) or 1


@counts(*names.GROUP_OPS)
def count_groups(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Rows that belong to some expert's group, of all rows."""
    numbers = context.tensor("sorted_expert_for_source_row")
    if numbers is not None:
        values = numbers.detach().reshape(-1).to("cpu", torch.int64)
        warnings = ("the rows are not sorted by expert",) if bool((values.diff() < 0).any()) else ()
        return work(_used(values, names.expert_count(context)), warnings=warnings, same=True)
    groups = _find(context, ("group_list", "offs", "expert_num_tokens"))
    if groups is None:
        return None
    values = groups.detach().to("cpu", torch.int64)
    if values.dim() == 2:
        sizes = values[:, 1]
    elif context.tensor("expert_num_tokens") is not None or context.args.get("group_list_type") == 1:
        sizes = values
    else:
        sizes = values.diff(prepend=values.new_zeros(1))
    listed = context.args.get("x")
    hidden = listed[0] if isinstance(listed, (list, tuple)) and listed else _find(context, names.HIDDEN)
    most = _number(context, ("max_tokens_per_batch",))
    room = most * len(sizes) if most else hidden.shape[0] if hidden is not None else None
    rows = int(sizes.clamp(min=0).sum())
    warnings = ["ends of the groups descend"] if bool((sizes < 0).any()) else []
    if room is not None and rows > room:
        warnings.append(f"the groups hold {rows:,} rows of {room:,}")
    return work(
        Amount(what="rows", done=rows, most=room), Amount(what="experts", done=int((sizes > 0).sum()), most=len(sizes)),
        warnings=tuple(warnings),
    )  # fmt: skip


@counts(*names.RETURN_OPS)
def count_returned(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Distinct rows that are brought back."""
    order = _find(context, ("inv_permuted_idx", "sorted_indices", "expanded_src_to_dst_row"))
    if order is None:
        return None
    distinct = int(torch.unique(order.detach()).numel())
    return work(Amount(what="rows brought back", done=distinct, most=order.numel()), same=True)
