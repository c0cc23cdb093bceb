# pyright: strict
"""Check the results of a user's function for an op.

A wrong number of results is an error. Shared memory gives a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from opreplay.replay.arguments.tensors import tensors_in
from opreplay.replay.ir.model import Assumption, Reason, ReplayOp
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.replay.resolve.user.executors import EXECUTORS
from opreplay.traces.names import plural

if TYPE_CHECKING:
    import torch


def result_notes(op: ReplayOp, returned: Any, args: Mapping[str, Any]) -> tuple[Assumption, ...]:
    """Return notes on the results of a user's function for an op.

    A result that shares memory with an argument or another result gives a note, because an op that copies takes longer.
    If the schema allows the sharing, there is no note. Raises NotReplayable if a function of the form (inputs, attrs)
    returns a different number of tensors than the schema or the recording has.
    """
    results = tensors_in(returned)
    returns = _returns(op)
    expected = _expected(op, returns)
    executor = EXECUTORS.find(op.called)
    if expected is not None and executor is not None and len(results) != expected:
        said = f"{executor.shown} returned {plural(len(results), 'tensor')}, but {op.name} has {expected}"
        if executor.lists:
            raise NotReplayable(Reason("failed", said))
        return (Assumption(argument="*", what=said),)
    if any(getattr(each, "alias_info", None) is not None for each in returns or ()):
        return ()
    owners = {_place(tensor): name for name, value in args.items() for tensor in tensors_in(value) if tensor.numel()}
    written = {arg.name for arg in op.args if arg.mutated}
    notes: list[str] = []
    for number, tensor in enumerate(results):
        owner = owners.setdefault(_place(tensor), f"result {number}") if tensor.numel() else f"result {number}"
        if owner not in (f"result {number}", *written):
            notes.append(f"result {number} shares the memory of {owner}: an op that copies takes longer")
    return tuple(Assumption(argument="*", what=note) for note in notes)


def _returns(op: ReplayOp) -> Sequence[Any] | None:
    """Return the results declared in the op's schema; None without a readable schema."""
    if op.schema is None:
        return None
    import torch

    try:
        return cast("Sequence[Any]", torch._C.parse_schema(op.schema).returns)  # pyright: ignore[reportPrivateUsage]
    except RuntimeError:
        return None


def _expected(op: ReplayOp, returns: Sequence[Any] | None) -> int | None:
    """Return the number of tensors that the op returns; None if unknown or variable."""
    if returns is not None:
        return len(returns) if all(str(each.type) == "Tensor" for each in returns) else None
    return None if op.recorded_outputs is None else len(op.recorded_outputs)


def _place(tensor: torch.Tensor) -> int:
    """Return the memory address of a tensor's storage."""
    import torch

    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)
