"""torch_npu's data movement, scatters, copied views, convolutions and plain matrix products (`npu::*`).

Private layouts (npu_format_cast 29, NZ) are not reproduced; tensors keep their layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for


@stands_for("npu::npu_confusion_transpose")
def confusion_transpose(self: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Return a permuted and reshaped copy; without transpose_first, the reshape comes first."""
    view = self.permute(perm).reshape(shape) if transpose_first else self.reshape(shape).permute(perm)
    return view.clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_confusion_transpose_backward")
def confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """Invert npu_confusion_transpose; `shape` is the shape of that op's input."""
    back = [perm.index(i) for i in range(len(perm))]
    if transpose_first:
        view = grad.reshape([shape[i] for i in perm]).permute(back)
    else:
        view = grad.permute(back).reshape(shape)
    return view.clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_broadcast")
def broadcast(self: Tensor, size: list[int]) -> Tensor:
    """Return a copy expanded to `size`."""
    return self.expand(size).clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_reshape")
def reshape(self: Tensor, shape: list[int]) -> Tensor:
    """Return a reshaped copy."""
    return self.reshape(shape).clone()


@stands_for("npu::npu_slice")
def slice_by_size(self: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """Return a copy of `size` elements starting at `offsets` in every dim; size −1 means up to the end."""
    view = self
    for dim, (offset, length) in enumerate(zip(offsets, size, strict=True)):
        view = view.narrow(dim, offset, self.shape[dim] - offset if length < 0 else length)
    return view.clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_pad")
def pad(input: Tensor, paddings: list[int]) -> Tensor:
    """Pad with zeros; `paddings` has two numbers (before, after) per dim, first dim first."""
    pairs = [paddings[2 * dim : 2 * dim + 2] for dim in range(len(paddings) // 2)]
    return F.pad(input, [number for pair in reversed(pairs) for number in pair])


@stands_for("npu::npu_one_hot")
def one_hot(self: Tensor, num_classes: int, depth: int, on_value: float, off_value: float) -> Tensor:
    """Return the float32 one-hot encoding: on_value at each index and off_value elsewhere.

    The new dim of size `depth` is inserted at dim `num_classes`, or as the last dim if num_classes is -1.
    """
    hit = self.unsqueeze(-1) == torch.arange(depth, device=self.device)
    encoded = torch.where(hit, float(on_value), float(off_value))
    return encoded if num_classes in (-1, self.dim()) else encoded.movedim(-1, num_classes).contiguous()


@stands_for("npu::npu_bmmV2")
def bmm_v2(self: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """Return the batched matrix product, reshaped if output_sizes are given."""
    product = torch.matmul(self, mat2)
    return product.reshape(output_sizes) if output_sizes else product


@stands_for("npu::npu_bmm_v2_mat1_backward")
def bmm_v2_mat1_backward(grad: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """Return the gradient of mat1, in shape `size`."""
    return torch.matmul(grad, mat2.transpose(-1, -2)).reshape(size)


@stands_for("npu::npu_bmm_v2_mat2_backward")
def bmm_v2_mat2_backward(grad: Tensor, mat1: Tensor, size: list[int]) -> Tensor:
    """Return the gradient of mat2, in shape `size`."""
    return torch.matmul(mat1.transpose(-1, -2), grad).reshape(size)


@stands_for("npu::npu_linear_backward")
def linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (gradient of the input, gradient of the weight [N, K])."""
    return grad @ weight, grad.flatten(0, -2).mT @ input.flatten(0, -2)


@stands_for("npu::npu_max")
def npu_max(self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return (maxima along dim, their indices int32)."""
    values, indices = self.max(dim, keepdim)
    return values, indices.to(torch.int32)


@stands_for("npu::npu_min")
def npu_min(self: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return (minima along dim, their indices int32)."""
    values, indices = self.min(dim, keepdim)
    return values, indices.to(torch.int32)


@stands_for("npu::npu_sort_v2")
def sort_v2(self: Tensor, dim: int, descending: bool) -> Tensor:
    """Return the values sorted along dim."""
    return self.sort(dim, descending).values


@stands_for("npu::npu_stride_copy")
def stride_copy(self: Tensor, shape: list[int], stride: list[int], storage_offset: int) -> Tensor:
    """Return a copy of a strided view of the memory of `self`."""
    view = self.contiguous().flatten().as_strided(shape, stride, int(storage_offset))
    return view.clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_view_copy", "npu::copy_memory_")
def view_copy(self: Tensor, other: Tensor | None = None, src: Tensor | None = None) -> Tensor:
    """Copy the values of `other` (or `src`) into `self`."""
    source = src if other is None else other
    assert source is not None
    return self.copy_(source)


@stands_for("npu::scatter_update_")
def scatter_update_(self: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Write slice b of updates [B, ..] to self [B, ..] along axis, starting at indices[b].

    Indices can also be pairs (batch, start).
    """
    starts = indices.reshape(indices.shape[0], -1).to(torch.int64)
    length = updates.shape[axis]
    batch = torch.arange(updates.shape[0], device=self.device)
    owner, first = (batch, starts[:, 0]) if starts.shape[1] == 1 else (starts[:, 0], starts[:, 1])
    place = first.unsqueeze(1) + torch.arange(length, device=self.device)
    turned, rows = self.movedim(axis, 1), updates.movedim(axis, 1)
    turned[owner.unsqueeze(1), place] = rows.to(self.dtype)
    return self


@stands_for("npu::scatter_update")
def scatter_update(self: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """Same as scatter_update_, on a copy."""
    return scatter_update_(self.clone(), indices, updates, axis)


@stands_for("npu::npu_scatter")
def scatter(self: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """Return a copy of self with updates written at indices along dim. There is one update per outer position."""
    where, values = indices.to(torch.int64), updates.to(self.dtype)
    if where.dim() < self.dim():
        where, values = where.unsqueeze(dim), values.unsqueeze(dim)
    return self.scatter(dim, where, values)


@stands_for("npu::npu_scatter_list_", writes=("self",))
def scatter_list_(self: list[Tensor], indices: Tensor, updates: Tensor, mask: Tensor | None, axis: int) -> None:
    """Write slice i of updates [n, ..] into the i-th tensor, if mask[i] is set.

    The slice is written along axis, starting at indices[i].
    """
    starts = indices.reshape(indices.shape[0], -1).tolist()
    wanted = [True] * len(self) if mask is None else [bool(value) for value in mask.tolist()]
    for target, start, rows, use in zip(self, starts, updates.unbind(0), wanted, strict=False):
        if use:
            length = rows.shape[axis] if len(start) == 1 else start[1]
            target.narrow(axis, start[0], length).copy_(rows.narrow(axis, 0, length))


@stands_for("npu::npu_scatter_list", fake=lambda self: [torch.empty_like(tensor) for tensor in self])
def scatter_list(self: list[Tensor], indices: Tensor, updates: Tensor, mask: Tensor | None, axis: int) -> list[Tensor]:
    """Same as npu_scatter_list_, on copies."""
    copies = [tensor.clone() for tensor in self]
    scatter_list_(copies, indices, updates, mask, axis)
    return copies


@stands_for("npu::_npu_index_add_")
def index_add_(self: Tensor, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    """Add `alpha` · `source` to the rows `index` of `self` (first dim)."""
    return self.index_add_(0, index.to(torch.int64), source, alpha=alpha)


@stands_for("npu::_npu_index_add")
def index_add(self: Tensor, index: Tensor, source: Tensor, alpha: float) -> Tensor:
    """Same as _npu_index_add_, on a copy."""
    return self.clone().index_add_(0, index.to(torch.int64), source, alpha=alpha)


@stands_for("npu::npu_gather_sparse_index")
def gather_sparse_index(input: Tensor, index: Tensor) -> Tensor:
    """Gather rows of input at index; the leading dims of the result are the shape of index."""
    return input[index.to(torch.int64)]


@stands_for("npu::npu_gather_sparse_index_backward")
def gather_sparse_index_backward(grad: Tensor, self_sizes: list[int], index: Tensor) -> Tensor:
    """Return the gradient of npu_gather_sparse_index.

    Each row of grad is added to the row from which it was gathered.
    """
    rows = grad.reshape(index.numel(), *self_sizes[1:])
    return grad.new_zeros(self_sizes).index_add_(0, index.flatten().to(torch.int64), rows)


@stands_for("npu::npu_gather_backward")
def gather_backward(grad: Tensor, self_size: list[int], dim: int, index: Tensor) -> Tensor:
    """Return the gradient of a gather along dim."""
    return grad.new_zeros(self_size).scatter_add_(dim, index.to(torch.int64), grad)


@stands_for("npu::npu_conv2d", "npu::npu_conv3d", "npu::npu_convolution")
def convolution(c: Call) -> Tensor:
    """Return the convolution over the last dims."""
    return torch.convolution(
        c.input, c.weight, c.bias, c.stride, c.padding, c.dilation, False, [0] * len(c.stride), c.groups
    )


@stands_for("npu::npu_conv_transpose2d", "npu::npu_convolution_transpose")
def convolution_transpose(c: Call) -> Tensor:
    """Return the transposed convolution."""
    return torch.convolution(
        c.input, c.weight, c.bias, c.stride, c.padding, c.dilation, True, c.output_padding, c.groups
    )


def _conv_gradients(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: tuple[list[int], list[int], list[int]],
    transposed: list[int] | None,
    groups: int,
    mask: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias. A gradient is empty if its entry in `mask` is False."""
    stride, padding, dilation = geometry
    channels = grad.shape[1]
    grads = torch.ops.aten.convolution_backward(
        grad,
        input,
        weight,
        [channels],
        stride,
        padding,
        dilation,
        transposed is not None,
        transposed or [0] * len(stride),
        groups,
        mask,
    )
    return tuple(part if part is not None else grad.new_empty((0,)) for part in grads)  # type: ignore[return-value]


@stands_for("npu::npu_conv2d_backward", "npu::npu_conv3d_backward", "npu::npu_convolution_backward")
def convolution_backward(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a convolution's input, weight and bias."""
    grad_output = getattr(c, "grad_output", None)
    upstream = getattr(c, "grad", None) if grad_output is None else grad_output
    assert upstream is not None
    return _conv_gradients(
        upstream, c.input, c.weight, (c.stride, c.padding, c.dilation), None, c.groups, c.output_mask
    )


@stands_for(
    "npu::npu_conv_transpose2d_backward",
    "npu::npu_conv_transpose3d_backward",
    "npu::npu_convolution_transpose_backward",
)
def convolution_transpose_backward(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a transposed convolution."""
    grad_input_mask = getattr(c, "grad_input_mask", None)
    grad_output = getattr(c, "grad_output", None)
    upstream = getattr(c, "grad", None) if grad_output is None else grad_output
    mask = getattr(c, "output_mask", None) if grad_input_mask is None else grad_input_mask
    assert upstream is not None
    assert mask is not None
    return _conv_gradients(
        upstream, c.input, c.weight, (c.stride, c.padding, c.dilation), c.output_padding, c.groups, mask
    )


@stands_for("npu::_npu_format_cast", "npu::npu_format_cast")
def npu_format_cast(self: Tensor) -> Tensor:
    """Return a copy: the data is moved, but its layout does not change."""
    return self.clone()


@stands_for("npu::npu_transpose")
def npu_transpose(self: Tensor, perm: list[int]) -> Tensor:
    """Return a contiguous permuted copy."""
    return self.permute(perm).clone(memory_format=torch.contiguous_format)


@stands_for("npu::npu_scatter_nd_update_")
def npu_scatter_nd_update_(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Set self[indices[.., 0], indices[.., 1], ..] = updates in place."""
    return self.index_put_(tuple(indices.to(torch.int64).unbind(-1)), updates)


@stands_for("npu::npu_scatter_nd_update")
def npu_scatter_nd_update(self: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Same as npu_scatter_nd_update_, on a copy."""
    return npu_scatter_nd_update_(self.clone(), indices, updates)
