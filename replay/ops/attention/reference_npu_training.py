"""Other training attention ops of torch_npu: newer versions of `npu_fusion_attention`, gradients, and merging of
partial results.

Dropout, sinks and positional shifts (pse) are rejected, as in the forward pass.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash_backward import masked_gradients
from opreplay.replay.ops.attention.reference_npu import hidden_by, refuse
from opreplay.replay.ops.attention.reference_npu_fusion import (
    fake_fusion,
    fusion_layout,
    kv_heads_of,
    npu_fusion_attention,
)
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.npu_layouts import from_sequences, to_sequences

_Fusion = tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]
_FAR = 1 << 30


stands_for("npu::npu_flash_attention", fake=fake_fusion)(npu_fusion_attention)  # its earlier name


@stands_for("npu::npu_fusion_attention_v2", fake=fake_fusion)
def npu_fusion_attention_v2(c: Call) -> _Fusion:
    """Do the same as npu_fusion_attention, with other argument names.

    Raises ValueError for separate rotary parts and for fp8 scales.
    """
    refuse(query_rope=c.query_rope, d_scale_q=getattr(c, "d_scale_q", None))
    return npu_fusion_attention(
        with_changes(c, pre_tockens=c.pre_tokens, next_tockens=c.next_tokens, sink=getattr(c, "sink", None))
    )


def _hidden(
    rows: int,
    keys: int,
    mask: Tensor | None,
    batch: int,
    sparse_mode: int,
    tokens: tuple[int, int],
    device: torch.device,
) -> Tensor | None:
    """Return the masked keys of one sequence, bool [1 or heads, rows, keys], or None if no key is masked."""
    if sparse_mode in (0, 1) and mask is not None:
        return hidden_by(mask, batch, rows, keys)
    row = torch.arange(rows, device=device).unsqueeze(1)
    column = torch.arange(keys, device=device)
    if sparse_mode == 2:
        return (column > row).unsqueeze(0)
    if sparse_mode == 3:
        return (column > row + keys - rows).unsqueeze(0)
    if sparse_mode == 4:
        diagonal = row + keys - rows
        out = torch.zeros((rows, keys), dtype=torch.bool, device=device)
        if tokens[0] < _FAR:
            out |= column < diagonal - tokens[0]
        if tokens[1] < _FAR:
            out |= column > diagonal + tokens[1]
        return out.unsqueeze(0)
    return None


def _rows_of(hidden: Tensor | None, part: slice) -> Tensor | None:
    return None if hidden is None else hidden[:, part]


def _statistics(stat: Tensor, layout: str, lengths: list[int]) -> list[Tensor]:
    """Return the softmax statistics `stat` [.., 8] as one tensor [N, S] per sequence."""
    first = stat[..., 0].float()
    if layout == "TND":
        parts, start = [], 0
        for length in lengths:
            parts.append(first[start : start + length].t())
            start += length
        return parts
    return [first[i, :, :length] for i, length in enumerate(lengths)]


def _gradients(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv in the layout of q, k and v. Raises ValueError if results of the forward pass are
    missing.
    """
    if c.softmax_max is None or c.softmax_sum is None or c.attention_in is None:
        raise ValueError("softmax_max, softmax_sum and attention_in of the forward pass are needed")
    layout = fusion_layout(c.query, c.input_layout)
    kv_heads = kv_heads_of(c.query, c.key, layout, c.head_num)
    queries, grads, outs = (to_sequences(x, layout, c.head_num, c.lengths[0]) for x in (c.query, c.dy, c.attention_in))
    keys, values = (to_sequences(x, layout, kv_heads, c.lengths[1]) for x in (c.key, c.value))
    sizes = [q.shape[0] for q in queries]
    tops, totals = (_statistics(x, layout, sizes) for x in (c.softmax_max, c.softmax_sum))
    by_sequence = []
    for i, (q, k, v, d, out) in enumerate(zip(queries, keys, values, grads, outs, strict=True)):
        lse = tops[i] + torch.log(totals[i].clamp(min=1e-30))
        hidden = _hidden(q.shape[0], k.shape[0], c.mask, i, c.sparse_mode, c.tokens, q.device)
        rows = partial(_rows_of, hidden)
        by_sequence.append(masked_gradients(d, q, k, v, out, lse, c.scale, rows)[:3])
    dq, dk, dv = (list(parts) for parts in zip(*by_sequence, strict=True))
    return (
        from_sequences(dq, c.query, layout, dq[0].shape[-1]),
        from_sequences(dk, c.key, layout, dk[0].shape[-1]),
        from_sequences(dv, c.value, layout, dv[0].shape[-1]),
    )


def _fake_grad(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), query.new_empty((0,))


def _fake_grad_sink(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    return *_fake_grad(query, key, value), query.new_empty((0,))


def _grad(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv, gradient of pse, which is empty)."""
    refuse(pse=c.pse, dropout=c.keep_prob < 1)
    grads = _gradients(
        with_changes(
            c,
            mask=c.atten_mask,
            scale=c.scale_value,
            tokens=(c.pre_tockens, c.next_tockens),
            lengths=(c.actual_seq_qlen, c.actual_seq_kvlen),
        )
    )
    return *grads, c.query.new_empty((0,))


stands_for("npu::npu_flash_attention_grad", fake=_fake_grad)(_grad)
stands_for("npu::npu_fusion_attention_grad", fake=_fake_grad, lacking=("sink",))(_grad)


@stands_for("npu::npu_fusion_attention_grad", fake=_fake_grad_sink)
def npu_fusion_attention_grad_sink(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv, gradient of pse, gradient of the sinks); the last two are empty."""
    refuse(sink=c.sink)
    grads = _grad(c)
    return *grads, c.query.new_empty((0,))


@stands_for("npu::npu_attention_update")
def npu_attention_update(lse: list[Tensor], local_out: list[Tensor], update_type: int) -> tuple[Tensor, Tensor]:
    """Merge partial attentions by their log-sum-exps. Returns (out, total log-sum-exp or an empty tensor)."""
    sums = torch.stack([x.float() for x in lse])
    total = torch.logsumexp(sums, 0)
    weights = torch.exp(sums - total)
    parts = torch.stack([x.float() for x in local_out])
    while weights.dim() < parts.dim():
        weights = weights.unsqueeze(-1)
    merged = (parts * weights).sum(0).to(local_out[0].dtype)
    return merged, total if update_type == 1 else total.new_empty((0,))


@stands_for(
    "npu::npu_ring_attention_update",
    fake=lambda prev_attn_out, prev_softmax_max, prev_softmax_sum: (
        torch.empty_like(prev_attn_out),
        torch.empty_like(prev_softmax_max),
        torch.empty_like(prev_softmax_sum),
    ),
)
def npu_ring_attention_update(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Merge two partial attentions into (out, softmax_max, softmax_sum).

    The statistics are [B, N, S, 8] for layout SBH and [T, N, 8] for TND.
    """
    top = torch.maximum(c.prev_softmax_max, c.cur_softmax_max)
    before = c.prev_softmax_sum * torch.exp(c.prev_softmax_max - top)
    after = c.cur_softmax_sum * torch.exp(c.cur_softmax_max - top)
    total = before + after
    shares = [(x / total)[..., 0] for x in (before, after)]
    if c.input_layout == "TND":
        wide = [share.unsqueeze(-1) for share in shares]
        out = c.prev_attn_out.float() * wide[0] + c.cur_attn_out.float() * wide[1]
    else:
        heads = shares[0].shape[1]
        wide = [share.permute(2, 0, 1).unsqueeze(-1) for share in shares]
        parts = [x.float().unflatten(-1, (heads, -1)) for x in (c.prev_attn_out, c.cur_attn_out)]
        out = (parts[0] * wide[0] + parts[1] * wide[1]).flatten(-2)
    return out.to(c.prev_attn_out.dtype), top, total
