# pyright: strict
"""Results of written calls, one per size of a sweep: data types only."""

from __future__ import annotations

import msgspec

from opreplay.replay.results.records import L2State, OpResult


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call."""

    written: str
    """As given, with names of sizes."""
    sizes: dict[str, int]
    """What the names stand for."""
    call: str
    """In full, with every argument that its overload was given by name."""
    result: OpResult
    too_large_for: tuple[str, ...] = ()
    """Simulated devices whose memory does not hold the call's arguments and results."""
    unpredicted: tuple[str, ...] = ()
    """Why there is none: a user's function or program does not fit the call, or torch refuses it when it is run.

    "no prediction for 910b3: UB: 260 KiB needed, ..."
    """


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all calls of one command."""

    cases: tuple[Case, ...]
    device: str | None
    """Where they were measured; None where nothing was."""
    environment: dict[str, object] = {}
    """Of the machine, where something was measured."""
    socs: dict[str, str]
    """Simulated devices and their versions, in the order asked for."""
    l2: L2State

    @property
    def complete(self) -> bool:
        """Check whether every call was replayed and predicted, as far as that was requested."""
        return not any(self.failed(case) or case.unpredicted for case in self.cases)

    def failed(self, case: Case) -> bool:
        """Check whether a call has a reason: why it was not measured or, if nothing is measured, why it has no
        prediction.
        """
        return case.result.reason is not None and (self.device is not None or not case.result.simulated)
