# pyright: strict
"""Order statistics of timing samples: median, spread and a distribution-free interval. Does no timing itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

CONFIDENCE = 0.95
FAR_OUT = 3.0
"""Number of interquartile ranges beyond which a value is an outlier (Tukey, Exploratory Data Analysis, 1977, §2D)."""
EXACT_UP_TO = 1000
"""Number of samples above which the binomial is approximated by a normal distribution, exact to well below one rank."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the `q` quantile of ascending values, interpolated linearly (type 7, numpy's default)."""
    if not ordered:
        raise ValueError("no samples")
    place = (len(ordered) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@lru_cache(maxsize=4096)
def median_ranks(n: int) -> tuple[int, int] | None:
    """Return the ranks, counted from 0, of two samples that enclose the true median with at least 95 % confidence.

    For any distribution, the number of samples below the median is Binomial(n, 1/2) (David & Nagaraja, Order
    Statistics, 2003, §7.1). Return None below six samples, for which even the smallest and the largest give less
    confidence.
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    if n <= EXACT_UP_TO:
        below = 0.0
        rank = -1
        for k in range(n // 2):
            below += math.comb(n, k) * 0.5**n
            if below > tail:
                break
            rank = k
        return (rank, n - 1 - rank) if rank >= 0 else None
    rank = math.floor(n / 2 - 1.959964 * math.sqrt(n) / 2) - 1
    return rank, n - 1 - rank


def median_interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median of samples in ascending order; None if there are too few samples."""
    ranks = median_ranks(len(ordered))
    return None if ranks is None else (ordered[ranks[0]], ordered[ranks[1]])


def is_narrow(ordered: Sequence[float], relative: float) -> bool:
    """Check whether the 95 % interval of the median is within ± `relative` of the median."""
    interval = median_interval(ordered)
    return interval is not None and interval[1] - interval[0] <= 2.0 * relative * quantile(ordered, 0.5)


BATCHES = 8
"""Number of batches of consecutive samples. The spread of the batches' medians gives the error.

Eight batches give seven degrees of freedom, which is enough.
"""


def log_error(in_order: Sequence[float]) -> float | None:
    """Return the standard error of the logarithm of the median of positive samples; None below 16 samples.

    The samples are given in the order of measurement. Neighbouring samples are correlated, because a machine is fast or
    slow for many samples at a time. An interval from ranks does not capture this. Therefore non-overlapping batch means
    are used (Law, Simulation Modeling and Analysis, 2015, section 9.5.3).
    """
    if len(in_order) < 2 * BATCHES:
        return None
    import statistics  # late: it loads fractions, decimal and random, and most commands measure nothing

    edges = [len(in_order) * i // BATCHES for i in range(BATCHES + 1)]
    logs = [math.log(max(statistics.median(in_order[a:b]), 1e-12)) for a, b in pairwise(edges)]
    return statistics.stdev(logs) / math.sqrt(BATCHES)
