# pyright: strict
"""Classes for the results of calls that were given as text, with one call per size of a sweep."""

from __future__ import annotations

import msgspec

from opreplay.replay.results.records import L2State, OpResult


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call."""

    written: str
    """The call as given, with names of sizes."""
    sizes: dict[str, int]
    """Name of a size → its value."""
    call: str
    """The full call, with every argument by name."""
    result: OpResult
    too_large_for: tuple[str, ...] = ()
    """Simulated devices whose memory is too small for the call's arguments and results."""
    assumed: tuple[str, ...] = ()
    """What the cost rule of the prediction assumes or leaves out."""
    unpredicted: tuple[str, ...] = ()
    """Why predictions are missing: "no prediction for 910b3: UB: 260 KiB needed, ...".

    Either a user's function or program does not fit the call, or torch rejects the call.
    """


class Cases(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all calls of one command."""

    cases: tuple[Case, ...]
    device: str | None
    """Device on which the calls were measured; None if nothing was measured."""
    environment: dict[str, object] = {}
    """Facts about the machine, if something was measured."""
    socs: dict[str, str]
    """Simulated devices → their versions, in the requested order."""
    l2: L2State

    @property
    def complete(self) -> bool:
        """Check whether every requested measurement and prediction of the calls was made."""
        return not any(self.failed(case) or case.unpredicted for case in self.cases)

    def failed(self, case: Case) -> bool:
        """Check whether a call failed: it was not measured or, if nothing is measured, has no prediction."""
        return case.result.reason is not None and (self.device is not None or not case.result.simulated)
