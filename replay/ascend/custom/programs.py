# pyright: strict
"""Tile programs: user-written kernels that define an op's cost, registered by op and tried before the built-in rules.

Contains the table of programs; `replay.tile`, a layer above, computes the costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from opreplay.initializers.user_table import UserFunction, UserTable
from opreplay.replay.ascend.custom.registrations import op_name
from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.ir.kernel import State
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.results.records import Simulated

Coster = Callable[[ReplayOp, DeviceProfile, State], Simulated | None]
"""Function that returns the cost of a call; None if the program does not cover the call."""

PROGRAMS: UserTable[UserFunction] = UserTable("tile program", remedy="an op can have only one program")


def register_program_cost(op: str, function: Coster) -> None:
    """Register a tile program as the cost of an op, or of one overload ("aten::add.Tensor"), on all devices.

    Raises Taken if the op already has a program.
    """
    PROGRAMS.add(UserFunction(ops=(op,), function=function))


def program_cost(op: ReplayOp, device: DeviceProfile, state: State) -> Simulated | None:
    """Return the cost of a call by the tile program registered for its op; None if no program covers the call.

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
