# pyright: strict
"""Times of different kinds side by side: recorded against recorded, measured or simulated; reads files, runs nothing.

Two GPUs, a trace and its replay, a replay and a prediction differ for reasons that no gauge takes out. So what is
judged is the plain ratio of the medians of an op's calls: slower or faster beyond the threshold, unclear where the
intervals of both medians leave it open. A time without an interval (a prediction, fewer than six recorded calls) is
taken as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from opreplay.replay.results.compare.judge import (
    DEFAULT_THRESHOLD,
    ClassTotal,
    Comparison,
    OpComparison,
    Side,
    Total,
    Verdict,
    What,
    unreached_of,
)
from opreplay.replay.results.measurement import kind_of
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult, Simulated
from opreplay.replay.results.stats import median_ranks
from opreplay.traces.errors import UsageError
from opreplay.traces.times.kernel_classes import class_of

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
    """95 % interval of the median; None where it has none."""
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
    notes: tuple[str, ...] = ()
    unreached: int = 0
    """Ops that a run did not come to measure."""


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
        return Times(what=what, on=on, source=source, ops=tuple(_recorded(one, device) for one in file.results))
    if not any(one.measurement for one in file.results):
        raise UsageError(f"the results of {source} hold no measured time", hint="Compare another time with --times.")
    environment = file.header.environment
    on = str(environment.get("device_name") or environment.get("device") or "this machine")
    if on == "cpu" and environment.get("cpu"):
        on = f"cpu ({environment['cpu']})"
    ops = tuple(_measured(one) for one in file.results)
    return Times(what=what, on=on, source=source, ops=ops, unreached=unreached_of(file))


def _recorded(one: OpResult, device: bool) -> OpTime:
    us = one.recorded_device_us if device else one.recorded_host_us
    return OpTime(id=one.id, name=one.name, inputs=one.inputs, count=one.count, us=us, note="" if us else "no time")


def _measured(one: OpResult) -> OpTime:
    made = OpTime(id=one.id, name=one.name, inputs=one.inputs, count=one.count, us=one.measured_us)
    found = one.measurement
    if found is None:
        return msgspec.structs.replace(made, note=str(one.reason or ""))
    told = ", ".join(dict.fromkeys(str(kind_of(warning)) for warning in found.warnings if kind_of(warning) in _DOUBTS))
    known = median_ranks(found.samples) is not None
    return msgspec.structs.replace(
        made,
        low_us=found.ci_low_us if known else None,
        high_us=found.ci_high_us if known else None,
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
        return msgspec.structs.replace(op, us=found.time_us, note=f"no known path for products of {found.no_path}")
    note = "by its bytes alone" if found.by == "bytes" else CONFIDENCE[found.confidence]
    return msgspec.structs.replace(op, us=found.time_us, note=note)


def compare_times(before: Times, after: Times, *, threshold: float = DEFAULT_THRESHOLD) -> Comparison:
    """Judge every op that both sides have; `threshold` is a share, 0.05 for 5 %."""
    first, second = ({op.id: op for op in side.ops} for side in (before, after))
    both = [(op, second[op.id]) for op in before.ops if op.id in second]
    idle = [a for a, b in both if _is_idle(before, a) or _is_idle(after, b)]
    left_out = {op.id for op in idle}
    ops = [_judged(a, b, threshold) for a, b in both if (a.us or b.us) and a.id not in left_out]
    ops += [_alone(op, "only before") for op in before.ops if op.id not in second and op.us]
    ops += [_alone(op, "only after") for op in after.ops if op.id not in first and op.us]
    timed = [op for op in ops if op.before_us and op.after_us]
    sums = [sum((us or 0.0) * op.count for op in timed for us in (getattr(op, side),)) for side in _SIDES]
    return Comparison(
        threshold=threshold,
        method="medians",
        applied=threshold,
        spread=None,
        power=None,
        machine=None,
        before_us=sums[0],
        after_us=sums[1],
        differences=(),
        notes=(*_notes(timed, before, after), *_of_idle(idle), *before.notes, *after.notes),
        total=Total(ratio=sums[1] / sums[0], low=None, high=None) if sums[0] and sums[1] else None,
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
    kinds = {id_: class_of_op(op.name, op.kernel) for side in (second, first) for id_, op in side.items()}
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


def class_of_op(name: str, kernel: str | None) -> str:
    """Class of work of an op by its name, else by that of its heaviest kernel: a name is the same on both sides."""
    found = class_of(name)
    return class_of(kernel) if found == "other" and kernel else found


_SIDES: tuple[Literal["before_us", "after_us"], ...] = ("before_us", "after_us")


def _judged(a: OpTime, b: OpTime, threshold: float) -> OpComparison:
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
    ratio, low, high = b.us / a.us, None, None
    if any(us is not None for us in (a.low_us, b.low_us)):
        low = (b.low_us or b.us) / max(a.high_us or a.us, 1e-6)
        high = (b.high_us or b.us) / max(a.low_us or a.us, 1e-6)
    verdict: Verdict = "slower" if ratio > 1.0 + threshold else "faster" if ratio < 1.0 / (1.0 + threshold) else "same"
    if verdict != "same" and low is not None and high is not None and low <= 1.0 <= high:
        verdict = "unclear"
        made = msgspec.structs.replace(made, note=made.note or "the change is within the errors of the two sides")
    return msgspec.structs.replace(made, verdict=verdict, ratio=ratio, low=low, high=high)


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
        source=times.source,
        ops=len(timed),
        total_us=sum(op.sum_us for op in timed),
        matched_ops=len(matched),
        matched_us=sum(op.sum_us for op in matched),
    )


def _notes(timed: Sequence[OpComparison], before: Times, after: Times) -> list[str]:
    if not timed:
        return ["no op has a time on both sides: other models, other sizes, or ops selected in another way (--select)"]
    made = ["ratio: of the medians of an op's calls; of ops on both sides: these, with the number of calls before"]
    if before.what == after.what == "recorded":
        made.append(
            "total: of the sums of all calls as recorded, each side with its own ops and its own number of calls"
        )
    bare = sum(op.low is None for op in timed)
    if bare:
        made.append(f"no interval: {bare} of {len(timed)} ops, by fewer than six calls or a prediction: as they are")
    told = Counter(op.note for op in timed if op.note and op.verdict != "unclear")
    made += [f"{note}: {count} op{'s' if count > 1 else ''}" for note, count in told.most_common(4)]
    if before.what != after.what or before.on != after.on:
        made.append(f"two kinds of times: {before.what} on {before.on}, {after.what} on {after.on}")
    return made
