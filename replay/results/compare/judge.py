# pyright: strict
"""Two runs side by side: which ops became slower or faster, and which differences are noise; reads files, runs nothing.

What is compared is an op's ratio: how many times as long it took in the second run. By the method "gauges" both times
are relative to the gauges that were read beside every sample, so that what makes the whole machine faster or slower
meanwhile is not in it; by "medians" they are plain medians. An op counts as slower when the ratio is above 1 by more
than its 95 % interval, and by more than the threshold: the user's or, where more is needed, 2.4 times the spread of the
ratios of all ops in these two runs; 2.6 times its own error where its visits tell that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from opreplay.replay.results.compare.compatibility import Difference, differences, load_notes
from opreplay.replay.results.compare.visits import MIN_OPS_FOR_SPREAD, Adjusted, by_visits
from opreplay.replay.results.measurement import Measurement, kind_of
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult
from opreplay.replay.results.resume import kept_results
from opreplay.replay.results.stats import log_error, median_ranks, quantile
from opreplay.traces.errors import EnvironmentRefused

Verdict = Literal["slower", "faster", "same", "unclear", "lost", "gained", "only before", "only after"]
"""Lost and gained: replayed in one run only, though in the plan of both."""

Method = Literal["gauges", "medians"]
"""Whether times are taken relative to the gauges where both runs have them, or as they are."""

What = Literal["recorded", "measured", "simulated"]
"""Which of an op's times is compared."""

Clock = Literal["device", "host"]
"""Of times: the accelerator's own, or the host's around a call."""

DEFAULT_THRESHOLD = 0.05
SPREADS = 2.4
"""The threshold is at least so many standard deviations of the logarithms of the ratios: 0.8 % of normal values are
above. More would hide a slowdown of 10 % among ops that scatter by 2 %, fewer would call ops slower that are not."""
NEAREST = (0.8, 1.2816)
"""So many of normal values are within so many standard deviations; what changed for real is among the others."""
VISITED_ERRORS = 2.6
"""The threshold of an op whose visits tell its error is at least so many of them: of 50 ops in 7 runs under load,
compared with themselves and with six slowed, 1 % were called slower that were not."""
ERRORS = 2.14
"""Half a 95 % interval in standard errors: Student's t for the 14 degrees of freedom of two times eight batches."""
FOUND, FOUND_NORMAL = 0.8, 0.84
"""A change is one that a pair of runs could have seen where it would be found so often, in as large a part of the ops:
so many of normal values are below so many standard deviations."""
DOUBTFUL = {
    "first call": "only a first call was timed",
    "not settled": "calls did not settle",
}
"""Warnings with which a time cannot be compared → why."""


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
    """After to before by the method of the comparison: what is judged. By gauges it is not that of the two times."""
    low: float | None = None
    high: float | None = None
    """Interval of the ratio, of `level`."""
    level: float = 0.95
    """0.8 where one side is a prediction: `low` to `high` is then its 80 % band, and the interval of the other side."""
    note: str = ""
    """Why the verdict is unclear, what became of an op that was lost, or what else is to be known of it."""
    before_kernel: str | None = None
    after_kernel: str | None = None
    """Where times of traces are compared: the kernel that took most of the op's device time."""

    @property
    def error(self) -> float | None:
        """Standard error of the logarithm of the ratio."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.log(self.high / self.low) / (2.0 * ERRORS)


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio of all ops together that were judged, weighted by the time of their calls in the first run."""

    ratio: float
    low: float | None
    high: float | None
    """Interval of `level`; None where the times compared have none: recorded sums, two predictions."""
    level: float = 0.95
    """0.8 where one side is a prediction."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long the marked steps of a trace took, on the host thread that marks them; those that launch work."""

    count: int
    median_us: float
    shortest_us: float
    longest_us: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one of two sides is, where not both are measurements."""

    what: What
    on: str
    """The device: as the trace names it, "cpu", or the name of the simulated one."""
    clock: Clock | None = None
    """What the times were read from: a host's clock also has what else the host did. None for predictions."""
    source: str
    """Name of the file, or of the trace that the results are of."""
    ops: int
    """With such a time."""
    total_us: float
    """Of all calls of these ops: the sum of what was recorded, else the time of a call times their number."""
    matched_ops: int
    matched_us: float
    """The part of it in ops that the other side has as well."""
    steps: StepTimes | None = None
    """None for what is no trace, and for one that marks no steps."""


class ClassTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of one class of work (GEMM, attention, elementwise, ...); microseconds, all calls."""

    name: str
    before_us: float
    after_us: float
    """Of all ops of the class on that side, whether the other side has them or not."""
    matched_ops: int
    ratio: float | None
    """After to before of the ops that both sides have, with the number of calls before; None where there is none."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All ops of two runs, largest change of total time first."""

    threshold: float
    """Asked for."""
    method: Method
    """Where not both sides are measurements, "medians": of calls, or the one time of a prediction."""
    applied: float
    """What ops were judged by: the threshold, or 2.4 times their spread; the median where each has its own."""
    spread: float | None
    """Standard deviation of the logarithms of the ratios, outliers aside; None below 20 ops."""
    power: float | None
    """The least change, a share, that would have been found with a probability of 80 % in 80 % of the ops; None where
    no op could be judged."""
    machine: float | None
    """How many times as long the gauge took in the second run; None where a run has none."""
    before_us: float
    after_us: float
    """Sums over the calls of all ops that were replayed in both runs."""
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    total: Total | None
    ops: tuple[OpComparison, ...]
    unreached: tuple[int, int] = (0, 0)
    """Ops of the plan of each run that it did not come to: out of time, interrupted, a rank lost."""
    sides: tuple[Side, Side] | None = None
    """Before and after, where not both are measurements; None for two runs."""
    classes: tuple[ClassTotal, ...] = ()
    """By class of work, most time first, where not both are measurements."""

    def of(self, *verdicts: Verdict) -> list[OpComparison]:
        """The ops with these verdicts."""
        return [op for op in self.ops if op.verdict in verdicts]

    @property
    def whole(self) -> float | None:
        """After to before of all that was recorded, ops on one side too; None unless both sides are recorded times."""
        if self.sides is None or any(side.what != "recorded" or not side.total_us for side in self.sides):
            return None
        return self.sides[1].total_us / self.sides[0].total_us

    @property
    def untold(self) -> str:
        """Why it cannot be told whether the total changed; "" where it can. One recording on a host clock has no
        error: what the machine did beside it may be longer than the other's for all of its calls. Neither have runs
        whose ops were all too slow for the samples of an interval."""
        if self.sides is None and self.total is None and any(op.ratio is not None for op in self.ops):
            return "no op has an interval in both runs"
        told = any(side.what == "recorded" and side.clock == "host" for side in self.sides or ())
        return "what was recorded on a host clock holds what else the machine did, by no known share" if told else ""

    @property
    def with_alone(self) -> float | None:
        """The total of two runs with the ops that are in the plan of one of them only; None where there is no total."""
        if self.total is None or self.before_us <= 0 or self.sides is not None:
            return None
        gone = sum((op.before_us or 0.0) * op.count for op in self.of("only before"))
        new = sum((op.after_us or 0.0) * op.count for op in self.of("only after"))
        return (self.total.ratio * self.before_us + new) / (self.before_us + gone)

    @property
    def alone_share(self) -> float:
        """Of all ops that were compared or are in the plan of one side only, the latter."""
        alone = len(self.of("only before", "only after"))
        return alone / len(self.ops) if self.ops else 0.0

    @property
    def unclear_share(self) -> float:
        """Of the ops that both runs replayed, those that could not be judged."""
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

    Raises EnvironmentRefused when the runs are of two machines or two ways to measure, unless `force`.
    """
    differ = differences(before.header, after.header)
    blocking = [str(difference) for difference in differ if difference.blocking]
    if blocking and not force:
        raise EnvironmentRefused(
            f"the runs cannot be compared: {'; '.join(blocking)}",
            hint="Run both on the same machine with the same options, or compare all the same with --force."
            + (" A number of threads is set with --threads." if any(d.name == "threads" for d in differ) else ""),
        )
    first = {result.id: result for result in before.results}
    second = {result.id: result for result in after.results}
    pairs = [(first[id_], second[id_]) for id_ in first if id_ in second]
    told = by_visits(
        {a.id: (a.name, a.measurement, b.measurement) for a, b in pairs if a.measurement and b.measurement}
    )
    compared = [
        compare_op(a, b, method, told.get(a.id) if method == "gauges" else None)
        for a, b in pairs
        if a.measurement or b.measurement
    ]
    spread = spread_of(compared)
    least = max(threshold, 0.0 if spread is None else math.expm1(SPREADS * spread))
    own = set(told) if method == "gauges" else set[str]()
    needed = {op.id: max(threshold, _own_threshold(op)) if op.id in own else least for op in compared}
    applied = statistics.median(needed.values()) if needed else threshold
    ops = [judged(op, threshold, needed[op.id]) for op in compared]
    neither = len(pairs) - len(ops)
    notes = [f"not compared: {neither} ops that neither run replayed"] if neither else []
    unreached = (unreached_of(before), unreached_of(after))
    notes += [
        f"the {which} run was cut short: it did not come to {missing} of its ops"
        for which, missing in zip(("first", "second"), unreached, strict=True)
        if missing
    ]
    left = [result for id_, result in first.items() if id_ not in second]
    ops += [_alone(one, "lost" if unreached[1] and one.measurement else "only before") for one in left]
    ops += [_alone(result, "only after") for id_, result in second.items() if id_ not in first]
    both = [op for op in ops if op.before_us is not None and op.after_us is not None]
    return Comparison(
        threshold=threshold,
        method=method,
        applied=applied,
        spread=spread,
        power=power_of(ops, needed, own, spread),
        machine=machine_of(pairs),
        before_us=sum((op.before_us or 0.0) * op.count for op in both),
        after_us=sum((op.after_us or 0.0) * op.count for op in both),
        differences=differ,
        notes=(*notes, *load_notes(before.header, after.header)),
        total=total_of(both, spread),
        unreached=unreached,
        ops=tuple(sorted(ops, key=lambda op: -abs(((op.after_us or 0.0) - (op.before_us or 0.0)) * op.count))),
    )


def compare_op(
    before: OpResult, after: OpResult, method: Method = "gauges", told: Adjusted | None = None
) -> OpComparison:
    """Ratio of an op that one run or both replayed; not judged yet: "same", or why it cannot be judged. `told` is the
    ratio that the op's visits tell, where both runs have several."""
    a, b = before.measurement, after.measurement
    made = OpComparison(
        id=after.id,
        name=after.name,
        inputs=after.inputs,
        count=after.count,
        verdict="same",
        before_us=before.measured_us,
        after_us=after.measured_us,
    )
    if a is None or b is None:
        verdict: Verdict = "lost" if b is None else "gained"
        return msgspec.structs.replace(made, verdict=verdict, note=str((after if b is None else before).reason or ""))
    if a.median_us <= 0 or b.median_us <= 0:
        return msgspec.structs.replace(made, verdict="unclear", note="too short for the clock")
    ratio, low, high = _ratio(a, b, method) if told is None else _with_interval(told.ratio, told.error)
    if median_ranks(min(a.samples, b.samples)) is None:
        low = high = None  # one sample says nothing of how far it is off: an interval of no width would
    doubt = _doubt(a, b)
    note = doubt or _another_way(before, after)
    return msgspec.structs.replace(
        made, verdict="unclear" if doubt else "same", ratio=ratio, low=low, high=high, note=note
    )


def judged(op: OpComparison, threshold: float, applied: float) -> OpComparison:
    """The op with its verdict: slower or faster beyond what is applied (a share) and its own interval, the same within
    the threshold asked for, and unclear between."""
    if op.verdict != "same" or op.ratio is None or op.low is None or op.high is None:
        return op
    if 1.0 / (1.0 + threshold) <= op.ratio <= 1.0 + threshold:
        return op
    if 1.0 / (1.0 + applied) <= op.ratio <= 1.0 + applied:
        return unclear(op, "the ops of the two runs scatter as far")
    if op.low <= 1.0 <= op.high:
        return unclear(op, "the change is within the errors of the two runs")
    return msgspec.structs.replace(op, verdict="slower" if op.ratio > 1.0 else "faster")


def unclear(op: OpComparison, why: str) -> OpComparison:
    """The op, of which nothing can be said, and why."""
    return msgspec.structs.replace(op, verdict="unclear", note=f"{why}; {op.note}" if op.note else why)


def _ratio(a: Measurement, b: Measurement, method: Method) -> tuple[float, float, float]:
    """Ratio of the times relative to the gauges, or of the medians, and its 95 % interval."""
    if method == "gauges" and a.relative and b.relative:
        ratio, errors = b.relative / a.relative, (a.relative_error, b.relative_error)
    else:
        ratio, errors = b.median_us / a.median_us, (a.median_error, b.median_error)
    if errors[0] is not None and errors[1] is not None:
        return _with_interval(ratio, math.hypot(errors[0], errors[1]))
    low = b.low_us / b.median_us * a.median_us / _some(a.high_us)
    return ratio, ratio * low, ratio * b.high_us / b.median_us * a.median_us / _some(a.low_us)


def _with_interval(ratio: float, error: float) -> tuple[float, float, float]:
    """A ratio and its 95 % interval, of the standard error of its logarithm."""
    factor = math.exp(ERRORS * error)
    return ratio, ratio / factor, ratio * factor


def _own_threshold(op: OpComparison) -> float:
    """What an op must have changed by, a share, by its own error."""
    return math.expm1(VISITED_ERRORS * (op.error or 0.0))


def spread_of(ops: Sequence[OpComparison]) -> float | None:
    """Standard deviation of the logarithms of the ratios if they were normal, as the nearest four fifths tell it."""
    nearest, normal = NEAREST
    logs = sorted(abs(math.log(op.ratio)) for op in ops if op.verdict == "same" and op.ratio)
    return quantile(logs, nearest) / normal if len(logs) >= MIN_OPS_FOR_SPREAD else None


def power_of(
    ops: Sequence[OpComparison], needed: Mapping[str, float], own: AbstractSet[str], spread: float | None
) -> float | None:
    """The least change that would be found so often (`FOUND`) in so large a part of the ops that were judged: `needed`
    is the threshold of each, `own` those whose error holds what scatters from run to run."""
    least: list[float] = []
    for op in ops:
        if op.ratio is None or op.error is None:
            continue
        scatter = op.error if op.id in own else max(op.error, spread or 0.0)
        least.append(math.expm1(max(math.log1p(needed[op.id]), ERRORS * op.error) + FOUND_NORMAL * scatter))
    return quantile(sorted(least), FOUND) if least else None


def total_of(both: Sequence[OpComparison], spread: float | None) -> Total | None:
    """Ratio of all ops together with its interval.

    An op is off by its own error or by the spread of all, whichever is more; and ops that were measured one after the
    other are off together, as a machine is slow for a while: what batches of neighbours differ by counts as well.
    """
    known = [(op, (op.before_us or 0.0) * op.count) for op in both if op.ratio and op.error is not None]
    weight = sum(weight for _, weight in known)
    if weight <= 0:
        return None
    ratio = sum(weight * (op.ratio or 0.0) for op, weight in known) / weight
    shares = [(op, own * (op.ratio or 0.0) / (weight * ratio)) for op, own in known]
    own = math.sqrt(sum((share * max(op.error or 0.0, spread or 0.0)) ** 2 for op, share in shares))
    together = log_error([op.ratio or 0.0 for op, _ in known]) or 0.0
    factor = math.exp(ERRORS * math.hypot(own, together))
    return Total(ratio=ratio, low=ratio / factor, high=ratio * factor)


def machine_of(pairs: Sequence[tuple[OpResult, OpResult]]) -> float | None:
    """Median over the ops of how many times as long the gauge took in the second run."""
    found = [_gauge_ratio(a.measurement, b.measurement) for a, b in pairs if a.measurement and b.measurement]
    known = [ratio for ratio in found if ratio is not None]
    return statistics.median(known) if known else None


def _doubt(a: Measurement, b: Measurement) -> str:
    """Why the two measurements cannot be held against each other; "" where they can."""
    fewest = min(a.samples, b.samples)
    for kind in map(kind_of, (*a.warnings, *b.warnings)):
        if kind in DOUBTFUL:
            return DOUBTFUL[kind]
    if median_ranks(fewest) is None:
        return f"{fewest} samples are too few for an interval"
    if a.part != b.part:
        return "another part of the op ran"
    if a.cache != b.cache:
        return f"{a.cache} caches before, {b.cache} after"
    if a.threads is not None and b.threads is not None and a.threads != b.threads:
        return f"with {a.threads} of the threads before, {b.threads} after"
    return ""


def _another_way(before: OpResult, after: OpResult) -> str:
    """That another implementation ran, which is what may have been asked: how a custom op compares with a built-in."""
    first, second = (result.via or result.resolved_by or "" for result in (before, after))
    return f"ran as {first} before, {second} after" if first != second else ""


def _gauge_ratio(a: Measurement, b: Measurement) -> float | None:
    if a.gauge_us is None or b.gauge_us is None or min(*a.gauge_us, *b.gauge_us) <= 0:
        return None
    return min(b.gauge_us) / min(a.gauge_us)


def unreached_of(run: ResultFile) -> int:
    """Ops of a run's plan that it did not come to: that have no result, or no other than that there was no time."""
    planned = run.header.trace.get("ops")
    reached = len(kept_results(run))
    return max(0, (planned if isinstance(planned, int) else len(run.results)) - reached)


def _alone(result: OpResult, verdict: Verdict) -> OpComparison:
    """Of an op that one run has alone: "lost" where the second one ended before it."""
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


def _some(value: float) -> float:
    """A divisor that is not zero: a time below the clock's resolution is as good as that."""
    return max(value, 1e-6)
