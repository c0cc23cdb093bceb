"""Fused attention forward ops of CUDA and ROCm, computed by aten::scaled_dot_product_attention without dropout.

Results match the originals in number, sizes and dtypes. Log-sum-exps, random states and masks are placeholders, because
replays do not read them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call

Maybe = Tensor | None


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Maybe, *, causal: bool, scale: float | None) -> Tensor:
    """Return the attention [B, H, Sq, Dv] of q [B, H, Sq, D], k [B, Hkv, Sk, D] and v [B, Hkv, Sk, Dv].

    H is a multiple of Hkv.
    """
    if mask is not None and causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask, causal = mask.masked_fill(~seen, -torch.inf), False
    grouped = q.shape[-3] != k.shape[-3]
    forms = {"enable_gqa": True} if grouped else {}  # torch 2.4 has no such argument
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, **forms)


def _flip(x: Tensor) -> Tensor:
    """Swap tokens and heads: [B, S, H, D] ↔ [B, H, S, D]."""
    return x.transpose(1, 2)


def _lse(q: Tensor) -> Tensor:
    return q.new_empty(q.shape[:-1], dtype=torch.float32)


def _padded_lse(q: Tensor, batch: int, heads: int, longest: int, *, wanted: bool) -> Tensor:
    """Return a placeholder log-sum-exp [B, H, S].

    S is padded to a multiple of 32, as in the memory-efficient kernels. S is 0 if the result is not wanted.
    """
    return q.new_empty((batch, heads, -(-longest // 32) * 32 if wanted else 0), dtype=torch.float32)


def _state(q: Tensor) -> Tensor:
    return q.new_zeros((), dtype=torch.int64)


def _flash_states(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return placeholders of the random state: a tensor for seed and offset, and an unused tensor."""
    return q.new_zeros(2, dtype=torch.uint64), q.new_zeros((), dtype=torch.uint64)


def _tokens_first(out: Tensor) -> Tensor:
    """Return `out` [B, H, S, D] as a view of memory in [B, S, H, D] order."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


def scaled_dot_product_flash_attention(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, H, S, D]."""
    q, k = c.query, c.key
    out = attend(q, k, c.value, getattr(c, "attn_bias", None), causal=c.is_causal, scale=c.scale)
    return out, _lse(q), None, None, q.shape[-2], k.shape[-2], *_flash_states(q), q.new_empty(0)


def scaled_dot_product_cudnn_attention(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, H, S, D]."""
    out = attend(c.query, c.key, c.value, c.attn_bias, causal=c.is_causal, scale=c.scale)
    states = _state(c.query), _state(c.query)
    return out, _lse(c.query), None, None, c.query.shape[-2], c.key.shape[-2], *states, c.query.new_empty(0)


def scaled_dot_product_efficient_attention(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, H, S, D]."""
    q = c.query
    out = _tokens_first(attend(q, c.key, c.value, c.attn_bias, causal=c.is_causal, scale=c.scale))
    return out, _padded_lse(q, *q.shape[:3], wanted=c.compute_log_sumexp), _state(q), _state(q)


def cudnn_attention_forward(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, H, S, D], or packed [T, H, D] with cumulative lengths."""
    if c.cum_seq_q is None:
        return scaled_dot_product_cudnn_attention(c)
    q, ends = c.query, (c.cum_seq_q, c.cum_seq_k)
    out = _packed(q, c.key, c.value, *ends, causal=c.is_causal, scale=c.scale)
    return out, _lse(q), *ends, c.max_q, c.max_k, _state(q), _state(q), q.new_empty(0)


def flash_attention_forward(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, S, H, D], or in packed layout [T, H, D] if the call has cumulative lengths.
    Windows and ALiBi are ignored.
    """
    q, k, v = c.query, c.key, c.value
    if c.cum_seq_q is None:
        out = attend(_flip(q), _flip(k), _flip(v), None, causal=c.is_causal, scale=c.scale).transpose(1, 2)
    else:
        out = _packed(q, k, v, c.cum_seq_q, c.cum_seq_k, causal=c.is_causal, scale=c.scale)
    # Heads come before tokens.
    lse = _lse(q.transpose(-3, -2))
    return out, lse, *_flash_states(q), q.new_empty(0)


def efficient_attention_forward(c: Call) -> tuple[Any, ...]:
    """Compute attention in layout [B, S, H, D], or packed [1, T, H, D] with cumulative lengths. Mask types above 0 are
    causal.
    """
    q, k, v = c.query, c.key, c.value
    causal = c.custom_mask_type > 0
    if c.cu_seqlens_q is None:
        out = attend(_flip(q), _flip(k), _flip(v), c.bias, causal=causal, scale=c.scale).transpose(1, 2)
    else:
        ends = c.cu_seqlens_q, c.cu_seqlens_k
        out = _packed(q[0], k[0], v[0], *ends, causal=causal, scale=c.scale).unsqueeze(0)
    batch, lengths = q.shape[0], (q.shape[1], k.shape[1])
    if c.cu_seqlens_q is not None:
        batch, lengths = c.cu_seqlens_q.shape[0] - 1, (c.max_seqlen_q or 0, c.max_seqlen_k or 0)
    lse = _padded_lse(q, batch, q.shape[2], lengths[0], wanted=c.compute_log_sumexp)
    return out, lse, _state(q), _state(q), *lengths


def _packed(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Maybe, *, causal: bool, scale: float | None
) -> Tensor:
    """Return the attention of packed sequences [T, H, D]; each sequence attends only to itself."""
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
