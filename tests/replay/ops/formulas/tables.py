# pyright: strict
"""Rows of many lengths, and the sparse features of recommendation models, as FBGEMM defines them.

Written from public documentation, independent of the references.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tests.replay.ops.formulas.formula import Values, covers, formula, numbers, wide


@formula("fbgemm::asynchronous_complete_cumsum fb::asynchronous_complete_cumsum", "i64[12]")
def complete_cumsum(values: Values) -> Tensor:
    t = values["t_in"]
    return functional.pad(t.cumsum(-1), (1, 0)).to(t.dtype)


@formula("fbgemm::asynchronous_exclusive_cumsum", "i64[12]")
def exclusive_cumsum(values: Values) -> Tensor:
    return (values["t_in"].cumsum(-1) - values["t_in"]).to(values["t_in"].dtype)


@formula("fbgemm::asynchronous_inclusive_cumsum", "i64[12]")
def inclusive_cumsum(values: Values) -> Tensor:
    return values["t_in"].cumsum(-1).to(values["t_in"].dtype)


@formula("fbgemm::invert_permute", "i64[12]")
def invert_permute(values: Values) -> Tensor:
    return torch.argsort(values["permute"]).to(values["permute"].dtype)


@formula("fbgemm::gather_along_first_dim", "(bf16[16,8], i32[5])")
def gather_rows(values: Values) -> Tensor:
    return values["Data"][values["Index"].long()]


@formula("fbgemm::index_select_dim0", "(f32[16,8], i64[5])")
def select_rows(values: Values) -> Tensor:
    return torch.stack([values["input"][i] for i in numbers(values["indices"])])


@formula("fbgemm::jagged_to_padded_dense fbgemm::jagged_to_padded_dense_forward", "(f32[12,4], [i64[5]], [6], 0.0)")
def padded(values: Values) -> Tensor:
    (offsets,), (limit,) = values["offsets"], values["max_lengths"]
    return dense_of(values["values"], offsets, limit, values.get("padding_value", 0.0))


def dense_of(rows: Tensor, offsets: Tensor, limit: int, fill: float = 0.0) -> Tensor:
    """[total, D] and offsets [B + 1] → [B, most, D]."""
    bounds = numbers(offsets)
    width = tuple(rows.shape[1:])
    dense = rows.new_full((len(bounds) - 1, limit, *width), fill)
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        part = rows[begin : min(end, begin + limit)]
        dense[i, : len(part)] = part
    return dense


def rows_of(dense: Tensor, offsets: Tensor, total: int) -> Tensor:
    """The other way; what the dense tensor has no place for is zero."""
    width = tuple(dense.shape[2:])
    rows = dense.new_zeros((total, *width))
    for i, (begin, end) in enumerate(itertools.pairwise(numbers(offsets))):
        count = min(end - begin, dense.shape[1])
        rows[begin : begin + count] = dense[i, :count]
    return rows


def within(offsets: Tensor, total: int, limit: int) -> None:
    """Refuse sequences that are cut: what becomes of their ends no formula says."""
    bounds = numbers(offsets)
    covers(bounds[-1] == total, "rows that all belong to a sequence")
    covers(max((b - a for a, b in itertools.pairwise(bounds)), default=0) <= limit, "sequences that are not cut")


@formula("fbgemm::jagged_2d_to_dense", "(f32[12,4], i64[5], 6)")
def jagged_2d(values: Values) -> Tensor:
    return dense_of(values["values"], values["offsets"], values["max_sequence_length"])


@formula("fbgemm::dense_to_jagged", "(f32[4,6,8], [i64[5]], 12)")
def dense_to_jagged(values: Values) -> tuple[Tensor, ...]:
    (offsets,) = values["x_offsets"]
    rows = rows_of(values["dense"], offsets, values["total_L"])
    return rows, offsets


@formula("fbgemm::dense_to_jagged_forward", "(f32[4,6,8], [i64[5]], 12)")
def dense_to_jagged_alone(values: Values) -> Tensor:
    return rows_of(values["dense"], values["x_offsets"][0], values["total_L"])


@formula("fbgemm::jagged_dense_elementwise_add", "(f32[12,4], [i64[5]], f32[4,6,4])")
def jagged_plus_dense(values: Values) -> Tensor:
    (offsets,), y = values["x_offsets"], values["y"]
    return dense_of(values["x_values"], offsets, y.shape[1]) + y


@formula("fbgemm::jagged_dense_elementwise_mul", "(f32[12,4], [i64[5]], f32[4,6,4])")
def jagged_times_dense(values: Values) -> tuple[Tensor, ...]:
    (offsets,), x = values["x_offsets"], values["x_values"]
    return x * rows_of(values["y"], offsets, len(x)), offsets


@formula("fbgemm::jagged_dense_bmm", "(f32[12,4], i64[5], f32[4,4,6], 8)")
def jagged_dense_bmm(values: Values) -> tuple[Tensor, ...]:
    x, offsets = values["x_values"], values["x_offsets"]
    within(offsets, len(x), values["max_L"])
    products = x.new_zeros((len(x), values["y"].shape[-1]))
    for i, (begin, end) in enumerate(itertools.pairwise(numbers(offsets))):
        products[begin:end] = x[begin:end] @ values["y"][i]
    return products, offsets


@formula("fbgemm::jagged_jagged_bmm", "(f32[12,4], f32[12,6], i64[5], 8)")
def jagged_jagged_bmm(values: Values) -> Tensor:
    within(values["x_offsets"], len(values["x_values"]), values["max_L"])
    bounds = numbers(values["x_offsets"])
    return torch.stack([values["x_values"][a:b].mT @ values["y_values"][a:b] for a, b in itertools.pairwise(bounds)])


@formula("fbgemm::jagged_softmax", "(f32[12,4], i64[5], 8)")
def jagged_softmax(values: Values) -> tuple[Tensor, ...]:
    x, offsets = values["values"], values["x_offsets"]
    within(offsets, len(x), values["max_L"])
    parts = [torch.softmax(wide(x[a:b]), 0) for a, b in itertools.pairwise(numbers(offsets))]
    return torch.cat(parts).to(x.dtype), offsets


@formula("fbgemm::batched_dense_vec_jagged_2d_mul", "(f32[8,6], f32[12,16], i64[5])")
def vectors_times_jagged(values: Values) -> Tensor:
    v, a = values["v"], values["a_values"]
    bounds = numbers(values["a_offsets"])
    covers(len(v) % (len(bounds) - 1) == 0, "as many vectors for each sequence")
    batch, heads = len(bounds) - 1, len(v) // (len(bounds) - 1)
    width = a.shape[-1] // heads
    products = v.new_zeros((batch * heads, width))
    for b, (begin, end) in enumerate(itertools.pairwise(bounds)):
        count = min(end - begin, v.shape[1])
        for h in range(heads):
            part = a[begin : begin + count, h * width : (h + 1) * width]
            products[b * heads + h] = v[b * heads + h, :count] @ part
    return products


@formula("fbgemm::segment_sum_csr", "(3, i64[5], f32[36])")
def segment_sum(values: Values) -> Tensor:
    batch, x = values["batch_size"], values["values"]
    return torch.stack([x[a * batch : b * batch].sum() for a, b in itertools.pairwise(numbers(values["csr_seg"]))])


@formula("fbgemm::offsets_range", "(i64[5], 24)")
def offsets_range(values: Values) -> Tensor:
    offsets, total = values["offsets"], values["range_size"]
    bounds = [*numbers(offsets), total]
    parts = [torch.arange(b - a, dtype=offsets.dtype) for a, b in itertools.pairwise(bounds)]
    return torch.cat(parts).to(offsets.device)


@formula("fbgemm::permute_2D_sparse_data", "(i32[3], i64[3,4], i64[24], f32[24])")
def permute_sparse(values: Values) -> tuple[Tensor, ...]:
    lengths, order = values["lengths"], numbers(values["permute"])
    covers(values.get("permuted_lengths_sum") is None, "as many values as there are")
    ends = numbers(torch.cat([lengths.new_zeros(1), lengths.flatten().cumsum(0)]))
    covers(ends[-1] == len(values["values"]), "as many values as the lengths tell")
    covers(lengths.dim() == 2, "features by samples")
    batch = int(lengths.shape[1])
    bounds = [ends[t * batch] for t in range(len(lengths))] + ends[-1:]
    columns = [values["values"], *([] if values.get("weights") is None else [values["weights"]])]
    permuted = (torch.cat([column[bounds[t] : bounds[t + 1]] for t in order]) for column in columns)
    return torch.stack([lengths[t] for t in order]), *permuted


@formula("fbgemm::permute_1D_sparse_data", "(i32[6], i64[6], i64[24], f32[24])")
def permute_sparse_rows(values: Values) -> tuple[Tensor, ...]:
    lengths, order = values["lengths"], numbers(values["permute"])
    covers(values.get("permuted_lengths_sum") is None, "as many values as there are")
    ends = numbers(torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
    covers(ends[-1] == len(values["values"]), "as many values as the lengths tell")
    columns = [values["values"], *([] if values.get("weights") is None else [values["weights"]])]
    permuted = (torch.cat([column[ends[t] : ends[t + 1]] for t in order]) for column in columns)
    return torch.stack([lengths[t] for t in order]), *permuted


@formula(
    "fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad", "(f32[8,24], i64[4], i64[3], i64[4], i64[3])"
)
def permute_pooled(values: Values) -> Tensor:
    bounds, order = numbers(values["offset_dim_list"]), numbers(values["permute_list"])
    covers(bounds[-1] == values["pooled_embs"].shape[1], "tables that make up the columns")
    return torch.cat([values["pooled_embs"][:, bounds[t] : bounds[t + 1]] for t in order], 1)


@formula("fbgemm::scatter_add_along_first_dim", "(f32[16,8], f32[5,8], i64[5])")
def scatter_add_rows(values: Values) -> Tensor:
    sums = values["Dst"].clone()
    for row, place in zip(values["Src"], numbers(values["Index"]), strict=True):
        sums[place] += row
    return sums


def single(offsets: Sequence[Tensor]) -> Tensor:
    covers(len(offsets) == 1, "one jagged dimension")
    return offsets[0]


@formula("fbgemm::jagged_1d_to_dense", "(f32[12], i64[5], 6, 3)")
def jagged_1d(values: Values) -> Tensor:
    return dense_of(values["values"], values["offsets"], values["max_sequence_length"], values["padding_value"])


@formula("fbgemm::jagged_to_padded_dense_backward", "(f32[4,6,8], [i64[5]], 12)")
def padded_backward(values: Values) -> Tensor:
    return rows_of(values["grad_output"], single(values["offsets"]), values["total_L"])


@formula("fbgemm::jagged_dense_elementwise_add_jagged_output", "(f32[12,4], [i64[5]], f32[4,6,4])")
def jagged_plus_dense_rows(values: Values) -> tuple[Tensor, ...]:
    offsets, x = single(values["x_offsets"]), values["x_values"]
    return x + rows_of(values["y"], offsets, len(x)), offsets


@formula("fbgemm::jagged_dense_dense_elementwise_add_jagged_output", "(f32[12,4], [i64[5]], f32[4,6,4], f32[4,6,4])")
def jagged_plus_two(values: Values) -> tuple[Tensor, ...]:
    return jagged_plus_two_alone(values), single(values["x_offsets"])


@formula(
    "fbgemm::jagged_dense_dense_elementwise_add_jagged_output_forward", "(f32[12,4], [i64[5]], f32[4,6,4], f32[4,6,4])"
)
def jagged_plus_two_alone(values: Values) -> Tensor:
    offsets, x = single(values["x_offsets"]), values["x_values"]
    return x + rows_of(values["y_0"] + values["y_1"], offsets, len(x))


@formula("fbgemm::jagged_dense_elementwise_mul_forward", "(f32[12,4], [i64[5]], f32[4,6,4])")
def jagged_times_dense_alone(values: Values) -> Tensor:
    return jagged_times_dense(values)[0]


@formula("fbgemm::jagged_dense_elementwise_mul_backward", "(f32[12,4], [i64[5]], f32[4,6,4], f32[12,4])")
def jagged_times_dense_backward(values: Values) -> tuple[Tensor, ...]:
    offsets, x = single(values["x_offsets"]), values["x_values"]
    grad, y = values["grad_output"], values["y"]
    return grad * rows_of(y, offsets, len(x)), dense_of(grad * x, offsets, y.shape[1])


@formula("fbgemm::jagged_dense_bmm_forward", "(f32[12,4], i64[5], f32[4,4,6], 8)")
def jagged_dense_bmm_alone(values: Values) -> Tensor:
    return jagged_dense_bmm(values)[0]


@formula("fbgemm::jagged_jagged_bmm_forward", "(f32[12,4], f32[12,6], i64[5], 8)")
def jagged_jagged_bmm_alone(values: Values) -> Tensor:
    return jagged_jagged_bmm(values)


@formula("fbgemm::jagged_softmax_forward", "(f32[12,4], i64[5], 8)")
def jagged_softmax_alone(values: Values) -> Tensor:
    covers(bool(values["values"].isfinite().all()), "finite numbers")
    return jagged_softmax(values)[0]


@formula("fbgemm::jagged_softmax_backward", "(f32[12,4], f32[12,4], i64[5], 8)")
def jagged_softmax_backward(values: Values) -> Tensor:
    y, grad, offsets = wide(values["output"]), wide(values["grad_output"]), values["x_offsets"]
    within(offsets, len(y), values["max_L"])
    covers(len(y), "rows")
    parts = [
        y[a:b] * (grad[a:b] - (y[a:b] * grad[a:b]).sum(0, keepdim=True))
        for a, b in itertools.pairwise(numbers(offsets))
    ]
    return torch.cat(parts).to(values["output"].dtype)


@formula("fbgemm::batched_dense_vec_jagged_2d_mul_forward", "(f32[8,6], f32[12,16], i64[5])")
def vectors_times_jagged_alone(values: Values) -> Tensor:
    covers(bool(values["a_values"].isfinite().all() and values["v"].isfinite().all()), "finite numbers")
    return vectors_times_jagged(values)


def cut(lengths: Tensor) -> Tensor:
    """Where rows of these lengths begin, and the last ends."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


@formula("fbgemm::pack_segments", "(f32[12,4], i64[4], 6)")
def pack_segments(values: Values) -> Tensor:
    offsets = cut(values["lengths"])
    covers(int(offsets[-1]) <= len(values["t_in"]), "rows that are there")
    return dense_of(values["t_in"], offsets, values["max_length"])


@formula("fbgemm::pack_segments_backward", "(f32[4,6,8], i64[4], 12, 6)")
def pack_segments_backward(values: Values) -> Tensor:
    offsets = cut(values["lengths"])
    covers(int(offsets[-1]) <= values["total_length"], "rows that are there")
    return rows_of(values["data"], offsets, values["total_length"])


@formula("fbgemm::group_index_select_dim0", "([f32[16,8], f32[12,4]], [i64[5], i64[3]])")
def select_rows_of_several(values: Values) -> list[Tensor]:
    pairs = zip(values["input_group"], values["indices_group"], strict=True)
    return [x[indices.long()] for x, indices in pairs]


@formula("fb::fast_gather", "(f32[16,8], i64[5])")
def fast_gather(values: Values) -> Tensor:
    return values["input"][values["indices"].long()]


@formula("fb::scale_gradient", "(f32[8,16], 0.5)")
def scale_gradient(values: Values) -> Tensor:
    """Forwards the same: only the gradient is scaled."""
    return values["input"] * 1
