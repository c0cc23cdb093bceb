"""Paged attention does the work that its batch stands for, on blocks of its own."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.initializers.draws.paging import Pool, page_list
from opreplay.replay.ops.attention.reference_aiter import mha_batch_prefill
from opreplay.replay.ops.attention.reference_flash import vllm_varlen_fwd
from opreplay.replay.ops.attention.reference_vllm import paged_attention
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.links.annotations import BatchContext, batch_context

REGISTRY = built_in()
MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")
DECODE = BatchContext(prefill_sequences=0, decode_sequences=6, decode_tokens=6, decode_k=110)
PREFILL = BatchContext(prefill_sequences=3, prefill_tokens=48, prefill_k=48, decode_sequences=0)


def initialize(op: str, args: dict[str, Any], batch: BatchContext | None = None, seed: int = 0, **options: Any) -> Any:
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(seed), run_seed=seed, batch=batch)
    rule = REGISTRY.find(context)
    assert rule is not None
    for name, value in options.items():
        registry = built_in()
        registry.configure([f"{rule.name}.{name}={value}"])
        return registry.apply(rule, context)
    return REGISTRY.apply(rule, context)


def varlen(tokens: int, sequences: int, pool: int = 64, width: int = 16) -> dict[str, Any]:
    return {
        "q": torch.randn(tokens, 4, 8),
        "k": torch.randn(pool, 4, 2, 8),
        "v": torch.randn(pool, 4, 2, 8),
        "out": None,
        "cu_seqlens_q": torch.zeros(sequences + 1, dtype=torch.int32),
        "cu_seqlens_k": torch.zeros(sequences + 1, dtype=torch.int32),
        "seqused_k": torch.zeros(sequences, dtype=torch.int32),
        "leftpad_k": None,
        "block_table": torch.zeros(sequences, width, dtype=torch.int32),
        "alibi_slopes": None,
        "p_dropout": 0.0,
        "softmax_scale": 8**-0.5,
        "is_causal": True,
        "window_size_left": -1,
        "window_size_right": -1,
        "softcap": 0.0,
    }


def naive(args: dict[str, Any]) -> torch.Tensor:
    """Each query row on its own, straight from the definition."""
    q, k, v = args["q"], args["k"].flatten(0, 1), args["v"].flatten(0, 1)
    out = torch.zeros_like(q)
    for i in range(len(args["seqused_k"])):
        first, last = args["cu_seqlens_q"][i].item(), args["cu_seqlens_q"][i + 1].item()
        length = args["seqused_k"][i].item()
        slots = torch.tensor([args["block_table"][i, t // 4].item() * 4 + t % 4 for t in range(length)])
        for row in range(first, last):
            seen = slots[: length - (last - 1 - row)]
            keys, values = (x[seen].repeat_interleave(2, 1) for x in (k, v))
            weights = torch.einsum("hd,thd->ht", q[row], keys).mul(8**-0.5).softmax(-1)
            out[row] = torch.einsum("ht,thd->hd", weights, values)
    return out


@pytest.mark.parametrize(("batch", "tokens", "sequences"), [(MIXED, 48, 6), (DECODE, 6, 6), (PREFILL, 48, 3)])
def test_varlen_attention_equals_the_definition(batch, tokens: int, sequences: int) -> None:
    args = varlen(tokens, sequences)
    zeros = vllm_varlen_fwd(Call(**args))[0]
    assert not zeros.any(), "zeros attend to nothing"
    initialize("_vllm_fa2_C::varlen_fwd", args, batch)
    assert int(args["cu_seqlens_q"][-1]) == (batch.prefill_tokens or 0) + (batch.decode_tokens or 0)
    assert int(args["seqused_k"].sum()) == (batch.prefill_k or 0) + (batch.decode_k or 0)
    torch.testing.assert_close(vllm_varlen_fwd(Call(**args))[0], naive(args))


def test_no_block_is_shared_while_the_pool_lasts() -> None:
    args = varlen(48, 6)
    initialize("_vllm_fa2_C::varlen_fwd", args, MIXED)
    needed = (args["seqused_k"] + 3) // 4
    used = torch.cat([args["block_table"][i, : needed[i]] for i in range(6)])
    assert len(used.unique()) == len(used) == int(needed.sum())
    assert (used.diff() != 1).any()
    small = varlen(48, 6, pool=10)
    report = initialize("_vllm_fa2_C::varlen_fwd", small, MIXED)
    assert int(small["block_table"].max()) < 10
    assert "each used" in report.assumed["block_table"]


def paged(sequences: int, width: int = 8) -> dict[str, Any]:
    return {
        "out": torch.zeros(sequences, 4, 8),
        "query": torch.randn(sequences, 4, 8),
        "key_cache": torch.randn(40, 2, 2, 4, 4),
        "value_cache": torch.randn(40, 2, 8, 4),
        "num_kv_heads": 2,
        "scale": 8**-0.5,
        "block_tables": torch.zeros(sequences, width, dtype=torch.int32),
        "seq_lens": torch.zeros(sequences, dtype=torch.int32),
        "block_size": 4,
        "max_seq_len": 30,
        "alibi_slopes": None,
        "kv_cache_dtype": "auto",
        "k_scale": torch.zeros(1),
        "v_scale": torch.zeros(1),
        "blocksparse_vert_stride": 0,
    }


def run_paged(args: dict[str, Any]) -> torch.Tensor:
    left_out = ("num_kv_heads", "block_size", "max_seq_len")
    paged_attention(Call(**{name: value for name, value in args.items() if name not in left_out}))
    return args["out"]


def test_paged_decode_works_only_when_initialized() -> None:
    args = paged(6)
    assert not run_paged(args).any()
    initialize("_C::paged_attention_v1", args, DECODE)
    assert int(args["seq_lens"].sum()) == 110
    assert args["k_scale"] > 0
    assert run_paged(args).abs().sum(dim=(1, 2)).min() > 0


def test_decode_half_of_a_mixed_batch() -> None:
    args = paged(4, width=20)
    args["max_seq_len"] = 64
    initialize("_C::paged_attention_v1", args, MIXED)
    assert int(args["seq_lens"].sum()) == 70


@pytest.mark.parametrize("distribution", ["max", "uniform", "lognormal"])
def test_lengths_without_a_batch(distribution: str) -> None:
    args = paged(6)
    report = initialize("_C::paged_attention_v1", args, distribution=distribution)
    assert distribution in report.assumed["sequences"]
    lengths = args["seq_lens"]
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 30
    assert (int(lengths.min()) == 30) == (distribution == "max")


def test_page_lists() -> None:
    sequences, tokens = 6, 48
    args = {
        "q": torch.randn(tokens, 4, 8),
        "k": torch.randn(300, 2, 8),
        "v": torch.randn(300, 2, 8),
        "cu_seqlens_q": torch.zeros(sequences + 1, dtype=torch.int32),
        "kv_indptr": torch.zeros(sequences + 1, dtype=torch.int32),
        "kv_page_indices": torch.zeros(140, dtype=torch.int32),
    }
    rest = {"dropout_p": 0.0, "softmax_scale": 0.3, "logits_soft_cap": 0.0, "is_causal": True, "out": None}
    rest |= {"window_size_left": -1, "window_size_right": -1, "return_softmax_lse": False, "alibi_slopes": None}
    assert not mha_batch_prefill(Call(**args, **rest))[0].any()
    initialize("aiter::mha_batch_prefill", args, MIXED)
    assert int(args["kv_indptr"][-1]) == 130
    assert len(args["kv_page_indices"][:130].unique()) == 130
    assert mha_batch_prefill(Call(**args, **rest))[0].abs().sum(dim=(1, 2)).min() > 0


def test_new_tokens_go_where_the_block_tables_say() -> None:
    args = varlen(48, 6)
    initialize("_vllm_fa2_C::varlen_fwd", args, MIXED)
    write = {
        "key": torch.randn(48, 2, 8),
        "value": torch.randn(48, 2, 8),
        "key_cache": args["k"],
        "value_cache": args["v"],
        "slot_mapping": torch.zeros(48, dtype=torch.int64),
    }
    initialize("_C_cache_ops::reshape_and_cache_flash", write, MIXED)
    expected = []
    for i in range(6):
        new = int(args["cu_seqlens_q"][i + 1] - args["cu_seqlens_q"][i])
        seen = int(args["seqused_k"][i])
        expected += [int(args["block_table"][i, t // 4]) * 4 + t % 4 for t in range(seen - new, seen)]
    assert write["slot_mapping"].tolist() == expected


def test_layers_without_lengths_get_them_around_the_call() -> None:
    args = {"query": torch.zeros(48, 4, 8), "key": torch.zeros(48, 2, 8), "value": torch.zeros(48, 2, 8)}
    lengths = initialize("vllm::unified_attention", args, MIXED).lengths
    assert lengths is not None
    assert (sum(lengths.query), sum(lengths.kv)) == (48, 130)
    assert initialize("vllm::unified_attention", args).lengths.query == (48,)


def test_seeds() -> None:
    made = []
    for seed in (0, 0, 1):
        args = varlen(48, 6)
        initialize("_vllm_fa2_C::varlen_fwd", args, MIXED, seed=seed)
        made.append(args["block_table"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.parametrize("blocks", [1, 7, 1000, (1 << 17) + 1, 1 << 20])
def test_pages_are_a_permutation(blocks: int) -> None:
    pool = Pool(blocks=blocks, page=1)
    count = min(blocks, 100_000)
    pages = page_list(pool, count, torch.Generator().manual_seed(1))
    assert len(pages.unique()) == count
    assert 0 <= int(pages.min()) <= int(pages.max()) < blocks


def test_a_large_batch_takes_no_loop_over_tokens() -> None:
    batch = BatchContext(
        prefill_sequences=200,
        prefill_tokens=100_000,
        prefill_k=400_000,
        decode_sequences=56,
        decode_tokens=56,
        decode_k=200_000,
    )
    args = {
        "q": torch.zeros(100_056, 1, 1),
        "k": torch.zeros(1 << 20, 1, 1),
        "v": torch.zeros(1 << 20, 1, 1),
        "cu_seqlens_q": torch.zeros(257, dtype=torch.int32),
        "kv_indptr": torch.zeros(257, dtype=torch.int32),
        "kv_page_indices": torch.zeros(600_000, dtype=torch.int32),
    }
    started = time.thread_time()
    initialize("aiter::mha_batch_prefill", args, batch)
    assert int(args["kv_indptr"][-1]) == 600_000
    assert time.thread_time() - started < 2.0
