"""Rotary embeddings look up the positions of the batch's new tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opreplay.initializers.base import InitContext, InitializerError, InitReport
from opreplay.replay.ops.inputs import built_in
from opreplay.traces.links.annotations import BatchContext, batch_context

REGISTRY = built_in()
MIXED = batch_context("execute_48_context_2(sq44sk60sqsq1096sqsk1448)_generation_4(sq4sk70sqsq4sqsk70)")


def initialize(op: str, args: dict[str, Any], batch: BatchContext | None = None, seed: int = 0) -> InitReport:
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(seed), run_seed=seed, batch=batch)
    rule = REGISTRY.find(context)
    assert rule is not None
    return REGISTRY.apply(rule, context)


def rotary(*shape: int, rows: int = 1000) -> dict[str, Any]:
    return {"positions": torch.zeros(shape, dtype=torch.int64), "cos_sin_cache": torch.zeros(rows, 8)}


def test_positions_continue_each_sequence() -> None:
    args = rotary(48)
    initialize("_C::rotary_embedding", args, MIXED)
    attention = {
        "q": torch.zeros(48, 2, 8),
        "k": torch.zeros(64, 4, 2, 8),
        "v": torch.zeros(64, 4, 2, 8),
        "cu_seqlens_q": torch.zeros(7, dtype=torch.int32),
        "seqused_k": torch.zeros(6, dtype=torch.int32),
        "block_table": torch.zeros(6, 16, dtype=torch.int32),
    }
    initialize("_vllm_fa2_C::varlen_fwd", attention, MIXED)
    new, seen = attention["cu_seqlens_q"].diff().tolist(), attention["seqused_k"].tolist()
    assert args["positions"].tolist() == [p for q, k in zip(new, seen, strict=True) for p in range(k - q, k)]


@pytest.mark.parametrize("shape", [(48,), (4, 12), (3, 48)])
def test_shapes(shape: tuple[int, ...]) -> None:
    args = rotary(*shape, rows=20)
    initialize("_C::rotary_embedding", args, MIXED)
    assert 0 <= int(args["positions"].min()) < int(args["positions"].max()) < 20
    if shape[0] == 3:
        assert torch.equal(args["positions"][0], args["positions"][2])


def test_without_a_batch_positions_are_in_the_table() -> None:
    args = {
        "positions": torch.zeros(500, dtype=torch.int64),
        "cos": torch.zeros(64, 1, 1, 4),
        "offsets": torch.ones(500, dtype=torch.int64),
    }
    report = initialize("aiter::rope_cached_positions_offsets_fwd_impl", args)
    assert report.assumed == {"positions": "uniform in [0, 64)"}
    assert int(args["positions"].max()) < 64
    assert len(args["positions"].unique()) > 50
    assert not args["offsets"].any()


def test_a_call_without_a_table_is_refused() -> None:
    with pytest.raises(InitializerError, match="no sine/cosine table"):
        initialize("_C::rotary_embedding", {"positions": torch.zeros(4, dtype=torch.int64)})


def test_new_tokens() -> None:
    args = {name: torch.zeros(6, dtype=torch.int32) for name in ("extend_prefix_lens", "extend_seq_lens")}
    op = "sglang_profiler::forward_batch_info_compute_position"
    initialize(op, args, MIXED)
    assert int(args["extend_seq_lens"].sum()) == 48
    assert int(args["extend_prefix_lens"].sum()) == 130 - 48
    initialize(op, args)
    assert args["extend_seq_lens"].tolist() == [128] * 6


def test_seeds() -> None:
    made = []
    for seed in (0, 0, 1):
        args = rotary(300)
        initialize("sgl_kernel::rotary_embedding", args, seed=seed)
        made.append(args["positions"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
