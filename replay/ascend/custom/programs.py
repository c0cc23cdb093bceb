# pyright: strict
"""User-written kernels that define the cost of an op: registered by op, tried before the built-in rules.

Owns the table and the values; `replay.tile`, a layer above, computes the costs.
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
    """A program's cost for one call."""

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
    """Register a program for the cost of an op, or of one overload ("aten::add.Tensor"), on all devices.

    Raises Taken if the op already has a program.
    """
    PROGRAMS.add(UserFunction(ops=(op,), function=function))


def program_cost(op: ReplayOp, device: DeviceProfile, state: State) -> ProgramCost | None:
    """Return the cost of this call from the program registered for its op; None without a program that covers the call.

    Raises CustomOpError for a call that does not fit the program.
    """
    if not PROGRAMS or "::" not in op.name or (op.reason is not None and not op.args):
        return None
    # A program of the overload goes before one of the op.
    names = [
        base if op.overload is None else f"{base}.{op.overload}" for base in (op_name(op.called), op_name(op.name))
    ]
    program = PROGRAMS.find(*(name.removesuffix(".") for name in names), op_name(op.called), op_name(op.name))
    return None if program is None else cast("Coster", program.function)(op, device, state)
