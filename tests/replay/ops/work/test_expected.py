"""The contents that are expected of an op without running it are those that a replay counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opreplay.replay.execute.executors.torch.device import Inputs, TorchExecutor
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.work.expected import MAX_ELEMENTS, ExpectedContents
from opreplay.traces.links.annotations import batch_context
from tests.factories import op
from tests.factories import tensor as t
from tests.factories import value as v

MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")


VARLEN = op(
    "_vllm_fa2_C::varlen_fwd",
    t("q", 48, 4, 8),
    t("k", 64, 4, 2, 8),
    t("v", 64, 4, 2, 8),
    v("out", "Tensor", None),
    t("cu_seqlens_q", 7, dtype="int32"),
    t("cu_seqlens_k", 7, dtype="int32"),
    t("seqused_k", 6, dtype="int32"),
    t("block_table", 6, 16, dtype="int32"),
    batch=MIXED,
    id_="0" * 12,
)
LAYER = op(
    "vllm::unified_attention_with_output",
    t("query", 48, 4, 8),
    t("key", 48, 2, 8),
    t("value", 48, 2, 8),
    t("output", 48, 4, 8),
    v("layer_name", "str", ""),
    batch=MIXED,
    id_="1" * 12,
)
EXPERTS = op(
    "vllm::outplace_fused_experts",
    t("hidden_states", 4000, 16),
    t("w1", 8, 24, 16),
    t("w2", 8, 16, 12),
    t("topk_weights", 4000, 2),
    t("topk_ids", 4000, 2, dtype="int32"),
    id_="2" * 12,
)


@pytest.fixture
def expected() -> ExpectedContents:
    return ExpectedContents(built_in())


@pytest.mark.parametrize("one", [VARLEN, LAYER], ids=["arguments", "layer"])
def test_sequences_are_those_of_the_batch(one: ReplayOp, expected: ExpectedContents) -> None:
    found = expected(one)
    assert found is not None
    assert (found.sequences, found.query_tokens, found.context_tokens) == (6, 48, 130)


def test_they_are_those_of_a_replay(expected: ExpectedContents) -> None:
    def find(one: ReplayOp) -> Callable[..., Any]:
        return lambda *args, **kwargs: None

    executor = TorchExecutor("cpu", find, memory_bytes=10**9, inputs=Inputs(check_work=True))
    try:
        work = executor.prepare(VARLEN, seed=0).work
        routed = executor.prepare(EXPERTS, seed=0).work
    finally:
        executor.close()
    contents, loads = expected(VARLEN), expected(EXPERTS)
    assert work is not None
    assert routed is not None
    assert contents is not None
    assert loads is not None
    assert [a.done for a in work.amounts[:3]] == [contents.context_tokens, contents.query_tokens, contents.pairs]
    assert loads.expert_rows is not None
    assert sum(loads.expert_rows) == routed.amounts[0].done == 8000


def test_routing_follows_the_settings() -> None:
    registry = built_in()
    registry.configure(["moe_routing.distribution=zipf"])
    even, skewed = ExpectedContents(built_in())(EXPERTS), ExpectedContents(registry)(EXPERTS)
    assert even is not None
    assert skewed is not None
    assert even.expert_rows is not None
    assert skewed.expert_rows is not None
    assert max(even.expert_rows) < 1200
    assert max(skewed.expert_rows) > 2000


def test_a_hostile_trace_takes_no_memory(expected: ExpectedContents) -> None:
    huge = op("vllm::outplace_fused_experts", *EXPERTS.args, v("global_num_experts", "int", 1 << 40))
    assert expected(huge) is None
    ids = op("_moe_C::topk_softmax", t("gating_output", 1 << 22, 1 << 10))
    assert expected(ids) is None
    pages = op("_vllm_fa2_C::varlen_fwd", *VARLEN.args[:-1], t("block_table", 6, MAX_ELEMENTS, dtype="int32"))
    assert expected(pages) is None


def test_weights_take_no_memory(expected: ExpectedContents) -> None:
    large = op(
        "vllm::outplace_fused_experts",
        t("hidden_states", 4000, 1 << 16),
        t("w1", 256, 1 << 15, 1 << 16),
        t("w2", 256, 1 << 16, 1 << 14),
        t("topk_weights", 4000, 2),
        t("topk_ids", 4000, 2, dtype="int32"),
    )
    found = expected(large)
    assert found is not None
    assert found.expert_rows is not None
    assert len(found.expert_rows) == 256


def test_other_ops_have_no_contents(expected: ExpectedContents) -> None:
    assert expected(op("aten::mm", t("self", 4, 4), t("mat2", 4, 4))) is None
    assert expected(op("_moe_C::topk_softmax")) is None
