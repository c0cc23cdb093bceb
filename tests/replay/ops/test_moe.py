"""MoE routing, sorting conventions and expert products of every library against loops over tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

Op = Callable[[str], Any]


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def test_vllm_align_follows_the_documented_example(op: Op) -> None:
    ids = torch.tensor([[2, 3, 4], [1, 2, 4], [1, 3, 4], [1, 2, 3]], dtype=torch.int32)
    order, owners = torch.full((12 + 5 * 3,), -7, dtype=torch.int32), torch.full((7,), -7, dtype=torch.int32)
    total = torch.zeros(1, dtype=torch.int32)
    op("_moe_C::moe_align_block_size")(ids, 5, 4, order, owners, total, None)
    assert total.item() == 16
    assert order[:16].tolist() == [3, 6, 9, 12, 0, 4, 10, 12, 1, 7, 11, 12, 2, 5, 8, 12]
    assert order[16:].eq(12).all()
    assert owners.tolist() == [1, 2, 3, 4, -1, -1, -1]
    mapped = torch.tensor([-1, 0, -1, 1, -1], dtype=torch.int32)
    op("_moe_C::moe_align_block_size")(ids, 2, 4, order, owners, total, mapped)
    assert total.item() == 8
    assert order[:8].tolist() == [3, 6, 9, 12, 1, 7, 11, 12]


def test_sorting_of_no_tokens_leaves_fillers(op: Op) -> None:
    order, owners, total = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.ones(2).int()
    weights, ids = torch.ones(4), torch.empty(0, 2, dtype=torch.int32)
    op("aiter::moe_sorting_fwd")(ids, torch.empty(0, 2), order, weights, owners, total, torch.empty(0, 8), 3, 2)
    assert order.tolist() == [2 << 24] * 4
    assert weights.tolist() == [0.0] * 4
    assert owners.tolist() == [-1, -1]
    assert total.tolist() == [0, 0]


def experts(hidden: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """SwiGLU experts, one token and one choice at a time."""
    out = torch.zeros(hidden.shape[0], w2.shape[1], dtype=torch.float64)
    for token in range(hidden.shape[0]):
        for slot in range(ids.shape[1]):
            expert = int(ids[token, slot])
            if expert < 0:
                continue
            gate, up = (w1[expert].double() @ hidden[token].double()).chunk(2)
            inner = gate / (1 + torch.exp(-gate)) * up
            out[token] += weights[token, slot].double() * (w2[expert].double() @ inner)
    return out


def problem(tokens: int = 7, count: int = 5, topk: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    ids = torch.stack([torch.randperm(count)[:topk] for _ in range(tokens)]).to(torch.int32)
    return torch.randn(tokens, 8), torch.randn(count, 12, 8), torch.randn(count, 8, 6), torch.rand(tokens, topk), ids


@pytest.mark.parametrize(
    "name",
    [
        "vllm::outplace_fused_experts",
        "vllm::fused_experts",
        "sglang::outplace_fused_experts",
        "vllm::rocm_aiter_fused_moe",
        "aiter::fused_moe_",
    ],
)
def test_fused_experts(op: Op, name: str) -> None:
    arguments = problem()
    close(op(name)(*arguments), experts(*arguments), 1e-4)


def test_fused_experts_in_place_and_with_an_expert_map(op: Op) -> None:
    hidden, w1, w2, weights, ids = problem()
    written = hidden.clone()
    op("vllm::inplace_fused_experts")(written, w1, w2, weights, ids)
    close(written, experts(hidden, w1, w2, weights, ids), 1e-4)
    mapping = torch.tensor([-1, 1, 0, -1, -1], dtype=torch.int32)
    found = op("vllm::outplace_fused_experts")(hidden, w1[:2], w2[:2], weights, ids, expert_map=mapping)
    close(found, experts(hidden, w1[:2], w2[:2], weights, mapping[ids.long()]), 1e-4)


def test_fp8_experts_with_block_scales(op: Op) -> None:
    hidden, _, _, weights, ids = problem()
    hidden = torch.randn(7, 256)
    w1, w2 = torch.randn(5, 256, 256).to(torch.float8_e4m3fn), torch.randn(5, 256, 128).to(torch.float8_e4m3fn)
    s1, s2 = torch.rand(5, 2, 2) / 50, torch.rand(5, 2, 1) / 50
    found = op("vllm::outplace_fused_experts")(
        hidden, w1, w2, weights, ids, use_fp8_w8a8=True, w1_scale=s1, w2_scale=s2, block_shape=[128, 128]
    )
    d1 = w1.float() * s1.repeat_interleave(128, 1).repeat_interleave(128, 2)
    d2 = w2.float() * s2.repeat_interleave(128, 1).repeat_interleave(128, 2)
    close(found, experts(hidden, d1, d2, weights, ids), 1e-3)


@pytest.mark.parametrize("weigh", [1, 2])
def test_aiter_sorting_and_both_stages(op: Op, weigh: int) -> None:
    hidden, w1, w2, weights, ids = problem()
    block, count = 4, 5
    length = 14 + count * block - 2
    order = torch.full((length,), -7, dtype=torch.int32)
    sorted_weights, total = torch.empty(length), torch.zeros(2, dtype=torch.int32)
    owners, out = torch.full((-(-length // block),), -7, dtype=torch.int32), torch.ones(7, 8)
    op("aiter::moe_sorting_fwd")(ids, weights, order, sorted_weights, owners, total, out, count, block)
    assert not out.any()
    assert total[1] == 7
    used = int(total[0])
    for place, packed in enumerate(order[:used].tolist()):
        slot, token = packed >> 24, packed & 0xFFFFFF
        if packed == (2 << 24) | 7:
            assert sorted_weights[place] == 0
            continue
        assert ids[token, slot] == owners[place // block]
        assert sorted_weights[place] == weights[token, slot]
    assert (order[used:] == (2 << 24) | 7).all()
    assert (owners[used // block :] == -1).all()
    inner = torch.zeros(7, 2, 6)
    first, second = (sorted_weights, None) if weigh == 1 else (None, sorted_weights)
    op("aiter::ck_moe_stage1")(hidden, w1, w2, order, owners, total, inner, 2, block_m=block, sorted_weights=first)
    op("aiter::ck_moe_stage2")(inner, w1, w2, order, owners, total, out, 2, block_m=block, sorted_weights=second)
    close(out, experts(hidden, w1, w2, weights, ids), 1e-4)


def test_zero_routing_does_no_work_in_the_stages(op: Op) -> None:
    hidden, w1, w2, _, _ = problem()
    zeros, out = torch.zeros(20, dtype=torch.int32), torch.zeros(7, 2, 6)
    op("aiter::ck_moe_stage1")(hidden, w1, w2, zeros, zeros, zeros[:2], out, 2)
    assert not out.any()
    with pytest.raises(ValueError, match="num_valid_ids"):
        op("aiter::ck_moe_stage1")(hidden, w1, w2, zeros, zeros, torch.tensor([99, 7]), out, 2)


@pytest.mark.parametrize(("kind", "groups"), [(0, [3, 3, 7]), (1, [3, 0, 4]), (2, [[0, 3], [2, 4], [0, 0]])])
def test_npu_grouped_matmul(op: Op, kind: int, groups: list[Any]) -> None:
    x, weight = torch.randn(7, 8), torch.randn(3, 8, 4)
    wanted = torch.cat((x[:3] @ weight[0], x[3:] @ weight[2]))
    for weights in ([weight], list(weight)):
        found = op("npu::npu_grouped_matmul")(
            [x], weights, group_list=torch.tensor(groups), split_item=3, group_type=0, group_list_type=kind
        )
        close(found[0], wanted)
    if kind == 0:
        found = op("npu::npu_grouped_matmul").List([x], [weight], group_list=groups, split_item=2, group_type=0)
        close(found[0], wanted)
    with pytest.raises(ValueError, match="group ends"):
        op("npu::npu_grouped_matmul")([x], [weight], group_list=torch.tensor([9, 9, 9]), split_item=3, group_type=0)


def test_moe_forward_routes_every_token(op: Op) -> None:
    hidden, logits = torch.randn(9, 16), torch.randn(9, 4)
    out = op("vllm::moe_forward")(hidden, logits, None, "")
    assert out.shape == hidden.shape
    assert out.abs().sum(1).gt(0).all()
    # One pair of matrices stands for every expert and the weights add up to one: the choice cannot matter.
    close(out, op("vllm::moe_forward")(hidden, logits.flip(1), None, ""), 1e-4)
    shared, routed = op("vllm::moe_forward_shared")(hidden, logits, None, "")
    close(shared, routed, 1e-4)
