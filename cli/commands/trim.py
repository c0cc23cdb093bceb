# pyright: strict
"""`opreplay trim`: extract a small trace from a large one. Does not import torch."""

from __future__ import annotations

import click

from opreplay.cli.options.settings import Command, Named
from opreplay.cli.options.shared import force_option, limit_option, trace_argument


@click.command("trim", cls=Command, short_help="Extract a step, a time range or ops of a huge trace.")
@trace_argument
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Keep events that start in ProfilerStep#N.")
@click.option(
    "--between",
    metavar="A..B",
    help=(
        "Keep events that start between A and B. Times with a unit (1.5s..2s) count from the first event, times "
        "without a unit are timestamps of the file (ts)."
    ),
)
@click.option(
    "--include",
    cls=Named,
    former=["--op-filter"],
    multiple=True,
    metavar="PATTERN",
    help=("Keep ops with these names, the calls inside them and their device work. Repeatable."),
)
@click.option(
    "--output", "-o", required=True, metavar="FILE", help="The new trace; compressed if the name ends in .gz."
)
@force_option
@limit_option
def command(
    trace: str,
    step: int | None,
    between: str | None,
    include: tuple[str, ...],
    output: str,
    force: bool,
    limit: tuple[tuple[str, str], ...],
) -> None:
    """Write a part of TRACE as a separate trace that other viewers can open too: its unchanged events, the device
    work that they launched, and all metadata. TRACE is streamed, so its size does not matter. Give one of --step,
    --between and --include.
    """
    from pathlib import Path

    from opreplay.cli.opening import parse_limits
    from opreplay.cli.outputs import check_writable
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.plan.inputs import refuse_plan, the_one_path
    from opreplay.traces.errors import UsageError
    from opreplay.traces.trim import Wanted, op_spans, step_span, trim

    if (step is not None) + (between is not None) + bool(include) != 1:
        raise UsageError("give one of --step, --between and --include", hint="For example --step 12.")
    path, limits = the_one_path(trace), parse_limits(limit)
    refuse_plan(path)
    if path == "-":
        raise UsageError("trim cannot read stdin, because it reads the file more than once", hint="Save it first.")
    check_writable(Path(output), force=force)
    if step is not None:
        wanted = Wanted(spans=(step_span(path, step, limits),))
    elif between is not None:
        wanted = Wanted(spans=(_between(between, path, limits),))
    else:
        wanted = Wanted(of_threads=op_spans(path, include, limits))
    with ReadProgress() as progress:
        trimmed = trim(path, output, wanted, limits=limits, progress=progress, force=force)
    device_work = f"{trimmed.device_events:,} of them device work"
    console.show_line(f"kept {trimmed.events:,} of {trimmed.of_events:,} events, {device_work}, in {output}")
    for reason, count in trimmed.losses.items():
        console.narrate(f"opreplay: events of {path} that could not be read: {reason} ({count:,})")


def _between(text: str, path: str, limits: object) -> tuple[int, int]:
    """Parse --between to (start, end) in nanoseconds of the trace's clock. Raises UsageError for invalid text."""
    from opreplay.cli.options.types import Duration
    from opreplay.traces.errors import UsageError
    from opreplay.traces.limits import Limits
    from opreplay.traces.reading.columns import INVALID, to_ns
    from opreplay.traces.trim import first_time_ns

    hint = "Write 1.5s..2s (since the first event) or 1719.5..2044 (µs, as in the file)."
    low, dots, high = text.partition("..")
    if not all((low, dots, high)):
        raise UsageError(f"--between {text!r} is not a time span", hint=hint)
    start, end = to_ns([low, high]).tolist()
    if INVALID in (start, end):
        assert isinstance(limits, Limits)
        first = first_time_ns(path, limits)
        try:
            after = [0.0 if part.strip() == "0" else Duration().convert(part, None, None) for part in (low, high)]
        except click.BadParameter:
            raise UsageError(f"--between {text!r} is not a time span", hint=hint) from None
        start, end = (first + round(seconds * 1e9) for seconds in after)
    if start >= end:
        raise UsageError(f"--between {text!r} ends before it begins", hint=hint)
    return start, end
