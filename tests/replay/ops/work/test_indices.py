"""Rows that indices touch, and elements that masks select."""

from __future__ import annotations

from typing import Any

import pytest
import torch

LONG = torch.int64


def zeros(*shape: int, dtype: torch.dtype = LONG) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("aten::embedding", {"weight": torch.zeros(100, 4), "indices": zeros(30)}, "indices"),
    ("aten::index_select", {"self": torch.zeros(7, 50), "dim": 1, "index": zeros(20)}, "index"),
    ("aten::gather", {"self": torch.zeros(7, 50), "dim": 1, "index": zeros(7, 20)}, "index"),
    ("aten::scatter_add_", {"self": torch.zeros(60, 5), "dim": 0, "index": zeros(40, 5)}, "index"),
    ("aten::embedding_dense_backward", {"indices": zeros(30), "num_weights": 90}, "indices"),
    ("aten::embedding_bag", {"weight": torch.zeros(80, 4), "indices": zeros(40), "offsets": zeros(10)}, "indices"),
]


@pytest.mark.parametrize(("op", "args", "index"), CASES, ids=[op for op, _, _ in CASES])
def test_distinct_rows(op: str, args: dict[str, Any], index: str, before: Any, after: Any) -> None:
    args = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in args.items()}
    assert before(op, args).idle
    done = after(op, args)
    assert done.amounts[0].done == len(args[index].unique())
    assert done.amounts[0].most <= args[index].numel()
    assert not done.idle
    assert not done.warnings


def test_bags_and_offsets(before: Any) -> None:
    args = {"weight": torch.zeros(80, 4), "indices": torch.arange(12), "offsets": torch.tensor([0, 4, 4, 9])}
    assert [(a.what, a.done, a.most) for a in before("aten::embedding_bag", args).amounts][1] == ("bags", 3, 4)
    args["offsets"] = torch.tensor([0, 6, 4])
    assert before("aten::embedding_bag", args).warnings == ("offsets descend",)


def test_places_of_several_indices_count_together(before: Any) -> None:
    rows, columns = torch.tensor([0, 0, 1, -1]), torch.tensor([[0], [2]])
    done = before("aten::index", {"self": torch.zeros(3, 4), "indices": [rows, columns]}).amounts[0]
    assert (done.done, done.most) == (6, 8)
    masked = before(
        "aten::index", {"self": torch.zeros(3, 4), "indices": [None, torch.tensor([True, False, True, True])]}
    )
    assert (masked.amounts[0].done, masked.amounts[0].most) == (3, 4)


def test_one_row_is_all_that_a_table_of_one_row_has(before: Any) -> None:
    done = before("aten::embedding", {"weight": torch.zeros(1, 4), "indices": zeros(30)})
    assert not done.idle
    assert done.amounts[0].most == 1


def test_indices_out_of_range_are_said(before: Any) -> None:
    args = {"weight": torch.zeros(3, 4), "indices": torch.tensor([0, 1, 3])}
    assert before("aten::embedding", args).warnings == ("1 indices are not in [0, 3)",)


def test_masks(before: Any, after: Any) -> None:
    args = {"self": torch.zeros(40, 50), "mask": zeros(40, 50, dtype=torch.bool)}
    assert before("aten::masked_select", args).idle
    done = after("aten::masked_select", args).amounts[0]
    assert (done.done, done.most) == (int(args["mask"].sum()), 2000)
    query = torch.zeros(1, 2, 6, 8)
    hidden = torch.full((6, 6), -torch.inf)
    sdpa = {"query": query, "key": query, "value": query, "attn_mask": hidden}
    assert before("aten::scaled_dot_product_attention", sdpa).idle
    assert after("aten::scaled_dot_product_attention", sdpa).amounts[0].done == 21


def test_lengths(before: Any, after: Any) -> None:
    pack = {"input": torch.zeros(9, 4, 3), "lengths": zeros(4), "batch_first": False}
    assert before("aten::_pack_padded_sequence", pack).idle
    assert 9 < after("aten::_pack_padded_sequence", pack).amounts[0].done <= 36
    repeats = {"repeats": zeros(5), "output_size": 20}
    assert before("aten::repeat_interleave", repeats).idle
    assert after("aten::repeat_interleave", repeats).amounts[0].done == 20


def longs(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def test_lengths_and_permutes(before: Any, after: Any) -> None:
    args = {"permute": longs(6), "lengths": longs(6, 10), "values": torch.zeros(300), "permuted_lengths_sum": 300}
    op = "fbgemm::permute_2D_sparse_data"
    assert before(op, args).idle
    done = after(op, args)
    assert [(a.what, a.done, a.most) for a in done.amounts] == [
        ("values in lengths", 300, None),
        ("distinct rows permuted", 6, 6),
    ]
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


def tables(count: int = 3, bags: int = 4, indices: int = 60) -> dict[str, Any]:
    return {
        "dev_weights": torch.zeros(count * 50 * 8),
        "uvm_weights": torch.zeros(0),
        "weights_offsets": torch.zeros(count, dtype=torch.int64),
        "D_offsets": torch.zeros(count + 1, dtype=torch.int32),
        "total_D": 8 * count,
        "max_D": 8,
        "hash_size_cumsum": torch.zeros(count + 1, dtype=torch.int64),
        "indices": torch.zeros(indices, dtype=torch.int64),
        "offsets": torch.zeros(count * bags + 1, dtype=torch.int64),
    }


def test_lookups(before: Any, after: Any) -> None:
    op = "fbgemm::split_embedding_codegen_lookup_adagrad_function"
    args = tables()
    assert before(op, args).idle
    done = after(op, args)
    rows = {(i // 20, int(index)) for i, index in enumerate(args["indices"])}
    assert (done.amounts[0].done, done.amounts[0].most) == (len(rows), 60)
    assert (done.amounts[1].done, done.amounts[1].most) == (12, 12)
    assert not done.warnings
    args["indices"][:] = 50
    assert before(op, args).warnings == ("60 indices are not in their table",)
    args["offsets"][1] = -1
    assert "offsets descend" in before(op, args).warnings


def test_positions(before: Any, after: Any) -> None:
    args = {"positions": torch.zeros(40, dtype=torch.int64), "cos_sin_cache": torch.zeros(1000, 8)}
    assert before("_C::rotary_embedding", args).idle
    done = after("_C::rotary_embedding", args)
    assert done.amounts[0].done == len(args["positions"].unique())
    args["positions"] += 1000
    assert done.amounts[0].most == 40
    assert "not in [0, 1000)" in before("_C::rotary_embedding", args).warnings[0]


def test_new_tokens(before: Any, after: Any) -> None:
    args = {name: torch.zeros(6, dtype=torch.int32) for name in ("extend_prefix_lens", "extend_seq_lens")}
    op = "sglang_profiler::forward_batch_info_compute_position"
    assert before(op, args).idle
    assert after(op, args).amounts[0].done == 6 * 128
