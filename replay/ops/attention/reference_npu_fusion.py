# pyright: strict
"""Forward of torch_npu's training attention, `npu::npu_fusion_attention`."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_npu import attend_sequences, refuse
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.npu_layouts import from_sequences, to_sequences

_Fusion = tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]


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
    top, total = _statistics(maxima, query, shape, layout), _statistics(totals, query, shape, layout)
    result = from_sequences(outs, query, layout, values[0].shape[-1])
    return result, top, total, query.new_empty((0,)), 0, 0, 0


def _statistics(parts: list[Tensor], query: Tensor, shape: tuple[int, ...], layout: str) -> Tensor:
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
