"""Two runs side by side: which ops became slower or faster, and which differences are noise; reads files, runs nothing.

What is compared is an op's growth: how many times as long it took in the second run, both times relative to the gauges
that were read beside every sample. What makes the whole machine faster or slower meanwhile is not in it. An op counts
as slower when the growth is above 1 by more than its 95 % interval, and by more than the threshold: the user's or,
where more is needed, 2.4 times the spread of the growth of all ops in these two runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.compatibility import Difference, differences, load_notes
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult
from opreplay.replay.results.stats import median_ranks, quantile
from opreplay.traces.errors import EnvironmentRefused

Verdict = Literal["slower", "faster", "same", "unclear", "lost", "gained", "only before", "only after"]
"""Lost and gained: replayed in one run only, though in the plan of both."""

DEFAULT_THRESHOLD = 0.05
SPREADS = 2.4
"""The threshold is at least so many standard deviations of the logarithms of the ratios: 0.8 % of normal values are
above. More would hide a slowdown of 10 % among ops that scatter by 2 %, fewer would call ops slower that are not."""
MIN_OPS_FOR_SPREAD = 20
"""Fewer ops say too little of how far ratios scatter when nothing changed."""
NEAREST, NORMAL_NEAREST = 0.8, 1.2816
"""So many of normal values are within so many standard deviations; what changed for real is among the others."""
ERRORS = 2.14
"""Half a 95 % interval in standard errors: Student's t for the 14 degrees of freedom of two times eight batches."""


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
    growth: float | None = None
    """The ratio with the speed of the machine taken out, where both runs have a gauge: what is judged."""
    low: float | None = None
    high: float | None = None
    """95 % interval of the growth."""
    note: str = ""
    """Why the verdict is unclear, or what became of an op that was lost."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of two runs, largest change of total time first."""

    threshold: float
    """Asked for."""
    applied: float
    """What ops were judged by: the threshold, or 2.4 times their spread."""
    spread: float | None
    """Standard deviation of the logarithms of the growths, outliers aside; None below 20 ops."""
    machine: float | None
    """How many times as long the gauge took in the second run; None where a run has none."""
    before_us: float
    after_us: float
    """Sums over the calls of all ops that were replayed in both runs."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    total_growth: float | None
    """Growth of all ops together, weighted by the time of their calls in the first run."""
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
    compared = [compare_op(a, b) for a, b in pairs if a.measurement or b.measurement]
    spread = spread_of(compared)
    applied = max(threshold, 0.0 if spread is None else math.expm1(SPREADS * spread))
    ops = [judged(op, threshold, applied) for op in compared]
    neither = len(pairs) - len(ops)
    notes = [f"not compared: {neither} ops that neither run replayed"] if neither else []
    short = {which: _cut_short(run) for which, run in (("first", before), ("second", after))}
    notes += [f"the {which} run was cut short: {missing} of its ops are not there" for which, missing in short.items()
              if missing]  # fmt: skip
    left = [result for id_, result in first.items() if id_ not in second]
    ops += [_alone(one, "lost" if short["second"] and one.measurement else "only before") for one in left]
    ops += [_alone(result, "only after") for id_, result in second.items() if id_ not in first]
    both = [op for op in ops if op.before_us is not None and op.after_us is not None]
    return Comparison(
        threshold=threshold,
        applied=applied,
        spread=spread,
        machine=machine_of(pairs),
        before_us=sum((op.before_us or 0.0) * op.count for op in both),
        after_us=sum((op.after_us or 0.0) * op.count for op in both),
        differences=differ,
        notes=(*notes, *load_notes(before.header, after.header)),
        total_growth=_total_growth(both),
        ops=tuple(sorted(ops, key=lambda op: -abs(((op.after_us or 0.0) - (op.before_us or 0.0)) * op.count))),
    )


def compare_op(before: OpResult, after: OpResult) -> OpComparison:
    """Growth of an op that one run or both replayed; not judged yet: "same", or why it cannot be judged."""
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
    ratio = b.median_us / a.median_us
    growth, low, high = _growth(a, b)
    doubt = _doubt(a, b, before, after)
    return msgspec.structs.replace(
        made, verdict="unclear" if doubt else "same", ratio=ratio, growth=growth, low=low, high=high, note=doubt
    )


def judged(op: OpComparison, threshold: float, applied: float) -> OpComparison:
    """The op with its verdict: slower or faster beyond what is applied (a share) and its own interval, the same within
    the threshold asked for, and unclear between."""
    if op.verdict != "same" or op.growth is None or op.low is None or op.high is None:
        return op
    if 1.0 / (1.0 + threshold) <= op.growth <= 1.0 + threshold:
        return op
    if 1.0 / (1.0 + applied) <= op.growth <= 1.0 + applied:
        return msgspec.structs.replace(op, verdict="unclear", note="the ops of the two runs scatter as far")
    if op.low <= 1.0 <= op.high:
        return msgspec.structs.replace(op, verdict="unclear", note="the change is within the errors of the two runs")
    return msgspec.structs.replace(op, verdict="slower" if op.growth > 1.0 else "faster")


def _growth(a: Measurement, b: Measurement) -> tuple[float, float, float]:
    """Ratio of the times relative to the gauges, or of the medians without one, and its 95 % interval."""
    growth = b.relative / a.relative if a.relative and b.relative else b.median_us / a.median_us
    if a.relative_error is not None and b.relative_error is not None:
        factor = math.exp(ERRORS * math.hypot(a.relative_error, b.relative_error))
        return growth, growth / factor, growth * factor
    low = b.ci_low_us / b.median_us * a.median_us / _some(a.ci_high_us)
    return growth, growth * low, growth * b.ci_high_us / b.median_us * a.median_us / _some(a.ci_low_us)


def spread_of(ops: Sequence[OpComparison]) -> float | None:
    """Standard deviation of the logarithms of the growths if they were normal, as the nearest four fifths tell it."""
    logs = sorted(abs(math.log(op.growth)) for op in ops if op.verdict == "same" and op.growth)
    return quantile(logs, NEAREST) / NORMAL_NEAREST if len(logs) >= MIN_OPS_FOR_SPREAD else None


def _total_growth(both: Sequence[OpComparison]) -> float | None:
    weights = [((op.before_us or 0.0) * op.count, op.growth) for op in both if op.growth is not None]
    total = sum(weight for weight, _ in weights)
    return sum(weight * growth for weight, growth in weights) / total if total > 0 else None


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


def _gauge_ratio(a: Measurement, b: Measurement) -> float | None:
    if a.gauge_us is None or b.gauge_us is None or min(*a.gauge_us, *b.gauge_us) <= 0:
        return None
    return min(b.gauge_us) / min(a.gauge_us)


def _cut_short(run: ResultFile) -> int:
    """Ops of a run's plan that it did not come to."""
    planned = run.header.trace.get("ops")
    return max(0, planned - len(run.results)) if isinstance(planned, int) else 0


def _alone(result: OpResult, verdict: Verdict) -> OpComparison:
    """Of an op that one run has alone: "lost" where the second one ended before it."""
    before = verdict != "only after"
    return OpComparison(
        id=result.id, name=result.name, inputs=result.inputs, count=result.count, verdict=verdict,
        before_us=result.measured_us if before else None, after_us=None if before else result.measured_us,
        note="the second run was cut short" if verdict == "lost" else "",
    )  # fmt: skip


def _some(value: float) -> float:
    """A divisor that is not zero: a time below the clock's resolution is as good as that."""
    return max(value, 1e-6)
