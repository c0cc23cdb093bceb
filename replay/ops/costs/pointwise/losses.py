# pyright: strict
"""Lowering of losses, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, TensorSpec, broadcast, itemsize
from opreplay.replay.ir.shared_memory import is_floating
from opreplay.replay.ops.costs.rows.reductions import inside
from opreplay.replay.ops.op_view import OpView, kernel, promote, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

NO_REDUCTION = 0
"""Value of `reduction` in torch for an unreduced loss; 1 is the mean, 2 the sum."""


def _full(op: OpView, inputs: list[TensorSpec]) -> TensorSpec:
    floats = [s.dtype for s in inputs if s.dtype not in ("int64", "int32", "bool", "uint8")]
    return spec(broadcast([s.shape for s in inputs]), promote(floats or ["float32"]))


@costs(
    """
        aten::mse_loss aten::l1_loss aten::smooth_l1_loss aten::huber_loss aten::binary_cross_entropy
        aten::binary_cross_entropy_with_logits aten::kl_div aten::soft_margin_loss aten::poisson_nll_loss
        aten::hinge_embedding_loss aten::margin_ranking_loss aten::cosine_embedding_loss aten::triplet_margin_loss
        aten::gaussian_nll_loss
    """
)
def pointwise_loss(op: OpView) -> Iterable[KernelCall]:
    """Return an elementwise difference and, unless the loss is unreduced, its mean or sum."""
    inputs = [op.packed(t) for t in op.tensors]
    full = _full(op, inputs)
    kernels = [kernel("Sub", inputs, [full])]
    if op.integer("reduction", default=1) != NO_REDUCTION:
        kernels.append(kernel("ReduceMean", [full], [spec((), full.dtype)]))
    return kernels


@costs(
    """
        aten::mse_loss_backward aten::smooth_l1_loss_backward aten::huber_loss_backward aten::soft_margin_loss_backward
        aten::l1_loss_backward aten::kl_div_backward aten::binary_cross_entropy_backward
        aten::binary_cross_entropy_with_logits_backward
    """
)
def pointwise_loss_backward(op: OpView) -> Iterable[KernelCall]:
    """Return one kernel for the gradients of all elements. The loss gradient is first broadcast to every element."""
    inputs = [op.packed(t) for t in op.tensors]
    kind, full = "SigmoidGrad" if "cross_entropy" in op.op.name else "Sub", op.output(_full(op, inputs))
    if "mse_loss" in op.op.name:
        inputs = [spec(full.shape, tensor.dtype) for tensor in inputs]
    return [kernel(kind, inputs, [full])]


@costs(
    """
        aten::nll_loss_forward aten::nll_loss aten::nll_loss_nd aten::nll_loss2d_forward aten::nll_loss2d
        aten::multi_margin_loss aten::multilabel_margin_loss aten::multilabel_margin_loss_forward
    """
)
def nll_loss(op: OpView) -> Iterable[KernelCall]:
    """Return NLLLoss, which reads one score per sample, or all scores for a margin loss.

    If a loss without margin is reduced, its accumulator is cleared first.
    """
    x = op.need("self", at=0)
    samples = prod(x.shape) // max(1, x.shape[1]) if len(x.shape) > 1 else 1  # scores are (N, C, ...)
    labels, loss = spec((samples,), "int64"), spec((), x.dtype)
    if "margin" in op.op.name:
        return [kernel("NLLLoss", [spec(x.shape, x.dtype), labels], [loss])]
    picked = _picked(x, samples, labels, loss)
    reduced = op.integer("reduction", default=1) != NO_REDUCTION
    return [kernel("MemSet", [], []), picked] if reduced else [picked]


READ_TOGETHER = 128
"""Number of bytes that one read of scores fetches.

If there are few classes, neighbouring samples share a read. Measured on a 950PR: a million samples of two classes take
42 us, 8192 samples of 16384 classes take 13 us (hicann/cann-bench).
"""


def _picked(x: TensorMeta, samples: int, labels: TensorSpec, loss: TensorSpec) -> KernelCall:
    """Return NLLLoss, which reads one score per sample; if there are few classes, samples share reads."""
    apart = x.shape[1] * itemsize(x.dtype) if len(x.shape) == 2 else itemsize(x.dtype)
    reads = max(1, -(-samples * min(apart, READ_TOGETHER) // READ_TOGETHER))
    scores = spec((samples, 1), x.dtype)
    return kernel("NLLLoss", [scores, labels], [loss], lines=reads, cols=-(-samples // reads))


@costs(
    """
        aten::nll_loss_backward aten::nll_loss2d_backward aten::multi_margin_loss_backward
        aten::multilabel_margin_loss_backward
    """
)
def nll_loss_backward(op: OpView) -> Iterable[KernelCall]:
    """Return NLLLossGrad, which writes the gradient of all scores."""
    x = op.need("self", at=1)
    full = spec(x.shape, x.dtype)
    return [kernel("NLLLossGrad", [full], [full])]


@costs("aten::cross_entropy_loss")
def cross_entropy(op: OpView) -> Iterable[KernelCall]:
    """Return LogSoftmaxV2 over the classes and the kernels that compute the loss from it.

    For labels, the loss is NLLLoss. For probabilities, it is the sum of products. With labels but no class weights,
    weights of 1 are written first. For images, the class dimension is moved last. The last two facts follow the kernels
    listed in hicann/cann-bench. Label smoothing adds the sums of all classes (aten/src/ATen/native/LossNLL.cpp of
    PyTorch).
    """
    x, target, weight = op.need("self", "input", at=0), op.meta("target", at=1), op.meta("weight")
    source, smoothing = spec(x.shape, x.dtype), op.number("label_smoothing")
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[-1] if x.shape else 1
    inner = inside(x.shape, 1 if len(x.shape) > 1 else None)
    scores = kernel("LogSoftmaxV2", [source], [source], cols=max(1, classes), **inner)
    weighted = [kernel("Mul", [source, spec(weight.shape, weight.dtype)], [source])] if weight is not None else []
    if target is not None and is_floating(target.dtype):
        probabilities = spec(target.shape, target.dtype)
        smoothed = [kernel(kind, [probabilities], [probabilities]) for kind in ("Muls", "Adds") if smoothing]
        product = kernel("Mul", [source, probabilities], [source])
        return [scores, *smoothed, product, *weighted, kernel("ReduceSum", [source], [spec((), x.dtype)])]
    kernels = [scores]
    if weight is None:
        weights = spec((classes,), x.dtype)
        kernels.append(kernel("OnesLike", [weights], [weights]))
    if len(x.shape) > 2:
        space = prod(x.shape[2:])
        last = spec((x.shape[0], space, classes), x.dtype)
        kernels.append(kernel("Transpose", [source], [last], swapped=(classes, space)))
    kernels += nll_loss(op)
    if smoothing:
        samples = spec((prod(x.shape) // max(1, classes),), x.dtype)
        kernels += [*weighted, kernel("ReduceSum", [source], [samples], **inner)]
    return kernels


def fused_cross_entropy(op: OpView) -> Iterable[KernelCall]:
    """Return CrossEntropyLoss, which reads (N, C) scores once and writes their log-softmax."""
    x = op.need("input", "self", at=0)
    source = spec(x.shape, x.dtype)
    return [kernel("CrossEntropyLoss", [source], [source])]


def fused_cross_entropy_backward(op: OpView) -> Iterable[KernelCall]:
    """Return the CrossEntropyLossGrad kernel."""
    x = op.widest()
    source = spec(x.shape, x.dtype)
    return [kernel("CrossEntropyLossGrad", [source], [source])]


@costs("aten::cosine_similarity aten::pairwise_distance aten::dist aten::linalg_vecdot")
def row_distance(op: OpView) -> Iterable[KernelCall]:
    """Return a product or difference of two tensors, reduced along one dimension."""
    inputs = [op.packed(t) for t in op.tensors]
    full = _full(op, inputs)
    return [kernel("Mul", inputs, [full]), kernel("ReduceSum", [full], op.outputs(spec(full.shape[:-1], full.dtype)))]
