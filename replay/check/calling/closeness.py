# pyright: strict
"""How far results are from exact ones: in units of the last place, and against what dtype and reference allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
"""Relative and absolute, those of torch.testing.assert_close; the absolute one is for results of the order of one and
shrinks with the largest of them, down to what rounding of the arguments amounts to."""
FP8_RELATIVE = {"float8_e4m3": 0.125, "float8_e5m2": 0.25}
"""One unit in the last place."""
FP8_OFF = 0.125
"""The largest share of elements of 8 bits that may be off by that: 16 bits in between round a thirtieth of them to the
other side, and numbers that are cut in place of rounded are off in half of the cases."""
ROUNDING_STEPS, SCANS = 8.0, 0.01
"""Where more than this share of the reference's own results is off by more units in the last place, it accumulates."""
HALF_STEPS = 4.0
"""Units in the last place that 16 bits are allowed: kernels round in between."""
OF_REFERENCE = 4.0
"""So many times the reference's own distance from float64 is allowed: the order of a sum makes such differences."""
OF_LARGEST = 4.0
"""So many units in the last place of the largest result are allowed, times the root of the terms of a sum. 16 bits
are summed in float32: there the root is of its units."""
NEAR_ZERO = 2.0**-8
"""Elements below this share of the largest result are measured in units of that: the last place of what is nearly zero
by cancellation says nothing."""


LARGE = 1 << 20
"""Elements up to which every one is measured in units of the last place."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Between a result and what it should be."""

    fits: bool
    ulp: float | None
    relative: float | None
    where: str = ""
    """The worst place and both values."""


def compare(
    found: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None = None,
    *,
    terms: float = 1.0,
    shaken: Sequence[torch.Tensor] = (),
    reach: float = math.inf,
) -> Distance:
    """A result against the reference's: `exact` in a wider dtype, `same` in the result's own, where there is one.

    `terms`: how many elements one result was made of, at most. `shaken`: exact results of arguments that differ by a
    rounding; by twice what that changes results may be off. `reach`: the largest number among the arguments; where all
    results are small, they may be off by some units in its last place. Integers and truth values must be equal; where
    the reference itself rounds to other integers from wider inputs, they may be off by as much.
    """
    found, exact = found.detach().cpu(), exact.detach().cpu()
    same = None if same is None else same.detach().cpu()
    if found.shape != exact.shape:
        return Distance(False, None, None, f"shape {tuple(found.shape)}, not {tuple(exact.shape)}")
    if found.numel() == 0:
        return Distance(True, None, None)
    if found.dtype.is_complex or exact.dtype.is_complex:
        return _complex(found, exact, same, terms, reach)
    spared: torch.Tensor | None = None
    if not found.dtype.is_floating_point:
        return _integers(found, exact, same, shaken)
    if shaken:
        spared = torch.zeros_like(exact, dtype=torch.float64)
        for one in shaken:
            moved = (one.detach().cpu().double() - exact.double()).abs().nan_to_num(0.0, 0.0, 0.0)
            spared = torch.maximum(spared, 2 * moved)
    return _floats(found, exact, same, terms, reach, spared)


def _complex(
    found: torch.Tensor, exact: torch.Tensor, same: torch.Tensor | None, terms: float, reach: float
) -> Distance:
    if not found.dtype.is_complex or not exact.dtype.is_complex:
        return Distance(False, None, None, f"{_name(found.dtype)}, not {_name(exact.dtype)}")
    wide = found.to(torch.complex128)
    parts = torch.view_as_real(wide.resolve_conj())
    wanted = torch.view_as_real(exact.to(torch.complex128).resolve_conj())
    own = None if same is None else torch.view_as_real(same.to(torch.complex128).resolve_conj())
    base = torch.float64 if found.dtype is torch.complex128 else torch.float32
    # One part may be far below the other: both are measured by the whole number.
    sizes = exact.to(torch.complex128).abs().unsqueeze(-1).expand(wanted.shape)
    return _measured(parts, wanted, own, base, terms, reach, sizes)


def _integers(
    found: torch.Tensor, exact: torch.Tensor, same: torch.Tensor | None, shaken: Sequence[torch.Tensor]
) -> Distance:
    wanted = same if same is not None else exact
    if found.dtype is torch.bool or not wanted.dtype.is_floating_point:
        wrong = found.to(torch.int64) != wanted.to(torch.int64)
    else:
        wrong = found.double() != wanted.double()
    if found.dtype is not torch.bool:
        for one in shaken:
            wrong &= found.double() != one.detach().cpu().double()
    if not bool(wrong.any()):
        return Distance(True, 0.0, 0.0)
    if same is not None and same.shape == exact.shape:
        # Where the reference rounds otherwise from float64, the last place is a matter of rounding.
        rounded = same.double() != exact.double()
        if bool((rounded & ((found.double() - exact.double()).abs() <= 1))[wrong].all()):
            return Distance(True, 0.0, 0.0)
    index = _place(wrong)
    error = (found.double() - wanted.double()).abs() / wanted.double().abs().clamp(min=1)
    return Distance(
        False,
        None,
        None if found.dtype is torch.bool else float(error[wrong].max()),
        f"{_count(wrong)} differ, at {index} it is {found[index].item()}, not {wanted[index].item()}",
    )


def _floats(
    found: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None,
    terms: float,
    reach: float,
    spared: torch.Tensor | None = None,
) -> Distance:
    if spared is None and found.numel() > LARGE and _plainly_close(found, exact):
        # All is within the usual tolerance; how far in units of the last place is looked up at some places.
        step = found.numel() // LARGE + 1
        few = [t.reshape(-1)[::step] for t in (found, exact)]
        return _floats(few[0], few[1], None if same is None else same.reshape(-1)[::step], terms, reach)
    own = None if same is None or same.shape != exact.shape else same.double()
    return _measured(found.double(), exact.double(), own, found.dtype, terms, reach, None, spared)


def _plainly_close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether every element is within the dtype's tolerance, by few passes over the memory."""
    relative, absolute = TOLERANCES.get(found.dtype, (0.0, 0.0))
    if found.itemsize == 1:  # torch has no arithmetic for 8 bits
        return False
    error = found.to(exact.dtype).sub_(exact).abs_() if found.dtype != exact.dtype else (found - exact).abs_()
    return bool(error.sub_(exact.abs(), alpha=relative).max() <= absolute)


def _measured(
    found: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor | None,
    dtype: torch.dtype,
    terms: float,
    reach: float,
    sizes: torch.Tensor | None,
    spared: torch.Tensor | None = None,
) -> Distance:
    """All in float64; `dtype` is that of the result, which its last place belongs to; `spared` is allowed besides."""
    info = torch.finfo(dtype)
    relative, absolute = TOLERANCES.get(
        dtype, (next((v for k, v in FP8_RELATIVE.items() if k in _name(dtype)), 0.0), 0.0)
    )
    relative = max(relative, HALF_STEPS * info.eps if info.bits == 16 else info.eps / 2)
    # What the dtype cannot hold is infinite, or its largest number where it has no infinity.
    over = exact.abs() > info.max
    exact = torch.where(over, torch.sign(exact) * torch.inf, exact)
    saturated = over & (found.abs() >= info.max) & (torch.sign(found) == torch.sign(exact))
    lost = over & ~torch.isfinite(found)
    size = exact.abs() if sizes is None else sizes
    finite = torch.isfinite(exact)
    error = torch.where(finite, (found - exact).abs(), torch.zeros_like(exact))
    kept = size[finite]
    largest = float(kept.max()) if kept.numel() else 0.0
    least = min(absolute, absolute * min(1.0, largest) + OF_LARGEST * info.eps * reach)
    allowed = least + relative * torch.where(finite, size, torch.zeros_like(size))
    # Neighbours of numbers below the smallest normal one lie as far apart as there.
    allowed = allowed + info.smallest_normal * info.eps
    if terms > 1:
        root = max(info.eps, torch.finfo(torch.float32).eps * terms**0.5) if info.bits <= 16 else info.eps * terms**0.5
        allowed = allowed + OF_LARGEST * root * largest
    if spared is not None:
        allowed = allowed + spared
    agrees = torch.zeros_like(finite)
    if same is not None:
        own = (same - exact).abs()
        own = torch.where(finite & torch.isfinite(own), own, torch.zeros_like(own))
        allowed = allowed + OF_REFERENCE * own
        # Where the reference itself is further off than rounding explains, results hang together, as in a scan.
        rounded = own <= ROUNDING_STEPS * info.eps * exact.abs().nan_to_num(posinf=0.0, neginf=0.0)
        if terms > 1 or float((~rounded & finite).double().mean()) > SCANS:
            allowed = allowed + OF_REFERENCE * float(own.max())
        # Equal bits to the reference in the same dtype are right, whatever float64 says: NaN and infinity included.
        agrees = (found == same) | (torch.isnan(found) & torch.isnan(same))
    wrong = (finite & ~(error <= allowed)) | (~finite & ~_same_odd(found, exact) & ~saturated & ~lost)
    wrong &= ~agrees
    off = finite & (found != exact) & ~agrees
    if info.bits == 8 and int(off.sum()) > max(1.0, FP8_OFF * off.numel()):
        wrong |= off
    steps = _ulp(torch.clamp(exact.abs(), min=largest * NEAR_ZERO), info)
    shown = torch.where(finite & torch.isfinite(error), error / steps, torch.zeros_like(error))
    ulp = float(shown.max())
    scale = torch.clamp(size, min=info.tiny)
    ratio = torch.where(finite & torch.isfinite(error), error / scale, torch.zeros_like(error))
    worst_relative = float(ratio.max())
    if not bool(wrong.any()):
        return Distance(True, ulp, worst_relative)
    excess = torch.where(wrong, torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf), torch.zeros_like(error))
    index = _place(wrong & (excess == excess.max())) if bool(excess.max() > 0) else _place(wrong)
    return Distance(
        False,
        ulp,
        worst_relative,
        f"{_count(wrong)} differ, at {index} it is {told_apart(float(found[index]), float(exact[index]))}",
    )


def told_apart(found: float, exact: float) -> str:
    """ "6.2, not 6.3" with as many digits as tell the two apart, six at least; 17 tell any two numbers of float64."""
    for digits in range(6, 17):
        left, right = f"{found:.{digits}g}", f"{exact:.{digits}g}"
        if left != right:
            return f"{left}, not {right}"
    return f"{found:.17g}, not {exact:.17g}"


def _same_odd(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Whether both are NaN, or the same infinity."""
    return (torch.isnan(found) & torch.isnan(exact)) | (found == exact)


def _ulp(exact: torch.Tensor, info: torch.finfo) -> torch.Tensor:
    """The distance of neighbouring numbers of a dtype at each value."""
    magnitude = torch.where(torch.isfinite(exact), exact.abs(), torch.ones_like(exact)).clamp(min=info.smallest_normal)
    return torch.exp2(torch.floor(torch.log2(magnitude))) * info.eps


def _place(wrong: torch.Tensor) -> tuple[int, ...]:
    """Index of the first that is wrong."""
    return tuple(int(i) for i in wrong.nonzero()[0])


def _count(wrong: torch.Tensor) -> str:
    count = int(wrong.sum())
    return f"{count:,} of {wrong.numel():,}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
