"""Experts are drawn without replacement and laid out as each library wants them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.initializers.base import InitContext, InitializerError
from opreplay.initializers.draws.expert_choice import choose_experts, probabilities, sort_by_expert
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.experts.reference_aiter import ck_moe_stage1
from opreplay.replay.ops.experts.reference_vllm_layers import fused as outplace_fused_experts
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.errors import UsageError


def initialize(op: str, args: dict[str, Any], *options: str, seed: int = 0) -> Any:
    registry = built_in()
    registry.configure([f"moe_routing.{option}" for option in options])
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(seed), seed=seed, run_seed=seed)
    return registry.apply(registry["moe_routing"], context)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 300), st.sampled_from([0.0, 1.0, 3.0]))
@settings(max_examples=40, deadline=None)
def test_no_token_meets_an_expert_twice(experts: int, topk: int, tokens: int, exponent: float) -> None:
    topk = min(topk, experts)
    chance = probabilities(experts, "zipf", exponent, "")
    ids = choose_experts(tokens, topk, chance, torch.Generator().manual_seed(0))
    assert ids.shape == (tokens, topk)
    assert (ids.sort(-1).values.diff(dim=-1) > 0).all()
    assert 0 <= int(ids.min()) <= int(ids.max()) < experts


@pytest.mark.parametrize(("tokens", "topk"), [(0, 2), (3, 0), (0, 0)])
def test_without_tokens_or_slots_nothing_is_drawn(tokens: int, topk: int) -> None:
    for chance in (probabilities(4, "uniform", 0.0, ""), torch.empty(0, dtype=torch.float64)):
        assert choose_experts(tokens, topk, chance, torch.Generator()).shape == (tokens, topk)
    args = {"topk_ids": torch.empty(tokens, topk, dtype=torch.int32), "num_experts": 4}
    initialize("_moe_C::moe_align_block_size", args)


def test_distributions() -> None:
    even, skewed = (
        torch.bincount(choose_experts(4000, 2, probabilities(16, kind, 1.2, ""), torch.Generator()).flatten())
        for kind in ("uniform", "zipf")
    )
    assert even.max() < 1.3 * even.min()
    assert skewed[0] > 4 * skewed[-1]


def test_histogram(tmp_path: Path) -> None:
    file = tmp_path / "counts.json"
    file.write_text(json.dumps([5, 0, 5, 0]))
    args = experts(tokens=30, topk=2, count=4)
    initialize("vllm::outplace_fused_experts", args, "distribution=histogram", f"histogram={file}")
    assert set(args["topk_ids"].unique().tolist()) == {0, 2}
    file.write_text("[1, 2]")
    with pytest.raises(InitializerError, match="2 experts, but the op has 4"):
        initialize("vllm::outplace_fused_experts", args, "distribution=histogram", f"histogram={file}")


def experts(tokens: int, topk: int, count: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(tokens, 16),
        "w1": torch.randn(count, 24, 16),
        "w2": torch.randn(count, 16, 12),
        "topk_weights": torch.zeros(tokens, topk),
        "topk_ids": torch.zeros(tokens, topk, dtype=torch.int32),
    }


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_fused_experts_equal_a_dense_mixture(distribution: str) -> None:
    args = experts(40, 3, 8)
    rest = {
        "activation": "silu",
        "apply_router_weight_on_input": False,
        "use_int4_w4a16": False,
        "expert_map": None,
        "w1_scale": None,
        "w2_scale": None,
    }
    assert not outplace_fused_experts(Call(**args, **rest)).any(), "zeros give every expert no weight"
    initialize("vllm::outplace_fused_experts", args, f"distribution={distribution}")
    assert args["topk_ids"].unique().numel() > 3
    dense = torch.zeros(40, 16)
    for expert in range(8):
        inner = args["hidden_states"] @ args["w1"][expert].T
        made = (torch.nn.functional.silu(inner[:, :12]) * inner[:, 12:]) @ args["w2"][expert].T
        weight = (args["topk_weights"] * (args["topk_ids"] == expert)).sum(1, keepdim=True)
        dense += weight * made
    torch.testing.assert_close(outplace_fused_experts(Call(**args, **rest)), dense, rtol=1e-4, atol=1e-4)


def stage(tokens: int, topk: int, count: int, block: int, length: int) -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(tokens, 16),
        "w1": torch.randn(count, 24, 16),
        "w2": torch.randn(count, 16, 12),
        "sorted_token_ids": torch.zeros(length, dtype=torch.int32),
        "sorted_expert_ids": torch.zeros(length // block, dtype=torch.int32),
        "num_valid_ids": torch.zeros(2, dtype=torch.int32),
        "out": torch.zeros(tokens, topk, 12),
        "topk": topk,
        "block_m": block,
    }


def run_stage(args: dict[str, Any]) -> torch.Tensor:
    rest = {name: value for name, value in args.items() if name != "w2"}
    ck_moe_stage1(Call(**rest, w1_scale=None, a1_scale=None, sorted_weights=None, activation=0))
    return args["out"]


def test_aiter_packing() -> None:
    tokens, topk, count, block = 50, 3, 8, 16
    args = stage(tokens, topk, count, block, 272)
    assert not run_stage(args).any(), "zeros are no valid ids"
    initialize("aiter::ck_moe_stage1", args)
    valid = int(args["num_valid_ids"][0])
    packed = args["sorted_token_ids"].long()
    token, slot = packed & 0xFFFFFF, packed >> 24
    real = token < tokens
    assert valid % block == 0
    assert int(args["num_valid_ids"][1]) == tokens
    assert (packed[~real] == (topk << 24 | tokens)).all()
    assert sorted((token * topk + slot)[real].tolist()) == list(range(tokens * topk))
    owner = args["sorted_expert_ids"].long()
    assert (owner[valid // block :] == -1).all()
    assert (owner[: valid // block].diff() >= 0).all()
    pairs = torch.stack((token[real], owner.repeat_interleave(block)[real]), 1)
    assert len(pairs.unique(dim=0)) == tokens * topk, "no token meets an expert twice"
    assert run_stage(args).abs().sum(-1).min() > 0


def test_capacity_overflow_is_reported() -> None:
    args = stage(50, 3, 8, 16, 64)
    report = initialize("aiter::ck_moe_stage1", args)
    assert "dropped" in report.assumed["capacity"]
    assert int(args["num_valid_ids"][0]) <= 64


def test_grouped_matmul_gets_ends_or_counts() -> None:
    for kind, total in ((0, lambda g: g[-1]), (1, lambda g: g.sum())):
        args = {
            "x": [torch.zeros(90, 4)],
            "weight": [torch.zeros(6, 4, 4)],
            "group_list": torch.zeros(6, dtype=torch.int64),
            "group_list_type": kind,
        }
        initialize("npu::npu_grouped_matmul", args, "distribution=zipf")
        assert int(total(args["group_list"])) == 90
        assert (args["group_list"].diff() >= 0).all() == (kind == 0)


def test_router_scores_follow_the_distribution() -> None:
    args = {"gating_output": torch.zeros(3000, 8), "topk_weights": torch.zeros(3000, 2)}
    initialize("_moe_C::topk_softmax", args, "distribution=zipf", "exponent=2")
    counts = torch.bincount(args["gating_output"].topk(2).indices.flatten(), minlength=8)
    assert counts[0] > 5 * counts[-1]


def test_seeds() -> None:
    made = []
    for seed in (0, 0, 1):
        args = experts(40, 3, 8)
        initialize("vllm::outplace_fused_experts", args, seed=seed)
        made.append(args["topk_ids"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_a_large_batch_takes_no_loop_over_tokens() -> None:
    started = time.thread_time()
    ids = choose_experts(100_000, 8, probabilities(128, "zipf", 1.0, ""), torch.Generator())
    sort_by_expert(ids, 128, 32, 900_000, 900_000 // 32, 800_000)
    assert time.thread_time() - started < 3.0


@pytest.mark.parametrize(
    "bad",
    ["distribution=gauss", "exponent=-1", "exponent=nan", "exponent=x", "colour=red", "distribution"],
)
def test_settings_are_checked_before_anything_runs(bad: str) -> None:
    with pytest.raises(UsageError):
        built_in().configure([f"moe_routing.{bad}"])


def test_settings_of_unknown_initializers_and_repeated_ones() -> None:
    with pytest.raises(UsageError, match="unknown initializer"):
        built_in().configure(["nobody.a=1"])
    with pytest.raises(UsageError, match="twice"):
        built_in().configure(["moe_routing.exponent=1", "moe_routing.exponent=2"])


def test_numbers_of_experts_that_no_model_has_are_refused_at_once() -> None:
    args = {**experts(tokens=30, topk=2, count=4), "global_num_experts": 1 << 24}
    with pytest.raises(InitializerError, match="16777216 experts exceed the limit"):
        initialize("vllm::outplace_fused_experts", args)
    with pytest.raises(InitializerError, match="600 experts per token exceed the limit"):
        choose_experts(10, 600, probabilities(4096, "uniform", 0.0, ""), torch.Generator())
