"""FBGEMM's jagged tensors, regrouping and backward passes against loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
LENGTHS = [2, 0, 3]
OFFSETS = torch.tensor([0, 2, 2, 5])
D, L = 4, 3
VALUES = torch.randn(5, D)
DENSE = torch.randn(3, L, D)


def rows(values: Tensor) -> list[Tensor]:
    return list(values.split(LENGTHS))


def padded(values: Tensor, padding: float = 0.0) -> Tensor:
    out = torch.full((3, L, *values.shape[1:]), padding, dtype=values.dtype)
    for i, part in enumerate(rows(values)):
        out[i, : part.shape[0]] = part
    return out


def unpadded(dense: Tensor) -> Tensor:
    return torch.cat([dense[i, :n] for i, n in enumerate(LENGTHS)])


def test_to_dense_and_back(call: Call) -> None:
    for name in ("fbgemm::jagged_to_padded_dense", "fbgemm::jagged_to_padded_dense_forward"):
        found = call(name, values=VALUES, offsets=[OFFSETS], max_lengths=[L], padding_value=-1.0)
        assert torch.equal(found, padded(VALUES, -1.0))
    assert torch.equal(
        call("fbgemm::jagged_2d_to_dense", values=VALUES, offsets=OFFSETS, max_sequence_length=L), padded(VALUES)
    )
    found = call(
        "fbgemm::jagged_1d_to_dense", values=VALUES[:, 0], offsets=OFFSETS, max_sequence_length=L, padding_value=7
    )
    assert torch.equal(found, padded(VALUES[:, 0], 7.0))
    wanted = unpadded(DENSE)
    found = call("fbgemm::jagged_to_padded_dense_backward", grad_output=DENSE, offsets=[OFFSETS], total_L=5)
    assert torch.equal(found, wanted)
    assert torch.equal(call("fbgemm::dense_to_jagged_forward", dense=DENSE, x_offsets=[OFFSETS], total_L=5), wanted)
    found, offsets = call("fbgemm::dense_to_jagged", dense=DENSE, x_offsets=[OFFSETS], total_L=5)
    assert torch.equal(found, wanted)
    assert torch.equal(offsets[0], OFFSETS)
    lengths = torch.tensor(LENGTHS)
    assert torch.equal(call("fbgemm::pack_segments", t_in=VALUES, lengths=lengths, max_length=L), padded(VALUES))
    found = call("fbgemm::pack_segments_backward", data=DENSE, lengths=lengths, total_length=5, max_length=L)
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="2 jagged dims"):
        call("fbgemm::jagged_to_padded_dense", values=VALUES, offsets=[OFFSETS, OFFSETS], max_lengths=[L, L])


def test_elementwise(call: Call, close: Call) -> None:
    given = {"x_values": VALUES, "x_offsets": [OFFSETS]}
    close(call("fbgemm::jagged_dense_elementwise_add", y=DENSE, **given), (padded(VALUES) + DENSE).double())
    close(
        call("fbgemm::jagged_dense_elementwise_add_jagged_output", y=DENSE, **given)[0],
        (VALUES + unpadded(DENSE)).double(),
    )
    twice = (VALUES + 2 * unpadded(DENSE)).double()
    name = "fbgemm::jagged_dense_dense_elementwise_add_jagged_output"
    close(call(name, y_0=DENSE, y_1=DENSE, **given)[0], twice)
    close(call(f"{name}_forward", y_0=DENSE, y_1=DENSE, **given), twice)
    product = (VALUES * unpadded(DENSE)).double()
    close(call("fbgemm::jagged_dense_elementwise_mul", y=DENSE, **given)[0], product)
    close(call("fbgemm::jagged_dense_elementwise_mul_forward", y=DENSE, **given), product)
    grad = torch.randn(5, D)
    dx, dy = call(
        "fbgemm::jagged_dense_elementwise_mul_backward", grad_output=grad, x_offsets=[OFFSETS], y=DENSE, x_values=VALUES
    )
    close(dx, (grad * unpadded(DENSE)).double())
    close(dy, padded(grad * VALUES).double())


def test_products(call: Call, close: Call) -> None:
    y = torch.randn(3, D, 6)
    wanted = torch.cat([part.double() @ y[i].double() for i, part in enumerate(rows(VALUES))])
    given = {"x_values": VALUES, "x_offsets": OFFSETS, "max_L": L}
    close(call("fbgemm::jagged_dense_bmm", y=y, **given)[0], wanted)
    close(call("fbgemm::jagged_dense_bmm_forward", y=y, **given), wanted)
    other = torch.randn(5, 6)
    wanted = torch.stack([a.double().t() @ b.double() for a, b in zip(rows(VALUES), rows(other), strict=True)])
    for name in ("fbgemm::jagged_jagged_bmm", "fbgemm::jagged_jagged_bmm_forward"):
        close(call(name, y_values=other, **given), wanted)
    v = torch.randn(3 * 2, L)
    wanted = torch.einsum("bhl,blhd->bhd", v.double().reshape(3, 2, L), padded(VALUES).double().reshape(3, L, 2, 2))
    for name in ("fbgemm::batched_dense_vec_jagged_2d_mul", "fbgemm::batched_dense_vec_jagged_2d_mul_forward"):
        close(call(name, v=v, a_values=VALUES, a_offsets=OFFSETS), wanted.flatten(0, 1))


def test_softmax_and_its_gradient(call: Call, close: Call) -> None:
    leaf = VALUES.double().requires_grad_()
    soft = torch.cat([part.softmax(0) for part in leaf.split(LENGTHS)])
    grad = torch.randn(5, D)
    soft.backward(grad.double())
    found, _ = call("fbgemm::jagged_softmax", values=VALUES, x_offsets=OFFSETS, max_L=L)
    close(found, soft)
    close(call("fbgemm::jagged_softmax_forward", values=VALUES, x_offsets=OFFSETS, max_L=L), soft)
    back = call("fbgemm::jagged_softmax_backward", grad_output=grad, output=found, x_offsets=OFFSETS, max_L=L)
    assert leaf.grad is not None
    close(back, leaf.grad)


def test_moving_rows(call: Call, close: Call) -> None:
    order = torch.tensor([2, 0, 1])
    assert call("fbgemm::invert_permute", permute=order).tolist() == [1, 2, 0]
    assert torch.equal(call("fbgemm::index_select_dim0", input=VALUES, indices=order), VALUES[order])
    assert torch.equal(call("fbgemm::gather_along_first_dim", Data=VALUES, Index=order), VALUES[order])
    found = call("fbgemm::group_index_select_dim0", input_group=[VALUES, DENSE[0]], indices_group=[order, order[:2]])
    assert torch.equal(found[1], DENSE[0][order[:2]])
    target = torch.zeros(3, D)
    call("fbgemm::scatter_add_along_first_dim", Dst=target, Src=VALUES, Index=torch.tensor([0, 0, 2, 1, 2]))
    close(target, torch.stack((VALUES[:2].sum(0), VALUES[3], VALUES[[2, 4]].sum(0))).double())
    sums = call("fbgemm::segment_sum_csr", batch_size=2, csr_seg=torch.tensor([0, 1, 3]), values=torch.arange(6.0))
    assert sums.tolist() == [1, 14]
    close(call("fbgemm::silu_mul", x0=VALUES, x1=VALUES), torch.nn.functional.silu(VALUES.double()) * VALUES.double())


def test_columns_are_regrouped_and_gradients_come_back(call: Call, close: Call) -> None:
    tensors = [torch.randn(2, 3), torch.randn(2, 4)]
    permutes = torch.tensor(
        [[0, 0, 0, 0, 2, 0], [1, 0, 1, 2, 3, 0], [0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 0]], dtype=torch.int32
    )
    shapes = {"in_shapes": torch.tensor([3, 4]), "out_shapes": torch.tensor([5, 3])}
    given = {"permutes": permutes, **shapes}
    found = call("fbgemm::permute_multi_embedding", pooled_embs=tensors, out_lengths=[5, 3], **given)
    wanted = [
        torch.cat((tensors[0][:, :2], tensors[1][:, 1:]), 1),
        torch.cat((tensors[0][:, 2:], tensors[0][:, :2]), 1),
    ]
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    back = call(
        "fbgemm::permute_multi_embedding_function",
        pooled_embs=found,
        permutes=permutes,
        out_lengths=[3, 4],
        reverse=True,
        **shapes,
    )
    close(back[0], torch.cat((2 * tensors[0][:, :2], tensors[0][:, 2:]), 1).double())
    assert not back[1][:, 0].any()


@pytest.mark.parametrize("pooling", [0, 1])
def test_backward_passes_of_lookups(call: Call, close: Call, pooling: int) -> None:
    dims, sizes, batch = [4, 2], [5, 3], 2
    tables = [torch.randn(n, d) for n, d in zip(sizes, dims, strict=True)]
    flat = torch.cat([t.flatten() for t in tables])
    indices, offsets = torch.tensor([0, 4, 4, 1, 2, 2]), torch.tensor([0, 2, 3, 5, 6])
    grad, scale = torch.randn(batch, 6), torch.rand(6)
    moments = torch.rand(8)
    weights, kept = flat.clone(), moments.clone()
    common = {
        "weights_offsets": torch.tensor([0, 20]),
        "D_offsets": torch.tensor([0, 4, 6]),
        "indices": indices,
        "offsets": offsets,
    }
    call(
        "fbgemm::split_embedding_backward_codegen_rowwise_adagrad_cpu",
        grad_output=grad,
        host_weights=weights,
        weights_placements=torch.zeros(2),
        max_D=4,
        hash_size_cumsum=torch.tensor([0, 5, 8]),
        total_hash_size_bits=4,
        pooling_mode=pooling,
        indice_weights=scale,
        stochastic_rounding=False,
        momentum1_host=kept,
        momentum1_placements=torch.zeros(2),
        momentum1_offsets=torch.tensor([0, 5]),
        learning_rate_tensor=torch.tensor(0.1),
        eps=1e-3,
        **common,
    )
    sample = torch.zeros(6, dtype=torch.float64)
    for t, table in enumerate(tables):
        total = torch.zeros_like(table, dtype=torch.float64)
        column = slice(0, 4) if t == 0 else slice(4, 6)
        for b in range(batch):
            low, high = int(offsets[t * batch + b]), int(offsets[t * batch + b + 1])
            for i in range(low, high):
                share = scale[i].double() / (high - low if pooling == 1 else 1)
                total[indices[i]] += grad[b, column].double() * share
                sample[i] = (table[indices[i]].double() * grad[b, column].double()).sum()
        moment = moments[5 * t : 5 * t + sizes[t]].double() + total.pow(2).mean(1)
        touched = total.abs().sum(1) > 0
        wanted = table.double() - 0.1 / (moment.sqrt() + 1e-3).unsqueeze(1) * total
        found = weights[20 * t :][: table.numel()].reshape(table.shape)
        close(found[touched], wanted[touched])
        assert torch.equal(found[~touched], table[~touched])
        close(kept[5 * t : 5 * t + sizes[t]], moment)
    found = call(
        "fbgemm::split_embedding_codegen_grad_indice_weights_cpu",
        grad_output=grad,
        weights=flat,
        feature_requires_grad=torch.empty(0),
        **common,
    )
    close(found, sample)


def test_fp8(call: Call) -> None:
    x, w = torch.randn(4, 64), torch.randn(6, 64)
    (qx, sx), (qw, sw) = (call("fbgemm::quantize_fp8_per_row", input=t) for t in (x, w))
    wanted = x.double() @ w.double().t()

    def near(found: Tensor) -> None:
        assert (found.double() - wanted).norm() < 0.06 * wanted.norm()

    near(call("fbgemm::f8f8bf16_rowwise", XQ=qx, WQ=qw, x_scale=sx, w_scale=sw))
    near(call("fbgemm::f8f8bf16_blockwise", XQ=qx, WQ=qw, x_scale=sx.unsqueeze(1), w_scale=sw.unsqueeze(1)))
    (qx, sx), (qw, sw) = (call("fbgemm::quantize_fp8_per_tensor", input=t) for t in (x, w))
    for name in ("f8f8bf16", "f8f8bf16_v2"):
        near(call(f"fbgemm::{name}", XQ=qx, WQ=qw, scale=sx * sw))
    near(call("fbgemm::f8f8bf16_tensorwise", XQ=qx, WQ=qw, scale=float(sx * sw)))
    data, scale = call("fbgemm::quantize_fp8_per_col", input=x)
    assert (data.double() * scale.double() - x).abs().max() < 0.1 * x.abs().max()
