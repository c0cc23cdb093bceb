"""Lists for serving kernels: every token, row, slot and group takes part."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.serving_lists import _pieces
from opreplay.replay.ops.inputs import built_in


def run(op: str, **args: Any) -> str:
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(3), seed=3)
    rule = built_in().find(context)
    assert rule is not None
    rule.initialize(context)
    return rule.name


@pytest.mark.parametrize("name", ["token_lora_mapping", "lora_indices_tensor"])
def test_tokens_have_adapters(name: str) -> None:
    which = torch.full((200,), -1)
    op = "vllm::lora_shrink" if name.startswith("token") else "vllm::bgmv_shrink"
    weights = torch.empty(4, 8, 16)
    given = [weights] if op == "vllm::lora_shrink" else weights
    assert run(op, inputs=torch.empty(200, 16), lora_a_weights=given, **{name: which}) == "lora_adapters"
    assert which.unique().tolist() == [0, 1, 2, 3]


def test_sequences_of_adapters_cover_all_tokens() -> None:
    lengths, starts = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    run(
        "vllm::sgmv_shrink",
        inputs=torch.empty(10, 16),
        lora_a_weights=[torch.empty(4, 8, 16)],
        lora_indices_tensor=torch.zeros(3).long(),
        seq_len_tensor=lengths,
        b_seq_start_loc=starts,
    )
    assert int(lengths.sum()) == 10
    assert starts.tolist() == [0, int(lengths[0]), int(lengths[:2].sum())]


def test_states_have_slots_of_their_own() -> None:
    slots, edges, started = torch.zeros(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), torch.zeros(3).bool()
    run(
        "_C::causal_conv1d_fwd",
        x=torch.empty(6, 11),
        conv_states=torch.empty(8, 6, 3),
        cache_indices=slots,
        query_start_loc=edges,
        has_initial_state=started,
    )
    assert slots.unique().numel() == 3
    assert edges[0] == 0
    assert edges[-1] == 11
    assert started.all()


def test_rows_are_searched_to_their_end() -> None:
    starts, ends = torch.ones(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    assert run("_C::top_k_per_row_prefill", logits=torch.empty(4, 30), rowStarts=starts, rowEnds=ends) == "row_limits"
    assert starts.tolist() == [0] * 4
    assert ends.tolist() == [30] * 4


def test_groups_hold_all_rows() -> None:
    sizes, offsets = torch.zeros(3, 3, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    run(
        "_C::cutlass_moe_mm",
        out_tensors=torch.empty(10, 6),
        a_tensors=torch.empty(10, 4),
        problem_sizes=sizes,
        expert_offsets=offsets,
    )
    assert int(sizes[:, 0].sum()) == 10
    assert sizes[:, 1:].tolist() == [[6, 4]] * 3
    assert offsets[0] == 0


@pytest.mark.parametrize(("given", "wanted", "count"), [([3, 4], [5, 2], 4), ([4], [4], 1), ([2, 2], [1, 3], 9)])
def test_regrouped_columns_stay_inside(given: list[int], wanted: list[int], count: int) -> None:
    pieces = _pieces(given, wanted, count)
    assert len(pieces) == count
    for source, target, start, stop, width in pieces:
        assert start + width <= given[source]
        assert stop + width <= wanted[target]
    permutes = torch.zeros(count, 6, dtype=torch.int32)
    tensors = [torch.empty(2, n) for n in given]
    run("fbgemm::permute_multi_embedding", pooled_embs=tensors, permutes=permutes, out_lengths=wanted)
    assert [tuple(row[:5]) for row in permutes.tolist()] == pieces
