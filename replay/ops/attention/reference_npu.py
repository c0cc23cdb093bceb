"""torch_npu's inference attention: `npu_fused_infer_attention_score`, its prefill and decode ops, and paged decode.

A mask value of 1 hides a key. sparse_mode selects the mask: 0 is the given mask, 2 a causal mask aligned to the top
left, 3 a causal mask aligned to the bottom right. 4 is a band around the bottom-right diagonal, with pre_tokens keys
before it and next_tokens keys after it. Quantised inputs, positional shifts (pse) and padding are rejected.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import Rules, attend, gather_blocks, row_maxima
from opreplay.replay.ops.maths.npu_layouts import (
    Lengths,
    extent,
    from_sequences,
    input_and_output_layout,
    paged_sequences,
    relayout,
    to_sequences,
)

_LARGE = 1 << 30


def refuse(**arguments: object) -> None:
    """Raise ValueError if any of these unimplemented arguments is set (neither None nor False)."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is not implemented in the reference of npu attention")


def attend_sequences(
    c: Call,
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    *,
    need_lse: bool,
    maxima: list[Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return outputs [S, H, Dv] and log-sum-exps [H, S] per sequence.

    If `maxima` is given, the row maxima [H, S] of each sequence are appended to it.
    """
    scale, mask, sparse_mode = c.scale, c.atten_mask, c.sparse_mode
    outs, sums = [], []
    for i, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        if sparse_mode in (0, 1) and mask is not None:
            hidden = hidden_by(mask, i, q.shape[0], k.shape[0])
            out, lse = _masked(q, k, v, scale, ~hidden, need_lse=need_lse)
            if maxima is not None:
                maxima.append(_scores(q, k, scale, ~hidden).amax(-1))
        else:
            if sparse_mode == 2:
                # Top-left causal is bottom-right causal on the keys that any query sees.
                k, v = k[: q.shape[0]], v[: q.shape[0]]
            before, after = (n if sparse_mode == 4 and n < _LARGE else -1 for n in (c.pre_tokens, c.next_tokens))
            rules = Rules(scale=scale, causal=sparse_mode in (2, 3), window=(before, after))
            out, lse = attend(q, k, v, rules, need_lse=need_lse)
            if maxima is not None:
                maxima.append(row_maxima(q, k, rules))
        outs.append(out)
        sums.append(lse)
    return outs, sums


def hidden_by(mask: Tensor, batch: int, rows: int, keys: int) -> Tensor:
    """Return which keys of one sequence are masked, bool [1 or H, rows, keys].

    `mask` has an entry per sequence, or a single entry for the whole batch.
    """
    of_sequence = mask[batch if mask.shape[0] > 1 else 0] if mask.dim() > 2 else mask
    return of_sequence.reshape(-1, *of_sequence.shape[-2:])[..., :rows, :keys] != 0


def _masked(
    q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor, *, need_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute attention of one sequence, restricted to the (query, key) pairs in `visible`, bool [1 or H, Sq, Sk]. Rows
    without a visible key give zeros.
    """
    group = q.shape[1] // k.shape[1]
    q3 = q.transpose(0, 1)
    k3, v3 = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
    out = F.scaled_dot_product_attention(q3, k3, v3, attn_mask=visible, scale=scale)
    out = out.masked_fill(~visible.any(-1, keepdim=True), 0.0).transpose(0, 1)
    if not need_lse:
        return out, None
    return out, torch.logsumexp(_scores(q, k, scale, visible), -1)


def _scores(q: Tensor, k: Tensor, scale: float, visible: Tensor) -> Tensor:
    """Return the float32 scores [H, Sq, Sk]; masked scores are −inf."""
    k3 = k.transpose(0, 1).repeat_interleave(q.shape[1] // k.shape[1], 0)
    scores = q.transpose(0, 1).float() @ k3.float().transpose(1, 2) * scale
    return scores.masked_fill(~visible, -torch.inf)


def _infer_shape(query: Tensor, value: Tensor, layout: str, heads: int, kv_heads: int, paged: bool) -> tuple[int, ...]:
    layout_in, wanted = input_and_output_layout(layout)
    batch, length, width = extent(query, layout_in, heads)
    if paged:
        width_v = value.shape[-1] // kv_heads if value.dim() == 3 else value.shape[-1]
    else:
        width_v = value.shape[-1] if value.dim() == 4 or layout_in in ("TND", "NTD") else value.shape[-1] // kv_heads
    del width
    return {
        "BSH": (batch, length, heads * width_v),
        "BSND": (batch, length, heads, width_v),
        "BNSD": (batch, heads, length, width_v),
        "NBSD": (heads, batch, length, width_v),
        "TND": (length, heads, width_v),
        "NTD": (heads, length, width_v),
    }[wanted]


def _lse_shape(query: Tensor, layout: str, heads: int, flag: bool) -> tuple[int, ...]:
    if not flag:
        return (1,)
    batch, length, _ = extent(query, input_and_output_layout(layout)[0], heads)
    return (length, heads, 1) if layout.startswith(("TND", "NTD")) else (batch, heads, length, 1)


def _fake_infer(c: Call) -> tuple[Tensor, Tensor]:
    kv_heads = c.num_key_value_heads or c.num_heads
    shape = _infer_shape(c.query, c.value, c.input_layout or "BSH", c.num_heads, kv_heads, c.block_table is not None)
    lse = _lse_shape(c.query, c.input_layout or "BSH", c.num_heads, c.softmax_lse_flag)
    return c.query.new_empty(shape), c.query.new_empty(lse, dtype=torch.float32)


@stands_for("npu::npu_fused_infer_attention_score", fake=_fake_infer)
def npu_fused_infer_attention_score(c: Call) -> tuple[Tensor, Tensor]:
    """Return the attention output and the log-sum-exp.

    The output has the query's layout unless the call requests another. The log-sum-exp is float32 [B, N, S, 1] or [T,
    N, 1], or a single zero.

    Lengths are ints on the host. They are cumulative for layout TND and per sequence for other layouts. Lengths of
    paged keys are never cumulative.
    """
    num_heads = c.num_heads
    query_rope = getattr(c, "query_rope", None)
    key_rope = getattr(c, "key_rope", None)
    refuse(
        pse_shift=c.pse_shift,
        antiquant_scale=c.antiquant_scale,
        key_antiquant_scale=getattr(c, "key_antiquant_scale", None),
        key_shared_prefix=getattr(c, "key_shared_prefix", None),
    )
    layout = c.input_layout or "BSH"
    layout_in, layout_out = input_and_output_layout(layout)
    kv_heads = c.num_key_value_heads or num_heads
    queries = to_sequences(c.query, layout_in, num_heads, c.actual_seq_lengths)
    keys = _keys(c.key, layout_in, kv_heads, c.block_table, c.actual_seq_lengths_kv)
    values = _keys(c.value, layout_in, kv_heads, c.block_table, c.actual_seq_lengths_kv)
    if query_rope is not None and key_rope is not None:
        # Multi-head latent attention: the rotary parts of query and key come apart.
        ropes = to_sequences(query_rope, layout_in, num_heads, c.actual_seq_lengths)
        queries = [torch.cat(pair, -1) for pair in zip(queries, ropes, strict=True)]
        ropes = _keys(key_rope, layout_in, kv_heads, c.block_table, c.actual_seq_lengths_kv)
        keys = [torch.cat(pair, -1) for pair in zip(keys, ropes, strict=True)]
    outs, sums = attend_sequences(c, queries, keys, values, need_lse=c.softmax_lse_flag)
    width = values[0].shape[-1] if values else c.query.shape[-1]
    result = from_sequences(outs, c.query, layout_in, width)
    if layout_out != layout_in:
        result = relayout(result, layout_in, layout_out, num_heads)
    return result, _lse(sums, c.query, layout, num_heads, c.softmax_lse_flag)


def _keys(x: Tensor, layout: str, heads: int, block_table: Tensor | None, lengths: Lengths) -> list[Tensor]:
    if block_table is None:
        return to_sequences(x, layout, heads, lengths)
    if lengths is None:
        raise ValueError("actual_seq_lengths_kv is needed for paged keys")
    return paged_sequences(x, block_table, lengths, heads)


def _lse(sums: list[Tensor | None], query: Tensor, layout: str, heads: int, flag: bool) -> Tensor:
    out = query.new_zeros(_lse_shape(query, layout, heads, flag), dtype=torch.float32)
    start = 0
    for i, part in enumerate(sums):
        if part is None:
            continue
        if layout.startswith(("TND", "NTD")):
            out[start : start + part.shape[1], :, 0] = part.t()
            start += part.shape[1]
        else:
            out[i, :, : part.shape[1], 0] = part
    return out


def _fake_prompt(c: Call) -> Tensor:
    return _fake_infer(with_changes(c, block_table=None, softmax_lse_flag=False))[0]


@stands_for("npu::npu_prompt_flash_attention", fake=_fake_prompt)
def npu_prompt_flash_attention(c: Call) -> Tensor:
    """Compute prefill attention as npu_fused_infer_attention_score does."""
    return npu_fused_infer_attention_score(
        with_changes(c, antiquant_scale=None, block_table=None, scale=c.scale_value, softmax_lse_flag=False)
    )[0]


def _fake_incre(c: Call) -> Tensor:
    return _fake_infer(with_changes(c, softmax_lse_flag=False))[0]


@stands_for("npu::npu_incre_flash_attention", fake=_fake_incre)
def npu_incre_flash_attention(c: Call) -> Tensor:
    """Compute decode attention, with one query token per sequence. actual_seq_lengths are the lengths of the keys."""
    return npu_fused_infer_attention_score(
        with_changes(
            c,
            actual_seq_lengths=None,
            actual_seq_lengths_kv=c.actual_seq_lengths,
            scale=c.scale_value,
            pre_tokens=_LARGE,
            next_tokens=_LARGE,
            sparse_mode=0,
            softmax_lse_flag=False,
        )
    )[0]


@stands_for("npu::_npu_paged_attention")
def npu_paged_attention(c: Call) -> None:
    """Compute attention of query [S, H, D] over caches [blocks, page, Hkv, D] and write it to out [S, H, D]. The query
    has one row per sequence.
    """
    for i, length in enumerate(c.context_lens.tolist()):
        k, v = (
            gather_blocks(cache, c.block_table[i], length, cache.shape[1]).flatten(0, 1)[:length]
            for cache in (c.key_cache, c.value_cache)
        )
        c.out[i] = attend(c.query[i : i + 1], k, v, Rules(scale=c.scale_value))[0][0]
