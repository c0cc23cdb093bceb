"""aiter's attention (aiter/ops/mha.py, attention.py): dense, varlen, CSR-paged prefill, and paged decode."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash import sequences
from opreplay.replay.ops.attention.reference_vllm import paged_keys_values
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, attend_packed, ends, gather_blocks
from opreplay.replay.ops.maths.quantize import fp8_view

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _out_dtype(q: Tensor) -> torch.dtype:
    return torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype


def _descale(*scales: Tensor | None) -> float:
    factor = 1.0
    for scale in scales:
        factor *= 1.0 if scale is None else float(scale.float().mean())
    return factor


def _refuse(dropout_p: float, bias: Tensor | None) -> None:
    if dropout_p > 0 or bias is not None:
        raise ValueError("dropout and bias are not implemented in the reference of aiter's attention")


def _fake_dense(q: Tensor, v: Tensor, return_softmax_lse: bool) -> _Four:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_out_dtype(q))
    shape = (q.shape[0], q.shape[2], q.shape[1]) if return_softmax_lse else (0,)
    return out, q.new_empty(shape, dtype=torch.float32), _empty(q), q.new_empty((2,), dtype=torch.int64)


def _empty(q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.uint8)


def _state(q: Tensor) -> Tensor:
    """Return the random state of a call without dropout."""
    return torch.zeros(2, dtype=torch.int64, device=q.device)


@stands_for("aiter::fmha_v3_fwd", "aiter::mha_fwd", fake=_fake_dense)
def dense_forward(c: Call) -> _Four:
    """Compute attention in layout [B, S, H, D].

    Returns (out, lse, dropout mask, random state). lse is float32 [B, H, Sq] or empty, the dropout mask is empty, and
    the random state is int64 [2].
    """
    q = c.q
    v_descale = getattr(c, "v_descale", None)
    _refuse(c.dropout_p, c.bias)
    rules = Rules(
        scale=c.softmax_scale * _descale(getattr(c, "q_descale", None), getattr(c, "k_descale", None)),
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        alibi=c.alibi_slopes,
        sinks=getattr(c, "sink_ptr", None),
    )
    wide = q.to(_out_dtype(q))
    parts = [attend(wide[i], c.k[i], c.v[i], rules, need_lse=c.return_softmax_lse) for i in range(q.shape[0])]
    result = torch.stack([part[0] for part in parts])
    if v_descale is not None:
        result = (result * _descale(v_descale)).to(result.dtype)
    if c.out is not None:
        c.out.copy_(result)
    sums = [part[1] for part in parts if part[1] is not None]
    lse = torch.stack(sums) if sums else q.new_empty((0,), dtype=torch.float32)
    return result, lse, _empty(q), _state(q)


@stands_for("aiter::_flash_attn_forward", fake=lambda q, v: _fake_dense(q, v, False)[0])
def flash_attn_forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute dense attention [B, S, H, D] without mask, with scale 1/√D. Test traces record only the three tensors."""
    rules = Rules(scale=q.shape[-1] ** -0.5)
    return torch.stack([attend(q[i], k[i], v[i], rules)[0] for i in range(q.shape[0])])


def _fake_packed(q: Tensor, v: Tensor, return_softmax_lse: bool) -> _Four:
    width = v.shape[-1]
    out = q.new_empty((*q.shape[:-1], width), dtype=_out_dtype(q))
    shape = (q.shape[1], q.shape[0]) if return_softmax_lse else (0,)
    return out, q.new_empty(shape, dtype=torch.float32), _empty(q), q.new_empty((2,), dtype=torch.int64)


@stands_for("aiter::fmha_v3_varlen_fwd", "aiter::mha_varlen_fwd", fake=_fake_packed)
def varlen_forward(c: Call) -> _Four:
    """Compute attention of packed queries [T, H, D].

    Keys are packed, or paged if the call has a block_table. cu_seqlens_k gives the lengths of paged keys.
    """
    _refuse(c.dropout_p, c.bias)
    rules = Rules(
        scale=c.softmax_scale,
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        softcap=c.logits_soft_cap,
        alibi=c.alibi_slopes,
        sinks=getattr(c, "sink_ptr", None),
    )
    batch = sequences(c.q, c.k, c.v, c.cu_seqlens_q, c.cu_seqlens_k, None, c.block_table)
    return _packed_result(c.q, batch.keys_values, batch.query_ends, rules, c.return_softmax_lse, c.out)


def _packed_result(
    q: Tensor,
    keys_values: list[tuple[Tensor, Tensor]],
    query_ends: list[int],
    rules: Rules,
    need_lse: bool,
    out: Tensor | None,
    v_scale: float = 1.0,
) -> _Four:
    result, lse = attend_packed(q.to(_out_dtype(q)), keys_values, query_ends, rules, need_lse=need_lse)
    if v_scale != 1.0:
        result = (result * v_scale).to(result.dtype)
    if out is not None:
        out.copy_(result)
    return result, q.new_empty((0,), dtype=torch.float32) if lse is None else lse, _empty(q), _state(q)


@stands_for("aiter::mha_batch_prefill", fake=_fake_packed)
def mha_batch_prefill(c: Call) -> _Four:
    """Compute attention of q [T, H, D] over k and v, which are [slots, Hkv, D] or [pages, page, Hkv, D].

    Sequence i has the pages kv_page_indices[kv_indptr[i] : kv_indptr[i + 1]].
    """
    _refuse(c.dropout_p, getattr(c, "bias", None))
    rules = Rules(
        scale=c.softmax_scale * _descale(getattr(c, "q_descale", None), getattr(c, "k_descale", None)),
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        softcap=c.logits_soft_cap,
        alibi=c.alibi_slopes,
        sinks=getattr(c, "sink_ptr", None),
    )
    pairs = csr_keys_values(
        c.k, c.v, c.kv_indptr, c.kv_page_indices, getattr(c, "kv_last_page_lens", None), getattr(c, "seqlen_k", None)
    )
    query_ends = ends(c.cu_seqlens_q, c.q.shape[0], "cu_seqlens_q")
    return _packed_result(
        c.q, pairs, query_ends, rules, c.return_softmax_lse, c.out, _descale(getattr(c, "v_descale", None))
    )


def csr_keys_values(
    k: Tensor,
    v: Tensor,
    indptr: Tensor,
    indices: Tensor,
    last_page_lens: Tensor | None = None,
    lengths: Tensor | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """Return (k, v) [tokens, Hkv, D] of each sequence from its list of pages in CSR form.

    The pages of a 3-D cache hold one token each. The number of tokens in the last page comes from `lengths` if given,
    otherwise from `last_page_lens`. If neither is given, the last page is full. Raises ValueError for 5-D caches.
    """
    if k.dim() == 5:
        raise ValueError("5-D vectorised caches are not implemented")
    pages_k, pages_v = (x.unsqueeze(1) if x.dim() == 3 else x for x in (k, v))
    page = pages_k.shape[1]
    bounds = ends(indptr, indices.shape[0], "kv_indptr")
    last = last_page_lens.tolist() if last_page_lens is not None and page > 1 else None
    token_counts = lengths.tolist() if lengths is not None else None
    pairs: list[tuple[Tensor, Tensor]] = []
    for i in range(len(bounds) - 1):
        table = indices[bounds[i] : bounds[i + 1]]
        tokens = table.shape[0] * page
        if token_counts is not None:
            tokens = min(tokens, token_counts[i])
        elif last is not None and tokens:
            tokens += last[i] - page
        keys, values = (gather_blocks(x, table, tokens, page).flatten(0, 1)[:tokens] for x in (pages_k, pages_v))
        pairs.append((keys, values))
    return pairs


@stands_for("aiter::paged_attention_ragged", fake=lambda out: torch.empty_like(out))
def paged_attention_ragged(c: Call) -> Tensor:
    """Compute attention of query [S, H, D], one row per sequence, over a paged cache.

    Caches are [pages, page, Hkv, D], or [pages, Hkv, page, D] for layout "HND".
    """
    caches = [fp8_view(cache, c.kv_cache_dtype) for cache in (c.key_cache, c.value_cache)]
    if c.kv_cache_layout == "HND":
        caches = [cache.transpose(1, 2) for cache in caches]
    pairs = csr_keys_values(caches[0], caches[1], c.kv_indptr, c.kv_page_indices, c.kv_last_page_lens)
    quantized = caches[0].dtype.itemsize == 1
    rules = Rules(
        scale=c.scale * (_descale(c.k_scale) if quantized else 1.0), softcap=c.logits_soft_cap, alibi=c.alibi_slopes
    )
    rows = list(range(len(pairs) + 1))
    if len(pairs) > c.query.shape[0]:
        raise ValueError(f"{len(pairs)} sequences but {c.query.shape[0]} queries")
    result = attend_packed(c.query, pairs, rows, rules)[0] * (_descale(c.v_scale) if quantized else 1.0)
    c.out.copy_(result)
    return result.to(c.out.dtype)


@stands_for("aiter::pa_fwd_asm", fake=lambda Q: torch.empty_like(Q))
def pa_fwd_asm(c: Call) -> Tensor:
    """Compute attention of Q [S, H, D] over a paged cache with scale 1/√D.

    K is [blocks, Hkv, D/x, page, x]. V is [blocks, Hkv, page/x, D, x] or [blocks, Hkv, D, page]. The cache's
    quantisation scales are not applied, because they do not change the work.
    """
    values = c.V.permute(0, 1, 3, 2, 4).flatten(3) if c.V.dim() == 5 else c.V
    lengths = c.context_lens.tolist()
    pairs = [
        paged_keys_values(c.K, values, c.block_tables[i], length, c.Q.dtype)
        for i, length in enumerate(lengths[: c.Q.shape[0]])
    ]
    result = attend_packed(c.Q, pairs, list(range(len(pairs) + 1)), Rules(scale=c.Q.shape[-1] ** -0.5))[0]
    if c.out_ is not None:
        c.out_.copy_(result)
    return result


@stands_for("vllm::rocm_aiter_mla_decode_fwd")
def mla_decode(c: Call) -> None:
    """Compute attention of q [T, H, rank + rope] over latent pages [P, page, 1, rank + rope] and write it to o [T, H,
    rank].

    The values are the first `rank` elements of the latent rows.
    """
    if c.kv_indptr is None or c.kv_indices is None:
        raise ValueError("kv_indptr and kv_indices are needed")
    pages = c.kv_buffer if c.kv_buffer.dim() == 4 else c.kv_buffer.unsqueeze(-2)
    pairs = csr_keys_values(pages, pages[..., : c.o.shape[-1]], c.kv_indptr, c.kv_indices, c.kv_last_page_lens)
    rules = Rules(scale=c.sm_scale, causal=True, softcap=c.logit_cap)
    c.o.copy_(attend_packed(c.q, pairs, ends(c.qo_indptr, c.q.shape[0], "qo_indptr"), rules)[0])
