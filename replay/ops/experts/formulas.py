# pyright: strict
"""Which experts a token goes to, and rows brought there and back.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import Values, covers, formula, of, wide


@formula("_moe_C::moe_sum sgl_kernel::moe_sum aiter::moe_sum aiter::_moe_sum", "(f32[8,2,16], f32[8,16])")
def moe_sum(values: Values) -> Tensor:
    return values["input"].sum(1)


@formula("sgl_kernel::moe_sum_reduce", "(f32[8,2,16], f32[8,16], 1.5)")
def moe_sum_reduce(values: Values) -> Tensor:
    return values["input"].sum(1) * values["routed_scaling_factor"]


def routed(weights: Tensor, count: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    covers(weights.dim() == 2, "tokens by experts")
    covers(count <= weights.shape[-1], "no more experts than there are")
    chosen, places = torch.sort(weights, dim=-1, descending=True, stable=True)
    # Which of equal scores is chosen is anybody's choice.
    covers(bool((chosen[:, 1 : count + 1] < chosen[:, :count][:, : chosen.shape[1] - 1]).all()), "scores that differ")
    chosen, places = chosen[..., :count], places[..., :count]
    return (chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen).float(), places


@formula("sgl_kernel::topk_softmax", "(f32[8,2], i32[8,2], f32[8,16], True, 0.0, None)")
def topk_softmax(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values["moe_softcapping"], "scores without a cap")
    covers(values["correction_bias"] is None, "scores without a bias")
    chance = torch.softmax(wide(values["gating_output"]), -1)
    weights, places = routed(chance, values["topk_weights"].shape[-1], values["renormalize"])
    return weights, places.to(values["topk_indices"].dtype)


@formula("_moe_C::topk_softmax", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True, None, None)")
def topk_softmax_with_rows(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("bias") is None and values.get("is_padding") is None, "the plain form")
    chance = torch.softmax(wide(values["gating_output"]), -1)
    count = values["topk_weights"].shape[-1]
    weights, places = routed(chance, count, values["renormalize"])
    # Row of each choice among all of them, ordered by choice.
    rows = torch.arange(count * len(chance), device=chance.device).reshape(count, len(chance)).mT
    return weights, places.to(values["topk_indices"].dtype), rows.to(values["token_expert_indices"].dtype)


@formula("aiter::topk_softmax", "(f32[8,2], i32[8,2], i32[8,2], f32[8,16], True)")
def aiter_topk_softmax(values: Values) -> tuple[Tensor, ...]:
    chance = torch.softmax(wide(values["gating_output"]), -1)
    weights, places = routed(chance, values["topk_weights"].shape[-1], values["need_renorm"])
    # aiter throws the third buffer away ("Not used. Will be used in the future.").
    return weights, places.to(values["topk_indices"].dtype), values["token_expert_indices"]


@formula("sgl_kernel::topk_sigmoid", "(f32[8,2], i32[8,2], f32[8,16], True, None)")
def topk_sigmoid(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["correction_bias"] is None, "the plain form")
    chance = torch.sigmoid(wide(values["gating_output"]))
    weights, places = routed(chance, values["topk_weights"].shape[-1], values["renormalize"])
    return weights, places.to(values["topk_indices"].dtype)


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
