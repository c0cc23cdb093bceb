"""Rows of batched embedding tables, and positions."""

from __future__ import annotations

from typing import Any

import torch


def tables(count: int = 3, bags: int = 4, indices: int = 60) -> dict[str, Any]:
    return {
        "dev_weights": torch.zeros(count * 50 * 8), "uvm_weights": torch.zeros(0),
        "weights_offsets": torch.zeros(count, dtype=torch.int64),
        "D_offsets": torch.zeros(count + 1, dtype=torch.int32), "total_D": 8 * count, "max_D": 8,
        "hash_size_cumsum": torch.zeros(count + 1, dtype=torch.int64),
        "indices": torch.zeros(indices, dtype=torch.int64),
        "offsets": torch.zeros(count * bags + 1, dtype=torch.int64),
    }  # fmt: skip


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
