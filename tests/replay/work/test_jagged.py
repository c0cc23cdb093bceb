"""Jagged ops on zeros hold no values; initialized, as many as there are."""

from __future__ import annotations

from typing import Any

import torch


def longs(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def test_lengths_and_permutes(before: Any, after: Any) -> None:
    args = {"permute": longs(6), "lengths": longs(6, 10), "values": torch.zeros(300), "permuted_lengths_sum": 300}
    op = "fbgemm::permute_2D_sparse_data"
    assert before(op, args).idle
    done = after(op, args)
    assert [(a.what, a.done, a.most) for a in done.amounts] == [
        ("values in lengths", 300, None), ("distinct rows permuted", 6, 6),
    ]  # fmt: skip
    assert not done.warnings
    args["lengths"][0, 0] = -1
    assert before(op, args).warnings == ("lengths has negative entries",)


def test_offsets(before: Any, after: Any) -> None:
    args = {"values": torch.zeros(50, 4), "offsets": [longs(9)], "max_lengths": [8], "padding_value": 0.0}
    op = "fbgemm::jagged_to_padded_dense"
    assert before(op, args).idle
    assert after(op, args).amounts[0].done == 50
    args["offsets"][0][1] = 60
    assert "offsets descend" in before(op, args).warnings


def test_sums(before: Any, after: Any) -> None:
    args = {"t_in": longs(20)}
    assert before("fbgemm::asynchronous_complete_cumsum", args).idle
    assert after("fbgemm::asynchronous_complete_cumsum", args).amounts[0].done > 0
