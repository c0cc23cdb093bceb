# pyright: strict
"""vLLM Ascend's gates of gated delta nets (Qwen3-Next), `_C_ascend::npu_fused_gdn_gating`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.declared import stands_for


@stands_for("_C_ascend::npu_fused_gdn_gating")
def fused_gdn_gating(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, beta: float, threshold: float = 20.0
) -> tuple[Tensor, Tensor]:
    """Return (log decay −exp(A_log) · softplus(a + dt_bias) in float32, sigmoid(b)), both [1, tokens, heads]."""
    step = F.softplus(a.float() + dt_bias.float(), beta, threshold)
    return (-A_log.float().exp() * step).unsqueeze(0), b.float().sigmoid().to(b.dtype).unsqueeze(0)
