# pyright: strict
"""Backward passes of flash-attention's custom ops, recomputed from the log-sum-exp block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.maths.attention import SCORE_BYTES


def sequence_gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, bounds: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the same as `masked_gradients`, for a window instead of a mask.

    `bounds` is (keys to the left, keys to the right) of the diagonal that a query sees. A negative number means all.
    """
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
    """Return dq, dk, dv and softmax_d = Σ dout · out (float32 [H, Sq]) of one sequence.

    Tensors are [S, H, D]; lse is [H, Sq]. `hidden` gets a block of query rows and returns which keys are masked for
    them, bool [rows, Sk] or [1 or H, rows, Sk]. It returns None if these rows see all keys.
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
