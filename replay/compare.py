"""Two runs side by side: which ops became slower or faster, and which differences are noise; reads files, runs nothing.

An op counts as slower when three things hold at once. The order-statistic 95 % intervals do not overlap: those of the
medians, or of a faster decile where it is known better. Each of the deciles from the fastest sample to the median grew
by more than the threshold: other load makes slow samples slower and leaves the fast ones, a slower op shifts all of
them. And so much is left when the speed of the machine, as the gauge around the measurements tells it, is taken out.
The threshold is the user's or, where more is needed, 2.4 times the spread of the ratios in these two runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.compatibility import Difference, differences, load_notes
from opreplay.replay.executors.base import Measurement
from opreplay.replay.gauge import UNSTABLE
from opreplay.replay.results import OpResult, ResultFile
from opreplay.replay.stats import decile_interval, median_ranks
from opreplay.traces.errors import EnvironmentRefused

Verdict = Literal["slower", "faster", "same", "unclear", "lost", "gained", "only before", "only after"]
"""Lost and gained: replayed in one run only, though in the plan of both."""

DEFAULT_THRESHOLD = 0.05
JUDGED_DECILES = range(6)
"""From the fastest sample to the median."""
SPREADS = 2.4
"""The threshold is at least so many standard deviations of the logarithms of the ratios: 0.8 % of normal values are
above. More would hide a slowdown of 10 % among ops that scatter by 2 %, fewer would call ops slower that are not."""
MIN_OPS_FOR_SPREAD = 20
"""Fewer ops say too little of how far ratios scatter when nothing changed."""
NORMAL_MAD = 1.4826
"""Standard deviation of normal values divided by their median absolute deviation."""


class OpComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One op in both runs; times in microseconds a call."""

    id: str
    name: str
    inputs: str = ""
    count: int
    """In the second run, or the first where the op is there alone."""
    verdict: Verdict
    before_us: float | None = None
    after_us: float | None = None
    ratio: float | None = None
    """Of the medians, after to before."""
    low: float | None = None
    high: float | None = None
    """Ratio between the ends of the two 95 % intervals, of the median or a faster decile, whichever is narrower."""
    sure: float | None = None
    """The change of which all deciles and the gauge are witness: the ratio among them that is closest to 1."""
    note: str = ""
    """Why the verdict is unclear, or what became of an op that was lost."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of two runs, largest change of total time first."""

    threshold: float
    """Asked for."""
    applied: float
    """What ops were judged by: the threshold, or three times their spread."""
    spread: float | None
    """Standard deviation of the logarithms of the ratios, outliers aside; None below 20 ops."""
    machine: float | None
    """How many times as long the gauge took in the second run; None where a run has none."""
    before_us: float
    after_us: float
    """Sums over the calls of all ops that were replayed in both runs."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    ops: tuple[OpComparison, ...]

    def of(self, *verdicts: Verdict) -> list[OpComparison]:
        """The ops with these verdicts."""
        return [op for op in self.ops if op.verdict in verdicts]

    @property
    def total_ratio(self) -> float | None:
        return self.after_us / self.before_us if self.before_us > 0 else None


def compare(
    before: ResultFile, after: ResultFile, *, threshold: float = DEFAULT_THRESHOLD, force: bool = False
) -> Comparison:
    """Judge every op of two result files; `threshold` is a share, 0.05 for 5 %.

    Raises EnvironmentRefused when the runs are of two machines or two ways to measure, unless `force`.
    """
    differ = differences(before.header, after.header)
    blocking = [str(difference) for difference in differ if difference.blocking]
    if blocking and not force:
        raise EnvironmentRefused(
            f"the runs cannot be compared: {'; '.join(blocking)}",
            hint="Run both on the same machine with the same options, or compare all the same with --force.",
        )
    first = {result.id: result for result in before.results}
    second = {result.id: result for result in after.results}
    pairs = [(first[id_], second[id_]) for id_ in first if id_ in second]
    spread = spread_of(pairs)
    applied = max(threshold, 0.0 if spread is None else math.expm1(SPREADS * spread))
    machine = machine_of(pairs)
    ops = [judge(a, b, applied, machine) for a, b in pairs if a.measurement or b.measurement]
    neither = len(pairs) - len(ops)
    notes = (f"not compared: {neither} ops that neither run replayed",) if neither else ()
    ops += [_alone(result, "only before") for id_, result in first.items() if id_ not in second]
    ops += [_alone(result, "only after") for id_, result in second.items() if id_ not in first]
    both = [op for op in ops if op.before_us is not None and op.after_us is not None]
    return Comparison(
        threshold=threshold,
        applied=applied,
        spread=spread,
        machine=machine,
        before_us=sum((op.before_us or 0.0) * op.count for op in both),
        after_us=sum((op.after_us or 0.0) * op.count for op in both),
        differences=differ,
        notes=(*notes, *load_notes(before.header, after.header)),
        ops=tuple(sorted(ops, key=lambda op: -abs(((op.after_us or 0.0) - (op.before_us or 0.0)) * op.count))),
    )


def judge(before: OpResult, after: OpResult, threshold: float, machine: float | None = None) -> OpComparison:
    """The verdict on an op that a run replayed; `machine` is how many times as long the gauge took in the second."""
    a, b = before.measurement, after.measurement
    made = OpComparison(
        id=after.id, name=after.name, inputs=after.inputs, count=after.count, verdict="same",
        before_us=before.measured_us, after_us=after.measured_us,
    )  # fmt: skip
    if a is None or b is None:
        verdict: Verdict = "lost" if b is None else "gained"
        return msgspec.structs.replace(made, verdict=verdict, note=(after if b is None else before).reason or "")
    if a.median_us <= 0 or b.median_us <= 0:
        return msgspec.structs.replace(made, verdict="unclear", note="too short for the clock")
    low, high = _interval(a, b)
    made = msgspec.structs.replace(made, ratio=b.median_us / a.median_us, low=low, high=high)
    if doubt := _doubt(a, b, before, after):
        return msgspec.structs.replace(made, verdict="unclear", note=doubt)
    own = _gauge_ratio(a, b)
    # One reading of the gauge is as noisy as the op itself: it counts where it is far off, else that of all ops does.
    speed = own if own is not None and not 1.0 / UNSTABLE < own < UNSTABLE else machine or 1.0
    slower, faster = _sure_growth(a, b, speed), 1.0 / _sure_growth(b, a, 1.0 / speed)
    if low > 1.0 and slower > 1.0 + threshold:
        return msgspec.structs.replace(made, verdict="slower", sure=slower)
    if high < 1.0 and faster < 1.0 / (1.0 + threshold):
        return msgspec.structs.replace(made, verdict="faster", sure=faster)
    if 1.0 / (1.0 + threshold) <= b.median_us / a.median_us <= 1.0 + threshold:
        return made
    overlap = low <= 1.0 <= high
    why = "the intervals of the two runs overlap" if overlap else "fast samples or the gauge do not show the change"
    return msgspec.structs.replace(made, verdict="unclear", note=why)


def _interval(a: Measurement, b: Measurement) -> tuple[float, float]:
    """Ratio between the ends of the two intervals, of the median or of the faster decile where that is the narrower."""
    found = [(b.ci_low_us / _some(a.ci_high_us), b.ci_high_us / _some(a.ci_low_us))]
    if _has_deciles(a) and _has_deciles(b):
        for at in range(1, 5):
            before, after = decile_interval(a.deciles_us, a.samples, at), decile_interval(b.deciles_us, b.samples, at)
            if before is not None and after is not None:
                found.append((after[0] / _some(before[1]), after[1] / _some(before[0])))
    return min(found, key=lambda ends: ends[1] / _some(ends[0]))


def spread_of(pairs: Sequence[tuple[OpResult, OpResult]]) -> float | None:
    """Standard deviation of the logarithms of the ratios from their median, as the median deviation tells it.

    That of the decile which scatters least, often the fastest samples': a change counts only where all deciles show it.
    """
    measured = [
        (a.measurement, b.measurement)
        for a, b in pairs
        if a.measurement and b.measurement and not _doubt(a.measurement, b.measurement, a, b)
    ]
    medians = [b.median_us / a.median_us for a, b in measured if a.median_us > 0 and b.median_us > 0]
    columns = [medians, *(_ratios(measured, at) for at in JUDGED_DECILES)]
    return min((_deviation(ratios) for ratios in columns if len(ratios) >= MIN_OPS_FOR_SPREAD), default=None)


def _ratios(measured: Sequence[tuple[Measurement, Measurement]], decile: int) -> list[float]:
    """Ratios of one decile over the ops that have it."""
    known = [(a.deciles_us[decile], b.deciles_us[decile]) for a, b in measured if _has_deciles(a) and _has_deciles(b)]
    return [b / a for a, b in known if a > 0 and b > 0]


def _deviation(ratios: Sequence[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    return NORMAL_MAD * statistics.median(abs(value - middle) for value in logs)


def machine_of(pairs: Sequence[tuple[OpResult, OpResult]]) -> float | None:
    """Median over the ops of how many times as long the gauge took in the second run."""
    found = [_gauge_ratio(a.measurement, b.measurement) for a, b in pairs if a.measurement and b.measurement]
    known = [ratio for ratio in found if ratio is not None]
    return statistics.median(known) if known else None


def _doubt(a: Measurement, b: Measurement, before: OpResult, after: OpResult) -> str:
    """Why the two measurements cannot be held against each other; "" where they can."""
    fewest = min(a.samples, b.samples)
    if median_ranks(fewest) is None:
        return f"{fewest} samples are too few for an interval"
    if a.part != b.part:
        return "another part of the op ran"
    if a.cache != b.cache:
        return f"{a.cache} caches before, {b.cache} after"
    if (before.via, before.resolved_by) != (after.via, after.resolved_by):
        return f"ran as {before.via or before.resolved_by} before, {after.via or after.resolved_by} after"
    return ""


def _sure_growth(a: Measurement, b: Measurement, speed: float) -> float:
    """How many times as long `b` took at least, by deciles and with a machine slower by `speed` taken out."""
    growth = b.median_us / a.median_us
    if _has_deciles(a) and _has_deciles(b):
        growth = min([growth, *(b.deciles_us[i] / _some(a.deciles_us[i]) for i in JUDGED_DECILES)])
    return growth / max(1.0, speed)


def _has_deciles(one: Measurement) -> bool:
    """Whether there are deciles and they are those of the median: other tools may write or scale the median alone."""
    return len(one.deciles_us) == 11 and math.isclose(one.deciles_us[5], one.median_us, rel_tol=1e-3)


def _gauge_ratio(a: Measurement, b: Measurement) -> float | None:
    if a.gauge_us is None or b.gauge_us is None or min(*a.gauge_us, *b.gauge_us) <= 0:
        return None
    return min(b.gauge_us) / min(a.gauge_us)


def _alone(result: OpResult, verdict: Verdict) -> OpComparison:
    before = verdict == "only before"
    return OpComparison(
        id=result.id, name=result.name, inputs=result.inputs, count=result.count, verdict=verdict,
        before_us=result.measured_us if before else None, after_us=None if before else result.measured_us,
    )  # fmt: skip


def _some(value: float) -> float:
    """A divisor that is not zero: a time below the clock's resolution is as good as that."""
    return max(value, 1e-6)
