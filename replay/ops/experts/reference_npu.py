"""torch_npu's MoE ops: gating, routing, permuting tokens, grouped matmul."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.routing import counts, mask_groups, slot_major

_Three = tuple[Tensor, Tensor, Tensor]


def _fake_gating(x: Tensor, k: int) -> _Three:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.int32)


@stands_for("npu::npu_moe_gating_top_k_softmax", fake=_fake_gating)
def npu_moe_gating_top_k_softmax(x: Tensor, finished: Tensor | None, k: int) -> _Three:
    """Select the top-k experts of x [T, E] by softmax.

    Returns (weights, experts, row_idx), each [T, k]; the last two are int32. row_idx is slot · T + token, with slot <
    k. Finished rows get the expert number E.
    """
    weights, ids = torch.softmax(x.float(), -1).topk(k, dim=-1)
    if finished is not None:
        ids = ids.masked_fill(finished.unsqueeze(-1), x.shape[-1])
    rows = slot_major(x.numel() // x.shape[-1], k, x.device).reshape(ids.shape)
    return weights.to(x.dtype), ids.to(torch.int32), rows


def _fake_gating_groups(x: Tensor, k: int, out_flag: bool) -> _Three:
    return (
        x.new_empty((x.shape[0], k)),
        x.new_empty((x.shape[0], k), dtype=torch.int32),
        x.new_empty(x.shape if out_flag else (0,), dtype=torch.float32),
    )


@stands_for("npu::npu_moe_gating_top_k", fake=_fake_gating_groups)
def npu_moe_gating_top_k(c: Call) -> _Three:
    """Select the top-k experts of x [T, E].

    Returns weights [T, k], experts int32 [T, k], and all normalised scores float32 [T, E] or empty. norm_type 0 is
    softmax. norm_type 1 is sigmoid, and the selected weights are then divided by their sum. The score of an expert
    group is its largest score (group_select_mode 0) or the sum of its two largest ones (1).
    """
    scores = c.x.float().sigmoid() if c.norm_type == 1 else c.x.float().softmax(-1)
    choice = scores if c.bias is None else scores + c.bias.float()
    choice = mask_groups(choice, c.group_count, c.k_group, best_of=2 if c.group_select_mode == 1 else 1)
    ids = choice.topk(c.k, dim=-1).indices
    weights = scores.gather(-1, ids)
    if c.norm_type == 1 or c.renorm == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + c.eps)
    weights = weights * c.routed_scaling_factor
    return weights.to(c.x.dtype), ids.to(torch.int32), scores if c.out_flag else scores.new_empty((0,))


def _fake_init(x: Tensor, expert_idx: Tensor, active_num: int) -> _Three:
    number = expert_idx.numel()
    return (
        x.new_empty((min(number, active_num * expert_idx.shape[1]), x.shape[1])),
        x.new_empty((number,), dtype=torch.int32),
        x.new_empty((number,), dtype=torch.int32),
    )


@stands_for("npu::npu_moe_init_routing", fake=_fake_init)
def npu_moe_init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> _Three:
    """Sort x [T, H] by expert; row_idx and expert_idx are [T, k].

    Returns (rows in expert order, new position of each (slot, token), sorted experts). The rows are [min(T, active_num)
    · k, H].
    """
    experts, order = torch.sort(expert_idx.flatten(), stable=True)
    source = row_idx.flatten()[order].to(torch.int64)
    place = torch.empty_like(source).scatter_(
        0, source.clamp(0, source.numel() - 1), torch.arange(source.numel(), device=source.device)
    )
    active = source[: active_num * expert_idx.shape[1]]
    return x.index_select(0, active % x.shape[0]), place.to(torch.int32), experts.to(torch.int32)


_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake_init_v2(x: Tensor, expert_idx: Tensor, expert_num: int, active_expert_range: list[int]) -> _Four:
    number = expert_idx.numel()
    experts = (active_expert_range[1] - active_expert_range[0]) if len(active_expert_range) == 2 else expert_num
    return (
        x.new_empty((number, x.shape[1])),
        x.new_empty((number,), dtype=torch.int32),
        x.new_empty((max(experts, 0),), dtype=torch.int64),
        x.new_empty((number,), dtype=torch.float32),
    )


@stands_for("npu::npu_moe_init_routing_v2", fake=_fake_init_v2)
def npu_moe_init_routing_v2(c: Call) -> _Four:
    """Sort x [T, H] by expert_idx [T, k].

    Returns (rows in expert order, row index, tokens per expert, scales of the rows). With row_idx_type 0, the row index
    gives the destination of flat position t · k + slot. With row_idx_type 1, it gives the flat position that is the
    source of each sorted row. Tokens per expert are cumulative for expert_tokens_num_type 0 and plain for 1. Rows of
    experts outside the range come last, with index −1.

    Raises ValueError for capacity dropping, quantisation, key/value counts, and fewer active rows than rows.
    """
    active_num = getattr(c, "active_num", -1)
    if 0 <= active_num < c.expert_idx.numel():
        raise ValueError(f"active_num={active_num} of {c.expert_idx.numel()} rows is not implemented")
    if c.drop_pad_mode or c.quant_mode != -1 or c.expert_tokens_num_type not in (0, 1):
        raise ValueError("capacity dropping, quantisation and key/value counts are not implemented")
    topk = c.expert_idx.shape[1]
    low, high = c.active_expert_range if len(c.active_expert_range) == 2 else (0, c.expert_num)
    flat = c.expert_idx.flatten().to(torch.int64)
    local = torch.where((flat >= low) & (flat < high), flat - low, torch.full_like(flat, high - low))
    order = torch.argsort(local, stable=True)
    active = local[order] < high - low
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    gather = torch.where(local < high - low, place, torch.full_like(place, -1))
    scatter = torch.where(active, order, torch.full_like(order, -1))
    number = counts(local, high - low)
    row_scale = (
        torch.ones_like(order, dtype=torch.float32) if c.scale is None else c.scale.flatten().float()[order // topk]
    )
    rows = c.x.index_select(0, order // topk).masked_fill(~active.unsqueeze(1), 0)
    index = gather if c.row_idx_type == 0 else scatter
    return rows, index.to(torch.int32), number.cumsum(0) if c.expert_tokens_num_type == 0 else number, row_scale


@stands_for("npu::npu_moe_finalize_routing")
def npu_moe_finalize_routing(c: Call) -> Tensor:
    """Return [T, H]: the sum over k of scales · (row + bias of its expert), plus skip1 and skip2 if given.

    The index is slot-major (slot · T + token, slot < k) for drop_pad_mode 0 and 1, and token-major for 2 and 3. Index
    −1 means a dropped row.
    """
    rows = c.expanded_permuted_rows.reshape(-1, c.expanded_permuted_rows.shape[-1])
    topk = c.scales.shape[1] if c.scales is not None else 1
    index = c.expanded_src_to_dst_row.flatten().to(torch.int64)
    place = index.reshape(-1, topk) if (c.drop_pad_mode or 0) >= 2 else index.reshape(topk, -1).t()
    taken = rows[place.clamp(0, rows.shape[0] - 1)].float()
    if c.bias is not None and c.export_for_source_row is not None:
        taken = taken + c.bias[c.export_for_source_row.to(torch.int64)].float()
    weights = torch.ones(place.shape, device=rows.device) if c.scales is None else c.scales.float()
    out = (taken * weights.masked_fill(place < 0, 0.0).unsqueeze(-1)).sum(1)
    for skip in (c.skip1, c.skip2):
        if skip is not None:
            out = out + skip.float()
    return out.to(rows.dtype)


@stands_for("npu::npu_moe_compute_expert_tokens")
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """Return the cumulative number of rows up to each expert, int32 [num_expert]."""
    return counts(sorted_expert_for_source_row, num_expert).cumsum(0).to(torch.int32)


def _fake_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None) -> tuple[Tensor, Tensor]:
    rows = num_out_tokens if num_out_tokens and num_out_tokens > 0 else indices.numel()
    return tokens.new_empty((rows, *tokens.shape[1:])), tokens.new_empty((indices.numel(),), dtype=torch.int32)


@stands_for("npu::npu_moe_token_permute", fake=_fake_permute)
def npu_moe_token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None) -> tuple[Tensor, Tensor]:
    """Return tokens [T, H] sorted by their experts (`indices` [T, k]), and the new positions.

    The new positions are listed by flat position t · k + slot.
    """
    topk = indices.shape[1] if indices.dim() > 1 else 1
    order = torch.argsort(indices.flatten(), stable=True)
    place = torch.argsort(order)
    rows = num_out_tokens if num_out_tokens and num_out_tokens > 0 else order.numel()
    return tokens.index_select(0, order[:rows] // topk), place.to(torch.int32)


@stands_for("npu::npu_moe_token_unpermute")
def npu_moe_token_unpermute(permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None) -> Tensor:
    """Return [T, H]: for each token, the sum over k of probs [T, k] · permuted_tokens[sorted_indices]."""
    topk = probs.shape[1] if probs is not None else 1
    place = sorted_indices.to(torch.int64)
    rows = permuted_tokens[place.clamp(0, permuted_tokens.shape[0] - 1)].float()
    rows = rows.masked_fill((place >= permuted_tokens.shape[0]).unsqueeze(1), 0.0).unflatten(0, (-1, topk))
    if probs is not None:
        rows = rows * probs.float().unsqueeze(-1)
    return rows.sum(1).to(permuted_tokens.dtype)


_ACTIVATIONS = {
    0: lambda x: x,
    1: F.relu,
    2: lambda x: F.gelu(x, approximate="tanh"),
    4: lambda x: x * torch.sigmoid(1.702 * x),
    5: F.silu,
}


def group_ends(group_list: Tensor | list[int] | None, kind: int, groups: int, rows: int) -> list[int]:
    """Return the end row of each group, from cumulative ends (kind 0), counts (1) or (index, count) pairs (2)."""
    if group_list is None:
        if groups > 1:
            raise ValueError("group_list is needed to split rows among several weights")
        return [rows]
    values: list[Any] = group_list.tolist() if isinstance(group_list, Tensor) else list(group_list)
    if kind == 2:
        numbers = [0] * groups
        for index, count in values:
            if count:
                numbers[index] = count
        values, kind = numbers, 1
    if kind == 1:
        values = list(accumulate(values))
    if any(b < a for a, b in pairwise([0, *values])) or (values and values[-1] > rows):
        raise ValueError(f"group ends must not decrease and must stay within [0, {rows}]")
    return values


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, token_scale: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return x [M, K] @ weight [K, N] + bias. int8 products are multiplied by one scale per column and one per row."""
    if x.dtype == torch.int8:
        out = x.float() @ weight.float()
        out = out if bias is None else out + bias
        out = out if scale is None else out * scale.float()
        out = out if token_scale is None else out * token_scale.reshape(-1, 1)
        return out.to(dtype)
    return linear(x, weight.to(x.dtype).t(), bias, dtype)


def _fake_grouped(c: Call) -> list[Tensor]:
    x = c.x
    dtype = c.output_dtype or (torch.bfloat16 if x[0].dtype == torch.int8 else x[0].dtype)
    if c.group_type == 2:
        return [x[0].new_empty((len(c.weight), x[0].shape[0], c.weight[0].shape[-1]), dtype=dtype)]
    if len(x) > 1:
        return [a.new_empty((*a.shape[:-1], w.shape[-1]), dtype=dtype) for a, w in zip(x, c.weight, strict=False)]
    return [x[0].new_empty((x[0].shape[0], c.weight[0].shape[-1]), dtype=dtype)]


@stands_for("npu::npu_grouped_matmul", fake=_fake_grouped)
def npu_grouped_matmul(c: Call) -> list[Tensor]:
    """Return the products x[i] @ weight[i] as a list.

    A single x [M, K] is split among the weights by group_list. A single weight [E, K, N] holds E weights. Raises
    ValueError for a split along K, and for 4- or 8-bit weights with 16-bit activations.
    """
    x = c.x
    if c.group_type == 2 or c.antiquant_scale:
        raise ValueError("a split along K and weight-only quantisation are not implemented")
    dtype = c.output_dtype or (torch.bfloat16 if x[0].dtype == torch.int8 else x[0].dtype)
    weights = list(c.weight[0].unbind(0)) if len(c.weight) == 1 and c.weight[0].dim() == 3 else list(c.weight)
    biases, scales = _spread(c.bias, len(weights)), _spread(c.scale, len(weights))
    activate = _ACTIVATIONS[c.act_type or 0]
    if len(x) > 1:
        token_scales = _spread(c.per_token_scale, len(x))
        return [
            activate(_product(a, w, b, s, t, dtype))
            for a, w, b, s, t in zip(x, weights, biases, scales, token_scales, strict=True)
        ]
    rows = x[0]
    ends = group_ends(c.group_list, c.group_list_type or 0, len(weights), rows.shape[0])
    outs, start = [], 0
    token_scale = c.per_token_scale[0] if c.per_token_scale else None
    for stop, w, b, s in zip(ends, weights, biases, scales, strict=False):
        t = None if token_scale is None else token_scale[start:stop]
        outs.append(activate(_product(rows[start:stop], w, b, s, t, dtype)))
        start = stop
    if c.split_item in (0, 1) and len(outs) > 1:
        return outs
    out = rows.new_zeros((rows.shape[0], weights[0].shape[-1]), dtype=dtype)
    out[:start] = torch.cat(outs)
    return [out]


def _spread(values: list[Tensor] | None, number: int) -> list[Tensor | None]:
    """Return one value per group from a list, from one tensor whose first dim is the group, or from None."""
    if not values:
        return [None] * number
    if len(values) == number:
        return list(values)
    return list(values[0].unbind(0)) if values[0].shape[0] == number else [values[0]] * number
