"""What kernels measured on the same SoC say about others of nearly their sizes; a factor that vanishes away from them.

Owns which kernels are alike and how far that reaches. `fit` owns the constants, which all sizes share; what they leave
over at some sizes (a tiling that suits them badly, a format, a habit of the library) is the same a little beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log2, prod
from typing import NamedTuple

from opreplay.replay.ascend.cost.cube import gemm_of
from opreplay.replay.ascend.cost.sizes import HALF, itemsize
from opreplay.replay.ascend.kernel import KernelCall, TensorSpec
from opreplay.replay.ascend.profile import FamilyCost, Neighbour

REACH = {"product": (2.0, 0.3, 0.3), "other": (2.0, 0.75, 1.0)}
"""Octaves over which likeness falls to exp(-1/2), by size: rows, columns and depth of a product, rows and row length
of others. Weights that a table names with one number of rows serve other numbers of rows, hardly other weights."""

SPREAD = 0.2
"""Spread of what constants leave over, in log units: 1.5 to 2 times that of a single kernel's noise."""

NOISE = 0.1
"""Spread of one kernel's own oddity, which tells nothing of its neighbours; repeats of one shape vary by 0.06."""

MOST = 0.35
"""Log error of one kernel beyond which it counts as odd, and bound of the correction that results."""

MAX_NEIGHBOURS = 64
"""Neighbours that one family keeps: the search goes through all of a kind."""

FORMS = frozenset(
    {"elementwise", "optimizer", "foreach", "rowwise", "reduce", "copy", "transdata", "pool", "fill", "matmul", "conv"}
)
"""Forms whose cost follows from shapes; lookups, sorts, transpositions and attention depend on what a table lacks."""


class Place(NamedTuple):
    """Where a kernel stands among those of its family."""

    kind: str
    """Types, formats and transposition: kernels of different kinds say nothing of each other."""
    sizes: tuple[int, int, int]
    """(rows, columns, depth) of a product, (rows, row length, 1) of the largest tensor of others."""


def place_of(call: KernelCall, form: str) -> Place | None:
    """Kind and sizes of a call; None where there is nothing to compare it by."""
    if form == "matmul":
        gemm = gemm_of(call)
        if gemm is None or not gemm.batch * gemm.m * gemm.n * gemm.k:
            return None
        kind = f"{_dtype(gemm.dtype)} {'NT'[not gemm.a_along_k]}{'NT'[gemm.b_along_k]}"
        if gemm.a_fractal or gemm.b_fractal:
            kind += f" fractal {'a' * gemm.a_fractal}{'b' * gemm.b_fractal}"
        return Place(f"{kind} batched" if gemm.batch > 1 else kind, (gemm.batch * gemm.m, gemm.n, gemm.k))
    if form not in FORMS:
        return None
    biggest, most, named = None, -1, []
    for spec in call.inputs:
        if spec is not None:
            if len(named) < 2:
                named.append(f"{_dtype(spec.dtype)} {spec.format}")
            size = prod(spec.shape) * itemsize(spec.dtype)
            if size > most:
                biggest, most = spec, size
    for spec in call.outputs:
        if spec is not None and prod(spec.shape) * itemsize(spec.dtype) > most:
            biggest, most = spec, prod(spec.shape) * itemsize(spec.dtype)
    return _of_tensor(biggest, ", ".join(named)) if biggest is not None and most > 0 else None


def _of_tensor(spec: TensorSpec, kind: str) -> Place:
    length = spec.shape[-1] if spec.shape else 1
    return Place(kind, (prod(spec.shape) // length, length, 1))


def _dtype(name: str) -> str:
    return "half" if name in HALF else name


def likeness(a: tuple[int, int, int], b: tuple[int, int, int], form: str) -> float:
    """1 for the same sizes, less the more octaves lie between them, 0 where they have nothing to do with each other."""
    reach = REACH["product" if form == "matmul" else "other"]
    far = sum((log2(x / y) / r) ** 2 for x, y, r in zip(a, b, reach, strict=True))
    return exp(-0.5 * far) if far < 30 else 0.0


def correction(call: KernelCall, family: FamilyCost) -> float:
    """Factor on the predicted time from the family's measured neighbours of the call; 1 where there are none."""
    place = place_of(call, family.form)
    if place is None:
        return 1.0
    total = 0.0
    for neighbour in family.nearby.get(place.kind, ()):
        total += neighbour.pull * likeness(place.sizes, neighbour.sizes, family.form)
    return exp(min(MOST, max(-MOST, total))) if total else 1.0


def learned(measured: Sequence[tuple[Place, float]], form: str) -> dict[str, tuple[Neighbour, ...]]:
    """Neighbours of one family on one SoC from (place, log of measured over predicted), in order of importance.

    A Gaussian process with mean 0: far from all kernels nothing is left, and beside one alone four fifths of its error.
    """
    import numpy as np

    kinds: dict[str, list[tuple[tuple[int, int, int], float]]] = {}
    for place, residual in measured[:MAX_NEIGHBOURS]:
        kinds.setdefault(place.kind, []).append((place.sizes, min(MOST, max(-MOST, residual))))
    out: dict[str, tuple[Neighbour, ...]] = {}
    for kind, known in kinds.items():
        alike = np.array([[SPREAD**2 * likeness(a, b, form) for b, _ in known] for a, _ in known])
        weights = np.linalg.solve(alike + NOISE**2 * np.eye(len(known)), np.array([r for _, r in known]))
        out[kind] = tuple(
            Neighbour(sizes=sizes, pull=float(SPREAD**2 * weight))
            for (sizes, _), weight in zip(known, weights, strict=True)
        )
    return out
