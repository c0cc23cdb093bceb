# pyright: strict
"""Which experts a token goes to, and rows brought there and back.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, formula, numbers, of, wide


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


@formula("sgl_kernel::topk_softmax", "(f32[8,2], i32[8,2], f32[8,16], True, 0.0, None)")
@formula("sglang::moe_topk_softmax_out", "(f32[8,2], i32[8,2], f32[8,16], f32[128], True, 0.0, None)")
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


@formula("aiter::topk_softmax", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True)")
@formula("aiter::topk_softmax_asm", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True)")
@formula("vllm::rocm_aiter_topk_softmax", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True, 0, '')")
def aiter_topk_softmax(values: Values) -> tuple[Tensor, ...]:
    covers(not values.get("num_shared_experts"), "routed experts")
    chance = torch.softmax(wide(values["gating_output"]), -1)
    weights, places = routed(chance, values["topk_weights"].shape[-1], of(values, "need_renorm", "renormalize"))
    # aiter throws the third buffer away ("Not used. Will be used in the future.").
    return weights, places.to(values["topk_indices"].dtype), values["token_expert_indices"]


@formula("sgl_kernel::topk_sigmoid", "(f32[8,2], i32[8,2], f32[8,16], True, None)")
@formula("aiter::topk_sigmoid vllm::rocm_aiter_topk_sigmoid", "(f32[8,2], i32[8,2], f32[8,16])")
@formula("sglang::moe_topk_sigmoid_out", "(f32[8,16], f32[8,2], i32[8,2], f32[128], True, None, 1.5, 0)")
def topk_sigmoid(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("num_fused_shared_experts"), "routed experts")
    chance = torch.sigmoid(wide(values["gating_output"]))
    count, renormalize = values["topk_weights"].shape[-1], values.get("renormalize", False)
    factor = values.get("routed_scaling_factor", 1.0)
    weights, places = routed(chance, count, renormalize, values.get("correction_bias"), factor)
    return weights, places.to(of(values, "topk_indices", "topk_ids").dtype)


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


@formula("aiter::grouped_topk", "(f32[8,16], f32[8,2], i32[8,2], 4, 2, True, True, 1.5)")
@formula("vllm::rocm_aiter_grouped_topk", "(f32[8,16], f32[8,2], i32[8,2], 4, 2, True, 'softmax', 1.5)")
def grouped_topk(values: Values) -> tuple[Tensor, Tensor]:
    kind = values.get("scoring_func", "softmax" if values.get("is_softmax", True) else "sigmoid")
    covers(kind in ("sigmoid", "softmax"), "scores with a name")
    scores = scored(values["gating_output"], kind)
    groups, kept = values["num_expert_group"], values["topk_group"]
    places = within_groups(scores, values["topk_ids"].shape[-1], groups, kept, 1)
    factor = values.get("routed_scaling_factor", 1.0)
    return weighed(scores, places, values["need_renorm"], factor), places.to(values["topk_ids"].dtype)


@formula("aiter::biased_grouped_topk_hip", "(f32[8,16], f32[16], f32[8,2], i32[8,2], 4, 2, True, 1.5)")
@formula("vllm::rocm_aiter_biased_grouped_topk", "(f32[8,16], f32[16], f32[8,2], i32[8,2], 4, 2, True, 1.5)")
@formula("sglang::fused_topk_deepseek", "(f32[8,16], f32[16], 4, 2, 2, 1.5, f32[8,2], i32[8,2], True)")
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


@formula("sgl_kernel::moe_fused_gate", "(f32[8,16], f32[16], 4, 2, 2, 0, 1.5, True)")
@formula("sgl_kernel::kimi_k2_moe_fused_gate", "(f32[8,16], f32[16], 2, True, 1.5, True)")
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


@formula("npu::npu_moe_gating_top_k", "(f32[8,16], 2)")
@formula("_C_ascend::moe_gating_top_k", "(f32[8,16], 2, 2, 4, 1, 0, 1, True, 1.5, 1e-20, f32[16])")
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
