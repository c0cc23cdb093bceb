# pyright: strict
"""Find where the times of an op changed in a history of runs.

The library ruptures proposes change points. They minimize the squared deviations of log times from the mean of their
segment (PELT: Killick, Fearnhead and Eckley 2012). The penalty is so low that too many points are proposed.

Student's t-test then compares the runs before and after each point, up to the neighbouring points. The least certain
point is removed until all others pass. The level is LEVEL divided by the number of positions in all ops (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec
import numpy as np

from opreplay.replay.results.history import Series
from opreplay.traces.errors import EnvironmentRefused

LEVEL = 0.02
"""Approximate false alarm rate: share of histories without a change for which a change of any op is reported."""
LEAST_RUNS = 3
"""Minimum number of runs on either side of a change."""
PENALTY = 3.0
"""Penalty per change point, in units of the variance between runs times the logarithm of the number of runs."""
NORMAL_MAD = 0.6745
"""Median absolute deviation of the normal distribution, in standard deviations."""
LEAST_SCATTER = 1e-4
"""Minimum scatter of log times, because clocks do not resolve less."""

Values = np.ndarray[Any, np.dtype[np.float64]]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A lasting slowdown or speed-up of an op, starting at one run."""

    at: int
    """Index of the first run after the change, from 0."""
    started_at: str
    label: str
    """Label of the first run after the change."""
    ratio: float
    """Geometric mean of the times from the change to the next change, divided by that of the times before the
    change.
    """
    before_us: float
    after_us: float
    """Median time from the change to the next change; `before_us` is the median before the change."""
    runs_before: int
    runs_after: int
    p: float
    """p-value of the t-test."""


class OpHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The times and changes of one op."""

    id: str
    name: str
    inputs: str
    machine_name: str
    runs: int
    latest_us: float
    changes: tuple[Change, ...] = ()
    tested: bool = True
    """Whether changes were tested; False with fewer than twice LEAST_RUNS runs."""


def changes_of(history: Sequence[Series]) -> tuple[OpHistory, ...]:
    """Return every op of a history with its changes, sorted by the size of its latest change, largest first.

    Raises EnvironmentRefused if ruptures or SciPy is not installed.
    """
    propose, test = _libraries()
    places = sum(max(0, len(series.points) - 2 * LEAST_RUNS + 1) for series in history)
    level = LEVEL / max(1, places)
    ops = [_op_history(series, level, propose, test) for series in history]
    return tuple(sorted(ops, key=lambda op: -abs(np.log(op.changes[-1].ratio)) if op.changes else 1.0))


def change_points(
    values: Values,
    level: float,
    propose: Callable[[Values, float], Sequence[int]],
    test: Callable[[Values, Values], float],
) -> list[tuple[int, float]]:
    """Return the changes in a series as (index of the first value after the change, p-value of its test).

    `values` are log times, as float64 [runs].
    """
    steps = np.abs(np.diff(values))
    scatter = max(float(np.median(steps)) / NORMAL_MAD / np.sqrt(2.0), LEAST_SCATTER)
    points = list(propose(values, PENALTY * scatter**2 * float(np.log(len(values)))))

    def tested(index: int) -> float:
        """Return the p-value of a change point, from a test of the runs between its neighbouring points."""
        before, after = [0, *points][index], [*points[1:], len(values)][index]
        return test(values[before : points[index]], values[points[index] : after])

    tests = [tested(index) for index in range(len(points))]
    while points and max(tests) > level:
        worst = int(np.argmax(tests))
        del points[worst], tests[worst]
        for neighbour in {worst - 1, worst} & set(range(len(points))):  # the tests of all others stay as they are
            tests[neighbour] = tested(neighbour)
    return list(zip(points, tests, strict=True))


def _op_history(series: Series, level: float, propose: Any, test: Any) -> OpHistory:
    points = series.points
    measured = np.array([point.measured_us for point in points])
    relative = [point.relative for point in points if point.relative is not None]
    logs = np.log(np.array(relative) if len(relative) == len(points) else measured)
    tested = len(points) >= 2 * LEAST_RUNS
    where = change_points(logs, level, propose, test) if tested else []
    ends = [0, *(at for at, _ in where), len(points)]
    changes = tuple(
        Change(
            at=at,
            started_at=points[at].started_at,
            label=points[at].label,
            ratio=float(np.exp(logs[at:end].mean() - logs[begin:at].mean())),
            before_us=float(np.median(measured[begin:at])),
            after_us=float(np.median(measured[at:end])),
            runs_before=at - begin,
            runs_after=end - at,
            p=p,
        )
        for begin, (at, p), end in zip(ends[:-2], where, ends[2:], strict=True)
    )
    return OpHistory(
        id=series.id,
        name=series.name,
        inputs=series.inputs,
        machine_name=series.machine_name,
        runs=len(points),
        latest_us=points[-1].measured_us,
        changes=changes,
        tested=tested,
    )


def _libraries() -> tuple[Callable[[Values, float], Sequence[int]], Callable[[Values, Values], float]]:
    """Return ruptures' function that proposes change points, and SciPy's test."""
    try:
        ruptures, special = import_module("ruptures"), import_module("scipy.special")
    except ImportError:
        raise EnvironmentRefused(
            "a history needs ruptures and SciPy, which are not installed", hint="pip install 'opreplay[history]'"
        ) from None

    def propose(values: Values, penalty: float) -> Sequence[int]:
        search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_RUNS).fit(values.reshape(-1, 1))
        return [int(at) for at in search.predict(pen=penalty)[:-1]]

    def test(before: Values, after: Values) -> float:
        if before.std() == 0.0 == after.std():
            return 0.0 if before[0] != after[0] else 1.0
        # `scipy.stats.ttest_ind` gives the same and takes ten times as long.
        freedom = len(before) + len(after) - 2
        pooled = (len(before) * before.var() + len(after) * after.var()) / freedom
        spread = np.sqrt(pooled * (1.0 / len(before) + 1.0 / len(after)))
        return float(2.0 * special.stdtr(freedom, -abs(before.mean() - after.mean()) / spread))

    return propose, test
