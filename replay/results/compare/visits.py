# pyright: strict
"""Compute ratios of ops measured in several rounds (visits) in both runs, without each op's response to machine load.

Under load, ops that wait for caches slow down like the memory gauge (a fixed workload), ops that compute slow down like
the other gauge, and some ops hardly slow down. An op's rounds are far apart in time, under different loads. They show
how much the op follows each gauge. Ops of one name respond in the same way. They are fitted together, with a small
individual part for each op. The fit is a ridge regression of the differences between rounds within a run. Changes
between runs therefore have no effect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.stats import quantile
from opreplay.traces.arrays import Floats

RIDGE_NAME, RIDGE_OP = 0.05, 0.3
"""Ridge weights, as sums of squared gauge readings in log units.

RIDGE_NAME is the weight of the expected response (`expected` in `by_visits`) against the data of all ops of a name.
RIDGE_OP is the weight of the response of the name against the data of one op. Both were chosen on 50 ops in 13 runs
under load. Higher and lower values were not better.
"""
CLIP_DEVIATIONS = 3.0
"""Number of standard deviations at which differences between visits are clipped."""
OTHERS = 1.0
"""Weight of the mean variance of all ops relative to an op's own variance, which few visits estimate badly."""
OFF_THE_MEAN = 0.25
"""Share of an op's visits left out at either end (shortest and longest times). With three visits, none is left out."""
NEAREST = (0.68, 0.9945)
"""(share, number): this share of normally distributed values is within this number of standard deviations of the mean.

Only this share of ops is used, because the other ops include those that really changed.
"""
OF_FEW = 1.5
"""Minimum factor by which errors are enlarged if there are only a few ops.

It is based on 15 ops whose visits all fell into a few seconds on a busy machine. Most of their ratios were 0.9 to 1.2
times as far from 1 as expected, but a few were 2.5 to 7 times as far.
"""
MIN_OPS_FOR_SPREAD = 20
"""Minimum number of ops for estimating how much ratios scatter if nothing changed."""


class Adjusted(NamedTuple):
    """The ratio after / before of an op, with its error."""

    ratio: float
    error: float
    """Standard error of the logarithm of the ratio.

    The variation between the rounds of a run gives a first error. If most ratios are farther from 1 than this error
    suggests, it is multiplied by the same factor. The result includes effects that last longer than a run, which do not
    appear between its rounds.
    """


def by_visits(pairs: Mapping[str, tuple[str, Measurement, Measurement]]) -> dict[str, Adjusted]:
    """Map each op id to its adjusted ratio. `pairs` maps op ids to (name, before, after).

    Ops are left out unless both runs measured them in at least two rounds, with the same gauges.
    """
    groups: dict[tuple[str, int], dict[str, list[Floats]]] = {}
    for id_, (name, before, after) in pairs.items():
        gauges = _gauges(before)
        if gauges and gauges == _gauges(after):
            groups.setdefault((name, gauges), {})[id_] = [_table(before), _table(after)]
    logs: dict[str, list[list[float]]] = {}
    unsure: dict[str, float] = {}
    for (_, gauges), tables in groups.items():
        expected = np.full(gauges, 1.0 / (1 + gauges))
        equations = {id_: _normal_equations(runs, expected) for id_, runs in tables.items()}
        squares_of_name = sum((squares for squares, _ in equations.values()), RIDGE_NAME * np.eye(gauges))
        products_of_name = sum((products for _, products in equations.values()), np.zeros(gauges))
        of_name = np.linalg.solve(squares_of_name, products_of_name)
        inverse_of_name = np.linalg.inv(squares_of_name)
        for id_, (squares, products) in equations.items():
            of_op = np.linalg.solve(squares + RIDGE_OP * np.eye(gauges), products - squares @ of_name)
            powers = expected + of_name + of_op
            logs[id_] = [(table[:, 0] - table[:, 1:] @ powers).tolist() for table in tables[id_]]
            # Where the machine was another in the second run, what is not known of the powers counts.
            first, second = tables[id_]
            shift = second[:, 1:].mean(axis=0) - first[:, 1:].mean(axis=0)
            unknown = np.linalg.inv(squares + RIDGE_OP * np.eye(gauges)) + inverse_of_name
            unsure[id_] = float(shift @ unknown @ shift)
    return _with_errors(logs, unsure)


def _gauges(measurement: Measurement) -> int:
    """Return how many gauges were read in each visit. Return 0 if there are fewer than two visits, or no gauges."""
    if (
        len(measurement.visits) < 2
        or len({len(visit) for visit in measurement.visits}) != 1
        or min(map(min, measurement.visits)) <= 0
    ):
        return 0
    return len(measurement.visits[0]) - 1


def _table(measurement: Measurement) -> Floats:
    """Return the logarithms of the visits, one row per visit: the time, then the gauges."""
    return np.log(np.array(measurement.visits, dtype=np.float64))


def _normal_equations(runs: Sequence[Floats], expected: Floats) -> tuple[Floats, Floats]:
    """Return X^T X and X^T y. X is the gauge readings, y the time minus expected response. Both are centred within each
    run.
    """
    rows = np.concatenate([run - run.mean(axis=0) for run in runs])
    gauges, rest = rows[:, 1:], rows[:, 0] - rows[:, 1:] @ expected
    limit = CLIP_DEVIATIONS * float(np.median(np.abs(rest))) / 0.6745
    rest = np.clip(rest, -limit, limit)
    return gauges.T @ gauges, gauges.T @ rest


def _with_errors(logs: Mapping[str, Sequence[Sequence[float]]], unsure: Mapping[str, float]) -> dict[str, Adjusted]:
    """Return the adjusted ratios. `logs` holds log times of each op's visits in both runs, without the gauges' effects.

    `unsure` is the variance of the difference between the runs' corrections, relative to the variance of one visit.
    """
    variances = {id_: [statistics.variance(run) for run in runs] for id_, runs in logs.items()}
    mean_variance = statistics.fmean([run for runs in variances.values() for run in runs]) if variances else 0.0
    ratios: dict[str, Adjusted] = {}
    for id_, (before, after) in logs.items():
        between = [max(run, (run + OTHERS * mean_variance) / (1.0 + OTHERS)) for run in variances[id_]]
        error = math.sqrt(between[0] / len(before) + between[1] / len(after) + mean_variance * unsure[id_])
        ratios[id_] = Adjusted(math.exp(_trimmed_mean(after) - _trimmed_mean(before)), error)
    factor = _error_factor(list(ratios.values()))
    return {id_: op._replace(error=op.error * factor) for id_, op in ratios.items()}


def _trimmed_mean(visits: Sequence[float]) -> float:
    """Return the mean of the visits without the highest and lowest quarter, which may be bursts of other work."""
    cut = int(len(visits) * OFF_THE_MEAN)
    return statistics.fmean(sorted(visits)[cut : len(visits) - cut])


def _error_factor(ops: Sequence[Adjusted]) -> float:
    """Return the factor by which the ratios of these ops are farther from 1 than their errors suggest.

    It is at least 0.5. If there are too few ops to estimate it, it is at least `OF_FEW`.
    """
    share, normal = NEAREST
    distances = sorted(abs(math.log(op.ratio)) / max(op.error, 1e-9) for op in ops)
    return max(0.5 if len(ops) >= MIN_OPS_FOR_SPREAD else OF_FEW, quantile(distances, share) / normal if ops else 1.0)
