# pyright: strict
"""Lowering of interpolation, grid sampling, and windows to columns (im2col)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, prod
from typing import Any, cast

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.costs.rows.pooling import channels_last, images, result_of, space_of
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

UPSAMPLE = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
)

REPEATS = "elements are repeated: costed as an expansion (never measured)"
AS_POOLING = "costed like pooling of the same number of elements (never measured)"


def _source(op: OpView, *names: str, at: int = 0) -> TensorMeta:
    return op.need(*names, at=at, rank=2)


@costs(*(f"aten::{name}" for name in UPSAMPLE))
def upsample(op: OpView) -> Iterable[KernelCall]:
    """Return the interpolation kernel.

    Mode `nearest` repeats input elements. Other modes combine neighbouring elements.
    """
    meta = _source(op, "self", "input")
    space = space_of(op, meta)
    plain = images(meta, space)
    scale_factors = op.value("scale_factors")
    scales = cast("Sequence[Any]", scale_factors) if isinstance(scale_factors, tuple | list) else ()
    if not op.op.outputs and not op.integers("output_size") and scales:
        factors = [float(f) for f in scales if isinstance(f, int | float)]
        if len(factors) != space or not all(map(isfinite, factors)):
            raise DoesNotFit(f"{len(factors)} finite scales for {space} dimensions")
        extent = [max(1, int(n * f)) for n, f in zip(meta.shape[-space:], factors, strict=True)]
        result = images(TensorMeta(shape=(*meta.shape[:-space], *extent), dtype=meta.dtype), space)
    else:
        result = result_of(op, meta, space)
    nearest = "nearest" in op.op.name
    op.assume(REPEATS if nearest else AS_POOLING)
    return [kernel("UpsampleNearest" if nearest else "UpsampleBilinear2d", [plain], [result])]


@costs(*(f"aten::{name}_backward" for name in UPSAMPLE))
def upsample_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the gradient of interpolation. Every input element sums over the outputs that it contributed to."""
    meta = _source(op, "grad_output", "grad")
    space = space_of(op, meta)
    source = images(meta, space)
    sizes = op.integers("input_size")
    if op.op.outputs and op.op.outputs[0] is not None:
        target = images(op.op.outputs[0], space)
    elif len(sizes) == len(meta.shape):
        target = images(TensorMeta(shape=sizes, dtype=meta.dtype), space)
    else:
        target = source
    op.assume(AS_POOLING)
    return [kernel("UpsampleBilinear2dGrad", [source], [target])]


@costs(
    """
        aten::grid_sampler_2d aten::grid_sampler_3d aten::grid_sampler aten::cudnn_grid_sampler
        aten::_grid_sampler_2d_cpu_fallback
    """
)
def grid_sample(op: OpView) -> Iterable[KernelCall]:
    """Return GridSampler2D, which writes one element per position and channel.

    It reads images and a grid of positions. A transpose first makes the channels the innermost dimension. Devices whose
    cores load single elements skip the transpose.
    """
    meta, grid = _source(op, "input", "self"), op.meta("grid", at=1)
    space = len(meta.shape) - 2
    if grid is None or not 1 <= space <= 3:
        raise DoesNotFit("needs a grid")
    out = images(TensorMeta(shape=(*meta.shape[:2], *grid.shape[1 : 1 + space]), dtype=meta.dtype), space)
    op.assume(AS_POOLING)
    plain = images(meta, space)
    swapped = (plain.shape[1], prod(plain.shape[2:]))
    return [
        kernel("Transpose", [plain], [channels_last(plain)], forward=True, swapped=swapped),
        kernel("GridSampler2D", [plain, spec(grid.shape, grid.dtype)], [out]),
    ]


@costs(
    """
        aten::grid_sampler_2d_backward aten::grid_sampler_3d_backward aten::cudnn_grid_sampler_backward
        aten::_grid_sampler_2d_cpu_fallback_backward
    """
)
def grid_sample_backward(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that clear a gradient, add single elements to it, and compute the gradient of the grid."""
    grad, meta = _source(op, "grad_output", at=0), _source(op, "input", at=1)
    grid = op.meta("grid", at=2)
    out, source = spec(meta.shape, meta.dtype), spec(grad.shape, grad.dtype)
    op.assume(AS_POOLING)
    positions = [spec(grid.shape, grid.dtype)] if grid is not None else []
    return [
        kernel("ZerosLike", [out], [out]),
        kernel("UpsampleBilinear2dGrad", [source, out, *positions], [out, *positions]),
    ]


@costs("aten::im2col aten::col2im")
def columns(op: OpView) -> Iterable[KernelCall]:
    """Return Im2col, which copies windows to columns, or Col2im, which sums columns back into windows."""
    meta = _source(op, "self", "input")
    outs = op.outputs()
    if not outs:
        window = prod(op.integers("kernel_size") or (1,))
        outs = (spec((*meta.shape[:-2], prod(meta.shape[-2:]) * window), meta.dtype),)
    op.assume(AS_POOLING)
    return [kernel("Im2col" if "im2col" in op.op.name else "Col2im", [spec(meta.shape, meta.dtype)], outs)]
