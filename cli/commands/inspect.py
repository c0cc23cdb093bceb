"""`opreplay inspect`: what is in a trace; imports no torch."""

from __future__ import annotations

import click

from opreplay.cli.options.shared import format_option, kernel_details_option, limit_option, trace_argument


@click.command("inspect", short_help="Say what is in a trace.")
@trace_argument
@kernel_details_option
@format_option("table", "json")
@limit_option
def command(
    trace: str, kernel_details: str | None, format_: str, limit: tuple[tuple[str, str], ...]
) -> None:  # fmt: skip
    """Say what is in TRACE: events, ops, device time, how much of the ops' arguments it recorded, and what was lost."""
    from opreplay.cli.opening import open_trace
    from opreplay.cli.terminal import console
    from opreplay.traces import summarize

    summary = summarize(open_trace(trace, limit, kernel_details=kernel_details))
    if format_ == "json":
        console.write(console.json_text(summary))
        return
    from opreplay.replay.report.views import trace as view

    console.show_fitted(lambda width: view.render(summary, width=width))
