# pyright: strict
"""Losses of cuDNN and MIOpen, computed by aten's losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def cudnn_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
    deterministic: bool,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the CTC loss.

    Returns (loss [B], tensor for the backward). log_probs is [T, B, C], and targets is [ΣS] or [B, S]. Lengths are
    lists or tensors.
    """
    del deterministic
    return torch.ops.aten._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)


miopen_ctc_loss = cudnn_ctc_loss
"""MIOpen's CTC loss, with the same arguments and results as `cudnn_ctc_loss`."""
