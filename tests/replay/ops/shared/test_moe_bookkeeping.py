"""Alignment of slots to blocks of experts, by adapter and under older names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]
IDS = torch.tensor([[0, 2], [2, 1], [0, 2]])
EXPERTS, TOPK = 4, 2


def i32(*shape: int) -> Tensor:
    return torch.full(shape, -7, dtype=torch.int32)


def test_alignment_under_older_names_and_by_adapter(call: Call) -> None:
    def buffers() -> dict[str, Tensor]:
        return {"sorted_token_ids": i32(18), "experts_ids": i32(5), "num_tokens_post_pad": i32(1)}

    common = {"topk_ids": IDS, "num_experts": EXPERTS, "block_size": 4}
    wanted = [0, 4, 6, 6, 3, 6, 6, 6, 1, 2, 5, 6]
    for name in ("_moe_C::sgl_moe_align_block_size", "_C::moe_align_block_size"):
        found = buffers()
        call(name, **common, **found)
        assert found["sorted_token_ids"][:12].tolist() == wanted
        assert found["experts_ids"].tolist() == [0, 1, 2, -1, -1]
        assert found["num_tokens_post_pad"].tolist() == [12]
    found, rows = buffers(), i32(5)
    call("aiter::moe_align_block_size", **common, token_nums=rows, **found)
    assert rows.tolist() == [2, 1, 3, 0, 0]
    sorted_ids, owners, total = i32(2 * 18), i32(2 * 5), i32(2)
    call(
        "_moe_C::moe_lora_align_block_size",
        **common,
        token_lora_mapping=torch.tensor([1, 0, 1]),
        max_loras=2,
        max_num_tokens_padded=18,
        max_num_m_blocks=5,
        sorted_token_ids=sorted_ids,
        experts_ids=owners,
        num_tokens_post_pad=total,
        adapter_enabled=i32(2),
        lora_ids=i32(2),
        maybe_expert_map=None,
    )
    assert total.tolist() == [8, 8]
    assert owners.reshape(2, 5).tolist() == [[1, 2, -1, -1, -1], [0, 2, -1, -1, -1]]
    assert sorted_ids.reshape(2, 18)[1, :8].tolist() == [0, 4, 6, 6, 1, 5, 6, 6]
