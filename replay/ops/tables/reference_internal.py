"""Meta-internal `fb::*` ops that occur in public traces but have no public definition.

The schemas follow the recorded arguments. The meanings are inferred from names and shapes. Each docstring states its
assumptions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm
from opreplay.replay.ops.tables.reference_sparse import positions_in_segments


@stands_for("fb::offsets_range", fake=lambda offsets, values: offsets.new_empty((values.shape[0],)))
def offsets_range(offsets: Tensor, values: Tensor) -> Tensor:
    """Same as `fbgemm::offsets_range` with as many positions as there are values (assumed)."""
    return positions_in_segments(offsets[:-1] if offsets.numel() > 1 else offsets, values.shape[0])


@stands_for("fb::lengths_range_w_truncation_size", fake=lambda lengths: lengths.new_empty((lengths.shape[0],)))
def lengths_range(lengths: Tensor, truncation_size: int) -> Tensor:
    """Return 0 .. min(length, truncation_size) − 1 for each length, concatenated.

    Without a positive truncation_size, each length is limited to 1.
    """
    limited = lengths.clamp(min=0, max=truncation_size) if truncation_size > 0 else lengths.clamp(0, 1)
    ends = limited.cumsum(0)
    return positions_in_segments((ends - limited).to(torch.int64), int(limited.sum())).to(lengths.dtype)


@stands_for("fb::fast_gather")
def fast_gather(input: Tensor, indices: Tensor) -> Tensor:
    """Return input[indices] along the first dim (torch_glow's shape inference). Out-of-range indices are clamped."""
    return input[indices.to(torch.int64).clamp(0, input.shape[0] - 1)]


@stands_for("fb::scale_gradient")
def scale_gradient(input: Tensor) -> Tensor:
    """Return the input unchanged (only its gradient is scaled)."""
    return input.clone()


@stands_for("fb::convex_sum")
def convex_sum(input: Tensor, weight: Tensor) -> Tensor:
    """Return input [B, n] @ softmax(weight [n, m]) (assumed)."""
    return input @ torch.softmax(weight, 0)


@stands_for("fb::rms_norm")
def fb_rms_norm(input: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Return the RMS norm over the last dim, times weight, plus bias (assumed)."""
    return rms_norm(input, weight, epsilon) + bias


def _dense_size(size: int) -> int:
    return max(size, 1)


@stands_for(
    "fb::to_dense_representation", fake=lambda values, size: values.new_empty((values.shape[0], _dense_size(size)))
)
def to_dense_representation(values: Tensor, keys: Tensor, size: int, default: float) -> Tensor:
    """Return [n, size] with values[i] at (i, keys[i]) and `default` elsewhere (assumed)."""
    out = values.new_full((values.shape[0], _dense_size(size)), default)
    column = keys[: values.shape[0]].to(torch.int64).clamp(0, out.shape[1] - 1)
    return out.scatter_(1, column.unsqueeze(1), values.unsqueeze(1))


@stands_for(
    "fb::sparse_label_to_dense",
    fake=lambda lengths, values, size: values.new_empty((lengths.shape[0], _dense_size(size))),
)
def sparse_label_to_dense(lengths: Tensor, ids: Tensor, values: Tensor, size: int) -> Tensor:
    """Return [n, size] with each row's values at its ids and zeros elsewhere (assumed)."""
    out = values.new_zeros((lengths.shape[0], _dense_size(size)))
    ends = lengths.to(torch.int64).clamp(min=0).cumsum(0).clamp(max=ids.shape[0])
    place = torch.arange(ids.shape[0], device=ids.device)
    row = torch.searchsorted(ends, place, right=True)
    inside = row < lengths.shape[0]
    column = ids.to(torch.int64).clamp(0, out.shape[1] - 1)
    return out.index_put_((row[inside], column[inside]), values[: ids.shape[0]][inside])


@stands_for(
    "fb::sparse_label_to_bool",
    fake=lambda lengths, size: lengths.new_empty((lengths.shape[0], _dense_size(size)), dtype=torch.bool),
)
def sparse_label_to_bool(lengths: Tensor, ids: Tensor, size: int) -> Tensor:
    """Return bool [n, size], True at each row's ids (assumed)."""
    return sparse_label_to_dense(lengths, ids, torch.ones_like(ids), size) > 0
