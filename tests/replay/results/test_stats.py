from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opreplay.replay.results import stats


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_quantile_equals_numpy(values: list[float], q: float) -> None:
    assert stats.quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)


def test_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        stats.quantile([], 0.5)


@pytest.mark.parametrize(
    ("n", "ranks"), [(1, None), (5, None), (6, (0, 5)), (9, (1, 7)), (20, (5, 14)), (100, (39, 60))]
)
def test_median_ranks_equal_published_tables(n: int, ranks: tuple[int, int] | None) -> None:
    assert stats.median_ranks(n) == ranks


def test_exact_and_approximate_ranks_meet() -> None:
    exact = stats.median_ranks(stats.EXACT_UP_TO)
    beyond = stats.median_ranks(stats.EXACT_UP_TO + 1)
    assert exact is not None
    assert beyond is not None
    assert abs(exact[0] - beyond[0]) <= 2


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(0)
    hits = 0
    for _ in range(1000):
        interval = stats.median_interval(sorted(draw.lognormvariate(0, 1) for _ in range(25)))
        assert interval is not None
        low, high = interval
        hits += low <= 1.0 <= high
    assert hits >= 940


def test_narrow_needs_samples_and_agreement() -> None:
    assert not stats.is_narrow([1.0] * 5, 0.02)
    assert stats.is_narrow([1.0] * 6, 0.02)
    assert not stats.is_narrow([float(i) for i in range(1, 40)], 0.02)


@given(st.lists(st.floats(0.1, 1e3), min_size=6, max_size=200))
def test_interval_holds_the_sample_median(values: list[float]) -> None:
    interval = stats.median_interval(sorted(values))
    assert interval is not None
    low, high = interval
    assert low <= statistics.median(values) <= high


def test_the_error_of_a_median_sees_that_neighbours_depend_on_each_other() -> None:
    """Samples of a machine that is fast or slow for 50 of them at a time."""
    draw = random.Random(1)
    logs, errors = [], []
    for _ in range(300):
        samples: list[float] = []
        for _ in range(8):
            samples += [draw.lognormvariate(speed, 0.02) for speed in [draw.gauss(0, 0.1)] for _ in range(50)]
        logs.append(math.log(statistics.median(samples)))
        error = stats.log_error(samples)
        assert error is not None
        errors.append(error)
    assert statistics.median(errors) == pytest.approx(statistics.stdev(logs), rel=0.35)
    assert stats.log_error([1.0] * 15) is None
    assert stats.log_error([2.0] * 16) == 0.0
