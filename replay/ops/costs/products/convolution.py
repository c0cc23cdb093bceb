# pyright: strict
"""Lowering of convolutions, forward and backward: layout conversions around the cube's kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import cast

from opreplay.replay.ir.kernel import HALF, KernelCall, TensorSpec
from opreplay.replay.ops.op_view import DoesNotFit, OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

_LAYOUTS = {3: "NCL", 4: "NCHW", 5: "NCDHW"}

FORWARD = (
    "aten::convolution", "aten::_convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d",
    "aten::cudnn_convolution", "aten::miopen_convolution", "aten::mkldnn_convolution", "aten::thnn_conv2d",
    "aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::cudnn_convolution_relu",
    "aten::cudnn_convolution_add_relu", "aten::miopen_convolution_relu", "aten::miopen_depthwise_convolution",
    "aten::_conv_depthwise2d", "aten::conv_depthwise3d", "aten::convolution_overrideable",
    "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d",
    "aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose", "aten::_convolution_mode",
    "aten::_nnpack_spatial_convolution", "aten::slow_conv3d", "aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d",
    "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d", "aten::miopen_convolution_add_relu",
    "aten::_mps_convolution", "aten::_mps_convolution_transpose",
    "npu::npu_conv_transpose3d",
)  # fmt: skip


def c0_of(dtype: str) -> int:
    """Return the channels per block of the cube's layout: 32 for 8-bit integers, 16 for 2-byte floats, 8 for
    float32.
    """
    return 16 if dtype in HALF else 32 if dtype in ("int8", "uint8") else 8


def _pad(values: tuple[int, ...], n: int, default: int) -> tuple[int, ...]:
    return values * n if len(values) == 1 else values[:n] if len(values) >= n else (default,) * n


class Sizes:
    """Sizes of a convolution expressed as 2-D: (N, C, H, W), with other ranks folded into these four dimensions."""

    def __init__(self, op: OpView, source: TensorMeta, weight: TensorMeta, grad: TensorMeta | None = None) -> None:
        space = len(weight.shape) - 2
        if not 1 <= space <= 3 or any(len(t.shape) < space + 1 for t in (source, grad) if t is not None):
            raise DoesNotFit("a convolution needs images and a weight")
        batch = source.shape[0] if len(source.shape) == space + 2 else 1
        extent = source.shape[-space:]
        self.transposed = op.flag("transposed") or ("transpose" in op.op.name and op.op.name not in TO_INPUT)
        self.dtype = source.dtype
        self.groups = max(1, op.integer("groups", default=0) or self._groups(source, weight, space))
        self.kernel = weight.shape[2:]
        outs = weight.shape[1] * self.groups if self.transposed else weight.shape[0]
        self.cin = source.shape[-space - 1]
        self.cout = outs
        self.batch = batch
        output = grad if grad is not None else next(iter(op.op.outputs or ()), None)
        if output is not None and len(output.shape) > space:
            result = output.shape[-space:]
        else:
            result = self._extent(op, extent, space)
        self.source = (batch, self.cin, *extent)
        self.result = (batch, outs, *(max(1, x) for x in result))

    def _groups(self, source: TensorMeta, weight: TensorMeta, space: int) -> int:
        """Return the number of groups if the call has no such argument, as for depthwise ops.

        It is 1 for transposed convolutions. Otherwise it is the number of image channels divided by the number of
        channels per filter.
        """
        return 1 if self.transposed else source.shape[-space - 1] // max(1, weight.shape[1])

    def _extent(self, op: OpView, extent: tuple[int, ...], space: int) -> tuple[int, ...]:
        stride = _pad(op.integers("stride"), space, 1)
        padding = _pad(op.integers("padding"), space, 0)
        dilation = _pad(op.integers("dilation"), space, 1)
        rows = zip(extent, self.kernel, stride, padding, dilation, strict=True)
        if self.transposed:
            more = _pad(op.integers("output_padding"), space, 0)
            return tuple(
                (x - 1) * s - 2 * p + d * (k - 1) + 1 + m for (x, k, s, p, d), m in zip(rows, more, strict=True)
            )
        return tuple((x + 2 * p - d * (k - 1) - 1) // max(1, s) + 1 for x, k, s, p, d in rows)

    def plain(self, shape: tuple[int, ...]) -> TensorSpec:
        """Return a feature map in torch's layout: depth is folded into the batch, a single length is the width."""
        n, c, *extent = shape
        if len(extent) == 3:
            return spec((n * extent[0], c, extent[1], extent[2]), self.dtype, "NCHW")
        height, width = (1, extent[0]) if len(extent) == 1 else extent
        return spec((n, c, height, width), self.dtype, "NCHW")

    def blocked(self, shape: tuple[int, ...]) -> TensorSpec:
        """Return a feature map in NC1HWC0."""
        n, c, height, width = self.plain(shape).shape
        c0 = c0_of(self.dtype)
        return spec((n, -(-c // c0), height, width, c0), self.dtype, "NC1HWC0")

    def weight(self) -> TensorSpec:
        """Return the weight in torch's layout."""
        return spec((self.cout, self.cin // self.groups or 1, prod(self.kernel)), self.dtype, "NCHW")

    def fractal(self) -> TensorSpec:
        """Return the weight in FRACTAL_Z: (C1*Kh*Kw, N1, 16, C0)."""
        c0 = c0_of(self.dtype)
        c1 = -(-max(1, self.cin // self.groups) // c0)
        return spec((c1 * prod(self.kernel), -(-self.cout // 16), 16, c0), self.dtype, "FRACTAL_Z")


def trans_data(source: TensorSpec, target: TensorSpec) -> KernelCall:
    """Return TransData, which converts a layout."""
    return kernel("TransData", [source], [target])


def _for_forward(source: TensorSpec, target: TensorSpec) -> KernelCall:
    """Return a layout conversion for a forward convolution. Cubes (matrix units) that read plain layouts skip it."""
    return kernel("TransData", [source], [target], forward=True)


@costs(*FORWARD)
def forward(op: OpView) -> Iterable[KernelCall]:
    """Return TransData of input and weight, the convolution, and TransData of the result. The bias adds no kernel."""
    source, weight = op.need("input", "self", "grad_output", at=0), op.need("weight", at=1)
    sizes = Sizes(op, source, weight)
    bias = op.meta("bias")
    extra = [spec(bias.shape, bias.dtype)] if bias is not None else []
    x, w, y = sizes.blocked(sizes.source), sizes.fractal(), sizes.blocked(sizes.result)
    kind = "Conv3D" if len(sizes.kernel) == 3 else "Conv2DTranspose" if sizes.transposed else "Conv2D"
    kernels = [
        _for_forward(sizes.plain(sizes.source), x),
        _for_forward(sizes.weight(), w),
        kernel(kind, [x, w, *extra], [y], **({"groups": sizes.groups} if sizes.groups > 1 else {})),
        _for_forward(y, sizes.plain(sizes.result)),
    ]
    if "relu" in op.op.name:
        y_plain = sizes.plain(sizes.result)
        kernels.append(kernel("Relu", [y_plain], [y_plain]))
    return kernels


TO_INPUT = tuple(
    f"aten::{library}_backward_input"
    for library in (
        "cudnn_convolution",
        "miopen_convolution",
        "miopen_depthwise_convolution",
        "mkldnn_convolution",
        "_nnpack_spatial_convolution",
        "cudnn_convolution_transpose",
        "miopen_convolution_transpose",
    )
)
"""Ops of torch until 1.10 that compute only the input gradient."""
TO_WEIGHT = tuple(name.removesuffix("_input") + "_weight" for name in TO_INPUT if "mkldnn" not in name)
BACKWARD = (
    "aten::convolution_backward", "aten::cudnn_convolution_backward", "aten::miopen_convolution_backward",
    "aten::mkldnn_convolution_backward", "aten::convolution_backward_overrideable",
    "aten::miopen_depthwise_convolution_backward", "aten::slow_conv2d_backward", "aten::_slow_conv2d_backward",
    "aten::mps_convolution_backward", "aten::mps_convolution_transpose_backward",
    "aten::cudnn_convolution_transpose_backward",
    "aten::miopen_convolution_transpose_backward", "aten::_nnpack_spatial_convolution_backward",
    "aten::thnn_conv2d_backward", "aten::slow_conv3d_backward", "aten::slow_conv_dilated2d_backward",
    "aten::slow_conv_dilated3d_backward", "aten::slow_conv_transpose2d_backward",
    "aten::slow_conv_transpose3d_backward", "aten::_conv_depthwise2d_backward", "aten::conv_depthwise3d_backward",
    "aten::thnn_conv_depthwise2d_backward", "aten::mkldnn_convolution_backward_weights",
)  # fmt: skip


def _of_size(op: OpView, name: str, like: TensorMeta | None) -> TensorMeta | None:
    """Return a tensor with the size in argument `name` and the dtype of `like`, or None without such a size."""
    sizes = op.integers(name)
    return TensorMeta(shape=sizes, dtype=like.dtype) if sizes and like is not None else None


def _wanted(op: OpView) -> tuple[bool, bool, bool]:
    """Return whether to compute the gradients of input, weight and bias."""
    name = op.op.name
    if name in TO_INPUT:
        return True, False, False
    if name in TO_WEIGHT or name.endswith("_weights"):
        return False, True, op.flag("bias_defined")
    mask = op.value("output_mask")
    flags = cast("Sequence[object]", mask if isinstance(mask, tuple | list) else ())
    if len(flags) in (2, 3):
        return bool(flags[0]), bool(flags[1]), len(flags) == 3 and bool(flags[2])
    return True, True, False


@costs(*BACKWARD, *TO_INPUT, *TO_WEIGHT)
def backward(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels for the gradients of input, weight and bias that `output_mask` or the op's name requests."""
    grad = op.meta("grad_output", "grad")
    source = op.meta("input", "self") or _of_size(op, "self_size", grad)
    weight = op.meta("weight") or _of_size(op, "weight_size", grad) or _of_size(op, "weightsize", grad)
    if source is None and grad is not None and weight is not None and "transpose" in op.op.name:
        # Its size is not named: the gradient's, through the window.
        return forward(op)
    if grad is None or source is None or weight is None:
        # Unnamed arguments: convolution_backward names the gradient first, the vendors' names the input.
        if len(op.tensors) < 3:
            raise DoesNotFit("a convolution's gradients need its gradient, input and weight")
        first, second, third = op.tensors[:3]
        vendor = "cudnn" in op.op.name or "miopen" in op.op.name
        source, grad, weight = (first, second, third) if vendor else (second, first, third)
    sizes = Sizes(op, source, weight, grad)
    wanted = _wanted(op)
    x, w, dy = sizes.blocked(sizes.source), sizes.fractal(), sizes.blocked(sizes.result)
    shape = spec((4,), "int32", "NCHW")
    rank = "3D" if len(sizes.kernel) == 3 else "2D"
    kernels = [trans_data(sizes.plain(sizes.result), dy)]
    if wanted[0]:
        kernels.append(trans_data(sizes.weight(), w))
        kernels.append(kernel(f"Conv{rank}BackpropInput", [shape, w, dy], [x]))
        kernels.append(trans_data(x, sizes.plain(sizes.source)))
    if wanted[1]:
        kernels.append(trans_data(sizes.plain(sizes.source), x))
        kernels.append(kernel(f"Conv{rank}BackpropFilter", [x, shape, dy], [w]))
        kernels.append(trans_data(w, sizes.weight()))
    if wanted[2]:
        n, c, *extent = sizes.result
        gradient = spec((n, c, prod(extent)), sizes.dtype)
        kernels.append(kernel("ReduceSum", [gradient], [spec((c,), sizes.dtype)]))
    return kernels


@costs("aten::conv_tbc")
def time_batch_channels(op: OpView) -> Iterable[KernelCall]:
    """Return the convolution of (T, B, C) with (K, C, O): one product over all time steps per window position."""
    source, weight = op.meta("self", at=0), op.meta("weight", at=1)
    if source is None or weight is None or len(source.shape) != 3 or len(weight.shape) != 3:
        raise DoesNotFit("a sequence and a weight are needed")
    rows, (window, ins, outs) = prod(source.shape[:2]), weight.shape
    a, b = spec((rows, ins), source.dtype), spec((ins, outs), weight.dtype)
    out = spec((rows, outs), source.dtype)
    return [kernel("MatMulV3", [a, b], [out], max(1, window), transpose_a=False, transpose_b=False)]
