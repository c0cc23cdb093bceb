"""Nesting in time: against a plain quadratic search, on nested and on overlapping intervals."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from opreplay.traces import OpTable, innermost_parent
from opreplay.traces.links.parents import (
    among_or_around,
    among_or_inside,
    climbs,
    depths,
    innermost_at,
    innermost_of,
    outermost_of,
    rows_inside,
)


def table(start: list[int], dur: list[int], track: list[int] | None = None) -> OpTable:
    n = len(start)
    return OpTable(
        signature=np.zeros(n, np.uint32),
        start_ns=np.array(start, np.int64),
        dur_ns=np.array(dur, np.int64),
        track=np.array(track or [0] * n),
    )


def test_nested_siblings_tracks_and_empty_intervals() -> None:
    ops = table([0, 10, 10, 12, 30, 40, 0, 5], [100, 10, 5, 0, 10, 0, 50, 0], [0, 0, 0, 0, 0, 0, 1, 1])
    assert innermost_parent(ops).tolist() == [-1, 0, 1, 2, 0, 0, -1, 6]
    assert innermost_parent(table([], [])).tolist() == []


def test_touching_intervals_are_siblings() -> None:
    assert innermost_parent(table([0, 0, 10, 20], [30, 10, 10, 10])).tolist() == [-1, 0, 0, 0]


@st.composite
def nested(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Properly nested intervals with distinct ends, in any order."""
    out: list[tuple[int, int]] = []

    def fill(begin: int, end: int, depth: int) -> None:
        at = begin
        while at + 3 < end and depth < 5 and len(out) < 40:
            at += draw(st.integers(1, 4))
            length = draw(st.integers(1, max(1, end - at - 1)))
            if at + length >= end:
                return
            out.append((at, length))
            fill(at, at + length, depth + 1)
            at += length + 1

    fill(0, draw(st.integers(4, 200)), 0)
    out = draw(st.permutations(out))
    return [a for a, _ in out], [n for _, n in out]


@settings(max_examples=100, deadline=None)
@given(nested())
def test_equals_a_plain_search(intervals: tuple[list[int], list[int]]) -> None:
    start, dur = intervals
    ops = table(start, dur)
    want = []
    for i in range(len(start)):
        around = [
            (dur[j], j)
            for j in range(len(start))
            if j != i and start[j] <= start[i] and start[i] + dur[i] <= start[j] + dur[j]
        ]
        want.append(min(around)[1] if around else -1)
    assert innermost_parent(ops).tolist() == want


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=25), st.integers(0, 70))
def test_overlapping_intervals_end_in_a_forest(intervals: list[tuple[int, int]], time: int) -> None:
    start, dur = [a for a, _ in intervals], [n for _, n in intervals]
    ops = table(start, dur)
    parents = innermost_parent(ops)
    for i, parent in enumerate(parents.tolist()):
        seen = set()
        while parent >= 0:
            assert parent not in seen
            seen.add(parent)
            assert start[parent] <= start[i]
            parent = int(parents[parent])
    times = np.array([time, time // 2, 200])
    at = innermost_at(times, np.arange(len(start)), ops.start_ns, np.asarray(ops.dur_ns))
    for when, found in zip(times.tolist(), at.tolist(), strict=True):
        holds = [(start[i], -dur[i], i) for i in range(len(start)) if start[i] <= when <= start[i] + dur[i]]
        assert found == (max(holds)[2] if holds else -1), "the last one, outer before inner, that has not ended"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=30))
def test_climbing_at_once_equals_climbing_one_by_one(forest: list[tuple[int, bool]]) -> None:
    parents = np.array([above % i if i and above % 5 else -1 for i, (above, _) in enumerate(forest)], np.int64)
    chosen = np.array([one for _, one in forest], bool)

    def chain(row: int) -> list[int]:
        return [row] if parents[row] < 0 else [row, *chain(int(parents[row]))]

    chains = [chain(row) for row in range(len(forest))]
    hits = [[row for row in one if chosen[row]] for one in chains]
    assert depths(parents).tolist() == [len(one) - 1 for one in chains]
    assert rows_inside(parents).tolist() == [sum(row in one[1:] for one in chains) for row in range(len(chains))]
    assert among_or_inside(parents, chosen).tolist() == [bool(one) for one in hits]
    assert innermost_of(parents, chosen).tolist() == [one[0] if one else -1 for one in hits]
    assert outermost_of(parents, chosen).tolist() == [one[-1] if one else -1 for one in hits]
    around = {row for row, one in enumerate(forest) if any(row in chains[other] for other in np.flatnonzero(chosen))}
    assert np.flatnonzero(among_or_around(parents, chosen)).tolist() == sorted(around)


def test_turns_grow_with_the_logarithm_of_the_depth() -> None:
    assert sum(1 for _ in climbs(np.arange(-1, 99_999))) == 17
