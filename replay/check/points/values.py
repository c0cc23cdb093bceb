# pyright: strict
"""Whether results are right: against the reference over sizes, layouts, values, dtypes and broadcasts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from opreplay.replay.check import variants
from opreplay.replay.check.argued import argued
from opreplay.replay.check.calling.calls import (
    Arguments,
    Bench,
    Results,
    contiguous,
    distinct,
    paired,
    reach_of,
    widened,
)
from opreplay.replay.check.calling.closeness import Distance, compare
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case, replaced
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import SMALLER_REFUSED, too_much
from opreplay.replay.check.points.settled import unsettled
from opreplay.replay.check.points.trials import Attempt, attempt, nothing, raised
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.model import TensorMeta

WHOLE = (torch.int32, torch.int64)
"""Dtypes of places in a tensor."""
TINY = 1e-30
"""In place of a zero, to see which sign a result has beside it."""
REFERENCE_REFUSES = "the reference refuses it"
MOST_REFUSED = 2
"""Cases of which no other sizes are taken either, after which none is looked for."""
SHAKES = 8
"""Ways in which arguments are rounded once more where results are whole numbers."""
FINE_ROUNDINGS = 4.0
"""Of float32 between the arguments and a number of 8 bits: a factor, its reciprocal, a product, constants."""
VARIED = 2
"""Cases whose variants are tried; of the others each is tried as it is."""


def correctness(bench: Bench) -> list[Attempt]:
    """Every case as it is, and the first ones with other sizes, layouts and values."""
    base = bench.compact_bases[0]
    made = [attempt(case, lambda case: against_reference(bench, case)) for case in _correctness_cases(bench)]
    return [*made, *unsettled(bench, base)]


def _correctness_cases(bench: Bench) -> Iterator[Case]:
    yield from bench.bases
    for base in bench.compact_bases[:VARIED]:
        yield from variants.sized(base)
        yield from variants.laid_out(base)
        yield from variants.shared(base)
        if bench.has_reference(base):
            for case in variants.ranked(base):
                yield case
                yield from (one for one in variants.laid_out(case) if one.kind == "outer dimensions swapped")
            yield from argued(base, bench.spec(base))
            yield from variants.valued(base)
    yield from variants.endless_rows(bench.compact_bases[0])


def layouts(bench: Bench) -> list[Case]:
    """The cases that are tried where only strides and memory matter."""
    return [
        case
        for base in bench.compact_bases[:VARIED]
        for case in (base, *variants.laid_out(base), *variants.shared(base))
    ]


def dtypes(bench: Bench) -> list[Attempt]:
    """Each dtype, at usual and at prime sizes."""
    base = bench.compact_bases[0]
    if variants.main_dtype(base) is None:
        return []
    cases = [
        variants.typed(one, dtype, f"{dtype}{suffix}")
        for dtype in variants.DTYPES
        if hasattr(torch, dtype)
        for one, suffix in ((base, ""), (variants.primes_of(base), " at prime sizes"))
    ]
    if bench.has_reference(base):
        cases += [
            dataclasses.replace(variants.typed(base, dtype, f"{dtype}, large values"), values="large")
            for dtype in ("float16", "bfloat16", "int32")
        ]
        cases += [
            dataclasses.replace(
                variants.typed(one, dtype, f"{dtype} in long rows"), values="positive", smaller=one.smaller
            )
            for dtype in ("float16", "bfloat16", "float32")
            for one in variants.long_rows(base)
        ]
    return [attempt(case, lambda case: against_reference(bench, case)) for case in cases]


def broadcast(bench: Bench) -> list[Attempt]:
    """One tensor smaller than the others, where there is a reference that says what that means."""
    base = bench.compact_bases[0]
    if not bench.has_reference(base):
        return [Attempt(base.text, lambda: nothing(base.text, "no reference says what broadcasting means (--against)"))]
    return [attempt(case, lambda case: against_reference(bench, case)) for case in variants.broadcast(base)]


def against_reference(bench: Bench, case: Case) -> Finding:
    """Results of one case held against the reference: in float64 where it can be had, and in the case's own dtypes.

    Where both refuse sizes that were made up, those that stand in their place are tried, until one call is taken.
    """
    found = _held(bench, case)
    if not case.instead or not _refused_by_both(found):
        return found
    taken = bench.facts_of_op.setdefault(f"sizes that {case.op.called} takes", ())
    if len(taken) >= MOST_REFUSED and not any(taken):
        return found
    last = next((int(place) for place in reversed(taken) if place), 0)
    # First what was taken the last time.
    for place in sorted(range(len(case.instead)), key=lambda place: place != last):
        other = _held(bench, case.instead[place])
        if not _refused_by_both(other):
            bench.facts_of_op[f"sizes that {case.op.called} takes"] = (*taken, str(place))
            return other
    bench.facts_of_op[f"sizes that {case.op.called} takes"] = (*taken, "")
    return found


def _refused_by_both(found: Finding) -> bool:
    refused = REFERENCE_REFUSES in found.detail or found.detail.startswith(SMALLER_REFUSED)
    return found.verdict == "not applicable" and refused


def _held(bench: Bench, case: Case) -> Finding:
    text = case.text
    if (why := too_much(bench, case)) is not None:
        return nothing(text, why)
    try:
        arguments = bench.arguments(case)
    except NotReplayable as stopped:
        return nothing(text, f"no arguments can be made: {stopped.reason}")
    if case.kind.startswith("expanded") and (name := _once_permutation(bench, case)) is not None:
        return nothing(text, f"{name} names each place once, which no expanded tensor does")
    same, refused = _reference(bench, case, arguments)
    try:
        mine = bench.call(case, arguments.copy())
    except Exception as error:  # ops raise anything
        if refused is not None:
            verdict = "fail" if case.kind in ("given", "recorded") else "not applicable"
            detail = f"{words(error)}; {REFERENCE_REFUSES}, too: {words(refused)}"
            return Finding(case=text, verdict="refused" if verdict == "fail" else "not applicable", detail=detail)
        if same is not None and not _fits_buffers(arguments, same):
            return nothing(text, f"the buffers are not those of the result: {words(error)}")
        if case.kind in ("given", "recorded"):
            # Not a variant of ours: a call that is wanted.
            return Finding(case=text, verdict="fail", detail=f"the op refuses the {case.kind} call: {words(error)}")
        if "=" in case.kind and str(error).strip():
            return Finding(case=text, verdict="refused", detail=words(error))
        return raised(text, error)
    if refused is not None:
        return nothing(text, f"{REFERENCE_REFUSES}: {words(refused)}")
    if same is not None and not _fits_buffers(arguments, same):
        return nothing(text, "the buffers are not those of the result")
    exact = same if case.values == "odd" else _exact(bench, case, arguments)
    if same is None and exact is None:
        return nothing(text, "there is nothing to hold it against")
    # Units in the last place say little of numbers that underflow.
    found = _judged(text, mine, exact, same, arguments, usual=case.values == "usual")
    whole = any(not one.dtype.is_floating_point for one in mine.all())
    if found.verdict == "fail" and found.error is not None and (case.values != "odd" or whole):
        # Is it what a rounding of the arguments, or sums along a row, come to?
        shaken = [] if exact is None else _all_shaken(bench, case, arguments, mine)
        longest = float(max((size for t in arguments.tensors() for size in t.shape), default=1))
        found = _judged(
            text,
            mine,
            exact,
            same,
            arguments,
            usual=case.values == "usual",
            shaken=shaken,
            terms=longest if _mixes(bench, case, arguments, mine) else 1.0,
        )
    if found.verdict == "pass" and case.values == "zeros" and same is not None and bench.has_reference(case):
        found = _signed(bench, case, mine, same, arguments) or found
    return found


def _once_permutation(bench: Bench, case: Case) -> str | None:
    """The name of an expanded argument that holds a permutation where it is contiguous; None without any."""

    def plain(meta: TensorMeta | None) -> TensorMeta | None:
        return None if meta is None else msgspec.structs.replace(meta, strides=None, storage_offset=0)

    args = tuple(msgspec.structs.replace(arg, tensors=tuple(map(plain, arg.tensors))) for arg in case.op.args)
    for name, tensor in bench.arguments(replaced(case, "contiguous", args)).named_tensors().items():
        meta = next(arg.tensors[0] for arg in case.op.args if arg.name == name)
        if tensor.dtype in WHOLE and tensor.dim() == 1 and meta is not None and 0 in (meta.strides or ()):
            places = torch.arange(tensor.numel(), device=tensor.device, dtype=tensor.dtype)
            if torch.equal(tensor.sort().values, places):
                return name
    return None


def _all_shaken(bench: Bench, case: Case, arguments: Arguments, mine: Results) -> list[Results]:
    """The reference on arguments that were rounded once more, in several ways: many where whole numbers are compared,
    which must be equal to one of them; numbers of 8 bits are rounded from float32, whatever the arguments are."""
    whole = [one.dtype for one in mine.all() if not one.dtype.is_floating_point]
    fine = any(dtype.itemsize == 1 for dtype in whole)
    made = [_shaken(bench, case, arguments, way, fine=fine) for way in range(SHAKES if whole else 2)]
    return [one for one in made if one is not None]


def _shaken(bench: Bench, case: Case, arguments: Arguments, way: int, *, fine: bool) -> Results | None:
    """The reference in float64 on arguments that were rounded once more: what lies within its distance from the exact
    results is as good as the arguments are. None where it cannot be had.

    Ways come in pairs of opposites. With `fine` the first two move all of one tensor up and all of the next one down,
    as a quotient moves most; the others move each element by chance.
    """
    wide = widened(arguments)
    generator = torch.Generator(device=bench.device).manual_seed(1 + way // 2)
    opposite, place = 1 - 2 * (way % 2), 0
    for before, tensor in zip(distinct(arguments), distinct(wide), strict=True):
        if not (before.dtype.is_floating_point and tensor.dtype.is_floating_point and before.itemsize > 1):
            continue
        eps = torch.finfo(before.dtype).eps
        if fine:
            eps = FINE_ROUNDINGS * min(eps, torch.finfo(torch.float32).eps)
        if fine and way < 2:
            up = torch.full_like(tensor, 1 - place % 2)
        else:
            up = torch.randint(0, 2, tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)
        tensor.mul_(1 + opposite * (up - 0.5) * eps)
        place += 1
    try:
        return bench.refer(case, wide)
    except Exception:  # nothing to compare with, then
        return None


def _mixes(bench: Bench, case: Case, arguments: Arguments, mine: Results) -> bool:
    """Whether one element of an argument is part of several results of the op, as in a scan or a normalisation."""
    other = contiguous(arguments)
    first = next((t for t in other.tensors() if t.dtype.is_floating_point and t.itemsize > 1 and t.numel() > 1), None)
    if first is None:
        return False
    first.view(-1)[0] = 2 * first.abs().nan_to_num(0.0, 0.0, 0.0).max() + 1
    try:
        pairs = paired(bench.call(case, other), mine) or []
    except Exception:  # it is not known, then
        return False
    return any(
        one.shape == before.shape and int(((one != before) & ~(torch.isnan(one) & torch.isnan(before))).sum()) > 1
        for one, before in pairs
    )


def _signed(bench: Bench, case: Case, mine: Results, same: Results, arguments: Arguments) -> Finding | None:
    """A finding where zeros have another sign than those of the reference; None where none has.

    Only those whose sign follows from the arguments': as that of results for tiny numbers in place of their zeros.
    """
    wide = widened(arguments)
    for tensor in wide.tensors():
        if tensor.dtype.is_floating_point and tensor.itemsize > 1:
            tensor.copy_(torch.where(tensor == 0, torch.copysign(torch.full_like(tensor, TINY), tensor), tensor))
    try:
        beside = paired(mine, bench.refer(case, wide)) or []
    except Exception:  # nothing tells the sign, then
        return None
    for (found, native), (_, near) in zip(paired(mine, same) or (), beside, strict=False):
        if not found.dtype.is_floating_point or found.itemsize < 2 or near.shape != found.shape:
            continue
        sure = (near != 0) & (torch.signbit(near) == torch.signbit(native))
        sure &= ~_either(near, arguments)
        other = (found == 0) & (native == 0) & sure & (torch.signbit(found) != torch.signbit(native))
        if bool(other.any()):
            index = tuple(int(i) for i in other.nonzero()[0])
            detail = f"{int(other.sum()):,} zeros have the wrong sign, at {index} it is {float(found[index])}"
            return Finding(case=case.text, verdict="fail", detail=detail)
    return None


def _either(near: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    """Where a result is one of several zeros of both signs, as a minimum is: which one it is is left open."""
    signs = [torch.zeros_like(near, dtype=torch.bool) for _ in range(2)]
    for tensor in arguments.tensors():
        if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.shape == near.shape:
            signs[0] |= (tensor == 0) & torch.signbit(tensor)
            signs[1] |= (tensor == 0) & ~torch.signbit(tensor)
    return signs[0] & signs[1] & (near.abs() == TINY)


def _fits_buffers(arguments: Arguments, wanted: Results) -> bool:
    """Whether the tensors that the op writes to have the shapes of the reference's results, which sized them anew."""
    buffers = [value.shape for name, value in arguments.named_tensors().items() if name in arguments.written]
    shapes = [one.shape for one in wanted.returned]
    return not buffers or not shapes or all(shape in shapes for shape in buffers)


def _reference(bench: Bench, case: Case, arguments: Arguments) -> tuple[Results | None, BaseException | None]:
    """The reference in the case's own dtypes; the op itself on contiguous copies where there is no other."""
    try:
        if bench.has_reference(case):
            return bench.refer(case, arguments.copy()), None
        return bench.call(case, contiguous(arguments)), None
    except Exception as error:  # references raise anything
        return None, error


def _exact(bench: Bench, case: Case, arguments: Arguments) -> Results | None:
    """The reference in float64; None where it does not take it, or computes something random."""
    operator = bench.operator(case)
    if operator is not None and torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    wide = widened(arguments)
    if all(a.dtype == b.dtype for a, b in zip(arguments.tensors(), wide.tensors(), strict=True)):
        return None
    try:
        return bench.refer(case, wide)
    except Exception:  # nothing to compare with, then
        return None


def _judged(
    text: str,
    mine: Results,
    exact: Results | None,
    same: Results | None,
    arguments: Arguments,
    *,
    usual: bool,
    shaken: Sequence[Results] = (),
    terms: float = 1.0,
) -> Finding:
    """All results of one call against those of the reference."""
    wanted = same if same is not None else exact
    assert wanted is not None
    pairs = paired(mine, wanted)
    if pairs is None:
        counts = f"{len(mine.all())} tensors, the reference {len(wanted.all())}"
        return Finding(case=text, verdict="fail", detail=f"gives {counts}")
    wide = paired(mine, exact) if exact is not None else None
    if wide is not None and len(wide) != len(pairs):
        wide = None
    largest = max((tensor.numel() for tensor in arguments.tensors()), default=1)
    reach = reach_of(arguments)
    # Where all elements along a dimension are equal, which of them is the first in order is anybody's choice.
    tied = text.startswith("expanded") and any(t.is_floating_point() for t in arguments.tensors())
    worst: Distance | None = None
    for i, (found, native) in enumerate(pairs):
        which = f"result {i}: " if len(pairs) > 1 else ""
        if same is not None and found.dtype != native.dtype:
            return Finding(case=text, verdict="fail", detail=f"{which}{found.dtype}, not {native.dtype}")
        if found.shape != native.shape:
            shapes = f"shape {list(found.shape)}, not {list(native.shape)}"
            return Finding(case=text, verdict="fail", detail=f"{which}{shapes}")
        if same is not None and found.device != native.device:
            return Finding(case=text, verdict="fail", detail=f"{which}on {found.device}, not {native.device}")
        if tied and found.dtype in WHOLE:
            continue
        target = native if wide is None else wide[i][1]
        if target.shape != found.shape or target.dtype.is_floating_point != native.dtype.is_floating_point:
            target = native
        moved = [pairs[i][1] for pairs in (paired(mine, one) for one in shaken) if pairs is not None and i < len(pairs)]
        distance = compare(
            found,
            target,
            native if same is not None else None,
            terms=max(terms, largest / max(1, found.numel())),
            shaken=[one for one in moved if one.shape == target.shape],
            reach=reach,
        )
        if not distance.fits:
            detail = f"{which}{distance.where}"
            return Finding(case=text, verdict="fail", detail=detail, ulp=distance.ulp, error=distance.relative)
        if worst is None or (distance.ulp or 0.0) > (worst.ulp or 0.0):
            worst = distance
    if (odd := _other_values(mine.others, wanted.others)) is not None:
        return Finding(case=text, verdict="fail", detail=odd)
    return Finding(
        case=text,
        verdict="pass",
        ulp=None if worst is None or not usual else worst.ulp,
        error=None if worst is None else worst.relative,
    )


def _other_values(mine: list[Any], wanted: list[Any]) -> str | None:
    """What is different among results that are no tensors; None for nothing."""
    for left, right in zip(mine, wanted, strict=False):
        if isinstance(left, int | float) and isinstance(right, int | float):
            if not abs(left - right) <= 1e-6 * max(1.0, abs(right)) and left == left:
                return f"gives {left}, not {right}"
        elif type(left) is type(right) and isinstance(left, str) and left != right:
            return f"gives {left!r}, not {right!r}"
    return None
