"""torch_npu's movement of data, scatters and convolutions against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[..., Any]
X = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("first", [True, False])
def test_confusion_transpose_and_back(call: Call, first: bool) -> None:
    shape = [4, 6] if first else [2, 12]
    perm = [2, 0, 1] if first else [1, 0]
    wanted = X.permute(perm).reshape(shape) if first else X.reshape(shape).permute(perm)
    found = call("npu::npu_confusion_transpose", self=X, perm=perm, shape=shape, transpose_first=first)
    assert torch.equal(found, wanted)
    back = call(
        "npu::npu_confusion_transpose_backward", grad=found, perm=perm, shape=list(X.shape), transpose_first=first
    )
    assert torch.equal(back, X)


def test_shapes(call: Call) -> None:
    assert torch.equal(call("npu::npu_broadcast", self=X[:, :1], size=[2, 3, 4]), X[:, :1].expand(2, 3, 4))
    assert torch.equal(call("npu::npu_reshape", self=X, shape=[6, 4]), X.reshape(6, 4))
    assert torch.equal(call("npu::npu_slice", self=X, offsets=[0, 1, 2], size=[1, 2, -1]), X[:1, 1:3, 2:])
    padded = call("npu::npu_pad", input=X, paddings=[0, 0, 1, 0, 2, 1])
    assert torch.equal(padded, F.pad(X, (2, 1, 1, 0, 0, 0)))
    hot = call("npu::npu_one_hot", self=torch.tensor([1, 0]), depth=3, on_value=5, off_value=1)
    assert hot.tolist() == [[1, 5, 1], [5, 1, 1]]
    found = call("npu::npu_stride_copy", self=X, shape=[2, 2], stride=[1, 5], storage_offset=3)
    assert found.tolist() == [[3, 8], [4, 9]]
    assert torch.equal(call("npu::npu_view_copy", self=torch.zeros(2, 3, 4), other=X, non_blocking=False), X)
    assert torch.equal(call("npu::copy_memory_", self=torch.zeros(2, 3, 4), src=X), X)
    for name, method in (("npu::npu_max", torch.max), ("npu::npu_min", torch.min)):
        values, ids = call(name, "dim", self=X, dim=1)
        assert torch.equal(values, method(X, 1).values)
        assert ids.tolist() == method(X, 1).indices.tolist()
    assert torch.equal(call("npu::npu_sort_v2", self=X, dim=0, descending=True), X.flip(0))


def test_products(call: Call, close: Call) -> None:
    a, b, dy = torch.randn(3, 4, 5), torch.randn(3, 5, 2), torch.randn(3, 4, 2)
    close(call("npu::npu_bmmV2", self=a, mat2=b, output_sizes=[]), a.double() @ b.double())
    close(call("npu::npu_bmm_v2_mat1_backward", grad=dy, mat1=a, mat2=b, size=[3, 4, 5]), dy.double() @ b.double().mT)
    close(call("npu::npu_bmm_v2_mat2_backward", grad=dy, mat1=a, mat2=b, size=[3, 5, 2]), a.double().mT @ dy.double())
    x, weight, grad = torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(2, 3, 4)
    dx, dweight = call("npu::npu_linear_backward", grad=grad, input=x, weight=weight)
    close(dx, grad.double() @ weight.double())
    close(dweight, torch.einsum("abn,abk->nk", grad.double(), x.double()))


def test_scatters(call: Call) -> None:
    table, rows = torch.zeros(2, 6, 3), torch.randn(2, 2, 3)
    wanted = table.clone()
    wanted[0, 1:3], wanted[1, 4:6] = rows[0], rows[1]
    starts = torch.tensor([1, 4])
    assert torch.equal(call("npu::scatter_update", self=table, indices=starts, updates=rows, axis=-2), wanted)
    assert torch.equal(call("npu::scatter_update_", self=table.clone(), indices=starts, updates=rows, axis=1), wanted)
    found = call("npu::npu_scatter", self=X[0], indices=torch.tensor([1, 0, 3]), updates=torch.full((3,), -1.0), dim=1)
    assert [int((row == -1).nonzero()) for row in found] == [1, 0, 3]
    tensors = [torch.zeros(6, 3), torch.zeros(6, 3)]
    found = call(
        "npu::npu_scatter_list",
        self=tensors,
        indices=starts,
        updates=rows,
        mask=torch.tensor([1, 0], dtype=torch.uint8),
    )
    assert torch.equal(found[0], wanted[0])
    assert not found[1].any()
    call("npu::npu_scatter_list_", self=tensors, indices=starts, updates=rows)
    assert torch.equal(torch.stack(tensors), wanted)
    base, index, source = torch.randn(4, 3), torch.tensor([1, 1, 3]), torch.randn(3, 3)
    added = base.clone().index_add_(0, index, source, alpha=2)
    assert torch.equal(call("npu::_npu_index_add", self=base, index=index, source=source, alpha=2), added)
    assert torch.equal(call("npu::_npu_index_add_", self=base.clone(), index=index, source=source, alpha=2), added)


def test_gathers_and_their_gradients(call: Call, close: Call) -> None:
    table, index = torch.randn(5, 3), torch.tensor([[0, 4], [4, 1]])
    close(call("npu::npu_gather_sparse_index", input=table, index=index), table[index].double())
    dy = torch.randn(2, 2, 3)
    wanted = torch.zeros(5, 3).index_add_(0, index.flatten(), dy.reshape(4, 3))
    close(call("npu::npu_gather_sparse_index_backward", grad=dy, self_sizes=[5, 3], index=index), wanted.double())
    picked, grad = torch.randint(0, 5, (4, 3)), torch.randn(4, 3)
    wanted = torch.zeros(5, 3).scatter_add_(0, picked, grad)
    found = call("npu::npu_gather_backward", grad=grad, self_size=[5, 3], dim=0, index=picked, sparse_grad=False)
    close(found, wanted.double())


@pytest.mark.parametrize("dims", [2, 3])
def test_convolutions(call: Call, close: Call, dims: int) -> None:
    x, weight = torch.randn(2, 4, *[5] * dims), torch.randn(6, 2, *[3] * dims)
    bias = torch.randn(6)
    ones, twos = [1] * dims, [2] * dims
    plain = F.conv2d if dims == 2 else F.conv3d
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    wanted = plain(*leaves, stride=twos, padding=ones, groups=2)
    given = {"stride": twos, "padding": ones, "dilation": ones, "groups": 2}
    names = [f"npu::npu_conv{dims}d"] + (["npu::npu_convolution"] if dims == 2 else [])
    for name in names:
        close(call(name, input=x, weight=weight, bias=bias, **given), wanted, 10)
    dy = torch.randn(wanted.shape)
    wanted.backward(dy.double())
    for name in [f"{name}_backward" for name in names]:
        upstream = {"grad" if dims == 3 else "grad_output": dy}
        found = call(name, input=x, weight=weight, output_mask=[True] * 3, **given, **upstream)
        for one, leaf in zip(found, leaves, strict=True):
            close(one, leaf.grad, 50)


def test_transposed_convolutions(call: Call, close: Call) -> None:
    x, weight, bias = torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(3)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias)]
    wanted = F.conv_transpose2d(*leaves, stride=2, padding=1, output_padding=1)
    given: dict[str, Any] = {
        "padding": [1, 1],
        "output_padding": [1, 1],
        "stride": [2, 2],
        "dilation": [1, 1],
        "groups": 1,
    }
    for name in ("npu::npu_conv_transpose2d", "npu::npu_convolution_transpose"):
        close(call(name, input=x, weight=weight, bias=bias, **given), wanted, 10)
    dy = torch.randn(wanted.shape)
    wanted.backward(dy.double())
    calls: list[tuple[str, dict[str, Any]]] = [
        ("npu::npu_conv_transpose2d_backward", {"grad_output": dy, "output_mask": [True] * 3}),
        ("npu::npu_convolution_transpose_backward", {"grad": dy, "grad_input_mask": [True] * 3}),
    ]
    for name, more in calls:
        for one, leaf in zip(call(name, input=x, weight=weight, **given, **more), leaves, strict=True):
            assert isinstance(leaf.grad, Tensor)
            close(one, leaf.grad, 50)
