"""Order statistics of timing samples: median, spread and a distribution-free interval; owns no clock and no loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

CONFIDENCE = 0.95
FAR_OUT = 3.0
"""Distances of the quartiles beyond which a value is far out (Tukey, Exploratory Data Analysis, 1977, §2D)."""
EXACT_UP_TO = 1000
"""Above this many samples the normal approximation of the binomial is exact to well below one rank."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """The `q` quantile of ascending values, linear between neighbours (type 7, as numpy's default)."""
    if not ordered:
        raise ValueError("no samples")
    place = (len(ordered) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@lru_cache(maxsize=4096)
def median_ranks(n: int) -> tuple[int, int] | None:
    """Ranks, from 0, of the samples between which the true median lies with at least 95 % confidence.

    The number of samples below the median is Binomial(n, 1/2), whatever the distribution (David & Nagaraja,
    Order Statistics, 2003, §7.1). None below six samples: even (min, max) is less sure than that.
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


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median of ascending samples; (min, max) where there are too few samples for one."""
    ranks = median_ranks(len(ordered))
    return (ordered[0], ordered[-1]) if ranks is None else (ordered[ranks[0]], ordered[ranks[1]])


def is_narrow(ordered: Sequence[float], relative: float) -> bool:
    """Whether the 95 % interval of the median is within ± `relative` of the median."""
    if median_ranks(len(ordered)) is None:
        return False
    low, high = median_interval(ordered)
    return high - low <= 2.0 * relative * quantile(ordered, 0.5)


def decile_interval(deciles: Sequence[float], n: int, decile: int) -> tuple[float, float] | None:
    """95 % interval of the quantile `decile` / 10 of `n` samples of which only the eleven deciles are kept.

    The ranks between which it lies are those of the normal approximation of the binomial; what stood there is
    interpolated between the deciles. None where the lower rank would be below the least sample.
    """
    q = decile / 10
    middle, wide = q * (n - 1), 1.959964 * math.sqrt(n * q * (1.0 - q))
    low, high = math.floor(middle - wide), math.ceil(middle + wide)
    if low < 0 or high > n - 1:
        return None
    return quantile(deciles, low / (n - 1)), quantile(deciles, high / (n - 1))
