# pyright: strict
"""Prediction coverage as text and as JSON facts: shares of the recorded time by prediction method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opreplay.replay.ascend.cost.cells import ORDER_OF_MAGNITUDE
from opreplay.replay.ascend.simulate.coverage import Coverage, coverage
from opreplay.replay.ir.kernel import Confidence
from opreplay.replay.report.text import safe, share_text, time_text
from opreplay.replay.results.records import OpResult, Simulated

CONFIDENCE: dict[Confidence, str] = {"uncalibrated": "uncalibrated", "other SoC": "calibrated on another SoC only"}
"""Confidence of predictions that are not calibrated on their device → text in reports."""
LEAST = 0.0005
"""Smallest share that is shown; smaller ones would print as 0.0 %."""


HELD: dict[str, str] = {
    "cold": "none of its data",
    "loop": "its code, as in a benchmark that loops over a call and reads from memory",
    "warm": "its own data and code, as in a loop",
    "sequence": "what earlier calls left there",
}
"""Value of `--l2` → what the caches contain when an op starts."""
NAMED_FROM = 0.1
"""Minimum share of a total time at which an op with order-of-magnitude predictions is named."""


def is_rough(prediction: Simulated | None) -> bool:
    """Check whether a prediction is only an order of magnitude, as for irregular ops that were never measured."""
    return prediction is not None and prediction.high_us >= ORDER_OF_MAGNITUDE * prediction.time_us > 0


def predicted_text(prediction: Simulated | None) -> str:
    """Return the predicted time of a call as text: "~190 µs" if it is only an order of magnitude."""
    text = time_text(None if prediction is None else prediction.time_us)
    return f"~{text}" if is_rough(prediction) else text


def rough_text(predictions: Iterable[tuple[str, Simulated, int]]) -> str:
    """Name the ops with order-of-magnitude predictions that take a large share of a total; "" if there are none.

    `predictions` holds, for each op, its name, the prediction for one call and the number of calls.
    """
    times = [(name, prediction, prediction.time_us * count) for name, prediction, count in predictions]
    total_us, rough_us = sum(us for _, _, us in times), dict[str, float]()
    for name, prediction, us in times:
        if is_rough(prediction):
            rough_us[name] = rough_us.get(name, 0.0) + us
    named = [
        f"{safe(name)} {share_text(us / total_us)}"
        for name, us in sorted(rough_us.items(), key=lambda item: -item[1])
        if us >= NAMED_FROM * total_us
    ]
    return f"order of magnitude only: {', '.join(named)} of the time" if named else ""


ELSEWHERE = "outside the selected ops"
"""Text for recorded time outside the selected ops: unselected ops, labels, and kernels that no op launched."""


def coverage_text(covered: Coverage, clock: str) -> str:
    """Return the shares of the time predicted by each method, such as "41.0 % of device time by rules, 52.0 % by bytes
    only".

    Shares of zero are omitted.
    """
    parts = [
        (covered.users, "by your code"),
        (covered.rules, "by rules"),
        (covered.invented, "on invented sizes"),
        (covered.bytes, "by bytes only"),
    ]
    shown = [(share, how) for share, how in parts if share > 0] or [(0.0, "by rules")]
    if covered.nothing - covered.elsewhere >= LEAST:
        shown.append((covered.nothing - covered.elsewhere, "not predicted"))
    if covered.elsewhere >= LEAST:
        shown.append((covered.elsewhere, ELSEWHERE))
    (first, how), *others = shown
    return ", ".join(
        [f"{share_text(first)} of {clock} {how}", *(f"{share_text(share)} {how}" for share, how in others)]
    )


def weak_parts(covered: Coverage, whole: str = "") -> list[str]:
    """Return the weaknesses of a prediction as shares of recorded time: "52.0 % by bytes only", "7.0 % not predicted".

    `whole` names the total of the shares, such as " of the recorded time".
    """
    parts = [
        (covered.invented, "on invented sizes"),
        (covered.bytes, "by bytes only"),
        (covered.nothing - covered.elsewhere, "not predicted"),
    ]
    return [f"{share_text(share)}{whole} {how}" for share, how in parts if share >= LEAST]


def coverage_by_share(soc: str, results: Sequence[OpResult]) -> tuple[dict[str, float], Coverage, str]:
    """Return (ops' shares of the recorded time by op id, coverage of a device's predictions, name of the total).

    The total is "recorded time". If no time was recorded, it is "ops", and each op has an equal share.
    """
    timed = any(r.recorded_share > 0 for r in results)
    shares = {r.id: r.recorded_share if timed else 1 / len(results) for r in results}
    covered = coverage((shares[r.id], r.simulated.get(soc)) for r in results)
    return shares, covered, "recorded time" if timed else "ops"


def coverage_facts(covered: Coverage) -> dict[str, float]:
    """Return prediction method → share of the recorded time that it predicts, from 0 to 1."""
    return {name: getattr(covered, name) for name in ("users", "rules", "invented", "bytes", "nothing")}
