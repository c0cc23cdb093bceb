# pyright: strict
"""Lowering of ops on image regions and boxes: RoI alignment and pooling, overlaps, non-maximum suppression."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod, sqrt

from opreplay.replay.ir.kernel import KernelCall, TensorSpec
from opreplay.replay.ops.costs.products.convolution import trans_data
from opreplay.replay.ops.costs.rows.pooling import blocked, images
from opreplay.replay.ops.op_view import OpView, elements, kernel, spec
from opreplay.traces.model import TensorMeta

ADAPTIVE = 1
"""Assumed samples along one side of a bin if the real number depends on the region's size."""

USUAL_BINS = 7
"""Assumed number of bins along one side of a region if no argument gives this number."""

USUAL_OVERLAP = 0.5
"""Overlap threshold that is used if no argument gives one.

The share of boxes that are kept is assumed to be the square root of the threshold. Source: 4096 boxes of the same kind
take 3.8, 5.1, 9.3, 17.5 and 18.1 ms on a 950PR at thresholds of 0.05, 0.1, 0.3, 0.7 and 0.9 (hicann/cann-bench).
"""


def _bins(op: OpView, rois: TensorMeta, channels: int) -> TensorSpec:
    """Return the spec of all bilinear samples: (regions, bins · samples per bin, channels)."""
    sides = (op.integer(side, "group_size", default=USUAL_BINS) for side in ("pooled_height", "pooled_width"))
    samples = max(ADAPTIVE, op.integer("sampling_ratio", "sample_num", default=2))
    per_region = prod(sides) * samples**2
    return spec((rois.shape[0], max(1, per_region), channels), "float32")


def roi_align(op: OpView) -> Iterable[KernelCall]:
    """Return ROIAlign of blocked float32 images. The kernel averages bilinear samples of every bin and channel."""
    source, rois = op.need("input", "self", "x", at=0, rank=4), op.need("rois", at=1, rank=2)
    plain = images(TensorMeta(shape=source.shape, dtype="float32"), 2)
    samples = _bins(op, rois, source.shape[1])
    per_bin = max(ADAPTIVE, op.integer("sampling_ratio", "sample_num", default=2)) ** 2
    out = op.output(spec((rois.shape[0], samples.shape[1] // per_bin, source.shape[1]), "float32"))
    narrow = source.dtype != "float32"
    casts = [kernel("Cast", [spec(source.shape, source.dtype)], [plain])] if narrow else []
    back = [kernel("Cast", [spec(out.shape, "float32")], [spec(out.shape, source.dtype)])] if narrow else []
    call = kernel("ROIAlign", [samples], [spec(out.shape, "float32")], cols=rois.shape[0], inner=samples.shape[1])
    return [*casts, trans_data(plain, blocked(plain)), call, *back]


def aligned_backward(op: OpView) -> Iterable[KernelCall]:
    """Return kernels that clear the images' gradient, then add the samples' gradients to it."""
    grad, rois = op.need("grad", "self", at=0, rank=2), op.need("rois", at=1, rank=2)
    channels = grad.shape[1]
    by_name = tuple(op.integer(name, default=0) for name in ("batch_size", "channels", "height", "width"))
    out = op.output(spec(op.integers("xdiff_shape") or (by_name if all(by_name) else grad.shape), grad.dtype))
    samples = _bins(op, rois, channels)
    call = kernel("ROIAlignGrad", [samples], [samples], cols=rois.shape[0], inner=samples.shape[1])
    return [kernel("ZerosLike", [out], [out]), call]


def nms_with_mask(op: OpView) -> Iterable[KernelCall]:
    """Return NMSWithMask. The kept boxes are processed sequentially, and each is compared with all later boxes."""
    boxes = op.need("dets", "boxes", "input", "self", at=0, rank=1)
    n = max(1, boxes.shape[-2:][0])
    threshold = op.number("iou_threshold")
    if threshold is None or not 0.0 <= threshold <= 1.0:
        threshold = USUAL_OVERLAP
    cols = max(1, round(n * sqrt(threshold)))
    op.note(
        f"the time depends on the number of kept boxes, and that on values: {cols} assumed from the threshold, as in "
        "measured calls"
    )
    return [kernel("NMSWithMask", [spec((n, n), boxes.dtype)], [spec((n,), "bool")], cols=cols)]


def overlaps(op: OpView) -> Iterable[KernelCall]:
    """Return the Iou kernel for all pairs of boxes, with about a dozen passes over the result matrix."""
    a, b = op.need("bboxes", "self", at=0, rank=1), op.need("gtboxes", "query_boxes", at=1, rank=1)
    out = op.output(spec((elements(a) // 4, elements(b) // 4), a.dtype))
    return [kernel("Iou", [out, out], [out])]
