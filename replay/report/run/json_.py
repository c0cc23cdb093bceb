# pyright: strict
"""A run as one JSON value: header, ops and summary as in the result file, for tools that do not read JSON Lines."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.results.records import Header, JobResult, OpResult, SequenceResult, Summary, TraceResult


def render(
    header: Header,
    results: Sequence[OpResult],
    summary: Summary,
    traces: Sequence[TraceResult] = (),
    jobs: Sequence[JobResult] = (),
    sequence: SequenceResult | None = None,
) -> str:
    """`{"header": ..., "ops": [...], "summary": ...}`, indented; a batch has `traces` and `jobs` too, a sequence
    `sequence`."""
    whole: dict[str, object] = {"header": header, "ops": results, "summary": summary}
    if traces:
        whole |= {"traces": traces, "jobs": jobs}
    if sequence is not None:
        whole["sequence"] = sequence
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"
