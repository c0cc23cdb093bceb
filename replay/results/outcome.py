# pyright: strict
"""The outcome of one op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from opreplay.initializers.amounts import Work
from opreplay.replay.collectives.model import Replayed
from opreplay.replay.ir.model import Assumption, Reason
from opreplay.replay.ir.reasons import LOST
from opreplay.replay.ir.verdicts import ValueCheck
from opreplay.replay.results.measurement import Measurement
from opreplay.replay.results.records import Fidelity, Filling

VALUES = "values"
"""Name used in place of an argument's name, in assumptions about values in general."""
OUTSIDE_DOMAIN = "earlier calls left arguments outside the op's domain; they were refilled before each call"
NOT_FINITE = "results were not finite; they were refilled after each call"


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """The outcome of one op."""

    status: Literal["replayed", "skipped", "failed"]
    reason: Reason | None = None
    measurement: Measurement | None = None
    initializer: str | None = None
    filling: Filling | None = None
    assumptions: tuple[Assumption, ...] = ()
    work: Work | None = None
    fidelity: Fidelity | None = None
    values: ValueCheck | None = None
    collective: Replayed | None = None
    """How a collective ran on real ranks; None for other ops."""
    bus_factor: float | None = None
    """Bus factor of the collective, see `opreplay.replay.collectives.model.bus_factor`."""
    measure_s: float | None = None
    """Wall time of the measuring loop.

    The rest of the op's time was spent on its arguments and on communication. If an op was stopped because the time of
    the run was over, this is the op's whole time.
    """
    attempts: int = 1
    """Number of attempts: 2 if the op failed next to other ops, and this is the outcome of a retry without them."""
    suspect: bool = False
    """Whether the op raised an error that a process in a bad state could also raise."""
    poisoned: bool = False
    """Whether the device accepts no more work from this process."""


def unable(reason: Reason) -> Outcome:
    """Return the outcome of an op that was not replayed."""
    return Outcome(status=reason.status, reason=reason)


def is_lost(reason: Reason | None) -> bool:
    """Check whether the outcome says nothing about the op, because its worker or a rank was stopped from outside."""
    return reason is not None and reason.kind in LOST


def refill_notes(assumptions: Iterable[Assumption]) -> tuple[str, ...]:
    """Return notes that say which values of an op a sequence had to refill before or after its calls."""
    return tuple(a.what for a in assumptions if a.argument == VALUES and a.what in (OUTSIDE_DOMAIN, NOT_FINITE))
