"""`opreplay timeline`: one step as a whole: why it takes as long as it does, and what would change that."""

from __future__ import annotations

import click

from opreplay.cli.options.shared import format_option, kernel_details_option, limit_option, trace_argument


@click.command("timeline", short_help="Say why a step takes as long as it does, and what would change it.")
@trace_argument
@kernel_details_option
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N",
    help="N of ProfilerStep#N, or the Nth iteration of a server.  [default: the one of median length]",
)  # fmt: skip
@click.option(
    "--what-if", multiple=True, metavar="CHANGE",
    help="Show what the step would take: 'aten::mm*=0.5x', 'nccl*=0', 'fuse aten::add,aten::mul', 'dtype bf16', "
    "'cudagraph', 'overlap comm'. Repeatable.",
)  # fmt: skip
@format_option("table", "json")
@limit_option
def command(
    trace: str, kernel_details: str | None, step: int | None, what_if: tuple[str, ...], format_: str,
    limit: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Rebuild one step of TRACE as a graph of what waited for what, and time it again: what the device did and why it
    idled, the critical path, and what changes would gain. The first line says how far the graph explains the recording.
    """
    from opreplay.cli.opening import open_trace
    from opreplay.cli.terminal import console
    from opreplay.replay.report.step import text as view
    from opreplay.replay.timeline.timeline import timeline

    study = timeline(open_trace(trace, limit, kernel_details=kernel_details, activity=True), step=step, what_if=what_if)
    if format_ == "json":
        console.write(console.json_text(view.facts(study.timeline)))
        return
    console.show_line(view.head_line(study.timeline))
    console.show(view.render(study.timeline))
