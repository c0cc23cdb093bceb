# pyright: strict
"""Number of cache lines that a kernel fetches, from indices, positions and scales; pure functions.

Vector cores with wide vectors (950PR) load single elements through caches, one line per access. Earlier cores first
transpose the tensor so that the elements are in rows. Measured gathers and samples show that the 950PR does not
transpose.
"""

from __future__ import annotations

from collections.abc import Sequence

LINE_BYTES = 128
"""Bytes of an L2 cache line."""
LINE_CYCLES = 3.1
"""Cycles that a core waits per line from L2.

With all 64 cores of a 950PR, this is 22 to 28 ps per line, or 4.7 TB/s (measured by gathers of 0.5 to 8 million
elements, hicann/cann-bench).
"""
CORE_CACHE_BYTES = 128 << 10
"""Bytes of fetched lines that a core's cache holds. Measured: gathers from slices of 270 KB fetch half of the lines
again.
"""
RANDOM_L2_SHARE = 0.25
"""Share of L2 that holds a randomly accessed table while other data stream through.

Measured by gathers on a 950PR with 128 MiB of L2: lines of a table of 33 MB come from L2, lines of tables of 134 and
268 MB mostly from memory.
"""
BY_THREADS = 6.0
"""Cost of looking up an element with threads, relative to vector instructions that access a core's own memory.

Threads take 8 ps on a 950PR. Vectors take 5 ps on a 910B2, where the transposition is counted separately (gather,
hicann/cann-bench).
"""
SAMPLED_BY_THREADS = 0.3
"""Cost of interpolating an element with threads, relative to doing it with vectors. The element is interpolated from
four or eight elements of an image.

Threads take 5 ps on a 950PR, without the time for cache lines. Vectors take 94 ps on a 910B2.
"""
POSITIONS_TOGETHER = 64
"""Minimum number of grid positions that each core gets. Measured: 1024 positions of 128 channels take four times as
long as fetching their cache lines.
"""
SECTOR_BYTES = 32
"""Minimum bytes of a memory access."""
NEIGHBOURS = 2
"""Number of source elements, along each dimension, from which one result element is interpolated."""


def gathered_lines(count: int, along: int, inner: int, itemsize: int, table_bytes: int) -> float:
    """Return the cache lines fetched to look up `count` elements, each at one of `along` positions that are `inner`
    elements apart.

    Adjacent elements share the cache lines of a position. A slice that fits into a core's cache is fetched once.
    """
    apart = min(1.0, along * itemsize / LINE_BYTES) if inner > 1 else 1.0
    anew = max(0.0, 1.0 - CORE_CACHE_BYTES / max(1, along * inner * itemsize))
    return max(count * apart * anew, min(count, table_bytes / LINE_BYTES))


def sampled_lines(count: float, channels: int, itemsize: int) -> float:
    """Return the cache lines fetched for `count` result elements sampled at image positions.

    The lines are fetched again for each channel of a position: a 950PR takes 0.3 ps per byte for 11 to 128 channels
    (cann-bench). An element needs at most one line per neighbour in its plane.
    """
    return count * min(channels * itemsize / LINE_BYTES, NEIGHBOURS**2)


def beyond_l2(lines: float, table_bytes: float, slice_bytes: float, l2_bytes: float) -> float:
    """Return how many bytes of `lines` cache lines come from memory.

    The table's slices are accessed one after another, each in random order. Each line is loaded once, and again if L2
    did not keep it.
    """
    lost = max(0.0, 1.0 - RANDOM_L2_SHARE * l2_bytes / max(1.0, slice_bytes))
    return max(min(table_bytes, lines * LINE_BYTES), lines * LINE_BYTES * lost)


def touched(source: Sequence[int], result: Sequence[int], itemsize: int) -> float:
    """Return the share of an image of size `source` that is read to interpolate it to size `result`.

    For each result row, two image rows are read. Of these rows, only the sectors that contain the needed elements are
    read.
    """
    share = 1.0
    for size, wanted in zip(source[:-1], result[:-1], strict=True):
        share *= min(1.0, NEIGHBOURS * wanted / max(1, size))
    return share * min(1.0, max(SECTOR_BYTES, NEIGHBOURS * itemsize) * result[-1] / max(1, source[-1] * itemsize))
