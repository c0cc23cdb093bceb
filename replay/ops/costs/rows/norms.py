# pyright: strict
"""Lowering of normalisations and softmaxes, forward and backward, including vendors' fused variants."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.costs.pointwise.elementwise import mx_quantised
from opreplay.replay.ops.costs.rows.reductions import inside
from opreplay.replay.ops.op_view import OpView, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta


def _columns(op: OpView, x: TensorMeta) -> int:
    normalized_shape = op.integers("normalized_shape")
    return max(1, prod(normalized_shape or x.shape[-1:]))


def _vector(op: OpView, *names: str) -> list[TensorSpec]:
    metas = (op.meta(name) for name in names)
    return [spec(t.shape, t.dtype) for t in metas if t is not None]


@costs("aten::native_layer_norm aten::layer_norm aten::native_layer_norm_out")
def layer_norm(op: OpView) -> Iterable[KernelCall]:
    """Return LayerNormV3 over the normalised dimensions."""
    x = op.need("input", "self", at=0)
    cols = _columns(op, x)
    stats = spec((prod(x.shape) // cols,), "float32")
    source = op.packed(x, row_major=True)
    outs = op.outputs(source, stats, stats)
    return [kernel("LayerNormV3", [source, *_vector(op, "weight", "bias")], outs, cols=cols)]


@costs("aten::native_layer_norm_backward")
def layer_norm_backward(op: OpView) -> Iterable[KernelCall]:
    """Return LayerNormGradV3, which computes the gradients of input, weight and bias in one kernel."""
    grad, x = op.need("grad_out", at=0), op.need("input", at=1)
    cols = _columns(op, x)
    stats = spec((prod(x.shape) // cols,), "float32")
    inputs = [op.packed(grad, row_major=True), op.packed(x, row_major=True), stats, stats, *_vector(op, "weight")]
    vector = spec((cols,), "float32")
    return [kernel("LayerNormGradV3", inputs, [spec(x.shape, x.dtype), vector, vector], cols=cols)]


@costs("aten::rms_norm aten::_fused_rms_norm")
def rms_norm(op: OpView) -> Iterable[KernelCall]:
    """Return the RmsNorm kernel."""
    x = op.need("input", "self", "x", at=0)
    cols = _columns(op, x)
    source = op.packed(x, row_major=True)
    outs = op.outputs(source, spec((prod(x.shape) // cols, 1), "float32"))
    return [kernel("RmsNorm", [source, *_vector(op, "weight", "gamma")], outs, cols=cols)]


@costs("aten::_fused_rms_norm_backward")
def rms_norm_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the RmsNormGrad kernel."""
    grad, x = op.need("grad_out", "dy", at=0), op.need("input", "self", at=1)
    cols = _columns(op, x)
    inputs = [
        op.packed(grad, row_major=True),
        op.packed(x, row_major=True),
        spec((prod(x.shape) // cols, 1), "float32"),
    ]
    inputs += _vector(op, "weight", "gamma")
    return [kernel("RmsNormGrad", inputs, [spec(x.shape, x.dtype), spec((cols,), "float32")], cols=cols)]


def vendor_rms_norm(op: OpView) -> Iterable[KernelCall]:
    """Return RmsNorm for other libraries' ops, which take the arguments (out,) input and weight."""
    x = op.need("input", "x", at=0)
    source = op.packed(x, row_major=True)
    weight = op.meta("weight", "w", "gamma")
    gamma = [spec(weight.shape, weight.dtype)] if weight is not None else []
    return [kernel("RmsNorm", [source, *gamma], [spec(x.shape, x.dtype)])]


def add_rms_norm(op: OpView) -> Iterable[KernelCall]:
    """Return AddRmsNorm: the sum with the residual, and the norm of the sum."""
    x = op.need("input", "x", "x1", at=0)
    source = spec(x.shape, x.dtype)
    weight = op.meta("weight", "w", "gamma")
    gamma = spec(weight.shape, weight.dtype) if weight is not None else spec(x.shape[-1:], x.dtype)
    return [kernel("AddRmsNorm", [source, source, gamma], [source, spec((*x.shape[:-1], 1), "float32"), source])]


def add_rms_norm_mx(op: OpView) -> Iterable[KernelCall]:
    """Return AddRmsNormDynamicMxQuant: the norm is written in 8 or 4 bits, with one scale per block."""
    (plain,) = add_rms_norm(op)
    source = spec(op.need("x1", at=0).shape, op.need("x1", at=0).dtype)
    return [kernel("AddRmsNormDynamicMxQuant", plain.inputs, [source, *mx_quantised(op, source)])]


def _channels(x: TensorMeta) -> int:
    return x.shape[1] if len(x.shape) > 1 else 1


@costs(
    """
        aten::native_batch_norm aten::_native_batch_norm_legit aten::cudnn_batch_norm aten::miopen_batch_norm
        aten::batch_norm aten::_batch_norm_impl_index aten::_batch_norm_with_update aten::instance_norm
        aten::_native_batch_norm_legit_functional aten::_batch_norm_no_update aten::_native_batch_norm_legit_no_training
        aten::native_batch_norm_out aten::_batch_norm_with_update_functional aten::quantized_batch_norm
    """
)
def batch_norm(op: OpView) -> Iterable[KernelCall]:
    """Return BNTrainingReduce and BNTrainingUpdate in training, BNInfer in inference."""
    x = op.need("input", "self", at=0)
    channels = _channels(x)
    if "instance" in op.op.name:
        channels *= prod(x.shape[:1])
    cols = max(1, prod(x.shape) // max(1, channels))
    source, stats = spec(x.shape, x.dtype), spec((channels,), "float32")
    quiet = op.op.name.endswith(("no_training", "no_update")) or "quantized" in op.op.name
    if quiet or not op.flag("training", "train", "use_input_stats", default=True):
        return [kernel("BNInfer", [source, stats, stats, stats, stats], [source], cols=cols)]
    return [
        kernel("BNTrainingReduce", [source], [stats, stats], cols=cols),
        kernel(
            "BNTrainingUpdate", [source, stats, stats, stats, stats], [source, stats, stats, stats, stats], cols=cols
        ),
    ]


@costs(
    """
        aten::native_batch_norm_backward aten::cudnn_batch_norm_backward aten::miopen_batch_norm_backward
        aten::batch_norm_backward aten::_batch_norm_impl_index_backward
    """
)
def batch_norm_backward(op: OpView) -> Iterable[KernelCall]:
    """Return BNTrainingUpdateGrad (gradients of weight and bias) and BNTrainingReduceGrad (gradient of input)."""
    x = op.need("input", at=0)
    channels = _channels(x)
    cols = max(1, prod(x.shape) // max(1, channels))
    source, stats = spec(x.shape, x.dtype), spec((channels,), "float32")
    return [
        kernel("BNTrainingUpdateGrad", [source, source, stats, stats], [stats, stats], cols=cols),
        kernel("BNTrainingReduceGrad", [source, source, stats, stats, stats, stats, stats], [source], cols=cols),
    ]


SYNCHRONISED = {
    "aten::batch_norm_stats": "BNTrainingReduce",
    "aten::batch_norm_elemt": "BNInfer",
    "aten::batch_norm_update_stats": "BNTrainingReduce",
    "aten::batch_norm_backward_reduce": "BNTrainingUpdateGrad",
    "aten::batch_norm_backward_elemt": "BNTrainingReduceGrad",
}
"""Op of a batch norm over several devices → type of its CANN kernel."""


@costs(*SYNCHRONISED)
def synchronised_batch_norm(op: OpView) -> Iterable[KernelCall]:
    """Return one kernel that reads the images once; the images are the largest tensors."""
    images = op.widest()
    channels = _channels(images)
    source, stats = spec(images.shape, images.dtype), spec((channels,), "float32")
    reads = [source] * max(1, sum(t.shape == images.shape for t in op.tensors))
    kind = SYNCHRONISED[op.op.name.split(".")[0]]
    out = source if kind in ("BNInfer", "BNTrainingReduceGrad") else stats
    return [kernel(kind, [*reads, stats, stats], [out], cols=max(1, prod(images.shape) // max(1, channels)))]


@costs("aten::batch_norm_gather_stats aten::batch_norm_gather_stats_with_counts")
def gathered_statistics(op: OpView) -> Iterable[KernelCall]:
    """Return the kernel that combines the statistics of all devices, given as (devices, channels)."""
    counts = op.need("mean", at=1)
    source = spec(counts.shape, counts.dtype)
    return [kernel("ReduceMean", [source], [spec(counts.shape[-1:], counts.dtype)], 2)]


@costs(
    """
        aten::_weight_norm aten::_weight_norm_interface aten::_weight_norm_interface_backward aten::renorm
        aten::_weight_norm_differentiable_backward aten::norm_except_dim
    """
)
def weight_norm(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that compute the norm of each row and scale the weights by it."""
    weight = op.widest()
    source = op.packed(weight)
    norms = spec(weight.shape[:1], "float32")
    scaled = kernel("Mul", [source, norms], [source])
    return [kernel("LpNormV2", [source], [norms])] + ([] if "except" in op.op.name else [scaled])


@costs("aten::native_group_norm aten::group_norm")
def group_norm(op: OpView) -> Iterable[KernelCall]:
    """Return GroupNormV2 over groups of channels."""
    x = op.need("input", "x", at=0)
    groups = op.integer("group", "num_groups", default=32) * (x.shape[0] if x.shape else 1)
    cols = max(1, prod(x.shape) // max(1, groups))
    stats = spec((groups,), "float32")
    source = op.packed(x, row_major=True)
    return [kernel("GroupNormV2", [source, *_vector(op, "weight", "bias")], [source, stats, stats], cols=cols)]


@costs("aten::native_group_norm_backward")
def group_norm_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the GroupNormGrad kernel."""
    grad, x = op.need("grad_out", at=0), op.need("input", at=1)
    groups = op.integer("group", default=32) * (x.shape[0] if x.shape else 1)
    cols = max(1, prod(x.shape) // max(1, groups))
    inputs = [op.packed(grad, row_major=True), op.packed(x, row_major=True), spec((groups,), "float32")]
    return [kernel("GroupNormGrad", inputs, [spec(x.shape, x.dtype)], cols=cols)]


def _along(op: OpView, x: TensorMeta, kind: str, inputs: int) -> list[KernelCall]:
    dim = op.integer("dim", default=-1) % len(x.shape) if x.shape else None
    cols = x.shape[dim] if dim is not None else 1
    source = op.packed(x, row_major=True)
    out = op.output(spec(x.shape, x.dtype))
    return [kernel(kind, [source] * inputs, [out], cols=max(1, cols), **inside(x.shape, dim))]


@costs(
    """
        aten::_softmax aten::softmax aten::_safe_softmax aten::logsumexp aten::special_softmax aten::special_logsumexp
        aten::_masked_softmax aten::_nested_tensor_softmax_with_shape
    """
)
def softmax(op: OpView) -> Iterable[KernelCall]:
    """Return SoftmaxV2 along one dimension. It is a single kernel for any dimension (hicann/cann-bench, CANN 9.0)."""
    return _along(op, op.need("self", "input", "x", at=0), "SoftmaxV2", 1)


@costs("aten::_log_softmax aten::log_softmax aten::special_log_softmax")
def log_softmax(op: OpView) -> Iterable[KernelCall]:
    """Return the LogSoftmaxV2 kernel."""
    return _along(op, op.need("self", "input", at=0), "LogSoftmaxV2", 1)


@costs("aten::_softmax_backward_data aten::_masked_softmax_backward aten::_log_softmax_backward_data")
def softmax_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the SoftmaxGrad or LogSoftmaxGrad kernel."""
    kind = "LogSoftmaxGrad" if "log_softmax" in op.op.name else "SoftmaxGrad"
    return _along(op, op.need("grad_output", "output", at=0), kind, 2)
