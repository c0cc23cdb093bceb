"""The measuring loop: warm-up, batches of calls, when to stop, and what to warn about; owns no device and no clock."""

from __future__ import annotations

import gc
import math
import statistics
from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from opreplay.replay.execute.executors.base import Executor, Prepared
from opreplay.replay.execute.executors.reference_load import UNSTABLE
from opreplay.replay.execute.options import MeasureOptions
from opreplay.replay.host import environment
from opreplay.replay.results import stats
from opreplay.replay.results.measurement import CacheState, Measurement, MeasureWarning

SAMPLE_US = 500.0
"""Length aimed at for one sample: a thousand times the resolution of common clocks, and 400 fit into the budget."""
NOISY_IQR = 0.10
"""Quartiles further apart than this share of the median are worth a warning."""
RESOLUTION_SHARE = 0.01
"""A sample shorter than the clock's resolution divided by this is worth a warning."""
CHECK_EVERY = 4
ONCE_S, ONCE_PER_OP_TIME = 1.0, 10.0
"""A first call longer than both this and this many times `op_time_s` is the only one: what is set up in a first call is
small against it, and a second one would double the time of the run."""
COPIES = 32
"""Most sets of arguments that a cold sample goes through."""
COLD_FOOTPRINT = 2.0
"""Arguments, or copies of them, that fill the last cache this many times have left it when their turn comes again."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one sample is made of."""

    calls: Sequence[Callable[[], Any]]
    """One to be repeated, or as many as a sample has."""
    count: int
    evict: bool = False
    rewarm: bool = False
    """Whether a call that is not timed follows what is done between samples, so that these find warm caches."""
    cache: CacheState
    graph: Callable[[], Any] | None = None
    """Launches the whole sample at once."""


def measure(executor: Executor, prepared: Prepared, options: MeasureOptions) -> Measurement:
    """Time `prepared.call` until the median is known well enough or the time is spent.

    Slow ops get fewer samples than `min_samples` rather than more than about three times `op_time_s`, very slow ones
    are called once; the measurement then carries a warning. Whatever the op raises passes through.
    """
    clock = executor.clock
    call_us, budget_s = _warm_up(executor, prepared, options)
    if call_us * 1e-6 > max(ONCE_S, ONCE_PER_OP_TIME * options.op_time_s):
        return summarize([call_us], calls=1, resolution_us=clock.resolution_us, options=options)
    limit = clock.max_calls if prepared.max_calls is None else min(clock.max_calls, prepared.max_calls)
    calls = calls_per_sample(call_us, limit)
    host_us = clock.launch_us(prepared.call, calls)
    executor.reset(prepared)
    plan = _plan(executor, prepared, calls, options)
    failed: list[MeasureWarning] = []
    if options.cuda_graph and host_us is not None and host_us > call_us and not prepared.max_calls:
        plan, failed = _captured(executor, plan)
    throttled = environment.throttle_events()
    collecting = gc.isenabled()
    gc.disable()
    try:
        samples = _collect(executor, prepared, plan, options, budget_s)
    finally:
        if collecting:
            gc.enable()
    found = summarize(samples.ordered, calls=plan.count, resolution_us=clock.resolution_us, options=options)
    host = [] if plan.graph is not None else _host_warnings(host_us, found.median_us)
    warnings = [*found.warnings, *failed, *host, *_cache_warnings(executor, plan)]
    if samples.gauge_us and executor.gauge is not None:
        found = against_gauge(found, samples.in_order, samples.gauge_us)
        assert found.gauge_us is not None
        warnings += gauge_warnings(found.gauge_us, executor.gauge.best_us)
    if (events := environment.throttle_events() - throttled) > 0:
        warnings.append(MeasureWarning(kind="throttled", data={"events": events}))
    return msgspec.structs.replace(
        found, warnings=tuple(warnings), cache=plan.cache, host_us=host_us, graph=plan.graph is not None
    )


def calls_per_sample(call_us: float, limit: int) -> int:
    """How many calls make a sample of about `SAMPLE_US`, from the estimated time of one."""
    return max(1, min(limit, math.ceil(SAMPLE_US / max(call_us, 1e-3))))


def _plan(executor: Executor, prepared: Prepared, calls: int, options: MeasureOptions) -> _Plan:
    """How the arguments are kept out of the caches, or that they are not.

    Arguments that fill the last cache twice push themselves out of it. Smaller ones take turns with copies; where the
    copies do not fill the cache twice either, it is flushed before each sample, in which each copy is used once.
    """
    size, cache = prepared.argument_bytes, executor.cache_bytes
    warm = _Plan(calls=(prepared.call,), count=calls, cache="warm", rewarm=calls > 1 and not prepared.max_calls)
    if options.cache == "warm" or not size or not cache:
        return warm
    if size >= COLD_FOOTPRINT * cache:
        return msgspec.structs.replace(warm, cache="cold", rewarm=False)
    turns = math.ceil(COLD_FOOTPRINT * cache / size)
    copies = prepared.copies(turns if turns <= COPIES else min(COPIES, calls))
    if len(copies) >= turns:
        return _Plan(calls=copies, count=calls, cache="cold")
    return _Plan(calls=copies, count=min(calls, len(copies)), evict=True, cache="cold")


def _captured(executor: Executor, plan: _Plan) -> tuple[_Plan, list[MeasureWarning]]:
    """The plan with its sample as a graph, or as it was with a warning where that cannot be had."""
    calls = [plan.calls[i % len(plan.calls)] for i in range(plan.count)]
    try:
        graph = executor.capture(calls)
    except RuntimeError:
        return plan, [MeasureWarning(kind="not captured")]
    return (plan, []) if graph is None else (msgspec.structs.replace(plan, graph=graph), [])


def _warm_up(executor: Executor, prepared: Prepared, options: MeasureOptions) -> tuple[float, float]:
    """Call until caches and allocators have settled; returns the least time of a call (us) and the budget left (s)."""
    clock = executor.clock
    started = clock.now_s()
    best_us = math.inf
    calls = 0
    while calls < max(options.max_warmup_calls, 1):
        best_us = min(best_us, clock.time_calls(prepared.call, 1))
        calls += 1
        executor.reset(prepared)
        spent_s = clock.now_s() - started
        if calls >= options.warmup_calls and spent_s >= options.warmup_s:
            break
        if spent_s >= options.op_time_s:
            break
    overrun_s = clock.now_s() - started - options.op_time_s
    return best_us, options.op_time_s - max(0.0, overrun_s)


class _Samples:
    """What was timed, in microseconds a call, and the gauge beside it."""

    def __init__(self) -> None:
        self.in_order: list[float] = []
        self.ordered: list[float] = []
        self.gauge_us: list[tuple[float, ...]] = []
        """For each sample the means of the readings right before and right after it; none without a gauge."""

    def add(self, took_us: float) -> None:
        self.in_order.append(took_us)
        insort(self.ordered, took_us)


def _collect(executor: Executor, prepared: Prepared, plan: _Plan, options: MeasureOptions, budget_s: float) -> _Samples:
    clock = executor.clock
    samples = _Samples()
    turn = 0
    started = clock.now_s()
    before_us = _read(executor, prepared, plan)
    while len(samples.ordered) < options.max_samples:
        if plan.evict:
            executor.evict()
            before_us = _read(executor, prepared, plan)
        if plan.graph is not None:
            took_us = clock.time_calls(plan.graph, 1)
        elif len(plan.calls) == 1:
            took_us = clock.time_calls(plan.calls[0], plan.count)
        else:
            took_us = clock.time_each([plan.calls[(turn + i) % len(plan.calls)] for i in range(plan.count)])
            turn += plan.count
        samples.add(took_us / plan.count)
        executor.reset(prepared)
        after_us = _read(executor, prepared, plan)
        if after_us:
            samples.gauge_us.append(tuple((a + b) / 2 for a, b in zip(before_us, after_us, strict=True)))
        before_us = after_us
        if _enough(samples.ordered, clock.now_s() - started, options, budget_s):
            break
    return samples


def _read(executor: Executor, prepared: Prepared, plan: _Plan) -> tuple[float, ...]:
    """Readings of the gauges; of memory where caches are meant to be cold, as it goes through them."""
    if executor.gauge is None:
        return ()
    reading = executor.gauge.read(executor.clock, memory=plan.cache == "cold")
    if plan.rewarm:
        prepared.call()
    return reading


def _enough(ordered: list[float], spent_s: float, options: MeasureOptions, budget_s: float) -> bool:
    """Whether the median is known well enough, or the time is spent."""
    count = len(ordered)
    if count < options.min_samples:
        return spent_s + spent_s / count > max(budget_s, 0.0) + 2.0 * options.op_time_s
    if spent_s >= budget_s:
        return True
    settled = spent_s >= options.min_share * options.op_time_s
    return settled and count % CHECK_EVERY == 0 and stats.is_narrow(ordered, options.target_ci)


def against_gauge(found: Measurement, in_order: Sequence[float], gauge_us: Sequence[tuple[float, ...]]) -> Measurement:
    """The measurement with its time relative to the gauges; samples (us a call) and readings in the order of time.

    A sample is divided by the (n + 1)th root of the product of its n readings. What makes a machine slow, a neighbour
    on the same core or memory bus, slows ops by less than the gauges, which do nothing but compute or move: the power
    of 2/3 on both together scatters least, 5 % from run to run on a shared machine where medians scatter by 12 % and
    plain quotients by 9 % (the 50 ops of `benchmarks/compare_power.py`).
    """
    relative = [
        sample / max(math.prod(readings), 1e-9) ** (1.0 / (1 + len(readings)))
        for sample, readings in zip(in_order, gauge_us, strict=True)
    ]
    compute_us = [readings[0] for readings in gauge_us]
    half = (len(compute_us) + 1) // 2
    return msgspec.structs.replace(
        found,
        gauge_us=(statistics.median(compute_us[:half]), statistics.median(compute_us[-half:])),
        relative=statistics.median(relative),
        relative_error=stats.log_error(relative),
    )


def summarize(ordered: list[float], *, calls: int, resolution_us: float, options: MeasureOptions) -> Measurement:
    """The measurement that ascending samples (us a call) amount to, with its warnings."""
    deciles = tuple(stats.quantile(ordered, step / 10) for step in range(11))
    median, (low, high) = deciles[5], stats.median_interval(ordered)
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
        median_us=median, iqr_us=iqr, min_us=ordered[0], max_us=ordered[-1], samples=len(ordered),
        calls_per_sample=calls, ci_low_us=low, ci_high_us=high, warnings=tuple(warnings), deciles_us=deciles,
        outliers=sum(sample > upper + stats.FAR_OUT * iqr for sample in ordered),
    )  # fmt: skip


def scaled(measurement: Measurement, part: float) -> Measurement:
    """Times of a whole op from those of the part (0..1] of it that ran, with a warning where that is not all."""
    if part == 1.0:
        return measurement
    times = {
        name: getattr(measurement, name) / part
        for name in ("median_us", "iqr_us", "min_us", "max_us", "ci_low_us", "ci_high_us")
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
    """What readings in the first and second half of the samples, and the best of the run, say of the machine."""
    before, after = gauge_us
    if max(gauge_us) > UNSTABLE * min(gauge_us):
        return [MeasureWarning(kind="unstable clock", data={"before_us": before, "after_us": after})]
    if best_us and min(gauge_us) > UNSTABLE * best_us:
        return [MeasureWarning(kind="other load", data={"times": min(gauge_us) / best_us})]
    return []


def _cache_warnings(executor: Executor, plan: _Plan) -> list[MeasureWarning]:
    if not plan.evict or executor.evicted_bytes >= executor.cache_bytes:
        return []
    data = {"flushed_bytes": float(executor.evicted_bytes), "cache_bytes": float(executor.cache_bytes)}
    return [MeasureWarning(kind="cache partly warm", data=data)]


def _host_warnings(host_us: float | None, device_us: float) -> list[MeasureWarning]:
    """Where the host is slower than the device, the device's time is one that a model does not see either."""
    if host_us is None or host_us <= device_us:
        return []
    return [MeasureWarning(kind="launch-bound", data={"host_us": host_us, "device_us": device_us})]
