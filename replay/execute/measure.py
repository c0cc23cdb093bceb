# pyright: strict
"""The measuring loop: take samples, summarize them, and decide on warnings.

Other modules handle devices and clocks.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from opreplay.replay.execute.executors.base import Executor, Prepared
from opreplay.replay.execute.executors.clocks import UNSTABLE
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.execute.sampling import SamplePlan, collect
from opreplay.replay.execute.visits import Visits, VisitSamples
from opreplay.replay.host import environment
from opreplay.replay.ir.reasons import NotReplayable, Reason
from opreplay.replay.plan.step.recency import Recency
from opreplay.replay.results import stats
from opreplay.replay.results.measurement import Measurement, MeasureWarning
from opreplay.traces.garbage import collector_off

SAMPLE_US = 500.0
"""Target duration of a sample. It is a thousand times the resolution of common clocks, and short enough for 400 samples
per op.
"""
NOISY_IQR = 0.10
"""A ratio of interquartile range to median above this causes a warning."""
RESOLUTION_SHARE = 0.01
"""Samples shorter than the clock's resolution divided by this share cause a warning."""
ONCE_S, ONCE_PER_OP_TIME = 1.0, 10.0
"""Limits above which the warm-up calls serve as the samples. A call must take longer than both `ONCE_S` and
`ONCE_PER_OP_TIME` · `op_time_s`.
"""
WAITED_SHARE = 0.1
"""Share of the time that the thread of a slow op waits for a processor. A larger share causes a warning."""
LEFT_SHARE = 0.8
"""Share of the op's remaining time limit that sampling may use."""
COPIES = 32
"""Maximum number of copies of the arguments that cold samples alternate between."""
FEW_BYTES, NEAR_BYTES = 512, 1 << 20
"""Maximum sizes for measuring an op in consecutive calls: FEW_BYTES for its arguments, NEAR_BYTES for the reuse
distance of its code.

At this distance, the code is in a private cache. Fetching the eight cache lines of the arguments takes about 0.1 us per
line. In contrast, a 1 us call that is timed alone measures 3 to 6 us (scalars of AdamW, a busy machine).
"""
COLD_FOOTPRINT = 2.0
"""Size of arguments and copies, as a multiple of the last-level cache, from which they evict each other."""


def measure(
    executor: Executor,
    prepared: Prepared,
    options: MeasureOptions,
    *,
    recency: Recency | None = None,
    visits: Visits | None = None,
) -> Measurement:
    """Time `prepared.call` until the median is precise enough or the time is used up.

    With `visits`, use one round's share of the time, and include samples of earlier rounds. `recency` has the recorded
    step's reuse distances, which are needed to restore the state of the caches.

    Slow ops get six samples if more would take over about three times `op_time_s`. For very slow ops, all warm-up calls
    except the first count as samples. If the op's time limit leaves no time for a second call, the first call is the
    measurement, with a warning. If that call imported modules, NotReplayable is raised. Exceptions of the op pass
    through.
    """
    clock, started = executor.clock, executor.clock.now_s()
    visits, whole = visits or Visits(), options
    options = visits.share(options)
    warm = warm_up(executor, prepared, options)
    first_us = warm.took_us[0] if prepared.first_call_us is None else prepared.first_call_us
    call_us, left_s = warm.call_us, options.hard_limit_s() - (clock.now_s() - started)
    if len(warm.took_us) == 1 and warm.imported:
        raise NotReplayable(Reason("budget", f"time: set-up took {first_us * 1e-6:.2g} s (--set op_limit)"))
    longest_s = min(LEFT_SHARE * left_s, max(ONCE_S, ONCE_PER_OP_TIME * options.op_time_s))
    if len(warm.took_us) == 1 or call_us * 1e-6 > longest_s:
        return _of_slow(warm, first_us, executor, options)
    # What calls took that set something up is not counted against the samples.
    budget_s = options.op_time_s - max(0.0, len(warm.took_us) * call_us * 1e-6 - options.op_time_s)
    limit = clock.max_calls if prepared.max_calls is None else min(clock.max_calls, prepared.max_calls)
    calls = calls_per_sample(call_us, limit)
    host_us = clock.launch_us(prepared.call, calls)
    executor.reset(prepared)
    plan = _plan(executor, prepared, calls, options, recency)
    capture_warnings: list[MeasureWarning] = []
    if options.cuda_graph and host_us is not None and host_us > call_us and not prepared.max_calls:
        plan, capture_warnings = _captured(executor, plan)
    fewest = visits.fewest_samples(executor.threads, plan.cache)
    throttled = environment.throttle_events()
    with collector_off():
        samples = collect(
            executor, prepared, plan, options, budget_s=budget_s, left_s=LEFT_SHARE * left_s, fewest=fewest
        )
    clean, interrupted = samples.chosen(enough=options.min_samples, one_thread=executor.threads == 1)
    visit = VisitSamples(
        samples=tuple(clean),
        threads=executor.threads,
        cache=plan.cache,
        first_call_us=first_us,
        repeated=len(samples.all) - len(clean),
        warnings=tuple(interrupted),
    )
    comparable_visits = visits.add(visit)
    measurement = _of_visits(executor, plan, whole, comparable_visits, host_us, capture_warnings)
    if (events := environment.throttle_events() - throttled) > 0:
        throttling = MeasureWarning(kind="throttled", data={"events": events})
        measurement = msgspec.structs.replace(measurement, warnings=(*measurement.warnings, throttling))
    if visits.of == 1:
        return measurement
    return msgspec.structs.replace(measurement, visits=tuple(visit.medians() for visit in comparable_visits))


def _of_visits(
    executor: Executor,
    plan: SamplePlan,
    options: MeasureOptions,
    visits: Sequence[VisitSamples],
    host_us: float | None,
    capture_warnings: Sequence[MeasureWarning],
) -> Measurement:
    """Return the measurement from the samples of all rounds. `host_us` is the host's time to launch a call."""
    samples = [sample for visit in visits for sample in visit.samples]
    in_order = [sample.took_us for sample in samples]
    resolution_us = executor.clock.resolution_us
    measurement = summarize(sorted(in_order), calls=plan.count, resolution_us=resolution_us, options=options)
    warnings = [*measurement.warnings, *capture_warnings]
    warnings += {warning.kind: warning for visit in visits for warning in visit.warnings}.values()
    warnings += [] if plan.graph is not None else _host_warnings(host_us, measurement.median_us)
    warnings += _cache_warnings(executor, plan)
    gauge_us = [sample.gauge_us for sample in samples]
    if executor.gauge is not None and all(gauge_us):
        measurement = against_gauge(measurement, in_order, gauge_us)
        assert measurement.gauge_us is not None
        warnings += gauge_warnings(measurement.gauge_us, executor.gauge.best_us)
    return msgspec.structs.replace(
        measurement,
        warnings=tuple(warnings),
        cache=plan.cache,
        host_us=host_us,
        graph=plan.graph is not None,
        first_call_us=visits[0].first_call_us,
        repeated=sum(visit.repeated for visit in visits),
        median_error=stats.log_error(in_order),
        threads=executor.threads,
    )


def _of_slow(warm: WarmUp, first_us: float, executor: Executor, options: MeasureOptions) -> Measurement:
    """Return the measurement from warm-up calls, for an op that is too slow to sample."""
    share, count = warm.waited_share, float(len(warm.settled_us))
    waited_share = share if executor.threads == 1 else 0.0
    took_us = sorted((1.0 - waited_share) * us for us in warm.settled_us)
    summary = summarize(took_us, calls=1, resolution_us=executor.clock.resolution_us, options=options)
    warnings = [*summary.warnings, *warm.warnings]
    if share > WAITED_SHARE:
        data = {"interrupted": count, "samples": count, "left_out_share": waited_share}
        warnings.append(MeasureWarning(kind="interrupted", data=data))
    return msgspec.structs.replace(summary, first_call_us=first_us, threads=executor.threads, warnings=tuple(warnings))


def calls_per_sample(call_us: float, limit: int) -> int:
    """Return the number of calls in a sample of about `SAMPLE_US`, from the estimated time of one call."""
    return max(1, min(limit, math.ceil(SAMPLE_US / max(call_us, 1e-3))))


def _plan(
    executor: Executor, prepared: Prepared, calls: int, options: MeasureOptions, recency: Recency | None
) -> SamplePlan:
    """Plan samples with arguments in the requested cache state.

    Cold: arguments that fill the last-level cache twice evict each other, and smaller arguments alternate with copies.
    If even the copies do not fill the cache twice, it is flushed before each sample, and a sample uses each copy once.

    Step: a sample is one call after the memory accesses of the step. Ops with few bytes of arguments are measured in
    consecutive calls, because fetching the arguments takes less time than the timing error.
    """
    size, cache = prepared.argument_bytes, executor.cache_bytes
    warm = _warm_plan(executor, prepared, calls)
    if options.cache == "step" and recency is not None:
        if size <= FEW_BYTES and recency.code <= NEAR_BYTES:
            return msgspec.structs.replace(warm, cache="step")
        if (restore_caches := executor.as_in_step(prepared, recency)) is not None:
            return SamplePlan(calls=(prepared.call,), count=1, before=restore_caches, cache="step")
    if options.cache == "warm" or not size or not cache:
        return warm
    if size >= COLD_FOOTPRINT * cache:
        return msgspec.structs.replace(warm, count=calls, cache="cold", rewarm=None, touch=None, calls_between_resets=0)
    turns = math.ceil(COLD_FOOTPRINT * cache / size)
    copies = prepared.copies(turns if turns <= COPIES else min(COPIES, calls))
    if len(copies) >= turns:
        return SamplePlan(calls=copies, count=calls, cache="cold")
    return SamplePlan(calls=copies, count=min(calls, len(copies)), evict=True, cache="cold")


def _warm_plan(executor: Executor, prepared: Prepared, calls: int) -> SamplePlan:
    """Plan samples with calls that find their arguments in the caches, as the previous call left them.

    A reset evicts arguments. Therefore resets happen only after `max_calls` calls, unless the op's time depends on the
    values. Arguments that fit into the cache are read again after a reset.

    An untimed call precedes each sample of several calls, and counts toward `max_calls`. Before a sample of one call,
    an untimed call would change the timed values. It is made only if the arguments do not fit into the cache, because
    the op may use only part of them.
    """
    warm = SamplePlan(calls=(prepared.call,), count=calls, cache="warm", rewarm=prepared.call if calls > 1 else None)
    limit = prepared.max_calls
    if limit is None:
        return warm
    fits = prepared.argument_bytes <= executor.cache_bytes
    with_call = limit > 1 and (calls > 1 or not fits)
    return msgspec.structs.replace(
        warm,
        count=min(calls, limit - 1) if with_call else calls,
        rewarm=prepared.call if with_call else None,
        touch=partial(executor.touch, prepared) if fits else None,
        calls_between_resets=0 if prepared.time_goes_by_values else limit,
    )


def _captured(executor: Executor, plan: SamplePlan) -> tuple[SamplePlan, list[MeasureWarning]]:
    """Capture the plan's sample as a graph. If that fails, return the unchanged plan with a warning.

    If the device does not support graphs, return the unchanged plan without a warning.
    """
    calls = [plan.calls[i % len(plan.calls)] for i in range(plan.count)]
    try:
        graph = executor.capture(calls)
    except RuntimeError:
        return plan, [MeasureWarning(kind="not captured")]
    return (plan, []) if graph is None else (msgspec.structs.replace(plan, graph=graph), [])


def against_gauge(
    measurement: Measurement, in_order: Sequence[float], gauge_us: Sequence[tuple[float, ...]]
) -> Measurement:
    """Return the measurement with its time relative to the reference workloads.

    Samples (us per call) and readings are in time order. A sample is divided by the (n + 1)th root of the product of
    its n readings. With both workloads, this is their geometric mean to the power of 2/3. Full readings would divide by
    too much: other programs on the same core or memory bus slow down ops less than the workloads, which only compute or
    only move data.

    This result varies least. On a shared machine, it varies by 5 % from run to run, medians by 12 %, and plain
    quotients by 9 % (the 50 ops of `benchmarks/compare_power.py`).
    """
    relative = [
        sample / max(math.prod(readings), 1e-9) ** (1.0 / (1 + len(readings)))
        for sample, readings in zip(in_order, gauge_us, strict=True)
    ]
    compute_us = [readings[0] for readings in gauge_us]
    half = (len(compute_us) + 1) // 2
    return msgspec.structs.replace(
        measurement,
        gauge_us=(statistics.median(compute_us[:half]), statistics.median(compute_us[-half:])),
        relative=statistics.median(relative),
        relative_error=stats.log_error(relative),
    )


def summarize(ordered: list[float], *, calls: int, resolution_us: float, options: MeasureOptions) -> Measurement:
    """Return the measurement, with warnings, for samples in us per call, sorted ascending."""
    deciles = tuple(stats.quantile(ordered, step / 10) for step in range(11))
    median, (low, high) = deciles[5], stats.median_interval(ordered) or (None, None)
    upper = stats.quantile(ordered, 0.75)
    iqr = upper - stats.quantile(ordered, 0.25)
    warnings: list[MeasureWarning] = []
    if len(ordered) < options.min_samples:
        data = {"samples": float(len(ordered)), "wanted": float(options.min_samples)}
        warnings.append(MeasureWarning(kind="few samples", data=data))
    if median > 0 and iqr > NOISY_IQR * median:
        warnings.append(MeasureWarning(kind="noisy", data={"iqr_share": iqr / median}))
    if median * calls * RESOLUTION_SHARE < resolution_us:
        data = {"resolution_us": resolution_us, "sample_us": median * calls}
        warnings.append(MeasureWarning(kind="timer resolution", data=data))
    return Measurement(
        median_us=median,
        iqr_us=iqr,
        min_us=ordered[0],
        max_us=ordered[-1],
        samples=len(ordered),
        calls_per_sample=calls,
        ci_low_us=low,
        ci_high_us=high,
        warnings=tuple(warnings),
        deciles_us=deciles,
        outliers=sum(sample > upper + stats.FAR_OUT * iqr for sample in ordered),
    )


def scale_to_whole_op(measurement: Measurement, part: float) -> Measurement:
    """Scale the times of the share `part` (0..1] of an op to the whole op. Adds a warning if `part` is not 1."""
    if part == 1.0:
        return measurement
    times = {
        name: value / part
        for name in ("median_us", "iqr_us", "min_us", "max_us", "ci_low_us", "ci_high_us")
        if (value := getattr(measurement, name)) is not None
    }
    deciles = tuple(value / part for value in measurement.deciles_us)
    if measurement.relative is not None:
        times["relative"] = measurement.relative / part
    warning = MeasureWarning(kind="part of the op", data={"share": part})
    return msgspec.structs.replace(
        measurement,
        **times,
        deciles_us=deciles,
        part=part,
        warnings=(*measurement.warnings, warning),
    )


def gauge_warnings(gauge_us: tuple[float, float], best_us: float | None) -> list[MeasureWarning]:
    """Return warnings about the machine.

    `gauge_us` has the median reading of the reference workload in each half of the samples. `best_us` is the lowest
    reading of the run.
    """
    before, after = gauge_us
    if max(gauge_us) > UNSTABLE * min(gauge_us):
        return [MeasureWarning(kind="unstable clock", data={"before_us": before, "after_us": after})]
    if best_us and min(gauge_us) > UNSTABLE * best_us:
        return [MeasureWarning(kind="other load", data={"times": min(gauge_us) / best_us})]
    return []


def _cache_warnings(executor: Executor, plan: SamplePlan) -> list[MeasureWarning]:
    if not plan.evict or executor.evicted_bytes >= executor.cache_bytes:
        return []
    data = {"flushed_bytes": float(executor.evicted_bytes), "cache_bytes": float(executor.cache_bytes)}
    return [MeasureWarning(kind="cache partly warm", data=data)]


def _host_warnings(host_us: float | None, device_us: float) -> list[MeasureWarning]:
    """Return a warning if launching takes the host longer than the device computes.

    In a model, this device time would not be visible.
    """
    if host_us is None or host_us <= device_us:
        return []
    return [MeasureWarning(kind="launch-bound", data={"host_us": host_us, "device_us": device_us})]


SETTLED = 0.75
"""Minimum ratio of the shorter to the longer of two consecutive call times to count as similar."""
SECOND_SHARE = 0.9
"""Maximum share of the op's time limit that two calls may take for a second call to be made. Both are assumed to be as
long as the first.
"""
SETTLING_SHARE = 1.0 / 3.0
"""Share of the op's time limit after which warm-up stops waiting for stable times."""


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the warm-up calls in microseconds, in order; at least one."""

    took_us: tuple[float, ...]
    waited_us: tuple[float, ...]
    """Time for which the thread waited for a processor during each call."""
    imported: bool = False
    """Whether the first call imported modules; the import is not part of the op's time."""

    @property
    def call_us(self) -> float:
        """The shortest time of a call."""
        return min(self.took_us)

    @property
    def settled_us(self) -> tuple[float, ...]:
        """Times of the calls since the times became similar. The first call counts only if there is no other."""
        return self.took_us[self._settled_from :] or self.took_us

    @property
    def _settled_from(self) -> int:
        return max((i for i in range(1, len(self.took_us)) if not alike(*self.took_us[i - 1 : i + 1])), default=1)

    @property
    def waited_share(self) -> float:
        """Share of `settled_us` for which the thread waited for a processor."""
        waited_us = self.waited_us[self._settled_from :] or self.waited_us
        return min(1.0, sum(waited_us) / max(sum(self.settled_us), 1e-9))

    @property
    def warnings(self) -> tuple[MeasureWarning, ...]:
        """Reasons why these calls alone are not a good measurement."""
        if len(self.took_us) == 1:
            return (MeasureWarning(kind="first call", data={"first_s": self.took_us[0] * 1e-6}),)
        before_us, last_us = self.took_us[-2:]
        if alike(before_us, last_us):
            return ()
        return (MeasureWarning(kind="not settled", data={"before_us": before_us, "last_us": last_us}),)


def warm_up(executor: Executor, prepared: Prepared, options: MeasureOptions) -> WarmUp:
    """Make calls until caches, allocators, compilers and tuners have warmed up, or the time for this is used up."""
    clock = executor.clock
    started = clock.now_s()
    took_us: list[float] = []
    waited_us: list[float] = []
    modules = len(sys.modules)
    imported = False
    while True:
        at = clock.interruptions()
        took_us.append(clock.time_calls(prepared.call, 1))
        waited_us.append(clock.interruptions().waited_since(at, took_us[-1]))
        executor.reset(prepared)
        imported = imported or (len(took_us) == 1 and len(sys.modules) > modules)
        if _over(took_us, clock.now_s() - started, options, imported=imported):
            return WarmUp(took_us=tuple(took_us), waited_us=tuple(waited_us), imported=imported)


def alike(before_us: float, after_us: float) -> bool:
    """Check whether two call times are similar, so that neither call did extra work."""
    return min(before_us, after_us) >= SETTLED * max(before_us, after_us)


def _over(took_us: Sequence[float], spent_s: float, options: MeasureOptions, *, imported: bool) -> bool:
    if len(took_us) == 1:
        # How long a first call took that imported modules says nothing about the second.
        return (1.0 if imported else 2.0) * spent_s > SECOND_SHARE * options.hard_limit_s()
    if len(took_us) >= options.max_warmup_calls:
        return True
    if not alike(took_us[-2], took_us[-1]) and max(took_us[-2:]) * 1e-6 > options.warmup_s:
        return spent_s >= SETTLING_SHARE * options.hard_limit_s()
    after_s = sum(took_us[1:]) * 1e-6
    return after_s >= options.op_time_s or (len(took_us) >= options.warmup_calls and after_s >= options.warmup_s)
