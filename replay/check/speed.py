# pyright: strict
"""Compares the op's time with the reference's by alternating samples.

The result is a confidence interval of the ratio of their times. In each pair of samples, a coin decides whether op or
reference runs first. If they are equally fast, the logarithm of the ratio is therefore distributed symmetrically around
zero. This holds whatever else the machine does and however samples are correlated. Wilcoxon's signed-rank interval
needs no other assumption (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.1 to 3.3).

The interval is evaluated after 20, 40, 80, ... pairs. The probability of a false alarm is divided among the evaluations
(Bonferroni), so that the total stays below one in a hundred.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from opreplay.replay.check.calling.calls import Arguments, Bench, results_of
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case
from opreplay.replay.check.model import Finding, Speed
from opreplay.replay.check.points.trials import failed, nothing, passed
from opreplay.replay.execute.executors.clocks import Clock

LOOKS = (20, 40, 80, 160, 320, 640)
"""Numbers of timed pairs after which the confidence interval is evaluated."""
FALSE_ALARM = 0.009
"""Probability of a false alarm, over all evaluations together."""
NARROW = 0.03
"""Half width of the interval at which sampling ends. It is narrow enough to detect a difference of a tenth."""
SYSTEMATIC = 0.01
"""Relative time difference that the placement of memory and code may cause in every pair, even between equal
implementations.
"""
SAMPLE_US = 500.0
"""Target duration of a sample, in microseconds."""
WARM_UP_S = 0.02
WARM_UP_CALLS = 3
FEWEST = 12
"""Minimum number of pairs for an interval. With fewer pairs, no interval reaches this error probability."""


def interval(logs: Sequence[float], chance: float) -> tuple[float, float, float]:
    """Return (Hodges-Lehmann estimate, lower end, upper end) of the signed-rank interval.

    The interval misses the true value with probability `chance`. The estimate is the median of the means of all pairs
    of values. The interval runs from the c-th smallest of these means to the c-th largest. The number c comes from the
    normal approximation of the signed-rank statistic.
    """
    values = np.asarray(logs)
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    n = len(values)
    z = statistics.NormalDist().inv_cdf(1 - chance / 2)
    cut = math.floor(n * (n + 1) / 4 - z * math.sqrt(n * (n + 1) * (2 * n + 1) / 24) - 0.5)
    cut = min(max(cut, 0), (len(means) - 1) // 2)
    return float(np.median(means)), float(means[cut]), float(means[len(means) - 1 - cut])


def compared(
    sample: Callable[[int], float], *, limit_s: float, seed: int, now_s: Callable[[], float] = perf_counter
) -> tuple[list[tuple[float, float]], tuple[float, float, float], bool]:
    """Return (pairs of times, interval, whether the interval is narrow enough).

    Each pair is (op, reference). The interval is (estimate, low, high) of the ratio's logarithm. `sample(0)` times the
    op, `sample(1)` the reference; both return microseconds per call. Sampling ends when the interval excludes equal
    times or is narrow enough, after the last evaluation, or when `limit_s` is over.
    """
    coin = random.Random(seed)
    pairs: list[tuple[float, float]] = []
    started = now_s()
    estimated = (0.0, -math.inf, math.inf)
    for look in LOOKS:
        while len(pairs) < look and now_s() - started < limit_s:
            order = (0, 1) if coin.random() < 0.5 else (1, 0)
            took = {which: max(sample(which), 1e-6) for which in order}
            pairs.append((took[0], took[1]))
        if len(pairs) < FEWEST:
            break
        estimate, low, high = interval([math.log(a / b) for a, b in pairs], FALSE_ALARM / len(LOOKS))
        estimated = (estimate, low - SYSTEMATIC, high + SYSTEMATIC)
        if len(pairs) < look:
            break
        if high - low <= 2 * NARROW or estimated[1] > 0 or estimated[2] < 0:
            return pairs, estimated, True
    return pairs, estimated, estimated[2] - estimated[1] <= 2 * (NARROW + SYSTEMATIC)


def timed(bench: Bench, case: Case, *, limit_s: float) -> tuple[Finding, Speed | None]:
    """Compare the times of op and reference on one case, in this process."""
    if not bench.has_reference(case):
        return nothing("no reference to compare the time with (--against)"), None
    try:
        arguments = bench.arguments(case)
        calls = (bench.call_of(case, arguments), bench.reference_call(case, arguments))
        for call in calls:
            results_of(call, arguments)
    except Exception as error:  # judged by other points
        return nothing(words(error)), None
    sample = _sampler(bench, calls, arguments)
    collecting = gc.isenabled()
    gc.disable()
    try:
        pairs, (estimate, low, high), settled = compared(sample, limit_s=limit_s, seed=bench.seed)
    finally:
        if collecting:
            gc.enable()
    if not math.isfinite(high):
        return nothing(f"the time was up after {len(pairs)} pairs, but {FEWEST} are needed (--set speed_time)"), None
    speed = Speed(
        ratio=math.exp(estimate),
        low=math.exp(low),
        high=math.exp(high),
        pairs=len(pairs),
        op_us=statistics.median(a for a, _ in pairs),
        reference_us=statistics.median(b for _, b in pairs),
        case=case.text,
        settled=settled or not low <= 0 <= high,
    )
    said = f"{speed.verdict}: {speed.ratio:.3f} times the reference's time ({speed.low:.3f} to {speed.high:.3f})"
    return failed(said) if speed.verdict == "slower" else passed(said), speed


def _sampler(bench: Bench, calls: Sequence[Callable[[], Any]], arguments: Arguments) -> Callable[[int], float]:
    """Return a function that takes one sample, in microseconds per call: of the op for 0, of the reference for 1.

    With a single thread, the time during which another program had the processor is subtracted.
    """
    before = arguments.copy() if arguments.written else None
    clock: Clock = bench.executor.clock
    call_us = max(_warm_up(clock, call) for call in calls)
    count = 1 if before is not None else max(1, min(clock.max_calls, math.ceil(SAMPLE_US / max(call_us, 1e-3))))
    for call in calls:
        clock.launch_us(call, count)
    alone = bench.executor.threads == 1

    def sample(which: int) -> float:
        if before is not None:
            for tensor, original in zip(arguments.tensors(), before.tensors(), strict=True):
                tensor.copy_(original)
        at = clock.interruptions()
        took = clock.time_calls(calls[which], count)
        waited = clock.interruptions().waited_since(at, took) if alone else 0.0
        return max(took - waited, 0.0) / count

    return sample


def _warm_up(clock: Clock, call: Callable[[], Any]) -> float:
    """Make some calls and return the duration of the last one in microseconds."""
    started, call_us, calls = clock.now_s(), 0.0, 0
    while call_us <= 1e6 and (calls < WARM_UP_CALLS or clock.now_s() - started < WARM_UP_S):
        call_us = clock.time_calls(call, 1)
        calls += 1
    return call_us
