# pyright: strict
"""The events of a job, in order.

A run starts with `Planned` and `Started`. Each op has `Progress`, `Predicted`, and one of `Measured`, `Skipped` and
`Failed`. The last event is `Ended`. Events of different ops may overlap. Progress bars, result files and tests use the
same events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opreplay.replay.ir.model import ReplayOp, ReplayPlan
from opreplay.replay.results.records import (
    Header,
    JobResult,
    OpResult,
    Resumed,
    SequenceResult,
    Simulated,
    Summary,
    TraceResult,
)
from opreplay.traces.errors import InternalError

if TYPE_CHECKING:
    from opreplay.replay.ascend.custom.registrations import CustomOpError

Sum = TraceResult | JobResult | SequenceResult
"""A record computed from all results."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of the run are known; no op has run yet."""

    plan: ReplayPlan


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The host and the device are ready; the first op is next."""

    record: Header | Resumed
    """First record of this process; `Resumed` if the run continues an earlier one."""
    environment: dict[str, object]
    """Facts of host and device."""
    kept: tuple[OpResult, ...] = ()
    """Results of the earlier run that are reused."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run: one event before each op, and a last one without a current op."""

    done: int
    total: int
    current: str | None
    """Name of the next op, or the current pass of a sequence."""
    elapsed_s: float
    remaining_s: float | None
    """Estimated time left in seconds, but at most the rest of the time budget. None if it cannot be estimated yet."""
    cut: bool = False
    """Whether the time budget will probably be used up before the last op."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """The predictions for one op, and why some are missing."""

    op: ReplayOp
    simulated: dict[str, Simulated]
    """Prediction for each device, in the order of the devices. Empty for an op without recorded arguments."""
    why: tuple[str, ...] = ()
    """Reasons for missing predictions: one line per device."""
    errors: tuple[CustomOpError | InternalError, ...] = ()
    """Errors that replace predictions: errors of the user's functions, and internal errors."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """An op was measured, or ran as part of a sequence."""

    op: ReplayOp
    result: OpResult


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """An op was not run; `result` has the reason."""

    op: ReplayOp
    result: OpResult


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """An op, or the process for it, was started but yielded no time; `result` has the reason."""

    op: ReplayOp
    result: OpResult


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The run is over."""

    summary: Summary
    records: tuple[Sum, ...] = ()
    """Sums over traces, jobs or the sequence; empty if the run was interrupted."""
    already: bool = False
    """Whether the earlier run was already complete, so that nothing was added."""
    error: BaseException | None = None
    """Error that ended the run, raised after this event; None without an error."""


Finished = Measured | Skipped | Failed
Event = Planned | Started | Progress | Predicted | Finished | Ended


def outcome_event(op: ReplayOp, result: OpResult) -> Finished:
    """Return the event for an op's outcome."""
    if result.status == "replayed":
        return Measured(op=op, result=result)
    return (Skipped if result.status == "skipped" else Failed)(op=op, result=result)
