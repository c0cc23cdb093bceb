# pyright: strict
"""Find the factor by which all ops of two recordings of one device changed (clocks, power, temperature)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from opreplay.replay.results.compare.judge import OpComparison
from opreplay.replay.results.stats import quantile

LEAST_OPS = 5
"""Minimum number of ops. With fewer, a change of all ops cannot be distinguished from changes of a few."""
MANY_OPS = 8
"""Number of ops below which all ops but one must have changed by the same factor.

The middle half of so few ops is not representative of the other ops.
"""
LEAST_SPREAD = 0.015
"""If the log ratios have a smaller standard deviation than this, the ops count as changed by the same factor."""
OF_ERRORS = 1.5
"""Ops count as changed by the same factor if their log ratios scatter by at most this many standard errors of an op."""
MIDDLE = 1.349
"""Distance of the first from the third quartile of a normal distribution, in standard deviations."""
OUTLIERS, ROUNDS = 2.0, 3
"""Distance in standard deviations from which an op is an outlier, and number of rounds of removing outliers."""
SURE = 2.5
"""Minimum size of the change that all ops share, in standard errors of this change."""


def shared_change(ops: Sequence[OpComparison]) -> float | None:
    """Return the factor by which all ops took longer in the second recording; None if there is no such common factor.

    It is the geometric mean of the ratios without outliers. It exists only if the ratios of the middle half agree
    within the ops' errors.
    """
    judged = [op for op in ops if op.verdict == "same" and op.ratio]
    if len(judged) < LEAST_OPS:
        return None
    logs = sorted(math.log(op.ratio) for op in judged if op.ratio)
    errors = [op.error for op in judged if op.error is not None]
    spread = (quantile(logs, 0.75) - quantile(logs, 0.25)) / MIDDLE
    if spread > max(LEAST_SPREAD, OF_ERRORS * statistics.median(errors) if errors else 0.0):
        return None
    shared = statistics.median(logs)
    if len(logs) < MANY_OPS and sum(abs(value - shared) > max(LEAST_SPREAD, OUTLIERS * spread) for value in logs) > 1:
        return None
    for _ in range(ROUNDS):
        near = [value for value in logs if abs(value - shared) <= OUTLIERS * spread]
        shared = statistics.fmean(near) if near else shared
    return math.exp(shared) if abs(shared) > SURE * spread / math.sqrt(len(logs)) else None


def relative_to(op: OpComparison, shared: float) -> OpComparison:
    """Return the op with its ratio and interval divided by the common change; unchanged if it has no ratio."""
    if op.ratio is None:
        return op
    low, high = (None if bound is None else bound / shared for bound in (op.low, op.high))
    return msgspec.structs.replace(op, ratio=op.ratio / shared, low=low, high=high)
