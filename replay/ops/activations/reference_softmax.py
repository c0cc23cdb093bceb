# pyright: strict
"""Transformer Engine's fused, masked softmaxes of attention scores and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for

_MASKED = -10000.0
"""Value that the kernels write in place of a masked score."""


@stands_for("te_softmax::scaled_softmax_fwd", writes=())
def scaled(inputs: Tensor, scale: float) -> Tensor:
    """Return the softmax of inputs [B, H, Q, K] · scale over the keys."""
    return torch.softmax(inputs.float() * scale, -1).to(inputs.dtype)


@stands_for("te_softmax::scaled_masked_softmax_fwd", writes=())
def scaled_masked(inputs: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return softmax(inputs · scale) over the keys, with masked scores set to -10000.

    Scores are masked where mask [B or 1, 1, Q, K] is 1. Fully masked rows are zero.
    """
    masked = mask == 1
    scores = (inputs.float() * scale).masked_fill(masked, _MASKED)
    return torch.softmax(scores, -1).masked_fill(masked.all(-1, keepdim=True), 0.0).to(inputs.dtype)


@stands_for(
    "te_softmax::scaled_upper_triang_masked_softmax_fwd",
    "te_softmax::scaled_aligned_causal_masked_softmax_fwd",
    writes=(),
)
def scaled_causal(inputs: Tensor, scale: float) -> Tensor:
    """Return softmax(inputs · scale) with a causal mask.

    The mask is aligned to the last key, so the last query sees all keys. Keys after a query's own position get zeros.
    """
    queries, keys = inputs.shape[-2:]
    later = torch.ones((queries, keys), dtype=torch.bool, device=inputs.device).triu(keys - queries + 1)
    scores = (inputs.float() * scale).masked_fill(later, float("-inf"))
    return torch.softmax(scores, -1).masked_fill(later, 0.0).to(inputs.dtype)


@stands_for(
    "te_softmax::scaled_softmax_bwd",
    "te_softmax::scaled_masked_softmax_bwd",
    "te_softmax::scaled_upper_triang_masked_softmax_bwd",
    "te_softmax::scaled_aligned_causal_masked_softmax_bwd",
    writes=(),
)
def scaled_backward(output_grads: Tensor, softmax_results: Tensor, scale: float) -> Tensor:
    """Return the gradient of the unscaled scores; it is zero wherever the softmax is zero."""
    y, grad = softmax_results.float(), output_grads.float()
    return (scale * y * (grad - (y * grad).sum(-1, keepdim=True))).to(output_grads.dtype)
