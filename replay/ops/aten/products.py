# pyright: strict
"""Products of groups of rows in eight bits, through those of bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_grouped_mm(
    x: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Rows x [M, K] or [G, M, K], columns mat2 [G, K, N] or [K, N], a scale for each of either; int32 `offs` [G] cuts
    the dimension that both share where one of them has no dimension of groups."""
    del scale_result, use_fast_accum
    product = torch.ops.aten._grouped_mm.default(x.to(torch.bfloat16), mat2.to(torch.bfloat16), offs=offs).float()
    groups = mat2.shape[0] if mat2.dim() == 3 else x.shape[0] if x.dim() == 3 else product.shape[0]
    if product.dim() == 3:
        product = product * scale_a.view(groups, -1, 1) * scale_b.view(groups, 1, -1)
    elif offs is not None:
        rows = x.dim() == 2
        places = torch.arange(product.shape[0 if rows else 1], device=offs.device, dtype=offs.dtype)
        group = torch.searchsorted(offs, places, right=True).clamp_(max=groups - 1)
        product = product * (scale_a[:, None] if rows else scale_b[None, :])
        product = product * (scale_b[group] if rows else scale_a[group].t())
    product = product if bias is None else product + bias
    return product.to(out_dtype or torch.bfloat16)
