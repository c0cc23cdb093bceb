# pyright: strict
"""Adjusts predictions to a user's own measurements, and chooses the calls to measure next.

Prediction errors of calls are correlated: log(measured / predicted) of two calls has a common part in three cases. They
ran on one device, their kernels are of one family and of similar duration, or they call the same op. Gaussian process
regression on the measured calls gives every other prediction a correction factor and a narrower band. The same
covariances show which measurements would narrow the band of a step's total time most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import exp, inf, log, log2, sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opreplay.replay.ascend.cost.correction import DOUBTED, LOOKS

if TYPE_CHECKING:
    from opreplay.replay.ascend.profile import OwnMeasurement
    from opreplay.traces.arrays import Bools, Floats, Ints


DEVICE_SHARE, FAMILY_SHARE, OP_SHARE, SIZE_SHARE, CALL_SHARE = 0.1, 0.3, 0.1, 0.2, 0.3
"""Shares of the variance of a call's prediction error. Each share belongs to the part of the error that the call has in
common with certain other calls.

In this order, these are: all calls on the device; calls of the same kernel family and similar duration; calls of the
same op; calls of the same op and similar duration; only the same call. The values lie between two maximum-likelihood
fits. The fit to kernels of left-out SoCs gives 0.2, 0.45, 0, 0.13 and 0.22. The fit to calls of ops that were never
seen gives the op 0.2 to 0.4. Choices and errors differ little between the fits (benchmarks/exams/measure_kit.py).
"""
REACH_OCTAVES = 3.0
"""Distance between two predicted times, in octaves, at which the correlation by similar duration falls to exp(-1/2)."""
OTHER_STATE = 0.8
"""Correlation between the errors of the same call in two different cache states. Assumed."""
REPEAT_ERROR = 0.03
"""Standard deviation of the logarithm of a measured time that is assumed even if repetitions agree."""
MOST_LOG = 5.0
"""Limit on log(measured / predicted). If the factor is larger than about 150, something other than the call
was timed.
"""
QUANTILE = 1.2816
"""Half-width, in standard deviations, of the central 80 % of a normal distribution."""
PRIOR_ROWS = 5.0
"""Weight of the original error bands, as a number of measured calls.

It is used when measured errors rescale the bands of other calls: the original bands count as much as this many calls.
"""
MOST_SCALE = 3.0
"""Maximum factor by which measured errors widen the bands of other calls. Measured errors never narrow these bands,
because users measure large calls.
"""
MEDIAN_SQUARE = 0.455
"""Median of the square of a standard normal variable."""
CONTRADICTED = 9.0
"""Threshold above which a row is reported to the user as contradicting the others.

It is compared with the row's squared deviation from the prediction by the other calls, divided by the usual squared
deviation.
"""
MIN_BAND_FACTOR = 1.05
TOLD_SHARE = 0.1
"""Minimum share of the variance of a call's prediction error that measurements must explain. Only then do they count as
the basis of its prediction.
"""
MOST_CALLS = 2000
"""Maximum number of calls that are compared with each other; the most uncertain ones are taken. Comparing more would
take minutes.
"""

Nearest = Literal["", "call", "op", "family"]
"""Closest user measurement behind a prediction: one of the same call, of the same op, or of the same kernel family."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted time, with the properties that determine how its error correlates with others."""

    call: str
    """Identity of the call: its text, or a kernel with its shapes."""
    op: str
    """Key of what the call does: for an aten op, the kernel types that it runs; for any other op, its name; for a
    single kernel, its type.
    """
    family: str
    """Kernel family that takes most of the call's time."""
    time_us: float
    """Predicted time of one call."""
    band: float
    """Factor of the 80 % band."""
    state: str = "sequence"
    """State of the caches when the call starts (`records.L2State`)."""

    @property
    def deviation(self) -> float:
        """Return the standard deviation of log(measured / predicted)."""
        return max(log(MIN_BAND_FACTOR), log(self.band)) / QUANTILE


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """A factor that adjusts a prediction, derived from measurements."""

    factor: float
    band: float
    """Factor of the 80 % band around the adjusted time."""
    nearest: Nearest


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A call chosen for measurement."""

    index: int
    """Index of the chosen call among the calls to choose from."""
    share: float
    """Share of the variance of the total's error that measuring this call removes after the calls chosen before it are
    measured.
    """


def covariances(first: Sequence[Estimate], second: Sequence[Estimate]) -> Floats:
    """Return the covariances between the log errors of the calls in `first` (rows) and those in `second` (columns)."""
    import numpy as np

    codes: dict[tuple[str, str], int] = {}

    def coded(estimates: Sequence[Estimate], field: str) -> Ints:
        names = [(field, str(getattr(estimate, field))) for estimate in estimates]
        return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int64)

    def same(field: str) -> Bools:
        return coded(first, field)[:, None] == coded(second, field)[None, :]

    octaves = [np.array([log2(max(1.0, e.time_us)) for e in estimates]) for estimates in (first, second)]
    near = np.exp(-0.5 * ((octaves[0][:, None] - octaves[1][None, :]) / REACH_OCTAVES) ** 2)
    alike = DEVICE_SHARE + near * (FAMILY_SHARE * same("family") + SIZE_SHARE * same("op"))
    alike += OP_SHARE * same("op") + CALL_SHARE * same("call")
    deviations = [np.array([e.deviation for e in estimates]) for estimates in (first, second)]
    return alike * np.where(same("state"), 1.0, OTHER_STATE) * deviations[0][:, None] * deviations[1][None, :]


class _Doubt(NamedTuple):
    """Evidence that a measured row is wrong, and the variance added because of it."""

    unlikely: float
    """Squared deviation of the row from the prediction by the other calls, divided by the usual squared deviation."""
    variance: float
    """Variance added to the error of the row's call."""


class Measured:
    """Measured calls, prepared to adjust other predictions."""

    def __init__(self, calls: Sequence[Estimate], logs: Sequence[float], spreads: Sequence[float]) -> None:
        """Prepare measured calls.

        `logs` are log(measured / predicted). `spreads` are the relative spreads of the calls' repetitions.
        """
        import numpy as np

        self._calls = list(calls)
        self._logs: Floats = np.clip(np.array(logs, dtype=np.float64), -MOST_LOG, MOST_LOG)
        self._noise: Floats = REPEAT_ERROR**2 + np.array(spreads, dtype=np.float64) ** 2
        self._calls_of: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            self._calls_of.setdefault(call.call, []).append(place)
        self._names = {field: {getattr(call, field) for call in calls} for field in ("call", "op", "family")}

    @cached_property
    def _noisy(self) -> Floats:
        """Return the covariances of the measured errors, including noise."""
        import numpy as np

        return covariances(self._calls, self._calls) + np.diag(self._noise)

    @cached_property
    def _inverse(self) -> Floats:
        return self._inverse_with(self._further)

    def _inverse_with(self, variances: Mapping[str, float]) -> Floats:
        """Return the inverse of the covariances after adding `variances` to the variances of some calls."""
        import numpy as np

        noisy = self._noisy.copy()
        for call, variance in variances.items():
            rows = self._calls_of[call]
            noisy[np.ix_(rows, rows)] += variance * np.array(
                [self._same_call(self._calls[row].state, rows) for row in rows]
            )
        return np.linalg.inv(noisy).astype(np.float64)

    @cached_property
    def contradicted(self) -> list[int]:
        """Return the indices of rows that contradict the other calls: their squared deviation is more than
        `CONTRADICTED` times the usual one.
        """
        return [row for row, doubt in self._doubts.items() if doubt.unlikely > CONTRADICTED]

    @cached_property
    def _doubts(self) -> dict[int, _Doubt]:
        """Return the rows that are probably wrong: their times are less likely given the other calls than given the
        prediction alone.

        The call of such a row gets additional error variance that it does not share with other calls. The variance is
        just large enough that no row of the call has more than `DOUBTED` times the usual squared deviation. A wrong row
        is then still predicted as measured, but hardly changes other calls. Rows are trusted if they agree with each
        other, however far they are from the prediction. They are also trusted if the other calls say nothing about
        them.
        """
        import numpy as np

        alone: Floats = np.diag(self._noisy)
        off, left = self._against_others({})
        explained = left <= (1.0 - TOLD_SHARE) * alone
        out: dict[int, _Doubt] = {}
        for look in range(LOOKS):
            if look:
                off, left = self._against_others(self._of_calls(out))
            squares = off**2 / left
            usual = max(1.0, float(np.median([*squares, *[MEDIAN_SQUARE] * int(PRIOR_ROWS)])) / MEDIAN_SQUARE)
            rows = explained & (squares > np.maximum(DOUBTED * usual, self._logs**2 / alone))
            times: list[float] = (squares / usual).tolist()
            more: list[float] = (left * (squares / (DOUBTED * usual) - 1.0)).tolist()
            out = {row: _Doubt(times[row], more[row]) for row in np.flatnonzero(rows).tolist()}
        return out

    def _against_others(self, further: Mapping[str, float]) -> tuple[Floats, Floats]:
        """Return two values for each row: its deviation from the prediction by the rows of other calls, and the
        expected variance of that deviation.
        """
        import numpy as np

        inverse = self._inverse_with(further)
        left: Floats = np.zeros(len(self._calls))
        for call, rows in self._calls_of.items():
            left[rows] = np.diag(np.linalg.inv(inverse[np.ix_(rows, rows)])) - further.get(call, 0.0)
        return self._logs - self._others(inverse), left

    @cached_property
    def _further(self) -> dict[str, float]:
        """Return the variance to add to the error of each call that has rows in `_doubts`, by call."""
        return self._of_calls(self._doubts)

    def _of_calls(self, doubts: Mapping[int, _Doubt]) -> dict[str, float]:
        out: dict[str, float] = {}
        for row, doubt in doubts.items():
            call = self._calls[row].call
            out[call] = max(doubt.variance, out.get(call, 0.0))
        return out

    @cached_property
    def _scale(self) -> float:
        """Return the ratio of measured errors to their expected standard deviations, limited to the range 1 to
        `MOST_SCALE`.
        """
        explained = float(self._logs @ self._inverse @ self._logs)
        scale = sqrt((PRIOR_ROWS + explained) / (PRIOR_ROWS + len(self._calls)))
        return min(MOST_SCALE, max(1.0, scale))

    def ask(self, estimate: Estimate) -> Adjustment:
        """Return the factor on a predicted time, its 80 % band, and the closest measurement."""
        alike: Floats = covariances([estimate], self._calls)[0]
        further = self._further.get(estimate.call, 0.0)
        if further:
            rows = self._calls_of[estimate.call]
            alike[rows] += further * self._same_call(estimate.state, rows)
        weights: Floats = alike @ self._inverse
        least, most = min(0.0, float(self._logs.min())), max(0.0, float(self._logs.max()))
        prior = estimate.deviation**2 + further
        left = max(0.0, prior - float(weights @ alike))
        deviation = sqrt(left * self._scale**2 + REPEAT_ERROR**2)
        explained = 1.0 - left / prior
        return Adjustment(
            factor=exp(min(most, max(least, float(weights @ self._logs)))),
            band=exp(QUANTILE * deviation),
            nearest=self._nearest(estimate) if explained >= TOLD_SHARE else "",
        )

    def leave_one_out(self) -> list[float]:
        """Return, for each measured call, the log of the factor that all other calls would give it."""
        return self._others(self._inverse).tolist()

    def _others(self, inverse: Floats) -> Floats:
        """Return, for each row, the log of the factor that is predicted from the rows of other calls."""
        import numpy as np

        pulls: Floats = inverse @ self._logs
        others: Floats = np.zeros(len(self._calls))
        for rows in self._calls_of.values():
            own: Floats = inverse[np.ix_(rows, rows)]
            others[rows] = self._logs[rows] - np.linalg.solve(own, pulls[rows])
        return others

    def _same_call(self, state: str, rows: Sequence[int]) -> Floats:
        """Return the correlations of a call's error in one cache state with the errors of its measured rows."""
        import numpy as np

        return np.array([1.0 if self._calls[row].state == state else OTHER_STATE for row in rows])

    def _nearest(self, estimate: Estimate) -> Nearest:
        if estimate.call in self._names["call"]:
            return "call"
        if estimate.op in self._names["op"]:
            return "op"
        return "family" if estimate.family in self._names["family"] else ""


@lru_cache(maxsize=16)
def own_measurements(rows: tuple[OwnMeasurement, ...], *, in_network: bool) -> Measured:
    """Return the measurements of a device file, compared with predictions.

    If `in_network` is set, the predictions are for kernels in a network; otherwise, for isolated calls.
    """
    calls = [
        Estimate(
            call=row.call,
            op=row.op,
            family=row.family,
            time_us=row.network_us if in_network else row.predicted_us,
            band=row.band,
            state=row.l2,
        )
        for row in rows
    ]
    logs = [log(row.measured_us / call.time_us) for row, call in zip(rows, calls, strict=True)]
    return Measured(calls, logs, [row.spread for row in rows])


def choose(
    calls: Sequence[Estimate],
    counts: Sequence[float],
    *,
    measurable: Sequence[bool] | None = None,
    costs: Sequence[float] | None = None,
    budget: float = inf,
    most: int | None = None,
) -> list[Choice]:
    """Return the calls whose measurement narrows the band of the total most, best first.

    The total is the sum of `counts` times the predicted times. Each choice is the call that removes most of the total's
    remaining variance. A call similar to a chosen one removes little. `costs` and `budget` have the same unit. Calls
    that cost more than the remaining budget are skipped.
    """
    import numpy as np

    totals_us = [call.time_us * count for call, count in zip(calls, counts, strict=True)]
    order = sorted(range(len(calls)), key=lambda place: -totals_us[place] * calls[place].deviation)[:MOST_CALLS]
    compared = [calls[place] for place in order]
    weights: Floats = np.array([totals_us[place] for place in order], dtype=np.float64)
    cost: Floats = np.array([1.0] * len(calls) if costs is None else costs, dtype=np.float64)[order]
    is_open = np.array([True] * len(calls) if measurable is None else measurable, dtype=np.bool_)[order]
    left: Floats = covariances(compared, compared)
    whole = float(weights @ left @ weights)
    chosen: list[Choice] = []
    while len(chosen) < (len(compared) if most is None else most):
        is_open &= cost <= budget
        noisy: Floats = np.diag(left) + REPEAT_ERROR**2
        gains = np.where(is_open, (left @ weights) ** 2 / noisy, 0.0)
        best = int(np.argmax(gains)) if len(gains) else 0
        if whole <= 0.0 or not len(gains) or gains[best] <= 0.0:
            break
        chosen.append(Choice(index=order[best], share=float(gains[best]) / whole))
        left = left - np.outer(left[:, best], left[best]) / noisy[best]
        is_open[best] = False
        budget -= float(cost[best])
    return chosen
