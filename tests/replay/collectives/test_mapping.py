"""What a recorded collective becomes on the ranks that there are: sizes that fit each other, whatever was recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.collectives.mapping import TooFewRanks, bytes_of, map_collective
from opreplay.replay.collectives.model import POINT_TO_POINT, Collective, bandwidth, bus_factor
from opreplay.traces.collectives.names import KINDS, kind_of


def all_to_all(**more: object) -> Collective:
    return Collective(kind="all_to_all", dtype="int32", **{"in_elements": 100, "out_elements": 100, **more})


@given(
    kind=st.sampled_from(KINDS),
    inside=st.integers(0, 10_000),
    outside=st.integers(0, 10_000),
    size=st.none() | st.integers(1, 300),
    world=st.integers(2, 9),
    most=st.none() | st.integers(100, 100_000),
    members=st.lists(st.integers(0, 20), max_size=6),
)
def test_every_share_is_sound(kind, inside, outside, size, world, most, members) -> None:
    one = Collective(
        kind=kind,
        dtype="float32",
        in_elements=inside,
        out_elements=outside,
        group_size=size,
        group_ranks=tuple(members),
        root=3,
    )
    share = map_collective(one, world, max_bytes=most or 1e9)
    n = len(share.members)
    assert 1 <= n <= world
    assert len(set(share.members)) == n
    assert all(0 <= rank < world for rank in share.members)
    assert 0 <= share.root < n
    assert 0 < share.part <= 1.0 or share.elements == 0
    if most is not None:
        assert bytes_of(share, 4) <= max(most, 8 * n * n)
    if share.matrix:
        assert len(share.matrix) == n == len(share.matrix[0])
        assert min(min(row) for row in share.matrix) >= 0
    if kind in ("all_gather", "gather"):
        assert share.outputs == share.inputs * n
    if kind in ("reduce_scatter", "scatter"):
        assert share.inputs == share.outputs * n


def test_recorded_splits_are_the_row_and_the_column_of_the_first_rank() -> None:
    one = all_to_all(in_elements=10, out_elements=14, in_splits=(3, 2, 5), out_splits=(3, 7, 4), group_size=3)
    matrix = map_collective(one, 3).matrix
    assert matrix[0] == (3, 2, 5)
    assert tuple(row[0] for row in matrix) == (3, 7, 4)
    own = all_to_all(in_elements=10, out_elements=10, in_splits=(3, 2, 5), out_splits=(1, 4, 5), group_size=3, rank=2)
    assert map_collective(own, 3).matrix[0] == (5, 3, 2)  # the recorded rank is the first here


def test_peers_of_a_large_group_are_bundled_and_what_leaves_a_rank_stays() -> None:
    splits = tuple(range(1, 9))
    one = all_to_all(in_elements=36, out_elements=36, in_splits=splits, out_splits=splits, group_size=8)
    share = map_collective(one, 2)
    assert share.matrix[0] == (1, 35)
    assert share.bus_factor == pytest.approx(35 / 36)
    assert "a group of 8 ran on 2 ranks" in share.note
    assert map_collective(all_to_all(group_size=4), 4).bus_factor == pytest.approx(3 / 4)


def test_a_group_of_ranks_that_are_there_keeps_them() -> None:
    one = Collective(kind="all_reduce", dtype="int8", in_elements=8, out_elements=8, group_size=2, group_ranks=(1, 3))
    assert map_collective(one, 4).members == (1, 3)
    assert map_collective(one, 3).members == (0, 1)


def test_a_message_that_is_too_large_runs_in_part_and_says_so() -> None:
    one = Collective(kind="all_gather", dtype="int8", in_elements=1000, out_elements=4000, group_size=4)
    share = map_collective(one, 4, max_bytes=5000)
    assert share.outputs == 4 * share.inputs
    assert bytes_of(share, 1) <= 5000
    assert share.part == pytest.approx(0.25)
    assert "to save memory: 1 KB of 4 KB" in share.note


def test_point_to_point_needs_two_ranks() -> None:
    one = Collective(kind="recv", dtype="int8", in_elements=8, out_elements=8, source=3, target=1)
    assert map_collective(one, 4).members == (3, 1)
    assert map_collective(one, 2).members == (0, 1)
    with pytest.raises(TooFewRanks):
        map_collective(one, 1)


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == bus_factor("reduce_scatter", 4) == bus_factor("all_to_all", 4) == 0.75
    assert {bus_factor(kind, 4) for kind in (*POINT_TO_POINT, "broadcast", "reduce")} == {1.0}
    found = bandwidth("all_reduce", 8_000_000, 2, 1000.0)
    assert found is not None
    assert (found.algorithm_gb_s, found.bus_gb_s) == (8.0, 8.0)
    assert bandwidth("all_reduce", 8, 2, 0.0) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("hcom_allReduce__868_0_1", "all_reduce"),
        ("c10d::recv_any_source_", "recv"),
        ("hcom_batchSendRecv", "send"),
        ("c10d::monitored_barrier_", "barrier"),
        ("wait", None),
        ("init", None),
        ("_c10d_functional::wait_tensor", None),
        ("start_coalescing", None),
    ],
)
def test_names(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
