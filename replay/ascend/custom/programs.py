# pyright: strict
"""Kernels of users' own that say what an op costs: registered by op, asked before the built-in rules.

Owns the table and the values; what makes the costs is above (`replay.tile`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.replay.ascend.custom.registrations import op_name
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import Confidence, State
from opreplay.replay.ir.model import ReplayOp


class ProgramCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of one call."""

    time_us: float
    low_us: float
    high_us: float
    """80 % band."""
    terms_us: dict[str, float]
    bound: str
    confidence: Confidence
    extrapolated: bool
    """It lies far outside of what was measured of the program."""
    source: str
    """ "function (file.py:line)"."""


Coster = Callable[[ReplayOp, DeviceProfile, State], "ProgramCost | None"]
"""None where the program is not for this call."""

PROGRAMS: UserTable[UserFunction] = UserTable("tile program", remedy="an op has one program")


def register_program_cost(op: str, function: Coster) -> None:
    """Let a program say what an op, or one overload of it ("aten::add.Tensor"), costs on all devices.

    Raises Taken where another one does."""
    PROGRAMS.add(UserFunction(ops=(op,), function=function))


def program_cost(op: ReplayOp, device: DeviceProfile, state: State) -> ProgramCost | None:
    """What the program that is registered for an op says of this call; None where there is none, or not for it.

    Raises CustomOpError for a call that the program does not fit.
    """
    if not PROGRAMS or "::" not in op.name or (op.reason is not None and not op.args):
        return None
    # A program of the overload goes before one of the op.
    names = [
        base if op.overload is None else f"{base}.{op.overload}" for base in (op_name(op.called), op_name(op.name))
    ]
    program = PROGRAMS.find(*(name.removesuffix(".") for name in names), op_name(op.called), op_name(op.name))
    return None if program is None else cast("Coster", program.function)(op, device, state)
