"""Other attention APIs: the flash-attention 3 package, vLLM's vision wrappers and kv-cache forms, xformers.

`maths.attention` computes the attention; `reference_flash.sequences` reads lengths and pages. Dropout and rotary
embedding are rejected. New keys are accepted only by the kernels that append keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash import fake_fa3, sequences, vllm_fa3_fwd
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, attend_packed, ends, gather_pages


def _lse_shape(query: Tensor, cu_seqlens_q: Tensor | None) -> tuple[int, ...]:
    """Return the shape of the log-sum-exp: [heads, tokens] for packed sequences, otherwise [batch, heads, tokens]."""
    if cu_seqlens_q is not None:
        return (query.shape[1], query.shape[0])
    return (query.shape[0], query.shape[2], query.shape[1])


def _fake_two(query: Tensor, value: Tensor, cu_seqlens_q: Tensor | None) -> tuple[Tensor, Tensor]:
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(_lse_shape(query, cu_seqlens_q), dtype=torch.float32)


def _fake_three(query: Tensor, value: Tensor, cu_seqlens_q: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return *_fake_two(query, value, cu_seqlens_q), query.new_empty((2,), dtype=torch.int64)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    rules: Rules,
) -> tuple[Tensor, Tensor]:
    """Return (out, lse float32) of attention in layout [B, S, H, D], or packed [T, H, D] if cu_seqlens_q is given."""
    if cu_seqlens_q is None:
        parts = [attend(query[i], key[i], value[i], rules, need_lse=True) for i in range(query.shape[0])]
        return torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts if part[1] is not None])
    batch = sequences(query, key, value, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    out, lse = attend_packed(query, batch.keys_values, batch.query_ends, rules, need_lse=True)
    assert lse is not None
    return out, lse


@stands_for("xformers_flash::flash_fwd", fake=_fake_three)
def flash_fwd(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Compute attention with `forward`; return (out, lse, rng_state int64 [2] of zeros)."""
    if c.p > 0:
        raise ValueError("dropout is not implemented by the reference of flash-attention")
    rules = Rules(scale=c.softmax_scale, causal=c.is_causal, window=(c.window_left, c.window_right))
    out, lse = forward(c.query, c.key, c.value, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_tables, rules)
    return out, lse, torch.zeros(2, dtype=torch.int64, device=c.query.device)


@stands_for("xformers_flash3::flash_fwd", fake=_fake_two)
def flash3_fwd(c: Call) -> tuple[Tensor, Tensor]:
    """Compute attention with `forward`; return (out, lse)."""
    if c.p > 0 or c.leftpad_k is not None:
        raise ValueError("dropout and leftpad_k are not implemented by the reference of flash-attention")
    rules = Rules(scale=c.softmax_scale, causal=c.is_causal, window=(c.window_left, c.window_right))
    return forward(c.query, c.key, c.value, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_table, rules)


_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _fake_fa3(q: Tensor, v: Tensor, cu_seqlens_q: Tensor | None) -> _Four:
    out, lse, first, second = fake_fa3(q, v, cu_seqlens_q)
    return out, lse, first, second


@stands_for("flash_attn_3::fwd", writes=("out",), fake=_fake_fa3)
def fa3_fwd(c: Call) -> _Four:
    """Return (out, softmax_lse, two empty accumulators), as `_vllm_fa3_C::fwd` does. The scale defaults to 1/√D."""
    results = vllm_fa3_fwd(c)
    result, lse, first, second = results
    return result.clone() if c.out is not None else result, lse, first, second


@stands_for(
    "flash_attn_3::fwd_combine",
    writes=("out",),
    fake=lambda out_partial, lse_partial, out_dtype: (
        out_partial.new_empty(out_partial.shape[1:], dtype=out_dtype or out_partial.dtype),
        lse_partial.new_empty(lse_partial.shape[1:]),
    ),
)
def fa3_combine(c: Call) -> tuple[Tensor, Tensor]:
    """Merge partial outputs [splits, .., D] with log-sum-exps [splits, ..] into (out, log-sum-exp)."""
    lse = torch.logsumexp(c.lse_partial.float(), 0)
    weights = torch.exp(c.lse_partial.float() - lse).nan_to_num(0.0).unsqueeze(-1)
    result = (c.out_partial.float() * weights).sum(0).to(c.out_dtype or c.out_partial.dtype)
    if c.out is not None:
        c.out.copy_(result)
    return result, lse


def _fake_cache(q: Tensor, vcache: Tensor) -> list[Tensor]:
    return [
        q.new_empty((*q.shape[:-1], vcache.shape[-1])),
        q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32),
    ]


@stands_for("_vllm_fa2_C::fwd_kvcache", writes=("kcache", "vcache", "out"), fake=_fake_cache)
def fwd_kvcache(c: Call) -> list[Tensor]:
    """Append new k, v [B, Sn, Hkv, D] to the caches and compute attention.

    Returns [out [B, Sq, H, D], lse [B, H, Sq]]. The new keys start at position seqlens_k. Caches are [B, S, Hkv, D], or
    pages [blocks, page, Hkv, D] if block_table is given. Raises ValueError for rotary embedding and left padding.
    """
    block_table = c.block_table
    if c.rotary_cos is not None or c.leftpad_k is not None:
        raise ValueError("rotary embedding and left padding are not implemented in the reference of fwd_kvcache")
    rules = Rules(
        scale=c.softmax_scale,
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        softcap=c.softcap,
        alibi=c.alibi_slopes,
    )
    batch = c.q.shape[0]
    lengths = c.seqlens_k.tolist() if c.seqlens_k is not None else [c.kcache.shape[1]] * batch
    slots = c.cache_batch_idx.tolist() if c.cache_batch_idx is not None else list(range(batch))
    outs, sums = [], []
    for i in range(batch):
        keys, values = c.kcache, c.vcache
        if c.k is not None and c.v is not None:
            for cache, rows in ((c.kcache, c.k[i]), (c.vcache, c.v[i])):
                place = torch.arange(lengths[i], lengths[i] + rows.shape[0], device=c.q.device)
                if block_table is None:
                    cache[slots[i], place] = rows.to(cache.dtype)
                else:
                    page = cache.shape[1]
                    cache[block_table[i, place // page].to(torch.int64), place % page] = rows.to(cache.dtype)
            lengths[i] += c.k.shape[1]
        if block_table is None:
            pair = (keys[slots[i], : lengths[i]], values[slots[i], : lengths[i]])
        else:
            pair = (gather_pages(keys, block_table[i], lengths[i]), gather_pages(values, block_table[i], lengths[i]))
        part, lse = attend(c.q[i], *pair, rules, need_lse=True)
        assert lse is not None
        outs.append(part)
        sums.append(lse)
    result = torch.stack(outs)
    if c.out is not None:
        c.out.copy_(result)
    return [result, torch.stack(sums)]


def _fake_segments(q: Tensor) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@stands_for(
    "vllm::flash_attn_maxseqlen_wrapper", "vllm::torch_sdpa_wrapper", "vllm::triton_attn_wrapper", fake=_fake_segments
)
def vision_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Return the attention of a vision encoder, with q, k and v [B, S, H, D].

    If cu_seqlens is given, it splits the tokens of the whole batch into segments, which replace the rows of the batch.
    """
    rules = Rules(scale=q.shape[-1] ** -0.5 if scale is None else scale)
    if cu_seqlens is None:
        return torch.stack([attend(q[i], k[i], v[i], rules)[0] for i in range(q.shape[0])])
    rows, keys, values = (x.flatten(0, 1) if x.dim() == 4 else x for x in (q, k, v))
    bounds = ends(cu_seqlens, rows.shape[0], "cu_seqlens")
    pairs = [(keys[bounds[i] : bounds[i + 1]], values[bounds[i] : bounds[i + 1]]) for i in range(len(bounds) - 1)]
    return attend_packed(rows, pairs, bounds, rules)[0].reshape(q.shape)


@stands_for("vllm::xformers_attn_seqlens_wrapper", fake=_fake_segments)
def vision_attention_lengths(q: Tensor, k: Tensor, v: Tensor, seqlens: Tensor) -> Tensor:
    """Return the attention of a vision encoder; `seqlens` are the lengths of the segments."""
    bounds = torch.cat((seqlens.new_zeros(1), seqlens.cumsum(0)))
    return vision_attention(q, k, v, bounds)


@stands_for("vllm::flash_attn_varlen_func", lacking=("causal",), fake=lambda q: torch.empty_like(q))
def rocm_varlen(c: Call) -> Tensor:
    """Compute causal attention of packed queries [T, H, D] over paged caches [blocks, page, Hkv, D]. The result is
    written to out and returned.
    """
    before, after = c.window_size or (-1, -1)
    rules = Rules(scale=c.softmax_scale, causal=True, window=(before, after))
    batch = sequences(c.q, c.k_cache, c.v_cache, c.cu_seqlens_q, c.cu_seqlens_k, None, c.block_table)
    result = attend_packed(c.q, batch.keys_values, batch.query_ends, rules)[0]
    c.out.copy_(result)
    return result


@stands_for(
    "vllm::flash_attn_with_kvcache",
    fake=lambda decode_query, value_cache: decode_query.new_empty((*decode_query.shape[:-1], value_cache.shape[-1])),
)
def flash_attn_with_kvcache(c: Call) -> Tensor:
    """Compute attention of decode_query [B, Sq, H, D] over caches.

    It works as `_vllm_fa2_C::fwd_kvcache` without new keys.
    """
    scale = c.decode_query.shape[-1] ** -0.5 if c.softmax_scale is None else c.softmax_scale
    return fwd_kvcache(
        with_changes(
            c,
            q=c.decode_query,
            kcache=c.key_cache,
            vcache=c.value_cache,
            k=None,
            v=None,
            seqlens_k=c.cache_seqlens,
            rotary_cos=None,
            cache_batch_idx=None,
            leftpad_k=None,
            out=None,
            softmax_scale=scale,
            is_causal=c.causal,
            window_size_left=-1,
            window_size_right=-1,
        )
    )[0]


def _fake_varlen_op(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@stands_for("sglang::flash_attn_varlen_func_op", fake=_fake_varlen_op)
def sglang_varlen(c: Call) -> Tensor:
    """Compute attention in packed layout [T, H, D], or in [B, S, H, D] without cu_seqlens_q."""
    before, after = c.window_size or (-1, -1)
    scale = c.q.shape[-1] ** -0.5 if c.softmax_scale is None else c.softmax_scale
    rules = Rules(scale=scale, causal=c.causal, window=(before, after), softcap=c.softcap, sinks=c.sinks)
    return forward(c.q, c.k, c.v, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.page_table, rules)[0]


def _cutlass_rules(custom_mask_type: int, scale: float, window: int | None) -> Rules:
    """Return the attention rules for an xformers mask type.

    Type 0 is no mask. Types 1 and 2 are causal masks, aligned to the top left and to the bottom right.
    """
    if custom_mask_type not in (0, 1, 2):
        raise ValueError(f"custom_mask_type {custom_mask_type} is not implemented")
    return Rules(scale=scale, causal=custom_mask_type != 0, window=(window - 1 if window else -1, -1))


def _fake_cutlass(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    query = c.query
    longest = query.shape[1] if c.cu_seqlens_q is None else c.max_seqlen_q or 0
    batch = query.shape[0] if c.cu_seqlens_q is None else c.cu_seqlens_q.shape[0] - 1
    lse = (batch, query.shape[2], -(-longest // 32) * 32 if c.compute_log_sumexp else 0)
    seed = query.new_empty((), dtype=torch.int64)
    return (
        query.new_empty((*query.shape[:-1], c.value.shape[-1])),
        query.new_empty(lse, dtype=torch.float32),
        seed,
        seed.clone(),
        longest,
        c.max_seqlen_k if c.cu_seqlens_q is not None and c.max_seqlen_k else c.value.shape[1],
    )


@stands_for("xformers::efficient_attention_forward_cutlass", fake=_fake_cutlass)
def efficient_attention_cutlass(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """Compute attention of q, k, v [B, M, H, K]; B is 1 if sequences are packed with cu_seqlens.

    Returns (out, lse, seed, offset, maximum query length, maximum key length). lse is [B, H, M rounded up to 32].
    Raises ValueError for dropout and bias.
    """
    query = c.query
    if c.dropout_p > 0 or c.bias is not None:
        raise ValueError("dropout and bias are not implemented in the reference of xformers' attention")
    shapes = _fake_cutlass(with_changes(c, query=query))
    rules = _cutlass_rules(c.custom_mask_type, query.shape[-1] ** -0.5 if c.scale is None else c.scale, c.window_size)
    lse = query.new_full(shapes[1].shape, torch.inf, dtype=torch.float32)
    zero = torch.zeros((), dtype=torch.int64, device=query.device)
    if c.cu_seqlens_q is None:
        parts = [
            attend(query[i], *_aligned(c.key[i], c.value[i], query.shape[1], c.custom_mask_type), rules, need_lse=True)
            for i in range(query.shape[0])
        ]
        out = torch.stack([part[0] for part in parts])
        for i, (_, sums) in enumerate(parts):
            if c.compute_log_sumexp and sums is not None:
                lse[i, :, : sums.shape[1]] = sums
        return out, lse, zero, zero.clone(), shapes[4], shapes[5]
    packed = sequences(query[0], c.key[0], c.value[0], c.cu_seqlens_q, c.cu_seqlens_k, c.seqlen_k, None)
    bounds = packed.query_ends
    pairs = [
        _aligned(k, v, bounds[i + 1] - bounds[i], c.custom_mask_type) for i, (k, v) in enumerate(packed.keys_values)
    ]
    out, sums = attend_packed(query[0], pairs, bounds, rules, need_lse=True)
    for i in range(len(pairs)):
        if c.compute_log_sumexp and sums is not None:
            lse[i, :, : bounds[i + 1] - bounds[i]] = sums[:, bounds[i] : bounds[i + 1]]
    return out.unsqueeze(0), lse, zero, zero.clone(), shapes[4], shapes[5]


def _aligned(k: Tensor, v: Tensor, queries: int, custom_mask_type: int) -> tuple[Tensor, Tensor]:
    """Cut the keys to those visible under a top-left causal mask. The last query is then aligned with the last key."""
    return (k[:queries], v[:queries]) if custom_mask_type == 1 else (k, v)
