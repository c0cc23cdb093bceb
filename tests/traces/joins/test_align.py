"""Alignment of a long sequence with a shorter one that it repeats."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opreplay.traces.joins.align import MOST_CANDIDATES, Aligner


def places(short: list[int], long: list[int]) -> list[int]:
    """For each token of `long` its place in `short`: -1 none, -2 several."""
    out = [-1] * len(long)
    for run in Aligner(np.array(short)).runs(np.array(long)):
        for offset in range(run.length):
            out[run.start + offset] = run.places[0] + offset if len(run.places) == 1 else -2
    return out


def layers(count: int) -> list[int]:
    """A model of equal layers between a stem and a head: names repeat, places differ."""
    return [1, 2, 3, 4, 5, 6, *([10, 11, 12, 13, 10, 14] * count), 20, 21, 22, 23, 24, 25]


def test_each_iteration_finds_itself_from_any_point() -> None:
    short = layers(4)
    whole = list(range(len(short)))
    assert places(short, short * 3) == whole * 3
    assert places(short, (short * 3)[17:70]) == (whole * 3)[17:70]


def test_ops_that_only_one_side_has_do_not_move_the_rest() -> None:
    short = layers(6)
    long = [*short[:9], 99, *short[9:21], 98, 97, *short[25:]]
    expected = [*range(9), -1, *range(9, 21), -1, -1, *range(25, len(short))]
    assert places(short, long) == expected


def test_equal_places_are_said_to_be_several() -> None:
    short = [*layers(1), -1, *layers(1)]
    assert set(places(short, layers(1))) == {-2}


def test_unrelated_sequences_have_nothing_in_common() -> None:
    assert places(list(range(50)), list(range(100, 150))) == [-1] * 50
    assert places([], [1, 2]) == [-1, -1]
    assert places([1, 2], []) == []


def test_one_name_repeated_stays_fast() -> None:
    short = [7] * 20_000
    runs = list(Aligner(np.array(short)).runs(np.array([7] * 100_000)))
    assert sum(run.length for run in runs) == 100_000
    assert all(len(run.places) <= MOST_CANDIDATES for run in runs)


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=60))
def test_runs_are_true_ordered_and_apart(short: list[int], long: list[int]) -> None:
    end = 0
    for run in Aligner(np.array(short, dtype=np.int64)).runs(np.array(long, dtype=np.int64)):
        assert run.start >= end
        assert run.length > 0
        end = run.start + run.length
        for place in run.places:
            assert short[place : place + run.length] == long[run.start : end]


def test_distinct_names_are_always_found() -> None:
    generator = random.Random(1)
    short = generator.sample(range(1000), 200)
    at = generator.randrange(150)
    assert places(short, short[at : at + 40]) == list(range(at, at + 40))
