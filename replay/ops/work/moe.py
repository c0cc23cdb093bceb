"""Work of mixture-of-experts ops: routed tokens and experts, dropped slots, padding and packing."""

from __future__ import annotations

import torch

from opreplay.initializers import fill
from opreplay.initializers.amounts import Amount, Work, work
from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.initializers.rules import moe_routing as names
from opreplay.replay.ops.work.routes import Routes, group_sizes, routes_of


def _used(experts: torch.Tensor, count: int) -> Amount:
    return Amount(what="experts", done=int(torch.unique(experts).numel()), most=count)


def _tokens(routes: Routes, what: str) -> Amount:
    return Amount(what=what, done=int(torch.unique(routes.token).numel()), most=routes.tokens)


def _routed(routes: Routes) -> tuple[Amount, Amount, Amount]:
    slots = Amount(what="routed slots", done=routes.routed, most=routes.slots)
    return slots, _tokens(routes, "tokens"), _used(routes.expert, routes.experts)


def count_scores(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the tokens that the scores route to experts, and the experts that these tokens use."""
    routes = routes_of(context)
    return None if routes is None else work(_tokens(routes, "tokens routed"), _used(routes.expert, routes.experts))


def count_chosen(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the slots (a token's choices of an expert) whose expert is local and affects the result."""
    routes = routes_of(context)
    if routes is None:
        return None
    twice = Amount(what="tokens that chose an expert twice", done=routes.twice, most=routes.tokens)
    return work(*_routed(routes), twice, warnings=routes.warnings)


def count_sorted(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the slots (a token's choices of an expert) that blocks of sorted lists compute.

    Broken conventions of the lists give a warning.
    """
    routes = routes_of(context)
    if routes is None:
        return None
    return work(
        *_routed(routes),
        Amount(what="dropped slots", done=routes.slots - routes.routed, most=routes.slots),
        Amount(what="padding entries", done=routes.padding, most=routes.used),
        warnings=routes.warnings,
    )


def count_groups(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the rows that belong to an expert's group, and all rows."""
    numbers = context.tensor("sorted_expert_for_source_row")
    if numbers is not None:
        values = fill.integer_values(numbers)
        warnings = ("the rows are not sorted by expert",) if bool((values.diff() < 0).any()) else ()
        return work(_used(values, names.expert_count(context)), warnings=warnings, same=True)
    sizes = group_sizes(context)
    if sizes is None:
        return None
    max_rows = names.number(context, "max_tokens_per_batch")
    room = max_rows * len(sizes) if max_rows else names.rows_of_groups(context)
    rows = int(sizes.clamp(min=0).sum())
    wrong = ["the group ends are not ascending"] if bool((sizes < 0).any()) else []
    if room is not None and rows > room:
        wrong.append(f"the groups contain {rows:,} rows, but there is room for only {room:,}")
    return work(
        Amount(what="rows", done=rows, most=room),
        Amount(what="experts", done=int((sizes > 0).sum()), most=len(sizes)),
        warnings=tuple(wrong),
    )


def count_returned(context: InitContext, lengths: BatchLengths | None) -> Work | None:
    """Count the distinct rows that are moved back to token order."""
    order = context.first(("inv_permuted_idx", "sorted_indices", "expanded_src_to_dst_row"), elements=True)
    if order is None:
        return None
    distinct = int(torch.unique(fill.integer_values(order)).numel())
    return work(Amount(what="rows brought back", done=distinct, most=order.numel()), same=True)
