"""Collectives of several ranks matched with each other: by number, by order, by time; clocks; what disagrees."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces.joins.matched import JobCollectives
from opreplay.traces.joins.ranks import RankCalls, match
from opreplay.traces.links.collectives import RankCall

MS = 1_000_000


def call(start_ms: float, end_ms: float, **told: object) -> RankCall:
    kept = {"kind": "all_reduce", "group": "0", "elements": 10, "stream": 7, **told}
    return RankCall(start_ns=round(start_ms * MS), end_ns=round(end_ms * MS), **kept)  # type: ignore[arg-type]


def matched(*ranks: Sequence[RankCall]) -> JobCollectives:
    return match([RankCalls(rank=rank, calls=tuple(calls)) for rank, calls in enumerate(ranks)])


def test_numbers_decide_where_recordings_begin_at_different_calls() -> None:
    one = [call(10 * n, 10 * n + 5, sequence=n) for n in range(4)]
    other = [call(10 * n + 2, 10 * n + 5, sequence=n) for n in range(2, 6)]
    found = matched(one, other)
    assert [(m.sequence, m.how, m.late_rank) for m in found.matched] == [(2, "sequence", 1), (3, "sequence", 1)]
    assert found.unmatched == {0: 2, 1: 2}
    assert [m.skew_us for m in found.matched] == [2000.0, 2000.0]
    assert [member.waiting_us for member in found.matched[0].members] == [2000.0, 0.0]
    assert found.matched[0].transfer_us == 3000.0


def test_without_numbers_the_shift_at_which_ends_lie_nearest() -> None:
    one = [call(10 * n, 10 * n + 5) for n in range(6)]
    other = [call(10 * n + 1, 10 * n + 5.001) for n in range(2, 6)]
    found = matched(one, other)
    assert [[m.call for m in row.members] for row in found.matched] == [[n, n - 2] for n in range(2, 6)]
    assert {row.how for row in found.matched} == {"order"}


def test_marked_steps_decide_where_clocks_are_far_apart() -> None:
    one = [call(10 * n, 10 * n + 5, step=n // 2) for n in range(6)]
    other = [call(10 * n + 40, 10 * n + 45, step=n // 2) for n in range(6)]
    found = matched(one, other)
    assert [[m.call for m in row.members] for row in found.matched] == [[n, n] for n in range(6)]
    assert found.clocks[1].shift_us == -40_000.0


def test_calls_that_are_missing_in_between_are_matched_by_time() -> None:
    kinds = ["all_reduce", "all_to_all", "all_reduce", "all_gather", "all_to_all", "all_reduce"]
    whole = [call(10 * n, 10 * n + 5, kind=kind) for n, kind in enumerate(kinds)]
    found = matched([whole[i] for i in (0, 1, 4, 5)], [whole[i] for i in (0, 2, 3, 4)])
    assert [[m.call for m in row.members] for row in found.matched] == [[0, 0], [2, 3]]
    assert {row.how for row in found.matched} == {"overlap"}
    assert found.unmatched == {0: 2, 1: 2}


def test_calls_of_other_sizes_are_not_matched_by_their_order_and_move_no_clock() -> None:
    """One rank's file is cut: its first calls stand where the other's last ones do."""
    whole = [call(10 * n, 10 * n + 5, elements=size) for n, size in enumerate((10, 99, 10, 99))]
    cut = [call(100 + 10 * n, 105 + 10 * n, elements=size) for n, size in enumerate((99, 10, 77))]
    found = matched(whole, cut)
    assert not found.matched
    assert not found.clocks[1].corrected


def test_one_size_of_many_that_disagrees_is_told_and_moves_no_clock() -> None:
    one = [call(10 * n, 10 * n + 5, elements=n) for n in range(12)]
    other = [call(10 * n, 10 * n + 5, elements=n) for n in range(11)] + [call(119, 119.5, elements=7)]
    found = matched(one, other)
    assert len(found.matched) == 12
    assert [d.what for d in found.disagreements] == ["elements in"]
    assert found.clocks[1].by == 11
    assert not found.clocks[1].corrected


def test_threads_of_a_host_are_no_groups() -> None:
    """gloo's pool hands each collective to whichever thread is free: the ranks' threads say nothing of each other."""

    def on(*threads: int, late: float) -> list[RankCall]:
        return [
            call(10 * n + late, 10 * n + 5, group=None, stream=thread, note=n, step=n)
            for n, thread in enumerate(threads)
        ]

    found = matched(on(2, 2, 3, late=0.0), on(3, 2, 3, late=2.0))
    assert [[m.call for m in row.members] for row in found.matched] == [[n, n] for n in range(3)]
    assert [row.late_rank for row in found.matched] == [1, 1, 1]
    assert found.unmatched == {0: 0, 1: 0}


def test_the_order_of_asking_counts_not_that_of_beginning() -> None:
    one = [call(1.0, 8.0, note=0, elements=10, issued_ns=1), call(1.1, 8.0, note=1, elements=20, issued_ns=2)]
    other = [call(1.0, 8.1, note=0, elements=20, issued_ns=2), call(1.2, 8.1, note=1, elements=10, issued_ns=1)]
    found = matched(one, other)
    assert sorted([m.call for m in row.members] for row in found.matched) == [[0, 1], [1, 0]]
    assert not found.disagreements


def test_groups_of_one_name_and_other_members_are_others() -> None:
    one = call(0, 5, group="1", ranks="[0, 1]", sequence=3)
    other = call(0, 5, group="1", ranks="[2, 3]", sequence=3)
    assert not matched([one], [other]).matched


def test_the_clock_of_a_host_is_left_unless_its_times_cannot_be() -> None:
    one = [call(10 * n, 10 * n + 5, note=n) for n in range(8)]
    near = [call(10 * n + 1, 10 * n + 6, note=n) for n in range(8)]
    assert not matched(one, near).clocks[1].corrected
    device = [msgspec.structs.replace(c, note=-1) for c in one], [msgspec.structs.replace(c, note=-1) for c in near]
    assert matched(*device).clocks[1].shift_us == -1000.0
    far = [call(10 * n + 7, 10 * n + 12, note=n, step=n) for n in range(8)]
    stepped = [msgspec.structs.replace(c, step=n) for n, c in enumerate(one)]
    assert matched(stepped, far).clocks[1].shift_us == -7000.0


def test_ranks_without_a_common_collective_keep_their_clocks() -> None:
    pair = [call(0, 5, group="a", sequence=1)], [call(0, 5, group="a", sequence=1)]
    other = [call(90, 95, group="b", sequence=1)], [call(90, 95, group="b", sequence=1)]
    found = matched(*pair, *other)
    assert [clock.against for clock in found.clocks] == [None, 0, None, 2]
    assert len(found.matched) == 2


def test_what_disagrees() -> None:
    found = matched(
        [call(0, 5, sequence=1), call(10, 15, sequence=2), call(20, 25, sequence=3, dtype="Float")],
        [
            call(0, 5, sequence=1, kind="broadcast"),
            call(10, 15, sequence=2, elements=11),
            call(20, 25, sequence=3, dtype="Half"),
        ],
    )
    assert [(d.collective, d.what) for d in found.disagreements] == [
        (0, "operation"),
        (1, "elements in"),
        (2, "dtype"),
    ]


def test_splits_that_disagree() -> None:
    common = {"kind": "all_to_all", "ranks": "[0, 1]", "sequence": 1}
    good = matched(
        [call(0, 5, **common, in_split=(3, 5), out_split=(3, 2))],
        [call(0, 5, **common, in_split=(2, 7), out_split=(5, 7))],
    )
    assert not good.disagreements
    bad = matched(
        [call(0, 5, **common, in_split=(3, 5), out_split=(3, 2))],
        [call(0, 5, **common, in_split=(2, 7), out_split=(4, 7))],
    )
    assert [d.values for d in bad.disagreements] == [{"0": "sends 5 to rank 1", "1": "expects 4 from rank 0"}]


def test_messages_from_one_rank_to_another() -> None:
    found = matched(
        [call(0, 5, kind="send", source=0, target=1, group="0"), call(10, 15, sequence=1)],
        [call(1, 5, kind="recv", source=0, target=1, group="0"), call(10, 15, sequence=1)],
    )
    assert [(m.kind, len(m.members)) for m in found.matched] == [("send", 2), ("all_reduce", 2)]
    assert not found.disagreements


def test_a_rank_that_comes_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="same rank"):
        match([RankCalls(rank=1, calls=()), RankCalls(rank=1, calls=())])


@settings(max_examples=60, deadline=None)
@given(
    late=st.lists(st.tuples(*[st.integers(0, 4000)] * 3), min_size=4, max_size=12),
    off=st.tuples(st.integers(-3000, 3000), st.integers(-3000, 3000)),
    numbered=st.booleans(),
)
def test_waiting_does_not_depend_on_clocks(late: list[tuple[int, ...]], off: tuple[int, int], numbered: bool) -> None:
    """Whatever the clocks are: members wait for the last one, and then all take the same time."""
    ranks: list[list[RankCall]] = [[], [], []]
    for n, delays in enumerate(late):
        end = 10_000 * n + max(delays) + 500
        for rank, delay in enumerate(delays):
            shift = (0, *off)[rank]
            told = {"sequence": n} if numbered else {"step": n}
            ranks[rank].append(call((10_000 * n + delay + shift) / 1e3, (end + shift) / 1e3, **told))
    found = matched(*ranks)
    assert len(found.matched) == len(late)
    for row, delays in zip(found.matched, late, strict=True):
        assert [m.waiting_us for m in row.members] == pytest.approx([max(delays) - d for d in delays], abs=1.1)
        assert row.transfer_us == pytest.approx(500.0, abs=1.1)
    assert sum(found.unmatched.values()) == 0
