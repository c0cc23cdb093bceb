# pyright: strict
"""Times of different kinds side by side: recorded against recorded, measured or simulated; reads files, runs nothing.

Two GPUs, a trace and its replay, a replay and a prediction differ for reasons that no gauge takes out. So what is
judged is the plain ratio of the medians of an op's calls: slower or faster beyond the threshold, unclear where the
intervals of both medians or the band of a prediction leave it open. Fewer than six calls have no interval: on a
device's clock they are taken as they are, on a host's they say nothing; and of two recordings on a host's clock the
threshold is raised to what all ops scatter by, as of two runs. Two predictions err together: they are taken as they
are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.judge import (
    DEFAULT_THRESHOLD,
    SPREADS,
    ClassTotal,
    Clock,
    Comparison,
    OpComparison,
    Side,
    StepTimes,
    Total,
    What,
    spread_of,
    unclear,
    unreached_of,
)
from opreplay.replay.results.measurement import kind_of
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult, Simulated
from opreplay.traces.errors import UsageError
from opreplay.traces.times.kernel_classes import class_of_work

WHATS: tuple[What, ...] = ("recorded", "measured", "simulated")


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """One op on one side; microseconds a call."""

    id: str
    name: str
    inputs: str
    count: int
    us: float | None = None
    """Median of the calls, or the prediction; None where there is none: `note` says why."""
    low_us: float | None = None
    high_us: float | None = None
    """95 % interval of the median, the 80 % band of a prediction; None where it has none."""
    calls: int | None = None
    """That were timed; None where the median alone was kept."""
    longest_us: float | None = None
    """Of these."""
    total_us: float | None = None
    """Sum of all calls as recorded; None where one time stands for each call."""
    kernel: str | None = None
    note: str = ""

    @property
    def sum_us(self) -> float:
        """All calls together: the recorded sum, else the time of one times their number."""
        return (self.us or 0.0) * self.count if self.total_us is None else self.total_us


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """One side: all ops that it has."""

    what: What
    on: str
    source: str
    ops: tuple[OpTime, ...]
    clock: Clock | None = None
    """None for predictions."""
    notes: tuple[str, ...] = ()
    unreached: int = 0
    """Ops that a run did not come to measure."""
    steps: StepTimes | None = None


CONFIDENCE = {
    "calibrated": "",
    "other SoC": "prediction calibrated on another SoC",
    "uncalibrated": "uncalibrated prediction",
}
"""What is said of a prediction beside its ratio to another time."""


def times_of_results(file: ResultFile, what: What, soc: str | None = None) -> Times:
    """One kind of time of a result file; `soc` names the simulated device, the only one by default.

    Raises UsageError where the file has no such time.
    """
    trace = file.header.trace
    source = str(trace.get("source") or "")
    if what == "simulated":
        return _simulated(file, soc, source)
    if what == "recorded":
        on = str(trace.get("device") or "") or ("cpu" if not trace.get("device_us_total") else "an unnamed device")
        device = bool(trace.get("device_us_total"))
        ops = tuple(_recorded(one, device) for one in file.results)
        return Times(what=what, on=on, clock="device" if device else "host", source=source, ops=ops)
    if not any(one.measurement for one in file.results):
        raise UsageError(f"the results of {source} hold no measured time", hint="Compare another time with --times.")
    environment = file.header.environment
    on = str(environment.get("device_name") or environment.get("device") or "this machine")
    if on == "cpu" and environment.get("cpu"):
        on = f"cpu ({environment['cpu']})"
    ops = tuple(_measured(one) for one in file.results)
    clock = "host" if environment.get("device") == "cpu" else "device"
    return Times(what=what, on=on, clock=clock, source=source, ops=ops, unreached=unreached_of(file))


def _recorded(one: OpResult, device: bool) -> OpTime:
    us = one.recorded_device_us if device else one.recorded_host_us
    return OpTime(id=one.id, name=one.name, inputs=one.inputs, count=one.count, us=us, note="" if us else "no time")


def _measured(one: OpResult) -> OpTime:
    made = OpTime(id=one.id, name=one.name, inputs=one.inputs, count=one.count, us=one.measured_us)
    found = one.measurement
    if found is None:
        return msgspec.structs.replace(made, note=str(one.reason or ""))
    told = ", ".join(dict.fromkeys(str(kind_of(warning)) for warning in found.warnings if kind_of(warning) in _DOUBTS))
    return msgspec.structs.replace(
        made,
        calls=found.samples,
        low_us=found.ci_low_us,
        high_us=found.ci_high_us,
        note=told,
    )


_DOUBTS = frozenset({"first call", "not settled", "part of the op", "interrupted", "threads waited"})
"""Warnings of a measurement that belong beside its ratio to another time."""


def _simulated(file: ResultFile, soc: str | None, source: str) -> Times:
    known = list(dict.fromkeys(name for one in file.results for name in one.simulated))
    if soc is None and len(known) == 1:
        soc = known[0]
    if soc is None or soc not in known:
        what = "no prediction" if not known else f"predictions for {', '.join(known)}"
        raise UsageError(f"the results of {source} hold {what}", hint="Name one of them: --times measured:910b3.")
    ops = [
        with_prediction(OpTime(id=one.id, name=one.name, inputs=one.inputs, count=one.count), one.simulated.get(soc))
        for one in file.results
    ]
    return Times(what="simulated", on=soc, source=source, ops=tuple(ops))


def with_prediction(op: OpTime, found: Simulated | None) -> OpTime:
    """An op with what is predicted of it, and how well that is known."""
    if found is None:
        return msgspec.structs.replace(op, note="not predicted")
    if found.no_path:
        note = f"no known path for products of {found.no_path}"
    else:
        note = "by its bytes alone" if found.by == "bytes" else CONFIDENCE[found.confidence]
    note = "; ".join(filter(None, (note, "predicted far outside of what was measured" if found.extrapolated else "")))
    return msgspec.structs.replace(op, us=found.time_us, low_us=found.low_us, high_us=found.high_us, note=note)


def compare_times(before: Times, after: Times, *, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Judge every op that both sides have; `threshold` is a share, 0.05 for 5 %."""
    first, second = ({op.id: op for op in side.ops} for side in (before, after))
    both = [(op, second[op.id]) for op in before.ops if op.id in second]
    idle = [a for a, b in both if _is_idle(before, a) or _is_idle(after, b)]
    left_out = {op.id for op in idle}
    compared = [_compared(a, b, before, after) for a, b in both if (a.us or b.us) and a.id not in left_out]
    spread = spread_of(compared) if all(map(_on_host, (before, after))) else None
    applied = max(threshold, 0.0 if spread is None else math.expm1(SPREADS * spread))
    ops = [_judged(op, threshold, applied) for op in compared]
    ops += [_alone(op, "only before") for op in before.ops if op.id not in second and op.us]
    ops += [_alone(op, "only after") for op in after.ops if op.id not in first and op.us]
    timed = [op for op in ops if op.before_us and op.after_us]
    sums = [sum((us or 0.0) * op.count for op in timed for us in (getattr(op, side),)) for side in _SIDES]
    return Comparison(
        threshold=threshold,
        method="medians",
        applied=applied,
        spread=spread,
        power=None,
        machine=None,
        before_us=sums[0],
        after_us=sums[1],
        differences=(),
        notes=(*_notes(timed, before, after, threshold), *_of_idle(idle), *before.notes, *after.notes),
        total=_total([pair for pair in both if pair[0].us and pair[1].us], before, after),
        ops=tuple(sorted(ops, key=lambda op: -abs(((op.after_us or 0.0) - (op.before_us or 0.0)) * op.count))),
        unreached=(before.unreached, after.unreached),
        sides=(_side(before, second), _side(after, first)),
        classes=_classes(before, after),
    )


def _is_idle(side: Times, op: OpTime) -> bool:
    """Whether the op is predicted to start no kernel, as views do: there is nothing to compare with."""
    return side.what == "simulated" and op.us == 0.0


def _of_idle(idle: Sequence[OpTime]) -> list[str]:
    if not idle:
        return []
    what = "op starts" if len(idle) == 1 else "ops start"
    return [f"left out: {len(idle)} {what} no kernel on the simulated device (views)"]


def _classes(before: Times, after: Times) -> tuple[ClassTotal, ...]:
    """Sums of all ops of a class of work, most time before first."""
    first, second = ({op.id: op for op in side.ops if op.us} for side in (before, after))
    kinds = {id_: class_of_work(op.name, op.kernel or "") for side in (second, first) for id_, op in side.items()}
    made: list[ClassTotal] = []
    for kind in dict.fromkeys(kinds.values()):
        ids = [id_ for id_, own in kinds.items() if own == kind]
        both = [(first[id_], second[id_]) for id_ in ids if id_ in first and id_ in second]
        was = sum((a.us or 0.0) * a.count for a, _ in both)
        made.append(
            ClassTotal(
                name=kind,
                before_us=_sum(first, ids),
                after_us=_sum(second, ids),
                matched_ops=len(both),
                ratio=sum((b.us or 0.0) * a.count for a, b in both) / was if was else None,
            )
        )
    return tuple(sorted(made, key=lambda one: -max(one.before_us, one.after_us)))


def _sum(side: dict[str, OpTime], ids: Sequence[str]) -> float:
    return sum(side[id_].sum_us for id_ in ids if id_ in side)


_SIDES: tuple[Literal["before_us", "after_us"], ...] = ("before_us", "after_us")


def _on_host(side: Times) -> bool:
    """Whether it was recorded on a host's clock."""
    return side.what == "recorded" and side.clock == "host"


def _predicts(before: Times, after: Times) -> bool:
    """Whether one side alone is a prediction: two err together, so that their bands say nothing of the ratio."""
    return (before.what == "simulated") != (after.what == "simulated")


def _total(both: Sequence[tuple[OpTime, OpTime]], before: Times, after: Times) -> Total | None:
    """Ratio of the ops on both sides, with the number of calls before.

    Its interval is there where one side is a prediction: as for a simulated step, ops of one class of work err alike
    and their errors add, those of others are independent.
    """
    sums = [sum((us or 0.0) * a.count for a, b in both for us in ((a, b)[side].us,)) for side in (0, 1)]
    if not sums[0] or not sums[1]:
        return None
    ratio = sums[1] / sums[0]
    if not _predicts(before, after):
        return Total(ratio=ratio, low=None, high=None)
    errors: list[float] = []
    for side, total in enumerate(sums):
        by_class: dict[str, float] = {}
        for a, b in both:
            op, kind = (a, b)[side], class_of_work(a.name, a.kernel or "")
            if op.us and op.low_us and op.high_us:
                widest = max(math.log(op.high_us / op.us), math.log(op.us / op.low_us))
                by_class[kind] = by_class.get(kind, 0.0) + op.us * a.count * widest
        errors.append(math.hypot(*by_class.values()) / total)
    factor = math.exp(math.hypot(*errors))
    return Total(ratio=ratio, low=ratio / factor, high=ratio * factor, level=BAND)


BAND = 0.8
"""So many of the times lie in the band of a prediction."""


def _compared(a: OpTime, b: OpTime, before: Times, after: Times) -> OpComparison:
    """Ratio of an op that both sides have; not judged yet: "same", or why it cannot be judged."""
    made = OpComparison(
        id=a.id,
        name=a.name,
        inputs=a.inputs or b.inputs,
        count=a.count,
        verdict="same",
        before_us=a.us,
        after_us=b.us,
        note="; ".join(dict.fromkeys(note for note in (a.note, b.note) if note)),
        before_kernel=a.kernel,
        after_kernel=b.kernel,
    )
    if not a.us or not b.us:
        return msgspec.structs.replace(made, verdict="gained" if b.us else "lost")
    made = msgspec.structs.replace(made, ratio=b.us / a.us)
    few = [few for op, side in ((a, before), (b, after)) if (few := _too_few(op, side))]
    both_predicted = before.what == after.what == "simulated"
    if not both_predicted and any(us is not None for us in (a.low_us, b.low_us)):
        made = msgspec.structs.replace(
            made,
            low=(b.low_us or b.us) / max(a.high_us or a.us, 1e-6),
            high=(b.high_us or b.us) / max(a.low_us or a.us, 1e-6),
            level=BAND if _predicts(before, after) else made.level,
        )
    return unclear(made, few[0]) if few else made


def _judged(op: OpComparison, threshold: float, applied: float) -> OpComparison:
    """The op with its verdict, as of two runs; near a prediction it is the same only where the whole band is near."""
    if op.verdict != "same" or op.ratio is None:
        return op
    least, most = 1.0 / (1.0 + threshold), 1.0 + threshold
    low, high = (op.ratio, op.ratio) if op.low is None or op.high is None else (op.low, op.high)
    holds = low <= 1.0 <= high
    if op.level == BAND and holds and not least <= low <= high <= most:
        return unclear(op, "the 80 % band of the prediction holds both slower and faster")
    if least <= op.ratio <= most:
        return op
    if 1.0 / (1.0 + applied) <= op.ratio <= 1.0 + applied:
        return unclear(op, "the ops of the two recordings scatter as far")
    if holds:
        return unclear(op, "the change is within the errors of the two sides")
    return msgspec.structs.replace(op, verdict="slower" if op.ratio > 1.0 else "faster")


def _too_few(op: OpTime, side: Times) -> str:
    """Why nothing is known of the error of a time that was read from a host's clock; "" where something is."""
    if side.clock != "host" or op.low_us is not None:
        return ""
    if op.calls is None:
        return "of its calls on a host clock the median alone was kept, not how far they scatter"
    if op.calls == 1:
        return "1 call on a host clock says nothing of how far calls scatter"
    return f"{op.calls} calls on a host clock say nothing of how far they scatter"


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
    )


def _notes(timed: Sequence[OpComparison], before: Times, after: Times, threshold: float) -> list[str]:
    if not timed:
        return ["no op has a time on both sides: other models, other sizes, or ops selected in another way (--select)"]
    made = ["ratio: of the medians of an op's calls; of ops on both sides: these, with the number of calls before"]
    if before.what == after.what == "recorded":
        made.append(
            "total: of the sums of all calls as recorded, each side with its own ops and its own number of calls"
        )
    made += _of_intervals(timed, before, after)
    made += [note for side in (before, after) for note in _interrupted(side, threshold)]
    told = Counter(op.note for op in timed if op.note and op.verdict != "unclear")
    made += [f"{note}: {count} op{'s' if count > 1 else ''}" for note, count in told.most_common(4)]
    if before.what != after.what or before.on != after.on:
        made.append(f"two kinds of times: {before.what} on {before.on}, {after.what} on {after.on}")
    return made


def _of_intervals(timed: Sequence[OpComparison], before: Times, after: Times) -> list[str]:
    """What the intervals are, and which times have none."""
    if before.what == after.what == "simulated":
        return ["no interval: two predictions err together, and are taken as they are"]
    made: list[str] = []
    if _predicts(before, after):
        made.append(
            "interval: the 80 % band of the prediction, and the 95 % interval of the other side where it has one"
        )
    bare = sum(op.low is None and op.verdict != "unclear" for op in timed)
    if bare:
        made.append(f"no interval: {bare} of {len(timed)} ops, by fewer than six calls or a plan: as they are")
    if any(map(_on_host, (before, after))):
        made.append(
            "host clock: what else the machine did is in recorded times and in no interval, and whether the total "
            "changed cannot be told; `opreplay run` of both, in turns, tells"
        )
    return made


INTERRUPTED = 10.0
"""Times its median from which an op's longest call stands out."""


def _interrupted(side: Times, threshold: float) -> list[str]:
    """Ops one call of which makes more than the threshold of the side's total; the three longest."""
    total = sum(op.sum_us for op in side.ops)
    found = [(op, op.longest_us, op.us) for op in side.ops if op.longest_us and op.us]
    alone = [one for one in found if one[1] >= INTERRUPTED * one[2] and one[1] - one[2] > threshold * total]
    return [
        f"{side.source}: one call of {op.name} took {longest:,.0f} µs, {longest / us:,.0f} times its median: "
        f"{longest / total:.0%} of the total, which without it is {total - longest + us:,.0f} µs"
        for op, longest, us in sorted(alone, key=lambda one: -one[1])[:3]
    ]
