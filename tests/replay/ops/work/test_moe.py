"""MoE ops on zeros route nothing apart; initialized, every token goes to different experts in the library's layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.amounts import Work

TOKENS, TOPK, EXPERTS, BLOCK = 50, 3, 8, 16
DISTRIBUTIONS = ("distribution=uniform", "distribution=zipf")


def amounts(work: Work) -> dict[str, tuple[int, int | None]]:
    return {amount.what: (amount.done, amount.most) for amount in work.amounts}


def stage(length: int = 272) -> dict[str, Any]:
    return {
        "hidden_states": torch.zeros(TOKENS, 16),
        "w1": torch.zeros(EXPERTS, 24, 16),
        "w2": torch.zeros(EXPERTS, 16, 12),
        "sorted_token_ids": torch.zeros(length, dtype=torch.int32),
        "sorted_expert_ids": torch.zeros(length // BLOCK, dtype=torch.int32),
        "num_valid_ids": torch.zeros(2, dtype=torch.int32),
        "out": torch.zeros(TOKENS, TOPK, 12),
        "topk": TOPK,
        "block_m": BLOCK,
    }


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", ["aiter::ck_moe_stage1", "aiter::ck_moe_stage2"])
def test_packed_lists(op: str, distribution: str, before: Any, after: Any) -> None:
    args = stage()
    assert before(op, args).idle
    found = after(op, args, distribution)
    done = amounts(found)
    assert done["routed slots"] == (TOKENS * TOPK, TOKENS * TOPK)
    assert done["tokens"] == (TOKENS, TOKENS)
    assert done["dropped slots"][0] == 0
    assert not found.warnings
    valid = int(args["num_valid_ids"][0])
    assert done["padding entries"] == (valid - TOKENS * TOPK, valid)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_flat_lists(distribution: str, before: Any, after: Any) -> None:
    args = {
        "input": torch.zeros(TOKENS, 16),
        "output": torch.zeros(TOKENS, TOPK, 12),
        "b_qweight": torch.zeros(EXPERTS, 12, 8, dtype=torch.uint8),
        "topk_weights": torch.zeros(TOKENS, TOPK),
        "sorted_token_ids": torch.zeros(272, dtype=torch.int32),
        "expert_ids": torch.zeros(17, dtype=torch.int32),
        "num_tokens_post_pad": torch.zeros(1, dtype=torch.int32),
        "top_k": TOPK,
        "BLOCK_SIZE_M": BLOCK,
    }
    assert before("_moe_C::moe_wna16_gemm", args).idle
    found = after("_moe_C::moe_wna16_gemm", args, distribution)
    assert amounts(found)["routed slots"] == (150, 150)
    assert not found.warnings


def test_lists_that_are_too_short_drop_slots(after: Any) -> None:
    args = stage(64)
    done = amounts(after("aiter::ck_moe_stage1", args))
    assert 0 < done["dropped slots"][0] == TOKENS * TOPK - done["routed slots"][0]


def test_broken_conventions_are_said(before: Any, after: Any) -> None:
    args = stage()
    after("aiter::ck_moe_stage1", args)
    args["sorted_token_ids"][-1] = 0
    args["num_valid_ids"][0] -= 1
    said = " ".join(before("aiter::ck_moe_stage1", args).warnings)
    assert "padding entries" in said
    assert "not a multiple of the block size 16" in said


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", ["vllm::outplace_fused_experts", "sglang::inplace_fused_experts", "aiter::fused_moe_"])
def test_chosen_experts(op: str, distribution: str, before: Any, after: Any) -> None:
    args = {
        "hidden_states": torch.zeros(TOKENS, 16),
        "w1": torch.zeros(EXPERTS, 24, 16),
        "w2": torch.zeros(EXPERTS, 16, 12),
        "topk_weights": torch.zeros(TOKENS, TOPK),
        "topk_ids": torch.zeros(TOKENS, TOPK, dtype=torch.int32),
    }
    zeros = before(op, args)
    assert zeros.idle
    assert amounts(zeros)["tokens that chose an expert twice"] == (TOKENS, TOKENS)
    done = amounts(after(op, args, distribution))
    assert done["routed slots"] == (150, 150)
    assert done["tokens that chose an expert twice"] == (0, TOKENS)
    assert done["experts"] == (8, 8)


def test_experts_that_are_elsewhere_are_no_work(before: Any) -> None:
    ids = torch.tensor([[0, -1], [1, 2], [-1, -1]], dtype=torch.int32)
    done = before("sgl_kernel::moe_align_block_size", {"topk_ids": ids, "num_experts": 5, "block_size": 4})
    assert amounts(done)["routed slots"] == (3, 6)
    assert amounts(done)["tokens"] == (2, 3)
    assert not done.warnings


@pytest.mark.parametrize("op", ["_moe_C::topk_softmax", "npu::npu_moe_gating_top_k", "vllm::moe_forward"])
def test_scores_decide(op: str, before: Any, after: Any) -> None:
    name = {"npu": "x", "vllm": "router_logits"}.get(op.partition("::")[0], "gating_output")
    args = {name: torch.zeros(TOKENS, EXPERTS), "topk_weights": torch.zeros(TOKENS, TOPK)}
    assert before(op, args).idle
    done = amounts(after(op, args))
    assert done["tokens routed"] == (TOKENS, TOKENS)
    assert done["experts"] == (8, 8)


@pytest.mark.parametrize("kind", [0, 1])
def test_groups(kind: int, before: Any, after: Any) -> None:
    args = {
        "x": [torch.zeros(90, 4)],
        "weight": [torch.zeros(6, 4, 4)],
        "group_list": torch.zeros(6, dtype=torch.int64),
        "group_list_type": kind,
    }
    assert before("npu::npu_grouped_matmul", args).idle
    done = amounts(after("npu::npu_grouped_matmul", args))
    assert done["rows"] == (90, 90)
    assert done["experts"] == (6, 6)


def test_rows_come_back_once(before: Any, after: Any) -> None:
    args = {"permuted_tokens": torch.zeros(20, 4), "sorted_indices": torch.zeros(20, dtype=torch.int32), "probs": None}
    assert before("npu::npu_moe_token_unpermute", args).idle
    assert amounts(after("npu::npu_moe_token_unpermute", args))["rows brought back"] == (20, 20)
