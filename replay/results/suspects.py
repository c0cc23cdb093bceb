# pyright: strict
"""Find rows whose times contradict each other by far: measured or predicted against recorded, with the likeliest cause.

This guards against unforeseen faults: anything wrong by a factor of twenty or more is named in every report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import not_needed
from opreplay.replay.results.records import OpResult, Simulated

LOW, HIGH = 0.05, 50.0
"""Ratios to the recorded time within which two times of one op may both be right."""
LEAST_SHARE = 0.01
"""Of the recorded time: rows below it change no conclusion."""
LARGE_SHARE = 0.02
"""Of a total: a row of more can change it."""
UNEVEN = 10.0
"""With a mean of so many medians, few calls hold nearly all of the time."""
FEW = 5
"""Of fewer calls one that was interrupted may be the median, too."""
SHORT_US = 5.0
"""A recorded call of so few microseconds is shorter than many launches."""


def kind_of_device(name: str) -> str:
    """Return "cpu" for "cpu", "gpu" for "cuda:1" and other torch accelerators, and "npu"."""
    base = name.partition(":")[0]
    return {"cpu": "cpu", "npu": "npu"}.get(base, "gpu")


def recorded_kind(plan: ReplayPlan) -> str:
    """Return what kind of device the recorded times of a plan are from: "cpu", "gpu", "npu" or "host".

    "cpu" means that no device time was recorded; "host" that no device work belongs to a recorded op, so that an op's
    host time is the time to launch it.
    """
    if plan.device_us_total <= 0:
        return "host" if plan.unowned_device_us > 0 else "cpu"
    name = (plan.device or "").lower()
    return "npu" if "ascend" in name or "910" in name else "gpu"


def suspicions(
    op: ReplayOp,
    *,
    share: float,
    recorded_us: float | None,
    measured_us: float | None,
    simulated: Iterable[tuple[str, Simulated]] = (),
    refilled: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the contradictions in one row with a cause: "simulated on 910b3: 1.49 µs = 0.00005 × recorded; ...".

    `share` is of all recorded time; times are microseconds per call. `measured_us` is given only if it was measured on
    the kind of device that was recorded; `refilled` says how a sequence changed values of the op that could not be
    used.
    """
    if share <= LEAST_SHARE or not recorded_us or recorded_us <= 0:
        return ()
    contradictions: list[str] = []
    if measured_us is not None and not LOW <= (ratio := measured_us / recorded_us) <= HIGH:
        cause = _uneven(op, recorded_us, measured_us) or _measured_cause(op, recorded_us, ratio, refilled)
        contradictions.append(f"measured ÷ recorded is {ratio:.2g}: {cause}")
    for soc, prediction in simulated:
        ratio = prediction.time_us / recorded_us
        if not LOW <= ratio <= HIGH:
            cause = _uneven(op, recorded_us, prediction.time_us) or _simulated_cause(op, prediction, recorded_us, ratio)
            contradictions.append(f"{soc} ÷ recorded is {ratio:.2g}: {cause}")
    return tuple(contradictions)


def _uneven(op: ReplayOp, mean_us: float, us: float) -> str:
    """Return a note if few recorded calls dominate the mean, judged by the median; "" otherwise.

    A mean of n calls that is k times their median contains at least one call of k times the median.
    """
    median_us = op.recorded.device_us_median if op.recorded.device_us_total > 0 else op.recorded.host_us_median
    if op.count < 2 or not median_us or mean_us < UNEVEN * median_us:
        return ""
    return (
        f"a few long calls make the recorded mean {mean_us / median_us:.0f} times the median (a busy machine, or first "
        f"calls); it is {us / median_us:.2g} times the median"
    )


def _communicates(op: ReplayOp) -> bool:
    return op.ranks is not None or op.collective is not None or op.name.startswith("c10d::")


def _measured_cause(op: ReplayOp, recorded_us: float, ratio: float, refilled: Sequence[str]) -> str:
    if refilled:
        return f"values of this tool's own, not the recorded ones ({'; '.join(refilled)}); `--cache step` has none such"
    if op.resolved_by in ("reference", "equivalent", "executor"):
        return "something else than the recorded op ran, a stand-in"
    if ratio < 1 and _communicates(op):
        return "recorded communication holds the wait for other ranks"
    if assumed := _assumed(op):
        return assumed
    if recorded_us < SHORT_US:
        return "the recorded call is shorter than a launch"
    other = "other values, sizes or libraries than were recorded; `plan --meta` and `run --check kernels` tell more"
    if ratio >= 1 or op.count >= FEW:
        return other
    calls = "1 recorded call is" if op.count == 1 else f"{op.count} recorded calls are"
    return f"{calls} too few for a median: a first or an interrupted call may dominate; else {other}"


def _assumed(op: ReplayOp) -> str:
    """The first assumption that can explain a time; "" for none. A registered function that did not run is no cause."""
    for assumption in op.assumptions:
        if not_needed(assumption.what) is None:
            return f"what the trace lacks was assumed ({assumption.argument}: {assumption.what})"
    return ""


def _simulated_cause(op: ReplayOp, prediction: Simulated, recorded_us: float, ratio: float) -> str:
    if prediction.by == "bytes":
        return "no rule knows the op, its bytes alone were charged"
    if prediction.by in ("user estimator", "user properties", "tile program", "user rule"):
        return f"by your {prediction.source}"
    if ratio > 1 and recorded_us < SHORT_US:
        return "the recorded call is shorter than a launch there"
    if not prediction.kernels:
        return "the rule takes it for a view, which costs nothing; it was recorded with work"
    if op.ranks is not None or "hcom_" in prediction.kernels[0]:
        return "recorded communication holds the wait for other ranks"
    if assumed := _assumed(op):
        return assumed
    return "the rule may not fit what was recorded; `plan --explain` shows its kernels"


def suspects(results: Iterable[OpResult]) -> list[OpResult]:
    """Return the results with suspicions, most recorded time first."""
    return sorted((r for r in results if r.suspicions), key=lambda r: -r.recorded_share)
