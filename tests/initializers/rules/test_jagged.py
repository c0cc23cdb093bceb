"""Jagged ops get lengths and offsets that add up to their values, and permutes that are permutations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.initializers.base import InitContext
from opreplay.initializers.rules.jagged import _lengths
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.inputs import built_in
from opreplay.replay.ops.tables import reference_sparse as fbgemm_sparse


def initialize(op: str, args: dict[str, Any], seed: int = 0) -> Any:
    registry = built_in()
    context = InitContext(op=op, args=args, generator=torch.Generator().manual_seed(seed), seed=seed)
    rule = registry.find(context)
    assert rule is not None
    return registry.apply(rule, context)


def longs(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@given(st.integers(1, 300), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_lengths_add_up(count: int, total: int) -> None:
    lengths = _lengths(count, total, torch.Generator().manual_seed(0))
    assert len(lengths) == count
    assert int(lengths.sum()) == total
    assert int(lengths.min()) >= 0
    assert int(lengths.max()) <= 3 * total / count + 1


@pytest.mark.parametrize("op", ["permute_2D_sparse_data", "permute_sparse_features"])
def test_a_permute_of_features_moves_all_values(op: str) -> None:
    values = "indices" if op == "permute_sparse_features" else "values"
    args = {"permute": longs(6), "lengths": longs(6, 50), values: torch.arange(1000), "weights": None}
    initialize(f"fbgemm::{op}", args)
    assert sorted(args["permute"].tolist()) == list(range(6))
    assert int(args["lengths"].sum()) == 1000
    _, moved, _ = fbgemm_sparse.permute_jagged(args["permute"], args["lengths"], args[values], None, None)
    assert sorted(moved.tolist()) == sorted(args[values].tolist())


def test_a_permute_may_take_features_twice() -> None:
    args = {"permute": longs(9), "lengths": longs(6, 5), "values": torch.zeros(70), "weights": None}
    initialize("fbgemm::permute_2D_sparse_data", args)
    assert set(args["permute"].tolist()) == set(range(6))


def test_pooled_blocks_and_their_inverse() -> None:
    args = {
        "pooled_embs": torch.arange(24.0).expand(3, 24),
        "offset_dim_list": longs(6),
        "permute_list": longs(5),
        "inv_offset_dim_list": longs(6),
        "inv_permute_list": longs(5),
    }
    initialize("fbgemm::permute_pooled_embs_auto_grad", args)
    there = fbgemm_sparse.permute_pooled_embs(args["pooled_embs"], args["offset_dim_list"], args["permute_list"])
    back = fbgemm_sparse.permute_pooled_embs(there, args["inv_offset_dim_list"], args["inv_permute_list"])
    assert torch.equal(back, args["pooled_embs"])
    assert not torch.equal(there, back)


def test_bounds_hold() -> None:
    args = {
        "rows_per_table": longs(4),
        "indices": longs(500),
        "offsets": longs(81),
        "bounds_check_mode": 1,
        "warning": longs(1),
        "weights": None,
    }
    initialize("fbgemm::bounds_check_indices", args)
    fbgemm_sparse.bounds_check_indices(Call(**args))
    assert args["warning"].item() == 0
    assert args["offsets"][-1] == 500
    assert len(args["indices"].unique()) > 400


def test_buckets_hold_all_indices() -> None:
    args: dict[str, Any] = {
        "lengths": longs(40),
        "indices": longs(600),
        "bucketize_pos": False,
        "sequence": True,
        "block_sizes": longs(4),
        "my_size": 8,
        "weights": None,
    }
    initialize("fbgemm::block_bucketize_sparse_features", args)
    lengths = fbgemm_sparse.block_bucketize_sparse_features(Call(**args))[0].view(8, 40).sum(1)
    assert int(lengths.sum()) == 600
    assert int(lengths.min()) > 40, "every rank gets its share"


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("fbgemm::jagged_to_padded_dense", {"values": torch.zeros(90, 4), "offsets": [longs(11)], "max_lengths": [12]}),
        ("fbgemm::jagged_2d_to_dense", {"values": torch.zeros(90, 4), "offsets": longs(11), "max_sequence_length": 12}),
        ("fbgemm::dense_to_jagged", {"dense": torch.zeros(10, 12, 4), "x_offsets": [longs(11)], "total_L": 90}),
        ("fbgemm::jagged_dense_elementwise_add", {"x_values": torch.zeros(90, 4), "x_offsets": [longs(3), longs(11)]}),
        ("fb::offsets_range", {"offsets": longs(11), "values": torch.zeros(90)}),
        ("fbgemm::offsets_range", {"offsets": longs(11), "range_size": 90}),
    ],
)
def test_offsets_end_at_the_values(op: str, args: dict[str, Any]) -> None:
    initialize(op, args)
    given: Any = args.get("offsets", args.get("x_offsets"))
    levels = given if isinstance(given, list) else [given]
    assert (levels[-1].diff() >= 0).all()
    assert (levels[-1][0], levels[-1][-1]) == (0, 90)
    if len(levels) == 2:
        assert levels[0].tolist()[-1] == 10


def test_single_ops() -> None:
    args: dict[str, Any] = {"t_in": torch.zeros(8192, dtype=torch.int8)}
    initialize("fbgemm::asynchronous_complete_cumsum", args)
    assert set(args["t_in"].tolist()) == {0, 1}
    args = {"lengths": longs(100), "shape": None, "truncation_size": 34}
    initialize("fb::lengths_range_w_truncation_size", args)
    assert int(args["lengths"].sum()) == 1700
    args = {"values": torch.zeros(64), "lengths": longs(64), "keys": longs(64), "size": 5}
    initialize("fb::to_dense_representation", args)
    assert set(args["keys"].tolist()) == set(range(5))
    args = {"grad_output": torch.zeros(4, 30), "dim_sum_per_rank": longs(8), "cumsum_dim_sum_per_rank": longs(8)}
    initialize("fbgemm::recat_embedding_grad_output_mixed_D_batch", args)
    assert int(args["dim_sum_per_rank"].sum()) == 30
    assert torch.equal(args["cumsum_dim_sum_per_rank"], args["dim_sum_per_rank"].cumsum(0) - args["dim_sum_per_rank"])
    args = {"values": torch.zeros(90), "lengths": longs(10), "indices": longs(20)}
    initialize("fbgemm::jagged_index_select", args)
    assert int(args["indices"].max()) < 10
    args = {"input": torch.zeros(50), "indices": torch.zeros(900, dtype=torch.int32)}
    initialize("fb::fast_gather", args)
    assert int(args["indices"].max()) == 49
