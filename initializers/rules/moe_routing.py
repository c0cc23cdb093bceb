"""Initializer for mixture-of-experts ops: router scores, chosen experts, sorted tokens and sizes of expert groups.

`expert_choice` draws and sorts experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import (
    CustomInit,
    InitContext,
    InitializerError,
    InitReport,
    Option,
    OptionValue,
    extent,
)
from opreplay.initializers.draws import expert_choice
from opreplay.initializers.draws.distributions import check_histogram, read_histogram
from opreplay.traces.names import plural

MAX_EXPERTS = 1 << 16
"""Maximum number of experts; a trace may state any number, but models have a few hundred."""
MAX_NUMBER = 1 << 31
"""Largest number of tokens, slots or rows accepted from an argument."""
DISTINCT_SCORES = 1 << 18
"""Maximum number of random router scores. If more are needed, these are repeated."""
TOKEN_BITS = 24
"""Number of bits of the token in aiter's packed entries: slot << 24 | token, or topk << 24 | tokens for padding."""
SCORES = ("gating_output", "router_logits", "scores", "logits", "input", "x")
CHOSEN = ("topk_ids", "topk_indices", "expert_idx", "indices", "export_for_source_row", "expert_for_source_row")
CHOSEN_WEIGHTS = ("topk_weights", "topk_weight", "probs", "scales")
FIRST_WEIGHTS = ("w1", "b_qweight", "b_q_weight", "gate", "weight", "B", "mat_b", "w2")
HIDDEN = ("hidden_states", "x", "input", "tokens", "a", "inter_states", "A", "self", "mat_a", "permuted_hidden_states")


class MoeRoutingInit(CustomInit):
    """Routes every token to distinct experts, drawn from the chosen distribution, in the layout that the op expects.

    Roles of ops: `router` chooses experts from scores. `chosen` gets the experts of each token. `sorted` and `stage`
    get tokens sorted by expert; for `stage`, one number holds slot and token. `groups` gets the number of rows per
    expert. `returned` moves rows from the order of the experts back to the order of the tokens.
    """

    name = "moe_routing"
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            name="distribution",
            type=str,
            default="uniform",
            choices=expert_choice.DISTRIBUTIONS,
            help="Distribution of tokens over the experts.",
        ),
        Option(name="exponent", type=float, default=1.0, low=0.0, help="Exponent of Zipf's law; 0 is uniform."),
        Option(name="histogram", type=str, default="", help="JSON file with one count per expert."),
        Option(
            name="experts",
            type=int,
            default=0,
            low=0,
            help="Number of experts, for a layer whose weights are not arguments.",
        ),
        Option(name="intermediate", type=int, default=0, low=0, help="Width of these experts on this rank."),
        Option(name="top_k", type=int, default=0, low=0, help="Experts per token of such a layer."),
        Option(
            name="dtype",
            type=str,
            default="",
            choices=("", "bfloat16", "float16", "float8", "int8", "float4", "int4"),
            help="Bits of that layer's weights.",
        ),
    )

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        check_histogram(options, read_histogram)

    def initialize(self, context: InitContext) -> InitReport:
        generator = torch.Generator().manual_seed(context.seed)
        if context.role == "router":
            return _scores(context, generator)
        if context.role in ("sorted", "stage"):
            return _sorted(context, generator)
        if context.role == "groups":
            return _groups(context, generator)
        if context.role == "returned":
            return _return(context, generator)
        return _chosen(context, generator)


def _chance(context: InitContext, experts: int) -> torch.Tensor:
    if experts > MAX_EXPERTS:
        raise InitializerError(f"{context.op}: {experts} experts exceed the limit of {MAX_EXPERTS}")
    options = context.options
    return expert_choice.probabilities(
        experts,
        str(options.get("distribution", "uniform")),
        float(options.get("exponent") or 0.0),
        str(options.get("histogram") or ""),
    )


def _how(context: InitContext) -> str:
    return f"{context.options.get('distribution', 'uniform')} over the experts"


def number(context: InitContext, *names: str) -> int | None:
    """Return the first argument among these names that is an int from 1 to `MAX_NUMBER`, or None."""
    values = (context.args.get(name) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 < v <= MAX_NUMBER), None)


def expert_count(context: InitContext) -> int:
    """Return the number of experts from an argument, or from the shape of a map, mask or weight."""
    said = number(context, "global_num_experts", "num_experts", "expert_num", "num_expert", "n_expert")
    if said is not None:
        # SGLang passes one more: number 0 of its sorted experts stands for those that are elsewhere.
        return max(1, said - 1) if context.role == "numbered_from_one" else said
    for name in ("expert_map", "local_expert_mask", "expert_mask"):
        if (mapped := context.tensor(name)) is not None and mapped.numel():
            return mapped.numel()
    if (count := _count_of_weights(context)) is not None:
        return count
    chosen = context.first(CHOSEN, elements=True)
    return max(8, 2 * chosen.shape[-1]) if chosen is not None and chosen.dim() == 2 else 8


def _count_of_weights(context: InitContext) -> int | None:
    """Return the number of experts whose weights are arguments, in one tensor or a list; None without weights."""
    weights = context.first(FIRST_WEIGHTS, elements=True)
    if weights is not None and weights.dim() >= 3:
        return weights.shape[0]
    listed = context.args.get("weight")
    if not isinstance(listed, (list, tuple)) or not listed:
        return None
    several = cast("Sequence[object]", listed)
    whole = several[0] if len(several) == 1 else None
    return whole.shape[0] if isinstance(whole, torch.Tensor) and whole.dim() == 3 else len(several)


def _scores(context: InitContext, generator: torch.Generator) -> InitReport:
    """Fill router scores with log probability plus Gumbel noise. Top-k then draws experts without replacement."""
    scores = context.first(SCORES, elements=True)
    if scores is None or not scores.dim():
        raise InitializerError(f"{context.op} has no router scores among its arguments")
    experts = scores.shape[-1]
    rows = max(1, scores.numel() // experts)
    distinct = min(rows, max(1, DISTINCT_SCORES // experts))
    noise = torch.rand((distinct, experts), generator=generator, dtype=torch.float32).clamp_(1e-7, 1 - 1e-7)
    block = _chance(context, experts).float().clamp(min=1e-30).log() - (-noise.log()).log()
    if scores.is_contiguous():
        fill.assign_rows(scores.view(rows, experts), block.to(scores.dtype).to(scores.device))
    else:
        repeated = block.repeat(-(-rows // distinct), 1)[:rows]
        fill.assign(scores, repeated.reshape(scores.shape))
    bias = context.first(("bias", "correction_bias", "e_score_correction_bias"), elements=True)
    if bias is not None and bias.dtype.is_floating_point:
        fill.uniform(bias, context.generator, 0.0, math.nextafter(0.0, 1.0))
    return InitReport(summary=f"{rows} tokens over {experts} experts", assumed={"scores": _how(context)})


def _local(context: InitContext, experts: int) -> None:
    """Fill the maps from global to local expert numbers; the first experts are local."""
    weights = context.first(("w1",), elements=True)
    local = min(experts, weights.shape[0]) if weights is not None and weights.dim() == 3 else experts
    for name in ("expert_map", "maybe_expert_map"):
        if (mapped := context.tensor(name)) is not None and mapped.numel():
            numbers = torch.arange(mapped.numel())
            local_here = number(context, "n_local_expert") or local
            fill.assign(mapped, torch.where(numbers < local_here, numbers, -1))
    for name in ("expert_mask", "local_expert_mask"):
        if (mask := context.tensor(name)) is not None and mask.numel():
            fill.assign(mask, (torch.arange(mask.numel()) < local))


def _chosen(context: InitContext, generator: torch.Generator) -> InitReport:
    """Fill the expert numbers chosen for each token, and their weights; both are [tokens, topk]."""
    ids = context.first(CHOSEN, elements=True)
    if ids is None:
        if context.role == "summed" or any(context.tensor(name) is not None for name in CHOSEN):
            return InitReport(summary="no experts among its arguments")
        raise InitializerError(f"{context.op} has no chosen experts among its arguments")
    experts = expert_count(context)
    tokens, topk = (ids.shape[0], math.prod(ids.shape[1:])) if ids.dim() > 1 else (ids.numel(), 1)
    _local(context, experts)
    drawn = expert_choice.choose_experts(tokens, topk, _chance(context, experts), generator)
    fill.assign(ids, drawn.reshape(ids.shape))
    weights = context.first(CHOSEN_WEIGHTS, elements=True)
    if weights is not None and weights.shape == ids.shape:
        fill.assign(weights, expert_choice.routing_weights(tokens, topk, generator))
    rows = context.tensor("row_idx")
    if rows is not None and rows.numel() == drawn.numel():
        fill.assign(rows, torch.arange(drawn.numel()).reshape(topk, tokens).t().reshape(rows.shape))
    if (valid := context.tensor("num_local_tokens")) is not None:
        fill.assign(valid, torch.tensor(tokens, device=valid.device))
    used = int((torch.bincount(drawn.flatten(), minlength=experts) > 0).sum())
    return InitReport(
        summary=f"{tokens} tokens routed to {topk} of {used} experts", assumed={"topk_ids": _how(context)}
    )


def _sorted(context: InitContext, generator: torch.Generator) -> InitReport:
    """Fill tokens sorted by expert, in aiter's format (slot << 24 | token) or in vLLM's (token · topk + slot)."""
    order = context.need("sorted_token_ids")
    owners = context.first(("sorted_expert_ids", "expert_ids", "experts_ids"), elements=True)
    valid = context.first(("num_valid_ids", "num_tokens_post_pad", "num_tokens_past_padded"), elements=True)
    if owners is None or valid is None:
        raise InitializerError(
            f"{context.op} has no expert ids of the blocks, or no count of valid ids, among its arguments"
        )
    weights = context.first(("topk_weights",), elements=True)
    tokens, topk = _sorted_tokens(context, weights)
    experts = expert_count(context)
    # One expert id stands for each block, so the two lengths tell the block where no argument does.
    block = number(context, "block_m", "block_size_m", "moe_block_size", "BLOCK_SIZE_M")
    block = block or max(1, -(-order.numel() // owners.numel()))
    ids = expert_choice.choose_experts(tokens, topk, _chance(context, experts), generator)
    filler = tokens * topk
    slots = expert_choice.sort_by_expert(ids, experts, block, order.numel(), owners.numel(), filler)
    positions = slots.positions
    fill.assign(order, _packed(positions, topk, tokens) if context.role == "stage" else positions)
    fill.assign(owners, slots.owners)
    counts = torch.full((valid.numel(),), tokens, dtype=torch.int64)
    counts[0] = slots.valid
    fill.assign(valid, counts.reshape(valid.shape))
    share = expert_choice.routing_weights(tokens, topk, generator)
    if (shares := context.tensor("sorted_weights")) is not None and shares.numel() == len(positions):
        flat = torch.cat((share.flatten(), share.new_zeros(1)))
        fill.assign(shares, flat.index_select(0, positions).reshape(shares.shape))
    if weights is not None:
        fill.assign(weights, share.flatten())
    assumed = {"sorted_token_ids": _how(context)}
    if slots.dropped:
        assumed["capacity"] = f"{slots.dropped} of {filler} routed slots exceed the capacity and are dropped"
    return InitReport(
        summary=f"{tokens} tokens routed to {topk} of {experts} experts, blocks of {block}", assumed=assumed
    )


def _sorted_tokens(context: InitContext, weights: torch.Tensor | None) -> tuple[int, int]:
    """Return (number of tokens, experts per token), from routing weights or from the rows of the layer's input."""
    if weights is not None and weights.dim() == 2:
        return weights.shape[0], weights.shape[1]
    hidden = context.tensor("hidden_states")
    hidden = context.first(HIDDEN, elements=True) if hidden is None else hidden
    return extent(hidden) if hidden is not None else 0, number(context, "topk", "top_k") or 1


def _packed(positions: torch.Tensor, topk: int, tokens: int) -> torch.Tensor:
    """Convert positions token · topk + slot to slot << 24 | token, and padding tokens · topk to topk << 24 | tokens."""
    # Dividing each position would take several times as long as looking it up.
    slots = torch.arange(topk, dtype=torch.int32) << TOKEN_BITS
    table = torch.arange(tokens, dtype=torch.int32).unsqueeze(1) | slots
    filler = torch.tensor([topk << TOKEN_BITS | tokens], dtype=torch.int32)
    return torch.cat((table.flatten(), filler)).index_select(0, positions)


def rows_of_groups(context: InitContext) -> int | None:
    """Return the number of rows that are split into groups; None if the call has no tensor to split.

    For a list of tensors, it is the number of rows of the first one.
    """
    listed = context.args.get("x")
    several = cast("Sequence[object]", listed) if isinstance(listed, (list, tuple)) else ()
    hidden = several[0] if several else context.first(HIDDEN, elements=True)
    return extent(hidden) if isinstance(hidden, torch.Tensor) else None


def _groups(context: InitContext, generator: torch.Generator) -> InitReport:
    """Fill the number of rows per expert: as counts, cumulative ends, or sorted expert numbers."""
    if (numbers := context.tensor("sorted_expert_for_source_row")) is not None:
        experts = expert_count(context)
        drawn = torch.multinomial(_chance(context, experts), max(1, numbers.numel()), True, generator=generator)
        fill.assign(numbers, drawn[: numbers.numel()].sort().values.reshape(numbers.shape))
        return InitReport(summary=f"{numbers.numel()} rows of {experts} experts", assumed={"experts": _how(context)})
    groups = context.first(("group_list", "offs", "expert_num_tokens"), elements=True)
    if groups is None:
        return InitReport(summary="no groups among its arguments")
    experts = extent(groups)
    limit = number(context, "max_tokens_per_batch")
    rows = limit * experts // 2 if limit else rows_of_groups(context) or 0
    counts = torch.bincount(
        torch.multinomial(_chance(context, experts), max(1, rows), True, generator=generator)[:rows], minlength=experts
    )
    assumed = {"groups": _how(context)}
    if limit and (over := int((counts - limit).clamp(min=0).sum())):
        counts = counts.clamp(max=limit)
        assumed["capacity"] = f"{over} of {rows} rows exceed the capacity and are dropped"
    if groups.dim() == 2:
        drawn = torch.stack((torch.arange(experts), counts), 1)
    elif context.tensor("expert_num_tokens") is not None or number(context, "group_list_type") == 1:
        drawn = counts
    else:
        drawn = counts.cumsum(0)
    fill.assign(groups, drawn)
    return InitReport(summary=f"{plural(rows, 'row')} in {plural(experts, 'group')}", assumed=assumed)


def _return(context: InitContext, generator: torch.Generator) -> InitReport:
    """Fill the permutation that restores the order of rows, and the weights with which rows are added up."""
    for name in ("inv_permuted_idx", "sorted_indices", "expanded_src_to_dst_row"):
        if (order := context.tensor(name)) is not None:
            values = torch.randperm(order.numel(), generator=generator)
            fill.assign(order, values.reshape(order.shape))
    weights = context.first(CHOSEN_WEIGHTS, elements=True)
    if weights is not None and weights.dim() == 2:
        tokens, topk = weights.shape
        fill.assign(weights, expert_choice.routing_weights(tokens, topk, generator))
    if (starts := context.tensor("expert_first_token_offset")) is not None and starts.numel():
        rows = context.need("permuted_hidden_states", 1).shape[0]
        edges = torch.arange(starts.numel()) * rows // max(1, starts.numel() - 1)
        fill.assign(starts, edges)
    if (chosen := context.tensor("export_for_source_row")) is not None and chosen.dim() == 2:
        bias = context.tensor("bias")
        experts = bias.shape[0] if bias is not None else max(8, 2 * chosen.shape[1])
        drawn = expert_choice.choose_experts(chosen.shape[0], chosen.shape[1], _chance(context, experts), generator)
        fill.assign(chosen, drawn)
    return InitReport(summary="rows restored in random order", assumed={"rows": "in random order"})


INITIALIZERS = (MoeRoutingInit,)
