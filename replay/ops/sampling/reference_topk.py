# pyright: strict
"""Top-k columns per row of scores (the indexers of sparse attention): ops of three libraries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


def best_columns(scores: Tensor, starts: Tensor | None, ends: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the top-k columns int64 [rows, k] and their scores, padded with −1 and −inf.

    The columns are counted from each row's start.
    """
    column = torch.arange(scores.shape[1], device=scores.device)
    last = ends.to(torch.int64).reshape(-1, 1)
    first = torch.zeros_like(last) if starts is None else starts.to(torch.int64).reshape(-1, 1)
    masked = scores.float().masked_fill((column < first) | (column >= last), -torch.inf)
    values, ids = masked.topk(min(k, scores.shape[1]), dim=1)
    ids = torch.where(values > -torch.inf, ids - first, torch.full_like(ids, -1))
    missing = k - ids.shape[1]
    return F.pad(ids, (0, missing), value=-1), F.pad(values, (0, missing), value=-torch.inf)


def _write(target: Tensor, ids: Tensor) -> None:
    target.view(-1, target.shape[-1])[: ids.shape[0], : ids.shape[1]].copy_(ids)


@stands_for(
    "_C::top_k_per_row",
    "_C::top_k_per_row_prefill",
    "aiter::topk_per_row",
    "aiter::top_k_per_row_prefill",
    "aiter::top_k_per_row_prefill_fast",
    "aiter::_top_k_per_row_prefill",
    writes=("indices", "values"),
)
def top_k_per_row_prefill(c: Call) -> None:
    """Write the top-k columns of logits [rows, N] within [rowStarts, rowEnds) to indices [rows, k].

    The columns are counted from rowStarts.
    """
    values = getattr(c, "values", None)
    ids, scores = best_columns(
        c.logits[: c.numRows], c.rowStarts[: c.numRows], c.rowEnds[: c.numRows], c.indices.shape[-1]
    )
    _write(c.indices, ids)
    if values is not None:
        values.view(-1, values.shape[-1])[: c.numRows].copy_(scores)


def _decode_ends(seq_lens: Tensor, next_n: int, rows: int) -> Tensor:
    """Return how many columns each of a sequence's next_n rows can use.

    It is the length minus the number of later rows.
    """
    row = torch.arange(rows, device=seq_lens.device)
    lengths = seq_lens.flatten().to(torch.int64)
    if lengths.numel() >= rows > lengths.numel() // max(next_n, 1):
        return lengths[:rows] if next_n == 1 else lengths[row // next_n] - next_n + row % next_n + 1
    return lengths[(row // next_n).clamp(max=lengths.numel() - 1)] - next_n + row % next_n + 1


@stands_for("_C::top_k_per_row_decode", writes=("indices",))
def top_k_per_row_decode(logits: Tensor, next_n: int, seq_lens: Tensor, indices: Tensor, numRows: int) -> None:
    """Do the same as top_k_per_row_prefill for decoding.

    Row r uses its first seq_lens[r // next_n] − next_n + r % next_n + 1 columns.
    """
    ids, _ = best_columns(logits[:numRows], None, _decode_ends(seq_lens, next_n, numRows), indices.shape[-1])
    _write(indices, ids)


@stands_for("_C::persistent_topk", "_C::cooperative_topk")
def persistent_topk(logits: Tensor, lengths: Tensor, output: Tensor, k: int) -> None:
    """Write the top-k columns among the first `lengths` columns of each row to output [rows, k]."""
    _write(output, best_columns(logits, None, lengths, k)[0])


@stands_for("sgl_kernel::fast_topk", writes=("indices",))
def fast_topk(score: Tensor, indices: Tensor, lengths: Tensor, row_starts: Tensor | None = None) -> None:
    """Write the top-k columns among `lengths` columns, starting at each row's start, to indices [rows, k]."""
    ends = lengths if row_starts is None else lengths + row_starts
    _write(indices, best_columns(score, row_starts, ends, indices.shape[-1])[0])


@stands_for("sgl_kernel::fast_topk_transform_fused", writes=("dst_page_table",))
def fast_topk_transform(c: Call) -> None:
    """Do the same as fast_topk, and replace each column by its entry in the page table of the row's sequence."""
    row_starts = getattr(c, "row_starts", None)
    ends = c.lengths if row_starts is None else c.lengths + row_starts
    ids, _ = best_columns(c.score, row_starts, ends, c.dst_page_table.shape[-1])
    row = torch.arange(c.score.shape[0], device=c.score.device)
    owner = (torch.searchsorted(c.cu_seqlens_q.to(torch.int64).contiguous(), row, right=True) - 1).clamp(
        0, c.src_page_table.shape[0] - 1
    )
    pages = c.src_page_table[owner].to(torch.int64).gather(1, ids.clamp(0, c.src_page_table.shape[1] - 1))
    c.dst_page_table.copy_(torch.where(ids >= 0, pages, ids))


@stands_for("sgl_kernel::fast_topk_transform_ragged_fused", writes=("topk_indices_ragged",))
def fast_topk_ragged(c: Call) -> None:
    """Same as fast_topk, with the offset of the row added to each column index."""
    row_starts = getattr(c, "row_starts", None)
    ends = c.lengths if row_starts is None else c.lengths + row_starts
    ids, _ = best_columns(c.score, row_starts, ends, c.topk_indices_ragged.shape[-1])
    c.topk_indices_ragged.copy_(torch.where(ids >= 0, ids + c.topk_indices_offset.reshape(-1, 1), ids))


@stands_for("aiter::topk_plain", "aiter::_topk_plain", writes=("topk_ids", "topk_out"))
def topk_plain(c: Call) -> None:
    """Write the top-k columns (largest or smallest) of each row of x [rows, N] and, if requested, their values."""
    x = c.x
    topk_out = getattr(c, "topk_out", None)
    rowEnds = getattr(c, "rowEnds", None)
    scores = x.float() if c.largest else -x.float()
    ends = torch.full((x.shape[0],), x.shape[1], device=x.device) if rowEnds is None else rowEnds
    ids, values = best_columns(scores, getattr(c, "rowStarts", None), ends, c.topk)
    c.topk_ids.copy_(ids)
    if topk_out is not None:
        topk_out.copy_(values if c.largest else -values)
