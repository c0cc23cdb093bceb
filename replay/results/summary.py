# pyright: strict
"""Summarize the results of a run (counts, shares, totals), even if the run was killed before writing a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from opreplay.replay.ir.reasons import ReasonTotal, total_reasons
from opreplay.replay.results.reading import ResultFile
from opreplay.replay.results.records import OpResult, Summary
from opreplay.traces.sums import summed

ROUNDING = 1e-9
"""Difference from 1 below which a sum of shares counts as 1, because the order of addition changes its rounding."""


def round_to_one(share: float) -> float:
    """Return the share, or exactly 1 if it differs from 1 only by rounding."""
    return 1.0 if abs(share - 1.0) < ROUNDING else share


def _simulated_totals(results: Sequence[OpResult]) -> dict[str, float]:
    """Return the time of all calls by device, in microseconds."""
    return summed((soc, us * result.count) for result in results for soc, us in result.simulated_us.items())


def summary_so_far(
    results: Sequence[OpResult], *, ops: int, recorded_us: float, wall_s: float | None, interrupted: bool
) -> Summary:
    """Return counts, shares and totals so far, over all calls. `ops` and `recorded_us` are for the whole plan."""
    replayed = [result for result in results if result.status == "replayed"]
    by_status = Counter(result.status for result in results)
    not_replayed = reasons_of(results)
    measured = [result.measured_us * result.count for result in replayed if result.measured_us is not None]
    simulated = _simulated_totals(results)
    return Summary(
        ops=ops,
        replayed=by_status["replayed"],
        skipped=by_status["skipped"],
        failed=by_status["failed"],
        reasons={total.kind: total.ops for total in sorted(not_replayed, key=lambda total: -total.ops)},
        not_replayed=not_replayed,
        covered_share=round_to_one(sum(result.recorded_share for result in replayed)),
        recorded_us=recorded_us,
        measured_us=sum(measured) if measured else None,
        simulated_us=simulated,
        unpredicted_share={soc: _unpredicted(soc, results) for soc in simulated},
        wall_s=None if wall_s is None else round(wall_s, 3),
        interrupted=interrupted,
        not_reached=max(0, ops - len(results)),
    )


def _unpredicted(soc: str, results: Sequence[OpResult]) -> float:
    """Return the share of recorded time (of ops if none was recorded) without a prediction for a SoC."""
    timed = any(result.recorded_share > 0 for result in results)
    return 1.0 - round_to_one(
        sum(result.recorded_share if timed else 1 / len(results) for result in results if soc in result.simulated_us)
    )


def summary_of(file: ResultFile) -> Summary:
    """Return the summary of a result file.

    If the file has none, it is computed from the ops in the file and marked as interrupted. The number of all ops and
    their recorded time are then taken from the header, if it has them.
    """
    if file.summary is not None:
        return file.summary
    ops, *totals = (file.header.trace.get(name) for name in ("ops", "device_us_total", "host_us_total"))
    recorded = (float(total) for total in totals if total and isinstance(total, int | float))
    planned = ops if isinstance(ops, int) else len(file.results)
    return summary_so_far(file.results, ops=planned, recorded_us=next(recorded, 0.0), wall_s=None, interrupted=True)


def reasons_of(results: Iterable[OpResult]) -> tuple[ReasonTotal, ...]:
    """Return totals for each reason why ops were not replayed, most time first."""
    return total_reasons(
        (r.why_not().kind, r.why_not().detail, r.count, r.recorded_share) for r in results if r.status != "replayed"
    )
