# pyright: strict
"""Combine several runs into one: each op's time over all runs, and how much the runs differ. Reads files only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from opreplay.replay.results.compare.compatibility import differences
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult
from opreplay.traces.errors import EnvironmentRefused


def pool(runs: Sequence[ResultFile], *, force: bool = False) -> ResultFile:
    """Return the first run, with the times of each op combined from all runs that replayed it.

    A single run is returned unchanged. Raises EnvironmentRefused if the runs are from two machines or used two
    measurement methods, unless `force` is set.
    """
    first, *others = runs
    blocking = [
        str(difference)
        for other in others
        for difference in differences(first.header, other.header)
        if difference.blocking
    ]
    if blocking and not force:
        raise EnvironmentRefused(
            f"the runs of one side differ: {'; '.join(dict.fromkeys(blocking))}",
            hint=("Repeat a run on the same machine with the same options, or combine them anyway with --force."),
        )
    if not others:
        return first
    by_id: dict[str, list[OpResult]] = {}
    for run in runs:
        for result in run.results:
            by_id.setdefault(result.id, []).append(result)
    return msgspec.structs.replace(first, results=tuple(_pooled(results) for results in by_id.values()))


def _pooled(results: Sequence[OpResult]) -> OpResult:
    """Return an op with its median time over runs. Runs with another kind of measurement than the first are
    left out.
    """
    measured = [(result, result.measurement) for result in results if result.measurement is not None]
    if not measured:
        return results[0]
    first, model = measured[0]
    alike = [run for _, run in measured if (run.part, run.cache) == (model.part, model.cache)]
    pooled = _together(alike) if len(alike) > 1 else model
    return msgspec.structs.replace(first, measurement=pooled, measured_us=pooled.median_us)


def _together(runs: Sequence[Measurement]) -> Measurement:
    relative = error = None
    logs = [math.log(run.relative) for run in runs if run.relative]
    if len(logs) == len(runs):
        relative = math.exp(statistics.mean(logs))
        error = max(statistics.stdev(logs) / math.sqrt(len(runs)), _within(runs))
    medians = [run.median_us for run in runs]
    gauge_us = [run.gauge_us for run in runs if run.gauge_us]
    return msgspec.structs.replace(
        runs[0],
        median_us=statistics.median(medians),
        min_us=min(run.min_us for run in runs),
        max_us=max(run.max_us for run in runs),
        ci_low_us=min(run.low_us for run in runs),
        ci_high_us=max(run.high_us for run in runs),
        samples=sum(run.samples for run in runs),
        outliers=sum(run.outliers for run in runs),
        deciles_us=(),
        relative=relative,
        relative_error=error,
        median_error=_median_error(runs),
        visits=tuple(visit for run in runs for visit in run.visits),
        gauge_us=(min(min(pair) for pair in gauge_us), max(max(pair) for pair in gauge_us)) if gauge_us else None,
    )


def _median_error(runs: Sequence[Measurement]) -> float | None:
    """Return the error of the median over runs: the larger of their spread and their own errors; None if unknown."""
    errors = [run.median_error for run in runs]
    if any(error is None for error in errors) or min(run.median_us for run in runs) <= 0:
        return None
    between = statistics.stdev(math.log(run.median_us) for run in runs) / math.sqrt(len(runs))
    return max(between, math.hypot(*(error or 0.0 for error in errors)) / len(runs))


def _within(runs: Sequence[Measurement]) -> float:
    """Return the error of the mean over several runs that follows from the runs' own errors; 0 if they have none."""
    return math.hypot(*(run.relative_error for run in runs if run.relative_error is not None)) / len(runs)
