# pyright: strict
"""Compares results with the reference's for many sizes, layouts, values, dtypes and broadcasts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from opreplay.replay.check import variants
from opreplay.replay.check.calling.calls import (
    Arguments,
    Bench,
    BothRefuse,
    NotApplicable,
    Results,
    as_float64,
    contiguous,
    distinct,
    is_float,
    pair_results,
    reach_of,
)
from opreplay.replay.check.calling.closeness import Distance, compare
from opreplay.replay.check.calling.guarded import copy_guarded
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.cases import Case, replaced
from opreplay.replay.check.model import Finding
from opreplay.replay.check.points.peak import arguments_for
from opreplay.replay.check.points.stateless import stateless
from opreplay.replay.check.points.trials import Attempt, attempt, failed, nothing, passed, raised, refused
from opreplay.replay.ir.sizes import tensors_of
from opreplay.traces.model import TensorMeta
from opreplay.traces.names import plural

INTEGER_DTYPES = (torch.int32, torch.int64)
"""Dtypes of indices into a tensor."""
QUANTIZED = (torch.int8, torch.uint8)
"""Dtypes of quantized results."""
TINY = 1e-30
"""Value that replaces zeros in arguments. The result for it shows which sign a zero result should have."""
ODD = ("odd", "NaN in rows", "rows of -inf")
"""Kinds of values for which comparing with the reference in float64 shows nothing more than comparing in the case's own
dtypes.
"""
MOST_MOVED, FEWEST_MOVED = 1 << 16, 16
"""Limits for the check whether all elements of a result occur among the arguments, as for a copy. The result may have
at most `MOST_MOVED` elements and must have at least `FEWEST_MOVED` distinct values.
"""
MOST_REFUSED = 2
"""After this many cases without accepted alternative sizes, no more alternatives are tried."""
INSTEAD_S = 2.0
"""Seconds for trying alternative sizes. They grow, and where only the dtype is refused, none is accepted."""
ROUNDINGS = 8
"""Number of ways in which arguments are rounded once more if a result is not floating-point."""
FINE_ROUNDINGS = 4.0
"""Number of float32 roundings between the arguments and an 8-bit result: those of a factor, its reciprocal, a product
and constants.
"""
VARIED = 2
"""Number of cases whose variants are tried; later cases are tried only unchanged."""


def correctness(bench: Bench) -> list[Attempt]:
    """Return trials of every case unchanged, and of the first cases with other sizes, layouts and values."""
    cases = [attempt(bench, case, against_reference) for case in _correctness_cases(bench)]
    base = bench.compact_bases[0]
    ends = [base, variants.primes_of(base)] if bench.isolated and sys.platform == "linux" else []
    beyond = [attempt(bench, case, _stays_inside, "memory that ends with each tensor") for case in ends]
    return [*cases, *stateless(bench, base), *beyond]


def _stays_inside(bench: Bench, case: Case) -> Finding:
    """Call the op on tensors that are followed by protected memory. If the op reads beyond the end, the process
    crashes.
    """
    arguments = arguments_for(bench, case)
    try:
        before = bench.call(case, arguments.copy())
    except Exception as error:  # judged by other cases
        return nothing(words(error))
    try:
        at_the_end = arguments.changed(copy_guarded)
    except (OSError, ValueError) as error:
        return nothing(f"no memory that ends with the tensor: {words(error)}")
    after = bench.call(case, at_the_end)
    forms = [[(t.shape, t.dtype) for t in results.all()] for results in (before, after)]
    return (
        passed()
        if forms[0] == forms[1]
        else failed("results have another shape or dtype in memory that ends with each tensor")
    )


def _correctness_cases(bench: Bench) -> Iterator[Case]:
    yield from bench.bases
    for base in bench.compact_bases[:VARIED]:
        yield from variants.vary_sizes(base)
        yield from variants.vary_strides(base)
        yield from variants.share_tensors(base)
        if bench.has_reference(base):
            yield from bench.other_calls(base)
            for case in variants.vary_ranks(base):
                yield from (other for other in variants.vary_strides(case) if other.kind == "outer dimensions swapped")
            yield from variants.vary_values(base)
            if not any(arg.mutated for arg in base.op.args):
                yield msgspec.structs.replace(base, kind="negated", trait="negated")
    first = bench.compact_bases[0]
    yield from variants.long_rows(first, "endless rows")
    for rows in variants.long_rows(first, "long rows") if bench.has_reference(first) else ():
        yield msgspec.structs.replace(rows, kind="large values in long rows", values="large")


def layouts(bench: Bench) -> list[Case]:
    """Return the cases for points that depend only on strides and on memory shared by arguments."""
    return [
        case
        for base in bench.compact_bases[:VARIED]
        for case in (base, *variants.vary_strides(base), *variants.share_tensors(base))
    ]


def dtypes(bench: Bench) -> list[Attempt]:
    """Return trials of each dtype, at the case's sizes and at prime sizes."""
    base = bench.compact_bases[0]
    if variants.main_dtype(base) is None:
        return []
    cases = [
        variants.replace_dtype(case, dtype, f"{dtype}{suffix}")
        for dtype in variants.DTYPES
        if hasattr(torch, dtype)
        for case, suffix in ((base, ""), (variants.primes_of(base), " at prime sizes"))
    ]
    if bench.has_reference(base):
        cases += _unusual(base)
    return [attempt(bench, case, against_reference) for case in cases]


def _unusual(base: Case) -> list[Case]:
    """Return cases that only a reference can judge: conjugated, large and signed numbers, long rows and long
    columns.
    """
    cases: list[Case] = []
    if not any(arg.mutated for arg in base.op.args):
        conjugated = variants.replace_dtype(base, "complex64", "complex64, conjugated")
        cases.append(msgspec.structs.replace(conjugated, trait="conjugated"))
    for dtype in ("float16", "bfloat16", "int32"):
        case = variants.replace_dtype(base, dtype, f"{dtype}, large values")
        cases.append(msgspec.structs.replace(case, values="large"))
    if not any(meta.dtype == "int32" for meta in tensors_of(base.op)):
        case = variants.replace_dtype(base, "int32", "int32 of both signs, no zeros")
        cases.append(msgspec.structs.replace(case, values="signed"))
    for dtype in ("float16", "bfloat16", "float32"):
        columns = variants.long_columns(base) if dtype != "float32" else ()
        for long in (*variants.long_rows(base, "long rows"), *columns):
            case = variants.replace_dtype(long, dtype, f"{dtype} in {long.kind}")
            cases.append(msgspec.structs.replace(case, values="positive", smaller=long.smaller))
    return cases


def broadcast(bench: Bench) -> list[Attempt]:
    """Return trials with one tensor smaller than the others; they need a reference that defines the result."""
    base = bench.compact_bases[0]
    if not bench.has_reference(base):
        return [Attempt(base.text, lambda: nothing("no reference defines broadcasting (--against)"))]
    return [attempt(bench, case, against_reference) for case in variants.broadcast(base)]


def against_reference(bench: Bench, case: Case) -> Finding:
    """Compare the results of one case with the reference's: in float64 if possible, and in the case's own dtypes.

    If both op and reference refuse generated sizes, the case's alternative sizes are tried until a call is accepted,
    for at most `INSTEAD_S`. Raises NotApplicable if none is accepted.
    """
    try:
        return _compared(bench, case)
    except BothRefuse:
        chosen = bench.alternatives
        if not case.instead or (len(chosen) >= MOST_REFUSED and all(index is None for index in chosen)):
            raise
        # First what was taken the last time.
        last = next((index for index in reversed(chosen) if index is not None), 0)
        end = time.monotonic() + INSTEAD_S
        for index in sorted(range(len(case.instead)), key=lambda index: index != last):
            if time.monotonic() > end:
                break
            other = case.instead[index]
            try:
                finding = _compared(bench, other)
            except BothRefuse:
                continue
            except NotApplicable as why:
                finding = nothing(str(why))
            chosen.append(index)
            return msgspec.structs.replace(finding, case=other.text)
        chosen.append(None)
        raise


def _compared(bench: Bench, case: Case) -> Finding:
    """Compare the results of one case with the reference. Raises NotApplicable."""
    arguments = arguments_for(bench, case)
    if case.trait == "expanded" and (name := _once_permutation(bench, case)) is not None:
        return nothing(f"{name} must list each index once, but an expanded tensor repeats them")
    same, refusal = _reference(bench, case, arguments)
    try:
        mine = bench.call(case, arguments.copy())
    except Exception as error:  # ops raise anything
        return _of_error(case, error, refusal, fits=same is None or _fits_buffers(arguments, same))
    if refusal is not None:
        raise BothRefuse(f"the reference refuses the call: {words(refusal)}")
    if same is not None and not _fits_buffers(arguments, same):
        return nothing("the buffers do not have the sizes of the results")
    if case.values == "beyond" and not _narrower(mine, arguments):
        return nothing("results contain only values of the arguments")
    if case.values == "halves" and not any(tensor.dtype in QUANTIZED for tensor in mine.all()):
        raise NotApplicable("no result is quantized")
    exact = (_plain_attention(bench, case, arguments) or same) if case.values in ODD else _exact(bench, case, arguments)
    if same is None and exact is None:
        return nothing("there is no reference to compare with")
    finding = _judged(case, mine, exact, same, arguments)
    if finding.verdict == "fail" and finding.error is not None:
        return _judged_again(bench, case, mine, exact, same, arguments) or finding
    if finding.verdict == "pass" and case.values == "zeros" and same is not None and bench.has_reference(case):
        return _signed(bench, case, mine, same, arguments) or finding
    return finding


def _judged_again(
    bench: Bench, case: Case, mine: Results, exact: Results | None, same: Results | None, arguments: Arguments
) -> Finding | None:
    """Judge the results again with larger tolerances.

    Errors that come from rounding the arguments, and from sums along a row, are tolerated. None if the results are not
    judged again: the values are of a kind in `ODD`, and all results are floats.
    """
    if case.values in ODD and all(tensor.dtype.is_floating_point for tensor in mine.all()):
        return None
    perturbed = [] if exact is None else _all_perturbed(bench, case, arguments, mine)
    terms = float(_longest(arguments)) if _mixes(bench, case, arguments, mine) else 1.0
    return _judged(case, mine, exact, same, arguments, perturbed=perturbed, terms=terms)


def _longest(arguments: Arguments) -> int:
    """Return the largest size of any dimension in all tensors."""
    return max((size for tensor in arguments.tensors() for size in tensor.shape), default=1)


def _of_error(case: Case, error: Exception, refusal: BaseException | None, *, fits: bool) -> Finding:
    """Return the verdict on an error of the op. If the reference refuses a generated variant, too, raises BothRefuse.

    `refusal` is the reference's error; `fits` says whether the result buffers have the right sizes.
    """
    wanted = case.kind in ("given", "recorded")  # no variant of ours
    if refusal is not None:
        detail = f"{words(error)}; the reference refuses the call, too: {words(refusal)}"
        if wanted:
            return refused(detail)
        raise BothRefuse(detail)
    if not fits:
        return nothing(f"the buffers do not have the sizes of the results: {words(error)}")
    if wanted:
        return failed(f"the op refuses the {case.kind} call: {words(error)}")
    if (case.trait == "value" or case.kind == "no dimension") and str(error).strip():
        return refused(words(error))  # where an op works on rows, a single number is none
    return raised(error)


def _once_permutation(bench: Bench, case: Case) -> str | None:
    """Return the name of an expanded argument that holds a permutation when it is created contiguous; None if there is
    none.
    """

    def plain(meta: TensorMeta | None) -> TensorMeta | None:
        return None if meta is None else msgspec.structs.replace(meta, strides=None, storage_offset=0)

    args = tuple(msgspec.structs.replace(arg, tensors=tuple(map(plain, arg.tensors))) for arg in case.op.args)
    for name, tensor in bench.arguments(replaced(case, "contiguous", args)).named_tensors().items():
        meta = next(arg.tensors[0] for arg in case.op.args if arg.name == name)
        if tensor.dtype in INTEGER_DTYPES and tensor.dim() == 1 and meta is not None and 0 in (meta.strides or ()):
            places = torch.arange(tensor.numel(), device=tensor.device, dtype=tensor.dtype)
            if torch.equal(tensor.sort().values, places):
                return name
    return None


def _all_perturbed(bench: Bench, case: Case, arguments: Arguments, mine: Results) -> list[Results]:
    """Return the reference's results for arguments rounded once more, one entry for each of several ways to round.

    More ways are tried if the op's results are integers, because each integer must equal the result of one of the ways.
    For 8-bit results, arguments of any dtype are rounded as if they were float32.
    """
    whole = [tensor.dtype for tensor in mine.all() if not tensor.dtype.is_floating_point]
    fine = any(dtype.itemsize == 1 for dtype in whole)
    ways = [_perturbed(bench, case, arguments, way, fine=fine) for way in range(ROUNDINGS if whole else 2)]
    return [results for results in ways if results is not None]


def _perturbed(bench: Bench, case: Case, arguments: Arguments, way: int, *, fine: bool) -> Results | None:
    """Return the reference's float64 results for arguments rounded once more; None if the reference refuses these
    arguments.

    They show how accurate a result can be: an error of this size comes from rounding the arguments. Each pair of ways
    (0 and 1, 2 and 3, ...) rounds in opposite directions. With `fine`, the first pair moves all elements of one tensor
    up and all of the next one down, which changes a quotient most. The other ways move each element at random.
    """
    wide = as_float64(arguments)
    generator = torch.Generator(device=bench.device).manual_seed(1 + way // 2)
    opposite, place = 1 - 2 * (way % 2), 0
    for before, tensor in zip(distinct(arguments), distinct(wide), strict=True):
        if not (is_float(before) and tensor.dtype.is_floating_point):
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
    return _referred(bench, case, wide)


def _referred(bench: Bench, case: Case, arguments: Arguments) -> Results | None:
    """Return the reference's results for these arguments; None if it refuses them."""
    try:
        return bench.refer(case, arguments)
    except Exception:  # references raise anything
        return None


def _mixes(bench: Bench, case: Case, arguments: Arguments, mine: Results) -> bool:
    """Check whether one element of an argument affects several results of the op, as in a scan or a normalisation."""
    other = contiguous(arguments)
    first = next((tensor for tensor in other.tensors() if is_float(tensor) and tensor.numel() > 1), None)
    if first is None:
        return False
    first.view(-1)[0] = 2 * first.abs().nan_to_num(0.0, 0.0, 0.0).max() + 1
    try:
        pairs = pair_results(bench.call(case, other), mine) or []
    except Exception:  # it is not known, then
        return False
    return any(
        after.shape == before.shape and int(((after != before) & ~(after.isnan() & before.isnan())).sum()) > 1
        for after, before in pairs
    )


def _signed(bench: Bench, case: Case, mine: Results, same: Results, arguments: Arguments) -> Finding | None:
    """Return a finding if a zero in the results has another sign than in the reference's results; None if none has.

    Only zeros whose sign is determined by the arguments are compared. To find that sign, tiny numbers replace the zeros
    in the arguments, and the reference is called again.
    """
    wide = as_float64(arguments)
    for tensor in wide.tensors():
        if is_float(tensor):
            tensor.copy_(torch.where(tensor == 0, torch.copysign(torch.full_like(tensor, TINY), tensor), tensor))
    nonzero = _referred(bench, case, wide)
    beside = [] if nonzero is None else pair_results(mine, nonzero) or []
    for (actual, native), (_, near) in zip(pair_results(mine, same) or (), beside, strict=False):
        if not is_float(actual) or near.shape != actual.shape:
            continue
        sure = (near != 0) & (near.signbit() == native.signbit()) & ~_either(near, arguments)
        other = (actual == 0) & (native == 0) & sure & (actual.signbit() != native.signbit())
        if bool(other.any()):
            index = tuple(int(i) for i in other.nonzero()[0])
            return failed(
                f"{int(other.sum()):,} zeros have the wrong sign; the value at {index} is {float(actual[index])}"
            )
    return None


def _either(near: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    """Return a mask of results that may be zeros of either sign, e.g. the minimum of two zeros of opposite signs."""
    signs = [torch.zeros_like(near, dtype=torch.bool) for _ in range(2)]
    for tensor in arguments.tensors():
        if is_float(tensor) and tensor.shape == near.shape:
            signs[0] |= (tensor == 0) & torch.signbit(tensor)
            signs[1] |= (tensor == 0) & ~torch.signbit(tensor)
    return signs[0] & signs[1] & (near.abs() == TINY)


def _fits_buffers(arguments: Arguments, wanted: Results) -> bool:
    """Check whether the op's result buffers have the shapes of the results that the reference returns."""
    buffers = [value.shape for name, value in arguments.named_tensors().items() if name in arguments.written]
    shapes = [tensor.shape for tensor in wanted.returned]
    return not buffers or not shapes or all(shape in shapes for shape in buffers)


def _reference(bench: Bench, case: Case, arguments: Arguments) -> tuple[Results | None, BaseException | None]:
    """Return (results, None) or (None, error) of the reference in the case's own dtypes. If there is no reference, the
    op itself is called on contiguous copies.
    """
    try:
        if bench.has_reference(case):
            return bench.refer(case, arguments.copy()), None
        return bench.call(case, contiguous(arguments)), None
    except Exception as error:  # references raise anything
        return None, error


def _exact(bench: Bench, case: Case, arguments: Arguments) -> Results | None:
    """Return the reference's results in float64. None if no dtype becomes wider by this, if the reference refuses
    float64, or if the results are random.
    """
    wide = as_float64(arguments)
    is_wide = all(a.dtype == b.dtype for a, b in zip(arguments.tensors(), wide.tensors(), strict=True))
    return None if is_wide or bench.is_random(case) else _referred(bench, case, wide)


def _plain_attention(bench: Bench, case: Case, arguments: Arguments) -> Results | None:
    """Return the reference's results without fused attention; None if it refuses or there is no reference.

    Torch's fused attention on the CPU returns 0 where a query has a NaN, and the plain one NaN. Both are right.
    """
    if not bench.has_reference(case):
        return None
    with sdpa_kernel(SDPBackend.MATH):
        return _referred(bench, case, arguments.copy())


def _judged(
    case: Case,
    mine: Results,
    exact: Results | None,
    same: Results | None,
    arguments: Arguments,
    *,
    perturbed: Sequence[Results] = (),
    terms: float = 1.0,
) -> Finding:
    """Compare all results of one call with the reference's."""
    wanted = same if same is not None else exact
    assert wanted is not None
    pairs = pair_results(mine, wanted)
    if pairs is None:
        return failed(f"returns {plural(len(mine.all()), 'tensor')}, the reference {len(wanted.all())}")
    wide = _targets(mine, exact, len(pairs)) or [native for _, native in pairs]
    moved = [targets for results in perturbed if (targets := _targets(mine, results, len(pairs))) is not None]
    largest = max((tensor.numel() for tensor in arguments.tensors()), default=1)
    reach = reach_of(arguments)
    distances: list[Distance] = []
    for i, (actual, native) in enumerate(pairs):
        which = f"result {i}: " if len(pairs) > 1 else ""
        target = wide[i]
        if (other := _plainly_other(case, actual, native, target, arguments, shape_only=same is None)) is not None:
            return failed(f"{which}{other}")
        if actual.dtype in INTEGER_DTYPES and _order_is_open(case, actual, arguments):
            continue
        if target.shape != actual.shape or target.dtype.is_floating_point != native.dtype.is_floating_point:
            target = native
        # Where equal elements are in a row, the first of them is meant, not any that rounding would choose. Halves are
        # rounded as the reference rounds them: all values are exact.
        near = [] if case.values in ("ties", "halves") else [each[i] for each in moved if each[i].shape == target.shape]
        distance = compare(
            actual,
            target,
            native if same is not None else None,
            terms=max(terms, largest / max(1, actual.numel())),
            perturbed=near,
            reach=reach,
        )
        if not distance.fits:
            detail = f"{which}{distance.where}"
            return Finding(verdict="fail", detail=detail, ulp=distance.ulp, error=distance.relative)
        distances.append(distance)
    if (odd := _other_values(mine.others, wanted.others)) is not None:
        return failed(odd)
    if not distances:
        return passed()
    worst = max(distances, key=lambda distance: distance.ulp or 0.0)
    # Units in the last place say little of numbers that underflow.
    return Finding(verdict="pass", ulp=worst.ulp if case.values == "usual" else None, error=worst.relative)


def _plainly_other(
    case: Case,
    actual: torch.Tensor,
    native: torch.Tensor,
    exact: torch.Tensor,
    arguments: Arguments,
    *,
    shape_only: bool,
) -> str | None:
    """Describe how a result differs in dtype, shape or device, or how copied numbers differ; None if nothing
    differs.
    """
    other = _other_form(actual, native, shape_only=shape_only)
    return other if other is not None or shape_only else _moved_wrongly(case, actual, native, exact, arguments)


def _order_is_open(case: Case, places: torch.Tensor, arguments: Arguments) -> bool:
    """Check whether equal elements make the order of a result's indices (`places`) arbitrary."""
    if case.trait == "expanded":
        return any(tensor.is_floating_point() for tensor in arguments.tensors())
    largest = max((tensor.numel() for tensor in arguments.tensors()), default=1)
    return case.values == "ties" and places.numel() * _longest(arguments) > largest


def _moved_wrongly(
    case: Case, actual: torch.Tensor, native: torch.Tensor, exact: torch.Tensor, arguments: Arguments
) -> str | None:
    """Describe where the result of a copy, cast or selection differs from the reference's; None if nowhere."""
    if case.values not in ("usual", "beyond") or case.trait == "expanded":
        return None
    wrong = (actual != native) & ~(actual.isnan() & native.isnan())
    # Among many arguments of 16 bits a computed number has equals by chance, but hardly in float64.
    if not bool(wrong.any()) or not _moves(native, arguments) or not _moves(exact, arguments):
        return None
    index = tuple(int(i) for i in wrong.nonzero()[0])
    ours, theirs = actual[index].item(), native[index].item()
    return f"the value at {index} is {ours}; the nearest to an argument's value is {theirs}"


def _narrower(mine: Results, arguments: Arguments) -> bool:
    """Check whether a result's dtype has a smaller range than an argument's."""
    most = [torch.finfo(t.dtype).max for t in arguments.tensors() if is_float(t)]
    return any(torch.finfo(t.dtype).max < max(most, default=0.0) for t in mine.all() if t.is_floating_point())


def _moves(native: torch.Tensor, arguments: Arguments) -> bool:
    """Check whether each number in the reference's result is one of the arguments' numbers, possibly rounded or
    negated.

    If so, the op is a copy, cast or selection, whose result must be exact.
    """
    if not is_float(native) or native.numel() > MOST_MOVED:
        return False
    numbers = native.double().abs().reshape(-1).sort().values.cpu()
    different = 1 + int((numbers.diff() > 0).sum())
    given = [t.reshape(-1).to(native.dtype).double().abs().cpu() for t in arguments.tensors() if is_float(t)]
    return different >= FEWEST_MOVED and bool(torch.isin(numbers, torch.cat([numbers.new_zeros(1), *given])).all())


def _targets(mine: Results, reference: Results | None, count: int) -> list[torch.Tensor] | None:
    """Return the reference's result for each of the op's results; None if their counts differ."""
    pairs = None if reference is None else pair_results(mine, reference)
    return None if pairs is None or len(pairs) != count else [target for _, target in pairs]


def _other_form(actual: torch.Tensor, native: torch.Tensor, *, shape_only: bool) -> str | None:
    """Describe a difference in a result's dtype, shape or device; None if there is none."""
    if not shape_only and actual.dtype != native.dtype:
        return f"{actual.dtype}, not {native.dtype}"
    if actual.shape != native.shape:
        return f"shape {list(actual.shape)}, not {list(native.shape)}"
    if not shape_only and actual.device != native.device:
        return f"on {actual.device}, not {native.device}"
    return None


def _other_values(mine: list[Any], wanted: list[Any]) -> str | None:
    """Describe a difference between results that are not tensors; None if there is none."""
    for ours, theirs in zip(mine, wanted, strict=False):
        if isinstance(ours, int | float) and isinstance(theirs, int | float):
            if not abs(ours - theirs) <= 1e-6 * max(1.0, abs(theirs)) and ours == ours:
                return f"returns {ours}, not {theirs}"
        elif type(ours) is type(theirs) and isinstance(ours, str) and ours != theirs:
            return f"gives {ours!r}, not {theirs!r}"
    return None
