# pyright: strict
"""Moves of data, written down again from its public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import Values, covers, formula, formulas, gradients, numbers, of


@formula("npu::npu_transpose", "(f32[2,8,16], [1,0,2])")
def npu_transpose(values: Values) -> Tensor:
    return values["self"].permute(values["perm"]).contiguous()


@formula("npu::npu_broadcast", "(f32[8,1], [4,8,16])")
def npu_broadcast(values: Values) -> Tensor:
    return values["self"] + values["self"].new_zeros(values["size"])


@formulas("""
    npu::npu_reshape | (f32[8,16], [4,32])
    npu::npu_confusion_transpose | (f32[2,8,16], [1,0,2], [8,32], True)
    npu::npu_confusion_transpose | (f32[2,3,4], [1,0], [2,12], False)
""")
def npu_reshape(values: Values) -> Tensor:
    """Dimensions in another order, before or after they are other ones."""
    x, order, shape = values["self"], values.get("perm"), values["shape"]
    if order is None:
        return x.contiguous().flatten().unflatten(0, shape)
    return x.permute(order).reshape(shape) if values["transpose_first"] else x.reshape(shape).permute(order)


@formulas("""
    npu::npu_confusion_transpose_backward | (f32[12,2], [1,0], [2,3,4], False)
""")
@formula("npu::npu_confusion_transpose_backward", "(f32[8,32], [1,0,2], [2,8,16], True)")
def npu_confusion_transpose_backward(values: Values) -> Tensor:
    """`shape` is that of the input."""
    grad, order, shape = values["grad"], values["perm"], values["shape"]
    covers(grad.numel() == math.prod(shape), "as many numbers")
    inner = [grad.shape[order.index(dim)] for dim in range(len(order))] if grad.dim() == len(order) else []

    def forward(x: Tensor) -> Tensor:
        return x.permute(order).reshape(grad.shape) if values["transpose_first"] else x.reshape(inner).permute(order)

    return gradients(forward, [grad.new_zeros(shape)], grad)[0]


@formulas("""
    npu::npu_slice | (f32[8,16,4], [0,1,2], [1,2,-1])
""")
@formula("npu::npu_slice", "(f32[8,16], [1,2], [4,8])")
def npu_slice(values: Values) -> Tensor:
    sizes = zip(values["offsets"], values["size"], values["self"].shape, strict=True)
    places = [(begin, size - begin if count == -1 else count) for begin, count, size in sizes]
    ends = zip(places, values["self"].shape, strict=True)
    covers(all(0 <= begin <= begin + count <= size for (begin, count), size in ends), "a part of the tensor")
    return values["self"][tuple(slice(begin, begin + count) for begin, count in places)]


@formula("npu::npu_pad", "(f32[8,16], [1,1,2,3])")
def npu_pad(values: Values) -> Tensor:
    x, around = values["input"], values["paddings"]
    pairs = list(zip(around[::2], around[1::2], strict=True))
    padded = x.new_zeros([size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True)])
    padded[tuple(slice(begin, begin + size) for size, (begin, _) in zip(x.shape, pairs, strict=True))] = x
    return padded


def extreme(values: Values, sign: int) -> tuple[Tensor, Tensor]:
    """The largest number, or with -1 the smallest, and the first place where it is."""
    x, dim = sign * values["self"], values["dim"]
    covers(x.shape[dim] > 0 and not bool(x.isnan().any()), "numbers")
    ordered = torch.sort(x, dim=dim, descending=True, stable=True)
    number, place = (part.narrow(dim, 0, 1) for part in ordered)
    number, place = (number, place) if values.get("keepdim") else (number.squeeze(dim), place.squeeze(dim))
    return sign * number, place.int()


@formula("npu::npu_max", "(f32[8,16], 1)")
def npu_max(values: Values) -> tuple[Tensor, Tensor]:
    return extreme(values, 1)


@formula("npu::npu_min", "(f32[8,16], 1)")
def npu_min(values: Values) -> tuple[Tensor, Tensor]:
    return extreme(values, -1)


@formulas("""
    npu::npu_sort_v2 | (f32[8,16], 0)
""")
@formula("npu::npu_sort_v2", "(f32[8,16], -1, True)")
def npu_sort(values: Values) -> Tensor:
    return torch.sort(values["self"], dim=values.get("dim", -1), descending=values.get("descending", False)).values


@formulas("""
    npu::npu_one_hot | (i64[8], depth=4, on_value=5, off_value=1)
""")
@formula("npu::npu_one_hot", "(i64[8], -1, 4, 2, -1)")
def npu_one_hot(values: Values) -> Tensor:
    x, depth = values["self"], values.get("depth", 1)
    covers(values.get("num_classes", -1) == -1, "a last dimension of classes")
    hot = x.unsqueeze(-1) == torch.arange(depth, device=x.device)
    return torch.where(hot, float(values.get("on_value", 1)), float(values.get("off_value", 0)))


@formulas("""
    npu::_npu_index_add npu::_npu_index_add_ | (f32[4,8], i64[9], f32[9,8], alpha=2)
""")
@formula("npu::_npu_index_add npu::_npu_index_add_", "(f32[16,8], i64[5], f32[5,8])")
def npu_index_add(values: Values) -> Tensor:
    total = values["self"].clone()
    for row, place in zip(values["source"], numbers(values["index"]), strict=True):
        total[place] += values.get("alpha", 1) * row
    return total


@formulas("""
    npu::npu_gather_backward | (f32[5,3], [16,3], 0, i64[5,3], False)
""")
@formula("npu::npu_gather_backward", "(f32[8,5], [8,16], 1, i64[8,5], False)")
def npu_gather_backward(values: Values) -> Tensor:
    empty = values["grad"].new_zeros(values["self_size"])

    def forward(x: Tensor) -> Tensor:
        return x.gather(values["dim"], values["index"])

    return gradients(forward, [empty], values["grad"])[0]


@formula("npu::npu_gather_sparse_index", "(f32[16,8], i64[5])")
def npu_gather_sparse_index(values: Values) -> Tensor:
    return values["input"][values["index"].long()]


@formula("npu::npu_linear_backward", "f32[8,24], f32[8,16], f32[24,16]")
def npu_linear_backward(values: Values) -> tuple[Tensor, Tensor]:
    grad, x = values["grad"], values["input"]
    return grad @ values["weight"], torch.einsum("ij,ik->jk", grad, x)


def product_of(values: Values, equation: str, left: Tensor, right: Tensor) -> Tensor:
    product = torch.einsum(equation, left, right)
    covers(list(product.shape) == list(values["size"]), "an input that is not broadcast")
    return product


@formula("npu::npu_bmm_v2_mat1_backward", "(f32[2,8,24], f32[2,8,16], f32[2,16,24], [2,8,16])")
def npu_bmm_mat1(values: Values) -> Tensor:
    return product_of(values, "bij,bkj->bik", values["grad"], values["mat2"])


@formula("npu::npu_bmm_v2_mat2_backward", "(f32[2,8,24], f32[2,8,16], f32[2,16,24], [2,16,24])")
def npu_bmm_mat2(values: Values) -> Tensor:
    return product_of(values, "bji,bjk->bik", values["mat1"], values["grad"])


def convolved(values: Values, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution, or with `output_padding` its transpose."""
    if (beyond := values.get("output_padding")) is None:
        return torch.convolution(
            x, weight, bias, values["stride"], values["padding"], values["dilation"], False, [0], values["groups"]
        )
    return torch.convolution(
        x, weight, bias, values["stride"], values["padding"], values["dilation"], True, beyond, values["groups"]
    )


@formulas("""
    npu::npu_conv2d npu::npu_convolution | (f32[2,4,8,8], f32[6,2,3,3], f32[6], [2,1], [1,1], [1,1], 2)
    npu::npu_conv3d | (f32[2,4,4,4,4], f32[6,2,3,3,3], f32[6], [2,1,1], [1,1,1], [1,1,1], 2)
    npu::npu_conv_transpose2d npu::npu_convolution_transpose
        | (f32[2,4,6,6], f32[4,3,3,3], f32[6], [1,1], [1,0], [2,1], [1,1], 2)
""")
def npu_convolution(values: Values) -> Tensor:
    return convolved(values, values["input"], values["weight"], values["bias"])


@formulas("""
    npu::npu_conv2d_backward npu::npu_convolution_backward
        | (f32[2,4,8,8], f32[2,6,4,8], f32[6,2,3,3], [2,1], [1,1], [1,1], 2, [True,True,True])
    npu::npu_conv3d_backward
        | (f32[2,4,4,4,4], f32[2,6,2,4,4], f32[6,2,3,3,3], [2,1,1], [1,1,1], [1,1,1], 2, [True,True,True])
    npu::npu_conv_transpose2d_backward npu::npu_convolution_transpose_backward
        | (f32[2,4,6,6], f32[2,6,12,6], f32[4,3,3,3], [1,1], [1,0], [2,1], [1,1], 2, [True,True,True])
    npu::npu_conv_transpose3d_backward
        | (f32[2,4,4,4,4], f32[2,6,8,4,4], f32[4,3,3,3,3], [1,1,1], [1,0,0], [2,1,1], [1,1,1], 2, [True,True,True])
""")
def npu_convolution_backward(values: Values) -> list[Tensor]:
    grad = of(values, "grad_output", "grad")
    covers(all(of(values, "output_mask", "grad_input_mask")), "all three gradients")
    inputs = values["input"], values["weight"], grad.new_zeros(grad.shape[1])
    return list(gradients(lambda *inputs: convolved(values, *inputs), inputs, grad))


@formulas("""
    npu::scatter_update npu::scatter_update_ | (f32[4,8,16], i64[4], f32[4,2,16], 1)
""")
@formula("npu::scatter_update npu::scatter_update_", "(f32[4,8,16], i64[4], f32[4,1,16], -2)")
def npu_scatter_update(values: Values) -> Tensor:
    updated, updates, axis = values["self"].clone(), values["updates"], values["axis"]
    covers(values["indices"].dim() == 1 and updates.numel(), "one place a sequence")
    for batch, begin in enumerate(numbers(values["indices"])):
        covers(begin + updates.shape[axis] <= updated.shape[axis], "places inside")
        part = updated[batch].narrow(axis if axis < 0 else axis - 1, begin, updates.shape[axis])
        part.copy_(updates[batch])
    return updated


@formulas("""
    npu::npu_scatter | (f32[8,16], i64[8], f32[8], 1)
""")
@formula("npu::npu_scatter", "(f32[8,16], i64[8,1], f32[8,1], 1)")
def npu_scatter(values: Values) -> Tensor:
    covers(values["self"].dim() == 2 and values["dim"] == 1, "rows of a matrix")
    updated = values["self"].clone()
    indices, updates = (values[name].reshape(len(updated), -1) for name in ("indices", "updates"))
    for row, (place, number) in enumerate(zip(indices, updates, strict=True)):
        covers(place.unique().numel() == place.numel(), "places that differ")
        updated[row, place] = number.to(updated.dtype)
    return updated


@formula("npu::npu_scatter_nd_update npu::npu_scatter_nd_update_", "(f32[16,8], i64[1,1], f32[1,8])")
def npu_scatter_nd_update(values: Values) -> Tensor:
    updated, places = values["self"].clone(), values["indices"]
    rows = [tuple(numbers(place)) for place in places.reshape(-1, places.shape[-1])]
    covers(len({*rows}) == len(rows), "places that differ")
    for place, row in zip(rows, values["updates"].reshape(len(rows), *updated.shape[places.shape[-1] :]), strict=True):
        updated[place] = row
    return updated


@formula("npu::npu_stride_copy", "(f32[64], [4,8], [8,1], 3)")
def npu_stride_copy(values: Values) -> Tensor:
    x, shape, strides = values["self"].flatten(), values["shape"], values["stride"]
    place = torch.full((), int(values["storage_offset"]))
    for size, stride in zip(shape, strides, strict=True):
        place = place.unsqueeze(-1) + torch.arange(size) * stride
    covers(
        values["self"].is_contiguous() and not values["self"].storage_offset() and int(place.max()) < len(x),
        "places in a dense tensor",
    )
    return x[place.to(x.device)]


@formula("npu::npu_view_copy npu::copy_memory_", "(f32[8,16], f32[8,16], False)")
def npu_view_copy(values: Values) -> Tensor:
    return of(values, "other", "src").to(values["self"].dtype, copy=True)


@formula("npu::npu_format_cast npu::_npu_format_cast", "(f32[8,16], 29)")
def npu_format_cast(values: Values) -> Tensor:
    """The same numbers: torch sees no private format."""
    return values["self"] * 1


@formulas("""
    npu::npu_scatter_list npu::npu_scatter_list_ | ([f32[4,8,16], f32[4,8,16]], i64[2], f32[2,4,2,16], u8[2])
""")
@formula("npu::npu_scatter_list npu::npu_scatter_list_", "([f32[4,8,16], f32[4,8,16]], i64[2], f32[2,4,2,16])")
def npu_scatter_list(values: Values) -> list[Tensor]:
    """Rows of updates [n, ..] written into the n tensors, from each one's own place on, where a mask says so."""
    covers(values.get("axis", -2) == -2 and values["indices"].dim() == 1, "rows of all")
    targets, starts, mask = values["self"], numbers(values["indices"]), values.get("mask")
    chosen = [1] * len(targets) if mask is None else numbers(mask)
    results: list[Tensor] = []
    for target, start, rows, written in zip(targets, starts, values["updates"], chosen, strict=True):
        covers(start >= 0 and start + rows.shape[-2] <= target.shape[-2], "places that are there")
        changed = target.clone()
        if written:
            changed[..., start : start + rows.shape[-2], :] = rows
        results.append(changed)
    return results


@formula("npu::npu_gather_sparse_index_backward", "(f32[4,3,16], [8,16], i64[4,3])")
def npu_gather_sparse_index_backward(values: Values) -> Tensor:
    """Each row of the gradient added where its index points."""
    grad, index = values["grad"].double(), values["index"]
    covers(bool(((index >= 0) & (index < values["self_sizes"][0])).all()), "rows that are there")
    points = torch.zeros(index.numel(), values["self_sizes"][0], dtype=torch.float64)
    points[torch.arange(index.numel()), index.flatten().long()] = 1
    return (points.mT @ grad.reshape(index.numel(), -1)).reshape(values["self_sizes"]).to(values["grad"].dtype)
