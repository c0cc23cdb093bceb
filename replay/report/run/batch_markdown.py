# pyright: strict
"""Traces and jobs of a batch as Markdown tables, below those of the ops."""

from __future__ import annotations

from collections.abc import Sequence

from opreplay.replay.report.run.batch import (
    COLLECTIVE_TITLES,
    collective_cells,
    collective_notes,
    disagreement_lines,
    loss_lines,
    marked,
    part_lines,
    ranks_text,
    recorded_text,
    recorded_title,
)
from opreplay.replay.report.run.markdown import escaped
from opreplay.replay.report.text import share_text, time_text
from opreplay.replay.results.records import JobResult, TraceResult


def render(traces: Sequence[TraceResult], jobs: Sequence[JobResult]) -> str:
    """One row a trace, then one a job; nothing without traces."""
    if not traces:
        return ""
    socs = list(dict.fromkeys(soc for trace in traces for soc in trace.simulated_us))
    lines = _head(
        ["trace", "rank", "ops", "replayed", "covered", recorded_title(traces), "measured", *map(escaped, socs)]
    )
    for trace in traces:
        lines.append(
            _row(
                [
                    escaped(marked(trace.source, trace)),
                    "" if trace.rank is None else str(trace.rank),
                    f"{trace.ops:,}",
                    f"{trace.replayed:,}",
                    share_text(trace.covered_share),
                    recorded_text(trace, traces),
                    time_text(trace.measured_us),
                    *(time_text(trace.simulated_us.get(soc)) for soc in socs),
                ]
            )
        )
    told = [*loss_lines(traces), *(line.removeprefix("· ") for line in part_lines(traces))]
    lines += ["", *(f"- {escaped(line)}" for line in told)] if told else []
    merged = [job for job in jobs if job.ranks]
    if merged:
        lines += _head(["job", "ranks", "ops", "unique", "covered", recorded_title(merged), "slowest", "measured"])
    for job in merged:
        lines.append(
            _row(
                [
                    escaped(job.job),
                    ranks_text(job),
                    f"{job.rank_ops:,}",
                    f"{job.ops:,}",
                    share_text(job.covered_share),
                    recorded_text(job, merged),
                    time_text(job.slowest_rank_us),
                    time_text(job.measured_us),
                ]
            )
        )
    talking = [job for job in merged if job.collectives is not None]
    if talking:
        lines += _head(["job", *COLLECTIVE_TITLES])
        lines += [_row([escaped(job.job), *collective_cells(job)]) for job in talking]
        notes = [*disagreement_lines(talking), *(line.removeprefix("· ") for line in collective_notes(talking))]
        lines += ["", *(f"- {escaped(line)}" for line in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _head(titles: Sequence[str]) -> list[str]:
    return ["", _row(titles), _row([":--", *("--:" for _ in titles[1:])])]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
