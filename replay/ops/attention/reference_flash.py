"""flash-attention: `flash_attn::*` (custom ops of the Python package) and vLLM's builds `_vllm_fa2_C`, `_vllm_fa3_C`.

Nonzero dropout is rejected, because its random numbers cannot be reproduced. `fwd` of version 3 also rejects rotary
embeddings and new keys.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, attend_packed, ends, gather_pages


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise ValueError(f"{what} is not implemented by the reference of flash-attention")


class Sequences(msgspec.Struct, frozen=True, kw_only=True):
    """End positions of the queries, and keys and values of each sequence, for a varlen call."""

    query_ends: list[int]
    keys_values: list[tuple[Tensor, Tensor]]


def sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
) -> Sequences:
    """Split packed k, v [T, Hkv, D] or paged k, v [blocks, page, Hkv, D] into sequences.

    Packed tensors are split by cu_seqlens_k, paged tensors by block_table [B, blocks]. The lengths are seqused_k if
    given, otherwise the differences of cu_seqlens_k.
    """
    query_ends = ends(cu_seqlens_q, q.shape[0], "cu_seqlens_q")
    batch = len(query_ends) - 1
    total = k.shape[0] if block_table is None else k.shape[0] * k.shape[1]
    key_ends = ends(cu_seqlens_k, total, "cu_seqlens_k") if cu_seqlens_k is not None else [0] * (batch + 1)
    lengths = [key_ends[i + 1] - key_ends[i] for i in range(batch)] if seqused_k is None else seqused_k.tolist()
    pairs = []
    for i in range(batch):
        if block_table is not None:
            pairs.append(tuple(gather_pages(x, block_table[i], lengths[i]) for x in (k, v)))
        else:
            pairs.append(tuple(x[key_ends[i] : key_ends[i] + lengths[i]] for x in (k, v)))
    return Sequences(query_ends=query_ends, keys_values=pairs)


def _result(out: Tensor, target: Tensor | None) -> Tensor:
    """Copy `out` into `target` if given, and return `out`.

    `target` is not returned, because an op must not return its own argument.
    """
    if target is None:
        return out
    target.copy_(out)
    return out


def _fake_varlen_list(q: Tensor, v: Tensor) -> list[Tensor]:
    return list(_fake_varlen(q, v)[:2])


@stands_for("_vllm_fa2_C::varlen_fwd", fake=_fake_varlen_list)
def vllm_varlen_fwd(c: Call) -> list[Tensor]:
    """Compute attention of packed queries over packed or paged keys.

    Returns [out [T, H, D], softmax_lse float32 [H, T]].
    """
    _refuse(c.p_dropout > 0, "dropout")
    _refuse(c.leftpad_k is not None, "leftpad_k")
    rules = Rules(
        scale=c.softmax_scale,
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        softcap=c.softcap,
        alibi=c.alibi_slopes,
    )
    batch = sequences(c.q, c.k, c.v, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_table)
    result, lse = attend_packed(c.q, batch.keys_values, batch.query_ends, rules, need_lse=True)
    assert lse is not None
    return [_result(result, c.out), _set_hidden_rows_to_inf(lse)]


def fake_fa3(q: Tensor, v: Tensor, cu_seqlens_q: Tensor | None) -> list[Tensor]:
    """Return empty outputs with the shapes of flash-attention 3's `fwd`."""
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_wide(q))
    shape = (q.shape[1], q.shape[0]) if cu_seqlens_q is not None else (q.shape[0], q.shape[2], q.shape[1])
    empty = q.new_empty((0,), dtype=torch.float32)
    return [out, q.new_empty(shape, dtype=torch.float32), empty, empty.clone()]


def _wide(q: Tensor) -> torch.dtype:
    """Return the output dtype: bfloat16 for fp8 queries."""
    return torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype


@stands_for("_vllm_fa3_C::fwd", fake=fake_fa3)
def vllm_fa3_fwd(c: Call) -> list[Tensor]:
    """Compute attention; return [out, softmax_lse, two empty accumulators].

    q is packed [T, H, D] if cu_seqlens_q is given, otherwise [B, S, H, D]. The scale defaults to 1/√D. Descales of fp8
    operands are averaged over batch and heads.
    """
    q, k, v, cu_seqlens_q, cu_seqlens_k = c.q, c.k, c.v, c.cu_seqlens_q, c.cu_seqlens_k
    for condition, what in (
        (c.k_new is not None, "k_new"),
        (c.q_v is not None, "q_v"),
        (c.leftpad_k is not None, "leftpad_k"),
        (c.rotary_cos is not None, "rotary"),
        (getattr(c, "cp_world_size", 1) > 1, "context parallelism"),
    ):
        _refuse(condition, what)
    scale = q.shape[-1] ** -0.5 if c.softmax_scale is None else c.softmax_scale
    if q.dtype.itemsize == 1:
        scale *= float(
            (1 if c.q_descale is None else c.q_descale.mean()) * (1 if c.k_descale is None else c.k_descale.mean())
        )
    rules = Rules(
        scale=scale,
        causal=c.is_causal,
        window=(c.window_size_left, c.window_size_right),
        softcap=c.softcap,
        sinks=getattr(c, "s_aux", None),
    )
    dense = cu_seqlens_q is None
    batch = q.shape[0] if dense else 0
    if dense:
        cu_seqlens_q = torch.arange(0, batch * q.shape[1] + 1, q.shape[1], device=q.device)
        if c.page_table is None:
            cu_seqlens_k = torch.arange(0, batch * k.shape[1] + 1, k.shape[1], device=q.device)
            k, v = k.flatten(0, 1), v.flatten(0, 1)
    rows = (q.flatten(0, 1) if dense else q).to(_wide(q))
    packed = sequences(rows, k, v, cu_seqlens_q, cu_seqlens_k, c.seqused_k, c.page_table)
    result, lse = attend_packed(rows, packed.keys_values, packed.query_ends, rules, need_lse=True)
    assert lse is not None
    if c.v_descale is not None and v.dtype.itemsize == 1:
        result = (result * c.v_descale.mean()).to(result.dtype)
    if dense:
        result = result.unflatten(0, (batch, -1))
        lse = lse.unflatten(1, (batch, -1)).transpose(0, 1).contiguous()
    empty = q.new_empty((0,), dtype=torch.float32)
    return [_result(result, c.out), lse, empty, empty.clone()]


def _fake_dense(q: Tensor, v: Tensor, return_softmax: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, queries, heads, _ = q.shape
    return (
        q.new_empty((batch, queries, heads, v.shape[-1])),
        q.new_empty((batch, heads, queries), dtype=torch.float32),
        q.new_empty((0,)),
        q.new_empty((2,), dtype=torch.int64),
    )


@stands_for("flash_attn::_flash_attn_forward", fake=_fake_dense)
def flash_attn_forward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute attention in layout [B, S, H, D].

    Returns (out, softmax_lse float32 [B, H, Sq], S_dmask (empty), rng_state int64 [2]).
    """
    _refuse(c.dropout_p > 0, "dropout")
    rules = _rules(c.softmax_scale, c.causal, c.window_size_left, c.window_size_right, c.softcap, c.alibi_slopes)
    parts = [attend(c.q[i], c.k[i], c.v[i], rules, need_lse=True) for i in range(c.q.shape[0])]
    lse = torch.stack([part[1] for part in parts if part[1] is not None])
    return torch.stack([part[0] for part in parts]), _set_hidden_rows_to_inf(lse), c.q.new_empty((0,)), _no_random(c.q)


def _fake_varlen(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, heads, _ = q.shape
    return (
        q.new_empty((tokens, heads, v.shape[-1])),
        q.new_empty((heads, tokens), dtype=torch.float32),
        q.new_empty((0,)),
        q.new_empty((2,), dtype=torch.int64),
    )


@stands_for("flash_attn::_flash_attn_varlen_forward", fake=_fake_varlen)
def flash_attn_varlen_forward(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute attention in packed layout [T, H, D].

    Returns (out, softmax_lse float32 [H, T], S_dmask (empty), rng_state int64 [2]).
    """
    _refuse(c.dropout_p > 0, "dropout")
    _refuse(c.leftpad_k is not None, "leftpad_k")
    rules = _rules(c.softmax_scale, c.causal, c.window_size_left, c.window_size_right, c.softcap, c.alibi_slopes)
    batch = sequences(c.q, c.k, c.v, c.cu_seqlens_q, c.cu_seqlens_k, c.seqused_k, c.block_table)
    out, lse = attend_packed(c.q, batch.keys_values, batch.query_ends, rules, need_lse=True)
    assert lse is not None
    return out, _set_hidden_rows_to_inf(lse), c.q.new_empty((0,)), _no_random(c.q)


def _set_hidden_rows_to_inf(lse: Tensor) -> Tensor:
    """Set the log-sum-exp of rows without visible keys to +inf, as flash-attention 2 does.

    Then exp(score − inf) = 0 in these rows.
    """
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def _rules(scale: float, causal: bool, before: int, after: int, softcap: float, alibi_slopes: Tensor | None) -> Rules:
    return Rules(scale=scale, causal=causal, window=(before, after), softcap=softcap, alibi=alibi_slopes)


def _no_random(q: Tensor) -> Tensor:
    """Return the random state of a call without dropout."""
    return torch.zeros(2, dtype=torch.int64, device=q.device)
