"""FBGEMM's sparse ops (fbgemm_gpu/src/sparse_ops): cumulative sums, permutes of jagged data, bucketing, bounds checks.

Lengths and offsets beyond the values are cut to the end of the values, and table numbers are clamped. FBGEMM's bounds
check does the same for indices. Hence no argument can make these functions read out of bounds or allocate without
limit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


def complete_cumsum(x: Tensor) -> Tensor:
    """Return cumulative sums that start with 0: [.., n] → [.., n + 1]."""
    sums = torch.cumsum(x, dim=-1, dtype=x.dtype)
    return torch.nn.functional.pad(sums, (1, 0))


stands_for("fbgemm::asynchronous_complete_cumsum")(lambda t_in: complete_cumsum(t_in))
stands_for("fbgemm::asynchronous_inclusive_cumsum")(lambda t_in: torch.cumsum(t_in, dim=-1, dtype=t_in.dtype))
stands_for("fbgemm::asynchronous_exclusive_cumsum")(lambda t_in: complete_cumsum(t_in)[..., :-1].clone())


@stands_for("fbgemm::offsets_range", fake=lambda offsets, range_size: offsets.new_empty((range_size,)))
def positions_in_segments(offsets: Tensor, range_size: int) -> Tensor:
    """Return positions 0, 1, 2, .. [range_size] that restart at each segment start in offsets [n]."""
    place = torch.arange(range_size, device=offsets.device, dtype=offsets.dtype)
    segment = torch.searchsorted(offsets.contiguous(), place, right=True) - 1
    return place - offsets[segment.clamp(min=0)]


def _rows(lengths: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Return start and size of each row's values, for lengths [T, ..] over at most `limit` values."""
    sizes = lengths.reshape(lengths.shape[0], -1).clamp(min=0).sum(1, dtype=torch.int64)
    edges = complete_cumsum(sizes).clamp(max=limit)
    return edges[:-1], edges.diff()


def permute_jagged(
    permute: Tensor, lengths: Tensor, values: Tensor, weights: Tensor | None, total: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the rows of lengths [T, ..] and their values (and weights) in the order of `permute`.

    `total` is the number of values in the results. A caller that gives it saves a wait for the device. Missing values
    are zeros.
    """
    order = permute.to(torch.int64).clamp(0, lengths.shape[0] - 1)
    starts, sizes = _rows(lengths, values.shape[0])
    taken = sizes[order]
    shift = starts[order] - (taken.cumsum(0) - taken)
    index = torch.arange(int(taken.sum()), device=values.device) + torch.repeat_interleave(shift, taken)
    permuted = [None if x is None else _sized(x.index_select(0, index), total) for x in (values, weights)]
    assert permuted[0] is not None
    return lengths.index_select(0, order), permuted[0], permuted[1]


def _sized(x: Tensor, total: int | None) -> Tensor:
    if total is None or x.shape[0] == total:
        return x
    out = x.new_zeros((total, *x.shape[1:]))
    out[: x.shape[0]] = x[:total]
    return out


def _fake_permute(
    permute: Tensor, lengths: Tensor, values: Tensor, weights: Tensor | None, permuted_lengths_sum: int | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    total = values.shape[0] if permuted_lengths_sum is None else permuted_lengths_sum
    permuted = [None if x is None else x.new_empty((total, *x.shape[1:])) for x in (values, weights)]
    assert permuted[0] is not None
    return lengths.new_empty((permute.shape[0], *lengths.shape[1:])), permuted[0], permuted[1]


@stands_for(
    "fbgemm::permute_1D_sparse_data",
    "fbgemm::permute_2D_sparse_data",
    "fbgemm::permute_sparse_data",
    fake=_fake_permute,
)
def permute_sparse_data(c: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows `permute` [T'] of lengths [T, B], with values and weights.

    This is the permute of a KeyedJaggedTensor.
    """
    total = c.permuted_lengths_sum if c.permuted_lengths_sum else None
    return permute_jagged(c.permute, c.lengths, c.values, c.weights, total)


@stands_for(
    "fbgemm::permute_sparse_features",
    fake=lambda permute, lengths, indices, weights: _fake_permute(permute, lengths, indices, weights),
)
def permute_sparse_features(c: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return rows permute[i] of `lengths`, with the indices and weights of each row."""
    return permute_jagged(c.permute, c.lengths, c.indices, c.weights, None)


@stands_for(
    "fbgemm::permute_pooled_embs",
    "fbgemm::permute_pooled_embs_auto_grad",
    fake=lambda pooled_embs: torch.empty_like(pooled_embs),
)
def permute_pooled_embs(pooled_embs: Tensor, offset_dim_list: Tensor, permute_list: Tensor) -> Tensor:
    """Reorder the column blocks of pooled_embs [B, ΣD] by permute_list.

    offset_dim_list [T + 1] holds the bounds of the blocks.
    """
    width = pooled_embs.shape[1]
    edges = offset_dim_list.to(torch.int64).clamp(0, width).cummax(0).values
    sizes, starts = edges.diff(), edges[:-1]
    order = permute_list.to(torch.int64).clamp(0, max(starts.numel() - 1, 0))
    taken = sizes[order]
    shift = starts[order] - (taken.cumsum(0) - taken)
    columns = torch.arange(int(taken.sum()), device=edges.device) + torch.repeat_interleave(shift, taken)
    out = torch.zeros_like(pooled_embs)
    columns = columns[:width]
    out[:, : columns.numel()] = pooled_embs.index_select(1, columns.to(pooled_embs.device))
    return out


@stands_for(
    "fbgemm::recat_embedding_grad_output_mixed_D_batch",
    fake=lambda grad_output: grad_output.new_empty((grad_output.numel(),)),
)
def recat_embedding_grad_output(grad_output: Tensor, dim_sum_per_rank: Tensor) -> Tensor:
    """Split the columns of grad_output [B, ΣD] by rank. Returns the parts of all ranks, flattened and concatenated."""
    out = grad_output.new_zeros((grad_output.numel(),))
    start = column = 0
    for dim in dim_sum_per_rank.tolist():
        part = grad_output[:, column : column + max(dim, 0)]
        out[start : start + part.numel()] = part.reshape(-1)
        start, column = start + part.numel(), column + max(dim, 0)
    return out


@stands_for("fbgemm::bounds_check_indices")
def bounds_check_indices(c: Call) -> None:
    """Set indices outside their table to 0, and clamp invalid offsets.

    Index −1 (a pruned row) is kept. An invalid index or offset raises ValueError in mode 0, is counted in `warning` in
    mode 1, and is ignored in mode 2. Any other mode raises ValueError.
    """
    indices = c.indices
    if c.bounds_check_mode not in (0, 1, 2):
        raise ValueError(f"bounds_check_mode={c.bounds_check_mode} is not implemented")
    tables = max(c.rows_per_table.numel(), 1)
    batch = (c.offsets.numel() - 1) // tables
    good = c.offsets.clamp(0, indices.numel()).cummax(0).values
    edges = good[:: max(batch, 1)][: tables + 1].contiguous()
    table = (torch.searchsorted(edges, _places(indices, edges), right=True) - 1).clamp(0, tables - 1)
    bad = (indices >= c.rows_per_table[table]) | (indices < -1)
    faults = bad.sum() + (good != c.offsets).sum()
    if c.bounds_check_mode == 0 and faults:
        raise ValueError(f"{int(faults)} indices or offsets are out of bounds")
    if c.bounds_check_mode == 1:
        c.warning[:1] += faults
    indices.masked_fill_(bad, 0)
    c.offsets.copy_(good)


def _places(indices: Tensor, edges: Tensor) -> Tensor:
    return torch.arange(indices.numel(), device=indices.device, dtype=edges.dtype)


_Buckets = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def _fake_buckets(c: Call) -> _Buckets:
    return (
        c.lengths.new_empty((c.lengths.numel() * c.my_size,)),
        torch.empty_like(c.indices),
        None if c.weights is None else torch.empty_like(c.weights),
        torch.empty_like(c.indices) if c.bucketize_pos else None,
        torch.empty_like(c.indices) if c.sequence else None,
    )


@stands_for("fbgemm::block_bucketize_sparse_features", fake=_fake_buckets)
def block_bucketize_sparse_features(c: Call) -> _Buckets:
    """Split the indices of a jagged tensor for T tables over my_size ranks.

    Table t is split in blocks of block_sizes[t] rows. Returns lengths [my_size · T · B], indices, weights, positions in
    the original row, and the new position of each original index. Raises ValueError if my_size is not positive.
    """
    lengths, indices, my_size = c.lengths, c.indices, c.my_size
    if my_size <= 0:
        raise ValueError(f"my_size must be positive, not {my_size}")
    starts, sizes = _rows(lengths.reshape(-1), indices.numel())
    row = torch.repeat_interleave(torch.arange(lengths.numel(), device=indices.device), sizes)
    used = indices[: row.numel()]
    per_table = max(lengths.numel() // max(c.block_sizes.numel(), 1), 1)
    block = c.block_sizes[(row // per_table).clamp(max=c.block_sizes.numel() - 1)].clamp(min=1).to(used.dtype)
    inside = used < block * my_size
    rank = torch.where(inside, used // block, used % my_size).clamp(0, my_size - 1)
    local = torch.where(inside, used % block, used // my_size)
    key = rank.to(torch.int64) * lengths.numel() + row
    order = torch.argsort(key, stable=True)
    new_lengths = torch.bincount(key, minlength=my_size * lengths.numel()).to(lengths.dtype)
    rest = indices.numel() - row.numel()

    def filled(x: Tensor) -> Tensor:
        return torch.cat((x, x.new_zeros(rest))) if rest else x

    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    position = torch.arange(row.numel(), device=row.device) - starts[row]
    return (
        new_lengths,
        filled((used if getattr(c, "keep_orig_idx", False) else local)[order]),
        None if c.weights is None else filled(c.weights[: row.numel()][order]),
        filled(position[order].to(indices.dtype)) if c.bucketize_pos else None,
        filled(place.to(indices.dtype)) if c.sequence else None,
    )
