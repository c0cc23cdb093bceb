"""Fused attention backward ops of CUDA and ROCm: aten's flash attention on the CPU, autograd on other devices."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.aten.attention import attend
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.maths.attention import with_elements_side_by_side

Maybe = Tensor | None
Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""(gradient of the output, query, key, value, output)."""


def gradients(
    tensors: Tensors, lse: Tensor, mask: Maybe, *, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v.

    q, grad and out are [B, H, Sq, D], k and v are [B, Hkv, Sk, D], and lse is float32 [B, H, Sq or more].
    """
    grad, q, k, v, out = tensors
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


def scaled_dot_product_flash_attention_backward(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of attention in layout [B, H, S, D]."""
    tensors = (c.grad_out, c.query, c.key, c.value, c.out)
    bias = getattr(c, "attn_bias", None)
    grads = gradients(tensors, c.logsumexp, bias, causal=c.is_causal, scale=c.scale)
    of_query, of_key, of_value = map(_laid_out_as, grads, (c.query, c.key, c.value))
    return of_query, of_key, of_value


def _laid_out_as(gradient: Tensor, forward: Tensor) -> Tensor:
    """Return the gradient with the strides of its forward tensor, as CUDA's kernels write it."""
    like = torch.empty_like(forward)
    return gradient if gradient.stride() == like.stride() else like.copy_(gradient)


scaled_dot_product_cudnn_attention_backward = scaled_dot_product_flash_attention_backward


def scaled_dot_product_efficient_attention_backward(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of attention in layout [B, H, S, D]; the gradient of the bias is not computed."""
    return *scaled_dot_product_flash_attention_backward(with_changes(c, grad_out=c.grad_out_)), None


def cudnn_attention_backward(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of attention in layout [B, H, S, D].

    Packed sequences are treated as a single sequence, and a bias is ignored.
    """
    return scaled_dot_product_flash_attention_backward(with_changes(c, attn_bias=None))


def flash_attention_backward(c: Call) -> tuple[Tensor, ...]:
    """Return the gradients of attention in layout [B, S, H, D], or packed [T, H, D] with cumulative lengths."""
    tensors = (c.grad_out, c.query, c.key, c.value, c.out)
    if c.cum_seq_q is not None and c.query.dim() == 3:
        return _packed(tensors, c.cum_seq_q, c.cum_seq_k, causal=c.is_causal, scale=c.scale)
    grads = gradients(_heads_first(tensors), c.logsumexp, None, causal=c.is_causal, scale=c.scale)
    return tuple(g.transpose(1, 2) for g in grads)


def efficient_attention_backward(c: Call) -> tuple[Maybe, ...]:
    """Return the gradients of attention in layout [B, S, H, D], or packed [1, T, H, D] with cumulative lengths."""
    tensors = (c.grad_out_, c.query, c.key, c.value, c.out)
    causal = c.custom_mask_type > 0
    if c.cu_seqlens_q is not None:
        grad, q, k, v, out = (t[0] for t in tensors)
        packed = _packed((grad, q, k, v, out), c.cu_seqlens_q, c.cu_seqlens_k, causal=causal, scale=c.scale)
        return (*(g.unsqueeze(0) for g in packed), None)
    grads = gradients(_heads_first(tensors), c.logsumexp, c.bias, causal=causal, scale=c.scale)
    return (*(g.transpose(1, 2) for g in grads), None)


def _heads_first(tensors: Tensors) -> Tensors:
    """Move heads before tokens: [B, S, H, D] → [B, H, S, D]."""
    grad, q, k, v, out = (t.transpose(1, 2) for t in tensors)
    return grad, q, k, v, out


def _packed(
    tensors: Tensors, ends_q: Tensor, ends_k: Maybe, *, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    """Return the gradients of q, k and v for packed sequences [T, H, D].

    Zeros replace the recorded log-sum-exps, because each library packs them differently.
    """
    grad, q, k, v, out = tensors
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
        grads = gradients((one_grad, one_q, one_k, one_v, one_out), lse, None, causal=causal, scale=scale)
        for target, part, result in zip(totals, (here, there, there), grads, strict=True):
            target[part] = result[0].transpose(0, 1)
    return totals
