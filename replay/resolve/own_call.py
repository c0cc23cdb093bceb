# pyright: strict
"""Which call an op that something else runs is held against: how the recorded op's own implementation is called.

Owns no tensor: the comparison is `opreplay.replay.execute.executors.torch.values`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.replay.ir.recorded_call import ABSENT, MISSING, RecordedArg
from opreplay.replay.ir.verdicts import Against, ValueCheck, not_compared
from opreplay.replay.resolve.bind import Unbound, bind
from opreplay.replay.resolve.guess.values import Context
from opreplay.replay.resolve.match import best_match
from opreplay.replay.resolve.names import candidates, refused
from opreplay.replay.resolve.policy import Policy

TORCHS = frozenset({"aten", "prims", "quantized", "prim"})
"""Namespaces whose own implementation is torch's."""
UNINITIALIZED = ("empty", "new_empty", "resize")
"""Starts of names of ops whose results hold what the memory held."""


class OwnCall(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded op as its own implementation is called."""

    op: ReplayOp
    against: Against


def own_call(op: ReplayOp, policy: Policy) -> OwnCall | ValueCheck:
    """How the own implementation of an op that something else runs is called, or the verdict where there is none.

    The arguments stay in their places: the n-th of the call is the n-th of `op`.
    """
    if op.resolved_by == "reference":
        return not_compared("a stand-in ran, and the library is not here")
    if op.resolved_by == "equivalent":
        return not_compared(f"{op.name} is not here; {op.via or 'an equivalent'} ran")
    if op.via is not None and op.via != op.name:
        return not_compared(f"it was converted to {op.via}, with other arguments")
    if op.resolved_by != "executor":
        return ValueCheck(status="own")
    if op.name.partition("::")[2].startswith(UNINITIALIZED):
        return not_compared("its results are not initialised")
    found = candidates(op.name, policy)
    if found.reason is not None:
        return not_compared(str(found.reason))
    if found.function is not None:
        return not_compared(f"{op.name} has no schema")
    match = best_match([spec for spec in found.specs if refused(spec) is None], [_recorded(arg) for arg in op.args])
    if match is None:
        return not_compared(f"no overload of {op.name} takes the executor's arguments")
    try:
        args, _ = bind(match, Context())
    except Unbound as stopped:
        return not_compared(str(stopped.reason))
    against: Against = "torch" if op.name.partition("::")[0] in TORCHS else "library"
    return OwnCall(
        op=msgspec.structs.replace(
            op,
            resolved_by=found.resolved_by,
            via=found.via,
            overload=match.spec.overload,
            schema=match.spec.text,
            args=_with_values(args, op.args),
        ),
        against="stand-in" if found.resolved_by == "reference" else against,
    )


def _recorded(arg: ReplayArg) -> RecordedArg:
    """An argument of the plan as one that was recorded, to find the overload that takes it."""
    if arg.type == "Tensor":
        meta = arg.tensors[0] if arg.tensors else None
        return ABSENT if meta is None else RecordedArg(kind="tensor", tensor=meta)
    if arg.type == "Tensor[]":
        return ABSENT if arg.value is None and not arg.tensors else RecordedArg(kind="tensors", tensors=arg.tensors)
    if arg.value is None:
        return ABSENT
    if isinstance(arg.value, tuple):
        return RecordedArg(kind="scalars", value=arg.value)
    return RecordedArg(kind="scalar", value=MISSING if isinstance(arg.value, str) else arg.value)


def _with_values(args: Sequence[ReplayArg], given: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """The bound arguments with the values that the executor got, where the types are the same."""
    made = [
        msgspec.structs.replace(arg, value=of.value) if arg.type == of.type and not arg.tensors else arg
        for arg, of in zip(args, given, strict=False)
    ]
    return (*made, *args[len(made) :])
