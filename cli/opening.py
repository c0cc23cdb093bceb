# pyright: strict
"""Open the file in the TRACE argument: apply limits, show progress on stderr, and report files that add data to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.traces import Limits, Trace


def open_input(
    text: str,
    limits: Sequence[tuple[str, str]],
    *,
    execution_trace: str | None = None,
    kernel_details: str | None = None,
    capture: str | None = None,
    process: str | None = None,
    activity: bool = False,
) -> Trace | ReplayPlan:
    """Open the trace, plan or TraceLens file in the TRACE argument, and report which other files added data to it.

    Raises the errors of `opreplay.replay.plan.inputs.open_input` and `parse_limits`.
    """
    from opreplay.cli.terminal import console
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.replay.plan import inputs

    read = inputs.open_input(
        text,
        limits=parse_limits(limits),
        execution_trace=execution_trace,
        kernel_details=kernel_details,
        capture=capture,
        process=process,
        progress=ReadProgress,
        activity=activity,
    )
    if not isinstance(read, ReplayPlan):
        return _report_joined_files(read)
    for line in inputs.loss_notes(read.losses, read.source):
        console.narrate(line)
    return read


def open_trace(
    text: str,
    limits: Sequence[tuple[str, str]],
    *,
    kernel_details: str | None = None,
    capture: str | None = None,
    process: str | None = None,
    activity: bool = False,
    gradients: bool = True,
) -> Trace:
    """Read the single profile in the TRACE argument and the files next to it, with progress on stderr.

    Raises UsageError for a glob that matches several files, TraceError for unreadable input.
    """
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.plan import inputs

    limited = parse_limits(limits)
    return _report_joined_files(
        inputs.open_trace(
            text,
            limits=limited,
            named=inputs.Named(kernel_details=kernel_details, capture=capture),
            process=process,
            progress=ReadProgress,
            activity=activity,
            gradients=gradients,
        )
    )


def busiest_of(trace: Trace) -> Trace:
    """Return the part of a merged trace that the process with the most device time recorded, and report this choice.

    A trace that was not merged from several processes is returned unchanged.
    """
    if trace.info.merged is None:
        return trace
    from opreplay.cli.terminal import console
    from opreplay.traces.processes.select import one_process

    part = one_process(trace)
    console.narrate(
        f"opreplay: {trace.info.path} contains {part.info.processes} processes; shown is {part.info.process!r}. "
        "Select another with --process, or compare them with `timeline --ranks`"
    )
    return part


def parse_limits(pairs: Sequence[tuple[str, str]]) -> Limits:
    """Return the reader's limits, changed by the values of --set limit.

    Raises UsageError, listing the valid names, for an unknown name.
    """
    from opreplay.cli.options.types import ByteSize
    from opreplay.traces import Limits

    known = {name: getattr(Limits(), name) for name in Limits.__struct_fields__}
    chosen: dict[str, int] = {}
    for name, text in pairs:
        if name not in known:
            raise UsageError(f"unknown limit {name!r}", hint=f"Limits are {', '.join(sorted(known))}.")
        chosen[name] = ByteSize().convert(text, None, None)
    return Limits(**chosen)


def _report_joined_files(trace: Trace) -> Trace:
    """Report on stderr which other files added data to the trace. Returns the trace."""
    from opreplay.cli.terminal import console
    from opreplay.replay.plan.inputs import join_notes

    for line in join_notes(trace):
        console.narrate(line)
    return trace
