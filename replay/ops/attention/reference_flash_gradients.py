# pyright: strict
"""Gradients of attention in the APIs of flash-attention 3, xformers and aiter; see `reference_flash_backward`.

Dropout, softcap, bias, slopes and sinks are rejected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash_backward import sequence_gradients
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import ends

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _refuse(c: Call, dropout: float, alibi_slopes: Tensor | None) -> None:
    refused = {
        "dropout": dropout,
        "softcap": getattr(c, "softcap", 0.0),
        "alibi_slopes": alibi_slopes,
        "bias": getattr(c, "bias", None),
        "sink": getattr(c, "sink", None),
        "sink_ptr": getattr(c, "sink_ptr", None),
    }
    for name, value in refused.items():
        if isinstance(value, Tensor) or value:
            raise ValueError(f"{name} is not implemented in the reference of attention's gradients")


def gradients(c: Call, lengths: tuple[Tensor | None, Tensor | None], scale: float, bounds: tuple[int, int]) -> _Four:
    """Return dq, dk, dv and softmax_d.

    Tensors are dense [B, S, H, D] with lse [B, H, S], or packed [T, H, D] with lse [H, T].
    """
    dout, q, k, v, out, lse = c.dout, c.q, c.k, c.v, c.out, c.softmax_lse
    cu_q, cu_k = lengths
    if cu_q is None or cu_k is None:
        parts = [
            sequence_gradients(dout[i], q[i], k[i], v[i], out[i], lse[i], scale, bounds) for i in range(q.shape[0])
        ]
        columns = [torch.stack(column) for column in zip(*parts, strict=True)]
        return columns[0], columns[1], columns[2], columns[3]
    q_ends, k_ends = ends(cu_q, q.shape[0], "cu_seqlens_q"), ends(cu_k, k.shape[0], "cu_seqlens_k")
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = torch.zeros(lse.shape, dtype=torch.float32, device=q.device)
    for i in range(len(q_ends) - 1):
        rows, keys = slice(q_ends[i], q_ends[i + 1]), slice(k_ends[i], k_ends[i + 1])
        part = sequence_gradients(dout[rows], q[rows], k[keys], v[keys], out[rows], lse[:, rows], scale, bounds)
        dq[rows], dk[keys], dv[keys], delta[:, rows] = part
    return dq, dk, dv, delta


def _written(c: Call, scale: float, *, causal: bool) -> _Four:
    """Return (dq, dk, dv, softmax_d) of a call. The first three are copied into the call's dq, dk and dv if given."""
    _refuse(c, c.dropout_p, c.alibi_slopes)
    bounds = (c.window_size_left, 0 if causal else c.window_size_right)
    lengths = getattr(c, "cu_seqlens_q", None), getattr(c, "cu_seqlens_k", None)
    grads = gradients(c, lengths, scale, bounds)
    for value, target in zip(grads[:3], (c.dq, c.dk, c.dv), strict=True):
        if target is not None:
            target.copy_(value)
    return grads


_WRITTEN = ("dq", "dk", "dv")


def _fake_lse(softmax_lse: Tensor) -> Tensor:
    return torch.empty_like(softmax_lse, dtype=torch.float32)


@stands_for(
    "flash_attn::_flash_attn_backward",
    "flash_attn::_flash_attn_varlen_backward",
    "aiter::_flash_attn_backward",
    writes=_WRITTEN,
    fake=_fake_lse,
)
def flash_backward(c: Call) -> Tensor:
    """Write dq, dk and dv, dense [B, S, H, D] or packed [T, H, D]. Returns softmax_d float32, [B, H, Sq] or [H, T]."""
    return _written(c, c.q.shape[-1] ** -0.5 if c.softmax_scale is None else c.softmax_scale, causal=c.causal)[3]


def _fake_three(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@stands_for("xformers_flash::flash_bwd", fake=_fake_three)
def xformers_flash_bwd(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv."""
    _refuse(c, c.p, None)
    packed = c.query.dim() == 3
    bounds = (c.window_left, 0 if c.is_causal else c.window_right)
    lengths = (c.cu_seqlens_q, c.cu_seqlens_k) if packed else (None, None)
    return gradients(
        with_changes(c, dout=c.grad, q=c.query, k=c.key, v=c.value, softmax_lse=c.lse), lengths, c.softmax_scale, bounds
    )[:3]


@stands_for("xformers_flash3::flash_bwd", fake=_fake_three)
def xformers_flash3_bwd(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dv."""
    return xformers_flash_bwd(with_changes(c, grad=c.dout, lse=c.softmax_lse, p=0.0))


def _fake_four(q: Tensor, k: Tensor, v: Tensor, softmax_lse: Tensor) -> _Four:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(softmax_lse)


@stands_for(
    "aiter::fmha_v3_bwd",
    "aiter::mha_bwd",
    "aiter::fmha_v3_varlen_bwd",
    "aiter::mha_varlen_bwd",
    writes=_WRITTEN,
    fake=_fake_four,
)
def aiter_bwd(c: Call) -> _Four:
    """Return (dq, dk, dv, softmax_d); write the first three to the given outputs as well."""
    return _written(c, c.softmax_scale, causal=c.is_causal)
