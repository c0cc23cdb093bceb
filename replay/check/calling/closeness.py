# pyright: strict
"""Measures how far results are from exact ones, in units in the last place (ulp). Compares this distance with the
tolerance for the dtype and with the error that the reference itself makes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""Relative and absolute tolerance for each dtype, from torch.testing.assert_close.

The absolute tolerance is meant for results near 1. If all results are smaller, it shrinks in proportion to the largest
result. It does not become smaller than the error that rounding the arguments causes.
"""
FP8_RELATIVE = {"float8_e4m3": 0.125, "float8_e5m2": 0.25}
"""Relative tolerance of 8-bit floats: one unit in the last place."""
FP8_OFF = 0.125
"""Maximum fraction of the elements of an 8-bit result that may differ by one unit in the last place.

An intermediate rounding to 16 bits changes about 1 in 30 elements; truncating instead of rounding changes half of them.
"""
ROUNDING_STEPS, SCANS = 8.0, 0.01
"""Limits for deciding that the reference accumulates errors, as in a scan.

It does if more than the fraction `SCANS` of its results are off by more than `ROUNDING_STEPS` units in the last place.
Then its largest error is tolerated for all results.
"""
HALF_STEPS = 4.0
"""Tolerance of 16-bit dtypes in units in the last place, because kernels round intermediate results."""
COARSE_STEPS, COARSE_SHARE, COARSE_FEWEST = 1.5, 0.5, 64
"""Limits for deciding that float16 results were computed in bfloat16.

This is assumed if more than the fraction `COARSE_SHARE` of the results are off by more than `COARSE_STEPS` units in
float16's last place. There must be at least `COARSE_FEWEST` different results. Rounding to bfloat16 moves a value by up
to 4 such units, and 62 % of the elements by more than 1.5. Several intermediate roundings to float16 move far fewer
elements by that much.
"""
OF_REFERENCE = 4.0
"""Tolerance as a multiple of the distance between the reference's result in the case's own dtype and that in float64.
This distance comes e.g. from another order of summation.
"""
OF_LARGEST = 4.0
"""Tolerance for sums, in units in the last place of the largest result.

It is multiplied by the square root of the number of terms. 16-bit dtypes are summed in float32; for them, the unit of
float32 is multiplied by the root.
"""
NEAR_ZERO = 2.0**-8
"""Results smaller than this fraction of the largest result count as having this size when an error is expressed in
units in the last place. Cancellation makes the last place of a nearly zero result meaningless.
"""


LARGE = 1 << 20
"""Maximum number of elements that are all measured in units in the last place; larger close results are sampled."""


class Distance(msgspec.Struct, frozen=True):
    """The distance between a result and its expected value."""

    fits: bool
    ulp: float | None
    relative: float | None
    where: str = ""
    """The position of the worst element, with its actual and its expected value."""


def compare(
    actual: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None = None,
    *,
    terms: float = 1.0,
    perturbed: Sequence[torch.Tensor] = (),
    reach: float = math.inf,
) -> Distance:
    """Compare a result with the reference's: `exact` in a wider dtype, `same` in the result's own dtype, if available.

    `terms` is the maximum number of elements that one result depends on. `perturbed` holds exact results for arguments
    that differ by a rounding error; twice their difference from `exact`, times the square root of `terms`, is
    tolerated. `reach` is the largest number among the arguments; if all results are small, some units in the last place
    of `reach` are tolerated. Integers and booleans must be equal, unless the reference itself gives other integers for
    wider inputs.
    """
    actual, exact = actual.detach().cpu(), exact.detach().cpu()
    same = None if same is None else same.detach().cpu()
    if actual.shape != exact.shape:
        return Distance(False, None, None, f"shape {tuple(actual.shape)}, not {tuple(exact.shape)}")
    if actual.numel() == 0:
        return Distance(True, None, None)
    if actual.dtype.is_complex or exact.dtype.is_complex:
        return _complex(actual, exact, same, terms, reach)
    if not actual.dtype.is_floating_point:
        return _integers(actual, exact, same, perturbed)
    spared: torch.Tensor | None = None
    for other in perturbed:
        moved = 2 * (other.detach().cpu().double() - exact.double()).abs().nan_to_num(0.0, 0.0, 0.0)
        spared = moved if spared is None else torch.maximum(spared, moved)
    if spared is not None:
        # The change says how much a rounding error is amplified, e.g. where a row is constant: x - mean(x). A sum of
        # many terms makes larger ones than the rounding of an argument.
        eps = torch.finfo(actual.dtype).eps
        spared = spared * (_root(actual.dtype, terms) / eps)
    return _floats(actual, exact, same, terms, reach, spared)


def _root(dtype: torch.dtype, terms: float) -> float:
    """Return the relative rounding error of a sum of `terms` numbers. 16-bit numbers are summed in float32."""
    info = torch.finfo(dtype)
    if info.bits <= 16:
        return max(info.eps, torch.finfo(torch.float32).eps * terms**0.5)
    return info.eps * max(1.0, terms) ** 0.5


def _complex(
    actual: torch.Tensor, exact: torch.Tensor, same: torch.Tensor | None, terms: float, reach: float
) -> Distance:
    if not actual.dtype.is_complex or not exact.dtype.is_complex:
        return Distance(False, None, None, f"{_name(actual.dtype)}, not {_name(exact.dtype)}")
    wide = actual.to(torch.complex128)
    parts = torch.view_as_real(wide.resolve_conj())
    wanted = torch.view_as_real(exact.to(torch.complex128).resolve_conj())
    same_parts = None if same is None else torch.view_as_real(same.to(torch.complex128).resolve_conj())
    base = torch.float64 if actual.dtype is torch.complex128 else torch.float32
    # One part may be far below the other: both are measured by the whole number.
    sizes = exact.to(torch.complex128).abs().unsqueeze(-1).expand(wanted.shape)
    return _measured(parts, wanted, same_parts, base, terms, reach, sizes)


def _integers(
    actual: torch.Tensor, exact: torch.Tensor, same: torch.Tensor | None, perturbed: Sequence[torch.Tensor]
) -> Distance:
    wanted = same if same is not None else exact
    is_bool = actual.dtype is torch.bool
    as_whole = torch.int64 if is_bool or not wanted.dtype.is_floating_point else torch.float64
    wrong = actual.to(as_whole) != wanted.to(as_whole)
    for other in () if is_bool else perturbed:
        wrong &= actual.double() != other.detach().cpu().double()
    if not bool(wrong.any()):
        return Distance(True, 0.0, 0.0)
    if same is not None and same.shape == exact.shape:
        # Where the reference rounds otherwise from float64, the last place is a matter of rounding.
        rounded = same.double() != exact.double()
        if bool((rounded & ((actual.double() - exact.double()).abs() <= 1))[wrong].all()):
            return Distance(True, 0.0, 0.0)
    index = _place(wrong)
    error = (actual.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1)
    return Distance(
        False,
        None,
        None if is_bool else float(error[wrong].max()),
        f"{_count(wrong)} differ; the value at {index} is {actual[index].item()}, not {wanted[index].item()}",
    )


def _floats(
    actual: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None,
    terms: float,
    reach: float,
    spared: torch.Tensor | None = None,
) -> Distance:
    if spared is None and actual.numel() > LARGE and _plainly_close(actual, exact):
        # All is within the usual tolerance; how far in units of the last place is looked up at some places.
        step = actual.numel() // LARGE + 1
        few = [t.reshape(-1)[::step] for t in (actual, exact)]
        return _floats(few[0], few[1], None if same is None else same.reshape(-1)[::step], terms, reach)
    same = None if same is None or same.shape != exact.shape else same.double()
    return _measured(actual.double(), exact.double(), same, actual.dtype, terms, reach, None, spared)


def _plainly_close(actual: torch.Tensor, exact: torch.Tensor) -> bool:
    """Check with few memory passes whether every element is within the dtype's tolerance."""
    relative, absolute = TOLERANCES.get(actual.dtype, (0.0, 0.0))
    if actual.itemsize == 1:  # torch has no arithmetic for 8 bits
        return False
    error = actual.to(exact.dtype).sub_(exact).abs_() if actual.dtype != exact.dtype else (actual - exact).abs_()
    return bool(error.sub_(exact.abs(), alpha=relative).max() <= absolute)


def _measured(
    actual: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None,
    dtype: torch.dtype,
    terms: float,
    reach: float,
    sizes: torch.Tensor | None,
    spared: torch.Tensor | None = None,
) -> Distance:
    """Measure the distance of `actual` from `exact`, both in float64. `dtype` is the result's dtype, which defines the
    unit in the last place.

    Tolerances are computed from `sizes` instead of the magnitudes of `exact`, if given. `spared` is an additional
    tolerance for each element.
    """
    info = torch.finfo(dtype)
    relative, absolute = TOLERANCES.get(
        dtype, (next((v for k, v in FP8_RELATIVE.items() if k in _name(dtype)), 0.0), 0.0)
    )
    relative = max(relative, HALF_STEPS * info.eps if info.bits == 16 else info.eps / 2)
    # What the dtype cannot hold is infinite, or its largest number where it has no infinity.
    over = exact.abs() > info.max
    saturated = over & (actual.abs() >= info.max) & (torch.sign(actual) == torch.sign(exact))
    lost = over & torch.isfinite(exact) & ~torch.isfinite(actual)
    exact = torch.where(over, torch.sign(exact) * torch.inf, exact)
    size = exact.abs() if sizes is None else sizes
    finite = torch.isfinite(exact)
    error = (actual - exact).abs().where(finite, 0.0)
    largest = float(size[finite].max()) if bool(finite.any()) else 0.0
    flat = min(absolute, absolute * min(1.0, largest) + OF_LARGEST * info.eps * reach)
    allowed = flat + relative * size.where(finite, 0.0)
    # Neighbours of numbers below the smallest normal one lie as far apart as there.
    allowed = allowed + info.smallest_normal * info.eps
    if terms > 1:
        allowed = allowed + OF_LARGEST * _root(dtype, terms) * largest
    if spared is not None:
        allowed = allowed + spared
    agrees, same_error = torch.zeros_like(finite), torch.zeros_like(error)
    if same is not None:
        same_error = (same - exact).abs()
        same_error = same_error.where(finite & torch.isfinite(same_error), 0.0)
        allowed = allowed + OF_REFERENCE * same_error
        # Where the reference itself is further off than rounding explains, results hang together, as in a scan.
        rounded = same_error <= ROUNDING_STEPS * info.eps * exact.abs().nan_to_num(posinf=0.0, neginf=0.0)
        if terms > 1 or float((~rounded & finite).double().mean()) > SCANS:
            allowed = allowed + OF_REFERENCE * float(same_error.max())
        # Equal bits to the reference in the same dtype are right, whatever float64 says: NaN and infinity included.
        agrees = (actual == same) | (torch.isnan(actual) & torch.isnan(same))
    wrong = (finite & ~(error <= allowed)) | (~finite & ~_same_odd(actual, exact) & ~saturated & ~lost)
    wrong &= ~agrees
    off = finite & (actual != exact) & ~agrees
    if info.bits == 8 and int(off.sum()) > max(1.0, FP8_OFF * off.numel()):
        wrong |= off
    if dtype is torch.float16 and sizes is None:
        coarse = _coarse(exact, error, spared, info)
        if bool(coarse.any()) and (same is None or not bool(_coarse(exact, same_error, spared, info).any())):
            wrong |= coarse & ~agrees
    steps = _ulp(torch.clamp(exact.abs(), min=largest * NEAR_ZERO), info)
    known = finite & torch.isfinite(error)
    ulp = float((error / steps).where(known, 0.0).max())
    worst_relative = float((error / torch.clamp(size, min=info.tiny)).where(known, 0.0).max())
    if not bool(wrong.any()):
        return Distance(True, ulp, worst_relative)
    excess = torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf).where(wrong, 0.0)
    index = _place(wrong & (excess == excess.max())) if bool(excess.max() > 0) else _place(wrong)
    return Distance(
        False,
        ulp,
        worst_relative,
        f"{_count(wrong)} differ; the value at {index} is {contrast(float(actual[index]), float(exact[index]))}",
    )


def _coarse(exact: torch.Tensor, error: torch.Tensor, spared: torch.Tensor | None, info: torch.finfo) -> torch.Tensor:
    """Return a mask of elements whose errors are as large as those of rounding to bfloat16. If there are too few such
    elements, the mask is False everywhere.

    Two kinds of elements are left out: those below the mean, because cancellation makes them inaccurate, and those that
    change as much when the arguments are rounded once more.
    """
    size = exact.abs().where(torch.isfinite(exact), 0.0)
    counted = size >= max(float(size.mean()), info.smallest_normal)
    steps = COARSE_STEPS * _ulp(size, info)
    coarse = counted & (error > (steps if spared is None else torch.maximum(steps, spared / 2)))
    different = 1 + int((size[counted].sort().values.diff() > 0).sum())
    enough = int(coarse.sum()) > COARSE_SHARE * int(counted.sum()) and different >= COARSE_FEWEST
    return coarse if enough else torch.zeros_like(coarse)


def contrast(actual: float, exact: float) -> str:
    """Return text like "6.2, not 6.3" with enough digits to distinguish both, at least six; 17 suffice for float64."""
    for digits in range(6, 17):
        ours, theirs = f"{actual:.{digits}g}", f"{exact:.{digits}g}"
        if ours != theirs:
            return f"{ours}, not {theirs}"
    return f"{actual:.17g}, not {exact:.17g}"


def _same_odd(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return a mask of elements for which both values are NaN or the same infinity."""
    return (torch.isnan(actual) & torch.isnan(exact)) | (actual == exact)


def _ulp(exact: torch.Tensor, info: torch.finfo) -> torch.Tensor:
    """Return the spacing of neighbouring numbers of a dtype at each value."""
    magnitude = torch.where(torch.isfinite(exact), exact.abs(), torch.ones_like(exact)).clamp(min=info.smallest_normal)
    return torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps


def _place(wrong: torch.Tensor) -> tuple[int, ...]:
    """Return the index of the first wrong element."""
    return tuple(int(i) for i in wrong.nonzero()[0])


def _count(wrong: torch.Tensor) -> str:
    count = int(wrong.sum())
    return f"{count:,} of {wrong.numel():,}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
