"""Meta-internal `fb::*` ops that public traces contain. Nothing public defines them: schemas are those of the recorded
arguments, meanings are read off names and shapes, and each docstring says what is assumed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.standins.declared.register import reference
from opreplay.replay.standins.fbgemm.sparse import complete_cumsum, positions_in_segments
from opreplay.replay.standins.maths.norms import rms_norm


@reference("fb::asynchronous_complete_cumsum(Tensor t_in) -> Tensor")
def asynchronous_complete_cumsum(t_in: Tensor) -> Tensor:
    """As the fbgemm op of that name."""
    return complete_cumsum(t_in)


@reference(
    "fb::offsets_range(Tensor offsets, Tensor values) -> Tensor",
    fake=lambda offsets, values: offsets.new_empty((values.shape[0],)),
)
def offsets_range(offsets: Tensor, values: Tensor) -> Tensor:
    """Assumed: `fbgemm::offsets_range` over as many places as there are values."""
    return positions_in_segments(offsets[:-1] if offsets.numel() > 1 else offsets, values.shape[0])


@reference(
    "fb::lengths_range_w_truncation_size(Tensor lengths, int[]? shape, int truncation_size) -> Tensor",
    fake=lambda lengths: lengths.new_empty((lengths.shape[0],)),
)
def lengths_range(lengths: Tensor, truncation_size: int) -> Tensor:
    """0 .. min(length, truncation_size) − 1 for each length, one after the other (a size of 0 does not cut)."""
    limited = lengths.clamp(min=0, max=truncation_size) if truncation_size > 0 else lengths.clamp(0, 1)
    ends = limited.cumsum(0)
    return positions_in_segments((ends - limited).to(torch.int64), int(limited.sum())).to(lengths.dtype)


@reference("fb::fast_gather(Tensor input, Tensor indices) -> Tensor")
def fast_gather(input: Tensor, indices: Tensor) -> Tensor:
    """input[indices] along the first dim (torch_glow's shape inference); indices beyond it are clamped."""
    return input[indices.to(torch.int64).clamp(0, input.shape[0] - 1)]


@reference("fb::scale_gradient(Tensor input, float scale) -> Tensor")
def scale_gradient(input: Tensor) -> Tensor:
    """The identity; only the gradient is scaled."""
    return input.clone()


@reference("fb::convex_sum(Tensor input, Tensor weight) -> Tensor")
def convex_sum(input: Tensor, weight: Tensor) -> Tensor:
    """Assumed: input [B, n] @ softmax(weight [n, m])."""
    return input @ torch.softmax(weight, 0)


@reference("fb::rms_norm(Tensor input, Tensor weight, Tensor bias, float epsilon, Scalar flag) -> Tensor")
def fb_rms_norm(input: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """Assumed: RMS norm over the last dim, times weight, plus bias."""
    return rms_norm(input, weight, epsilon) + bias


def _dense_size(size: int) -> int:
    return max(size, 1)


@reference(
    "fb::to_dense_representation(Tensor values, Tensor lengths, Tensor keys, int size, Scalar default) -> Tensor",
    fake=lambda values, size: values.new_empty((values.shape[0], _dense_size(size))),
)
def to_dense_representation(values: Tensor, keys: Tensor, size: int) -> Tensor:
    """Assumed: [n, size] with values[i] at (i, keys[i]), zeros elsewhere."""
    out = values.new_zeros((values.shape[0], _dense_size(size)))
    column = keys[: values.shape[0]].to(torch.int64).clamp(0, out.shape[1] - 1)
    return out.scatter_(1, column.unsqueeze(1), values.unsqueeze(1))


@reference(
    "fb::sparse_label_to_dense(Tensor lengths, Tensor ids, Tensor values, int size) -> Tensor",
    fake=lambda lengths, values, size: values.new_empty((lengths.shape[0], _dense_size(size))),
)
def sparse_label_to_dense(lengths: Tensor, ids: Tensor, values: Tensor, size: int) -> Tensor:
    """Assumed: [n, size] with each row's values at its ids, zeros elsewhere."""
    out = values.new_zeros((lengths.shape[0], _dense_size(size)))
    ends = lengths.to(torch.int64).clamp(min=0).cumsum(0).clamp(max=ids.shape[0])
    place = torch.arange(ids.shape[0], device=ids.device)
    row = torch.searchsorted(ends, place, right=True)
    kept = row < lengths.shape[0]
    column = ids.to(torch.int64).clamp(0, out.shape[1] - 1)
    return out.index_put_((row[kept], column[kept]), values[: ids.shape[0]][kept])


@reference(
    "fb::sparse_label_to_bool(Tensor lengths, Tensor ids, int size) -> Tensor",
    fake=lambda lengths, size: lengths.new_empty((lengths.shape[0], _dense_size(size)), dtype=torch.bool),
)
def sparse_label_to_bool(lengths: Tensor, ids: Tensor, size: int) -> Tensor:
    """Assumed: as sparse_label_to_dense, True where a row has the id."""
    return sparse_label_to_dense(lengths, ids, torch.ones_like(ids), size) > 0
