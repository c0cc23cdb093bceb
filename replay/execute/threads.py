# pyright: strict
"""Thread count for ops on a shared CPU. It is chosen at the start, and checked again from an op's samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.execute.measure import measure
from opreplay.replay.host.idle import IDLE_SHARE
from opreplay.replay.results.measurement import Measurement, MeasureWarning, kind_of

if TYPE_CHECKING:
    from opreplay.replay.execute.executors.base import Executor, Prepared
    from opreplay.replay.execute.options import MeasureOptions
    from opreplay.replay.execute.visits import Visits
    from opreplay.replay.plan.step.recency import Recency

FAR_ABOVE = 3.0
"""Ratio of median to lowest decile of an op's times above which its threads are taken to wait for each other."""
WAITED_SHARE = 0.2
"""Share of the measuring time that all threads together waited for processors. Above it, the waits have
slowed the op.
"""
ALONE_SHARE = 0.5
"""Minimum share of an op's time limit that must be left to measure the op again with one thread."""


def fitting_threads(wanted: int, idle: float | None) -> int:
    """Return `wanted`, halved until enough processors are idle for the threads, but at least 1.

    Other counts are never returned. Two runs on a machine with similar load therefore get the same number.
    """
    threads = max(1, wanted)
    while idle is not None and threads > 1 and idle < IDLE_SHARE * threads:
        threads //= 2
    return threads


def measure_on_idle(
    executor: Executor,
    prepared: Prepared,
    options: MeasureOptions,
    *,
    recency: Recency | None = None,
    visits: Visits | None = None,
) -> Measurement:
    """Measure an op. If several threads waited for processors, repeat with one thread and return the shorter result.

    A warning in the measurement reports the waits, even without a repetition or with a longer one.
    """
    clock, threads = executor.clock, executor.threads
    if threads is None or threads < 2:
        return measure(executor, prepared, options, recency=recency, visits=visits)
    started, waited_us = clock.now_s(), clock.threads_waited_us()
    measurement = measure(executor, prepared, options, recency=recency, visits=visits)
    took_s, waited_s = clock.now_s() - started, (clock.threads_waited_us() - waited_us) * 1e-6
    if waited_s > WAITED_SHARE * took_s:
        data = {"threads": float(threads), "waited_s": waited_s, "took_s": took_s}
        waiting = MeasureWarning(kind="threads waited", data=data)
        measurement = msgspec.structs.replace(measurement, warnings=(*measurement.warnings, waiting))
    left_s = options.hard_limit_s() - took_s
    if not threads_waited(measurement) or left_s < ALONE_SHARE * options.hard_limit_s():
        return measurement
    executor.use_threads(1)
    try:
        within = msgspec.structs.replace(options, limit_s=left_s)
        alone = measure(executor, prepared, within, recency=recency, visits=visits)
    finally:
        executor.use_threads(threads)
    if alone.median_us >= measurement.median_us:
        return measurement
    data = {"threads": float(threads), "threads_us": measurement.median_us}
    warnings = (*alone.warnings, MeasureWarning(kind="one thread", data=data))
    return msgspec.structs.replace(alone, first_call_us=measurement.first_call_us, warnings=warnings)


def threads_waited(measurement: Measurement) -> bool:
    """Check whether the samples suggest that threads waited for processors that other programs used."""
    kinds = {kind_of(warning) for warning in measurement.warnings}
    if kinds & {"interrupted", "threads waited"} or measurement.repeated > measurement.samples:
        return True
    deciles = measurement.deciles_us
    return len(deciles) == 11 and deciles[1] > 0 and deciles[5] > FAR_ABOVE * deciles[1]
