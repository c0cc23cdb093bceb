# pyright: strict
"""Gates of gated delta nets.

Written from vLLM's Triton kernel of the same name, independent of the references.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import Values, formula, of, wide


@formula("_C_ascend::npu_fused_gdn_gating", "(f32[8], bf16[16,8], bf16[16,8], bf16[8])")
@formula("_C_ascend::npu_fused_gdn_gating", "(f32[8], f32[16,8], f32[16,8], f32[8], 4.0)")
def fused_gdn_gating(values: Values) -> tuple[Tensor, Tensor]:
    """Where beta · x exceeds the threshold, softplus(x) = log(1 + exp(beta · x)) / beta is x itself."""
    x, beta = wide(values["a"]) + wide(values["dt_bias"]), of(values, "beta", otherwise=1.0)
    soft = torch.log1p(torch.exp(beta * x)) / beta
    step = torch.where(beta * x > of(values, "threshold", otherwise=20.0), x, soft)
    decay = torch.exp(wide(values["A_log"])).neg() * step
    strength = 1 / (1 + torch.exp(-wide(values["b"])))
    return decay[None], strength.to(values["b"].dtype)[None]
