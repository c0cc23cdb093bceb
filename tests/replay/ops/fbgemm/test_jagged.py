"""FBGEMM's regrouped columns and backward passes of lookups against loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Call = Callable[..., Any]
LENGTHS = [2, 0, 3]


def rows(values: Tensor) -> list[Tensor]:
    return list(values.split(LENGTHS))


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
