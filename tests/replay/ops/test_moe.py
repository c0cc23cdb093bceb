"""MoE routing, sorting conventions and expert products of every library against loops over tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opreplay.replay.ops.maths.routing import align

Op = Callable[[str], Any]


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(st.integers(-1, 5), max_size=40),
    experts=st.integers(1, 6),
    block=st.sampled_from([1, 4, 16]),
)
def test_align_holds_every_id_once_in_its_experts_blocks(ids: list[int], experts: int, block: int) -> None:
    flat = torch.tensor(ids, dtype=torch.int64)
    length = -(-(len(ids) + experts * (block - 1)) // block) * block
    order, owners, total = align(flat, experts, block, len(ids), length)
    known = [i for i, expert in enumerate(ids) if 0 <= expert < experts]
    assert sorted(i for i in order.tolist() if i < len(ids)) == known
    number = [ids.count(expert) for expert in range(experts)]
    assert total.item() == sum(-(-n // block) * block for n in number)
    for place, index in enumerate(order.tolist()):
        if index < len(ids):
            assert owners[place // block].item() == ids[index]
    assert all(owner == -1 for owner in owners[total.item() // block :].tolist())


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


def test_sglang_align_shifts_ids_by_one(op: Op) -> None:
    ids = torch.tensor([[0, -1], [1, 0]], dtype=torch.int32)
    order, owners = torch.full((4 + 3 * 1,), -7, dtype=torch.int32), torch.full((4,), -7, dtype=torch.int32)
    total, sums = torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    op("sgl_kernel::moe_align_block_size")(ids, 3, 2, order, owners, total, sums, True)
    assert order.tolist() == [1, 4, 0, 3, 2, 4, 4]
    assert owners.tolist() == [-1, 0, 1, -1]
    assert total.item() == 6
    assert sums.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("name", ["_moe_C::topk_softmax", "vllm::rocm_aiter_topk_softmax", "aiter::topk_softmax"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_topk_softmax(op: Op, name: str, renormalize: bool) -> None:
    logits = torch.randn(6, 8)
    weights, ids, rows = torch.empty(6, 2), torch.empty(6, 2, dtype=torch.int32), torch.zeros(6, 2, dtype=torch.int32)
    op(name)(weights, ids, rows, logits, renormalize, *((None, None) if name.startswith("_moe") else ()))
    for token in range(6):
        chance = torch.exp(logits[token].double()) / torch.exp(logits[token].double()).sum()
        best = sorted(range(8), key=lambda e: -chance[e])[:2]
        assert ids[token].tolist() == best
        close(weights[token], chance[best] / (chance[best].sum() if renormalize else 1.0))
    # aiter leaves what is scratch to it.
    wanted = [[token, 6 + token] for token in range(6)] if name.startswith("_moe_C") else [[0, 0]] * 6
    assert rows.tolist() == wanted


def test_sorting_of_no_tokens_leaves_fillers(op: Op) -> None:
    order, owners, total = torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32), torch.ones(2).int()
    weights, ids = torch.ones(4), torch.empty(0, 2, dtype=torch.int32)
    op("aiter::moe_sorting_fwd")(ids, torch.empty(0, 2), order, weights, owners, total, torch.empty(0, 8), 3, 2)
    assert order.tolist() == [2 << 24] * 4
    assert weights.tolist() == [0.0] * 4
    assert owners.tolist() == [-1, -1]
    assert total.tolist() == [0, 0]


def deepseek(logits: Tensor, bias: Tensor, groups: int, keep: int, topk: int) -> tuple[list[list[int]], Tensor]:
    """The router of DeepSeek-V3, token by token."""
    chosen, weights = [], []
    for row in logits.double():
        scores = 1 / (1 + torch.exp(-row))
        choice = (scores + bias.double()).tolist()
        size = len(choice) // groups
        rank = sorted(range(groups), key=lambda g: -sum(sorted(choice[g * size : (g + 1) * size])[-2:]))[:keep]
        allowed = [e for e in range(len(choice)) if e // size in rank]
        best = sorted(allowed, key=lambda e: -choice[e])[:topk]
        chosen.append(best)
        weights.append(scores[best] / scores[best].sum())
    return chosen, torch.stack(weights)


def test_grouped_routers_agree_with_deepseek(op: Op) -> None:
    logits, bias = torch.randn(5, 16), torch.rand(16) / 10
    wanted_ids, wanted = deepseek(logits, bias, 4, 2, 3)
    weights, ids = op("_moe_C::grouped_topk")(logits, 4, 2, 3, True, 2.5, bias, 1)
    assert ids.tolist() == wanted_ids
    close(weights, wanted * 2.5)
    weights, ids = op("sgl_kernel::moe_fused_gate")(logits, bias, 4, 2, 3, 0, 2.5, True)
    assert ids.tolist() == wanted_ids
    close(weights, wanted * 2.5)
    weights, ids = torch.empty(5, 3), torch.empty(5, 3, dtype=torch.int32)
    op("aiter::biased_grouped_topk_hip")(logits, bias, weights, ids, 4, 2, True, 2.5)
    assert ids.tolist() == wanted_ids
    close(weights, wanted * 2.5)
    weights, ids, _ = op("npu::npu_moe_gating_top_k")(
        logits, 3, bias=bias, k_group=2, group_count=4, group_select_mode=1, norm_type=1, routed_scaling_factor=2.5
    )
    assert ids.tolist() == wanted_ids
    close(weights, wanted * 2.5)


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


def test_vllm_permute_and_unpermute(op: Op) -> None:
    hidden, _, _, weights, ids = problem()
    rows, first = torch.empty(14, 8), torch.empty(6, dtype=torch.int64)
    inverse, order = torch.empty(14, dtype=torch.int32), torch.empty(14, dtype=torch.int32)
    sources = torch.arange(14, dtype=torch.int32).reshape(7, 2)
    op("_moe_C::moe_permute")(hidden, ids, sources, None, 5, 5, 2, rows, first, inverse, order)
    experts_in_order = ids.flatten()[order.long()]
    assert torch.equal(experts_in_order, experts_in_order.sort().values)
    assert first.tolist() == [int((ids < expert).sum()) for expert in range(6)]
    assert torch.equal(rows, hidden[order.long() // 2])
    out = torch.empty(7, 8)
    op("_moe_C::moe_unpermute")(rows, weights, inverse, first, 2, out)
    close(out, hidden * weights.sum(1, keepdim=True))


def test_npu_routing_round_trips(op: Op) -> None:
    hidden, _, _, weights, ids = problem()
    slot_major = torch.arange(14, dtype=torch.int32).reshape(2, 7).t().contiguous()
    rows, place, ordered = op("npu::npu_moe_init_routing")(hidden, slot_major, ids, 7)
    assert torch.equal(ordered, ids.flatten().sort().values)
    found = op("npu::npu_moe_finalize_routing")(rows, None, None, None, weights, place, ids)
    close(found, hidden * weights.sum(1, keepdim=True))
    assert op("npu::npu_moe_compute_expert_tokens")(ordered, 5).tolist() == [int((ids <= e).sum()) for e in range(5)]
    rows, place, number, _ = op("npu::npu_moe_init_routing_v2")(
        hidden, ids, expert_num=5, expert_tokens_num_type=1, active_expert_range=[0, 5]
    )
    assert number.tolist() == [int((ids == e).sum()) for e in range(5)]
    found = op("npu::npu_moe_finalize_routing")(rows, None, None, None, weights, place, ids, 2)
    close(found, hidden * weights.sum(1, keepdim=True))
    rows, place = op("npu::npu_moe_token_permute")(hidden, ids)
    close(op("npu::npu_moe_token_unpermute")(rows, place, weights), hidden * weights.sum(1, keepdim=True))
    _, chosen, row_idx = op("npu::npu_moe_gating_top_k_softmax")(torch.randn(7, 5), None, 2)
    assert chosen.dtype == torch.int32
    assert torch.equal(row_idx, slot_major)


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
