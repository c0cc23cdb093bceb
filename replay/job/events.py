# pyright: strict
"""What happens in a job, as plain values in the order in which it happens.

A run is `Planned`, `Started`, then for each op `Progress`, `Predicted` and one of `Measured`, `Skipped` and `Failed`
(several ops may be in progress at once), then `Ended`. Progress bars, result files and tests consume this one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
"""A record that follows from all results together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The ops of the run are known; nothing was executed."""

    plan: ReplayPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Host and device are ready, and the first op is next."""

    record: Header | Resumed
    """First record of this process: `Resumed` where an earlier run is continued."""
    environment: dict[str, object]
    """Facts of host and device."""
    kept: tuple[OpResult, ...] = ()
    """Results of the earlier run that are not measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands: before each op, and once more at the end with no current op."""

    done: int
    total: int
    current: str | None
    """Name of the op that is next, or the pass of a sequence."""
    elapsed_s: float
    remaining_s: float | None
    """Estimate, at most what is left of the run's time budget; None before the first op."""
    cut: bool = False
    """Whether that budget is expected to end before all ops are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The predictions for one op, and why some are missing."""

    op: ReplayOp
    simulated: dict[str, Simulated]
    """Device → prediction, in the order of the devices; none for an op without arguments, which is not free."""
    why: tuple[str, ...] = ()
    """One line for each device without a prediction."""
    errors: tuple[CustomOpError | InternalError, ...] = ()
    """Errors of the user's functions, and faults of opreplay's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An op was measured, or replayed without its own time, as in a sequence."""

    op: ReplayOp
    result: OpResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """An op was not executed; the result has the reason."""

    op: ReplayOp
    result: OpResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An op was executed, or its process started, and gave no time; the result has the reason."""

    op: ReplayOp
    result: OpResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """No further op is run."""

    summary: Summary
    records: tuple[Sum, ...] = ()
    """Sums of traces, jobs or the sequence; none where the run was cut short."""
    already: bool = False
    """Whether the earlier run was complete, so that nothing was added to it."""
    error: BaseException | None = None
    """What cut the run short; raised once this event was taken."""


Finished = Measured | Skipped | Failed
Event = Planned | Started | Progress | Predicted | Finished | Ended


def finished(op: ReplayOp, result: OpResult) -> Finished:
    """Return the event for what became of an op."""
    if result.status == "replayed":
        return Measured(op=op, result=result)
    return (Skipped if result.status == "skipped" else Failed)(op=op, result=result)
