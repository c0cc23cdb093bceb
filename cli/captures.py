"""Recordings of graphs' captures: those that --capture names, or those beside the trace; narrates what they told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opreplay.traces import Limits, Trace


def with_captures_of(trace: Trace, named: str | None, limits: Limits) -> Trace:
    """The trace with the ops of the graphs that it replays, as far as their captures are there; else a hint.

    Raises UsageError for a path that does not exist, and TraceError for a named file that cannot be read.
    """
    from opreplay.cli import console
    from opreplay.replay.report.graphs import join_text
    from opreplay.traces.graph_capture import capture_files, with_captures, with_captures_beside

    if trace.graphs is None:
        if named is not None:
            console.narrate("opreplay: --capture is not used: no captured graph ran in this trace")
        return trace
    joined = (
        with_captures_beside(trace, limits) if named is None else with_captures(trace, capture_files(named), limits)
    )
    if joined.info.graphs is not None:
        console.narrate(f"opreplay: {join_text(joined.info.graphs)}")
    return joined
