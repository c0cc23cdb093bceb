# pyright: strict
"""Compare two runs: which ops became slower or faster, and which differences are noise. Reads files, runs nothing.

The compared quantity is an op's ratio: its time in the second run divided by its time in the first. With method
"medians", these are plain median times. With "gauges", they are relative to fixed workloads (gauges) timed with every
sample, which cancels changes of the whole machine.

An op counts as slower if the ratio exceeds 1 by more than its 95 % interval and by more than the threshold. The
threshold is the user's or, if larger, 2.4 times the spread of the ratios of all ops. For ops measured in several rounds
(visits), 2.6 standard errors of the ratio replace this spread.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from opreplay.replay.results.compare.compatibility import Difference, differences, load_notes
from opreplay.replay.results.compare.replaced import Replaced
from opreplay.replay.results.compare.visits import MIN_OPS_FOR_SPREAD, Adjusted, by_visits
from opreplay.replay.results.measurement import Measurement, kind_of
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult
from opreplay.replay.results.resume import kept_results
from opreplay.replay.results.stats import log_error, median_ranks, quantile
from opreplay.traces.errors import EnvironmentRefused
from opreplay.traces.links.steps import PairedBy
from opreplay.traces.names import plural
from opreplay.traces.times.doubts import Doubts

Verdict = Literal["slower", "faster", "same", "unclear", "lost", "gained", "only before", "only after"]
"""Verdict on an op. "lost" and "gained" ops are in the plans of both runs, but only one run replayed them."""

Method = Literal["gauges", "medians"]
"""How times are compared: relative to fixed workloads (gauges), if both runs timed them, or as plain medians."""

What = Literal["recorded", "measured", "simulated"]
"""Kind of time that is compared."""

Clock = Literal["device", "host"]
"""Clock of the times: the accelerator's own clock, or the host's clock around a call."""

DEFAULT_THRESHOLD = 0.05
SPREADS = 2.4
"""Minimum threshold, in standard deviations of the log ratios.

If the log ratios are normally distributed, 0.8 % exceed it by chance. A larger value would hide a slowdown of 10 %
among ops that scatter by 2 %. A smaller value would report more false slowdowns.
"""
NEAREST = (0.8, 1.2816)
"""(share, number): this share of normally distributed values is within this number of standard deviations of the mean.

Only this share of ops is used, because the other ops include those that really changed.
"""
VISITED_ERRORS = 2.6
"""Minimum threshold of an op measured in several rounds (visits), in standard errors. The rounds give this error.

The value was tested with 50 ops in 7 runs under load. The runs were compared with themselves, also with six ops slowed
down: 1 % were falsely reported as slower.
"""
ERRORS = 2.14
"""Half a 95 % interval in standard errors: Student's t for 14 degrees of freedom (two runs of eight batches each)."""
FOUND, FOUND_NORMAL = 0.8, 0.84
"""A change is detectable if it would be found with probability FOUND in a share FOUND of the ops.

FOUND_NORMAL is the quantile of the normal distribution for FOUND.
"""
DOUBTFUL = {
    "first call": "only the first call was timed",
    "not settled": "times did not become stable",
}
"""Kind of warning that makes a time unfit for comparison → reason."""


class OpComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One op in both runs; times are in microseconds per call."""

    id: str
    name: str
    inputs: str = ""
    count: int
    """Number of calls in the second run, or in the first if only the first has the op."""
    verdict: Verdict
    before_us: float | None = None
    after_us: float | None = None
    ratio: float | None = None
    """Ratio of after to before that is judged, as computed by the comparison's method.

    With gauges, it differs from the plain ratio of the two times. For two traces, it is the ratio of the times per
    step.
    """
    low: float | None = None
    high: float | None = None
    """Upper end of the ratio's interval, whose confidence is `level`."""
    level: float = 0.95
    """Confidence level of the interval.

    It is 0.8 if one side is a prediction. The interval then combines the prediction's 80 % band with the interval of
    the other side.
    """
    note: str = ""
    """Why the verdict is unclear, what happened to an op that was lost, or other remarks."""
    before_kernel: str | None = None
    after_kernel: str | None = None
    """For times of traces: the kernel that took most of the op's device time."""

    before_step_us: float | None = None
    after_step_us: float | None = None
    """For two recordings: time of all calls of the op in a step, averaged over the compared steps.

    If there are no steps, it is the median time of a call multiplied by the number of calls in the first recording.
    """
    before_calls: float | None = None
    after_calls: float | None = None
    """Number of calls per step, averaged over the compared steps."""
    step_change_us: float | None = None
    """`after_step_us` - `before_step_us`. A verdict never contradicts the sign of this change."""

    @property
    def weight_us(self) -> float:
        """Absolute change of the step's time or, without steps, of all calls; a missing time counts as 0."""
        if self.step_change_us is not None:
            return abs(self.step_change_us)
        return abs(((self.after_us or 0.0) - (self.before_us or 0.0)) * self.count)

    @property
    def error(self) -> float | None:
        """Return the standard error of the logarithm of the ratio."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.log(self.high / self.low) / (2.0 * ERRORS)


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio of all judged ops combined, weighted by the time of their calls in the first run."""

    ratio: float
    low: float | None
    high: float | None
    """Upper end of the interval with confidence `level`; None for recorded sums and for two predictions."""
    level: float = 0.95
    """Confidence level of the interval: 0.8 if one side is a prediction."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of a trace's marked steps that launch work, on the host thread that marks them."""

    count: int
    median_us: float
    shortest_us: float
    longest_us: float
    longest: str = ""
    """Name of the longest step."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one side of a comparison in which at least one side is not a measurement."""

    what: What
    on: str
    """Device: as named in the trace, "cpu", or the name of the simulated device."""
    clock: Clock | None = None
    """Clock of the times; None for predictions. Times on a host's clock also include other work of the host."""
    source: str
    """Name of the file, or of the trace that the results belong to."""
    ops: int
    """Number of ops with a time of this kind."""
    total_us: float
    """Time of all calls of ops that have a time: the recorded sum, or the time of a call times the number of calls."""
    matched_ops: int
    matched_us: float
    """Part of `total_us` in ops that the other side also has."""
    steps: StepTimes | None = None
    """Step durations; None if this is not a trace, or if the trace marks no steps."""
    doubts: Doubts = Doubts()
    """Reasons to doubt the device times, if they were recorded."""

    @property
    def is_total_known(self) -> bool:
        """Whether the sum of the times is meaningful."""
        return not self.doubts.untimed and not self.doubts.collided_share


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of one class of work (GEMM, attention, elementwise, ...). Times are in microseconds over all calls."""

    name: str
    before_us: float
    after_us: float
    """Time of all ops of the class on the second side, including ops that the first side does not have."""
    matched_ops: int
    ratio: float | None
    """Ratio of after to before for ops on both sides, using the calls before; None if there are no such ops."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of two runs, largest change of total time first."""

    threshold: float
    """Requested threshold."""
    method: Method
    """Method of the comparison. Unless both sides are measurements: "medians" (of calls, or predicted times)."""
    applied: float
    """Threshold used: the requested one, or 2.4 times the ops' spread. If each op has its own, the median of these."""
    spread: float | None
    """Standard deviation of the log ratios without outliers; None below 20 ops."""
    power: float | None
    """Smallest detectable change, as a share: it would have been found with 80 % probability in 80 % of the ops.

    None if no op could be judged.
    """
    machine: float | None
    """Time of a fixed workload (gauge) in the second run, relative to the first; None if either run lacks it."""
    before_us: float
    after_us: float
    """Time in the second run of all calls of the ops replayed in both; `before_us` is the time in the first run."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    total: Total | None
    ops: tuple[OpComparison, ...]
    shared: float | None = None
    """For two recordings of one device: factor by which all ops took longer, e.g. because the clock rate changed.

    The ratios and intervals of ops are divided by it, but their times are not. None if the factor differs between ops.
    """
    unreached: tuple[int, int] = (0, 0)
    """Number of ops in each run's plan that the run did not reach: out of time, interrupted, or a rank lost."""
    sides: tuple[Side, Side] | None = None
    """Sides before and after, if at least one is not a measurement; None for two runs."""
    classes: tuple[ClassTotal, ...] = ()
    """Totals by class of work, most time first, if at least one side is not a measurement."""
    paired: PairedBy | None = None
    """How the steps of two recordings were paired; None for other comparisons."""
    replaced: tuple[Replaced, ...] = ()
    """For two traces: which calls of the step before were replaced by which calls of the step after."""

    def of(self, *verdicts: Verdict) -> list[OpComparison]:
        """Return the ops with these verdicts."""
        return [op for op in self.ops if op.verdict in verdicts]

    @property
    def whole(self) -> float | None:
        """Ratio of all recorded time, including ops on one side only; None unless both sides are recordings."""
        if self.sides is None or any(side.what != "recorded" or not side.total_us for side in self.sides):
            return None
        if not all(side.is_total_known for side in self.sides):
            return None
        return self.sides[1].total_us / self.sides[0].total_us

    @property
    def why_total_unknown(self) -> str:
        """Return why it is unknown whether the total time changed; "" if it is known.

        A single recording on a host clock has no error estimate: other work on the machine may have slowed down all of
        its calls. Runs may also lack an interval, if all of their ops were too slow to give enough samples.
        """
        if self.sides is None and self.total is None and any(op.ratio is not None for op in self.ops):
            return "no op has an interval in both runs"
        if any(not side.is_total_known for side in self.sides or ()):
            return "a recording has no reliable device times"
        if any(side.what == "recorded" and side.clock == "host" for side in self.sides or ()):
            return "recorded host times include an unknown amount of other load on the machine"
        return ""

    @property
    def with_alone(self) -> float | None:
        """Ratio of the total times, including the ops that only one run has; None if there is no total."""
        if self.total is None or self.before_us <= 0 or self.sides is not None:
            return None
        gone = sum((op.before_us or 0.0) * op.count for op in self.of("only before"))
        new = sum((op.after_us or 0.0) * op.count for op in self.of("only after"))
        return (self.total.ratio * self.before_us + new) / (self.before_us + gone)

    @property
    def alone_share(self) -> float:
        """Return the share of all ops that are in the plan of only one side."""
        alone = len(self.of("only before", "only after"))
        return alone / len(self.ops) if self.ops else 0.0

    @property
    def unclear_share(self) -> float:
        """Return the share of the ops replayed by both runs that could not be judged."""
        both = self.of("slower", "faster", "same", "unclear")
        return len(self.of("unclear")) / len(both) if both else 0.0


def compare(
    before: ResultFile,
    after: ResultFile,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    method: Method = "gauges",
    force: bool = False,
) -> Comparison:
    """Judge every op of two result files; `threshold` is a share, 0.05 for 5 %.

    Raises EnvironmentRefused if the runs are from two machines or used two measurement methods, unless `force` is set.
    """
    differ = differences(before.header, after.header)
    if not force:
        _require_alike(differ)
    first, second = ({result.id: result for result in run.results} for run in (before, after))
    pairs = [(first[id_], second[id_]) for id_ in first if id_ in second]
    measured = [(a, b) for a, b in pairs if a.measurement or b.measurement]
    visited = {a.id: (a.name, a.measurement, b.measurement) for a, b in measured if a.measurement and b.measurement}
    adjusted = by_visits(visited) if method == "gauges" else {}
    compared = [compare_op(a, b, method, adjusted.get(a.id)) for a, b in measured]
    spread = spread_of(compared)
    thresholds = _thresholds(compared, adjusted, threshold, spread)
    common = common_ratio(compared, threshold)
    unreached = (unreached_of(before), unreached_of(after))
    ops = [judge_op(op, threshold, thresholds[op.id], common) for op in compared]
    both = [op for op in ops if op.before_us is not None and op.after_us is not None]
    before_us, after_us = sums_of(both)
    ops += _unmatched(before, after, cut=unreached[1] > 0)
    return Comparison(
        threshold=threshold,
        method=method,
        applied=statistics.median(thresholds.values()) if thresholds else threshold,
        spread=spread,
        power=power_of(ops, thresholds, adjusted.keys(), spread),
        machine=machine_of(pairs),
        before_us=before_us,
        after_us=after_us,
        differences=differ,
        notes=(*_missing_notes(len(pairs) - len(measured), unreached), *load_notes(before.header, after.header)),
        total=total_of(both, spread),
        unreached=unreached,
        ops=tuple(sorted(ops, key=lambda op: -op.weight_us)),
    )


def _thresholds(
    compared: Sequence[OpComparison], visited: Mapping[str, Adjusted], threshold: float, spread: float | None
) -> dict[str, float]:
    """Map each op id to the smallest change, as a share, that can count as slower or faster."""
    raised = raised_threshold(threshold, spread)
    return {
        op.id: max(threshold, math.expm1(VISITED_ERRORS * (op.error or 0.0))) if op.id in visited else raised
        for op in compared
    }


def _unmatched(before: ResultFile, after: ResultFile, *, cut: bool) -> list[OpComparison]:
    """Return the ops that only one run has.

    `cut` says that the second run did not reach all its ops. Then measured ops that only the first run has count as
    lost.
    """
    first, second = ({result.id for result in run.results} for run in (before, after))
    gone = [
        _alone(result, "lost" if cut and result.measurement else "only before")
        for result in before.results
        if result.id not in second
    ]
    return gone + [_alone(result, "only after") for result in after.results if result.id not in first]


def _require_alike(differ: Sequence[Difference]) -> None:
    """Raise EnvironmentRefused if the runs are from two machines or used two measurement methods."""
    if blocking := [difference for difference in differ if difference.blocking]:
        threads = any(difference.name == "threads" for difference in differ)
        raise EnvironmentRefused(
            f"the runs cannot be compared: {'; '.join(map(str, blocking))}",
            hint="Run both on the same machine with the same options, or compare them anyway with --force."
            + (" Set the number of threads with --set threads=N." if threads else ""),
        )


def sums_of(ops: Sequence[OpComparison]) -> tuple[float, float]:
    """Return the time of all calls before and after."""
    return sum((op.before_us or 0.0) * op.count for op in ops), sum((op.after_us or 0.0) * op.count for op in ops)


def raised_threshold(threshold: float, spread: float | None) -> float:
    """Return the larger of the threshold and the limit given by the spread of all ops' ratios."""
    return max(threshold, 0.0 if spread is None else math.expm1(SPREADS * spread))


def _missing_notes(unmeasured: int, unreached: tuple[int, int]) -> list[str]:
    """Return notes on how many ops neither run replayed, and how many ops each run did not reach."""
    notes = [f"not compared: {plural(unmeasured, 'op')} that neither run replayed"] if unmeasured else []
    return notes + [
        f"the {which} run was cut short: {missing} of its ops were not reached"
        for which, missing in zip(("first", "second"), unreached, strict=True)
        if missing
    ]


def compare_op(
    before: OpResult, after: OpResult, method: Method = "gauges", adjusted: Adjusted | None = None
) -> OpComparison:
    """Return the comparison of an op that one or both runs replayed, before its ratio is judged.

    The verdict is "lost" or "gained" if only one run has a time, and "unclear" if the ratio cannot be judged. Otherwise
    it is "same".

    `adjusted` is the ratio computed from the op's rounds (visits), if both runs have several.
    """
    a, b = before.measurement, after.measurement
    comparison = OpComparison(
        id=after.id,
        name=after.name,
        inputs=after.inputs,
        count=after.count,
        verdict="same",
        before_us=before.measured_us,
        after_us=after.measured_us,
    )
    if a is None or b is None:
        verdict, missing = ("lost", after) if b is None else ("gained", before)
        return msgspec.structs.replace(comparison, verdict=verdict, note=str(missing.reason or ""))
    if a.median_us <= 0 or b.median_us <= 0:
        return unclear(comparison, "too short for the clock")
    ratio, low, high = _ratio(a, b, method) if adjusted is None else _with_interval(adjusted.ratio, adjusted.error)
    if median_ranks(min(a.samples, b.samples)) is None:
        low = high = None  # one sample says nothing of how far it is off: an interval of no width would
    comparison = msgspec.structs.replace(comparison, ratio=ratio, low=low, high=high)
    if doubt := _doubt(a, b):
        return unclear(comparison, doubt)
    return msgspec.structs.replace(comparison, note=_another_way(before, after))


def judge_op(op: OpComparison, threshold: float, applied: float, common: float | None = None) -> OpComparison:
    """Return the op with its verdict.

    "same": the change is within the requested threshold. "slower" or "faster": it exceeds `applied` (a share) and the
    op's own interval. "unclear": anything in between. `common` is the ratio that most ops have, if they changed alike.
    """
    if op.verdict != "same" or op.ratio is None or op.low is None or op.high is None:
        return op
    if is_within(op.ratio, threshold):
        return op
    if is_within(op.ratio, applied):
        if common is not None and is_within(op.ratio / common, threshold):
            return unclear(op, f"most ops take {common:.2f} times as long, as if the speed of the machine had changed")
        return unclear(op, "other ops of the two runs vary as much")
    if op.low <= 1.0 <= op.high:
        return unclear(op, "the change is within the error of the two runs")
    return msgspec.structs.replace(op, verdict="slower" if op.ratio > 1.0 else "faster")


LEAST_ALIKE = 0.8
"""If at least this share of the ops has about the same ratio, the ops count as changed alike."""


def common_ratio(ops: Sequence[OpComparison], threshold: float) -> float | None:
    """Return the ratio that most ops have within the threshold. None if there is none, or if it means no change."""
    ratios = [op.ratio for op in ops if op.verdict == "same" and op.ratio]
    if len(ratios) < MIN_OPS_FOR_SPREAD:
        return None
    middle = statistics.median(ratios)
    near = sum(is_within(ratio / middle, threshold) for ratio in ratios)
    return middle if near >= LEAST_ALIKE * len(ratios) and not is_within(middle, threshold) else None


def is_within(ratio: float, threshold: float) -> bool:
    """Check whether a ratio differs from 1 by at most `threshold` (a share), in either direction."""
    return 1.0 / (1.0 + threshold) <= ratio <= 1.0 + threshold


def unclear(op: OpComparison, why: str) -> OpComparison:
    """Return the op with verdict "unclear" and the reason."""
    return msgspec.structs.replace(op, verdict="unclear", note=f"{why}; {op.note}" if op.note else why)


def _ratio(a: Measurement, b: Measurement, method: Method) -> tuple[float, float, float]:
    """Return (ratio, low, high): the ratio of times relative to the gauges, or of medians, with its 95 % interval."""
    if method == "gauges" and a.relative and b.relative:
        ratio, errors = b.relative / a.relative, (a.relative_error, b.relative_error)
    else:
        ratio, errors = b.median_us / a.median_us, (a.median_error, b.median_error)
    if errors[0] is not None and errors[1] is not None:
        return _with_interval(ratio, math.hypot(errors[0], errors[1]))
    # A time below the clock's resolution is as good as the least divisor.
    low = b.low_us / b.median_us * a.median_us / max(a.high_us, 1e-6)
    return ratio, ratio * low, ratio * b.high_us / b.median_us * a.median_us / max(a.low_us, 1e-6)


def _with_interval(ratio: float, error: float) -> tuple[float, float, float]:
    """Return a ratio and its 95 % interval from the standard error of its logarithm."""
    factor = math.exp(ERRORS * error)
    return ratio, ratio / factor, ratio * factor


def spread_of(ops: Sequence[OpComparison]) -> float | None:
    """Return the standard deviation of the log ratios, estimated robustly from the middle four fifths."""
    nearest, normal = NEAREST
    logs = sorted(abs(math.log(op.ratio)) for op in ops if op.verdict == "same" and op.ratio)
    return quantile(logs, nearest) / normal if len(logs) >= MIN_OPS_FOR_SPREAD else None


def power_of(
    ops: Sequence[OpComparison], thresholds: Mapping[str, float], visited: AbstractSet[str], spread: float | None
) -> float | None:
    """Return the smallest change that would be found with probability `FOUND` in a share `FOUND` of the judged ops.

    Each op is judged by its own threshold. For ops in `visited`, the error already includes the variation between runs.
    For other ops, it is at least `spread`.
    """
    detectable: list[float] = []
    for op in ops:
        if op.ratio is None or op.error is None:
            continue
        scatter = op.error if op.id in visited else max(op.error, spread or 0.0)
        detectable.append(math.expm1(max(math.log1p(thresholds[op.id]), ERRORS * op.error) + FOUND_NORMAL * scatter))
    return quantile(sorted(detectable), FOUND) if detectable else None


def total_of(both: Sequence[OpComparison], spread: float | None) -> Total | None:
    """Return the ratio of all ops combined, with its interval.

    The error of an op is its own error or the spread of all ops, whichever is larger. A machine may be slow for a
    while, so errors of ops measured one after the other are correlated. Therefore the interval also includes the
    differences between batches of neighbouring ops.
    """
    known = [(op.ratio, op.error, (op.before_us or 0.0) * op.count) for op in both if op.ratio and op.error is not None]
    before_us = sum(us for _, _, us in known)
    if before_us <= 0:
        return None
    total = sum(us * ratio for ratio, _, us in known) / before_us
    shares = [(us * ratio / (before_us * total), max(error, spread or 0.0)) for ratio, error, us in known]
    independent = math.sqrt(sum((share * error) ** 2 for share, error in shares))
    together = log_error([ratio for ratio, _, _ in known]) or 0.0
    factor = math.exp(ERRORS * math.hypot(independent, together))
    return Total(ratio=total, low=total / factor, high=total * factor)


def machine_of(pairs: Sequence[tuple[OpResult, OpResult]]) -> float | None:
    """Return the time of a fixed workload in the second run, relative to the first, as the median over the ops."""
    gauges = [(a.measurement.gauge_us, b.measurement.gauge_us) for a, b in pairs if a.measurement and b.measurement]
    ratios = [min(after) / min(before) for before, after in gauges if before and after and min(*before, *after) > 0]
    return statistics.median(ratios) if ratios else None


def _doubt(a: Measurement, b: Measurement) -> str:
    """Return why the two measurements cannot be compared; "" if they can."""
    fewest = min(a.samples, b.samples)
    for kind in map(kind_of, (*a.warnings, *b.warnings)):
        if kind in DOUBTFUL:
            return DOUBTFUL[kind]
    if median_ranks(fewest) is None:
        return f"{fewest} samples are too few for an interval"
    if a.part != b.part:
        return "the two runs measured different parts of the op"
    if a.cache != b.cache:
        return f"{a.cache} caches before, {b.cache} after"
    if a.threads is not None and b.threads is not None and a.threads != b.threads:
        return f"{a.threads} threads before, {b.threads} after"
    return ""


def _another_way(before: OpResult, after: OpResult) -> str:
    """Return a note if a different implementation ran. This may be intended, to compare it with a built-in."""
    first, second = (result.via or result.resolved_by or "" for result in (before, after))
    return f"ran as {first} before, {second} after" if first != second else ""


def unreached_of(run: ResultFile) -> int:
    """Return how many ops of its plan a run did not reach: ops without a result, or stopped because time ran out."""
    planned = run.header.trace.get("ops")
    reached = len(kept_results(run))
    return max(0, (planned if isinstance(planned, int) else len(run.results)) - reached)


def _alone(result: OpResult, verdict: Verdict) -> OpComparison:
    """Return the comparison of an op that only one run has; "lost" if the second run ended before reaching it."""
    before = verdict != "only after"
    return OpComparison(
        id=result.id,
        name=result.name,
        inputs=result.inputs,
        count=result.count,
        verdict=verdict,
        before_us=result.measured_us if before else None,
        after_us=None if before else result.measured_us,
        note="the second run was cut short" if verdict == "lost" else "",
    )
