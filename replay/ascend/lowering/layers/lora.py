# pyright: strict
"""Lowering of low-rank adapters: every token's product with the weights of its adapter, a grouped product."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ascend.kernel import KernelCall
from opreplay.replay.ascend.lowering.layers.moe import grouped
from opreplay.replay.ascend.lowering.op_view import DoesNotFit, OpView
from opreplay.replay.ascend.lowering.registry import lowers
from opreplay.traces.model import TensorMeta

WEIGHTS = ("lora_a_weights", "lora_b_weights", "weight", "w")


@lowers(
    *(f"vllm::{step}" for step in ("lora_expand", "lora_shrink", "v1_expand", "v1_shrink")),
    *(f"vllm::{form}_{step}" for form in ("bgmv", "sgmv", "xpu_bgmv") for step in ("expand", "expand_slice", "shrink")),
    *(f"{space}::{form}_{step}" for space in ("npu", "_C_ascend") for form in ("bgmv", "sgmv")
      for step in ("expand", "shrink")),
    "_punica_C::dispatch_bgmv",
    "_punica_C::dispatch_bgmv_low_level",
)  # fmt: skip
def adapters(op: OpView) -> Iterable[KernelCall]:
    """GroupedMatmul of the rows with each weight (adapters, ..., out, in)."""
    x = op.need("inputs", "x", rank=2)
    name = next((name for name in WEIGHTS if name in op.args), None)
    if name is None:
        raise DoesNotFit("needs the adapters' weights")
    return [_product(op, x, weight) for weight in op.metas(name) if len(weight.shape) >= 2]


def _product(op: OpView, x: TensorMeta, weight: TensorMeta) -> KernelCall:
    k = x.shape[-1]
    n = weight.shape[-2] if weight.shape[-1] == k else weight.shape[-1]
    count = weight.shape[0] if len(weight.shape) > 2 else 1
    return grouped(op, x.shape[-2], TensorMeta(shape=(count, k, n), dtype=weight.dtype), k, n)
