# pyright: strict
"""`opreplay compare`: two result files side by side, with an exit code for builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opreplay.cli.exit_codes import ExitCode
from opreplay.cli.options.shared import format_option, page_option, process_option
from opreplay.cli.options.types import Share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opreplay.replay.ir.step import StepReport
    from opreplay.replay.plan.recorded.comparing import Operand
    from opreplay.replay.results.compare.judge import Method


@click.command("compare", short_help="Compare two runs or traces, op by op.")
@click.argument("before", metavar="[BEFORE]", required=False)
@click.argument("after", metavar="[AFTER]", required=False)
@click.option(
    "--also-before",
    multiple=True,
    metavar="FILE",
    help="Another measured run like BEFORE; all of them count together. Repeatable.",
)
@click.option("--also-after", multiple=True, metavar="FILE", help="Another measured run like AFTER. Repeatable.")
@click.option(
    "--threshold",
    type=Share(),
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Smaller changes are noise; raised where the two runs scatter more.",
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 5 when 'slower>5%' (any op), 'total>3%' (all ops together), 'lost>0', 'unclear>50%' (of the "
    "ops) or 'power>20%' (smaller changes would not be found), with 6 when that cannot be told. Repeatable.",
)
@click.option(
    "--method",
    type=click.Choice(["gauges", "medians"]),
    default="gauges",
    show_default=True,
    help="Compare times relative to a fixed piece of work that was timed beside them, or plain medians.",
)
@click.option(
    "--times",
    metavar="BEFORE:AFTER",
    help="Which times of each side: recorded, measured, simulated, or the name of a simulated device.  [default: "
    "recorded ones of a trace, measured ones of results]",
)
@click.option(
    "--select",
    type=click.Choice(["owner", "leaf", "top", "all"]),
    default="owner",
    show_default=True,
    help="Which ops of a trace: as in `opreplay run`.",
)
@process_option
@click.option("--all", "everything", is_flag=True, help="List ops that stayed the same or are unclear as well.")
@click.option(
    "--force",
    is_flag=True,
    help="Compare runs of different machines or ways to measure, which the report then says; overwrite the file of "
    "--output.",
)
@page_option
@click.option("--overwrite", is_flag=True, hidden=True, help="Overwrite the file of --output, and no more.")
@click.option(
    "--history",
    metavar="FILE.sqlite",
    help="In place of two runs: at which run of a history (`opreplay run --history`) each op changed.",
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

    A ratio above 1 means that AFTER is slower. Of two runs an op is called slower or faster where that is more than its
    error and more than the ops scatter, the speed of the machine taken out (--method); runs in turns tell smaller
    changes. Traces of two devices, a trace and its replay, or with --times measured:simulated one file of results and
    its own predictions, are compared by their times as they are: of what was recorded or measured the medians of an
    op's calls, of a prediction its one time with its 80 % band. So is a trace alone with its prediction, with --times
    recorded:910b3.
    """
    from opreplay.cli.opening import tells_step
    from opreplay.cli.outputs import check_outputs, write_view
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.job.times import simulated_times
    from opreplay.replay.plan.recorded.comparing import compare_operands, open_operand
    from opreplay.replay.report.views import comparison as views
    from opreplay.replay.results.compare.regressions import parse_condition, unchecked, violations, warnings_of
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
    broken, untested = violations(conditions, comparison), unchecked(conditions, comparison)
    warnings = warnings_of(conditions, comparison)
    verdicts = {"violations": broken, "unchecked": untested, "warnings": warnings}
    view = views.view(comparison, _steps(first, second), everything=everything, verdicts=verdicts)
    write_view(view, [output], force=force or overwrite)
    console.show_view(view, format_)
    for line in warnings:
        console.narrate(f"opreplay: warning: {line}")
    return _concluded(broken, untested)


NOT_OF_HISTORY = ("before", "also_before", "also_after", "threshold", "method", "times", "select", "output")
"""Parameters of two runs."""


def _show_history(path: str, fail_if: Sequence[str], format_: str) -> int:
    """Print which ops of a history changed at which run; the exit code."""
    from opreplay.cli.options.settings import refuse_given
    from opreplay.cli.terminal import console
    from opreplay.replay.report.views import history as views
    from opreplay.replay.results.compare.changes import changes_of
    from opreplay.replay.results.compare.regressions import parse_condition
    from opreplay.replay.results.history import read_history

    refuse_given(NOT_OF_HISTORY, "{} does not go with --history", "A history is all that is read.")
    conditions = [parse_condition(text) for text in fail_if]
    ops = changes_of(read_history(path))
    broken = views.slower_than(conditions, ops)
    untested = [f"{condition}: no op has enough runs" for condition in conditions if not any(op.tested for op in ops)]
    console.show_view(views.view(ops, {"violations": broken, "unchecked": untested}), format_)
    return _concluded(broken, untested)


def _concluded(broken: Sequence[str], untested: Sequence[str]) -> ExitCode:
    """Say on stderr which conditions are broken and which could not be tested; the exit code."""
    from opreplay.cli.terminal import console

    for line in (*broken, *untested):
        console.narrate(f"opreplay: error: {line}")
    if broken:
        return ExitCode.REGRESSION
    return ExitCode.UNTESTED if untested else ExitCode.OK


def _steps(before: Sequence[Operand], after: Sequence[Operand]) -> dict[str, StepReport]:
    """The step of the trace that a side is; nothing for results and plans."""
    from opreplay.replay.timeline.timeline import step_of
    from opreplay.traces import Trace

    traces = {
        which: operand
        for which, side in (("before", before), ("after", after))
        for operand in side
        if isinstance(operand, Trace)
    }
    return {which: step for which, trace in traces.items() if (step := step_of(trace)) is not None}
