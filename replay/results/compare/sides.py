# pyright: strict
"""Compare times of different kinds: recorded with recorded, measured or simulated. Reads files, runs nothing.

Two GPUs, a trace and its replay, or a replay and a prediction differ for reasons that no reference workload removes.
Therefore the plain ratio of the medians of an op's calls is judged. The op is slower or faster if the ratio exceeds the
threshold. It is unclear if the intervals of both medians, or the band of a prediction, allow either. With fewer than
six calls there is no interval. Then medians on a device's clock are compared as exact values, and medians on a host's
clock are inconclusive.

Two predictions are compared as exact values, because their errors are correlated. For two recordings on a host's clock,
the threshold is raised to the spread of all ops, as for two runs. Between two recordings of one device, a change common
to all ops (its clock rate) is divided out first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.alike import relative_to, shared_change
from opreplay.replay.results.compare.judge import (
    DEFAULT_THRESHOLD,
    ClassTotal,
    Clock,
    Comparison,
    OpComparison,
    Side,
    StepTimes,
    Total,
    What,
    is_within,
    raised_threshold,
    spread_of,
    sums_of,
    unclear,
    unreached_of,
)
from opreplay.replay.results.compare.per_step import PerStep
from opreplay.replay.results.compare.replaced import StepCall, replacements
from opreplay.replay.results.measurement import kind_of
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult, Simulated
from opreplay.traces.errors import UsageError
from opreplay.traces.links.steps import PairedBy
from opreplay.traces.names import plural
from opreplay.traces.sums import summed
from opreplay.traces.times.doubts import Doubts
from opreplay.traces.times.kernel_classes import class_of_work

UNNAMED = "an unnamed device"
WHATS: tuple[What, ...] = ("recorded", "measured", "simulated")


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one side; times are in microseconds per call."""

    id: str
    name: str
    inputs: str
    count: int
    us: float | None = None
    """Median of the calls, or the prediction; None if there is none, with the reason in `note`."""
    low_us: float | None = None
    high_us: float | None = None
    """Upper end of the 95 % interval of the median, or of the 80 % band of a prediction; None if there is none."""
    calls: int | None = None
    """Number of calls that were timed; None if only the median was kept."""
    longest_us: float | None = None
    """Time of the longest timed call."""
    total_us: float | None = None
    """Recorded total time of all calls; None if each call counts as taking `us`."""
    kernel: str | None = None
    note: str = ""

    @property
    def sum_us(self) -> float:
        """Return the time of all calls: the recorded sum, or the time of one call times the number of calls."""
        return (self.us or 0.0) * self.count if self.total_us is None else self.total_us


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: the times of all its ops."""

    what: What
    on: str
    source: str
    ops: tuple[OpTime, ...]
    clock: Clock | None = None
    """Clock of the times; None for predictions."""
    notes: tuple[str, ...] = ()
    unreached: int = 0
    """Number of ops that a run did not reach."""
    steps: StepTimes | None = None
    paired: PairedBy | None = None
    """How the steps in `in_steps` correspond to the steps of the other trace; None if this is not a trace."""
    in_steps: tuple[tuple[StepCall, ...], ...] = ()
    """For a trace: the calls of each compared step, in order."""
    doubts: Doubts = Doubts()
    """Reasons to doubt recorded device times."""


CONFIDENCE = {
    "calibrated": "",
    "other SoC": "prediction calibrated on another SoC",
    "uncalibrated": "uncalibrated prediction",
}
"""Confidence of a prediction → text shown next to the ratio of the prediction to another time."""


def times_of_results(file: ResultFile, what: What, soc: str | None = None) -> Times:
    """Return one kind of time from a result file.

    `soc` names the simulated device. Without it, the file must have only one. Raises UsageError if the file has no such
    time.
    """
    source = str(file.header.trace.get("source") or "")
    if what == "simulated":
        return _simulated(file, soc, source)
    return _recorded(file, source) if what == "recorded" else _measured(file, source)


def _timed(result: OpResult, us: float | None = None, note: str = "") -> OpTime:
    return OpTime(id=result.id, name=result.name, inputs=result.inputs, count=result.count, us=us, note=note)


def _recorded(file: ResultFile, source: str) -> Times:
    untimed = [result for result in file.results if result.recorded_device_us == 0.0]
    device = bool(file.header.trace.get("device_us_total")) or bool(untimed)
    on = str(file.header.trace.get("device") or "") or (UNNAMED if device else "cpu")
    times = [result.recorded_device_us if device else result.recorded_host_us for result in file.results]
    ops = tuple(_timed(result, us, "" if us else "no time") for result, us in zip(file.results, times, strict=True))
    return Times(
        what="recorded", on=on, clock="device" if device else "host", source=source, ops=ops, doubts=_doubts(file)
    )


def _doubts(file: ResultFile) -> Doubts:
    """Return the reasons to doubt the device times that the file took from a trace."""
    if not file.header.trace.get("device_us_total"):
        return Doubts(zero_durations=sum(result.count for result in file.results if result.recorded_device_us == 0.0))
    try:
        return msgspec.convert(file.header.trace.get("doubts", {}), Doubts)
    except msgspec.ValidationError:  # a damaged file, or one of another version
        return Doubts()


def _measured(file: ResultFile, source: str) -> Times:
    if not any(result.measurement for result in file.results):
        raise UsageError(f"the results of {source} contain no measured time", hint="Choose other times with --times.")
    environment = file.header.environment
    on = str(environment.get("device_name") or environment.get("device") or "this machine")
    if on == "cpu" and environment.get("cpu"):
        on = f"cpu ({environment['cpu']})"
    ops = tuple(map(_measured_op, file.results))
    clock = "host" if environment.get("device") == "cpu" else "device"
    return Times(what="measured", on=on, clock=clock, source=source, ops=ops, unreached=unreached_of(file))


def _measured_op(result: OpResult) -> OpTime:
    measurement = result.measurement
    if measurement is None:
        return _timed(result, result.measured_us, str(result.reason or ""))
    kinds = dict.fromkeys(kind for kind in map(kind_of, measurement.warnings) if kind in _DOUBTS)
    return msgspec.structs.replace(
        _timed(result, result.measured_us, ", ".join(kinds)),
        calls=measurement.samples,
        low_us=measurement.ci_low_us,
        high_us=measurement.ci_high_us,
    )


_DOUBTS = frozenset({"first call", "not settled", "part of the op", "interrupted", "threads waited"})
"""Kinds of warnings that are shown next to the ratio of a measured time to another time."""


def _simulated(file: ResultFile, soc: str | None, source: str) -> Times:
    socs = list(dict.fromkeys(name for result in file.results for name in result.simulated))
    if soc is None and len(socs) == 1:
        soc = socs[0]
    if soc is None or soc not in socs:
        what = "no prediction" if not socs else f"predictions for {', '.join(socs)}"
        raise UsageError(f"the results of {source} contain {what}", hint="Choose one of them: --times measured:910b3.")
    ops = tuple(with_prediction(_timed(result), result.simulated.get(soc)) for result in file.results)
    return Times(what="simulated", on=soc, source=source, ops=ops)


def with_prediction(op: OpTime, prediction: Simulated | None) -> OpTime:
    """Return an op with its prediction and the prediction's band."""
    if prediction is None:
        return msgspec.structs.replace(op, note="not predicted")
    if prediction.no_path:
        note = f"no unit multiplies {prediction.no_path}"
    else:
        note = "by bytes only" if prediction.by == "bytes" else CONFIDENCE[prediction.confidence]
    far = "extrapolated far from measured sizes" if prediction.extrapolated else ""
    return msgspec.structs.replace(
        op,
        us=prediction.time_us,
        low_us=prediction.low_us,
        high_us=prediction.high_us,
        note="; ".join(filter(None, (note, far))),
    )


UNKNOWN = "its device time is unknown"


def _without_wrong_times(side: Times) -> Times:
    """Return the side unchanged or, if its device times are wrong, without any op times."""
    if not side.doubts.mistimed:
        return side
    replace = msgspec.structs.replace
    ops = tuple(replace(op, us=None, low_us=None, high_us=None, longest_us=None, total_us=None) for op in side.ops)
    return replace(side, ops=ops, paired=None, in_steps=())


def compare_times(before: Times, after: Times, *, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Judge every op that both sides have; `threshold` is a share, 0.05 for 5 %.

    If the recorded device times of a side are wrong, no op is judged. If some device times are unknown, the total is
    not compared.
    """
    before, after = _without_wrong_times(before), _without_wrong_times(after)
    unknown = before.doubts.mistimed or after.doubts.mistimed
    per_step = None if unknown else _per_step(before, after)
    first, second = ({op.id: op for op in side.ops} for side in (before, after))
    both = [(op, second[op.id]) for op in before.ops if op.id in second]
    idle = {a.id for a, b in both if _is_idle(before, a) or _is_idle(after, b)}
    compared = [_compared(a, b, before, after) for a, b in both if a.id not in idle and (a.us or b.us or unknown)]
    if per_step is not None:
        compared = [per_step.with_calls(op) for op in compared]
    shared = shared_change(compared) if _same_device(before, after) else None
    if shared is not None:
        compared = [relative_to(op, shared) for op in compared]
    spread = spread_of(compared) if _on_host(before) and _on_host(after) else None
    applied = raised_threshold(threshold, spread)
    ops = [_judged(op, threshold, applied) for op in compared]
    timed = [op for op in ops if op.before_us and op.after_us]
    before_us, after_us = sums_of(timed)
    ops += [_alone(op, "only before") for op in before.ops if op.us and op.id not in second]
    ops += [_alone(op, "only after") for op in after.ops if op.us and op.id not in first]
    listed = ops if per_step is None else per_step.judged(ops, applied, shared or 1.0)
    sides = (_side(before, second), _side(after, first))
    told = all(side.is_total_known for side in sides)
    return Comparison(
        threshold=threshold,
        method="medians",
        applied=applied,
        spread=spread,
        power=None,
        machine=None,
        shared=shared,
        before_us=before_us,
        after_us=after_us,
        differences=(),
        notes=(
            *_notes(timed, before, after, threshold, None if per_step is None else per_step.paired),
            *_idle_notes(len(idle)),
            *_outside_notes(len(ops) - len(listed)),
            *before.notes,
            *after.notes,
        ),
        total=_total([(a, b) for a, b in both if a.us and b.us], before, after) if told else None,
        ops=tuple(sorted(listed, key=lambda op: -op.weight_us)),
        paired=None if per_step is None else per_step.paired,
        replaced=() if per_step is None else replacements(*per_step.typical),
        unreached=(before.unreached, after.unreached),
        sides=sides,
        classes=() if unknown else _classes(before, after),
    )


def _per_step(before: Times, after: Times) -> PerStep | None:
    """Return the op times per compared step, or over two whole recordings; None unless both sides are recordings."""
    if before.what != "recorded" or after.what != "recorded":
        return None
    if before.paired not in (None, "whole") and before.paired == after.paired:
        return PerStep.of(before.paired, before.in_steps, after.in_steps)
    counts = {op.id: op.count for op in before.ops}
    return PerStep(
        paired="whole",
        before={op.id: ((op.us or 0.0) * op.count, op.count) for op in before.ops},
        after={op.id: ((op.us or 0.0) * counts.get(op.id, op.count), op.count) for op in after.ops},
        typical=(next(iter(before.in_steps), ()), next(iter(after.in_steps), ())),
    )


def _outside_notes(ops: int) -> list[str]:
    return [f"left out: {ops} {'op' if ops == 1 else 'ops'} without time in the compared steps"] if ops else []


def _is_idle(side: Times, op: OpTime) -> bool:
    """Check whether the op is predicted to launch no kernel, e.g. a view. Then there is nothing to compare."""
    return side.what == "simulated" and op.us == 0.0


def _idle_notes(ops: int) -> list[str]:
    if not ops:
        return []
    return [f"left out: {ops} {'op' if ops == 1 else 'ops'} without a kernel on the simulated device (views)"]


def _classes(before: Times, after: Times) -> tuple[ClassTotal, ...]:
    """Return the totals of all ops by class of work, most time first."""
    first, second = ({op.id: op for op in side.ops if op.us} for side in (before, after))
    ids: dict[str, list[str]] = {}
    for id_, op in {**second, **first}.items():
        ids.setdefault(class_of_work(op.name, op.kernel or ""), []).append(id_)
    totals = [_class_total(name, ids_of_class, first, second) for name, ids_of_class in ids.items()]
    return tuple(sorted(totals, key=lambda total: -max(total.before_us, total.after_us)))


def _class_total(name: str, ids: Sequence[str], first: dict[str, OpTime], second: dict[str, OpTime]) -> ClassTotal:
    both = [(first[id_], second[id_]) for id_ in ids if id_ in first and id_ in second]
    before_us, after_us = _sums_us(both)
    return ClassTotal(
        name=name,
        before_us=sum(first[id_].sum_us for id_ in ids if id_ in first),
        after_us=sum(second[id_].sum_us for id_ in ids if id_ in second),
        matched_ops=len(both),
        ratio=after_us / before_us if before_us else None,
    )


def _sums_us(both: Sequence[tuple[OpTime, OpTime]]) -> tuple[float, float]:
    """Return the time of all calls on each side, using the first side's number of calls for both."""
    return sum((a.us or 0.0) * a.count for a, _ in both), sum((b.us or 0.0) * a.count for a, b in both)


def _on_host(side: Times) -> bool:
    """Check whether the side was recorded on a host's clock."""
    return side.what == "recorded" and side.clock == "host"


def _same_device(before: Times, after: Times) -> bool:
    """Check whether both sides were recorded on the clock of a device with the same known name."""
    on_device = all(side.what == "recorded" and side.clock == "device" for side in (before, after))
    return on_device and before.on == after.on != UNNAMED


def _predicts(before: Times, after: Times) -> bool:
    """Check whether exactly one side is a prediction. Its band then applies to the ratio.

    The errors of two predictions are correlated, so their bands say nothing about the ratio.
    """
    return (before.what == "simulated") != (after.what == "simulated")


def _total(both: Sequence[tuple[OpTime, OpTime]], before: Times, after: Times) -> Total | None:
    """Return the ratio of the total times of ops on both sides, with each op's number of calls before.

    If one side is a prediction, the ratio has an interval. As for a simulated step, errors of ops in one class of work
    add up, and errors of different classes are independent.
    """
    before_us, after_us = _sums_us(both)
    if not before_us or not after_us:
        return None
    ratio = after_us / before_us
    if not _predicts(before, after):
        return Total(ratio=ratio, low=None, high=None)
    errors = (_error_us([(a, a) for a, _ in both]) / before_us, _error_us(both) / after_us)
    factor = math.exp(math.hypot(*errors))
    return Total(ratio=ratio, low=ratio / factor, high=ratio * factor, level=BAND)


def _error_us(both: Sequence[tuple[OpTime, OpTime]]) -> float:
    """Return the error of the summed times of each pair's second op. The first op gives class of work and
    call count.
    """
    by_class = summed(
        (
            class_of_work(counted.name, counted.kernel or ""),
            op.us * counted.count * max(math.log(op.high_us / op.us), math.log(op.us / op.low_us)),
        )
        for counted, op in both
        if op.us and op.low_us and op.high_us
    )
    return math.hypot(*by_class.values())


BAND = 0.8
"""Share of times that lie in the band of a prediction."""


def _interval(a: OpTime, b: OpTime) -> tuple[float, float]:
    """Return the interval of the ratio of two times, each of which may have an interval."""
    low_us, high_us = a.low_us or a.us or 0.0, a.high_us or a.us or 0.0
    return (b.low_us or b.us or 0.0) / max(high_us, 1e-6), (b.high_us or b.us or 0.0) / max(low_us, 1e-6)


def _compared(a: OpTime, b: OpTime, before: Times, after: Times) -> OpComparison:
    """Return the ratio of an op that both sides have. If it can be judged, the verdict is "same"; otherwise a note says
    why.
    """
    comparison = OpComparison(
        id=a.id,
        name=a.name,
        inputs=a.inputs or b.inputs,
        count=a.count,
        verdict="same",
        before_us=a.us,
        after_us=b.us,
        note="; ".join(dict.fromkeys(filter(None, (a.note, b.note)))),
        before_kernel=a.kernel,
        after_kernel=b.kernel,
    )
    if before.doubts.mistimed or after.doubts.mistimed:
        return unclear(msgspec.structs.replace(comparison, note=""), UNKNOWN)
    if not a.us or not b.us:
        return msgspec.structs.replace(comparison, verdict="gained" if b.us else "lost")
    comparison = msgspec.structs.replace(comparison, ratio=b.us / a.us)
    both_predicted = before.what == after.what == "simulated"
    if not both_predicted and (a.low_us, b.low_us) != (None, None):
        low, high = _interval(a, b)
        level = BAND if _predicts(before, after) else comparison.level
        comparison = msgspec.structs.replace(comparison, low=low, high=high, level=level)
    few = _too_few(a, before) or _too_few(b, after)
    return unclear(comparison, few) if few else comparison


def _judged(op: OpComparison, threshold: float, applied: float) -> OpComparison:
    """Return the op with its verdict, judged as for two runs.

    If one side is a prediction, the op is "same" only if the whole band is within the threshold.
    """
    if op.verdict != "same" or op.ratio is None:
        return op
    low, high = (op.ratio, op.ratio) if op.low is None or op.high is None else (op.low, op.high)
    open_to_both = low <= 1.0 <= high
    if op.level == BAND and open_to_both and not (is_within(low, threshold) and is_within(high, threshold)):
        return unclear(op, "the 80 % band of the prediction includes both slower and faster")
    if is_within(op.ratio, threshold):
        return op
    if is_within(op.ratio, applied):
        return unclear(op, "other ops of the two recordings vary as much")
    if open_to_both:
        return unclear(op, "the change is within the error of the two sides")
    return msgspec.structs.replace(op, verdict="slower" if op.ratio > 1.0 else "faster")


def _too_few(op: OpTime, side: Times) -> str:
    """Return why the error of a time from a host's clock is unknown; "" if it is known."""
    if side.clock != "host" or op.low_us is not None:
        return ""
    if op.calls is None:
        return "only the median of its calls on a host clock is known, not their variation"
    return "too few calls on a host clock to know their variation"


def _alone(op: OpTime, verdict: Literal["only before", "only after"]) -> OpComparison:
    before = verdict == "only before"
    return OpComparison(
        id=op.id,
        name=op.name,
        inputs=op.inputs,
        count=op.count,
        verdict=verdict,
        before_us=op.us if before else None,
        after_us=None if before else op.us,
        note=op.note,
        before_kernel=op.kernel if before else None,
        after_kernel=None if before else op.kernel,
    )


def _side(times: Times, other: dict[str, OpTime]) -> Side:
    timed = [op for op in times.ops if op.us]
    matched = [op for op in timed if op.id in other and other[op.id].us]
    return Side(
        what=times.what,
        on=times.on,
        clock=times.clock,
        source=times.source,
        ops=len(timed),
        total_us=sum(op.sum_us for op in timed),
        matched_ops=len(matched),
        matched_us=sum(op.sum_us for op in matched),
        steps=times.steps,
        doubts=times.doubts,
    )


def _notes(
    timed: Sequence[OpComparison], before: Times, after: Times, threshold: float, paired: PairedBy | None
) -> list[str]:
    if before.doubts.mistimed or after.doubts.mistimed:
        return []
    if not timed:
        return ["no op has a time on both sides: the models, sizes or selections (--select) may differ"]
    notes = ["the ratio compares the medians of an op's calls; the total is medians × number of calls before"]
    if paired is not None:
        notes = ["times of an op: sum of its calls per step; verdict: from the medians of its calls"]
        if paired == "whole":
            notes = [
                "times of an op: its median call × its number of calls before, on both sides (these do not add up to "
                "the total)"
            ]
    notes += _interval_notes(timed, before, after)
    notes += [note for side in (before, after) for note in _interrupted(side, threshold)]
    counts = Counter(op.note for op in timed if op.note and op.verdict != "unclear")
    notes += [f"{note}: {plural(count, 'op')}" for note, count in counts.most_common(4)]
    if (before.what, before.on) != (after.what, after.on):
        notes.append(f"two kinds of times: {before.what} on {before.on}, {after.what} on {after.on}")
    return notes


def _interval_notes(timed: Sequence[OpComparison], before: Times, after: Times) -> list[str]:
    """Return notes on what the intervals are, and on times that have no interval."""
    if before.what == after.what == "simulated":
        return ["no interval: both sides are predictions with similar errors, compared as exact values"]
    notes: list[str] = []
    if _predicts(before, after):
        notes.append(
            "interval: the 80 % band of the prediction, combined with the 95 % interval of the other side if it has one"
        )
    bare = sum(op.low is None and op.verdict != "unclear" for op in timed)
    if bare:
        notes.append(
            f"no interval: {bare} of {len(timed)} ops have fewer than six calls or are from a plan, so their times "
            f"are compared as exact values"
        )
    if _on_host(before) or _on_host(after):
        notes.append(
            "host clock: recorded times include other load on the machine and intervals do not, so no verdict on the "
            "total; for one, alternate `opreplay run` of both sides"
        )
    return notes


INTERRUPTED = 10.0
"""Minimum ratio of an op's longest call to its median for the call to stand out."""


def _interrupted(side: Times, threshold: float) -> list[str]:
    """Return notes on the three longest calls that stand out and exceed `threshold` of the side's total."""
    total = sum(op.sum_us for op in side.ops)
    longest = [
        (op.longest_us, op.us, op.name)
        for op in side.ops
        if op.longest_us and op.us and op.longest_us >= INTERRUPTED * op.us
    ]
    return [
        f"{side.source}: one call of {name} took {longest_us:,.0f} µs, {longest_us / us:,.0f} times its median: "
        f"{100 * (longest_us / total):.0f} % of the total ({total - longest_us + us:,.0f} µs without it)"
        for longest_us, us, name in sorted(longest, key=lambda row: -row[0])
        if longest_us - us > threshold * total
    ][:3]
