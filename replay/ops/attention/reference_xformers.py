# pyright: strict
"""xformers' builds of flash-attention: `xformers_flash::flash_fwd` (version 2) and `xformers_flash3::flash_fwd`.

Dropout and left padding are refused, as by the references in `flash_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash import sequences
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, attend_packed


def _lse_shape(query: Tensor, cu_seqlens_q: Tensor | None) -> tuple[int, ...]:
    """[heads, tokens] of packed sequences, else [batch, heads, tokens]."""
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
    """Dense [B, S, H, D], or packed [T, H, D] where cu_seqlens_q is given → (out, lse float32)."""
    if cu_seqlens_q is None:
        parts = [attend(query[i], key[i], value[i], rules, need_lse=True) for i in range(query.shape[0])]
        return torch.stack([part[0] for part in parts]), torch.stack([part[1] for part in parts if part[1] is not None])
    batch = sequences(query, key, value, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table)
    out, lse = attend_packed(query, batch.keys_values, batch.query_ends, rules, need_lse=True)
    assert lse is not None
    return out, lse


@stands_for("xformers_flash::flash_fwd", fake=_fake_three)
def flash_fwd(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, rng_state int64 [2])."""
    if c.p > 0:
        raise ValueError("dropout is not implemented by the reference of flash-attention")
    rules = Rules(scale=c.softmax_scale, causal=c.is_causal, window=(c.window_left, c.window_right))
    out, lse = forward(c.query, c.key, c.value, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_tables, rules)
    return out, lse, torch.zeros(2, dtype=torch.int64, device=c.query.device)


@stands_for("xformers_flash3::flash_fwd", fake=_fake_two)
def flash3_fwd(c: Call) -> tuple[Tensor, Tensor]:
    """(out, lse)."""
    if c.p > 0 or c.leftpad_k is not None:
        raise ValueError("dropout and leftpad_k are not implemented by the reference of flash-attention")
    rules = Rules(scale=c.softmax_scale, causal=c.is_causal, window=(c.window_left, c.window_right))
    return forward(c.query, c.key, c.value, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_table, rules)
