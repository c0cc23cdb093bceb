# pyright: strict
"""Corrects a prediction by kernels of similar sizes (neighbours) that were measured on the same SoC.

The correction gets smaller the more the sizes differ. `fit` fits constants that all sizes share. Errors that remain at
some sizes (due to an unsuitable tiling, a format or a quirk of the library) are similar at nearby sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, log2
from typing import NamedTuple

from opreplay.replay.ascend.cost.cube import Gemm, gemm_of
from opreplay.replay.ascend.cost.sizes import Tally, tally_of
from opreplay.replay.ascend.profile import FamilyCost, Neighbour
from opreplay.replay.ir.kernel import HALF, KernelCall, State

PRODUCT_REACH = (2.0, 0.3, 0.3)
OTHER_REACH = (2.0, 0.75, 1.0)
"""Differences in sizes, in octaves, at which the similarity of two kernels falls to exp(-1/2).

PRODUCT_REACH is for rows, columns and depth of a product, OTHER_REACH for rows and row length of other kernels. Rows
have a long reach, because measuring weights with one number of rows helps to predict the same weights with other
numbers of rows. It hardly helps to predict other weights.
"""

SPREAD = 0.2
"""Standard deviation of the log errors that remain after fitting. It is 1.5 to 2 times the noise of a single kernel."""

NOISE = 0.1
"""Standard deviation of the part of a kernel's log error that its neighbours do not share. Repetitions of a kernel vary
by 0.06.
"""

MAX_LOG_ERROR = 0.35
"""Limit on a neighbour's log error and on the log of the correction. A neighbour with a larger error is an outlier."""

MAX_NEIGHBOURS = 64
"""Maximum number of neighbours kept per family; a prediction searches all neighbours of its kind."""

FARTHEST = 5.0
"""Distance in columns, divided by the reach, beyond which a neighbour is ignored. At that distance its weight is below
one hundred-thousandth.
"""

EXTRAPOLATION_FACTOR = 8.0
"""Factor by which sizes may be outside a family's measured sizes before a prediction counts as an extrapolation."""

SAME = 1e-6
"""Maximum distance at which sizes are treated as equal, in octaves divided by the reach."""

FORMS = frozenset(
    {"elementwise", "optimizer", "foreach", "rowwise", "reduce", "copy", "transdata", "pool", "fill", "matmul", "conv"}
)
"""Forms whose cost follows from shapes. Lookups, sorts, transpositions and attention are missing because their cost
depends on data that kernel tables do not contain.
"""


Spot = tuple[float, float, float]
"""Position of a kernel: log2 of each size, divided by the reach. The sizes are (rows, columns, depth) of a product, or
(rows, row length, 1) of another kernel.
"""


class Place(NamedTuple):
    """Kind and sizes of a kernel; only kernels of the same family and kind are compared."""

    kind: str
    """Types, formats and transposition of a kernel. A kernel does not help to predict kernels of another kind."""
    spot: Spot


def place_of(
    call: KernelCall, form: str, gemm: Gemm | None = None, state: State = "network", tally: Tally | None = None
) -> Place | None:
    """Return the kind and sizes of a call; None if it cannot be compared with other calls.

    Pass `gemm_of(call)` and `tally_of(call)` if they are already computed. Kernels in a loop on warm caches have
    another kind than kernels in a network, because their prediction errors differ.
    """
    if form == "matmul":
        gemm = gemm or gemm_of(call)
    elif form in FORMS:
        tally = tally or tally_of(call)
    kind = _kind_of(call, form, gemm, state, tally)
    return Place(kind, _spot_of(form, gemm, tally)) if kind else None


def _kind_of(call: KernelCall, form: str, gemm: Gemm | None, state: State, tally: Tally | None) -> str:
    """Return the kind of a call (see `Place.kind`); "" if the call cannot be compared with others."""
    warm = state == "warm"
    if form == "matmul":
        if gemm is None or not gemm.batch * gemm.m * gemm.n * gemm.k:
            return ""
        along = gemm.a_along_k, gemm.b_along_k
        return _product_kind(gemm.dtype, *along, gemm.a_fractal, gemm.b_fractal, gemm.batch > 1, warm)
    if tally is None or not tally.elements:
        return ""
    before = None
    for spec in call.inputs or call.outputs:
        if spec is not None:
            if before is not None:
                return _kind(warm, before.dtype, before.format, spec.dtype, spec.format)
            before = spec
    return _kind(warm, before.dtype, before.format) if before is not None else ""


def _spot_of(form: str, gemm: Gemm | None, tally: Tally | None) -> Spot:
    if gemm is not None:
        rows, columns, depth = PRODUCT_REACH
        return log2(gemm.batch * gemm.m) / rows, log2(gemm.n) / columns, log2(gemm.k) / depth
    assert tally is not None and tally.widest is not None  # noqa: PT018 - one of the two that `_kind_of` asks for
    shape = tally.widest.shape
    length = shape[-1] if shape else 1
    rows, columns, _ = OTHER_REACH
    return log2(tally.elements / length) / rows, log2(length) / columns, 0.0


@lru_cache(maxsize=4096)
def _kind(warm: bool, *named: str) -> str:
    kind = ", ".join(f"{_dtype(named[i])} {named[i + 1]}" for i in range(0, len(named), 2))
    return f"warm {kind}" if warm else kind


@lru_cache(maxsize=256)
def _product_kind(
    dtype: str, a_along_k: bool, b_along_k: bool, a_nz: bool, b_nz: bool, batched: bool, warm: bool
) -> str:
    kind = f"{_dtype(dtype)} {'NT'[not a_along_k]}{'NT'[b_along_k]}"
    if a_nz or b_nz:
        kind += f" fractal {'a' * a_nz}{'b' * b_nz}"
    kind = f"{kind} batched" if batched else kind
    return f"warm {kind}" if warm else kind


def _dtype(name: str) -> str:
    return "half" if name in HALF else name


def spot(rows: float, columns: float, depth: float, form: str) -> Spot:
    """Return the sizes as a position in which distances are octaves divided by the form's reach."""
    r, c, d = PRODUCT_REACH if form == "matmul" else OTHER_REACH
    return log2(rows) / r, log2(columns) / c, log2(depth) / d


def sizes_at(spot: Spot, form: str) -> tuple[int, ...]:
    """Return the sizes (rows, columns, depth) at the position `spot`."""
    reach = PRODUCT_REACH if form == "matmul" else OTHER_REACH
    return tuple(round(2 ** (x * r)) for x, r in zip(spot, reach, strict=True))


def likeness(a: Spot, b: Spot) -> float:
    """Return the similarity of two positions: 1 for the same sizes, decreasing with the octaves between them."""
    return exp(-0.5 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def neighbour_factor(
    call: KernelCall,
    family: FamilyCost,
    gemm: Gemm | None = None,
    state: State = "network",
    tally: Tally | None = None,
) -> float:
    """Return the factor by which the family's measured neighbours correct a call's predicted time; 1 if there
    are none.
    """
    form = family.form
    if form == "matmul":
        gemm = gemm or gemm_of(call)
    elif form in FORMS:
        tally = tally or tally_of(call)
    else:
        return 1.0
    neighbours = family.nearby.get(_kind_of(call, form, gemm, state, tally))
    if neighbours is None:
        return 1.0
    # The sum of pull * likeness, written out: it is taken for every kernel that is predicted.
    rows, columns, depth = _spot_of(form, gemm, tally)
    total = 0.0
    nearest_column, farthest_column = columns - FARTHEST, columns + FARTHEST
    for x, y, z, pull in neighbours:
        if nearest_column < y < farthest_column:
            y -= columns
            x -= rows
            z -= depth
            total += pull * exp(-0.5 * (y * y + x * x + z * z))
    return exp(max(-MAX_LOG_ERROR, min(MAX_LOG_ERROR, total))) if total else 1.0


def largest(call: KernelCall) -> tuple[float, str]:
    """Return the number of elements and the dtype of a call's largest operand.

    All half-precision dtypes are returned as one dtype.
    """
    tally = tally_of(call)
    return float(tally.elements), _dtype(tally.dtype)


def is_outside(family: FamilyCost, tally: Tally) -> bool:
    """Check whether a call's sizes or dtype are far outside its family's measurements. True also if the family has
    none.
    """
    n, largest_measured = tally.elements, family.most_elements
    if (
        largest_measured <= 0.0
        or n > EXTRAPOLATION_FACTOR * largest_measured
        or n * EXTRAPOLATION_FACTOR < family.least_elements
    ):
        return True
    dtype = tally.dtype
    return bool(dtype) and ("half" if dtype in HALF else dtype) not in family.dtypes


def is_learned(call: KernelCall, family: FamilyCost, state: State = "network") -> bool:
    """Check whether a kernel of this kind and exactly these sizes is among the family's measured neighbours."""
    place = place_of(call, family.form, state=state) if family.nearby else None
    if place is None:
        return False
    return any(
        max(abs(x - y) for x, y in zip(neighbour[:3], place.spot, strict=True)) < SAME
        for neighbour in family.nearby.get(place.kind, ())
    )


def learn_neighbours(measured: Sequence[tuple[Place, float]]) -> dict[str, tuple[Neighbour, ...]]:
    """Return a family's neighbours by kind.

    `measured` holds (place, log(measured / predicted)) in descending order of importance. The corrections are those of
    a Gaussian process with mean 0. A kernel far from all neighbours therefore gets no correction. Next to a single
    neighbour, four fifths of the neighbour's error is corrected.
    """
    import numpy as np

    kinds: dict[str, list[tuple[Spot, float]]] = {}
    for place, residual in measured[:MAX_NEIGHBOURS]:
        kinds.setdefault(place.kind, []).append((place.spot, min(MAX_LOG_ERROR, max(-MAX_LOG_ERROR, residual))))
    out: dict[str, tuple[Neighbour, ...]] = {}
    for kind, known in kinds.items():
        alike = np.array([[SPREAD**2 * likeness(a, b) for b, _ in known] for a, _ in known])
        weights = np.linalg.solve(alike + NOISE**2 * np.eye(len(known)), np.array([r for _, r in known]))
        out[kind] = tuple((*at, float(SPREAD**2 * weight)) for (at, _), weight in zip(known, weights, strict=True))
    return out
