# pyright: strict
"""Measure an op in several rounds, far apart in a run. Has the time of each round, and the combined result.

A busy machine is slow for a while, and some ops suffer more than others. Rounds that are far apart see several of these
states. The spread between rounds gives the error of their mean. It also shows how closely the op follows the reference
workloads (`results.compare.visits`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.sampling import Sample
from opreplay.replay.host.idle import is_busy
from opreplay.replay.results.measurement import MeasuredCache, MeasureWarning

BUSY = 8
"""Default number of rounds on a busy machine.

In the same time as three rounds, eight rounds reveal a third more of the ops that became slower
(`benchmarks/compare_power.py --load 4 --visits 8`).
"""
FEWEST_SAMPLES = 6
"""Minimum number of samples of an op, however long they take. The interval of the median needs six."""
FEWEST = 3
"""Minimum number of samples in a round."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Number of a round of an op, counted from 0, and number of all its rounds."""

    number: int = 0
    of: int = 1


WHOLE = Visit()
"""The only round of an op that is measured in one round."""


def visits_of(asked: int | None, facts: Mapping[str, object]) -> int:
    """Return the number of rounds per op: `asked` if set, otherwise a number chosen from the executor's facts on idle
    processors.
    """
    if asked is not None:
        return asked
    return BUSY if is_busy(facts) else 1


class VisitSamples(NamedTuple):
    """The samples of one round."""

    samples: tuple[Sample, ...]
    """Samples in time order."""
    threads: int | None
    cache: MeasuredCache
    first_call_us: float
    repeated: int
    warnings: tuple[MeasureWarning, ...]
    """Warnings of this round."""

    def medians(self) -> tuple[float, ...]:
        """Return the median of the samples, then the median of each reference workload."""
        gauges = zip(*(sample.gauge_us for sample in self.samples), strict=True)
        return (statistics.median(sample.took_us for sample in self.samples), *map(statistics.median, gauges))


class Visits:
    """The rounds of one op so far."""

    def __init__(self, of: int = 1) -> None:
        self.of = of
        self._visits: list[VisitSamples] = []

    def share(self, options: MeasureOptions) -> MeasureOptions:
        """Return the options for one round, with its share of the total time and samples."""
        if self.of == 1:
            return options
        return msgspec.structs.replace(
            options,
            op_time_s=options.op_time_s / self.of,
            min_samples=self._min_samples(options.min_samples),
            max_samples=math.ceil(options.max_samples / self.of),
            limit_s=options.hard_limit_s(),
        )

    def _min_samples(self, all_visits: int) -> int:
        """Return the minimum number of samples of the next round.

        The first round takes as many as all rounds together, because the run may decide that no other round follows.
        """
        return min(all_visits, max(FEWEST, math.ceil(all_visits / self.of))) if self._visits else all_visits

    def fewest_samples(self, threads: int | None, cache: MeasuredCache) -> int:
        """Return the minimum number of samples of the next round, however long they take.

        Together with the samples of earlier rounds with these threads and this cache state, there are then
        `FEWEST_SAMPLES`.
        """
        same = sum(len(visit.samples) for visit in self._visits if (visit.threads, visit.cache) == (threads, cache))
        return max(1, FEWEST_SAMPLES - same)

    def add(self, visit: VisitSamples) -> list[VisitSamples]:
        """Add a round; return all rounds with the same threads and caches, this one last."""
        self._visits.append(visit)
        return [other for other in self._visits if (other.threads, other.cache) == (visit.threads, visit.cache)]


class Book:
    """Samples that a process keeps for ops that have further rounds."""

    def __init__(self) -> None:
        self._open: dict[str, Visits] = {}

    def of(self, id_: str, visit: Visit) -> Visits:
        """Return the rounds of an op so far; in the last round, remove them from the book."""
        if visit.number == 0:
            self._open[id_] = Visits(visit.of)
        visits = self._open.get(id_) or Visits(visit.of)
        if visit.number + 1 >= visit.of:
            self._open.pop(id_, None)
        return visits


def first_checks(options: MeasureOptions, visit: Visit) -> MeasureOptions:
    """Return the options for a round. Only the first round checks kernels and values."""
    if visit.number == 0 or not (options.check_kernels or options.check_values):
        return options
    return msgspec.structs.replace(options, check_kernels=False, check_values=False)
