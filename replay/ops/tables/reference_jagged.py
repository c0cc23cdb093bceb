"""FBGEMM's jagged tensors: values [N, D] that offsets [B + 1] split into B rows.

The ops convert from and to padded tensors, and do arithmetic. If lengths exceed the values, they are cut to the
existing values, as in the other reference implementations of FBGEMM.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


def places(offsets: Tensor, longest: int, total: int) -> tuple[Tensor, Tensor]:
    """Return the index into the values of each padded position [B, longest], and a mask of the positions with
    a value.
    """
    starts = offsets[:-1].to(torch.int64).unsqueeze(1)
    column = torch.arange(longest, device=offsets.device)
    where = starts + column
    real = (where < offsets[1:].to(torch.int64).unsqueeze(1)) & (where < total)
    return where.clamp(0, max(total - 1, 0)), real


@stands_for("fbgemm::jagged_1d_to_dense", "fbgemm::jagged_2d_to_dense")
def to_dense(values: Tensor, offsets: Tensor, max_sequence_length: int, padding_value: float = 0.0) -> Tensor:
    """Convert values [N, ..] to [B, max_sequence_length, ..]."""
    where, real = places(offsets, max_sequence_length, values.shape[0])
    if not values.shape[0]:
        return values.new_full((*where.shape, *values.shape[1:]), padding_value)
    mask = real.reshape(*real.shape, *[1] * (values.dim() - 1))
    return values[where].masked_fill(~mask, padding_value)


def to_jagged(dense: Tensor, offsets: Tensor, total: int) -> Tensor:
    """Convert dense [B, L, ..] to values [total, ..]; positions of a row beyond L are zeros."""
    row = torch.arange(total, device=dense.device)
    owner = (torch.searchsorted(offsets.to(torch.int64).contiguous(), row, right=True) - 1).clamp(0, dense.shape[0] - 1)
    column = row - offsets.to(torch.int64)[owner]
    inside = (column >= 0) & (column < dense.shape[1]) & (row < offsets[-1])
    values = dense[owner, column.clamp(0, dense.shape[1] - 1)]
    return values.masked_fill(~inside.reshape(-1, *[1] * (dense.dim() - 2)), 0)


def _single(offsets: list[Tensor]) -> Tensor:
    if len(offsets) != 1:
        raise ValueError(f"jagged tensors with {len(offsets)} jagged dims are not implemented")
    return offsets[0]


@stands_for("fbgemm::jagged_to_padded_dense", "fbgemm::jagged_to_padded_dense_forward")
def jagged_to_padded_dense(c: Call) -> Tensor:
    """Convert values [N, D] to [B, max_length, D], or values [N] to [B, max_length]."""
    return to_dense(c.values, _single(c.offsets), c.max_lengths[0], c.padding_value)


@stands_for("fbgemm::jagged_to_padded_dense_backward")
def jagged_to_padded_dense_backward(grad_output: Tensor, offsets: list[Tensor], total_L: int) -> Tensor:
    """Return the gradient of the values [total_L, D]."""
    return to_jagged(grad_output, _single(offsets), total_L)


def _total(x_offsets: list[Tensor], total_L: int | None) -> int:
    return total_L if total_L is not None else int(_single(x_offsets)[-1])


@stands_for(
    "fbgemm::dense_to_jagged_forward",
    fake=lambda dense, total_L: dense.new_empty(
        (total_L if total_L is not None else dense.shape[0] * dense.shape[1], *dense.shape[2:])
    ),
)
def dense_to_jagged_forward(dense: Tensor, x_offsets: list[Tensor], total_L: int | None) -> Tensor:
    """Return values [total, D]; the total is read from the offsets if it is not given."""
    return to_jagged(dense, _single(x_offsets), _total(x_offsets, total_L))


@stands_for(
    "fbgemm::dense_to_jagged",
    fake=lambda dense, x_offsets, total_L: (
        dense.new_empty((total_L if total_L is not None else dense.shape[0] * dense.shape[1], *dense.shape[2:])),
        [torch.empty_like(x) for x in x_offsets],
    ),
)
def dense_to_jagged(dense: Tensor, x_offsets: list[Tensor], total_L: int | None) -> tuple[Tensor, list[Tensor]]:
    """Return (values [total, D], copies of the offsets)."""
    values = to_jagged(dense, _single(x_offsets), _total(x_offsets, total_L))
    return values, [x.clone() for x in x_offsets]


@stands_for("fbgemm::jagged_dense_elementwise_add")
def jagged_dense_elementwise_add(x_values: Tensor, x_offsets: list[Tensor], y: Tensor) -> Tensor:
    """Return padded x + y [B, L, D]."""
    return to_dense(x_values, _single(x_offsets), y.shape[1]) + y


@stands_for("fbgemm::jagged_dense_elementwise_add_jagged_output")
def jagged_dense_add_jagged(x_values: Tensor, x_offsets: list[Tensor], y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return (x + the elements of y [B, L, D] at x's positions, copies of the offsets)."""
    added = x_values + to_jagged(y, _single(x_offsets), x_values.shape[0])
    return added, [x.clone() for x in x_offsets]


@stands_for("fbgemm::jagged_dense_dense_elementwise_add_jagged_output_forward")
def jagged_dense_dense_add_forward(x_values: Tensor, x_offsets: list[Tensor], y_0: Tensor, y_1: Tensor) -> Tensor:
    """Return x + y_0 + y_1 at x's positions."""
    return x_values + to_jagged(y_0 + y_1, _single(x_offsets), x_values.shape[0])


@stands_for("fbgemm::jagged_dense_dense_elementwise_add_jagged_output")
def jagged_dense_dense_add(c: Call) -> tuple[Tensor, list[Tensor]]:
    """Return (x + y_0 + y_1 at x's positions, offsets)."""
    return jagged_dense_dense_add_forward(c.x_values, c.x_offsets, c.y_0, c.y_1), [x.clone() for x in c.x_offsets]


@stands_for("fbgemm::jagged_dense_elementwise_mul_forward")
def jagged_dense_mul_forward(x_values: Tensor, x_offsets: list[Tensor], y: Tensor) -> Tensor:
    """Return x · y [B, L, D] at x's positions."""
    return x_values * to_jagged(y, _single(x_offsets), x_values.shape[0])


@stands_for("fbgemm::jagged_dense_elementwise_mul")
def jagged_dense_mul(x_values: Tensor, x_offsets: list[Tensor], y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return (x · y at x's positions, offsets)."""
    return jagged_dense_mul_forward(x_values, x_offsets, y), [x.clone() for x in x_offsets]


@stands_for("fbgemm::jagged_dense_elementwise_mul_backward")
def jagged_dense_mul_backward(c: Call) -> tuple[Tensor, Tensor]:
    """Return (gradient of x, gradient of y)."""
    offsets = _single(c.x_offsets)
    return (
        c.grad_output * to_jagged(c.y, offsets, c.x_values.shape[0]),
        to_dense(c.grad_output * c.x_values, offsets, c.y.shape[1]),
    )


@stands_for("fbgemm::batched_dense_vec_jagged_2d_mul", "fbgemm::batched_dense_vec_jagged_2d_mul_forward")
def dense_vec_jagged_mul(v: Tensor, a_values: Tensor, a_offsets: Tensor) -> Tensor:
    """Multiply v [B · H, L] by padded a [B, L, H · D]; the result is [B · H, D]."""
    batch = a_offsets.numel() - 1
    heads = v.shape[0] // max(batch, 1)
    dense = to_dense(a_values, a_offsets, v.shape[1]).unflatten(-1, (heads, -1))
    return torch.einsum("bhl,blhd->bhd", v.reshape(batch, heads, -1), dense).flatten(0, 1)


@stands_for("fbgemm::jagged_dense_bmm_forward")
def jagged_dense_bmm_forward(x_values: Tensor, x_offsets: Tensor, y: Tensor, max_L: int) -> Tensor:
    """Multiply the rows of x [N, K] that belong to batch element b by y[b].

    y is [B, K, M], and the result is [N, M].
    """
    return to_jagged(torch.bmm(to_dense(x_values, x_offsets, max_L), y), x_offsets, x_values.shape[0])


@stands_for("fbgemm::jagged_dense_bmm")
def jagged_dense_bmm(x_values: Tensor, x_offsets: Tensor, y: Tensor, max_L: int) -> tuple[Tensor, Tensor]:
    """Return (each row of x [N, K] @ the matrix y of its batch element, copy of the offsets)."""
    return jagged_dense_bmm_forward(x_values, x_offsets, y, max_L), x_offsets.clone()


@stands_for("fbgemm::jagged_jagged_bmm", "fbgemm::jagged_jagged_bmm_forward")
def jagged_jagged_bmm(x_values: Tensor, y_values: Tensor, x_offsets: Tensor, max_L: int) -> Tensor:
    """Return xᵀ @ y over the values of each row, [B, K, M]."""
    x, y = (to_dense(values, x_offsets, max_L) for values in (x_values, y_values))
    return torch.bmm(x.transpose(1, 2), y)


@stands_for("fbgemm::jagged_softmax_forward")
def jagged_softmax_forward(values: Tensor, x_offsets: Tensor, max_L: int) -> Tensor:
    """Return the softmax over each row's values, separately per column."""
    dense = to_dense(values.float(), x_offsets, max_L, -torch.inf)
    top = dense.amax(1, keepdim=True).nan_to_num(neginf=0.0)
    weights = torch.exp(dense - top)
    soft = weights / weights.sum(1, keepdim=True).clamp(min=1e-30)
    return to_jagged(soft, x_offsets, values.shape[0]).to(values.dtype)


@stands_for("fbgemm::jagged_softmax")
def jagged_softmax(values: Tensor, x_offsets: Tensor, max_L: int) -> tuple[Tensor, Tensor]:
    """Return (softmax, offsets)."""
    return jagged_softmax_forward(values, x_offsets, max_L), x_offsets.clone()


@stands_for("fbgemm::jagged_softmax_backward")
def jagged_softmax_backward(grad_output: Tensor, output: Tensor, x_offsets: Tensor, max_L: int) -> Tensor:
    """Return the gradient of jagged_softmax."""
    grad, soft = (to_dense(x.float(), x_offsets, max_L) for x in (grad_output, output))
    inner = (grad - (grad * soft).sum(1, keepdim=True)) * soft
    return to_jagged(inner, x_offsets, output.shape[0]).to(output.dtype)


def _starts(lengths: Tensor) -> Tensor:
    return F.pad(lengths.to(torch.int64).cumsum(0), (1, 0))


@stands_for("fbgemm::pack_segments")
def pack_segments(t_in: Tensor, lengths: Tensor, max_length: int) -> Tensor:
    """Split the rows of `t_in` [N, ..] by `lengths` [B]; pad with zeros to [B, max_length, ..]."""
    return to_dense(t_in, _starts(lengths), max_length)


@stands_for("fbgemm::pack_segments_backward")
def pack_segments_backward(data: Tensor, lengths: Tensor, total_length: int) -> Tensor:
    """Convert padded segments back to rows, the inverse of pack_segments."""
    return to_jagged(data, _starts(lengths), total_length)


@stands_for("fbgemm::segment_sum_csr")
def segment_sum_csr(batch_size: int, csr_seg: Tensor, values: Tensor) -> Tensor:
    """Return sums of values over segments.

    csr_seg [S + 1] holds the bounds of the segments, in units of batch_size values.
    """
    edges = csr_seg.to(torch.int64) * batch_size
    total = F.pad(values.double().cumsum(0), (1, 0))
    where = edges.clamp(0, values.numel())
    return (total[where[1:]] - total[where[:-1]]).to(values.dtype)


@stands_for("fbgemm::invert_permute")
def invert_permute(permute: Tensor) -> Tensor:
    """Return the inverse of a permutation."""
    place = torch.arange(permute.numel(), device=permute.device, dtype=permute.dtype)
    return torch.empty_like(permute).scatter_(0, permute.to(torch.int64), place)


@stands_for("fbgemm::index_select_dim0")
def index_select_dim0(input: Tensor, indices: Tensor) -> Tensor:
    """Return the rows of input at indices."""
    return input.index_select(0, indices.to(torch.int64))


@stands_for("fbgemm::group_index_select_dim0")
def group_index_select_dim0(input_group: list[Tensor], indices_group: list[Tensor]) -> list[Tensor]:
    """Apply index_select_dim0 to each pair of input and indices."""
    return [index_select_dim0(x, i) for x, i in zip(input_group, indices_group, strict=True)]


@stands_for("fbgemm::scatter_add_along_first_dim", writes=("Dst",))
def scatter_add_along_first_dim(Dst: Tensor, Src: Tensor, Index: Tensor) -> None:
    """Add Src to Dst[Index]."""
    Dst.index_add_(0, Index.to(torch.int64), Src.to(Dst.dtype))


def _fake_regroup(pooled_embs: list[Tensor], out_lengths: list[int]) -> list[Tensor]:
    return [pooled_embs[0].new_empty((pooled_embs[0].shape[0], length)) for length in out_lengths]


@stands_for("fbgemm::permute_multi_embedding", "fbgemm::permute_multi_embedding_function", fake=_fake_regroup)
def permute_multi_embedding(c: Call) -> list[Tensor]:
    """Regroup columns of tensors [B, ..], or compute the gradient of this with `reverse`.

    Each row of permutes [P, 6] is (source tensor, target tensor, source column, target column, width, unused).
    """
    reverse = getattr(c, "reverse", False)
    batch = c.pooled_embs[0].shape[0]
    outs = [c.pooled_embs[0].new_zeros((batch, length)) for length in c.out_lengths]
    for row in c.permutes.tolist():
        source, target, start, stop, length = row[:5] if not reverse else (row[1], row[0], row[3], row[2], row[4])
        pooled, wanted = c.pooled_embs[source], outs[target]
        if start + length > pooled.shape[1] or stop + length > wanted.shape[1]:
            raise ValueError(f"permute {row} names columns that do not exist")
        # Gradients of columns that went to several places add up.
        part = wanted[:, stop : stop + length]
        part.copy_(part + pooled[:, start : start + length] if reverse else pooled[:, start : start + length])
    return outs


@stands_for("fbgemm::silu_mul")
def silu_mul(x0: Tensor, x1: Tensor) -> Tensor:
    """Return silu(x0) · x1."""
    return (F.silu(x0.float()) * x1.float()).to(x0.dtype)
