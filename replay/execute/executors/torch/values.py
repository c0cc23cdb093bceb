# pyright: strict
"""Results of a call beside those of another on the same arguments: tolerances by type, and where they differ."""

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
"""Element type → what an element may differ by: a share of itself plus the same share of the root mean square: some
ten times the rounding of a 16-bit type and a thousand times that of longer ones, since sums may be taken in another
order; of 8-bit integers, which quantised values are, one step. Other integers and bools must be the same."""
EIGHT_BIT_FLOATS = 0.25
"""The same of float8 types, whose rounding is an eighth."""


class Verdict(NamedTuple):
    """What a comparison came to."""

    differs: str
    """Where the first difference is; "" where there is none."""
    results: int


def values_of_call(call: partial[Any], op: ReplayOp, own: OwnCall, function: Callable[..., Any]) -> ValueCheck:
    """Results of `call`, which runs `op`, beside those of `function`, its own implementation, on the same arguments.

    Arguments that the call writes to hold what it wrote afterwards.
    """
    if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
        return not_compared("its results are random")
    given = _in_order(call, op)
    memo: dict[int, Any] = {}
    device = next((t.device for t in flattened(given) if isinstance(t, torch.Tensor)), torch.device("cpu"))
    args = {
        arg.name: copied(given[place], memo)
        if arg.tensors and place < len(given)
        else tensors.scalar_value(arg, device=device)
        for place, arg in enumerate(own.op.args)
    }
    try:
        expected = function(
            *(args[arg.name] for arg in own.op.args if not arg.keyword_only),
            **{arg.name: args[arg.name] for arg in own.op.args if arg.keyword_only},
        )
    except Exception as error:
        return not_compared(f"its own implementation raises {type(error).__name__} on these arguments")
    got = call()
    written = [(args[arg.name], given[i]) for i, arg in enumerate(own.op.args) if arg.mutated and i < len(given)]
    pairs = [(a, b) for one, other in written for a, b in zip(flattened(one), flattened(other), strict=False)]
    verdict = compared(expected, got, pairs)
    status: ValueStatus = "differs" if verdict.differs else "agrees"
    return ValueCheck(status=status, against=own.against, detail=verdict.differs, results=verdict.results)


def _in_order(call: partial[Any], op: ReplayOp) -> list[Any]:
    """The values that a prepared op is called with, in the order of the plan's arguments."""
    positional = iter(call.args)
    return [call.keywords[arg.name] if arg.keyword_only else next(positional) for arg in op.args]


def compared(expected: Any, got: Any, written: Sequence[tuple[Any, Any]]) -> Verdict:
    """Results of the own implementation and of the replay, and pairs of what both wrote into arguments."""
    theirs, ours = list(flattened(expected)), list(flattened(got))
    if len(ours) < len(theirs):
        return Verdict(f"{len(ours)} of {len(theirs)} results are returned", 0)
    pairs = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(theirs, ours, strict=False))]
    pairs += [(f"written argument {i}", a, b) for i, (a, b) in enumerate(written)]
    for what, a, b in pairs:
        if why := difference(a, b):
            return Verdict(f"{what}: {why}", len(pairs))
    return Verdict("", len(pairs))


def difference(expected: Any, got: Any) -> str:
    """How two results differ beyond the tolerance of their type; "" where they do not."""
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        if isinstance(expected, torch.Tensor) or isinstance(got, torch.Tensor):
            return f"{type(got).__name__} in place of {type(expected).__name__}"
        expected, got = torch.tensor(expected), torch.tensor(got)
    if expected.shape != got.shape:
        return f"sizes {list(got.shape)} in place of {list(expected.shape)}"
    if expected.dtype != got.dtype:
        return f"{got.dtype} in place of {expected.dtype}"
    if expected.layout != got.layout or expected.layout != torch.strided:
        return "" if expected.layout == got.layout and torch.equal(expected, got) else "another layout or other values"
    return _of_values(expected.detach(), got.detach())


def _of_values(expected: torch.Tensor, got: torch.Tensor) -> str:
    allowed_share = TOLERANCE.get(expected.dtype, 0.0)
    if expected.is_floating_point() and expected.itemsize == 1:
        allowed_share = EIGHT_BIT_FLOATS
    if not expected.numel():
        return ""
    if expected.is_quantized:
        expected, got = expected.int_repr(), got.int_repr()
    wide = torch.complex128 if expected.is_complex() else torch.float64
    if not (expected.is_floating_point() or expected.is_complex()):
        # 64-bit integers that a float would round must still be the same.
        apart = (expected != got) if not allowed_share else (expected.to(wide) - got.to(wide)).abs() > allowed_share
    else:
        a, b = expected.to(wide), got.to(wide)
        finite = a.isfinite()
        kept = a[finite].abs()
        scale = math.sqrt(float((kept * kept).mean())) if kept.numel() else 0.0
        off = (a - b).abs()
        same = (a == b) | (a.isnan() & b.isnan())
        apart = ~same & (~finite | ~(off <= allowed_share * (a.abs() + scale)))
    count = int(apart.sum())
    if not count:
        return ""
    first = tuple(int(index) for index in apart.nonzero()[0])
    there = f"{_shown(got[first])} in place of {_shown(expected[first])} at {list(first)}"
    tolerance = f", tolerance {allowed_share:g}" if allowed_share else ""
    return f"{count:,} of {expected.numel():,} elements differ, {there}{tolerance}"


def _shown(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.4g}" if isinstance(item, float) else str(item)
