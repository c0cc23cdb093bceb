# pyright: strict
"""`opreplay inspect`: what is in a trace; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from opreplay.cli.options.settings import Command
from opreplay.cli.options.shared import (
    capture_option,
    format_option,
    kernel_details_option,
    limit_option,
    trace_argument,
)

if TYPE_CHECKING:
    from opreplay.traces.times.breakdown import By

TOP = 30


@click.command("inspect", cls=Command, short_help="Summarize a trace, and where its time goes.")
@trace_argument
@kernel_details_option
@capture_option
@click.option(
    "--by",
    type=click.Choice(["op", "category", "module", "kernel", "phase", "step", "launch"]),
    help="One table instead: where the time goes, summed up by this; all steps, outliers named; or how kernels are "
    "launched: short ones, and how long they wait.",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help=f"Rows of that table.  [default: {TOP}, CSV all]")
@click.option(
    "--peak",
    metavar="NAME",
    help="Shares of --by op are of the peak of this device (MI300X), where the trace does not name the recorded one.",
)
@format_option("table", "json", "csv")
@limit_option
def command(
    trace: str,
    kernel_details: str | None,
    capture: str | None,
    by: By | Literal["step", "launch"] | None,
    top: int | None,
    peak: str | None,
    format_: str,
    limit: tuple[tuple[str, str], ...],
) -> None:
    """Say what is in TRACE: events, ops, how busy its device was and with what, how much of the ops' arguments it
    recorded, and what was lost. --by gives one table of where the time goes.
    """
    import msgspec

    from opreplay.cli.opening import open_trace, parse_limits, tells_step
    from opreplay.cli.plan_views import captured_file, show_captured
    from opreplay.cli.terminal import console
    from opreplay.traces import summarize
    from opreplay.traces.times.breakdown import breakdown
    from opreplay.traces.times.modules import modules_of_ops
    from opreplay.traces.times.peaks import peak_named

    named = None if peak is None else peak_named(peak)

    captured = captured_file(trace)
    if captured is not None:
        show_captured(captured, by=by, format_=format_)
        return
    read = open_trace(
        trace,
        limit,
        kernel_details=kernel_details,
        capture=capture,
        gradients=False,
        activity=by in ("step", "launch") or (by is None and tells_step(trace)),
    )
    if by == "step" or by == "launch":
        from opreplay.replay.report import steps as view_of_steps
        from opreplay.replay.report.breakdown import facts
        from opreplay.traces.times.steps import launch_table, step_table

        rows_of = step_table(read) if by == "step" else launch_table(read)
        console.show_as(
            format_,
            lambda: facts(rows_of, top),
            lambda width: view_of_steps.render(rows_of, top or TOP, width=width),
            texts={"csv": lambda: view_of_steps.csv_text(rows_of, top)},
        )
        return
    if by is not None or format_ == "csv" or top is not None or named is not None:
        from opreplay.replay.report import breakdown as table

        modules = modules_of_ops(read, read.info.path, limits=parse_limits(limit)) if by == "module" else ()
        rows = breakdown(read, by or "op", modules=modules, peak=named)
        console.show_as(
            format_,
            lambda: table.facts(rows, top),
            lambda width: table.render(rows, top or TOP, width=width),
            texts={"csv": lambda: table.csv_text(rows, top)},
        )
        return
    from opreplay.replay.report.step.verdict import step_facts, verdict
    from opreplay.replay.timeline.timeline import step_of

    summary, step = summarize(read), step_of(read)
    from opreplay.replay.report.views import trace as view

    shown = step if step is not None and step.marked else None
    console.show_as(
        format_,
        lambda: {**msgspec.to_builtins(summary), "step": None if step is None else step_facts(step)},
        lambda width: view.render(summary, shown, width=width),
        lines=map(verdict, filter(None, [shown])),
    )
