# pyright: strict
"""Lowering of pooling over one, two or three dimensions, forward and backward.

Resampling is in `resampling`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.costs.products.convolution import trans_data
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta


def space_of(op: OpView, meta: TensorMeta) -> int:
    """Return the number of pooled or resampled dimensions, from the op's name or 2 by default."""
    name = op.op.name.split(".")[0]
    said = next((n for n in (1, 2, 3) if f"{n}d" in name), 2)
    return min(said, len(meta.shape))


def images(meta: TensorMeta, space: int) -> TensorSpec:
    """Return a feature map as (N, C, H, W): depth is folded into the batch, a single dimension is the width."""
    shape = meta.shape
    if len(shape) < space:
        raise DoesNotFit(f"sizes {list(shape)} are too few for an image with {space} dimensions")
    extent = shape[len(shape) - space :]
    lead = shape[: len(shape) - space]
    channels = lead[-1] if lead else 1
    batch = prod(lead[:-1])
    if space == 3:
        batch, extent = batch * extent[0], extent[1:]
    height, width = (1, *extent)[-2:]
    return spec((batch, channels, height, width), meta.dtype, "NCHW")


def blocked(plain: TensorSpec) -> TensorSpec:
    """Return the feature map in blocks of 16 channels."""
    n, c, h, w = plain.shape
    return spec((n, -(-c // 16), h, w, 16), plain.dtype, "NC1HWC0")


def _each(values: tuple[int, ...], space: int, default: int) -> tuple[int, ...]:
    return values * space if len(values) == 1 else values if len(values) == space else (default,) * space


def result_of(op: OpView, meta: TensorMeta, space: int) -> TensorSpec:
    """Return the first output as (N, C, H, W). It is recorded, or computed from the output size, scale or window."""
    if op.op.outputs and op.op.outputs[0] is not None:
        return images(op.op.outputs[0], space)
    lead, extent = meta.shape[: len(meta.shape) - space], meta.shape[len(meta.shape) - space :]
    fixed = op.integers("output_size")
    if fixed:
        sizes = _each(fixed, space, 1)
    else:
        window = _each(op.integers("kernel_size"), space, 2)
        step = _each(op.integers("stride"), space, 0)
        pad = _each(op.integers("padding"), space, 0)
        rows = zip(extent, window, step, pad, strict=True)
        sizes = tuple(max(1, (x + 2 * p - k) // max(1, s or k) + 1) for x, k, s, p in rows)
    return images(TensorMeta(shape=(*lead, *(max(1, s) for s in sizes)), dtype=meta.dtype), space)


def _input(op: OpView, at: int = 0) -> TensorMeta:
    return op.need("self", "input", at=at, rank=2)


@costs(
    """
        aten::max_pool2d_with_indices aten::max_pool2d aten::max_pool1d aten::max_pool1d_with_indices
        aten::mkldnn_max_pool2d aten::quantized_max_pool1d aten::quantized_max_pool2d
    """
)
def max_pool(op: OpView) -> Iterable[KernelCall]:
    """Return MaxPoolWithArgmaxV1 between two layout conversions."""
    meta = _input(op)
    space = space_of(op, meta)
    plain, result = images(meta, space), result_of(op, meta, space)
    x, y = blocked(plain), blocked(result)
    window = prod(_each(op.integers("kernel_size"), space, 2))
    mask = spec((*y.shape[:2], window, -(-y.shape[2] * y.shape[3] // 16) + 1, 16), "uint16", "NC1HWC0")
    return [trans_data(plain, x), kernel("MaxPoolWithArgmaxV1", [x], [y, mask]), trans_data(y, result)]


@costs(
    """
        aten::max_pool2d_with_indices_backward aten::max_pool2d_backward aten::mkldnn_max_pool2d_backward
        aten::mps_max_pool2d_backward
    """
)
def max_pool_backward(op: OpView) -> Iterable[KernelCall]:
    """Return MaxPoolGradWithArgmaxV1 between layout conversions."""
    grad = op.need("grad_output", at=0)
    plain, result = images(_input(op, 1), 2), images(grad, 2)
    x, y = blocked(plain), blocked(result)
    return [
        trans_data(plain, x),
        trans_data(result, y),
        kernel("MaxPoolGradWithArgmaxV1", [x, y], [x]),
        trans_data(x, plain),
    ]


@costs(
    """
        aten::avg_pool2d aten::avg_pool1d aten::avg_pool3d aten::max_pool3d_with_indices aten::max_pool3d
        aten::lp_pool2d aten::fractional_max_pool2d aten::fractional_max_pool3d aten::mkldnn_max_pool3d
        aten::quantized_max_pool3d
    """
)
def plain_pool(op: OpView) -> Iterable[KernelCall]:
    """Return AvgPoolV2 or MaxPool3D in torch's layout."""
    meta = _input(op)
    space = space_of(op, meta)
    kind = "AvgPoolV2" if "avg" in op.op.name else "MaxPool3D"
    return [kernel(kind, [images(meta, space)], [result_of(op, meta, space)])]


@costs(
    """
        aten::avg_pool2d_backward aten::avg_pool3d_backward aten::max_pool3d_with_indices_backward
        aten::fractional_max_pool2d_backward aten::fractional_max_pool3d_backward aten::mkldnn_max_pool3d_backward
    """
)
def plain_pool_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the gradient kernel of AvgPoolV2 or MaxPool3D, in torch's layout."""
    meta, grad = _input(op, 1), op.meta("grad_output", at=0)
    space = space_of(op, meta)
    plain = images(meta, space)
    kind = "AvgPoolGrad" if "avg" in op.op.name else "MaxPool3DGradWithArgmax"
    return [kernel(kind, [plain if grad is None else images(grad, space)], [plain])]


@costs("aten::max_unpool2d aten::max_unpool3d")
def unpool(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that clear a tensor, then write single elements at the recorded positions."""
    meta = _input(op)
    space = space_of(op, meta)
    plain, result = images(meta, space), result_of(op, meta, space)
    n = prod(plain.shape)
    moved = n * (4 if meta.dtype == "float32" else 2)
    write = kernel("MaxUnpool2D", [result], [result], indices=n // 64 + 1, moved_bytes=moved)
    return [kernel("ZerosLike", [result], [result]), write]


@costs(
    """
        aten::adaptive_avg_pool2d aten::_adaptive_avg_pool2d aten::adaptive_avg_pool3d aten::_adaptive_avg_pool3d
        aten::adaptive_avg_pool1d aten::adaptive_max_pool2d aten::adaptive_max_pool1d aten::adaptive_max_pool3d
        aten::mkldnn_adaptive_avg_pool2d
    """
)
def adaptive(op: OpView) -> Iterable[KernelCall]:
    """Return AdaptiveAvgPool3d or AdaptiveMaxPool3d between transposes, or a reduction for a global pool.

    The transposes are needed because the pooling kernel works on channels-last data.
    """
    meta = _input(op)
    space = space_of(op, meta)
    plain, result = images(meta, space), result_of(op, meta, space)
    if prod(result.shape) == prod(meta.shape[: len(meta.shape) - space]):
        return [kernel("ReduceMax" if "max" in op.op.name else "ReduceMean", [plain], [result])]
    kind = "AdaptiveMaxPool3d" if "max" in op.op.name else "AdaptiveAvgPool3d"
    last, pooled = channels_last(plain), channels_last(result)
    extent, wanted = meta.shape[-space:], _adaptive_sizes(op, meta, space)
    channels = plain.shape[1]
    visited = prod(plain.shape[:1]) * visits(extent[-2:], wanted[-2:])
    if space == 3:
        visited = visited * visits(extent[:1], wanted[:1]) // max(1, extent[0])
    return [
        kernel("Transpose", [plain], [last], forward=True, swapped=(channels, prod(extent))),
        kernel(kind, [last], [pooled], visited=visited),
        kernel("Transpose", [pooled], [result], forward=True, swapped=(channels, prod(wanted))),
    ]


def _adaptive_sizes(op: OpView, meta: TensorMeta, space: int) -> tuple[int, ...]:
    if op.op.outputs and op.op.outputs[0] is not None:
        return op.op.outputs[0].shape[-space:]
    return _each(op.integers("output_size"), space, 1)


def visits(extent: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """Return the total number of positions in all adaptive windows. Windows overlap if the sizes do not
    divide evenly.
    """
    return prod(
        sum(-(-(place + 1) * size // count) - place * size // count for place in range(count)) if count > 0 else 0
        for size, count in zip(extent, wanted, strict=True)
    )


def channels_last(plain: TensorSpec) -> TensorSpec:
    """Return the spec of images with the channels as last dimension."""
    n, c, h, w = plain.shape
    return spec((n, h, w, c), plain.dtype)


@costs(
    """
        aten::_adaptive_avg_pool2d_backward aten::_adaptive_avg_pool3d_backward aten::adaptive_max_pool2d_backward
        aten::adaptive_max_pool3d_backward aten::adaptive_avg_pool3d_backward aten::mkldnn_adaptive_avg_pool2d_backward
    """
)
def adaptive_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels for the gradient of adaptive pooling, in channels-last layout."""
    meta, grad = _input(op, 1), op.meta("grad_output", at=0)
    space = space_of(op, meta)
    plain = images(meta, space)
    source = plain if grad is None else images(grad, space)
    if prod(source.shape) == prod(meta.shape[: len(meta.shape) - space]):
        return [kernel("BroadcastTo", [source], [plain])]
    turned, last = channels_last(source), channels_last(plain)
    return [
        kernel("Transpose", [source], [turned]),
        kernel("AdaptiveAvgPool3dGrad", [turned], [last]),
        kernel("Transpose", [last], [plain]),
    ]
