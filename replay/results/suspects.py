# pyright: strict
"""Find rows with strongly contradictory times, and name the likeliest cause.

Measured and predicted times are compared with recorded times. This guards against unforeseen errors: every report names
times that are less than a 20th of, or more than 50 times, the recorded time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.ir.reasons import not_needed
from opreplay.replay.results.records import OpResult, Simulated

MIN_TIME_RATIO, MAX_TIME_RATIO = 0.05, 50.0
"""Range of measured ÷ recorded or predicted ÷ recorded time in which both times of an op may be right."""
LEAST_SHARE = 0.01
"""Rows with at most this share of the recorded time are ignored: they do not affect conclusions."""
LARGE_SHARE = 0.02
"""Minimum share of a total for a row to affect the total."""
UNEVEN = 10.0
"""If the mean is at least this many times the median, a few calls take nearly all of the time."""
MIN_CALLS_FOR_MEDIAN = 5
"""If an op has fewer calls than this, its median may be the time of an interrupted call."""
SHORT_US = 5.0
"""Recorded time of a call in microseconds below which the call is shorter than many launches."""


def kind_of_device(name: str) -> str:
    """Return "cpu" for "cpu", "npu" for NPUs, and "gpu" for "cuda:1" and all other torch accelerators."""
    base = name.partition(":")[0]
    return {"cpu": "cpu", "npu": "npu"}.get(base, "gpu")


def recorded_kind(plan: ReplayPlan) -> str:
    """Return the kind of device that a plan's recorded times are from: "cpu", "gpu", "npu" or "host".

    "cpu": no device time was recorded. "host": device work was recorded, but none of it belongs to a recorded op. The
    time of an op is then the host's time to launch it.
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
    """Return the contradictions in one row, each with a cause: "910b3 ÷ recorded is 5e-05: ...".

    `share` is the row's share of all recorded time. Times are in microseconds per call. `measured_us` is None unless it
    was measured on the kind of device that the recorded time is from. In a sequence, unusable values of the op may have
    been changed. `refilled` says how.
    """
    if share <= LEAST_SHARE or not recorded_us or recorded_us <= 0:
        return ()
    contradictions: list[str] = []
    if measured_us is not None and not MIN_TIME_RATIO <= (ratio := measured_us / recorded_us) <= MAX_TIME_RATIO:
        cause = _uneven(op, recorded_us, measured_us) or _measured_cause(op, recorded_us, ratio, refilled)
        contradictions.append(f"measured ÷ recorded is {ratio:.2g}: {cause}")
    for soc, prediction in simulated:
        ratio = prediction.time_us / recorded_us
        if not MIN_TIME_RATIO <= ratio <= MAX_TIME_RATIO:
            cause = _uneven(op, recorded_us, prediction.time_us) or _simulated_cause(op, prediction, recorded_us, ratio)
            contradictions.append(f"{soc} ÷ recorded is {ratio:.2g}: {cause}")
    return tuple(contradictions)


def _uneven(op: ReplayOp, mean_us: float, us: float) -> str:
    """Return a note if a few long calls dominate the recorded mean; otherwise "".

    The median is then more representative. If the mean is k times the median, at least one call takes at least k times
    the median.
    """
    median_us = op.recorded.device_us_median if op.recorded.device_us_total > 0 else op.recorded.host_us_median
    if op.count < 2 or not median_us or mean_us < UNEVEN * median_us:
        return ""
    return (
        f"a few long calls make the recorded mean {mean_us / median_us:.0f} times the recorded median (a busy machine, "
        f"or first calls); the time compared here is {us / median_us:.2g} times the median"
    )


def _communicates(op: ReplayOp) -> bool:
    return op.ranks is not None or op.collective is not None or op.name.startswith("c10d::")


def _measured_cause(op: ReplayOp, recorded_us: float, ratio: float, refilled: Sequence[str]) -> str:
    if refilled:
        return f"opreplay's own values instead of the recorded ones ({'; '.join(refilled)}); `--cache step` avoids this"
    if op.resolved_by in ("reference", "equivalent", "executor"):
        return "a stand-in ran instead of the recorded op"
    if ratio < 1 and _communicates(op):
        return "recorded communication includes the wait for other ranks"
    if assumed := _assumed(op):
        return assumed
    if recorded_us < SHORT_US:
        return "the recorded call is shorter than a launch"
    other = (
        "values, sizes or libraries differ from the recording; for more, run `plan --meta` and `run --check kernels`"
    )
    if ratio >= 1 or op.count >= MIN_CALLS_FOR_MEDIAN:
        return other
    calls = "1 recorded call is" if op.count == 1 else f"{op.count} recorded calls are"
    return f"{calls} too few for a median: the time may be that of a first or interrupted call; otherwise {other}"


def _assumed(op: ReplayOp) -> str:
    """Return the first assumption about a missing value that can explain a time; "" if there is none.

    An assumption about a registered function that did not run cannot explain it.
    """
    for assumption in op.assumptions:
        if not_needed(assumption.what) is None:
            return f"a value missing in the trace was assumed ({assumption.argument}: {assumption.what})"
    return ""


def _simulated_cause(op: ReplayOp, prediction: Simulated, recorded_us: float, ratio: float) -> str:
    if prediction.by == "bytes":
        return "no cost rule for the op, predicted by bytes only"
    if prediction.by in ("user estimator", "user properties", "tile program", "user rule"):
        return f"by your {prediction.source}"
    if ratio > 1 and recorded_us < SHORT_US:
        return "the recorded call is shorter than a launch on this device"
    if not prediction.kernels:
        return "the cost rule treats the op as a view (no cost), but device work was recorded"
    if op.ranks is not None or "hcom_" in prediction.kernels[0]:
        return "recorded communication includes the wait for other ranks"
    if assumed := _assumed(op):
        return assumed
    return "the cost rule may not match the recorded kernels; to see the kernels of the rule, run `plan --explain`"


def suspects(results: Iterable[OpResult]) -> list[OpResult]:
    """Return the results with suspicions, most recorded time first."""
    return sorted((r for r in results if r.suspicions), key=lambda r: -r.recorded_share)
