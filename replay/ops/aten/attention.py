"""Fused attention forwards of CUDA and ROCm through aten::scaled_dot_product_attention, without dropout.

Results have the number of the originals; log-sum-exps, random states and masks are placeholders, since no replay reads
them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Maybe = Tensor | None


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Maybe, *, causal: bool, scale: float | None) -> Tensor:
    """q [B, H, Sq, D], k and v [B, Hkv, Sk, D] → [B, H, Sq, Dv]; H is a multiple of Hkv."""
    if mask is not None and causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask, causal = mask.masked_fill(~seen, -torch.inf), False
    grouped = q.shape[-3] != k.shape[-3]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def _flip(x: Tensor) -> Tensor:
    """[B, S, H, D] ↔ [B, H, S, D]."""
    return x.transpose(1, 2)


def _lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=torch.float32)


def _state(q: Tensor) -> Tensor:
    return q.new_zeros((), dtype=torch.int64)


def scaled_dot_product_flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Layout [B, H, S, D]."""
    del dropout_p, return_debug_mask
    out = attend(q, k, v, None, causal=is_causal, scale=scale)
    return out, _lse(q), None, None, q.shape[-2], k.shape[-2], _state(q), _state(q), q.new_empty(0)


def scaled_dot_product_efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Maybe,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Layout [B, H, S, D]."""
    del compute_log_sumexp, dropout_p
    return attend(q, k, v, attn_bias, causal=is_causal, scale=scale), _lse(q), _state(q), _state(q)


def scaled_dot_product_cudnn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Maybe,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Layout [B, H, S, D]."""
    del compute_log_sumexp, dropout_p, return_debug_mask
    out = attend(q, k, v, attn_bias, causal=is_causal, scale=scale)
    return out, _lse(q), None, None, q.shape[-2], k.shape[-2], _state(q), _state(q), q.new_empty(0)


def cudnn_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Maybe,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Layout [B, H, S, D], or packed [T, H, D] with cumulative lengths."""
    if cum_seq_q is None:
        return scaled_dot_product_cudnn_attention(
            q, k, v, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale=scale
        )
    out = _packed(q, k, v, cum_seq_q, cum_seq_k, causal=is_causal, scale=scale)
    return out, _lse(q), cum_seq_q, cum_seq_k, max_q, max_k, _state(q), _state(q), q.new_empty(0)


def flash_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *_: Any,
    scale: float | None = None,
    **__: Any,
) -> tuple[Any, ...]:
    """Layout [B, S, H, D], or packed [T, H, D] with cumulative lengths; windows and ALiBi are left out."""
    del max_q, max_k, dropout_p, return_debug_mask
    if cum_seq_q is None:
        out = attend(_flip(q), _flip(k), _flip(v), None, causal=is_causal, scale=scale).transpose(1, 2)
    else:
        out = _packed(q, k, v, cum_seq_q, cum_seq_k, causal=is_causal, scale=scale)
    return out, _lse(q), _state(q), _state(q), q.new_empty(0)


def efficient_attention_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    cu_seqlens_q: Maybe,
    cu_seqlens_k: Maybe,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Maybe = None,
    window_size: int | None = None,
) -> tuple[Any, ...]:
    """Layout [B, S, H, D]; packed as [1, T, H, D] with cumulative lengths. Mask types above 0 are causal."""
    del dropout_p, compute_log_sumexp, seqlen_k, window_size
    causal = custom_mask_type > 0
    if cu_seqlens_q is None:
        out = attend(_flip(q), _flip(k), _flip(v), bias, causal=causal, scale=scale).transpose(1, 2)
    else:
        out = _packed(q[0], k[0], v[0], cu_seqlens_q, cu_seqlens_k, causal=causal, scale=scale).unsqueeze(0)
    return out, _lse(q), _state(q), _state(q), max_seqlen_q or 0, max_seqlen_k or 0


def _packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Maybe, *, causal: bool, scale: float | None
) -> Tensor:
    """Sequences one behind the other, [T, H, D], each attending to itself alone."""
    starts_q = ends_q.tolist()
    starts_k = starts_q if ends_k is None else ends_k.tolist()
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    for i in range(len(starts_q) - 1):
        here, there = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
        if here.start >= here.stop or there.start >= there.stop:
            continue
        queries, keys, values = (t.transpose(0, 1).unsqueeze(0) for t in (q[here], k[there], v[there]))
        out[here] = attend(queries, keys, values, None, causal=causal, scale=scale)[0].transpose(0, 1)
    return out
