"""Other MoE routing ops of torch_npu and vllm-ascend: gatings, re-routing, gradients of permuting; see also
`reference_npu`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.experts.reference_npu import npu_moe_gating_top_k_softmax

_Three = tuple[Tensor, Tensor, Tensor]


@stands_for("npu::npu_moe_gating_top_k_softmax_v2")
def moe_gating_top_k_softmax_v2(c: Call) -> _Three:
    """Return (weights [T, k], experts int32, softmax float32 [T, E] or empty).

    With renorm 1, the softmax covers only the top k.
    """
    x = c.x
    scores = x.float().softmax(-1)
    if c.renorm == 1:
        logits, ids = x.float().topk(c.k, -1)
        weights = logits.softmax(-1).to(x.dtype)
        ids = ids if c.finished is None else ids.masked_fill(c.finished.unsqueeze(-1), x.shape[-1])
        ids = ids.to(torch.int32)
    else:
        weights, ids, _ = npu_moe_gating_top_k_softmax(x, c.finished, c.k)
    return weights, ids, scores if c.output_softmax else scores.new_empty((0,))


def _fake_re_routing(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens = c.tokens
    rows = tokens.shape[0]
    scales = (
        c.per_token_scales.new_empty(c.per_token_scales.shape)
        if c.per_token_scales is not None
        else tokens.new_empty((rows,), dtype=torch.float32)
    )
    return (
        tokens.new_empty(tokens.shape),
        scales,
        tokens.new_empty((rows,), dtype=torch.int32),
        c.expert_token_num_per_rank.new_empty((c.expert_token_num_per_rank.shape[1],)),
    )


@stands_for("npu::npu_moe_re_routing", fake=_fake_re_routing)
def moe_re_routing(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reorder rows from (rank, expert) order into expert order.

    Returns (rows, scales, index, rows per expert). expert_token_num_per_rank [ranks, E] holds the number of rows of
    each (rank, expert). The index is each row's source (idx_type 0) or its destination (1). Rows per expert are plain
    counts for expert_token_num_type 1, otherwise cumulative.
    """
    tokens = c.tokens
    numbers = c.expert_token_num_per_rank.to(torch.int64)
    ranks, experts = numbers.shape
    owner = torch.arange(ranks * experts, device=tokens.device).repeat_interleave(numbers.flatten())
    place = torch.arange(tokens.shape[0], device=tokens.device)
    order = torch.cat((torch.argsort(owner % experts, stable=True), place[owner.numel() :]))
    rows = tokens[order]
    scales = (
        c.per_token_scales[order]
        if c.per_token_scales is not None
        else tokens.new_ones((tokens.shape[0],), dtype=torch.float32)
    )
    back = torch.empty_like(order).scatter_(0, order, place)
    total = numbers.sum(0)
    total = total if c.expert_token_num_type == 1 else total.cumsum(0)
    return (
        rows,
        scales,
        (order if c.idx_type == 0 else back).to(torch.int32),
        total.to(c.expert_token_num_per_rank.dtype),
    )


@stands_for("npu::npu_moe_token_permute_grad")
def moe_token_permute_grad(c: Call) -> Tensor:
    """Return the gradient of npu_moe_token_permute: the sum over k of each token's rows."""
    topk = c.indices.shape[1] if c.indices.dim() > 1 else 1
    return _gathered(c.grad_permuted_tokens, c.sorted_indices).unflatten(0, (-1, topk)).sum(1).to(c.tokens.dtype)


def _gathered(rows: Tensor, places: Tensor) -> Tensor:
    """Return the rows at `places` as float32, with zeros for places after the last row."""
    where = places.flatten().to(torch.int64)
    gathered = rows[where.clamp(0, rows.shape[0] - 1)].float()
    return gathered.masked_fill((where >= rows.shape[0]).unsqueeze(1), 0.0)


@stands_for("npu::npu_moe_token_unpermute_grad")
def moe_token_unpermute_grad(c: Call) -> tuple[Tensor, Tensor]:
    """Return (gradient of the permuted rows, gradient of probs or an empty tensor)."""
    permuted_tokens, probs = c.permuted_tokens, c.probs
    topk = probs.shape[1] if probs is not None else 1
    upstream = c.grad_unpermuted_tokens.float().repeat_interleave(topk, 0)
    scaled = upstream if probs is None else upstream * probs.float().reshape(-1, 1)
    where = c.sorted_indices.flatten().to(torch.int64)
    routed = where < permuted_tokens.shape[0]
    # A place behind the rows takes what was dropped.
    wide = scaled.new_zeros((permuted_tokens.shape[0] + 1, scaled.shape[1]))
    wide[where.clamp(max=permuted_tokens.shape[0])] = scaled
    drows = wide[:-1].to(permuted_tokens.dtype)
    if probs is None:
        return drows, permuted_tokens.new_empty((0,))
    dprobs = (upstream * _gathered(permuted_tokens, c.sorted_indices)).sum(1).masked_fill(~routed, 0.0)
    return drows, dprobs.reshape(probs.shape).to(probs.dtype)
