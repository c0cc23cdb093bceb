# pyright: strict
"""Compare the results of two calls on the same arguments. Has tolerances by dtype, and tells where results differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from opreplay.replay.arguments import tensors
from opreplay.replay.arguments.tensors import flattened
from opreplay.replay.execute.executors.torch.caches import copied
from opreplay.replay.ir.model import ReplayOp
from opreplay.replay.ir.verdicts import ValueCheck, ValueStatus, not_compared
from opreplay.replay.resolve.own_call import OwnCall

TOLERANCE: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.int8: 1.0,
    torch.uint8: 1.0,
}
"""Tolerance of each element type, relative to the sum of the element's magnitude and the root mean square of all
elements.

Sums may be reordered. The tolerance is therefore about ten times the rounding error for 16-bit types, a thousand times
for float32 and complex64, and more for longer types. For 8-bit (quantised) integers, it is a difference of 1. Other
integers and bools must be equal.
"""
EIGHT_BIT_FLOATS = 0.25
"""Tolerance of float8 types. Their relative rounding error is up to one eighth."""


class Verdict(NamedTuple):
    """Outcome of a comparison of results."""

    differs: str
    """The first difference and its position; "" if there is none."""
    results: int


def values_of_call(call: partial[Any], op: ReplayOp, own_call: OwnCall, function: Callable[..., Any]) -> ValueCheck:
    """Compare the results of `call`, which replays `op`, with those of `function`, the op's own implementation.

    Both use the same argument values. Arguments that `call` writes to are not restored.
    """
    if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
        return not_compared("its results are random")
    arguments = _in_order(call, op)
    args = _copies(own_call.op, arguments)
    try:
        expected = function(
            *(args[arg.name] for arg in own_call.op.args if not arg.keyword_only),
            **{arg.name: args[arg.name] for arg in own_call.op.args if arg.keyword_only},
        )
    except Exception as error:
        return not_compared(f"its own implementation raises {type(error).__name__} on these arguments")
    actual = call()
    written = [(args[arg.name], value) for arg, value in zip(own_call.op.args, arguments, strict=False) if arg.mutated]
    pairs = [(a, b) for values in written for a, b in zip(*map(flattened, values), strict=False)]
    verdict = compare_results(expected, actual, pairs)
    status: ValueStatus = "differs" if verdict.differs else "agrees"
    return ValueCheck(status=status, against=own_call.against, detail=verdict.differs, results=verdict.results)


def _copies(op: ReplayOp, arguments: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of `op` by name. Tensors are copies of `arguments`, matched in order. Numbers come from the
    plan.
    """
    memo: dict[int, Any] = {}
    device = next((t.device for t in flattened(arguments) if isinstance(t, torch.Tensor)), torch.device("cpu"))
    return {
        arg.name: copied(arguments[place], memo)
        if arg.tensors and place < len(arguments)
        else tensors.scalar_value(arg, device=device)
        for place, arg in enumerate(op.args)
    }


def _in_order(call: partial[Any], op: ReplayOp) -> list[Any]:
    """Return the values passed to a prepared op, in the order of the plan's arguments."""
    positional = iter(call.args)
    return [call.keywords[arg.name] if arg.keyword_only else next(positional) for arg in op.args]


def compare_results(expected: Any, actual: Any, written: Sequence[tuple[Any, Any]]) -> Verdict:
    """Compare the results of the op's own implementation with those of the replay.

    `written` has pairs of the values that both wrote to arguments. These are compared, too.
    """
    expected_results, actual_results = list(flattened(expected)), list(flattened(actual))
    if len(actual_results) < len(expected_results):
        return Verdict(f"only {len(actual_results)} of {len(expected_results)} results are returned", 0)
    pairs = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(expected_results, actual_results, strict=False))]
    pairs += [(f"written argument {i}", a, b) for i, (a, b) in enumerate(written)]
    for what, a, b in pairs:
        if why := difference(a, b):
            return Verdict(f"{what}: {why}", len(pairs))
    return Verdict("", len(pairs))


def difference(expected: Any, actual: Any) -> str:
    """Describe how two results differ by more than the tolerance of their dtype; "" if they agree."""
    if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
        return f"{type(actual).__name__} instead of {type(expected).__name__}"
    if not isinstance(expected, torch.Tensor):
        expected, actual = torch.tensor(expected), torch.tensor(actual)
    if expected.shape != actual.shape:
        return f"sizes {list(actual.shape)} instead of {list(expected.shape)}"
    if expected.dtype != actual.dtype:
        return f"{actual.dtype} instead of {expected.dtype}"
    if expected.layout != actual.layout or expected.layout != torch.strided:
        same = expected.layout == actual.layout and torch.equal(expected, actual)
        return "" if same else "layout or values differ"
    return _of_values(expected.detach(), actual.detach())


def _of_values(expected: torch.Tensor, actual: torch.Tensor) -> str:
    allowed_share = TOLERANCE.get(expected.dtype, 0.0)
    if expected.is_floating_point() and expected.itemsize == 1:
        allowed_share = EIGHT_BIT_FLOATS
    if not expected.numel():
        return ""
    if expected.is_quantized:
        expected, actual = expected.int_repr(), actual.int_repr()
    mismatches = _mismatches(expected, actual, allowed_share)
    count = int(mismatches.sum())
    if not count:
        return ""
    first = tuple(int(index) for index in mismatches.nonzero()[0])
    there = f"{_shown(actual[first])} instead of {_shown(expected[first])} at {list(first)}"
    tolerance = f", tolerance {allowed_share:g}" if allowed_share else ""
    return f"{count:,} of {expected.numel():,} elements differ, {there}{tolerance}"


def _mismatches(expected: torch.Tensor, actual: torch.Tensor, allowed_share: float) -> torch.Tensor:
    """Return a bool mask of elements that differ by more than the tolerance."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    is_integer = not (expected.is_floating_point() or expected.is_complex())
    if is_integer and not allowed_share:  # a float would round 64-bit integers
        return expected != actual
    a, b = expected.to(wide), actual.to(wide)
    error = (a - b).abs()
    if is_integer:
        return error > allowed_share
    finite = a.isfinite()
    magnitudes = a[finite].abs()
    scale = math.sqrt(float((magnitudes * magnitudes).mean())) if magnitudes.numel() else 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    return ~same & (~finite | ~(error <= allowed_share * (a.abs() + scale)))


def _shown(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.4g}" if isinstance(item, float) else str(item)
