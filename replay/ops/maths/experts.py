# pyright: strict
"""Mathematics of a mixture of experts after routing; no ops are declared here.

Each call first reads from the device how many tokens each expert has. It then multiplies expert by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from opreplay.replay.ops.maths.products import linear
from opreplay.replay.ops.maths.quantize import dequantize
from opreplay.replay.ops.maths.routing import counts


class Weights(NamedTuple):
    """Both layers of all experts, with their scales and formats."""

    w1: Tensor
    """First layer, [E, 2I, H] (or [E, I, H] without a gate)."""
    w2: Tensor
    """Second layer, [E, H, I]."""
    scale1: Tensor | None = None
    """One scale per tensor, expert, row or block; see `quantize.expand_scale`."""
    scale2: Tensor | None = None
    bias1: Tensor | None = None
    bias2: Tensor | None = None


def expert_scale(scale: Tensor | None, expert: int, experts: int) -> Tensor | None:
    """Return one expert's scale. None and a single scale for all experts are returned unchanged."""
    if scale is None or scale.numel() == 1:
        return scale
    if scale.shape[0] != experts:
        raise ValueError(f"a scale of shape {tuple(scale.shape)} does not fit {experts} experts")
    return scale[expert]


def by_expert(ids: Tensor, experts: int) -> tuple[Tensor, list[int]]:
    """Return the flat positions of ids sorted by expert, and the start of each expert in this order [experts + 1].

    Ids that are not in 0 .. experts − 1 come last.
    """
    flat = ids.flatten().to(torch.int64)
    known = (flat >= 0) & (flat < experts)
    order = torch.argsort(torch.where(known, flat, torch.full_like(flat, experts)), stable=True)
    ends = counts(ids, experts).cumsum(0)
    return order, [0, *(int(end) for end in ends)]


def grouped_linear(
    x: Tensor, weight: Tensor, starts: list[int], scale: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Multiply the rows x[starts[e] : starts[e + 1]] by the weight of each expert e.

    x is [N, K], weight is [E, M, K], and the result is [N, M]. All other rows of the result are zero.
    """
    out = x.new_zeros((x.shape[0], weight.shape[1]))
    for expert in range(weight.shape[0]):
        start, stop = starts[expert], starts[expert + 1]
        if start == stop:
            continue
        matrix = dequantize(weight[expert], expert_scale(scale, expert, weight.shape[0]), x.dtype)
        out[start:stop] = linear(x[start:stop], matrix, None if bias is None else bias[expert])
    return out


def fused_experts(
    hidden: Tensor,
    weights: Weights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Callable[[Tensor], Tensor],
    *,
    weigh_input: bool = False,
    expert_map: Tensor | None = None,
) -> Tensor:
    """Return Σ over the selected experts of routing weight · w2(activation(w1(x))), [T, H].

    hidden is [T, H]; topk_weights and topk_ids are [T, k]. `expert_map` int [all experts] gives the local index of each
    expert; −1 marks non-local experts, which add nothing. With `weigh_input`, the routing weight is multiplied into the
    input instead of the result (top-1 models).
    """
    topk = topk_ids.shape[1]
    ids = topk_ids if expert_map is None else expert_map[topk_ids.to(torch.int64)]
    order, starts = by_expert(ids, weights.w1.shape[0])
    order = order[: starts[-1]]
    token = order // topk
    factor = topk_weights.flatten()[order].to(hidden.dtype).unsqueeze(1)
    rows = hidden.index_select(0, token)
    if weigh_input:
        rows = rows * factor
    inner = activation(grouped_linear(rows, weights.w1, starts, weights.scale1, weights.bias1))
    result = grouped_linear(inner, weights.w2, starts, weights.scale2, weights.bias2)
    if not weigh_input:
        result = result * factor
    out = torch.zeros((hidden.shape[0], result.shape[1]), dtype=torch.float32, device=hidden.device)
    return out.index_add_(0, token, result.float()).to(hidden.dtype)
