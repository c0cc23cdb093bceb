"""Attention on zeros attends to nothing; initialized, to exactly what the batch context says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.initializers.base import BatchLengths, InitContext
from opreplay.replay.ops.table import work_of
from opreplay.traces.links.annotations import BatchContext, batch_context

MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")
DECODE = BatchContext(prefill_sequences=0, decode_sequences=6, decode_tokens=6, decode_k=110)
PREFILL = BatchContext(prefill_sequences=3, prefill_tokens=48, prefill_k=48, decode_sequences=0)
CASES = [
    pytest.param(DECODE, 6, 6, 110, 6, id="decode"),
    pytest.param(PREFILL, 48, 3, 48, 48, id="prefill"),
    pytest.param(MIXED, 48, 6, 130, 48, id="mixed"),
]


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def varlen(tokens: int, sequences: int) -> dict[str, Any]:
    return {
        "q": torch.zeros(tokens, 4, 8),
        "k": torch.zeros(64, 4, 2, 8),
        "v": torch.zeros(64, 4, 2, 8),
        "out": None,
        "cu_seqlens_q": ints(sequences + 1),
        "cu_seqlens_k": ints(sequences + 1),
        "seqused_k": ints(sequences),
        "block_table": ints(sequences, 16),
        "is_causal": True,
    }


def page_lists(tokens: int, sequences: int) -> dict[str, Any]:
    return {
        "q": torch.zeros(tokens, 4, 8),
        "k": torch.zeros(300, 2, 8),
        "v": torch.zeros(300, 2, 8),
        "cu_seqlens_q": ints(sequences + 1),
        "kv_indptr": ints(sequences + 1),
        "kv_page_indices": ints(140),
        "is_causal": True,
    }


def vllm_v1(tokens: int, sequences: int) -> dict[str, Any]:
    return {
        "out": torch.zeros(tokens, 4, 8),
        "query": torch.zeros(tokens, 4, 8),
        "key_cache": torch.zeros(40, 2, 2, 4, 4),
        "value_cache": torch.zeros(40, 2, 8, 4),
        "block_tables": ints(sequences, 8),
        "seq_lens": ints(sequences),
        "block_size": 4,
        "max_seq_len": 30,
    }


@pytest.mark.parametrize(("batch", "tokens", "sequences", "context", "new"), CASES)
@pytest.mark.parametrize(
    ("op", "make"),
    [
        ("_vllm_fa2_C::varlen_fwd", varlen),
        ("aiter::mha_batch_prefill", page_lists),
        ("sglang_profiler::mha__mha_batch_prefill", page_lists),
    ],
)
def test_totals_are_those_of_the_batch(
    op: str, make: Any, batch: Any, tokens: int, sequences: int, context: int, new: int, before: Any, after: Any
) -> None:
    args = make(tokens, sequences)
    idle = before(op, args)
    assert idle.idle
    assert idle.amounts[0].done == 0
    done = after(op, args, batch=batch)
    assert [a.what for a in done.amounts[:2]] == ["context tokens", "query tokens"]
    assert (done.amounts[0].done, done.amounts[1].done, done.amounts[1].most) == (context, new, tokens)
    assert not done.idle
    assert not done.warnings


def test_the_most_is_what_the_block_tables_hold(before: Any, after: Any) -> None:
    args = vllm_v1(6, 6)
    assert before("_C::paged_attention_v1", args).idle
    done = after("_C::paged_attention_v1", args, batch=DECODE)
    assert (done.amounts[0].done, done.amounts[0].most) == (110, 6 * 30)
    pages = done.amounts[-1]
    assert (pages.what, pages.done, pages.most) == ("pages", int(((args["seq_lens"] + 3) // 4).sum()), 40)


@pytest.mark.parametrize("distribution", ["max", "uniform", "lognormal"])
def test_lengths_without_a_batch(distribution: str, after: Any) -> None:
    args = vllm_v1(6, 6)
    done = after("_C::paged_attention_v1", args, f"distribution={distribution}")
    assert done.amounts[0].done == int(args["seq_lens"].sum())
    assert not done.idle


def test_layers_get_their_lengths_around_the_call(after: Any) -> None:
    args = {"query": torch.zeros(48, 4, 8), "key": torch.zeros(48, 2, 8), "value": torch.zeros(48, 2, 8)}
    done = after("vllm::unified_attention", args, batch=MIXED)
    assert (done.amounts[0].done, done.amounts[0].most, done.amounts[1].done) == (130, None, 48)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_pairs_are_those_of_a_causal_mask(sequences: list[tuple[int, int]]) -> None:
    query, kv = [q for q, _ in sequences], [q + old for q, old in sequences]
    context = InitContext(
        op="vllm::unified_attention",
        args={"query": torch.zeros(max(1, sum(query)), 2, 4)},
        generator=torch.Generator(),
    )
    done = work_of(context, BatchLengths(query=tuple(query), kv=tuple(kv)))
    assert done is not None
    naive = sum(k - (q - 1 - row) for q, k in zip(query, kv, strict=True) for row in range(q))
    assert done.amounts[2].done == naive
    assert done.amounts[0].done == sum(k for q, k in zip(query, kv, strict=True) if q)


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "TND"])
def test_lists_of_lengths(layout: str) -> None:
    shape = {"BSH": (2, 10, 32), "BNSD": (2, 4, 10, 8), "TND": (17, 4, 8)}[layout]
    args = {
        "query": torch.zeros(shape),
        "key": torch.zeros(shape),
        "value": torch.zeros(shape),
        "input_layout": layout,
        "actual_seq_lengths": [7, 17] if layout == "TND" else [7, 10],
        "actual_seq_lengths_kv": [7, 17] if layout == "TND" else [7, 10],
    }
    op = "npu::npu_fused_infer_attention_score"
    done = work_of(InitContext(op=op, args=args, generator=torch.Generator()))
    assert done is not None
    assert [a.done for a in done.amounts[:2]] == [17, 17]
    assert done.amounts[1].most == (17 if layout == "TND" else 20)


def test_what_is_wrong_with_tables_is_said() -> None:
    args = vllm_v1(3, 3)
    args["seq_lens"] += 20

    def warnings() -> tuple[str, ...]:
        done = work_of(InitContext(op="_C::paged_attention_v1", args=args, generator=torch.Generator()))
        assert done is not None
        return done.warnings

    assert "the same page number" in warnings()[0]
    args["block_tables"] += 40
    assert "outside the cache of 40" in warnings()[0]
    args["seq_lens"] += 20
    assert "longer than the limit of 30 tokens" in warnings()[0]


@pytest.mark.parametrize("op", ["_C_cache_ops::reshape_and_cache_flash", "sglang::store_cache"])
def test_cache_slots(op: str, before: Any, after: Any) -> None:
    sglang = op.startswith("sglang")
    cache = torch.zeros(256, 16) if sglang else torch.zeros(64, 4, 2, 8)
    names = ("k_cache", "v_cache", "indices") if sglang else ("key_cache", "value_cache", "slot_mapping")
    args = {
        "key": torch.zeros(48, 2, 8),
        "value": torch.zeros(48, 2, 8),
        names[0]: cache,
        names[1]: cache.clone(),
        names[2]: torch.zeros(48, dtype=torch.int64),
    }
    assert before(op, args).idle
    done = after(op, args, batch=MIXED)
    assert (done.amounts[0].done, done.amounts[0].most, done.warnings) == (48, 48, ())
