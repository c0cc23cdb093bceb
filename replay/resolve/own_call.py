# pyright: strict
"""Finds the call of a recorded op's own implementation.

Its results are compared with those of a substitute. `opreplay.replay.execute.executors.torch.values` does the
comparison.
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
from opreplay.replay.resolve.names import candidates, policy_verdict
from opreplay.replay.resolve.policy import Policy

TORCHS = frozenset({"aten", "prims", "quantized", "prim"})
"""Namespaces whose ops are implemented by torch itself."""
UNINITIALIZED = ("empty", "new_empty", "resize")
"""If the name of an op begins like this, its results are uninitialized memory."""


class OwnCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the recorded op's own implementation."""

    op: ReplayOp
    against: Against


def own_call(op: ReplayOp, policy: Policy) -> OwnCall | ValueCheck:
    """Return the call of the own implementation of an op that a substitute runs.

    If nothing can be compared, returns a `ValueCheck` that says why. Arguments keep their positions: the n-th of the
    call is the n-th of `op`.
    """
    verdict = _verdict_before_lookup(op)
    if verdict is not None:
        return verdict
    overloads = candidates(op.name, policy)
    if overloads.reason is not None:
        return not_compared(str(overloads.reason))
    if overloads.function is not None:
        return not_compared(f"{op.name} has no schema")
    specs = [spec for spec in overloads.specs if policy_verdict(spec) is None]
    match = best_match(specs, [_recorded(arg) for arg in op.args])
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
            resolved_by=overloads.resolved_by,
            via=overloads.via,
            overload=match.spec.overload,
            schema=match.spec.text,
            args=_with_values(args, op.args),
        ),
        against="stand-in" if overloads.resolved_by == "reference" else against,
    )


def _verdict_before_lookup(op: ReplayOp) -> ValueCheck | None:
    """Return the verdict for an op if it follows without a schema; None otherwise.

    It follows if the op runs its own implementation, or if nothing can be compared with it.
    """
    if op.resolved_by == "reference":
        return not_compared("the reference implementation ran, because the library is not installed")
    if op.resolved_by == "equivalent":
        return not_compared(f"{op.name} is not available here, so {op.via or 'an equivalent'} ran")
    if op.via is not None and op.via != op.name:
        return not_compared(f"the call was converted to {op.via}, with other arguments")
    if op.resolved_by != "executor":
        return ValueCheck(status="own")
    if op.name.partition("::")[2].startswith(UNINITIALIZED):
        return not_compared("its results are not initialised")
    return None


def _recorded(arg: ReplayArg) -> RecordedArg:
    """Return a plan's argument in the form of a recorded one, for matching it to an overload."""
    if arg.type == "Tensor" and any(arg.tensors):
        return RecordedArg(kind="tensor", tensor=arg.tensors[0])
    if arg.type == "Tensor[]" and (arg.tensors or arg.value is not None):
        return RecordedArg(kind="tensors", tensors=arg.tensors)
    if arg.type == "Tensor" or arg.value is None:
        return ABSENT
    if isinstance(arg.value, tuple):
        return RecordedArg(kind="scalars", value=arg.value)
    return RecordedArg(kind="scalar", value=MISSING if isinstance(arg.value, str) else arg.value)


def _with_values(args: Sequence[ReplayArg], sources: Sequence[ReplayArg]) -> tuple[ReplayArg, ...]:
    """Return `args` with the values of `sources` at the same positions, where the types are equal."""
    valued = [
        msgspec.structs.replace(arg, value=source.value) if arg.type == source.type and not arg.tensors else arg
        for arg, source in zip(args, sources, strict=False)
    ]
    return (*valued, *args[len(valued) :])
