"""Conversion of torch_npu's attention layouts to sequences and back.

This module defines no ops. The layouts are BSH, BSND, BNSD, SBH, TND, NTD and pairs of them. B is the batch, S the
tokens of a sequence, N the heads, D the head size, H = N · D, and T the tokens of all sequences together.
"""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.maths.attention import gather_blocks

Lengths = list[int] | None
"""Host-side sequence lengths, as torch_npu expects them."""


SWAPPED = {"SBH": (0, 1), "NTD": (0, 1), "BNSD": (1, 2)}
"""Layout → the two dimensions to swap to get the order (sequences, rows, heads)."""


def to_sequences(x: Tensor, layout: str, heads: int, lengths: Lengths) -> list[Tensor]:
    """Return each sequence as [S, heads, D].

    For TND and NTD, lengths are the cumulative ends of the sequences. For other layouts, they are the numbers of valid
    tokens.
    """
    rows = x.transpose(*SWAPPED[layout]) if layout in SWAPPED else x
    if layout in ("TND", "NTD"):
        ends = lengths or [rows.shape[0]]
        return [rows[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
    if rows.dim() == 3:
        rows = rows.unflatten(-1, (heads, -1))
    used = lengths or [rows.shape[1]] * rows.shape[0]
    if len(used) == 1:
        used = used * rows.shape[0]
    return [rows[i, : used[i]] for i in range(rows.shape[0])]


def from_sequences(parts: list[Tensor], like: Tensor, layout: str, width: int) -> Tensor:
    """Return sequences [S, heads, Dv] in `layout`, with zeros after the valid tokens. `like` is the query."""
    heads = parts[0].shape[1] if parts else 1
    if layout in ("TND", "NTD"):
        tokens = like.shape[0] if layout == "TND" else like.shape[1]
        out = like.new_zeros((tokens, heads, width))
        start = 0
        for part in parts:
            out[start : start + part.shape[0]] = part
            start += part.shape[0]
        return out.transpose(0, 1).contiguous() if layout == "NTD" else out
    longest = {"BNSD": 2, "SBH": 0}.get(layout, 1)
    out = like.new_zeros((len(parts), like.shape[longest], heads, width))
    for i, part in enumerate(parts):
        out[i, : part.shape[0]] = part
    if layout == "BNSD":
        return out.transpose(1, 2).contiguous()
    if layout == "SBH":
        return out.flatten(2).transpose(0, 1).contiguous()
    return out.flatten(2) if layout == "BSH" else out


def paged_sequences(pages: Tensor, block_table: Tensor, lengths: list[int], heads: int) -> list[Tensor]:
    """Return sequences [S, heads, D] from pages [blocks, page, heads · D] or [blocks, heads, page, D]."""
    page = pages.shape[1] if pages.dim() == 3 else pages.shape[2]
    sequences: list[Tensor] = []
    for i, length in enumerate(lengths):
        blocks = gather_blocks(pages, block_table[i], length, page)
        rows = blocks.unflatten(-1, (heads, -1)) if pages.dim() == 3 else blocks.transpose(1, 2)
        sequences.append(rows.flatten(0, 1)[:length])
    return sequences


def input_and_output_layout(layout: str) -> tuple[str, str]:
    """Return the input and output layouts: ("BNSD", "BSND") for "BNSD_BSND"."""
    input_layout, _, output_layout = layout.partition("_")
    return input_layout, output_layout or input_layout


def extent(query: Tensor, layout: str, heads: int) -> tuple[int, int, int]:
    """Return (batch, query length, head size)."""
    if layout == "TND":
        return 1, query.shape[0], query.shape[2]
    if layout == "NTD":
        return 1, query.shape[1], query.shape[2]
    if layout == "BNSD":
        return query.shape[0], query.shape[2], query.shape[3]
    return query.shape[0], query.shape[1], query.shape[-1] // heads if query.dim() == 3 else query.shape[3]


def relayout(x: Tensor, input_layout: str, output_layout: str, heads: int) -> Tensor:
    """Return an output in another layout as a contiguous tensor.

    Raises ValueError for a pair of layouts that torch_npu does not support.
    """
    if (input_layout, output_layout) == ("BSH", "NBSD"):
        return x.unflatten(-1, (heads, -1)).permute(2, 0, 1, 3).contiguous()
    pairs = ("BNSD_BSND", "BNSD_NBSD", "BSND_NBSD", "BSND_BNSD", "TND_NTD", "NTD_TND")
    if f"{input_layout}_{output_layout}" not in pairs:
        raise ValueError(f"layout {input_layout}_{output_layout} is not implemented")
    return x.permute([input_layout.index(dim) for dim in output_layout]).contiguous()
