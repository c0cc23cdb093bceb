"""A simulated device reads as much context as the batch or the arguments say, and skewed routing costs it time."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from opreplay.replay.ascend import explain_op, load_device, lower, simulate_op
from opreplay.replay.ascend.simulate.op import is_predicted
from opreplay.replay.ir.model import LayerEvidence
from opreplay.replay.ops.work.contents import Contents
from opreplay.traces.links.annotations import BatchContext, batch_context
from tests.factories import op
from tests.factories import tensor as any_tensor
from tests.factories import value as v

DEVICE = load_device("910b3")
SEQUENCES, HEADS, KV_HEADS, DIM, PAGE = 64, 32, 8, 128, 16
MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")


t = partial(any_tensor, dtype="bfloat16")


def decode(context: int) -> BatchContext:
    return BatchContext(
        prefill_sequences=0, decode_sequences=SEQUENCES, decode_tokens=SEQUENCES, decode_k=SEQUENCES * context
    )


QKV = (t("query", SEQUENCES, HEADS, DIM), t("key", SEQUENCES, KV_HEADS, DIM), t("value", SEQUENCES, KV_HEADS, DIM))
PACKED = (t("key_cache", 40_000, KV_HEADS, 16, PAGE, 8), t("value_cache", 40_000, KV_HEADS, DIM, PAGE))
TABLE = t("block_tables", SEQUENCES, 512, dtype="int32")
LENGTHS = t("seq_lens", SEQUENCES, dtype="int32")
CACHE = (t("k", 40_000, PAGE, KV_HEADS, DIM), t("v", 40_000, PAGE, KV_HEADS, DIM))
EDGES = t("cu_seqlens_q", SEQUENCES + 1, dtype="int32")
LISTS = (EDGES, t("kv_indptr", SEQUENCES + 1, dtype="int32"), t("kv_page_indices", 600_000, dtype="int32"))
SLOTS = (t("k", 600_000, KV_HEADS, DIM), t("v", 600_000, KV_HEADS, DIM))
Q = t("q", SEQUENCES, HEADS, DIM)
NPU = (
    t("query", SEQUENCES, 1, HEADS * DIM),
    t("key", 5000, 128, KV_HEADS * DIM),
    t("value", 5000, 128, KV_HEADS * DIM),
    v("num_heads", "int", HEADS),
    v("input_layout", "str", "BSH"),
    t("block_table", SEQUENCES, 64, dtype="int32"),
)
BY_BATCH = {
    "vllm::unified_attention_with_output": (*QKV, t("output", SEQUENCES, HEADS, DIM)),
    "sglang::unified_attention_with_output": (*QKV, t("output", SEQUENCES, HEADS, DIM)),
    "_C::paged_attention_v1": (t("out", SEQUENCES, HEADS, DIM), QKV[0], *PACKED, TABLE, LENGTHS),
    "_rocm_C::paged_attention": (t("out", SEQUENCES, HEADS, DIM), QKV[0], *PACKED, TABLE, LENGTHS),
    "_vllm_fa2_C::varlen_fwd": (Q, *CACHE, EDGES, t("block_table", SEQUENCES, 512, dtype="int32")),
    "_vllm_fa3_C::fwd": (Q, *CACHE, EDGES, t("page_table", SEQUENCES, 512, dtype="int32")),
    "sgl_kernel::fwd": (Q, *CACHE, EDGES, t("page_table", SEQUENCES, 512, dtype="int32")),
    "aiter::mha_batch_prefill": (Q, *SLOTS, *LISTS),
    "sglang_profiler::mha__mha_batch_prefill_167": (Q, *SLOTS, *LISTS),
    "npu::npu_fused_infer_attention_score": NPU,
}


@pytest.mark.parametrize("name", BY_BATCH)
def test_longer_contexts_of_the_batch_cost_more(name: str) -> None:
    times = []
    for context in (128, 1024, 8192):
        one = op(name, *BY_BATCH[name], batch=decode(context))
        (call,) = lower(one).kernels
        assert call.attrs["context_tokens"] == SEQUENCES * context
        assert call.attrs["pairs"] == SEQUENCES * context * HEADS
        read = SEQUENCES * context * KV_HEADS * DIM * 2 * 2
        assert call.attrs["moved_bytes"] == pytest.approx(read, rel=0.07)
        times.append(simulate_op(one, DEVICE).time_us)
    assert times[1] > 3 * times[0]
    assert times[2] > 6 * times[1]


@pytest.mark.parametrize("context", [128, 8192])
def test_lengths_among_the_arguments(context: int) -> None:
    said = op("npu::npu_fused_infer_attention_score", *NPU, v("actual_seq_lengths_kv", "int[]", (context,) * SEQUENCES))
    assert lower(said).kernels[0].attrs["context_tokens"] == SEQUENCES * context
    longest = op("_C::paged_attention_v1", *BY_BATCH["_C::paged_attention_v1"], v("max_seq_len", "int", context))
    lowered = lower(longest)
    assert lowered.kernels[0].attrs["context_tokens"] == SEQUENCES * context
    assert "not recorded" in lowered.notes[0]


def test_mixed_batches_add_up() -> None:
    one = op("vllm::unified_attention_with_output", t("query", 48, 4, 8), t("key", 48, 2, 8), batch=MIXED)
    attrs = lower(one).kernels[0].attrs
    assert attrs["context_tokens"] == 130
    # Each of q new tokens sees the context but for the new ones after it: qk - q(q - 1)/2, of decode and prefill.
    assert attrs["pairs"] == 4 * (70 + 1448 - (1096 - 44) // 2)


def test_contents_go_before_the_batch() -> None:
    one = op("vllm::unified_attention", *QKV, batch=decode(128))
    given = Contents(sequences=64, query_tokens=64, context_tokens=640_000, pairs=640_000)
    assert explain_op(one, DEVICE, given).kernels[0].attrs["context_tokens"] == 640_000
    assert simulate_op(one, DEVICE, given).time_us > 3 * simulate_op(one, DEVICE).time_us


def test_dense_prompts_need_no_lengths() -> None:
    shape = (4, HEADS, 1000, DIM)
    args = (t("query", *shape), t("key", *shape), t("value", *shape), v("num_heads", "int", HEADS))
    one = op("npu::npu_prompt_flash_attention", *args, v("input_layout", "str", "BNSD"))
    assert lower(one).kernels[0].attrs["pairs"] == 4 * HEADS * 1000 * 1000


@pytest.mark.parametrize("queries", [1, 3, 4, 5])
def test_a_layout_tells_where_the_keys_are_whatever_the_sizes(queries: int) -> None:
    heads, context = 4, 4097
    by_layout = {"BNSD": ((2, queries * heads, queries, DIM), (2, heads, context, DIM))}
    by_layout["BSND"] = tuple((b, s, n, d) for b, n, s, d in by_layout["BNSD"])  # type: ignore[assignment]
    for layout, (query, key) in by_layout.items():
        args = (t("query", *query), t("key", *key), t("value", *key), v("num_heads", "int", queries * heads))
        named = (v("input_layout", "str", layout), v("num_key_value_heads", "int", heads))
        one = op("npu::npu_fused_infer_attention_score", *args, *named)
        assert lower(one).kernels[0].attrs["context_tokens"] == 2 * context, layout


EXPERTS, TOPK = 64, 6
LAYER = {
    name: lambda tokens: (
        t("hidden_states", tokens, 2048),
        t("w1", EXPERTS, 2816, 2048),
        t("w2", EXPERTS, 2048, 1408),
        t("topk_weights", tokens, TOPK, dtype="float32"),
        t("topk_ids", tokens, TOPK, dtype="int32"),
    )
    for name in ("vllm::outplace_fused_experts", "sglang::inplace_fused_experts", "aiter::fused_moe_")
}
PRODUCTS = {
    "npu::npu_grouped_matmul": lambda tokens: (
        t("x", tokens * TOPK, 2048),
        t("weight", EXPERTS, 2048, 1408),
        t("group_list", EXPERTS, dtype="int64"),
    ),
    "aten::_grouped_mm": lambda tokens: (
        t("self", tokens * TOPK, 2048),
        t("mat2", EXPERTS, 2048, 1408),
        t("offs", EXPERTS, dtype="int32"),
    ),
    "aiter::ck_moe_stage1": lambda tokens: (
        t("hidden_states", tokens, 2048),
        t("w1", EXPERTS, 2816, 2048),
        t("w2", EXPERTS, 2048, 1408),
        t("out", tokens, TOPK, 1408),
        v("topk", "int", TOPK),
    ),
    "aiter::ck_moe_stage2": lambda tokens: (
        t("inter_states", tokens, TOPK, 1408),
        t("w1", EXPERTS, 2816, 2048),
        t("w2", EXPERTS, 2048, 1408),
        t("out", tokens, 2048),
        v("topk", "int", TOPK),
    ),
}


def routed(tokens: int, exponent: float) -> Contents:
    weights = [(i + 1) ** -exponent for i in range(EXPERTS)]
    rows = [round(tokens * TOPK * w / sum(weights)) for w in weights]
    rows[0] += tokens * TOPK - sum(rows)
    return Contents(expert_rows=tuple(rows))


@pytest.mark.parametrize("tokens", [64, 512, 4096, 32768])
@pytest.mark.parametrize("name", [*LAYER, *PRODUCTS])
def test_skewed_routing_costs_more(name: str, tokens: int) -> None:
    one = op(name, *{**LAYER, **PRODUCTS}[name](tokens))
    assert "GroupedMatmul" in [call.type for call in lower(one).kernels]
    even, skewed, steep = (simulate_op(one, DEVICE, routed(tokens, e)).time_us for e in (0.0, 1.0, 2.0))
    assert even < skewed < steep
    assert even == pytest.approx(simulate_op(one, DEVICE).time_us, rel=0.01)
    if tokens >= 4096:
        assert skewed > 1.03 * even


def test_every_slot_of_a_token_is_a_row() -> None:
    for name in ("aiter::ck_moe_stage1", "aiter::ck_moe_stage2"):
        assert lower(op(name, *PRODUCTS[name](100))).kernels[0].attrs["rows"] == 100 * TOPK


def test_an_even_split_is_noted_and_a_known_one_is_not() -> None:
    one = op("vllm::outplace_fused_experts", *LAYER["vllm::outplace_fused_experts"](64))
    assert any("evenly" in note for note in lower(one).notes)
    assert not lower(one, routed(64, 1.0)).notes


@pytest.mark.parametrize("name", ["vllm::moe_forward", "vllm::moe_forward_shared"])
def test_a_layer_without_weights_among_its_arguments_is_its_products_and_marked(name: str) -> None:
    one = op(name, t("hidden_states", 8192, 2880), t("router_logits", 8192, 32))
    assert not lower(one).kernels, "nothing tells the sizes of its weights, nor bounds them"
    assert not is_predicted(one, simulate_op(one, DEVICE))
    evidence = LayerEvidence(most_bytes=1e13, most_flops=1e16, device="B200", time_us=1e4)
    one = msgspec.structs.replace(one, layer=evidence)
    lowered, simulated = lower(one), simulate_op(one, DEVICE)
    products = [call for call in lowered.kernels if call.type == "GroupedMatmul"]
    assert [call.attrs["rows"] for call in products] == [8192 * 4] * 2
    multiplied = 2 * 8192 * 4 * 3 * 2880**2
    assert simulated.time_us > multiplied / 295e12 * 1e6
    assert (simulated.confidence, simulated.by) == ("uncalibrated", "invented sizes")
    assert simulated.high_us >= 2.9 * simulated.time_us
    assert any("32 experts" in note and "4 per token" in note for note in lowered.notes)
    assert ("MatMulV3" in simulated.kernels) == name.endswith("_shared")
    spread = simulate_op(one, DEVICE, routed(8192, 0.25)).time_us
    assert spread == pytest.approx(simulated.time_us, rel=0.25), "contents tell shares, not how many rows"


def test_a_scan_of_one_long_row_by_a_library_is_no_million_steps() -> None:
    one = op("fbgemm::asynchronous_complete_cumsum", t("t_in", 2_621_440, dtype="int32"))
    simulated = simulate_op(one, DEVICE)
    assert 10 < simulated.time_us < 1000
    assert simulated.confidence == "uncalibrated"


def test_a_generated_kernel_reads_rows_of_a_table_and_not_all_of_it() -> None:
    """All 1.16 GB of an embedding were charged for 32 rows."""
    table, ids, out = t("in_ptr0", 201_088, 2880), t("in_ptr1", 32, dtype="int64"), t("out_ptr0", 32, 2880)
    (one,) = lower(op("triton_poi_fused_embedding_0", table, ids, out)).kernels
    assert [spec.shape for spec in one.inputs if spec is not None] == [(32, 2880), (32,)]
    seeds = t("in_ptr1", 1, dtype="int64")
    (dropout,) = lower(op("triton_poi_fused_dropout_0", table, seeds, t("out_ptr0", 201_088, 2880))).kernels
    assert dropout.inputs[0] is not None
    assert dropout.inputs[0].shape == (201_088, 2880)
    (summed,) = lower(op("triton_red_fused_sum_0", table, seeds, t("out_ptr0", 2880))).kernels
    assert summed.inputs[0] is not None
    assert summed.inputs[0].shape == (201_088, 2880)


@pytest.mark.parametrize("layout", ["BSH", "BNSD"])
def test_attention_of_torch_npu_without_a_layout_takes_its_schemas_or_tells_heads_by_their_number(layout: str) -> None:
    flat = (4, 8192, KV_HEADS * DIM) if layout == "BSH" else (4, KV_HEADS, 8192, DIM)
    query = (4, 1, HEADS * DIM) if layout == "BSH" else (4, HEADS, 1, DIM)
    heads = (v("num_heads", "int", HEADS), v("num_key_value_heads", "int", KV_HEADS))
    tensors = (t("query", *query), t("key", *flat), t("value", *flat))
    schema = 'npu::npu_fused_infer_attention_score(Tensor query, *, str input_layout="BSH") -> Tensor'
    name = "npu::npu_fused_infer_attention_score"
    said = simulate_op(op(name, *tensors, *heads, v("input_layout", "str", layout)), DEVICE, l2="cold")
    unsaid = msgspec.structs.replace(op(name, *tensors, *heads), schema=schema)
    assert simulate_op(unsaid, DEVICE, l2="cold").time_us == pytest.approx(said.time_us)
    assert said.time_us > 2 * 4 * 8192 * KV_HEADS * DIM * 2 / 1.6e6


@pytest.mark.parametrize(("queries", "keys", "window"), [(9, 9, 4), (9, 9, 1), (3, 9, 4), (3, 20, 5), (9, 9, 12)])
def test_a_window_counts_the_keys_that_each_query_sees(queries: int, keys: int, window: int) -> None:
    batch, heads, width = 2, 4, 16
    args = [any_tensor("query", batch, heads, queries, width)]
    args += [any_tensor(name, batch, heads, keys, width) for name in ("key", "value")]
    said = {"num_heads": heads, "sparse_mode": 4, "pre_tokens": window - 1, "next_tokens": 0}
    numbers = [v(name, "int", number) for name, number in said.items()]
    layout = v("input_layout", "str", "BNSD")
    (kernel,) = lower(op("npu::npu_fused_infer_attention_score", *args, *numbers, layout)).kernels
    seen = [min(window, keys - queries + 1 + query) for query in range(queries)]
    assert kernel.attrs["pairs"] == batch * heads * sum(seen)
    assert kernel.attrs["context_tokens"] == batch * min(keys, queries + window - 1)
