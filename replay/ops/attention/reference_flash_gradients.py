# pyright: strict
"""Gradients of attention under the names of flash-attention 3, xformers and aiter; see `flash_attention_backward`.

Dropout, softcap, bias, slopes and sinks are refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.attention.reference_flash_backward import sequence_gradients
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.attention import ends

_Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _refuse(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} is not implemented in the reference of attention's gradients")


def gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    scale: float,
    bounds: tuple[int, int],
) -> _Four:
    """dq, dk, dv and softmax_d: dense [B, S, H, D] with lse [B, H, S], or packed [T, H, D] with lse [H, T]."""
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


def _keep(grads: _Four, *targets: Tensor | None) -> None:
    for value, target in zip(grads[:3], targets, strict=True):
        if target is not None:
            target.copy_(value)


def _like(softmax_lse: Tensor) -> Tensor:
    return torch.empty_like(softmax_lse)


@stands_for("flash_attn_3::_flash_attn_backward", fake=_like)
def fa3_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
) -> Tensor:
    """Writes dq, dk, dv; returns softmax_d."""
    _refuse(softcap=softcap > 0)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    bounds = (window_size_left, 0 if is_causal else window_size_right)
    grads = gradients(dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, scale, bounds)
    _keep(grads, dq, dk, dv)
    return grads[3]


def _fake_three(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@stands_for("xformers_flash::flash_bwd", fake=_fake_three)
def xformers_flash_bwd(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    p: float,
    softmax_scale: float,
    is_causal: bool,
    window_left: int,
    window_right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv."""
    _refuse(dropout=p > 0)
    packed = query.dim() == 3
    bounds = (window_left, 0 if is_causal else window_right)
    return gradients(
        grad,
        query,
        key,
        value,
        out,
        lse,
        cu_seqlens_q if packed else None,
        cu_seqlens_k if packed else None,
        softmax_scale,
        bounds,
    )[:3]


@stands_for("xformers_flash3::flash_bwd", fake=_fake_three)
def xformers_flash3_bwd(
    dout: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    softmax_scale: float,
    is_causal: bool,
    window_left: int,
    window_right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv."""
    return xformers_flash_bwd(
        dout,
        query,
        key,
        value,
        out,
        softmax_lse,
        cu_seqlens_q,
        cu_seqlens_k,
        0.0,
        softmax_scale,
        is_causal,
        window_left,
        window_right,
    )


_WRITTEN = ("dq", "dk", "dv")


@stands_for("aiter::_flash_attn_backward", writes=_WRITTEN, fake=_like)
def aiter_backward(
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
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
) -> Tensor:
    """Writes dq, dk, dv; returns softmax_d."""
    _refuse(dropout=dropout_p > 0, bias=bias, alibi_slopes=alibi_slopes)
    bounds = (window_size_left, 0 if causal else window_size_right)
    grads = gradients(dout, q, k, v, out, softmax_lse, None, None, softmax_scale, bounds)
    _keep(grads, dq, dk, dv)
    return grads[3]


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
def aiter_bwd(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dropout_p: float,
    softmax_scale: float,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    alibi_slopes: Tensor | None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    sink_ptr: Tensor | None = None,
) -> _Four:
    """(dq, dk, dv, softmax_d), the first three also written where given."""
    _refuse(dropout=dropout_p > 0, bias=bias, alibi_slopes=alibi_slopes, sink=sink, sink_ptr=sink_ptr)
    bounds = (window_size_left, 0 if is_causal else window_size_right)
    grads = gradients(dout, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, softmax_scale, bounds)
    _keep(grads, dq, dk, dv)
    return grads
