# pyright: strict
"""Attention and its softmax: dense, packed, paged, and merged from parts.

Written from public documentation, independent of the references.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import Values, covers, formula, formulas, numbers, of, wide


@formula("te_softmax::scaled_softmax_fwd", "(bf16[2,3,8,16], 0.5)")
def scaled_softmax(values: Values) -> Tensor:
    x = wide(values["inputs"]) * values["scale"]
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return (powers / powers.sum(-1, keepdim=True)).to(values["inputs"].dtype)


def causal(scores: Tensor) -> Tensor:
    """Which keys each query sees when the last query sees all of them."""
    queries, keys = scores.shape[-2:]
    return torch.ones((queries, keys), dtype=torch.bool, device=scores.device).tril(keys - queries)


@formula("te_softmax::scaled_upper_triang_masked_softmax_fwd", "(bf16[6,16,16], 0.5)")
def causal_softmax(values: Values) -> Tensor:
    x = values["inputs"]
    # Transformer Engine: "causal mask is only for self attention".
    covers(x.shape[-2] == x.shape[-1], "as many queries as keys")
    return aligned_causal_softmax(values)


@formula("te_softmax::scaled_aligned_causal_masked_softmax_fwd", "(bf16[2,3,8,16], 0.5)")
def aligned_causal_softmax(values: Values) -> Tensor:
    x = wide(values["inputs"]) * values["scale"]
    seen = causal(x)
    # What is not seen is written as zero, whatever the rest of the row is.
    return torch.softmax(x.masked_fill(~seen, -torch.inf), -1).masked_fill(~seen, 0).to(values["inputs"].dtype)


@formula("te_softmax::scaled_masked_softmax_fwd", "(bf16[2,3,8,16], bool[2,1,8,16], 0.5)")
def masked_softmax(values: Values) -> Tensor:
    x, hidden = wide(values["inputs"]) * values["scale"], values["mask"].bool()
    chance = torch.softmax(x.masked_fill(hidden, -10000.0), -1)
    return chance.masked_fill(hidden.all(-1, keepdim=True), 0).to(values["inputs"].dtype)


@formulas("""
    te_softmax::scaled_softmax_bwd te_softmax::scaled_masked_softmax_bwd
    te_softmax::scaled_aligned_causal_masked_softmax_bwd | (bf16[2,3,8,16], bf16[2,3,8,16], 0.5)
    te_softmax::scaled_upper_triang_masked_softmax_bwd | (bf16[6,16,16], bf16[6,16,16], 0.5)
""")
def softmax_backward(values: Values) -> Tensor:
    y, grad = wide(values["softmax_results"]), wide(values["output_grads"])
    return (values["scale"] * y * (grad - (y * grad).sum(-1, keepdim=True))).to(values["output_grads"].dtype)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float, *, is_causal: bool = False) -> tuple[Tensor, Tensor]:
    """Attention of q [.., H, Sq, D] to k, v [.., Hk, Sk, D], and the logarithm of what its weights are divided by."""
    q, k, v = wide(q), wide(k), wide(v)
    repeats = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(repeats, -3), v.repeat_interleave(repeats, -3)
    scores = (q @ k.mT) * scale
    if is_causal:
        scores = scores.masked_fill(~causal(scores), -torch.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def plain(values: Values) -> None:
    """Refuse what the formulas of attention leave out."""
    windows = [
        values.get(name, -1) for name in ("window_size_left", "window_size_right", "window_left", "window_right")
    ]
    others = [
        values.get(name) for name in ("alibi_slopes", "block_table", "leftpad_k", "seqused_k", "bias", "sink_ptr")
    ]
    scales = [values.get(name) for name in ("q_descale", "k_descale", "v_descale")]
    numbers = [
        values.get(name, 0) for name in ("dropout_p", "p_dropout", "p", "softcap", "sink_size", "attention_chunk")
    ]
    covers(all(value < 0 for value in windows), "no windows")
    covers(all(value is None for value in others), "no biases")
    covers(all(value is None for value in scales), "numbers without a scale")
    covers(not any(numbers), "no dropout, no cap")


@formula(
    "flash_attn::_flash_attn_forward",
    "(f32[2,6,2,8], f32[2,6,2,8], f32[2,6,2,8], 0.0, 0.35, True, -1, -1, 0.0, None, False)",
)
def flash_attention(values: Values) -> tuple[Tensor, ...]:
    plain(values)
    covers(not values["return_softmax"], "no weights")
    q, k, v = (values[name].transpose(1, 2) for name in ("q", "k", "v"))
    # Rows without a key are the library's business: +inf.
    covers(not values["causal"] or q.shape[-2] <= k.shape[-2], "each query sees a key")
    out, lse = attended(q, k, v, values["softmax_scale"], is_causal=values["causal"])
    # Without dropout neither weights nor a state of random numbers are given.
    return (
        out.transpose(1, 2).to(q.dtype),
        lse.float(),
        q.new_empty((0,)),
        torch.zeros(2, dtype=torch.int64, device=q.device),
    )


@formula(
    "flash_attn::_flash_attn_varlen_forward",
    "(f32[12,4,8], f32[12,2,8], f32[12,2,8], i32[4], i32[4], 12, 12, 0.0, 0.35, True)",
)
def flash_attention_packed(values: Values) -> tuple[Tensor, ...]:
    plain(values)
    q, k, v = values["q"], values["k"], values["v"]
    ends, key_ends = numbers(values["cu_seqlens_q"]), numbers(values["cu_seqlens_k"])
    covers(ends[-1] == len(q), "every query belongs to a sequence")
    covers(key_ends[-1] <= len(k), "the sequences lie in the keys")
    outs: list[Tensor] = []
    norms: list[Tensor] = []
    for (a, b), (c, d) in zip(itertools.pairwise(ends), itertools.pairwise(key_ends), strict=True):
        covers(not b - a > d - c, "each query sees a key")
        out, lse = attended(
            q[a:b].transpose(0, 1),
            k[c:d].transpose(0, 1),
            v[c:d].transpose(0, 1),
            values["softmax_scale"],
            is_causal=values["causal"],
        )
        outs.append(out.transpose(0, 1))
        norms.append(lse)
    return (
        torch.cat(outs).to(q.dtype),
        torch.cat(norms, -1).float(),
        q.new_empty((0,)),
        torch.zeros(2, dtype=torch.int64, device=q.device),
    )


@formulas("""
    aiter::mha_fwd | (f32[2,6,4,8], f32[2,6,2,8], f32[2,6,2,8], 0.0, 0.35, True, -1, -1, 0, True, False)
    aiter::fmha_v3_fwd | (f32[2,6,4,8], f32[2,6,2,8], f32[2,6,2,8], 0.0, 0.35, True, -1, -1, True, False, 1)
""")
def aiter_attention(values: Values) -> tuple[Tensor, ...]:
    plain(values)
    covers(values["return_softmax_lse"], "with the logarithms")
    covers(not values["return_dropout_randval"], "no dropout")
    q, k, v = (values[name].transpose(1, 2) for name in ("q", "k", "v"))
    covers(not values["is_causal"] or q.shape[-2] <= k.shape[-2], "each query sees a key")
    out, lse = attended(q, k, v, values["softmax_scale"], is_causal=values["is_causal"])
    seed = torch.zeros(2, dtype=torch.int64, device=q.device)
    return out.transpose(1, 2).to(q.dtype), lse.float(), torch.empty(0, dtype=torch.uint8, device=q.device), seed


@formula("npu::npu_fusion_attention", "(f32[2,4,6,8], f32[2,4,6,8], f32[2,4,6,8], 4, 'BNSD', scale=0.35)")
def fusion_attention(values: Values) -> tuple[Any, ...]:
    covers(values["input_layout"] == "BNSD", "this layout")
    covers(values.get("actual_seq_qlen") is None, "sequences of one length")
    covers(values.get("actual_seq_kvlen") is None, "sequences of one length")
    covers(values.get("keep_prob", 1.0) == 1.0, "no dropout")
    covers(values.get("sparse_mode", 0) == 0, "no pattern")
    covers(min(values.get("pre_tockens", 2147483647), values.get("next_tockens", 2147483647)) > 1 << 20, "no window")
    q, k, v = (wide(values[name]) for name in ("query", "key", "value"))
    scores = (q @ k.mT) * values.get("scale", 1.0)
    mask = values.get("atten_mask")
    covers(mask is None and values.get("pse") is None, "no mask")
    largest = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - largest)
    total = powers.sum(-1, keepdim=True)
    out = (powers / total @ v).to(values["query"].dtype)
    return (
        out,
        *(statistic.expand(*statistic.shape[:-1], 8).float() for statistic in (largest, total)),
        out.new_empty((0,)),
        0,
        0,
        0,
    )


@formula(
    "_C::paged_attention_v1",
    "(f32[3,4,16], f32[3,4,16], f32[16,2,4,8,4], f32[16,2,16,8], 2, 0.25, i32[3,4], i32[3], 8, 32, None, 'auto',"
    " f32[1], f32[1], 0, 0, 0, 64, 0)",
)
def paged_attention(values: Values) -> Tensor:
    covers(values["alibi_slopes"] is None, "no biases")
    covers(values["blocksparse_vert_stride"] <= 1, "no sparse blocks")
    q, keys, stored = values["query"], values["key_cache"], values["value_cache"]
    # Keys [blocks, heads, D/x, block, x], values [blocks, heads, D, block].
    keys = keys.permute(0, 3, 1, 2, 4).flatten(-2)
    stored = stored.permute(0, 3, 1, 2)
    outs: list[Tensor] = []
    for query, blocks, length in zip(q, values["block_tables"].long(), numbers(values["seq_lens"]), strict=True):
        covers(length > 0, "each sequence has a context")
        k, v = (cache[blocks].flatten(0, 1)[:length].transpose(0, 1) for cache in (keys, stored))
        outs.append(attended(query.unsqueeze(1), k, v, values["scale"])[0].squeeze(1))
    return torch.stack(outs).to(values["out"].dtype)


def merged(a: Tensor, log_a: Tensor, b: Tensor, log_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys [T, H, D], each with the logarithm of its weights' sum [T, H], as to both."""
    total = torch.logaddexp(wide(log_a), wide(log_b))
    share_a, share_b = (torch.exp(wide(log_sum) - total).unsqueeze(-1) for log_sum in (log_a, log_b))
    return (wide(a) * share_a + wide(b) * share_b).to(a.dtype), total


@formula(
    "_C::merge_attn_states",
    "(f32[8,4,16], f32[4,8], f32[8,4,16], f32[4,8], f32[8,4,16], f32[4,8], None)",
)
def merge_attn_states(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["prefill_tokens_with_context"] is None and values.get("output_scale") is None, "the plain form")
    logs = [values[name].mT for name in ("prefix_lse", "suffix_lse")]
    out, total = merged(values["prefix_output"], logs[0], values["suffix_output"], logs[1])
    return out.to(values["output"].dtype), total.mT.to(values["output_lse"].dtype)


@formula(
    "sgl_kernel::merge_state_v2",
    "f32[8,4,16], f32[8,4], f32[8,4,16], f32[8,4], f32[8,4,16], f32[8,4]",
)
def merge_state_v2(values: Values) -> tuple[Tensor, Tensor]:
    out, total = merged(values["v_a"], values["s_a"], values["v_b"], values["s_b"])
    return out, total.to(values["s_a"].dtype)


@formula(
    "sgl_kernel::merge_state",
    "f32[8,4,16], f32[8,4], f32[8,4,16], f32[8,4], f32[8,4,16], f32[8,4]",
)
def merge_state(values: Values) -> tuple[Tensor, Tensor]:
    # FlashInfer's log-sum-exps are to base 2.
    weights = [torch.exp2(wide(values[name])) for name in ("s_a", "s_b")]
    both = weights[0] + weights[1]
    parts = (wide(values[name]) * weight.unsqueeze(-1) for name, weight in zip(("v_a", "v_b"), weights, strict=True))
    out = sum(parts) / both.unsqueeze(-1)
    return out.to(values["v_a"].dtype), torch.log2(both).to(values["s_a"].dtype)


def attention_gradients(values: Values, parts: Sequence[Tensor], out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
    """Of queries, keys and values [.., S, H, D] and the gradient of their result, from the result and the logarithms
    [.., H, Sq] that were saved (Dao and others, FlashAttention, arXiv 2205.14135, algorithm 4)."""
    plain(values)
    is_causal = bool(of(values, "causal", "is_causal"))
    q, k, v, dout, saved = (wide(x).transpose(-3, -2) for x in (*parts, out))
    covers(q.numel() and k.numel() and (not is_causal or q.shape[-2] <= k.shape[-2]), "each query sees a key")
    covers(k.shape[-3] == q.shape[-3] and lse.shape == q.shape[:-1], "a logarithm for each query, a key head for each")
    scores = torch.einsum("...id,...jd->...ij", q, k) * values["softmax_scale"]
    weights = torch.exp(scores - wide(lse).unsqueeze(-1))
    weights = weights * causal(weights) if is_causal else weights
    covers(bool(weights.isfinite().all()), "logarithms that belong to the scores")
    shares = (dout * saved).sum(-1)
    inner = weights * (torch.einsum("...id,...jd->...ij", dout, v) - shares.unsqueeze(-1)) * values["softmax_scale"]
    equations = (
        ("...ij,...jd->...id", inner, k),
        ("...ij,...id->...jd", inner, q),
        ("...ij,...id->...jd", weights, dout),
    )
    grads = (torch.einsum(*part).transpose(-3, -2) for part in equations)
    return shares.float(), *(grad.to(x.dtype) for grad, x in zip(grads, parts, strict=False))


@formula(
    "flash_attn::_flash_attn_backward",
    "(f32[2,6,4,8], f32[2,6,4,8], f32[2,6,4,8], f32[2,6,4,8], f32[2,6,4,8], f32[2,4,6], f32[2,6,4,8], f32[2,6,4,8],"
    " f32[2,6,4,8], 0.0, 0.35, True, -1, -1, 0.0, None, False)",
)
def flash_attention_backward(values: Values) -> tuple[Tensor, ...]:
    parts = [values[name] for name in ("q", "k", "v", "dout")]
    return attention_gradients(values, parts, values["out"], values["softmax_lse"])


@formula(
    "flash_attn::_flash_attn_varlen_backward",
    "(f32[12,4,8], f32[12,4,8], f32[12,4,8], f32[12,4,8], f32[12,4,8], f32[4,12], f32[12,4,8], f32[12,4,8],"
    " f32[12,4,8], i32[4], i32[4], 12, 12, 0.0, 0.35, True, -1, -1, 0.0, None, False)",
)
def flash_attention_backward_packed(values: Values) -> tuple[Tensor, ...]:
    ends, key_ends = numbers(values["cu_seqlens_q"]), numbers(values["cu_seqlens_k"])
    q, k, v, dout = (values[name] for name in ("q", "k", "v", "dout"))
    covers(ends[-1] == len(q) and key_ends[-1] == len(k), "rows that all belong to a sequence")
    columns: list[tuple[Tensor, ...]] = []
    for (a, b), (c, d) in zip(itertools.pairwise(ends), itertools.pairwise(key_ends), strict=True):
        parts = q[a:b], k[c:d], v[c:d], dout[a:b]
        columns.append(attention_gradients(values, parts, values["out"][a:b], values["softmax_lse"][:, a:b]))
    shares, *grads = zip(*columns, strict=True)
    return torch.cat(shares, -1), *(torch.cat(part) for part in grads)


@formula("npu::npu_attention_update", "([f32[8], f32[8]], [f32[8,16], f32[8,16]], 1)")
def npu_attention_update(values: Values) -> tuple[Tensor, Tensor]:
    """Parts of an attention, each weighed by its share of the sum of powers."""
    covers(values["update_type"] == 1 and len(values["lse"]), "parts, with the total")
    total = values["lse"][0].double()
    out = values["local_out"][0].double()
    for lse, part in zip(values["lse"][1:], values["local_out"][1:], strict=True):
        both = torch.logaddexp(total, lse.double())
        covers(bool(both.isfinite().all()), "sums that are numbers")
        out = out * (total - both).exp().unsqueeze(-1) + part.double() * (lse.double() - both).exp().unsqueeze(-1)
        total = both
    return out.to(values["local_out"][0].dtype), total.float()


@formula("flash_attn_3::fwd_combine", "(f32[3,2,8,4,16], f32[3,2,8,4])")
def fwd_combine(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("out") is None and len(values["lse_partial"]), "parts into a new result")
    sums = values["lse_partial"].double()
    covers(bool(sums.isfinite().all()), "sums that are numbers")
    shares = torch.softmax(sums, 0)
    out = torch.einsum("s...,s...d->...d", shares, values["out_partial"].double())
    total = (sums.amax(0).exp() * (sums - sums.amax(0)).exp().sum(0)).log()
    return out.to(values.get("out_dtype") or values["out_partial"].dtype), total.float()


@formula(
    "npu::npu_ring_attention_update",
    "f32[8,2,64], f32[2,4,8,8], f32[2,4,8,8], f32[8,2,64], f32[2,4,8,8], f32[2,4,8,8]",
)
def npu_ring_attention_update(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    """Two parts in layout SBH, with the maxima and sums [B, N, S, 8] of their softmax."""
    covers(values.get("input_layout", "SBH") == "SBH" and values.get("actual_seq_qlen") is None, "layout SBH")
    parts = ("prev", "cur")
    tops = [values[f"{part}_softmax_max"].double() for part in parts]
    top = torch.maximum(*tops)
    factors = [(each - top).exp() for each in tops]
    sums = [values[f"{part}_softmax_sum"].double() * by for part, by in zip(parts, factors, strict=True)]
    total = sums[0] + sums[1]
    covers(bool((total.abs() > 1e-3).all()), "sums that are not nearly zero")
    merged = torch.zeros_like(values["prev_attn_out"], dtype=torch.float64)
    for part, share in zip(parts, sums, strict=True):
        rows = values[f"{part}_attn_out"].double()
        heads = rows.reshape(*rows.shape[:2], share.shape[1], -1)
        merged += torch.einsum("sbnd,bns->sbnd", heads, (share / total)[..., 0]).reshape(rows.shape)
    return merged.to(values["prev_attn_out"].dtype), top.float(), total.float()
