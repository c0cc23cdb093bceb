"""The measuring loop: warm-up, batches of calls, when to stop, and what to warn about; owns no device and no clock."""

from __future__ import annotations

import gc
import math
from bisect import insort

import msgspec

from opreplay.replay import stats
from opreplay.replay.executors.base import Executor, Measurement, Prepared

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


class MeasureOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When a measurement has enough samples."""

    op_time_s: float = 0.2
    """Wall time to spend on the samples of one op."""
    target_ci: float = 0.02
    """Stop when the 95 % interval of the median is within ± this share of it."""
    min_samples: int = 8
    max_samples: int = 400
    warmup_calls: int = 2
    """Calls before the first sample; the first call of a kernel often compiles or allocates."""
    warmup_s: float = 0.01
    """Go on warming up until this much time has passed, at most `max_warmup_calls` calls."""
    max_warmup_calls: int = 50


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
    collecting = gc.isenabled()
    gc.disable()
    try:
        ordered = _collect(executor, prepared, calls, options, budget_s)
    finally:
        if collecting:
            gc.enable()
    return summarize(ordered, calls=calls, resolution_us=clock.resolution_us, options=options)


def calls_per_sample(call_us: float, limit: int) -> int:
    """How many calls make a sample of about `SAMPLE_US`, from the estimated time of one."""
    return max(1, min(limit, math.ceil(SAMPLE_US / max(call_us, 1e-3))))


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


def _collect(
    executor: Executor, prepared: Prepared, calls: int, options: MeasureOptions, budget_s: float
) -> list[float]:
    """Samples in microseconds a call, ascending."""
    clock, call = executor.clock, prepared.call
    ordered: list[float] = []
    started = clock.now_s()
    while len(ordered) < options.max_samples:
        insort(ordered, clock.time_calls(call, calls) / calls)
        executor.reset(prepared)
        spent_s = clock.now_s() - started
        count = len(ordered)
        if count >= options.min_samples:
            if spent_s >= budget_s:
                break
            if count % CHECK_EVERY == 0 and stats.is_narrow(ordered, options.target_ci):
                break
        elif spent_s + spent_s / count > max(budget_s, 0.0) + 2.0 * options.op_time_s:
            break
    return ordered


def summarize(ordered: list[float], *, calls: int, resolution_us: float, options: MeasureOptions) -> Measurement:
    """The measurement that ascending samples (us a call) amount to, with its warnings."""
    median = stats.quantile(ordered, 0.5)
    low, high = stats.median_interval(ordered)
    iqr = stats.quantile(ordered, 0.75) - stats.quantile(ordered, 0.25)
    warnings = []
    if len(ordered) < options.min_samples:
        warnings.append(f"few samples: {len(ordered)} of {options.min_samples}")
    if median > 0 and iqr > NOISY_IQR * median:
        warnings.append(f"noisy: quartiles {100 * iqr / median:.0f} % of the median apart")
    if median * calls * RESOLUTION_SHARE < resolution_us:
        warnings.append(f"timer resolution: {resolution_us:.3g} us for samples of {median * calls:.3g} us")
    return Measurement(
        median_us=median, iqr_us=iqr, min_us=ordered[0], max_us=ordered[-1], samples=len(ordered),
        calls_per_sample=calls, ci_low_us=low, ci_high_us=high, warnings=tuple(warnings),
    )  # fmt: skip
