# pyright: strict
"""A run as one JSON value: header, ops and summary as in the result file, for tools that do not read JSON Lines."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.report import doubts, suspects
from opreplay.replay.report.run.batch import loss_lines, part_lines
from opreplay.replay.report.run.facts import notes
from opreplay.replay.report.run.work import work_notes
from opreplay.replay.report.text import shown_json
from opreplay.replay.results.records import Header, JobResult, OpResult, SequenceResult, Summary, TraceResult


def render(
    header: Header,
    results: Sequence[OpResult],
    summary: Summary,
    traces: Sequence[TraceResult] = (),
    jobs: Sequence[JobResult] = (),
    sequence: SequenceResult | None = None,
) -> str:
    """`{"header": ..., "ops": [...], "summary": ..., "notes": [...], "suspects": [...], "marks": {...}}`, indented; a
    batch has `traces` and `jobs` too, a sequence `sequence`.

    Notes and suspects are the lines of the table's report, marks what stands behind the star of a measured time, by id.
    """
    comparable = suspects.not_comparable(header)
    told = [*([comparable] if comparable else []), *work_notes(results), *notes(header, results, summary)]
    whole: dict[str, object] = {
        "header": header,
        "ops": results,
        "summary": summary,
        "notes": [*told, *(line.lstrip("·! ") for line in (*loss_lines(traces), *part_lines(traces)))],
        "suspects": suspects.lines(results),
        "marks": {result.id: found for result in results if (found := doubts.marks(result))},
    }
    if traces:
        whole |= {"traces": traces, "jobs": jobs}
    if sequence is not None:
        whole["sequence"] = sequence
    return shown_json(whole)
