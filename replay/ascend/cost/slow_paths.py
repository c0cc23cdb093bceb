# pyright: strict
"""Slow paths of the kernel library: which calls take a slow path, and how long they take; values and pure functions.

The paths are read from data: `devices/_slow_paths.toml`, and additions in a device file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

import msgspec

from opreplay.replay.ascend.cost.cube import Gemm, gemm_of
from opreplay.replay.ascend.cost.sizes import first
from opreplay.replay.ascend.profile import SlowPath
from opreplay.replay.ir.kernel import HALF, UNIFIED_BUFFER, KernelCall, itemsize

SCALAR_CYCLES = 25.0
"""Maximum number of cycles per element if one core processes elements one at a time. Measured for a
cumulative product.
"""
UNDIVIDED = 4096
"""Maximum number of elements inside a middle dimension that one core processes without splitting.

It is the largest measured value. Longer lines are assumed to be split over cores. No measurement shows this, because
all have at least 16 outer slices.
"""
SHORT_ROW_BYTES = 256
"""Maximum bytes of a short row. Such a row takes a fixed start time, whatever it contains. The value is half of what a
vector core moves in one transfer at full rate.
"""
FEW_ROWS = 16
"""Maximum number of rows for which a product with one column still runs on the cube.

Measured on a 910B4-1: 8 rows take 7 us, 32 rows take 17 us.
"""
ALIGNED = 32
"""Alignment in bytes that the rows of a product's operands need for fast loading."""


class Lines(msgspec.Struct, frozen=True):
    """Division of a tensor along one dimension: the number of outer slices, of lines in each slice, and of elements in
    a line.
    """

    outer: int
    lines: int
    inner: int


def lines_of(call: KernelCall) -> Lines | None:
    """Return how the dimension that a call works along divides its first tensor.

    The attrs `cols` and `inner` give the dimension. Without `inner`, it is the innermost one. Returns None if there is
    no tensor or it has no dimensions.
    """
    source = first(call.inputs)
    if source is None or not source.shape:
        return None
    total = prod(source.shape)
    inner, cols = call.attrs.get("inner"), call.attrs.get("cols")
    length = cols if isinstance(cols, int) and cols > 0 else source.shape[-1]
    if isinstance(inner, int) and inner > 1:
        return Lines(max(1, total // max(1, length * inner)), length, inner)
    return Lines(max(1, total // max(1, length)), 1, max(1, length))


def _middle(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    inner = call.attrs.get("inner")
    return isinstance(inner, int) and inner > 1


def _long_rows(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    source, lines = first(call.inputs), lines_of(call)
    return source is not None and lines is not None and lines.inner * itemsize(source.dtype) > 4 * UNIFIED_BUFFER


def _unaligned(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    source = call.inputs[0] if call.inputs else None
    if source is None or source.dtype != "float32":
        return False
    gemm = gemm or gemm_of(call)
    if gemm is None or min(gemm.m, gemm.n, gemm.k) < 256:
        return False
    a_row = gemm.k if gemm.a_along_k else gemm.m
    b_row = gemm.k if gemm.b_along_k else gemm.n
    return a_row * 4 % ALIGNED != 0 or b_row * 4 % ALIGNED != 0


def _one_column(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    gemm = gemm or gemm_of(call)
    return gemm is not None and gemm.n == 1 and gemm.m > FEW_ROWS and gemm.dtype in HALF


def _like(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    source = first(call.inputs)
    if source is None or (path.dtype and source.dtype != path.dtype):
        return False
    return path.elements[0] <= prod(source.shape) <= path.elements[1]


def _short_rows(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    rows = first(call.outputs)
    return rows is not None and len(rows.shape) > 1 and rows.shape[-1] * itemsize(rows.dtype) <= SHORT_ROW_BYTES


def _many_dimensions(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    source, inner = first(call.inputs), call.attrs.get("inner")
    return source is not None and len(source.shape) > 3 and isinstance(inner, int) and inner > 1


def _unlike(call: KernelCall, path: SlowPath, gemm: Gemm | None) -> bool:
    shapes = {spec.shape for spec in call.inputs if spec is not None and prod(spec.shape) > 1}
    return len(shapes) > 1 and (not path.dtype or _like(call, path, gemm))


CONDITIONS: dict[str, Callable[[KernelCall, SlowPath, Gemm | None], bool]] = {
    "always": lambda call, path, gemm: True,
    "middle dimension": _middle,
    "innermost dimension": lambda call, path, gemm: not _middle(call, path, gemm),
    "long rows": _long_rows,
    "short rows": _short_rows,
    "inside of four dimensions": _many_dimensions,
    "unaligned float32 operands": _unaligned,
    "one column": _one_column,
    "like": _like,
    "operands of different shapes": _unlike,
}


def path_of(call: KernelCall, paths: Sequence[SlowPath], gemm: Gemm | None = None) -> SlowPath | None:
    """Return the first slow path in `paths` that applies to a call; None if none applies.

    Pass `gemm_of(call)` as `gemm` if it is already computed. If the dimension has one element, the kernel only copies.
    Only paths that multiply the time by a factor can then apply.
    """
    single = call.attrs.get("cols") == 1
    for path in paths:
        if CONDITIONS[path.when](call, path, gemm) and not (single and path.how != "factor"):
            return path
    return None


def is_far(call: KernelCall, path: SlowPath) -> bool:
    """Check whether a call's dimension is far longer or shorter than all dimensions measured for the slow path."""
    shortest, longest = path.lengths
    cut = lines_of(call)
    if longest <= 0.0 or cut is None:
        return False
    return not shortest / EXTRAPOLATION_FACTOR <= length_of(cut) <= longest * EXTRAPOLATION_FACTOR


def length_of(cut: Lines) -> int:
    """Return the number of elements along the dimension that the kernel works on."""
    return cut.lines if cut.lines > 1 else cut.inner


EXTRAPOLATION_FACTOR = 8.0
"""Factor by which a dimension may be outside the measured lengths before a prediction counts as an extrapolation."""


def slow_cycles(call: KernelCall, path: SlowPath, cores: int) -> float:
    """Return the cycles of the busiest core on a slow path whose `how` is "lines", "steps", "serial" or "dealt"."""
    source = first(call.inputs)
    if source is None:
        return 0.0
    if path.how in ("serial", "dealt"):
        result = first(call.outputs) or source
        return prod(result.shape) * path.cycles / (cores if path.how == "dealt" else 1)
    cut = lines_of(call)
    if cut is None:
        return 0.0
    if path.how == "steps":
        n = prod(source.shape)
        length = length_of(cut)
        # One step after the other; what lies beside each other is dealt out to cores.
        return min(n * SCALAR_CYCLES, length * (path.row_cycles + path.cycles * max(1.0, n / length / cores)))
    inner = min(cut.inner, UNDIVIDED) if cut.lines > 1 else cut.inner
    slices = ceil(cut.outer * ceil(cut.inner / max(1, inner)) / cores)
    one_by_one_cycles = prod(source.shape) * max(SCALAR_CYCLES, path.row_cycles / max(1, cut.inner))
    return min(one_by_one_cycles, slices * cut.lines * (path.row_cycles + inner * path.cycles))
