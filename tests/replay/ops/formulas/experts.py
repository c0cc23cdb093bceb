# pyright: strict
"""Which experts a token goes to, and rows brought there and back.

Written from public documentation, independent of the references.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import Values, covers, formula, formulas, gradients, numbers, of, wide


@formula("_moe_C::moe_sum sgl_kernel::moe_sum aiter::moe_sum aiter::_moe_sum", "(f32[8,2,16], f32[8,16])")
def moe_sum(values: Values) -> Tensor:
    return values["input"].sum(1)


@formula("sgl_kernel::moe_sum_reduce", "(f32[8,2,16], f32[8,16], 1.5)")
def moe_sum_reduce(values: Values) -> Tensor:
    return values["input"].sum(1) * values["routed_scaling_factor"]


def routed(
    weights: Tensor, count: int, renormalize: bool, bias: Tensor | None = None, factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(weights, experts) of the best `count` of each row; `bias` counts for the choice alone."""
    covers(weights.dim() == 2, "tokens by experts")
    covers(count <= weights.shape[-1], "no more experts than there are")
    ranks = weights if bias is None else weights + wide(bias)
    best, places = torch.sort(ranks, dim=-1, descending=True, stable=True)
    # Which of equal scores is chosen is anybody's choice.
    covers(bool((best[:, 1 : count + 1] < best[:, :count][:, : best.shape[1] - 1]).all()), "scores that differ")
    places = places[..., :count]
    return weighed(weights, places, renormalize, factor), places


def weighed(scores: Tensor, places: Tensor, renormalize: bool, factor: float) -> Tensor:
    chosen = scores.gather(-1, places)
    total = chosen.sum(-1, keepdim=True)
    covers(not renormalize or bool((total > 1e-9).all()), "chances")
    return ((chosen / total if renormalize else chosen) * factor).float()


def leaders(row: Tensor, count: int) -> list[int]:
    """Places of the largest numbers of a row, best first."""
    covers(0 < count <= len(row), "a place for each")
    values, order = torch.sort(row, descending=True, stable=True)
    covers(bool((values[1 : count + 1] < values[:count][: len(row) - 1]).all()), "scores that differ")
    return numbers(order[:count])


def within_groups(ranks: Tensor, count: int, groups: int, kept: int, best: int) -> Tensor:
    """Experts of each row from its `kept` best groups, by the sum of a group's `best` largest numbers."""
    covers(ranks.dim() == 2 and len(ranks) and groups > 0 and ranks.shape[1] % groups == 0, "groups of a size")
    rows: list[list[int]] = []
    for row in ranks:
        size = len(row) // groups
        experts = list(range(len(row)))
        if kept < groups:
            totals = torch.stack([part.sort(descending=True).values[:best].sum() for part in row.reshape(groups, size)])
            experts = [group * size + place for group in sorted(leaders(totals, kept)) for place in range(size)]
        rows.append([experts[place] for place in leaders(row[experts], count)])
    return torch.tensor(rows, device=ranks.device)


def scored(logits: Tensor, kind: str) -> Tensor:
    x = wide(logits)
    if kind == "softmax":
        return torch.softmax(x, -1)
    return torch.sigmoid(x) if kind == "sigmoid" else torch.logaddexp(x, torch.zeros_like(x)).sqrt()


@formulas("""
    sgl_kernel::topk_softmax | (f32[8,2], i32[8,2], f32[8,16], True, 0.0, None)
    sglang::moe_topk_softmax_out | (f32[8,2], i32[8,2], f32[8,16], f32[128], True, 0.0, None)
    sglang::moe_topk_softmax_out | (f32[8,2], i32[8,2], f32[8,16], f32[128], False, 0.0, None)
""")
def topk_softmax(values: Values) -> tuple[Tensor, ...]:
    x, cap = wide(values["gating_output"]), values["moe_softcapping"]
    chance = torch.softmax(torch.tanh(x / cap) * cap if cap > 0 else x, -1)
    weights, places = routed(chance, values["topk_weights"].shape[-1], values["renormalize"], values["correction_bias"])
    left = [values["workspace"]] if "workspace" in values else []
    return weights, places.to(of(values, "topk_indices", "topk_ids").dtype), *left


@formula("_moe_C::topk_softmax", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True, None, None)")
def topk_softmax_with_rows(values: Values) -> tuple[Tensor, ...]:
    return with_rows(values, torch.softmax(wide(values["gating_output"]), -1))


@formula("_moe_C::topk_sigmoid", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True, None, 1.0, None)")
def topk_sigmoid_with_rows(values: Values) -> tuple[Tensor, ...]:
    return with_rows(values, torch.sigmoid(wide(values["gating_output"])))


def with_rows(values: Values, chance: Tensor) -> tuple[Tensor, ...]:
    covers(values.get("is_padding") is None, "tokens that are no padding")
    count = values["topk_weights"].shape[-1]
    factor = values.get("routed_scaling_factor", 1.0)
    weights, places = routed(chance, count, values["renormalize"], values.get("bias"), factor)
    # Row of each choice among all of them, ordered by choice.
    rows = torch.arange(count * len(chance), device=chance.device).reshape(count, len(chance)).mT
    return weights, places.to(values["topk_indices"].dtype), rows.to(values["token_expert_indices"].dtype)


@formulas("""
    aiter::topk_softmax aiter::topk_softmax_asm | (f32[8,2], i32[8,2], i32[8,2], f32[8,16], True)
    vllm::rocm_aiter_topk_softmax | (f32[8,2], i32[8,2], i32[8,2], f32[8,16], True, 0, '')
""")
def aiter_topk_softmax(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("num_shared_experts"), "routed experts")
    chance = torch.softmax(wide(values["gating_output"]), -1)
    weights, places = routed(chance, values["topk_weights"].shape[-1], of(values, "need_renorm", "renormalize"))
    # aiter throws the third buffer away ("Not used. Will be used in the future.").
    return weights, places.to(values["topk_indices"].dtype), values["token_expert_indices"]


@formulas("""
    sgl_kernel::topk_sigmoid | (f32[8,2], i32[8,2], f32[8,16], True, None)
    aiter::topk_sigmoid vllm::rocm_aiter_topk_sigmoid | (f32[8,2], i32[8,2], f32[8,16])
    sglang::moe_topk_sigmoid_out | (f32[8,16], f32[8,2], i32[8,2], f32[128], True, None, 1.5, 0)
    sglang::moe_topk_sigmoid_out | (f32[8,16], f32[8,2], i32[8,2], f32[128], True, f32[16], 2.0, 0)
""")
def topk_sigmoid(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("num_fused_shared_experts"), "routed experts")
    chance = torch.sigmoid(wide(values["gating_output"]))
    count, renormalize = values["topk_weights"].shape[-1], values.get("renormalize", False)
    factor = values.get("routed_scaling_factor", 1.0)
    weights, places = routed(chance, count, renormalize, values.get("correction_bias"), factor)
    return weights, places.to(of(values, "topk_indices", "topk_ids").dtype)


@formulas("""
    vllm::rocm_aiter_fused_topk | (f32[8,32], f32[8,16], 2, False)
""")
@formula("vllm::rocm_aiter_fused_topk", "(f32[8,32], f32[8,16], 2, True)")
def fused_topk(values: Values) -> tuple[Tensor, Tensor]:
    weights, places = routed(scored(values["router_logits"], "softmax"), values["top_k"], values["gate_up"])
    return weights, places.int()


@formula("aiter::topk_softplus aiter::topk_gating_fwd", "(f32[8,2], i32[8,2], f32[8,16], f32[16], True, 1.5)")
def topk_softplus(values: Values) -> tuple[Tensor, Tensor]:
    kind = values.get("score_func", "sqrtsoftplus")
    covers(kind in ("sqrtsoftplus", "sigmoid", "softmax"), "scores with a name")
    scores, bias = scored(values["gating_output"], kind), values["correction_bias"]
    count, factor = values["topk_weights"].shape[-1], values.get("routed_scaling_factor", 1.0)
    weights, places = routed(scores, count, values["need_renorm"], bias if bias.numel() else None, factor)
    return weights, places.to(values["topk_indices"].dtype)


@formulas("""
    aiter::grouped_topk | (f32[8,16], f32[8,2], i32[8,2], 4, 2, True, True, 1.5)
    vllm::rocm_aiter_grouped_topk | (f32[8,16], f32[8,2], i32[8,2], 4, 2, True, 'softmax', 1.5)
""")
def grouped_topk(values: Values) -> tuple[Tensor, Tensor]:
    kind = values.get("scoring_func", "softmax" if values.get("is_softmax", True) else "sigmoid")
    covers(kind in ("sigmoid", "softmax"), "scores with a name")
    scores = scored(values["gating_output"], kind)
    groups, kept = values["num_expert_group"], values["topk_group"]
    places = within_groups(scores, values["topk_ids"].shape[-1], groups, kept, 1)
    factor = values.get("routed_scaling_factor", 1.0)
    return weighed(scores, places, values["need_renorm"], factor), places.to(values["topk_ids"].dtype)


@formulas("""
    aiter::biased_grouped_topk_hip vllm::rocm_aiter_biased_grouped_topk
        | (f32[8,16], f32[16], f32[8,2], i32[8,2], 4, 2, True, 1.5)
    sglang::fused_topk_deepseek | (f32[8,16], f32[16], 4, 2, 2, 1.5, f32[8,2], i32[8,2], True)
""")
def biased_grouped_topk(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("n_share_experts_fusion"), "routed experts")
    scores = scored(of(values, "gating_output", "input"), "sigmoid")
    ranks = scores + wide(of(values, "correction_bias", "bias"))
    groups, kept, count = values["num_expert_group"], values["topk_group"], values["topk_ids"].shape[-1]
    places = within_groups(ranks, count, groups, kept, 2)
    factor = of(values, "routed_scaling_factor", "scaling_factor", otherwise=1.0)
    renormalize = of(values, "need_renorm", "renormalize", otherwise=True)
    return weighed(scores, places, renormalize, factor), places.to(values["topk_ids"].dtype)


@formula("aiter::moe_fused_gate", "(f32[8,16], f32[16], f32[8,2], i32[8,2], 4, 2, 2, 0, 1.5)")
def written_and_returned_gate(values: Values) -> tuple[Tensor, ...]:
    return biased_grouped_topk(values) * 2


@formulas("""
    sgl_kernel::moe_fused_gate | (f32[8,16], f32[16], 4, 2, 2, 0, 1.5, True)
    sgl_kernel::kimi_k2_moe_fused_gate | (f32[8,16], f32[16], 2, True, 1.5, True)
""")
def fused_gate(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("num_fused_shared_experts") and values.get("renormalize", True), "routed experts")
    scores = scored(values["input"], "sigmoid")
    groups, kept = values.get("num_expert_group", 1), values.get("topk_group", 1)
    places = within_groups(scores + wide(values["bias"]), values["topk"], groups, kept, 2)
    factor = values["routed_scaling_factor"] if values["apply_routed_scaling_factor_on_output"] else 1.0
    return weighed(scores, places, True, factor), places.int()


@formula("_moe_C::grouped_topk", "(f32[8,16], 4, 2, 2, True, 1.5, f32[16], 1)")
def grouped_topk_of_scores(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["scoring_func"] in (0, 1), "scores or logits")
    scores = scored(values["scores"], "sigmoid") if values["scoring_func"] else wide(values["scores"])
    ranks = scores + wide(values["bias"])
    places = within_groups(ranks, values["topk"], values["n_group"], values["topk_group"], 2)
    return weighed(scores, places, values["renormalize"], values["routed_scaling_factor"]), places.int()


@formulas("""
    npu::npu_moe_gating_top_k | (f32[8,16], 2)
    _C_ascend::moe_gating_top_k | (f32[8,16], 2, 2, 4, 1, 0, 1, True, 1.5, 1e-20, f32[16])
    npu::npu_moe_gating_top_k
        | (f32[8,16], 3, bias=f32[16], k_group=2, group_count=4, group_select_mode=1, norm_type=1)
""")
def gating_top_k(values: Values) -> tuple[Tensor, ...]:
    x, bias = values["x"], of(values, "bias", "bias_opt")
    sigmoid = values.get("norm_type", 0) == 1
    scores = scored(x, "sigmoid" if sigmoid else "softmax")
    best = 2 if values.get("group_select_mode", 0) else 1
    groups, kept = values.get("group_count", 1), values.get("k_group", 1)
    places = within_groups(scores if bias is None else scores + wide(bias), values["k"], groups, kept, best)
    weights = scores.gather(1, places)
    if sigmoid or values.get("renorm", 0) == 1:
        weights = weights / (weights.sum(1, keepdim=True) + values.get("eps", 1e-20))
    weights = weights * values.get("routed_scaling_factor", 1.0)
    return weights.to(x.dtype), places.int(), scores.float() if values.get("out_flag") else scores.new_empty(0)


@formula("npu::npu_moe_gating_top_k_softmax_v2", "(f32[8,16], k=2)")
def gating_top_k_softmax_v2(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("finished") is None, "all tokens")
    x = values["x"]
    chance = scored(x, "softmax")
    weights, places = routed(chance, values.get("k", 1), values.get("renorm") == 1)
    return weights.to(x.dtype), places.int(), chance if values.get("output_softmax") else chance.new_empty(0)


@formula("npu::npu_moe_gating_top_k_softmax", "(f32[8,16], None, 2)")
def gating_top_k_softmax(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("finished") is None, "all tokens")
    x, count = values["x"], values.get("k", 1)
    weights, places = routed(torch.softmax(wide(x), -1), count, renormalize=False)
    rows = torch.arange(count * len(x), device=x.device).reshape(count, len(x)).mT
    return weights.to(x.dtype), places.int(), rows.int()


@formula("_moe_C::shuffle_rows sgl_kernel::shuffle_rows", "(f32[8,16], i32[12], f32[12,16])")
def shuffle_rows(values: Values) -> Tensor:
    return of(values, "input_tensor", "input")[values["dst2src_map"].long()]


@formula("npu::npu_moe_token_permute", "(f32[8,16], i64[8,2])")
def token_permute(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("num_out_tokens") is None and not values.get("padded_mode"), "the plain form")
    tokens, chosen = values["tokens"], values["indices"]
    count = chosen.shape[1] if chosen.dim() > 1 else 1
    order = torch.argsort(chosen.flatten(), stable=True)
    return tokens[order // count], torch.argsort(order, stable=True).int()


def like(items: list[int] | list[list[int]], target: Tensor) -> Tensor:
    """Whole numbers as the tensor that they are for."""
    return torch.tensor(items, device=target.device).reshape(target.shape).to(target.dtype)


def members(ids: list[int], experts: int) -> list[list[int]]:
    """Positions whose id is each expert."""
    slots: list[list[int]] = [[] for _ in range(experts)]
    for position, expert in enumerate(ids):
        if 0 <= expert < experts:
            slots[expert].append(position)
    return slots


def up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def aligned(
    slots: list[list[int]], block: int, filler: int, length: int, blocks: int
) -> tuple[list[int], list[int], int]:
    """(positions, expert of each block, positions in use) where each expert has whole blocks."""
    positions: list[int] = []
    owners: list[int] = []
    for expert, some in enumerate(slots):
        room = up(len(some), block)
        positions += some + [filler] * (room - len(some))
        owners += [expert] * (room // block)
    total = len(positions)
    covers(block > 0 and len(owners) <= blocks and total <= max(length, up(length, block)), "lists with room")
    positions += [filler] * max(0, length - total)
    return positions[:length], owners + [-1] * (blocks - len(owners)), total


@formulas("""
    _moe_C::moe_align_block_size | (i32[8,2], 4, 4, i32[28], i32[7], i32[1], None)
    _C::moe_align_block_size _moe_C::sgl_moe_align_block_size | (i32[8,2], 4, 4, i32[28], i32[7], i32[1])
""")
def align_block_size(values: Values) -> tuple[Tensor, ...]:
    ids, table = values["topk_ids"], values.get("maybe_expert_map")
    experts = numbers((ids if table is None else table[ids.long()]).flatten())
    return written(values, members(experts, values["num_experts"]), ids.numel())


def written(values: Values, slots: list[list[int]], filler: int) -> tuple[Tensor, ...]:
    order, owners, total = values["sorted_token_ids"], values["experts_ids"], values["num_tokens_post_pad"]
    block = values["block_size"]
    places, experts, used = aligned(slots, block, filler, order.numel(), owners.numel())
    return like(places, order), like(experts, owners), torch.full_like(total, used)


@formula("_moe_C::batched_moe_align_block_size", "(8, 4, i32[4], i32[40], i32[10], i32[1])")
def batched_align_block_size(values: Values) -> tuple[Tensor, ...]:
    room, counts = values["max_tokens_per_batch"], numbers(values["expert_num_tokens"])
    covers(all(0 <= count <= room for count in counts), "rows that are there")
    slots = [list(range(expert * room, expert * room + count)) for expert, count in enumerate(counts)]
    return written(values, slots, room * len(counts))


@formula("aiter::moe_align_block_size", "(i32[8,2], 4, 4, i32[28], i32[7], i32[7], i32[1])")
def aiter_align_block_size(values: Values) -> tuple[Tensor, ...]:
    order, owners, total = align_block_size(values)
    block, real = values["block_size"], values["topk_ids"].numel()
    covers(order.numel() == block * values["token_nums"].numel(), "whole blocks")
    return order, owners, (order.reshape(-1, block) < real).sum(1).to(values["token_nums"].dtype), total


@formula("sgl_kernel::moe_align_block_size", "(i32[8,2], 5, 4, i32[32], i32[8], i32[1], i32[6], True, False)")
def sgl_align_block_size(values: Values) -> tuple[Tensor, ...]:
    covers(values["pad_sorted_token_ids"] and not values.get("ignore_invalid_expert"), "lists with fillers")
    # Bucket 0 is for experts that are elsewhere, -1.
    ids, experts, block = values["topk_ids"], values["num_experts"], values["block_size"]
    slots = members([expert + 1 for expert in numbers(ids.flatten())], experts)
    order, owners, total = written(values, slots, ids.numel())
    sums = values["cumsum_buffer"].clone()
    covers(sums.numel() > experts, "a place for each sum")
    edges = [sum(up(len(some), block) for some in slots[:expert]) for expert in range(experts + 1)]
    sums[: experts + 1] = torch.tensor(edges, device=sums.device)
    return order, (owners - 1).clamp(min=-1), total, sums


@formula(
    "aiter::moe_sorting_fwd aiter::moe_sorting_opus_fwd",
    "(i32[8,2], f32[8,2], i32[28], f32[28], i32[7], i32[2], bf16[8,16], 4, 4)",
)
def sorting(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("local_expert_mask") is None and values.get("num_local_tokens") is None, "all experts and tokens")
    ids, weights = values["topk_ids"], values["topk_weights"]
    tokens, count = ids.shape
    places, shares, owners = (values[f"sorted_{name}"] for name in ("token_ids", "weights", "expert_ids"))
    slots = members(numbers(ids.flatten()), values["num_experts"])
    order, experts, total = aligned(slots, values["unit_size"], tokens * count, places.numel(), owners.numel())
    covers(shares.numel() == places.numel(), "a weight for each place")
    # The slot in the upper 8 bits, the token in the lower 24.
    empty = tokens * count
    packed = [(place % count << 24 | place // count) if place < empty else count << 24 | tokens for place in order]
    share = torch.cat([weights.flatten().float(), weights.new_zeros(1, dtype=torch.float32)])[order]
    used = torch.full_like(values["num_valid_ids"], tokens)
    used[0] = total
    cleared = torch.zeros_like(values["moe_buf"])
    return like(packed, places), share.reshape(shares.shape), like(experts, owners), used, cleared


def sizes(values: Values, counts: list[int], swap: bool) -> list[Tensor]:
    """(rows, columns, depth) of both products of each expert; `swap` takes columns first."""
    n, k = values["n"], values["k"]
    first = 2 * n if values.get("is_gated", True) else n
    both: list[Tensor] = []
    for name, columns, depth in (("problem_sizes1", first, k), ("problem_sizes2", k, n)):
        covers(values[name].shape == (len(counts), 3), "a row of sizes for each expert")
        rows = [[columns, count, depth] if swap else [count, columns, depth] for count in counts]
        both.append(like(rows, values[name]))
    return both


def starts(counts: list[int], target: Tensor) -> Tensor:
    """Sums of the counts before each expert, as far as there is room."""
    edges = [sum(counts[:expert]) for expert in range(len(counts) + 1)]
    covers(target.numel() in (len(counts), len(counts) + 1), "a place for each expert")
    return like(edges[: target.numel()], target)


def layout(values: Values, swap: bool) -> tuple[Tensor, ...]:
    """Offsets, sizes and permutations of the rows of sorted experts, in the order of the arguments."""
    ids = values["topk_ids"]
    scales = values.get("blockscale_offsets")
    slots = members(numbers(ids.flatten()), values["num_experts"])
    counts = [len(some) for some in slots]
    covers(sum(counts) == ids.numel(), "experts that are there")
    # vLLM's kernel takes columns first for few rows.
    covers("is_gated" not in values or scales is not None or ids.numel() > 64, "many rows")
    order = [position for some in slots for position in some]
    back = sorted(range(len(order)), key=order.__getitem__)
    first, second = sizes(values, counts, swap)
    tokens = like([position // ids.shape[1] for position in order], values["input_permutation"])
    results = {
        "expert_offsets": starts(counts, values["expert_offsets"]),
        "problem_sizes1": first,
        "problem_sizes2": second,
        "input_permutation": tokens,
        "output_permutation": like(back, values["output_permutation"]),
    }
    if scales is not None:
        results["blockscale_offsets"] = starts([up(count, 128) for count in counts], scales)
    return tuple(results[name] for name in values if name in results)


@formulas("""
    _C::get_cutlass_moe_mm_data | (i32[40,2], i32[5], i32[4,3], i32[4,3], i32[80], i32[80], 4, 16, 32, i32[5], True)
    sgl_kernel::prepare_moe_input | (i32[8,2], i32[5], i32[5], i32[4,3], i32[4,3], i32[16], i32[16], 4, 16, 32)
""")
def product_data(values: Values) -> tuple[Tensor, ...]:
    return layout(values, swap=False)


@formula(
    "sgl_kernel::get_cutlass_w4a8_moe_mm_data", "(i32[8,2], i32[5], i32[4,3], i32[4,3], i32[16], i32[16], 4, 16, 32)"
)
def product_data_of_4_bits(values: Values) -> tuple[Tensor, ...]:
    """The kernel multiplies weights by activations: columns come first."""
    return layout(values, swap=True)


@formula("_C::get_cutlass_moe_mm_problem_sizes", "(i32[8,2], i32[4,3], i32[4,3], 4, 16, 32, None, True)")
def product_sizes(values: Values) -> tuple[Tensor, ...]:
    swap = values.get("force_swap_ab")
    covers(swap is not None, "an order of columns and rows that is given")
    slots = members(numbers(values["topk_ids"].flatten()), values["num_experts"])
    return tuple(sizes(values, [len(some) for some in slots], bool(swap)))


@formula("_C::get_cutlass_moe_mm_problem_sizes_from_expert_offsets", "(i64[5], i32[4,3], i32[4,3], 16, 32, True)")
def product_sizes_of_offsets(values: Values) -> tuple[Tensor, ...]:
    edges = numbers(values["expert_first_token_offset"])
    counts = [end - start for start, end in pairwise(edges)]
    return tuple(sizes(values, counts, values["swap_ab"]))


@formula(
    "_C::get_cutlass_pplx_moe_mm_data _C::get_cutlass_batched_moe_mm_data",
    "(i32[4], i32[4,3], i32[4,3], i32[4], 4, 32, 16, 32)",
)
def batched_product_data(values: Values) -> tuple[Tensor, ...]:
    experts, room = values["num_local_experts"], values["padded_m"]
    # For so few rows the kernel takes columns first.
    covers(experts * room > 64, "many rows")
    offsets = values["expert_offsets"]
    edges = like([expert * room for expert in range(offsets.numel())], offsets)
    return edges, *sizes(values, numbers(values["expert_num_tokens"])[:experts], False)


PERMUTED = "(f32[8,16], i32[8,2], i32[8,2], None, 4, 4, 2, f32[16,16], i64[5], i32[8,2], i32[16]"


@formulas(f"""
    _moe_C::moe_permute | {PERMUTED})
    _moe_C::moe_permute_with_scratch | {PERMUTED}, i8[64], i32[16], i32[16], i32[16])
""")
def permute(values: Values) -> tuple[Tensor, ...]:
    covers(values["expert_map"] is None, "all experts")
    x, experts, count = values["input"], values["n_local_expert"], values["topk"]
    slots = members(numbers(values["topk_ids"].flatten()), experts)
    order = [position for some in slots for position in some]
    rows, back, target = values["permuted_input"], values["inv_permuted_idx"], values["permuted_idx"]
    covers(len(order) == back.numel() == len(rows) and count > 0, "a row for each slot")
    inverse = [0] * len(order)
    for place, position in enumerate(order):
        inverse[position] = place
    edges = starts([len(some) for some in slots], values["expert_first_token_offset"])
    taken = torch.stack([x[position // count] for position in order]) if order else rows
    return taken.to(rows.dtype), edges, like(inverse, back), like(order, target)


@formulas("""
    _moe_C::moe_unpermute | (f32[16,16], f32[8,2], i32[8,2], i64[5], 2, f32[8,16])
""")
@formula("_moe_C::moe_unpermute", "(f32[16,16], f32[8,2], i32[8,2], None, 2, f32[8,16])")
def unpermute(values: Values) -> Tensor:
    rows, weights, places = values["permuted_hidden_states"], wide(values["topk_weights"]), values["inv_permuted_idx"]
    places, edges = places.reshape(-1, values["topk"]), values["expert_first_token_offset"]
    # Behind the last expert's rows are those of experts elsewhere.
    weights = weights if edges is None else weights.masked_fill(places >= edges[-1], 0)
    covers(bool(((places >= 0) & (places < len(rows))).all()), "rows that are there")
    total = torch.zeros_like(wide(values["hidden_states"]))
    for slot in range(values["topk"]):
        total += wide(rows)[places[:, slot].long()] * weights[:, slot, None]
    return total.to(values["hidden_states"].dtype)


@formula("sglang::moe_permute_prepare_out", "(i32[16], i64[16], i32[5], i32[16], 4, False, True)")
def permute_prepare(values: Values) -> tuple[Tensor, Tensor]:
    ids, order = numbers(values["sorted_topk_ids"]), numbers(values["reorder_ids"].flatten())
    offsets, target = values["expert_offsets"], values["src2dst"]
    covers(ids == sorted(ids) and sorted(order) == list(range(len(order))), "sorted ids and a permutation")
    covers(offsets.numel() <= values["num_experts"] + 1, "a place for each expert")
    edges = [sum(expert < limit for expert in ids) for limit in range(offsets.numel())]
    return like(edges, offsets), like(sorted(range(len(order)), key=order.__getitem__), target)


@formula("sgl_kernel::apply_shuffle_mul_sum", "(f32[16,16], f32[8,16], i32[16], f32[8,2])")
def shuffle_mul_sum(values: Values) -> Tensor:
    rows, target = wide(values["input"]), values["output"]
    places, factors = numbers(values["permutation"].flatten()), values["factors"]
    covers(all(0 <= place < len(rows) for place in places) and len(target), "rows that are there")
    count = len(places) // len(target)
    covers(count * len(target) == len(places) > 0, "as many rows for each token")
    covers(rows.shape[1:] == target.shape[1:] and (factors is None or factors.numel() == len(places)), "sizes that fit")
    share = torch.ones(len(places)) if factors is None else wide(factors).flatten()
    total = torch.zeros_like(wide(target))
    for slot, place in enumerate(places):
        total[slot // count] += rows[place] * share[slot]
    return total.to(target.dtype)


def of_this_rank(values: Values, ids: Tensor) -> list[int]:
    """Slots whose expert is on this rank."""
    first, last = values["start_expert_id"], values["end_expert_id"]
    return [slot for slot, expert in enumerate(numbers(ids.flatten())) if first <= expert <= last]


@formula("sgl_kernel::ep_moe_pre_reorder", "(f32[8,16], f32[16,16], i32[16], i32[8,2], f32[4], 0, 3, 2, False)")
def pre_reorder(values: Values) -> Tensor:
    x, scales, ids = wide(values["input"]), values["a1_scales"], values["topk_ids"]
    rows, places, count = values["gateup_input"].clone(), numbers(values["src2dst"].flatten()), values["topk"]
    covers(ids.shape == (len(x), count) and ids.numel() == len(places), "slots of each token")
    covers(rows.dtype.itemsize > 1 and not values["use_per_token_if_dynamic"], "a scale of each expert")
    for slot in of_this_rank(values, ids):
        expert = int(ids.flatten()[slot]) - values["start_expert_id"]
        covers(scales is None or expert < scales.numel(), "a scale of each expert")
        row = x[slot // count]
        rows[places[slot]] = (row if scales is None else row / wide(scales).flatten()[expert]).to(rows.dtype)
    return rows


@formula("sgl_kernel::ep_moe_silu_and_mul", "(f32[16,32], f32[16,16], i32[16], f32[4], 0, 3)")
def ep_silu_and_mul(values: Values) -> Tensor:
    x, rows, scales = wide(values["gateup_output"]), values["down_input"].clone(), values["scales"]
    ids = values["reorder_topk_ids"]
    half = x.shape[1] // 2
    covers(rows.dtype.itemsize > 1 and rows.shape == (len(x), half), "rows of 16 bits or more and half the width")
    for row in of_this_rank(values, ids):
        expert = int(ids.flatten()[row]) - values["start_expert_id"]
        covers(scales is None or expert < scales.numel(), "a scale of each expert")
        gate, other = x[row, :half], x[row, half:]
        result = gate * torch.sigmoid(gate) * other
        rows[row] = (result if scales is None else result / wide(scales).flatten()[expert]).to(rows.dtype)
    return rows


@formula("sgl_kernel::ep_moe_post_reorder", "(f32[16,16], f32[8,16], i32[16], i32[8,2], f32[8,2], 0, 3, 2)")
def post_reorder(values: Values) -> Tensor:
    rows, target, weights = wide(values["down_output"]), values["output"], wide(values["topk_weights"]).flatten()
    places, total = numbers(values["src2dst"].flatten()), torch.zeros_like(wide(target))
    covers(values["topk_ids"].shape == (len(target), values["topk"]), "slots of each token")
    for slot in of_this_rank(values, values["topk_ids"]):
        covers(0 <= places[slot] < len(rows), "rows that are there")
        total[slot // values["topk"]] += rows[places[slot]] * weights[slot]
    return total.to(target.dtype)


@formula("npu::npu_moe_compute_expert_tokens", "(i32[16], 4)")
def expert_tokens(values: Values) -> Tensor:
    ids = numbers(values["sorted_expert_for_source_row"].flatten())
    covers(ids == sorted(ids), "sorted experts")
    covers(all(0 <= expert < values["num_expert"] for expert in ids), "experts that are there")
    ends = [sum(other <= expert for other in ids) for expert in range(values["num_expert"])]
    return torch.tensor(ends, dtype=torch.int32, device=values["sorted_expert_for_source_row"].device)


@formula("npu::npu_moe_init_routing", "(f32[8,16], i32[8,2], i32[8,2], 8)")
def init_routing(values: Values) -> tuple[Tensor, ...]:
    x, rows, ids = values["x"], numbers(values["row_idx"].flatten()), values["expert_idx"]
    experts = numbers(ids.flatten())
    covers(sorted(rows) == list(range(len(rows))), "a number of each row")
    order = sorted(range(len(experts)), key=experts.__getitem__)
    sources = [rows[position] for position in order]
    places = [0] * len(sources)
    for place, source in enumerate(sources):
        places[source] = place
    active = sources[: values["active_num"] * ids.shape[1]]
    taken = x[torch.tensor([source % len(x) for source in active], dtype=torch.int64, device=x.device)]
    in_order = [experts[position] for position in order]
    return taken, like(places, ids.flatten()).int(), like(in_order, ids.flatten()).int()


@formulas("""
    npu::npu_moe_init_routing_v2
            | (f32[8,16], i32[8,2], expert_num=4, expert_tokens_num_type=1, active_expert_range=[0,4])
""")
@formula("npu::npu_moe_init_routing_v2", "(f32[8,16], i32[8,2], expert_num=4, expert_tokens_num_type=1)")
def init_routing_v2(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("active_num", -1) < 0 and values.get("quant_mode", -1) == -1, "all rows as they are")
    kind, shown = values.get("expert_tokens_num_type", 0), values.get("row_idx_type", 0)
    covers(not values.get("drop_pad_mode") and kind in (0, 1) and shown in (0, 1), "rows that are not dropped")
    x, ids, experts = values["x"], values["expert_idx"], values.get("expert_num", -1)
    covers(list(values.get("active_expert_range") or [0, experts]) == [0, experts], "all experts")
    covers(values.get("scale") is None, "rows without a scale")
    slots = members(numbers(ids.flatten()), experts)
    order = [position for some in slots for position in some]
    covers(len(order) == ids.numel() > 0, "experts that are there")
    rows = torch.stack([x[position // ids.shape[1]] for position in order])
    index = order if shown else sorted(range(len(order)), key=order.__getitem__)
    counts = [len(some) for some in slots]
    numbered = counts if kind else [sum(counts[: expert + 1]) for expert in range(experts)]
    where = torch.tensor(index, dtype=torch.int32, device=x.device)
    return rows, where, torch.tensor(numbered, device=x.device), torch.ones(len(order), device=x.device)


@formulas("""
    npu::npu_moe_finalize_routing | (f32[16,16], None, None, None, f32[8,2], i32[16], None, 2)
""")
@formula("npu::npu_moe_finalize_routing", "(f32[16,16], f32[8,16], None, f32[4,16], f32[8,2], i32[16], i32[8,2])")
def finalize_routing(values: Values) -> Tensor:
    rows, scales, bias = values["expanded_permuted_rows"], values["scales"], values["bias"]
    experts = values["export_for_source_row"]
    covers(rows.dim() == 2 and isinstance(scales, Tensor) and (bias is None) == (experts is None), "rows with scales")
    where = values["expanded_src_to_dst_row"]
    count = scales.shape[1]
    places = where.reshape(-1, count) if (values.get("drop_pad_mode") or 0) >= 2 else where.reshape(count, -1).mT
    covers(bool((places < len(rows)).all()), "rows that are there")
    # A place of -1 is a row that was dropped: the row of zeros behind the others, without a bias.
    there = torch.cat([wide(rows), rows.new_zeros(1, rows.shape[1], dtype=torch.float32)])
    total = torch.zeros((len(places), rows.shape[1]), device=rows.device)
    for slot in range(count):
        taken = there[places[:, slot].long()]
        if isinstance(bias, Tensor):
            taken = taken + wide(bias)[experts[:, slot].long()] * (places[:, slot, None] >= 0)
        total += taken * wide(scales)[:, slot, None]
    for skip in (values["skip1"], values["skip2"]):
        total = total if skip is None else total + skip.float()
    return total.to(rows.dtype)


@formula("npu::npu_moe_token_permute_grad", "(f32[8,16], f32[16,16], i64[8,2], i32[16])")
def token_permute_grad(values: Values) -> Tensor:
    covers(not values.get("padded_mode"), "the plain form")
    tokens, grad, ids = values["tokens"], wide(values["grad_permuted_tokens"]), values["indices"]
    count = ids.shape[1] if ids.dim() > 1 else 1
    places = numbers(values["sorted_indices"].flatten())
    covers(all(0 <= place < len(grad) for place in places), "rows that are there")
    covers(ids.numel() == len(places) == len(tokens) * count > 0, "slots of each token")
    covers(tokens.dim() == 2 and grad.shape[1:] == tokens.shape[1:], "rows as wide as the tokens")
    total = torch.zeros_like(wide(tokens))
    for slot, place in enumerate(places):
        total[slot // count] += grad[place]
    return total.to(tokens.dtype)


def brought_back(rows: Tensor, places: Tensor, probs: Tensor | None) -> Tensor:
    """Sum of each token's rows, by their probabilities."""
    covers(bool(((places >= 0) & (places < len(rows))).all()), "rows that are there")
    count = 1 if probs is None else probs.shape[1]
    taken = wide(rows)[places.flatten().long()].reshape(-1, count, rows.shape[1])
    share = taken.new_ones(taken.shape[:2]) if probs is None else wide(probs)
    return torch.einsum("tkh,tk->th", taken, share).to(rows.dtype)


@formula("npu::npu_moe_token_unpermute", "(f32[16,16], i32[16], f32[8,2])")
def token_unpermute(values: Values) -> Tensor:
    covers(not values.get("padded_mode") and values.get("restore_shape") is None, "the plain form")
    return brought_back(values["permuted_tokens"], values["sorted_indices"], values.get("probs"))


@formula("npu::npu_moe_token_unpermute_grad", "(f32[16,16], f32[8,16], i32[16], f32[8,2])")
def token_unpermute_grad(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("padded_mode") and values.get("restore_shape") is None, "the plain form")
    rows, places, probs = values["permuted_tokens"], values["sorted_indices"], values.get("probs")
    covers(sorted(numbers(places.flatten())) == list(range(len(rows))), "a place for each row")
    inputs = [rows] if probs is None else [rows, probs]

    def forward(x: Tensor, share: Tensor | None = None) -> Tensor:
        return brought_back(x, places, share)

    grads = gradients(forward, inputs, values["grad_unpermuted_tokens"])
    return grads if probs is not None else (*grads, rows.new_empty(0))


@formula("npu::npu_moe_re_routing", "(f32[16,16], i32[2,4])")
def re_routing(values: Values) -> tuple[Tensor, ...]:
    tokens, table = values["tokens"], values["expert_token_num_per_rank"]
    counts: list[list[int]] = [numbers(row) for row in table]
    covers(counts and sum(map(sum, counts)) == len(tokens) and len(tokens), "a count of each row")
    covers(values.get("tokens_dtype") is None, "the dtype of the rows")
    begin, places = 0, members([], len(counts[0]))
    for row in counts:
        for expert, count in enumerate(row):
            places[expert] += range(begin, begin + count)
            begin += count
    order = [place for some in places for place in some]
    index = sorted(range(len(order)), key=order.__getitem__) if values.get("idx_type", 0) else order
    totals = [len(some) for some in places]
    if values.get("expert_token_num_type", 1) != 1:
        totals = [sum(totals[: expert + 1]) for expert in range(len(totals))]
    where = torch.tensor(order, device=tokens.device)
    scales = values.get("per_token_scales")
    moved = torch.ones(len(order), device=tokens.device) if scales is None else scales[where]
    return tokens[where], moved, torch.tensor(index, dtype=torch.int32, device=tokens.device), like(totals, table[0])
