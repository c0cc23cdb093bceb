# pyright: strict
"""Share of the recorded work that predictions cover, by prediction method. Ops are weighted by recorded time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from opreplay.replay.ir.kernel import Confidence
from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.results.records import Simulated
from opreplay.replay.results.summary import round_to_one
from opreplay.traces.sums import summed


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the recorded time (0 to 1) that have a prediction for one device."""

    users: float
    """Share predicted by a user's estimators, properties and rules."""
    rules: float
    """Share predicted by built-in lowering rules."""
    invented: float
    """Share that built-in rules predict from doubtful sizes: no argument gives the sizes, or the recorded time
    contradicts them.
    """
    bytes: float
    """Share predicted only from the size of the arguments in bytes."""
    ops: int
    """Number of predicted ops."""
    selected: float = 1.0
    """Share of the recorded time in selected ops, predicted or not."""

    @property
    def nothing(self) -> float:
        """Return the share without any prediction, including `elsewhere`."""
        return max(0.0, 1.0 - self.users - self.rules - self.invented - self.bytes)

    @property
    def elsewhere(self) -> float:
        """Return the share outside the selected ops: other ops, labels, generated code, kernels without an op."""
        return 1.0 - min(1.0, round_to_one(self.selected))

    @property
    def predicted(self) -> float:
        """Return the share with any prediction."""
        return round_to_one(self.users + self.rules + self.invented + self.bytes)


def coverage(shares: Iterable[tuple[float, Simulated | None]]) -> Coverage:
    """Return the coverage. `shares` holds (share of the recorded time, prediction or None) for each op."""
    users = rules = invented = by_bytes = selected = 0.0
    ops = 0
    for share, simulated in shares:
        selected += share
        if simulated is None:
            continue
        ops += 1
        if simulated.by == "bytes":
            by_bytes += share
        elif simulated.by == "invented sizes":
            invented += share
        elif simulated.by == "rule" or simulated.by is None:
            rules += share
        else:
            users += share
    return Coverage(users=users, rules=rules, invented=invented, bytes=by_bytes, ops=ops, selected=selected)


def share_of_confidence(times_us: Iterable[tuple[Confidence, float]], confidence: Confidence = "uncalibrated") -> float:
    """Return the share of the predicted time that has this confidence.

    If nothing is predicted, "uncalibrated" has a share of 1 and all other confidences have a share of 0.
    """
    by_confidence = summed(times_us)
    total_us = sum(by_confidence.values())
    if total_us > 0:
        return by_confidence.get(confidence, 0.0) / total_us
    return 1.0 if confidence == "uncalibrated" else 0.0


MEASURED = {"call": "these calls", "op": "other calls of the same ops", "family": "their kernel families"}
"""Value of `Simulated.measured` → text that names what the user measured."""


def measured_shares(times_us: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the shares of the predicted time that are based on the user's measurements.

    Keys are those of `MEASURED` and say what was measured. `times_us` has (`Simulated.measured`, microseconds) for each
    prediction.
    """
    by_nearest = summed(times_us)
    total_us = sum(by_nearest.values())
    return {nearest: by_nearest[nearest] / total_us for nearest in MEASURED if by_nearest.get(nearest, 0.0) > 0}


def measured_text(shares: Mapping[str, float]) -> str:
    """Return a text like "61.2 % of the predicted time is based on your measurements: ..."; "" without
    measurements.
    """
    if not shares:
        return ""
    parts = ", ".join(f"{100 * share:.1f} % on {MEASURED[nearest]}" for nearest, share in shares.items())
    return f"{100 * sum(shares.values()):.1f} % of the predicted time is based on your measurements: {parts}"


def recorded_shares(plan: ReplayPlan) -> dict[str, float]:
    """Return each op's share of the recorded device time.

    Without device time, the shares are those of the recorded host time. Without any recorded time, each op has the same
    share.
    """
    for total, weight in ((plan.device_us_total, _device_us), (plan.host_us_total, _host_us)):
        if total > 0:
            return {op.id: weight(op) / total for op in plan.ops}
    return {op.id: 1 / len(plan.ops) for op in plan.ops}


def clock_of(plan: ReplayPlan) -> str:
    """Return what the shares of a plan refer to.

    It is "device time" if device time was recorded, or else the `host_clock` of the selection; "ops" if no time was
    recorded.
    """
    if plan.device_us_total > 0:
        return "device time"
    return host_clock(plan.selection) if plan.host_us_total > 0 else "ops"


def host_clock(selection: object) -> str:
    """Return the name of the host time that shares refer to.

    The selection "all" has its own name. With it, the time of a nested call also counts in each enclosing call.
    """
    return "the selected ops' host time" if selection == "all" else "host time"


def coverage_of(plan: ReplayPlan, predictions: Sequence[tuple[str, Simulated]]) -> Coverage:
    """Return how much of a plan has a prediction; `predictions` holds (op id, prediction) pairs."""
    by_id = dict(predictions)
    return coverage((share, by_id.get(id_)) for id_, share in recorded_shares(plan).items())


def _device_us(op: ReplayOp) -> float:
    return op.recorded.device_us_total


def _host_us(op: ReplayOp) -> float:
    return op.recorded.host_us_total
