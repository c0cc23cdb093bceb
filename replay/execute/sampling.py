# pyright: strict
"""Take samples of one op together with reference workloads, and repeat interrupted samples.

This module decides when there are enough samples. `measure` summarizes them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opreplay.replay.execute.executors.base import Executor, Prepared
from opreplay.replay.execute.executors.clocks import Clock
from opreplay.replay.results import stats
from opreplay.replay.results.measurement import MeasureWarning, RunCache

if TYPE_CHECKING:
    from opreplay.replay.execute.options import MeasureOptions

CHECK_EVERY = 4
OVERTIME = 2.0
"""Maximum extra time for a slow or often interrupted op, as a multiple of `op_time_s`."""
WALL = 3.0
"""Maximum ratio of wall time to the thread's own time when other programs use the CPUs."""
READINGS = 3
"""Maximum number of readings of the reference workloads per sample. An interrupted reading is repeated."""


class SamplePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a sample is taken."""

    calls: Sequence[Callable[[], Any]]
    """Calls to run in turn in a sample. If there is only one, it is repeated."""
    count: int
    evict: bool = False
    before: Callable[[], None] | None = None
    """Called right before each sample, after the reference workloads."""
    rewarm: Callable[[], Any] | None = None
    """An untimed call before each sample, so that the sample finds warm caches."""
    touch: Callable[[], Any] | None = None
    """Called after each reset to read the arguments again. The reset evicted them from the caches."""
    calls_between_resets: int = 0
    """Maximum number of calls between two resets, including `rewarm`; 0 to reset after each sample."""
    cache: RunCache
    graph: Callable[[], Any] | None = None
    """Launches all calls of a sample at once."""


class Sample(NamedTuple):
    """One batch of calls; times in microseconds per call."""

    took_us: float
    waited_us: float
    """Time during which the thread waited for a processor, per call."""
    gauge_us: tuple[float, ...]
    """Times of the reference workloads: means of the readings before and after the sample. Empty without workloads."""


class Samples:
    """Samples in time order."""

    def __init__(self) -> None:
        self.clean: list[Sample] = []
        self.interrupted: list[Sample] = []
        """Samples during which a thread of this process was preempted."""
        self.all: list[Sample] = []
        self.ordered: list[float] = []
        """Times of the uninterrupted samples, ascending."""
        self.lost_s = 0.0
        """Time of the interrupted samples, without waits for a processor."""

    def add(self, sample: Sample, *, interrupted: bool, spent_s: float) -> None:
        self.all.append(sample)
        if interrupted:
            self.interrupted.append(sample)
            self.lost_s += spent_s
        else:
            self.clean.append(sample)
            insort(self.ordered, sample.took_us)

    def chosen(self, *, enough: int, one_thread: bool) -> tuple[list[Sample], list[MeasureWarning]]:
        """Return the samples that count, in order, and warnings about them.

        If at least `enough` samples are uninterrupted, only these count. Otherwise, all samples count. In that case, a
        single thread's waits for a processor are subtracted. Times of several threads stay unchanged, because their
        waits overlap.
        """
        if len(self.clean) >= enough or not self.interrupted:
            return self.clean, []
        total_us = sum(sample.took_us for sample in self.all)
        waited_us = sum(sample.waited_us for sample in self.all) if one_thread else 0.0
        data = {
            "interrupted": float(len(self.interrupted)),
            "samples": float(len(self.all)),
            "left_out_share": waited_us / total_us if total_us > 0 else 0.0,
        }
        warning = MeasureWarning(kind="interrupted", data=data)
        if not one_thread:
            return self.all, [warning]
        return [s._replace(took_us=max(0.0, s.took_us - s.waited_us)) for s in self.all], [warning]


def collect(
    executor: Executor,
    prepared: Prepared,
    plan: SamplePlan,
    options: MeasureOptions,
    *,
    budget_s: float,
    left_s: float,
    fewest: int = 1,
) -> Samples:
    """Take samples until their median is precise enough or `budget_s` is used up.

    Takes at least `fewest` samples, unless `left_s` is used up first. Always takes at least one.
    """
    clock = executor.clock
    samples = Samples()
    turn = 0
    started, first_us = clock.now_s(), clock.interruptions().used_us or 0.0
    calls_a_sample, calls = plan.count + (plan.rewarm is not None), 0
    before_us = _prepared_sample(executor, plan, is_reset=True)
    while len(samples.all) < options.max_samples:
        if plan.evict:
            executor.evict()
            before_us = _prepared_sample(executor, plan)
        if plan.before is not None:
            plan.before()
        at = clock.interruptions()
        took_us = _time(clock, plan, turn)
        turn += plan.count
        since = clock.interruptions()
        calls += calls_a_sample
        if is_reset := calls + calls_a_sample > plan.calls_between_resets:
            executor.reset(prepared)
            calls = 0
        after_us = _prepared_sample(executor, plan, is_reset=is_reset)
        gauge_us = tuple((a + b) / 2 for a, b in zip(before_us, after_us, strict=True))
        before_us = after_us
        waited_us = since.waited_since(at, took_us)
        samples.add(
            Sample(took_us / plan.count, waited_us / plan.count, gauge_us),
            interrupted=since.switches > at.switches,
            spent_s=(took_us - waited_us) * 1e-6,
        )
        wall_s = clock.now_s() - started
        spent_s = wall_s if since.used_us is None else (since.used_us - first_us) * 1e-6
        if _enough(samples, min(spent_s, wall_s), wall_s, options, budget_s, left_s, fewest):
            break
    return samples


def _time(clock: Clock, plan: SamplePlan, turn: int) -> float:
    """Return the time of one sample in µs. `turn` selects the call with which the sample starts."""
    if plan.graph is not None:
        return clock.time_calls(plan.graph, 1)
    if len(plan.calls) == 1:
        return clock.time_calls(plan.calls[0], plan.count)
    return clock.time_each([plan.calls[(turn + i) % len(plan.calls)] for i in range(plan.count)])


def _prepared_sample(executor: Executor, plan: SamplePlan, *, is_reset: bool = False) -> tuple[float, ...]:
    """Read the reference workloads, then bring the caches into the state that a sample requires. Return the reading."""
    reading = _read(executor, plan)
    if is_reset and plan.touch is not None:
        plan.touch()
    if plan.rewarm is not None:
        plan.rewarm()
    return reading


def _read(executor: Executor, plan: SamplePlan) -> tuple[float, ...]:
    """Read the reference workloads, in µs.

    The memory workload flushes caches, so it is skipped if they should stay warm.
    """
    if executor.gauge is None:
        return ()
    reading: tuple[float, ...] = ()
    for _ in range(READINGS):
        at = executor.clock.interruptions().switches
        again = executor.gauge.read(executor.clock, memory=plan.cache != "warm")
        # What interrupts a reading only adds to it.
        reading = tuple(map(min, reading, again)) if reading else again
        if executor.clock.interruptions().switches == at:
            break
    return reading


def _enough(
    samples: Samples,
    spent_s: float,
    wall_s: float,
    options: MeasureOptions,
    budget_s: float,
    left_s: float,
    fewest: int,
) -> bool:
    """Check whether the median is precise enough, or the time is used up.

    The limits apply to the thread's own time. For wall time, a multiple of them applies.
    """
    clean, count = len(samples.clean), len(samples.all)
    a_sample_s = spent_s / count
    most_s = max(budget_s, 0.0) + OVERTIME * options.op_time_s
    if wall_s + wall_s / count > left_s:
        return True
    if count < fewest:
        return False
    if wall_s + wall_s / count > WALL * most_s:
        return True
    if clean < options.min_samples:
        return spent_s + a_sample_s > most_s
    if spent_s - samples.lost_s >= budget_s or spent_s >= most_s:
        return True
    settled = spent_s - samples.lost_s >= options.min_share * options.op_time_s
    return settled and clean % CHECK_EVERY == 0 and stats.is_narrow(samples.ordered, options.target_ci)
