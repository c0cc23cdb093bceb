# pyright: strict
"""Backward passes of flash-attention's custom ops, recomputed from the log-sum-exp block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import SCORE_BYTES, ends


def sequence_gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    bounds: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `masked_gradients`; bounds are the visible keys left and right of the diagonal, negative for all."""
    shift = k.shape[0] - q.shape[0]
    column = torch.arange(k.shape[0], device=q.device)

    def hidden(part: slice) -> Tensor:
        diagonal = torch.arange(part.start + shift, part.stop + shift, device=q.device).unsqueeze(1)
        unseen = torch.zeros((part.stop - part.start, k.shape[0]), dtype=torch.bool, device=q.device)
        if bounds[1] >= 0:
            unseen |= column > diagonal + bounds[1]
        if bounds[0] >= 0:
            unseen |= column < diagonal - bounds[0]
        return unseen

    return masked_gradients(dout, q, k, v, out, lse, scale, hidden)


def masked_gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    hidden: Callable[[slice], Tensor | None],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One sequence, all [S, H, D] with lse [H, Sq]; `hidden` tells what some query rows do not see, bool [rows, Sk] or
    [1 or H, rows, Sk], or None where they see all.

    Returns dq, dk, dv and softmax_d = Σ dout · out, float32 [H, Sq].
    """
    heads, kv_heads = q.shape[1], k.shape[1]
    group = heads // kv_heads
    delta = (dout.float() * out.float()).sum(-1).t()
    dq = torch.zeros_like(q)
    k3 = k.float().permute(1, 0, 2).repeat_interleave(group, 0)
    v3 = v.float().permute(1, 0, 2).repeat_interleave(group, 0)
    dk, dv = torch.zeros_like(k3), torch.zeros_like(v3)
    rows = max(1, SCORE_BYTES // (8 * heads * max(k.shape[0], 1)))
    for start in range(0, q.shape[0], rows):
        part = slice(start, min(start + rows, q.shape[0]))
        q3, d3 = (x[part].float().permute(1, 0, 2) for x in (q, dout))
        weights = torch.exp(q3 @ k3.transpose(1, 2) * scale - lse[:, part].unsqueeze(-1))
        if (unseen := hidden(part)) is not None:
            weights = weights.masked_fill(unseen, 0.0)
        dv += weights.transpose(1, 2) @ d3
        dscores = weights * (d3 @ v3.transpose(1, 2) - delta[:, part].unsqueeze(-1)) * scale
        dq[part] = (dscores @ k3).permute(1, 0, 2).to(q.dtype)
        dk += dscores.transpose(1, 2) @ q3
    apart = [cast("Tensor", x.unflatten(0, (kv_heads, group))) for x in (dk, dv)]
    dk, dv = (x.sum(1).permute(1, 0, 2) for x in apart)
    return dq, dk.to(k.dtype), dv.to(v.dtype), delta


def _store(grads: tuple[Tensor, Tensor, Tensor], targets: tuple[Tensor | None, ...]) -> None:
    for value, target in zip(grads, targets, strict=True):
        if target is not None:
            target.copy_(value)


def _refuse(dropout_p: float, softcap: float, alibi_slopes: Tensor | None) -> None:
    if dropout_p > 0 or softcap > 0 or alibi_slopes is not None:
        raise ValueError("dropout, softcap and alibi slopes are not implemented in the reference of the backward pass")


def _fake_lse(softmax_lse: Tensor) -> Tensor:
    return softmax_lse.new_empty(softmax_lse.shape, dtype=torch.float32)


@stands_for("flash_attn::_flash_attn_backward", fake=_fake_lse)
def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
) -> Tensor:
    """Dense [B, S, H, D]: writes dq, dk, dv; returns softmax_d float32 [B, H, Sq]."""
    _refuse(dropout_p, softcap, alibi_slopes)
    bounds = (window_size_left, 0 if causal else window_size_right)
    parts = [
        sequence_gradients(dout[i], q[i], k[i], v[i], out[i], softmax_lse[i], softmax_scale, bounds)
        for i in range(q.shape[0])
    ]
    columns = [torch.stack(column) for column in zip(*parts, strict=True)]
    _store((columns[0], columns[1], columns[2]), (dq, dk, dv))
    return columns[3]


@stands_for("flash_attn::_flash_attn_varlen_backward", fake=_fake_lse)
def flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
) -> Tensor:
    """Packed [T, H, D] with softmax_lse [H, T]: writes dq, dk, dv; returns softmax_d float32 [H, T]."""
    _refuse(dropout_p, softcap, alibi_slopes)
    bounds = (window_size_left, 0 if causal else window_size_right)
    q_ends = ends(cu_seqlens_q, q.shape[0], "cu_seqlens_q")
    k_ends = ends(cu_seqlens_k, k.shape[0], "cu_seqlens_k")
    grads = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = torch.zeros(softmax_lse.shape, dtype=torch.float32, device=q.device)
    for i in range(len(q_ends) - 1):
        rows, keys = slice(q_ends[i], q_ends[i + 1]), slice(k_ends[i], k_ends[i + 1])
        part = sequence_gradients(
            dout[rows], q[rows], k[keys], v[keys], out[rows], softmax_lse[:, rows], softmax_scale, bounds
        )
        grads[0][rows], grads[1][keys], grads[2][keys], delta[:, rows] = part
    _store(grads, (dq, dk, dv))
    return delta
