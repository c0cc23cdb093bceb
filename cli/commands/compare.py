# pyright: strict
"""`opreplay compare`: compare two result files, with an exit code for use in CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.shared import format_option, page_option, process_option
from opreplay.cli.options.types import Share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opreplay.replay.results.compare.judge import Method


@click.command("compare", short_help="Compare two runs or traces, op by op.")
@click.argument("before", metavar="[BEFORE]", required=False)
@click.argument("after", metavar="[AFTER]", required=False)
@click.option(
    "--also-before",
    multiple=True,
    metavar="FILE",
    help="Another measured run of the BEFORE side; all its runs are combined. Repeatable.",
)
@click.option("--also-after", multiple=True, metavar="FILE", help="Another measured run of the AFTER side. Repeatable.")
@click.option(
    "--threshold",
    type=Share(),
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Changes below this share count as noise; it is raised if the two runs vary more.",
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help=(
        "Exit with 5 if a condition is met: 'slower>5%' (any op), 'total>3%' (all ops "
        "together), 'step>3%' (of two traces), 'lost>0', 'unclear>50%' (of the ops) or 'power>20%' "
        "(smaller changes would not be detected); exit with 6 if a condition cannot be tested. Repeatable."
    ),
)
@click.option(
    "--method",
    type=click.Choice(["gauges", "medians"]),
    default="gauges",
    show_default=True,
    help=("Compare times relative to a fixed piece of work timed next to them (gauges), or plain medians."),
)
@click.option(
    "--times",
    metavar="BEFORE:AFTER",
    help=(
        "Times to compare on each side: recorded, measured, simulated, or the name of a "
        "simulated device.  [default: recorded for a trace, measured for results]"
    ),
)
@click.option(
    "--select",
    type=click.Choice(["owner", "leaf", "top", "all"]),
    default="owner",
    show_default=True,
    help="Ops of a trace to compare, as in `opreplay run`.",
)
@process_option
@click.option("--all", "everything", is_flag=True, help="Also list ops that are the same or unclear.")
@click.option(
    "--force",
    is_flag=True,
    help=(
        "Compare runs of different machines or measurement methods (the report lists the differences); "
        "overwrite the file of --output."
    ),
)
@page_option
@click.option(
    "--overwrite", is_flag=True, hidden=True, help="Overwrite the file of --output, but keep all other checks."
)
@click.option(
    "--history",
    metavar="FILE.sqlite",
    help=("Instead of two runs: show at which run of a history (`opreplay run --history`) each op changed."),
)
@format_option("table", "markdown", "json")
def command(
    before: str | None,
    after: str | None,
    also_before: tuple[str, ...],
    also_after: tuple[str, ...],
    threshold: float,
    fail_if: tuple[str, ...],
    method: Method,
    times: str | None,
    select: str,
    process: str | None,
    everything: bool,
    force: bool,
    output: str | None,
    overwrite: bool,
    history: str | None,
    format_: str,
) -> int:
    """Compare AFTER with BEFORE, op by op: .jsonl files of `opreplay run --output`, traces or plans.

    A ratio above 1 means that AFTER is slower. For two runs, an op is called slower or faster if the change exceeds its
    error and the variation of all ops, with the speed of the machine removed (--method); alternating runs detect
    smaller changes. Traces of two devices, a trace and its replay, or one result file and its own predictions (--times
    measured:simulated) are compared by their plain times: medians of an op's recorded or measured calls, or one
    predicted time with its 80 % band. A single trace can be compared with its prediction by --times recorded:910b3.
    """
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.job.times import simulated_times
    from opreplay.replay.plan.inputs import tells_step
    from opreplay.replay.plan.recorded.comparing import compare_operands, open_operand
    from opreplay.replay.report.views import comparison as views
    from opreplay.replay.results.compare.regressions import (
        parse_condition,
        untested_conditions,
        violations,
        warnings_of,
    )
    from opreplay.replay.timeline.compared import steps_of_sides
    from opreplay.traces.errors import UsageError

    if history is not None:
        return _show_history(history, fail_if, format_)
    if before is None:
        raise UsageError("BEFORE is missing", hint="Name one or two files, or --history FILE.sqlite.")
    check_outputs([output], force=force or overwrite)
    conditions = [parse_condition(text) for text in fail_if]
    threshold = min([threshold, *(condition.limit for condition in conditions if condition.what == "slower")])
    files = ((before, *also_before), (after, *also_after) if after is not None else ())
    first, second = (
        [open_operand(path, progress=ReadProgress, process=process, activity=tells_step(path)) for path in side]
        for side in files
    )
    comparison = compare_operands(
        first,
        second,
        times=times,
        select=select,
        threshold=threshold,
        method=method,
        force=force,
        simulate=simulated_times,
    )
    steps = steps_of_sides(first, second)
    broken, untested = (find(conditions, comparison, steps.ratio) for find in (violations, untested_conditions))
    warnings = warnings_of(conditions, comparison)
    verdicts = {"violations": broken, "unchecked": untested, "warnings": warnings}
    view = views.view(comparison, steps, everything=everything, verdicts=verdicts)
    write_view(view, [output], force=force or overwrite)
    console.show_view(view, format_)
    for line in warnings:
        console.narrate(f"opreplay: warning: {line}")
    return _report_conditions(broken, untested)


MOST_LINES = 10
"""Maximum number of violations of one condition to print; JSON has all."""
NOT_OF_HISTORY = ("before", "also_before", "also_after", "threshold", "method", "times", "select", "output")
"""Parameters of a comparison of two runs; they cannot be used with --history."""


def _show_history(path: str, fail_if: Sequence[str], format_: str) -> int:
    """Print which ops of a history changed, and at which run; return the exit code."""
    from opreplay.cli.options.settings import refuse_given
    from opreplay.cli.terminal import console
    from opreplay.replay.report.views import history as views
    from opreplay.replay.results.compare.changes import changes_of
    from opreplay.replay.results.compare.regressions import parse_condition
    from opreplay.replay.results.history import read_history

    refuse_given(
        NOT_OF_HISTORY, "{} does not go with --history", "Leave out the traces: --history reads only the history."
    )
    conditions = [parse_condition(text) for text in fail_if]
    ops = changes_of(read_history(path))
    broken = views.slower_than(conditions, ops)
    untested = [f"{condition}: no op has enough runs" for condition in conditions if not any(op.tested for op in ops)]
    console.show_view(views.view(ops, {"violations": broken, "unchecked": untested}), format_)
    return _report_conditions(broken, untested)


def _report_conditions(broken: Sequence[str], untested: Sequence[str]) -> ExitCode:
    """Report violated and untested conditions on stderr; return the exit code."""
    from opreplay.cli.terminal import console

    for line in (*_shortened(broken), *untested):
        console.narrate(f"opreplay: error: {line}")
    if broken:
        return ExitCode.REGRESSION
    return ExitCode.UNTESTED if untested else ExitCode.OK


def _shortened(broken: Sequence[str]) -> list[str]:
    """Return at most MOST_LINES violations of each condition, and a line that counts those left out."""
    by_condition: dict[str, list[str]] = {}
    for line in broken:
        by_condition.setdefault(line.partition(": ")[0], []).append(line)
    shown: list[str] = []
    for condition, lines in by_condition.items():
        shown += lines[:MOST_LINES]
        if len(lines) > MOST_LINES:
            shown.append(f"{condition}: {len(lines) - MOST_LINES:,} more; --format json lists all")
    return shown
