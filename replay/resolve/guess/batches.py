# pyright: strict
"""Guesses arguments of the batched call that `torch.vmap` makes within the recorded call for one sample.

The tensors of the batched call have the batch dimension first (aten/src/ATen/functorch/BatchRules*.cpp). Dimensions and
sizes of the call for one sample are converted accordingly. All arguments are taken from the call for one sample. The
reason is that the calls that give hints follow this call, not the batched call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec

from opreplay.replay.ir.call import Call
from opreplay.replay.ir.model import ReplayArg
from opreplay.replay.ir.recorded_call import MISSING, recorded_args
from opreplay.replay.resolve.guess.values import Context, Guess, Shape
from opreplay.replay.resolve.match import Match, best_match
from opreplay.replay.resolve.schema import ArgSpec, OpSpec, specs_of
from opreplay.traces.literals import is_whole_numbers

Usual = Callable[[OpSpec, ArgSpec, Call, Context], Guess | None]
_DIMS = frozenset({"dim", "dims", "dim0", "dim1", "start_dim", "end_dim", "dimension", "source", "destination"})
_SIZES = frozenset({"size", "shape", "input_sizes", "self_sizes", "sizes"})
_NEW_DIMS = frozenset({"aten::unsqueeze", "aten::unsqueeze_", "aten::stack"})
"""Ops whose dimension argument refers to the result, which has one more dimension."""
_PARTS = frozenset({"aten::unflatten"})
"""Ops whose argument with sizes describes the parts of a single dimension."""


def of_one_sample(spec: OpSpec, arg: ArgSpec, known: Call, context: Context, usual: Usual) -> Guess | None:
    """Guess an argument of a batched call from the call for one sample; None if vmap did not make this call for a
    batch.

    `usual` guesses arguments of the call for one sample that are not recorded.
    """
    around, own = context.relatives(), known.first_tensor()
    if around.parent is None or around.parent.name != spec.name or around.above is None or own is None:
        return None
    if arg.kind in ("Tensor", "Tensor[]"):
        return None
    match = best_match(specs_of(spec.name), recorded_args(around.parent))
    if match is None or match.spec.overload != spec.overload:
        return None
    sample_known = recorded_by_name(match)
    sample = sample_known.first_tensor()
    if sample is None or not own.shape or own.shape[1:] != sample.shape or own.dtype != sample.dtype:
        return None
    of_sample = msgspec.structs.replace(context, relatives=cache(partial(around.above, 0)))
    guessed = _of_sample(match.spec, arg, sample_known, of_sample, usual)
    if guessed is None:
        return None
    batched = _with_batch(spec.name, arg, guessed.value, sample.shape, own.shape[0])
    return (
        None
        if batched is MISSING
        else msgspec.structs.replace(guessed, value=batched, why=f"the same as for one sample: {guessed.why}")
    )


def _of_sample(spec: OpSpec, wanted: ArgSpec, known: Call, context: Context, usual: Usual) -> Guess | None:
    """Guess an argument of the call for one sample, after filling in the arguments that precede it."""
    for arg in spec.args:
        if arg.name in known:
            if arg.name == wanted.name:
                return Guess(value=known[arg.name].value, why="recorded")
            continue
        guessed = usual(spec, arg, known, context) if arg.kind not in ("Tensor", "Tensor[]") else None
        if arg.name == wanted.name:
            return guessed
        if guessed is not None:
            known[arg.name] = ReplayArg(name=arg.name, type=arg.kind, value=guessed.value)
    return None


def recorded_by_name(match: Match) -> Call:
    """Return the recorded tensors and numbers of a call, with the argument names of its schema."""
    known = Call()
    for arg, recorded in zip(match.spec.args, match.recorded, strict=False):
        if recorded.tensor is not None:
            known[arg.name] = ReplayArg(name=arg.name, type="Tensor", tensors=(recorded.tensor,))
        elif recorded.kind in ("scalar", "scalars") and recorded.value is not MISSING:
            known[arg.name] = ReplayArg(name=arg.name, type=arg.kind, value=recorded.value)
    return known


def _with_batch(op: str, arg: ArgSpec, value: Any, sample: Shape, batch: int) -> Any:
    """Convert an argument's value for one sample to its value for the batch.

    The result is MISSING if the value for the batch is unknown, e.g. for a 0-dim sample.
    """
    rank = len(sample) + (op in _NEW_DIMS)
    if arg.name in _DIMS and arg.kind in ("int", "int[]"):
        if not rank:
            return MISSING
        if isinstance(value, int) and not isinstance(value, bool):
            return value % rank + 1
        if is_whole_numbers(value):
            dims = tuple(d % rank + 1 for d in value) or tuple(range(1, rank + 1))
            return (0, *dims) if arg.name == "dims" and len(dims) == rank and op == "aten::permute" else dims
        return tuple(range(1, rank + 1)) if value is None and arg.kind == "int[]" else MISSING
    if arg.name in _SIZES and arg.kind == "int[]" and op not in _PARTS:
        return (batch, *value) if is_whole_numbers(value) else MISSING
    return value
