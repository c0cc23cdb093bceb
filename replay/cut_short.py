"""The summary of a result file that has none, since its run was killed; counts what is there, runs nothing."""

from __future__ import annotations

from collections import Counter

from opreplay.replay.reasons import total_reasons
from opreplay.replay.results import ResultFile, Summary


def summary_of(file: ResultFile) -> Summary:
    """The file's own summary, or one of its ops that says that the run was interrupted.

    The recorded time of all ops is then the trace's own total, where the header has it.
    """
    if file.summary is not None:
        return file.summary
    trace, results = file.header.trace, file.results
    replayed = [result for result in results if result.status == "replayed"]
    by_status = Counter(result.status for result in results)
    reasons = total_reasons((r.reason, r.count, r.recorded_share) for r in results if r.status != "replayed")
    simulated: dict[str, float] = {}
    for result in results:
        for soc, time_us in result.simulated_us.items():
            simulated[soc] = simulated.get(soc, 0.0) + time_us * result.count
    ops = trace.get("ops")
    return Summary(
        ops=ops if isinstance(ops, int) else len(results),
        replayed=by_status["replayed"],
        skipped=by_status["skipped"],
        failed=by_status["failed"],
        reasons={total.kind: total.ops for total in reasons},
        not_replayed=reasons,
        covered_share=sum(result.recorded_share for result in replayed),
        recorded_us=_number(trace.get("device_us_total")) or _number(trace.get("host_us_total")),
        measured_us=sum((result.measured_us or 0.0) * result.count for result in replayed),
        simulated_us=simulated,
        wall_s=0.0,
        interrupted=True,
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
