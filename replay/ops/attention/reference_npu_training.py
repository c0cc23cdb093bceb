"""Training attention of torch_npu: `npu::npu_fusion_attention`, newer versions of it, gradients, and merging of partial
results.

Dropout, sinks and positional shifts (pse) are rejected.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash_backward import masked_gradients
from opreplay.replay.ops.attention.reference_npu import attend_sequences, hidden_by, refuse
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.npu_layouts import from_sequences, to_sequences

_Fusion = tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]
_FAR = 1 << 30


def _statistics_shape(query: Tensor, layout: str, heads: int) -> tuple[int, ...]:
    if layout == "TND":
        return (query.shape[0], heads, 8)
    if layout == "SBH":
        return (query.shape[1], heads, query.shape[0], 8)
    return (query.shape[0], heads, query.shape[2] if layout == "BNSD" else query.shape[1], 8)


def fusion_layout(query: Tensor, input_layout: str) -> str:
    """Return the layout; if it was not recorded, assume BNSD for 4 dims and BSH for 3 dims."""
    return input_layout or ("BNSD" if query.dim() == 4 else "BSH")


def fake_fusion(query: Tensor, head_num: int, input_layout: str) -> _Fusion:
    """Return empty outputs with the shapes of the forward pass."""
    shape = _statistics_shape(query, fusion_layout(query, input_layout), head_num)
    top, total = query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.float32)
    return torch.empty_like(query), top, total, query.new_empty((0,)), 0, 0, 0


@stands_for("npu::npu_fusion_attention", fake=fake_fusion)
def npu_fusion_attention(c: Call) -> _Fusion:
    """Compute training attention.

    Returns (out, softmax_max, softmax_sum, softmax_out, seed, offset, number of mask elements). softmax_max is the
    maximum of a row's visible scores, softmax_sum the sum of exp(score − max); both are float32 [.., 8]. In a row
    without visible keys they are −inf and 0. softmax_out is empty. Raises ValueError for dropout.
    """
    query = c.query
    refuse(pse=c.pse, sink=getattr(c, "sink", None), dropout=c.keep_prob < 1)
    layout = fusion_layout(query, c.input_layout)
    queries = to_sequences(query, layout, c.head_num, c.actual_seq_qlen)
    kv_heads = kv_heads_of(query, c.key, layout, c.head_num)
    keys = to_sequences(c.key, layout, kv_heads, c.actual_seq_kvlen)
    values = to_sequences(c.value, layout, kv_heads, c.actual_seq_kvlen)
    maxima: list[Tensor] = []
    outs, sums = attend_sequences(
        with_changes(c, pre_tokens=c.pre_tockens, next_tokens=c.next_tockens),
        queries,
        keys,
        values,
        need_lse=True,
        maxima=maxima,
    )
    shape = _statistics_shape(query, layout, c.head_num)
    totals = [
        torch.exp(part - high).masked_fill(high == -torch.inf, 0.0)
        for part, high in zip(sums, maxima, strict=True)
        if part is not None
    ]
    top, total = _rows_in_eight(maxima, query, shape, layout), _rows_in_eight(totals, query, shape, layout)
    result = from_sequences(outs, query, layout, values[0].shape[-1])
    return result, top, total, query.new_empty((0,)), 0, 0, 0


def _rows_in_eight(parts: list[Tensor], query: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
    """Return row statistics in the device's layout, which repeats each number eight times.

    `parts` holds one tensor [H, S] per sequence.
    """
    statistics = query.new_zeros(shape, dtype=torch.float32)
    start = 0
    for i, part in enumerate(parts):
        if layout == "TND":
            statistics[start : start + part.shape[1]] = part.t().unsqueeze(-1)
            start += part.shape[1]
        else:
            statistics[i, :, : part.shape[1]] = part.unsqueeze(-1)
    return statistics


def kv_heads_of(query: Tensor, key: Tensor, layout: str, heads: int) -> int:
    """Return the number of key heads, derived from the shapes because no argument gives it."""
    if layout == "BNSD":
        return key.shape[1]
    if layout in ("TND", "BSND"):
        return key.shape[-2]
    return key.shape[-1] // (query.shape[-1] // heads)


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
