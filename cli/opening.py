# pyright: strict
"""Opening what the TRACE argument names: limits, progress on stderr, and what other files gave it told."""

from __future__ import annotations

import os
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
    """The trace, plan or TraceLens file that the TRACE argument means; narrates what other files gave it.

    Raises what `opreplay.replay.plan.inputs.open_input` and `parse_limits` do.
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
        return _told(read)
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
    """Read the one profile that the TRACE argument means, with progress on stderr, and what lies beside it with it.

    Raises UsageError for a glob that matches several, TraceError for what cannot be read.
    """
    from opreplay.cli.terminal.progress import ReadProgress
    from opreplay.replay.plan import inputs

    limited = parse_limits(limits)
    return _told(
        inputs.open_trace(
            text,
            limits=limited,
            kernel_details=kernel_details,
            capture=capture,
            process=process,
            progress=ReadProgress,
            activity=activity,
            gradients=gradients,
        )
    )


STEP_BYTES = 256 << 20
"""Larger traces are read without what ran when, in a third of the time: of those `timeline` alone tells the step."""
PACKED = 12
"""How many times smaller a packed trace is, roughly."""


def busiest_of(trace: Trace) -> Trace:
    """Return the process with most device time of a merged trace, and say so; another trace as it is."""
    if trace.info.merged is None:
        return trace
    from opreplay.cli.terminal import console
    from opreplay.traces.processes.select import one_process

    part = one_process(trace)
    console.narrate(
        f"opreplay: {trace.info.path} holds {part.info.processes} processes; this is {part.info.process!r}: "
        "--process takes another one, `timeline --ranks` compares them"
    )
    return part


def tells_step(text: str) -> bool:
    """Whether a command that is not about the step reads what it takes to tell of it."""
    if not os.path.isfile(text):
        return True
    unpacked = os.path.getsize(text) * (PACKED if text.lower().endswith(".gz") else 1)
    return unpacked <= STEP_BYTES


def parse_limits(pairs: Sequence[tuple[str, str]]) -> Limits:
    """Limits of the reader with those of --set limit. Raises UsageError that lists the names for an unknown one."""
    from opreplay.cli.options.types import ByteSize
    from opreplay.traces import Limits

    known = {name: getattr(Limits(), name) for name in Limits.__dataclass_fields__}
    chosen: dict[str, int] = {}
    for name, text in pairs:
        if name not in known:
            raise UsageError(f"no limit is called {name!r}", hint=f"Limits are {', '.join(sorted(known))}.")
        chosen[name] = ByteSize().convert(text, None, None)
    return Limits(**chosen)


def _told(trace: Trace) -> Trace:
    """The trace, once what completed it has been told."""
    from opreplay.cli.terminal import console
    from opreplay.replay.plan.inputs import join_notes

    for line in join_notes(trace):
        console.narrate(line)
    return trace
