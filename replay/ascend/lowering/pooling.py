"""Lowering of pooling and resampling."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ascend.kernel import KernelCall, TensorSpec
from opreplay.replay.ascend.lowering.convolution import trans_data
from opreplay.replay.ascend.lowering.registry import lowers
from opreplay.replay.ascend.lowering.view import OpView, kernel, spec
from opreplay.traces.model import TensorMeta


def _plain(meta: TensorMeta) -> TensorSpec:
    shape = meta.shape
    batch = prod(shape[:-3]) if len(shape) > 3 else 1
    channels, height, width = (1,) * (3 - len(shape[-3:])) + shape[-3:]
    return spec((batch, channels, height, width), meta.dtype, "NCHW")


def _blocked(plain: TensorSpec) -> TensorSpec:
    n, c, h, w = plain.shape
    return spec((n, -(-c // 16), h, w, 16), plain.dtype, "NC1HWC0")


def _result(op: OpView, source: TensorSpec) -> TensorSpec:
    if op.op.outputs and op.op.outputs[0] is not None:
        return _plain(op.op.outputs[0])
    n, c, h, w = source.shape
    fixed = op.integers("output_size")
    if fixed:
        return spec((n, c, fixed[0], fixed[-1]), source.dtype, "NCHW")
    window = op.integers("kernel_size") or (2, 2)
    step = op.integers("stride") or window
    pad = op.integers("padding") or (0, 0)
    sizes = [
        max(1, (x + 2 * p - k) // max(1, s) + 1)
        for x, k, s, p in ((h, window[0], step[0], pad[0]), (w, window[-1], step[-1], pad[-1]))
    ]
    return spec((n, c, *sizes), source.dtype, "NCHW")


def _input(op: OpView, at: int = 0) -> TensorMeta:
    meta = op.meta("self", "input", at=at)
    if meta is None or len(meta.shape) < 2:
        raise ValueError("pooling needs images")
    return meta


@lowers("aten::max_pool2d_with_indices", "aten::max_pool2d", "aten::max_pool1d", "aten::max_pool1d_with_indices")
def max_pool(op: OpView) -> Iterable[KernelCall]:
    """MaxPoolWithArgmaxV1 between two changes of layout."""
    plain = _plain(_input(op))
    result = _result(op, plain)
    x, y = _blocked(plain), _blocked(result)
    window = prod(op.integers("kernel_size") or (2, 2))
    mask = spec((*y.shape[:2], window, -(-y.shape[2] * y.shape[3] // 16) + 1, 16), "uint16", "NC1HWC0")
    return [trans_data(plain, x), kernel("MaxPoolWithArgmaxV1", [x], [y, mask]), trans_data(y, result)]


@lowers("aten::max_pool2d_with_indices_backward")
def max_pool_backward(op: OpView) -> Iterable[KernelCall]:
    """MaxPoolGradWithArgmaxV1 between changes of layout."""
    grad = op.meta("grad_output", at=0)
    if grad is None:
        raise ValueError("needs a gradient")
    plain, result = _plain(_input(op, 1)), _plain(grad)
    x, y = _blocked(plain), _blocked(result)
    return [
        trans_data(plain, x),
        trans_data(result, y),
        kernel("MaxPoolGradWithArgmaxV1", [x, y], [x]),
        trans_data(x, plain),
    ]


@lowers("aten::avg_pool2d", "aten::avg_pool1d", "aten::avg_pool3d", "aten::max_pool3d_with_indices", "aten::max_pool3d",
        "aten::lp_pool2d", "aten::fractional_max_pool2d")  # fmt: skip
def plain_pool(op: OpView) -> Iterable[KernelCall]:
    """AvgPoolV2 or MaxPool3D on torch's layout."""
    plain = _plain(_input(op))
    return [kernel("AvgPoolV2" if "avg" in op.op.name else "MaxPool3D", [plain], [_result(op, plain)])]


@lowers("aten::avg_pool2d_backward", "aten::avg_pool3d_backward", "aten::max_pool3d_with_indices_backward",
        "aten::max_unpool2d")  # fmt: skip
def plain_pool_backward(op: OpView) -> Iterable[KernelCall]:
    """The gradient on torch's layout."""
    grad = op.meta("grad_output", at=0)
    plain = _plain(_input(op, 1))
    kind = "AvgPoolGrad" if "avg" in op.op.name else "MaxPool3DGradWithArgmax"
    return [kernel(kind, [plain if grad is None else _plain(grad)], [plain])]


@lowers("aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool3d",
        "aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool1d", "aten::adaptive_max_pool2d")  # fmt: skip
def adaptive(op: OpView) -> Iterable[KernelCall]:
    """ReduceMean for a global pool, else AdaptiveAvgPool3d on channels-last data, turned before and after."""
    plain = _plain(_input(op))
    result = _result(op, plain)
    if result.shape[2:] == (1, 1):
        return [kernel("ReduceMean", [plain], [result])]
    last = spec((plain.shape[0], *plain.shape[2:], plain.shape[1]), plain.dtype)
    pooled = spec((result.shape[0], *result.shape[2:], result.shape[1]), plain.dtype)
    return [
        kernel("Transpose", [plain], [last]),
        kernel("AdaptiveAvgPool3d", [last], [pooled]),
        kernel("Transpose", [pooled], [result]),
    ]


@lowers("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward",
        "aten::adaptive_max_pool2d_backward")  # fmt: skip
def adaptive_backward(op: OpView) -> Iterable[KernelCall]:
    """The gradient, on channels-last data."""
    grad = op.meta("grad_output", at=0)
    plain = _plain(_input(op, 1))
    source = plain if grad is None else _plain(grad)
    if source.shape[2:] == (1, 1):
        return [kernel("BroadcastTo", [source], [plain])]
    last = spec((plain.shape[0], *plain.shape[2:], plain.shape[1]), plain.dtype)
    turned = spec((source.shape[0], *source.shape[2:], source.shape[1]), plain.dtype)
    return [
        kernel("Transpose", [source], [turned]),
        kernel("AdaptiveAvgPool3dGrad", [turned], [last]),
        kernel("Transpose", [last], [plain]),
    ]


@lowers(
    "aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d", "aten::upsample_bilinear2d",
    "aten::upsample_bicubic2d", "aten::upsample_linear1d", "aten::upsample_trilinear3d",
    "aten::_upsample_nearest_exact2d",
    "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa", "aten::grid_sampler_2d", "aten::im2col",
    "aten::col2im",
)  # fmt: skip
def resample(op: OpView) -> Iterable[KernelCall]:
    """Resampling, by its output."""
    plain = _plain(_input(op))
    kind = "UpsampleNearest" if "nearest" in op.op.name else "UpsampleBilinear2d"
    kind = {"aten::im2col": "Im2col", "aten::col2im": "Col2im", "aten::grid_sampler_2d": "GridSampler2D"}.get(
        op.op.name, kind
    )
    return [kernel(kind, [plain], [_result(op, plain)])]


@lowers("aten::upsample_nearest2d_backward", "aten::upsample_bilinear2d_backward", "aten::upsample_nearest1d_backward",
        "aten::upsample_bicubic2d_backward", "aten::grid_sampler_2d_backward")  # fmt: skip
def resample_backward(op: OpView) -> Iterable[KernelCall]:
    """The gradient of resampling, by its input."""
    source = _plain(_input(op) if op.meta("grad_output") is None else op.metas("grad_output")[0])
    return [kernel("UpsampleBilinear2dGrad", [source], op.outputs(source))]
