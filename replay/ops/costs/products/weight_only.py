# pyright: strict
"""Lowering of products in which only the weights are quantised: AWQ, GPTQ, Marlin, machete, allspark, torch's packed
weights.

The weights are read in packed form. While the product runs, the vector cores unpack them to the dtype of the
activations.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from opreplay.replay.ir.kernel import KernelCall, itemsize
from opreplay.replay.ops.costs.layers.moe import ASSUMED_TOP_K, grouped, routed, swiglu
from opreplay.replay.ops.op_view import DoesNotFit, OpView, elements, kernel, spec
from opreplay.replay.ops.table import costs
from opreplay.traces.model import TensorMeta

WEIGHT = (
    "b_q_weight", "b_qweight", "_kernel", "mat2", "weight", "B", "qweight",
)  # fmt: skip
COLUMNS = ("size_n", "n", "N", "out_features", "output_size_per_partition")
SCALES = ("b_scales", "b_gptq_scales", "_scaling_factors", "weight_scale", "group_scales", "s_ch")
USUAL_BITS = 4
"""Assumed bits per packed weight if neither the result's column count nor an argument gives them."""
MARLIN_ROWS = 16
"""Number of elements along K in one row of Marlin's packed weights."""


def bits_of(weight: TensorMeta, unpacked: int) -> int:
    """Return the bits per element of packed weights that hold `unpacked` elements."""
    return max(1, round(8 * elements(weight) * itemsize(weight.dtype) / max(1, unpacked)))


def _columns(op: OpView, weight: TensorMeta, inner: int) -> int:
    """Return the number of result columns.

    It comes from an argument, the result, the scales, or the size of the weights.
    """
    said = op.integer(*COLUMNS, default=0)
    if said > 0:
        return said
    shapes = [out.shape for out in op.outputs()]
    scales = op.meta(*SCALES)
    shapes += [scales.shape] if scales is not None and elements(scales) > 1 else []
    wide = next((shape[-1] for shape in shapes if shape), 0)
    bits = op.integer("bit", "num_bits", default=8 if weight.dtype == "int8" else USUAL_BITS)
    return wide or max(1, 8 * elements(weight) * itemsize(weight.dtype) // max(1, bits) // max(1, inner))


@costs(
    """
        aten::_weight_int4pack_mm aten::_weight_int4pack_mm_for_cpu aten::_dyn_quant_matmul_4bit
        aten::_weight_int4pack_mm_with_scales_and_zeros aten::_weight_int8pack_mm aten::_mixed_dtypes_linear
        aten::fbgemm_linear_int8_weight aten::fbgemm_linear_int8_weight_fp32_activation
    """
)
def weight_only(op: OpView) -> Iterable[KernelCall]:
    """Return WeightQuantBatchMatmulV2 of x (M, K) with packed weights of (K, N)."""
    x, weight = op.need(at=0, rank=1), op.need(*WEIGHT, at=1)
    return [packed_product(op, x, weight, x.dtype)]


def four_by_eight(op: OpView) -> Iterable[KernelCall]:
    """Return WeightQuantBatchMatmulV2 with 8-bit activations; the cube multiplies int8."""
    return [packed_product(op, op.need("a", at=0, rank=1), op.need("b_q_weight", at=1), "int8")]


def packed_product(op: OpView, x: TensorMeta, weight: TensorMeta, dtype: str) -> KernelCall:
    """Return one product of x with packed weights; the cube computes in `dtype`."""
    rows, inner = prod(x.shape[:-1]), x.shape[-1]
    cols = _columns(op, weight, inner)
    op.assume("unpacking weights on the vector cores overlaps with the product and costs nothing (never measured)")
    return kernel(
        "WeightQuantBatchMatmulV2",
        [spec((rows, inner), dtype), spec((inner, cols), "int8")],
        [spec((rows, cols), "float16" if dtype == "int8" else dtype)],
        transpose_a=False,
        transpose_b=False,
        weight_bits=bits_of(weight, inner * cols),
    )


def experts_product(op: OpView) -> Iterable[KernelCall]:
    """Return GroupedMatmul of one row per token and chosen expert with the packed weights of all experts."""
    x, weight = op.need("input", "a", at=0, rank=2), op.need("b_qweight", "b_q_weight", rank=3)
    inner = x.shape[-1]
    cols = op.integer("size_n", default=0) or max(1, weight.shape[1])
    rows = x.shape[0] * max(1, op.integer("top_k", default=ASSUMED_TOP_K))
    return [_experts(op, rows, weight, inner, cols, x.dtype)]


def _experts(op: OpView, rows: int, weight: TensorMeta, k: int, n: int, dtype: str) -> KernelCall:
    experts = max(1, weight.shape[0])
    wide = TensorMeta(shape=(experts, k, n), dtype=dtype)
    return grouped(op, rows, wide, k, n, weight_bits=bits_of(weight, experts * k * n))


def marlin_layer(op: OpView) -> Iterable[KernelCall]:
    """Return the kernels of a whole MoE layer: routing, GroupedMatmul, SwiGlu, GroupedMatmul, sum over experts.

    Weights are w1 (E, H / 16, packed) and w2 (E, I / 16, packed).
    """
    hidden = op.need("hidden_states", at=0, rank=2)
    w1, w2 = op.need("w1", rank=3), op.need("w2", rank=3)
    chosen = op.meta("topk_ids")
    top_k = chosen.shape[-1] if chosen is not None and chosen.shape else ASSUMED_TOP_K
    tokens, width = hidden.shape[0], hidden.shape[-1]
    inner = MARLIN_ROWS * w2.shape[1]
    if inner <= 0:
        raise DoesNotFit("the weights have no rows")
    rows, dtype = tokens * top_k, hidden.dtype
    up, down = _experts(op, rows, w1, width, 2 * inner, dtype), _experts(op, rows, w2, inner, width, dtype)
    return routed(rows, width, dtype, up, swiglu(rows, inner, dtype), down)
