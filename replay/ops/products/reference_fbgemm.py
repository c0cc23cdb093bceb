"""FBGEMM's grouped and batched products, computed one matrix at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import scaled_linear


def _fp8(x: Tensor, weight: Tensor, x_scale: Tensor, w_scale: Tensor) -> Tensor:
    return scaled_linear(x, weight, x_scale.reshape(-1, 1), w_scale.reshape(-1, 1), None, torch.bfloat16)


def _groups(sizes: Tensor, rows: int) -> list[int]:
    """Return the rows of each group. Raises ValueError if the groups have more than `rows` rows."""
    counts = [int(size) for size in sizes.tolist()]
    if min(counts, default=0) < 0 or sum(counts) > rows:
        raise ValueError(f"groups of {counts[:8]} rows do not fit into {rows} rows")
    return counts


@stands_for("fbgemm::bf16bf16bf16_grouped")
def grouped(X: list[Tensor], W: list[Tensor]) -> list[Tensor]:
    """Return X[i] [M, K] @ W[i] [N, K]ᵀ for each i, in bfloat16."""
    return [linear(x, weight, dtype=torch.bfloat16) for x, weight in zip(X, W, strict=True)]


@stands_for("fbgemm::bf16bf16bf16_grouped_cat")
def grouped_cat(X: list[Tensor], W: list[Tensor]) -> Tensor:
    """Return X[i] [M, K] @ W[i] [N, K]ᵀ for all i, concatenated along the rows, in bfloat16."""
    return torch.cat(grouped(X, W))


@stands_for("fbgemm::f8f8bf16_rowwise_grouped")
def grouped_fp8(XQ: list[Tensor], WQ: list[Tensor], x_scale: list[Tensor], w_scale: list[Tensor]) -> list[Tensor]:
    """Return XQ[i] @ WQ[i]ᵀ for each i in bfloat16; each matrix has one scale per row."""
    return [_fp8(*each) for each in zip(XQ, WQ, x_scale, w_scale, strict=True)]


@stands_for("fbgemm::f8f8bf16_rowwise_grouped_cat")
def grouped_fp8_cat(XQ: list[Tensor], WQ: list[Tensor], x_scale: list[Tensor], w_scale: list[Tensor]) -> Tensor:
    """Same as `grouped_fp8`, with the results concatenated along the rows."""
    return torch.cat(grouped_fp8(XQ, WQ, x_scale, w_scale))


def _dynamic_like(X: Tensor, W: Tensor) -> Tensor:
    return X.new_empty((*X.shape[:2], W.shape[1]), dtype=torch.bfloat16)


@stands_for("fbgemm::bf16bf16bf16_grouped_dynamic", fake=_dynamic_like)
def grouped_dynamic(X: Tensor, W: Tensor, zero_start_index_M: Tensor) -> Tensor:
    """Return X [G, M, K] @ W [G, N, K]ᵀ for the first `zero_start_index_M` rows of each group.

    The other rows are zero.
    """
    out = X.new_zeros((*X.shape[:2], W.shape[1]), dtype=torch.bfloat16)
    for i, rows in enumerate(zero_start_index_M.tolist()):
        rows = max(0, min(int(rows), X.shape[1]))
        out[i, :rows] = linear(X[i, :rows], W[i], dtype=torch.bfloat16)
    return out


@stands_for("fbgemm::f8f8bf16_rowwise_grouped_dynamic", fake=lambda XQ, WQ: _dynamic_like(XQ, WQ))
def grouped_fp8_dynamic(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, zero_start_index_M: Tensor) -> Tensor:
    """Same as `grouped_dynamic`, with x_scale [G, M] and w_scale [G, N]."""
    out = XQ.new_zeros((*XQ.shape[:2], WQ.shape[1]), dtype=torch.bfloat16)
    for i, rows in enumerate(zero_start_index_M.tolist()):
        rows = max(0, min(int(rows), XQ.shape[1]))
        out[i, :rows] = _fp8(XQ[i, :rows], WQ[i], x_scale[i, :rows], w_scale[i])
    return out


def _stacked_like(X: Tensor, W: Tensor) -> Tensor:
    return X.new_empty((X.shape[0], W.shape[1]), dtype=torch.bfloat16)


@stands_for("fbgemm::bf16bf16bf16_grouped_stacked", writes=(), fake=_stacked_like)
def grouped_stacked(X: Tensor, W: Tensor, M_sizes: Tensor) -> Tensor:
    """Return X [ΣM, K] @ W [G, N, K]ᵀ: M_sizes[g] consecutive rows of X are multiplied by matrix g.

    Rows after the last group are zero. The result is a new tensor; `out` is not written. Raises ValueError for groups
    that have more rows than X.
    """
    out = X.new_zeros((X.shape[0], W.shape[1]), dtype=torch.bfloat16)
    start = 0
    for weight, rows in zip(W, _groups(M_sizes, X.shape[0]), strict=True):
        out[start : start + rows] = linear(X[start : start + rows], weight, dtype=torch.bfloat16)
        start += rows
    return out


@stands_for("fbgemm::f8f8bf16_rowwise_grouped_stacked", writes=(), fake=lambda XQ, WQ: _stacked_like(XQ, WQ))
def grouped_fp8_stacked(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, M_sizes: Tensor) -> Tensor:
    """Do the same as `grouped_stacked`, with x_scale [ΣM] and w_scale [G, N].

    Raises ValueError for groups with too many rows.
    """
    out = XQ.new_zeros((XQ.shape[0], WQ.shape[1]), dtype=torch.bfloat16)
    start = 0
    for i, rows in enumerate(_groups(M_sizes, XQ.shape[0])):
        part = slice(start, start + rows)
        out[part] = _fp8(XQ[part], WQ[i], x_scale[part], w_scale[i])
        start += rows
    return out


@stands_for("fbgemm::f8f8bf16_rowwise_batched", writes=(), fake=lambda XQ, WQ: _dynamic_like(XQ, WQ))
def batched_fp8(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return XQ [B, M, K] @ WQ [B, N, K]ᵀ as bfloat16.

    Scales are x_scale [B, M] and w_scale [B, N]; the bias is [N] or [B, N]. The result is a new tensor; `output` is not
    written.
    """
    product = torch.stack([_fp8(*each) for each in zip(XQ, WQ, x_scale, w_scale, strict=True)])
    return product if bias is None else (product + bias.reshape(-1, 1, bias.shape[-1])).to(torch.bfloat16)
