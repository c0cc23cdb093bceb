"""Which ExecutionTrace a trace gets: by name, by rank, by folder; never by guessing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.batch.job import pair
from opreplay.traces.errors import UsageError


@pytest.mark.parametrize(
    ("traces", "donors", "expected"),
    [
        (["a.json"], ["b.json"], {"a.json": "b.json"}),
        (["resnet_kineto.json.gz", "linear_kineto.json"], ["linear_et.json", "resnet_et.json.gz"], [1, 0]),
        (["t/rank0.json", "t/rank1.json"], ["et/et_rank_1.json", "et/et_rank_0.json"], [1, 0]),
        (["kineto_0.json", "kineto_1.json"], ["et_1.json", "et_0.json"], [1, 0]),
        (["k/run1/rank0.json", "k/run2/rank0.json"], ["et/run2/rank0.json", "et/run1/rank0.json"], [1, 0]),
        (["rank0.json", "rank1.json"], ["et_rank1.json"], [None, 0]),
        (["rank0.json", "rank1.json"], ["notes.json", "other.json"], [None, None]),
        (["step_rank1.json"], ["et_rank1.json", "et_rank11.json"], [0]),
    ],
)
def test_names_ranks_and_folders(traces: list[str], donors: list[str], expected: object) -> None:
    wanted = (
        {trace: donors[index] for trace, index in zip(traces, expected, strict=True) if index is not None}
        if isinstance(expected, list)
        else expected
    )
    assert pair(traces, donors) == wanted


def test_the_recorded_rank_tells_where_names_do_not() -> None:
    ranks = {"node7.trace.json": 1, "node9.trace.json": 0}
    donors = ["et_rank0.json", "et_rank1.json"]
    assert pair(list(ranks), donors, ranks.get) == {"node7.trace.json": donors[1], "node9.trace.json": donors[0]}


def test_two_that_fit_equally_well_are_refused() -> None:
    with pytest.raises(UsageError, match="both match rank0"):
        pair(["rank0.json", "rank1.json"], ["x/et_rank0.json", "y/et_rank0.json"])
    with pytest.raises(UsageError, match="matches both"):
        pair(["x/rank0.json", "y/rank0.json"], ["et_rank0.json"])


@given(st.permutations(range(12)), st.permutations(range(12)))
def test_the_order_of_files_does_not_matter(one: list[int], other: list[int]) -> None:
    found = pair([f"k/rank{n}.json" for n in one], [f"e/rank{n}.et.json" for n in other])
    assert found == {f"k/rank{n}.json": f"e/rank{n}.et.json" for n in range(12)}
