"""What `run` prints when it is done, or interrupted, and the exit code it amounts to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opreplay.cli import console
from opreplay.cli.exit_codes import ExitCode
from opreplay.traces.model import Trace

if TYPE_CHECKING:
    from opreplay.cli.outputs import Outputs
    from opreplay.replay.ir import ReplayPlan


def show_report(outputs: Outputs, *, coverage: bool = True) -> None:
    """Coverage first, unless it was shown already, then the tables.

    Where stdout takes the results themselves it is only the coverage, on stderr.
    """
    from rich.console import Group

    from opreplay.replay.report import sequence, table
    from opreplay.replay.report.facts import coverage_line

    header, results, summary = outputs.memory.header, outputs.memory.results, outputs.memory.summary
    if summary is None:
        return
    line = coverage_line(header, results, summary)
    if outputs.to_stdout:
        console.narrate(line)
        return
    if coverage:
        console.show_line(line)
    console.show_fitted(
        lambda width: Group(
            *sequence.tables(outputs.memory.sequence), table.render(header, results, summary, width=width)
        )
    )


def outcome_code(outputs: Outputs, max_failed: int | None) -> ExitCode:
    """1 when more ops were skipped or failed than allowed, and a line on stderr that says so."""
    summary = outputs.memory.summary
    missed = 0 if summary is None else summary.ops - summary.replayed
    return code_for(missed, max_failed, "were not replayed")


def code_for(missed: int, max_failed: int | None, what: str) -> ExitCode:
    """1 for more ops than allowed, with a line on stderr that says `what` they are; any number is where None is."""
    if max_failed is None or missed <= max_failed:
        return ExitCode.OK
    console.narrate(f"opreplay: {missed} ops {what}, --max-failed allows {max_failed}")
    return ExitCode.INCOMPLETE


def trace_facts(trace: Trace | ReplayPlan) -> dict[str, object]:
    """What the header of the results says of the trace, beside the plan's totals; no path. A plan says no more."""
    if not isinstance(trace, Trace):
        return {}
    info = trace.info
    joined = info.kernel_details
    return {
        "dialect": info.dialect,
        "events": info.events,
        "metadata_level": info.metadata_level,
        "torch_version": info.torch_version,
        "vendor": info.vendor,
        "world_size": info.world_size,
        "rank": info.rank,
        "losses": info.report.losses,
        "repairs": info.report.repairs,
        **({} if joined is None else {"kernel_details": msgspec.to_builtins(joined)}),
        **({} if info.graphs is None else {"graphs": msgspec.to_builtins(info.graphs)}),
    }
