# pyright: strict
"""Kernels of users' own that say what an op costs: registered by op, asked before the built-in rules.

Owns the table and the values; what makes the costs is above (`replay.tile`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from opreplay.replay.ascend.custom.registrations import Registry
from opreplay.replay.ascend.kernel import State
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.model import ReplayOp


class ProgramCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of one call."""

    time_us: float
    terms_us: dict[str, float]
    bound: str
    source: str
    """ "function (file.py:line)"."""


Coster = Callable[[ReplayOp, DeviceProfile, State], "ProgramCost | None"]
"""None where the program is not for this call."""

PROGRAMS: Registry[Coster] = Registry("tile program")


def register_program_cost(op: str, function: Coster) -> None:
    """Let a program say what an op costs on all devices. Raises ValueError where another one does."""
    PROGRAMS.add(op, None, function, override=False)


def program_cost(op: ReplayOp, device: DeviceProfile, state: State) -> ProgramCost | None:
    """What the program that is registered for an op says of this call; None where there is none, or not for it.

    Raises CustomOpError for a call that the program does not fit.
    """
    if not PROGRAMS or "::" not in op.name or (op.reason is not None and not op.args):
        return None
    function = PROGRAMS.find(op.called, None) or PROGRAMS.find(op.name, None)
    return None if function is None else function(op, device, state)
