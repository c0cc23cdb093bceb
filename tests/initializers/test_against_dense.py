"""What the initializers make of attention and MoE calls, run on the reference kernels, equals a naive dense one.

The dense side reads block tables, page lists and routes from the filled arguments alone, one token at a time.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import InitContext
from opreplay.replay.ops.attention.reference_aiter import mha_batch_prefill
from opreplay.replay.ops.attention.reference_vllm import paged_attention
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.experts.reference_aiter import ck_moe_stage1, ck_moe_stage2
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.maths.batch_layout import BatchLayout, batch_layout
from opreplay.traces.links.annotations import BatchContext, batch_context

MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")
DECODE = BatchContext(prefill_sequences=0, decode_sequences=6, decode_tokens=6, decode_k=110)
PREFILL = BatchContext(prefill_sequences=3, prefill_tokens=48, prefill_k=48, decode_sequences=0)
CASES = [
    pytest.param(DECODE, 6, 6, id="decode"),
    pytest.param(PREFILL, 48, 3, id="prefill"),
    pytest.param(MIXED, 48, 6, id="mixed"),
]
SCALE = 8**-0.5
HEADS, KV_HEADS, SIZE = 4, 2, 8


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def initialize(op: str, args: dict[str, Any], *settings: str, batch: BatchContext | None = None) -> Any:
    registry = built_in()
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(3), seed=3, run_seed=3, batch=batch)
    rule = registry.find(context)
    assert rule is not None
    registry.configure([f"{rule.name}.{setting}" for setting in settings])
    return registry.apply(rule, context)


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [heads, size] over keys and values [context, kv heads, size]."""
    wide = [x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values)]
    weights = torch.einsum("hd,thd->ht", q, wide[0]).mul(SCALE).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, wide[1])


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["max", "uniform", "lognormal"])
@pytest.mark.parametrize(("batch", "tokens", "sequences"), CASES)
def test_page_lists(batch: BatchContext, tokens: int, sequences: int, distribution: str) -> None:
    args = {
        "q": torch.randn(tokens, HEADS, SIZE),
        "k": torch.randn(300, KV_HEADS, SIZE),
        "v": torch.randn(300, KV_HEADS, SIZE),
        "cu_seqlens_q": ints(sequences + 1),
        "kv_indptr": ints(sequences + 1),
        "kv_page_indices": ints(140),
    }
    initialize("aiter::mha_batch_prefill", args, f"distribution={distribution}", batch=batch)
    rest = {"dropout_p": 0.0, "softmax_scale": SCALE, "logits_soft_cap": 0.0, "is_causal": True, "out": None}
    rest |= {"window_size_left": -1, "window_size_right": -1, "return_softmax_lse": False, "alibi_slopes": None}
    found = mha_batch_prefill(Call(**args, **rest))[0]
    wanted = torch.zeros_like(found)
    edges, starts = args["cu_seqlens_q"].tolist(), args["kv_indptr"].tolist()
    for i in range(sequences):
        slots = args["kv_page_indices"][starts[i] : starts[i + 1]].long()
        for row in range(edges[i], edges[i + 1]):
            seen = slots[: len(slots) - (edges[i + 1] - 1 - row)]
            wanted[row] = attend(args["q"][row], args["k"][seen], args["v"][seen])
    assert edges[-1] == tokens
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("distribution", ["max", "uniform", "lognormal"])
def test_packed_caches(distribution: str) -> None:
    page = 4
    args = {
        "out": torch.zeros(6, HEADS, SIZE),
        "query": torch.randn(6, HEADS, SIZE),
        "key_cache": torch.randn(40, KV_HEADS, 2, page, 4),
        "value_cache": torch.randn(40, KV_HEADS, SIZE, page),
        "scale": SCALE,
        "block_tables": ints(6, 8),
        "seq_lens": ints(6),
        "alibi_slopes": None,
        "kv_cache_dtype": "auto",
        "k_scale": torch.zeros(1),
        "v_scale": torch.zeros(1),
        "blocksparse_vert_stride": 0,
    }
    initialize("_C::paged_attention_v1", args, f"distribution={distribution}", batch=DECODE)
    args["k_scale"].fill_(1)
    args["v_scale"].fill_(1)
    paged_attention(Call(**args))
    keys = args["key_cache"].permute(0, 3, 1, 2, 4).reshape(40 * page, KV_HEADS, SIZE)
    values = args["value_cache"].permute(0, 3, 1, 2).reshape(40 * page, KV_HEADS, SIZE)
    for i, length in enumerate(args["seq_lens"].tolist()):
        table = args["block_tables"][i]
        slots = torch.tensor([int(table[t // page]) * page + t % page for t in range(length)])
        torch.testing.assert_close(args["out"][i], attend(args["query"][i], keys[slots], values[slots]))
    assert int(args["seq_lens"].sum()) == 110


@pytest.mark.parametrize(("batch", "tokens"), [(PREFILL, 48), (MIXED, 48), (DECODE, 6)])
def test_layers_without_lengths(batch: BatchContext, tokens: int) -> None:
    from opreplay.replay.ops import register as reference

    reference.register_namespace("vllm")
    args = {
        "query": torch.randn(tokens, HEADS, SIZE),
        "key": torch.randn(tokens, KV_HEADS, SIZE),
        "value": torch.randn(tokens, KV_HEADS, SIZE),
    }
    lengths = initialize("vllm::unified_attention", args, batch=batch).lengths
    with batch_layout(BatchLayout(query_lens=lengths.query, kv_lens=lengths.kv)):
        found = torch.ops.vllm.unified_attention(*args.values(), "")
    first = 0
    for new, seen in zip(lengths.query, lengths.kv, strict=True):
        # Without a cache at hand, what came before a sequence's new tokens is taken from those of the batch.
        places = torch.arange(first + new - seen, first + new) % tokens
        for row in range(new):
            held = places[: seen - (new - 1 - row)]
            wanted = attend(args["query"][first + row], args["key"][held], args["value"][held])
            torch.testing.assert_close(found[first + row], wanted)
        first += new
    assert first == tokens


TOKENS, TOPK, EXPERTS, WIDTH, INNER = 40, 3, 8, 16, 12


def dense(hidden: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, mixture: torch.Tensor) -> torch.Tensor:
    """Every token through every expert; mixture [tokens, experts] is 0 where it was not sent."""
    out = torch.zeros_like(hidden)
    for expert in range(EXPERTS):
        gate, up = (hidden @ w1[expert].T).chunk(2, -1)
        out += mixture[:, expert : expert + 1] * ((torch.nn.functional.silu(gate) * up) @ w2[expert].T)
    return out


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_both_stages(distribution: str) -> None:
    block, length = 16, 272
    hidden, inner = torch.randn(TOKENS, WIDTH), torch.zeros(TOKENS, TOPK, INNER)
    args = {
        "hidden_states": hidden,
        "w1": torch.randn(EXPERTS, 2 * INNER, WIDTH),
        "w2": torch.randn(EXPERTS, WIDTH, INNER),
        "sorted_token_ids": ints(length),
        "sorted_expert_ids": ints(length // block),
        "num_valid_ids": ints(2),
        "out": inner,
        "topk": TOPK,
        "block_m": block,
        "sorted_weights": torch.zeros(length),
    }
    initialize("aiter::ck_moe_stage1", args, f"distribution={distribution}")
    lists = {name: args[name] for name in ("sorted_token_ids", "sorted_expert_ids", "num_valid_ids")}
    same = {**lists, "topk": TOPK, "block_m": block}
    first = {"w1": args["w1"], "w1_scale": None, "a1_scale": None, "sorted_weights": None, "activation": 0}
    ck_moe_stage1(Call(hidden_states=hidden, out=inner, **same, **first))
    found = torch.zeros(TOKENS, WIDTH)
    second = {"w2": args["w2"], "w2_scale": None, "a2_scale": None, "sorted_weights": args["sorted_weights"]}
    ck_moe_stage2(Call(inter_states=inner, out=found, **same, **second))
    mixture = torch.zeros(TOKENS, EXPERTS)
    for place in range(int(args["num_valid_ids"][0])):
        token = int(args["sorted_token_ids"][place]) & 0xFFFFFF
        if token < TOKENS:
            mixture[token, int(args["sorted_expert_ids"][place // block])] += args["sorted_weights"][place]
    assert ((mixture > 0).sum(1) == TOPK).all()
    torch.testing.assert_close(mixture.sum(1), torch.ones(TOKENS))
    torch.testing.assert_close(found, dense(hidden, args["w1"], args["w2"], mixture), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
@pytest.mark.parametrize("kind", [0, 1])
def test_grouped_products(kind: int, distribution: str) -> None:
    from opreplay.replay.ops import register as reference

    reference.register_namespace("npu")
    args = {
        "x": [torch.randn(90, WIDTH)],
        "weight": [torch.randn(EXPERTS, WIDTH, INNER)],
        "group_list": torch.zeros(EXPERTS, dtype=torch.int64),
        "group_list_type": kind,
    }
    initialize("npu::npu_grouped_matmul", args, f"distribution={distribution}")
    (found,) = torch.ops.npu.npu_grouped_matmul(
        args["x"], args["weight"], group_list=args["group_list"], group_list_type=kind, group_type=0, split_item=3
    )
    ends = args["group_list"] if kind == 0 else args["group_list"].cumsum(0)
    wanted = torch.zeros(90, INNER)
    for row in range(90):
        wanted[row] = args["x"][0][row] @ args["weight"][0][int((ends <= row).sum())]
    assert int(ends[-1]) == 90
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
