# pyright: strict
"""Initializer for vendor ops whose row numbers, counts and boundaries only need to be valid.

These arguments only say which rows are read or written, how many rows each group has, or where each sequence ends.
`ROLES` says how to fill them. `paged_attention` handles batches of requests, and `moe_routing` chooses experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitReport, extent

Kind = Callable[[InitContext, torch.Tensor], str]
"""Function that fills one tensor in place and returns a short description of the values."""
Bound = Callable[[InitContext], int]


def _size(argument: str, dim: int = 0) -> Bound:
    """Return a function that gives a bound: the size of an argument (or a list's first tensor) along `dim`, or 0."""

    def bound(context: InitContext) -> int:
        table = next((tensor for name, tensor in context.tensors() if name == argument), None)
        if table is None or not -table.dim() <= dim < table.dim():
            return 0
        return table.shape[dim]

    return bound


def _slots(argument: str) -> Bound:
    """Return a function that gives a bound: the number of cache blocks times the tokens per block."""

    def bound(context: InitContext) -> int:
        return _size(argument)(context) * max(1, _size(argument, 1)(context))

    return bound


def _along(argument: str, name: str) -> Bound:
    """Return a function that gives a bound: the size of `argument` along the dimension in the argument `name`."""

    def bound(context: InitContext) -> int:
        dim = context.args.get(name)
        return _size(argument, dim)(context) if isinstance(dim, int) else 0

    return bound


def _given(name: str, at: str | int | None = None) -> Bound:
    """Return a function that gives a bound: a numeric argument, or an entry of a list argument.

    `at` is the index of the entry, or the name of the argument that holds the index.
    """

    def bound(context: InitContext) -> int:
        value = context.args.get(name)
        if at is None or not isinstance(value, (list, tuple)):
            return value if isinstance(value, int) else 0
        place = context.args.get(at) if isinstance(at, str) else at
        items = cast("Sequence[Any]", value)
        return int(items[place]) if isinstance(place, int) and -len(items) <= place < len(items) else 0

    return bound


def below(bound: Bound) -> Kind:
    """Return a filler that draws uniformly from [0, bound)."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        high = max(1, bound(context))
        fill.integers(tensor, context.generator, 0, high)
        return f"uniform in [0, {high})"

    return kind


def rows_of_each(tables: str, lists: str) -> Kind:
    """Return a filler for the tensors of the argument `lists`.

    The n-th tensor gets row numbers of the n-th table in `tables`, drawn uniformly.
    """

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        named = [(name, each) for name, each in context.tensors() if name in (tables, lists)]
        place = [each is tensor for name, each in named if name == lists].index(True)
        sizes = [each.shape[0] if each.dim() else 0 for name, each in named if name == tables]
        high = max(1, sizes[place] if place < len(sizes) else min(sizes, default=1))
        fill.integers(tensor, context.generator, 0, high)
        return f"uniform in [0, {high})"

    return kind


def distinct(bound: Bound) -> Kind:
    """Return a filler with distinct numbers in [0, bound), so that no row is written twice.

    Numbers repeat if the tensor has more than `bound` elements.
    """

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        high = max(1, bound(context))
        order = torch.randperm(high, generator=context.generator, device=tensor.device)
        count = tensor.numel()
        fill.assign(tensor, order.repeat(-(-count // high))[:count].reshape(tensor.shape))
        return f"distinct in [0, {high})" if count <= high else f"each of [0, {high}) in turn"

    return kind


def counts(total: Bound) -> Kind:
    """Return a filler that divides the total into integer shares that are as equal as possible."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        if tensor.numel():
            parts = fill.even_cuts(tensor.numel(), total(context)).diff()
            fill.assign(tensor, parts.reshape(tensor.shape))
        return f"equal shares of {total(context)}"

    return kind


def cuts(total: Bound) -> Kind:
    """Return a filler whose values ascend in equal steps from 0 to the total."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        if tensor.numel():
            fill.assign(
                tensor, fill.even_cuts(max(1, tensor.numel() - 1), total(context))[: tensor.numel()].to(tensor.device)
            )
        return f"equal parts of {total(context)}"

    return kind


def all_of(bound: Bound) -> Kind:
    """Return a filler that sets every entry to the bound, so that nothing is masked out."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        tensor.fill_(bound(context))
        return f"all {bound(context)}"

    return kind


def in_order(context: InitContext, tensor: torch.Tensor) -> str:
    """Fill with 0, 1, 2, ..."""
    fill.assign(tensor, torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape))
    return "in order"


def sorted_below(bound: Bound) -> Kind:
    """Return a filler with ascending numbers in [0, bound), each equally frequent."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        high, count = max(1, bound(context)), tensor.numel()
        numbers = torch.arange(count, device=tensor.device) * high // max(1, count)
        fill.assign(tensor, numbers.reshape(tensor.shape))
        return f"ascending in [0, {high})"

    return kind


def block_pairs(caches: str) -> Kind:
    """Return a filler for [n, 2] tensors. Each row has a source block and a destination block of a cache.

    Sources lie in the first half of the cache and destinations in the second. Thus no block is both.
    """

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        half = _size(caches)(context) // 2
        places = torch.arange(extent(tensor), device=tensor.device) % max(1, half)
        fill.assign(tensor, torch.stack((places, places + half), 1)[:, : tensor.shape[-1]])
        return f"the first {half} blocks copied to the following ones" if half else "block 0 copied to itself"

    return kind


def places_in(argument: str) -> Kind:
    """Return a filler for a tensor [*, k]. Each row indexes the first k dimensions of an argument."""

    def kind(context: InitContext, tensor: torch.Tensor) -> str:
        shape = context.need(argument).shape
        for column in range(tensor.shape[-1] if tensor.dim() else 0):
            part = torch.empty(tensor.shape[:-1], dtype=tensor.dtype, device=tensor.device)
            fill.integers(part, context.generator, 0, max(1, shape[column] if column < len(shape) else 1))
            fill.assign(tensor[..., column], part)
        return f"inside {argument}"

    return kind


_ROWS = _size("x")
_INPUT_ROWS = all_of(_size("input"))
_PROBABILITIES = below(_size("probs"))
DISTINCT_CHANCES = 64
"""Number of different rows of probabilities. Further rows repeat them."""
NOT_WHOLE = frozenset({"probs"})
"""Arguments in `ROLES` that hold floating-point numbers."""


def chances(context: InitContext, tensor: torch.Tensor) -> str:
    """Fill rows of probabilities that add up to 1, the softmax of normal scores."""
    if tensor.dim() != 2:
        return "as drawn"
    rows = torch.randn((min(len(tensor), DISTINCT_CHANCES), tensor.shape[1]), generator=context.generator)
    fill.assign_rows(tensor, rows.mul_(2).softmax(-1).to(tensor.device))
    return "add up to one"


ROLES: dict[str, dict[str, Kind]] = {
    "block_pairs": {"block_mapping": block_pairs("key_caches")},
    "latent_block_pairs": {"block_mapping": block_pairs("kv_caches")},
    "swapped_blocks": {"block_mapping": below(_size("src"))},
    "full_experts": {"expert_num_tokens": all_of(_given("padded_m"))},
    "equal_experts": {
        "expert_first_token_offset": cuts(lambda context: 128 * context.need("expert_first_token_offset").numel())
    },
    "full_counts": {"counts": all_of(_size("input", 1))},
    "row_groups": {"group_index": counts(_ROWS)},
    "row_group_ends": {"group_index": cuts(_size("input"))},
    "rank_tokens": {"expert_token_num_per_rank": counts(_size("tokens"))},
    "all_input_rows": {"num_rows": _INPUT_ROWS},
    "all_rows": {"num_rows": all_of(_ROWS)},
    "smoothed_rows": {"num_rows": _INPUT_ROWS, "smooth_scale_map": below(_size("smooth_scale"))},
    "expert_ids": {"topk_ids": below(_size("x_scale"))},
    "dense_sequences": {"cu_seqlens_q": cuts(_size("q")), "cu_seqlens_kv": cuts(_size("k"))},
    "probabilities": {"probs": chances},
    "probability_rows": {"probs": chances, "indices": _PROBABILITIES},
    "maybe_probability_rows": {"probs": chances, "maybe_indices": _PROBABILITIES},
    "logit_rows": {"indices": distinct(_size("logits"))},
    "grouped_rows": {"indices_group": rows_of_each("input_group", "indices_group")},
    "segment_lengths": {"lengths": counts(_given("total_length"))},
    "valid_tokens": {"valid_token_count": all_of(_size("x0"))},
    "gathered": {"index": below(_given("self_size", "dim"))},
    "gathered_sparse": {"index": below(_given("self_sizes", 0))},
    "cache_places": {
        "index": distinct(
            lambda context: (_size("k_cache", 2) if context.need("index").dim() == 2 else _slots("k_cache"))(context)
        )
    },
    "scatter_dim": {"indices": below(_along("self", "dim"))},
    "scatter_axis": {"indices": below(_along("self", "axis"))},
    "scatter_nd": {"indices": places_in("self")},
    "updated_slices": {
        "indices": below(
            lambda context: 1 + _along("self", "axis")(context) - max(1, _along("updates", "axis")(context))
        )
    },
    "pre_reorder": {"src2dst": distinct(_size("gateup_input")), "topk_ids": below(_given("end_expert_id"))},
    "post_reorder": {"src2dst": distinct(_size("down_output")), "topk_ids": below(_given("end_expert_id"))},
    "reordered_experts": {"reorder_topk_ids": sorted_below(_given("end_expert_id"))},
    "permuted_tokens": {
        "sorted_topk_ids": sorted_below(_given("num_experts")),
        "reorder_ids": distinct(_size("reorder_ids")),
    },
    "positions_in_order": {"position_ids": in_order},
    "rope_into_cache": {"positions": below(_size("cos_sin_cache")), "out_loc": distinct(_size("k_cache"))},
    "rope_into_buffer": {"pos_ids": below(_size("cos_sin_cache")), "kv_cache_loc": distinct(_size("k_buffer"))},
    "rope_into_latent": {"positions": below(_size("cos_sin_cache")), "slot_mapping": distinct(_slots("kv_cache"))},
    "chosen_tokens": {
        "cp_local_token_select_indices": distinct(_size("kv_c")),
        "slot_mapping": distinct(_slots("kv_cache")),
    },
    "offset_positions": {
        "positions": below(lambda context: max(1, _size("cos_sin_cache")(context) // 2)),
        "offsets": below(lambda context: max(1, _size("cos_sin_cache")(context) // 2)),
    },
    "marlin_groups": {"g_idx": sorted_below(_size("weight_scale")), "g_idx_sort_indices": in_order},
    "packed_images": {
        "cu_seqlens": cuts(lambda context: _size("q")(context) * max(1, _size("q", 1)(context))),
        "max_seqlen": all_of(lambda context: _size("q", 1)(context)),
    },
    "image_cuts": {"cu_seqlens": cuts(_size("q", 1))},
    "image_lengths": {"seqlens": counts(_size("q", 1))},
    "paged_latent": {
        "qo_indptr": cuts(_size("q")),
        "kv_indptr": cuts(_size("kv_indices")),
        "kv_indices": distinct(_size("kv_buffer")),
        "kv_last_page_lens": all_of(lambda context: 1),
    },
}
"""Role of an op → name of an argument → function that fills this argument."""


class RowNumbersInit(CustomInit):
    """Fills row numbers in range, counts, boundaries, and probabilities that add up to 1, as set in `ROLES`."""

    name = "row_numbers"

    def initialize(self, context: InitContext) -> InitReport:
        assumed: dict[str, str] = {}
        for name, tensor in context.tensors():
            kind = ROLES[context.role].get(name)
            right = tensor.is_floating_point() if name in NOT_WHOLE else fill.is_integer(tensor.dtype)
            if kind is not None and right and tensor.numel():
                assumed[name] = kind(context, tensor)
        summary = "; ".join(f"{name} {how}" for name, how in assumed.items())
        return InitReport(summary=summary or "none of its list arguments is given", assumed=assumed)


INITIALIZERS = (RowNumbersInit,)
