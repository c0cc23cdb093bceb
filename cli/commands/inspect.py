# pyright: strict
"""`opreplay inspect`: show what a trace contains. Does not import torch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal

import click

from opreplay.cli.options import shared
from opreplay.cli.options.settings import Command
from opreplay.cli.options.types import Count

if TYPE_CHECKING:
    from opreplay.replay.report.view import View
    from opreplay.traces import Trace
    from opreplay.traces.times.breakdown import By

TOP = 30


@click.command("inspect", cls=Command, short_help="Summarize a trace, and where its time goes.")
@shared.trace_argument
@shared.process_option
@shared.kernel_details_option
@shared.capture_option
@click.option(
    "--by",
    type=click.Choice(["roofline", "op", "category", "module", "kernel", "phase", "step", "launch"]),
    help=(
        "Print one table instead: the roofline of each op and shape (roofline or op); where the time goes, grouped by "
        "this; all steps, with outliers; or kernel launches: how many kernels are short, and how long they wait."
    ),
)
@click.option("--top", type=Count(min=1), metavar="N", help=f"Rows of that table.  [default: {TOP}, all for CSV]")
@click.option(
    "--peak",
    metavar="NAME",
    help=("Compute the roofline against the peak of this device (MI300X), if the trace does not name its device."),
)
@shared.all_option
@shared.notes_option
@shared.format_option("table", "json", "csv")
@shared.limit_option
def command(
    trace: str,
    process: str | None,
    kernel_details: str | None,
    capture: str | None,
    by: By | Literal["roofline", "step", "launch"] | None,
    top: int | None,
    peak: str | None,
    all_rows: bool,
    notes: bool,
    format_: str,
    limit: tuple[tuple[str, str], ...],
) -> None:
    """Show what is in TRACE: events, ops, how busy its device was and with what, how complete the ops' recorded
    arguments are, and what was lost. --by prints one table of where the time goes. For a folder, one line per trace.
    """
    from opreplay.cli.opening import open_trace, parse_limits
    from opreplay.cli.plan_views import captured_file, show_captured
    from opreplay.cli.terminal import console
    from opreplay.replay.plan.inputs import tells_step
    from opreplay.replay.report.inspected import view_by
    from opreplay.traces.errors import UsageError
    from opreplay.traces.times.peaks import peak_named

    if os.path.isdir(trace):
        if by is not None or top is not None or peak is not None or process is not None or kernel_details or capture:
            raise UsageError("these options need a single trace, not a folder", hint="Name one file in the folder.")
        console.show_view(_folder_of(trace, limit), format_)
        return
    named = None if peak is None else peak_named(peak)
    by = "op" if by == "roofline" else by
    if named is not None and by not in (None, "op"):
        raise UsageError(f"--peak has no effect on --by {by}", hint="Use it with --by roofline.")
    captured = captured_file(trace)
    if captured is not None:
        show_captured(captured, by=by, format_=format_)
        return
    read = open_trace(
        trace,
        limit,
        process=process,
        kernel_details=kernel_details,
        capture=capture,
        gradients=False,
        activity=by in ("step", "launch") or (by in (None, "category") and tells_step(trace)),
    )
    if named is not None and not len(read.kernels):
        hint = f"These are host times, without a share of the peak of {named.device}: leave out --peak."
        raise UsageError(f"{trace} contains no device work, so it has no share of a peak", hint=hint)
    if by is not None or format_ == "csv" or top is not None or named is not None:
        top = sys.maxsize if all_rows and top is None else top
        view = view_by(read, by or "op", top=top, peak=named, limits=parse_limits(limit))
    else:
        view = _summary_of(read, everything=notes, all_rows=all_rows)
    console.show_view(view, format_)


def _folder_of(folder: str, limit: tuple[tuple[str, str], ...]) -> View:
    """Return a view with one line per trace in a folder; traces are read one at a time."""
    from opreplay.cli.opening import open_trace
    from opreplay.cli.terminal import console
    from opreplay.replay.batch.reading import readable_traces
    from opreplay.replay.report import ranks

    read = readable_traces([folder], lambda path: open_trace(path, limit, gradients=False), console.narrate)
    files = [ranks.rank_file(trace) for _, trace in read]
    if not files:
        from opreplay.traces.errors import UsageError

        raise UsageError(f"{folder} contains no trace", hint="Name a trace, or a folder that contains traces.")
    return ranks.view(files)


def _summary_of(read: Trace, *, everything: bool, all_rows: bool) -> View:
    """Return the summary of the file."""
    from opreplay.replay.report.views import trace as views
    from opreplay.replay.timeline.timeline import step_of
    from opreplay.traces import summarize

    return views.view(summarize(read), step_of(read), everything=everything, all_rows=all_rows)
