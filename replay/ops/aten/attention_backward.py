"""Fused attention backwards of CUDA and ROCm through aten's flash attention for the CPU, or autograd elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opreplay.replay.ops.aten.attention import attend
from opreplay.replay.ops.maths.attention import with_elements_side_by_side

Maybe = Tensor | None


def gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Maybe,
    *,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, grad and out [B, H, Sq, D], k and v [B, Hkv, Sk, D], lse float32 [B, H, ≥ Sq] → gradients of q, k and v."""
    repeats = q.shape[1] // max(1, k.shape[1])
    if q.device.type != "cpu" or (mask is not None and causal):
        return _by_autograd(grad, q, k, v, mask, causal=causal, scale=scale)
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    lse = lse.reshape(*q.shape[:2], -1)[..., : q.shape[2]].contiguous()
    grad, q, k, v, out = (with_elements_side_by_side(x) for x in (grad, q, k, v, out))
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
    )
    if repeats > 1:
        grad_k, grad_v = (g.unflatten(1, (-1, repeats)).sum(2) for g in grads[1:])
        return grads[0], grad_k, grad_v
    return grads


def _by_autograd(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Maybe, *, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.enable_grad():
        leaf_q, leaf_k, leaf_v = (t.detach().requires_grad_() for t in (q, k, v))
        out = attend(leaf_q, leaf_k, leaf_v, mask, causal=causal, scale=scale)
        grads = torch.autograd.grad(out, (leaf_q, leaf_k, leaf_v), grad.to(out.dtype))
    return grads[0], grads[1], grads[2]


def scaled_dot_product_flash_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layout [B, H, S, D]."""
    del cum_seq_q, cum_seq_k, max_q, max_k, dropout_p
    return gradients(grad, q, k, v, out, lse, None, causal=is_causal, scale=scale)


def scaled_dot_product_efficient_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    out: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    """Layout [B, H, S, D]; no gradient of the bias."""
    del seed, offset, dropout_p, grad_input_mask
    return (*gradients(grad, q, k, v, out, lse, bias, causal=is_causal, scale=scale), None)


def scaled_dot_product_cudnn_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    bias: Maybe,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layout [B, H, S, D]."""
    del seed, offset, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p
    return gradients(grad, q, k, v, out, lse, bias, causal=is_causal, scale=scale)


def cudnn_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any, scale: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Layout [B, H, S, D]; packed sequences count as one."""
    is_causal = rest[-1] if rest and isinstance(rest[-1], bool) else False
    return gradients(grad, q, k, v, out, lse, None, causal=is_causal, scale=scale)


def flash_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *_: Any,
    scale: float | None = None,
    **__: Any,
) -> tuple[Tensor, ...]:
    """Layout [B, S, H, D], or packed [T, H, D] with cumulative lengths."""
    del max_q, max_k, dropout_p
    if cum_seq_q is not None and q.dim() == 3:
        return _packed(grad, q, k, v, out, cum_seq_q, cum_seq_k, causal=is_causal, scale=scale)
    grad, q, k, v, out = (t.transpose(1, 2) for t in (grad, q, k, v, out))
    grads = gradients(grad, q, k, v, out, lse, None, causal=is_causal, scale=scale)
    return tuple(g.transpose(1, 2) for g in grads)


def efficient_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    out: Tensor,
    cu_seqlens_q: Maybe,
    cu_seqlens_k: Maybe,
    max_seqlen_q: int,
    max_seqlen_k: int,
    lse: Tensor,
    dropout_p: float,
    seed: Tensor,
    offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    **_: Any,
) -> tuple[Maybe, ...]:
    """Layout [B, S, H, D]; packed as [1, T, H, D] with cumulative lengths."""
    del max_seqlen_q, max_seqlen_k, dropout_p, seed, offset, bias_requires_grad
    causal = custom_mask_type > 0
    if cu_seqlens_q is not None:
        packed = _packed(grad[0], q[0], k[0], v[0], out[0], cu_seqlens_q, cu_seqlens_k, causal=causal, scale=scale)
        return (*(g.unsqueeze(0) for g in packed), None)
    grad, q, k, v, out = (t.transpose(1, 2) for t in (grad, q, k, v, out))
    grads = gradients(grad, q, k, v, out, lse, bias, causal=causal, scale=scale)
    return (*(g.transpose(1, 2) for g in grads), None)


def _packed(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    ends_q: Tensor,
    ends_k: Maybe,
    *,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    """Sequences one behind the other, [T, H, D]; log-sum-exps are zeros, as their packed layout differs by library."""
    starts_q = ends_q.tolist()
    starts_k = starts_q if ends_k is None else ends_k.tolist()
    totals = tuple(torch.zeros_like(t) for t in (q, k, v))
    for i in range(len(starts_q) - 1):
        here, there = slice(starts_q[i], starts_q[i + 1]), slice(starts_k[i], starts_k[i + 1])
        if here.start >= here.stop or there.start >= there.stop:
            continue
        parts = (t.transpose(0, 1).unsqueeze(0) for t in (grad[here], q[here], k[there], v[there], out[here]))
        one_grad, one_q, one_k, one_v, one_out = parts
        lse = one_q.new_zeros(one_q.shape[:-1], dtype=torch.float32)
        grads = gradients(one_grad, one_q, one_k, one_v, one_out, lse, None, causal=causal, scale=scale)
        for target, part, result in zip(totals, (here, there, there), grads, strict=True):
            target[part] = result[0].transpose(0, 1)
    return totals
