# pyright: strict
"""Lowering of low-rank adapters: every token's product with the weights of its adapter, a grouped product."""

from __future__ import annotations

from collections.abc import Iterable

from opreplay.replay.ir.kernel import KernelCall
from opreplay.replay.ops.costs.layers.moe import grouped
from opreplay.replay.ops.op_view import DoesNotFit, OpView
from opreplay.traces.model import TensorMeta

WEIGHTS = ("lora_a_weights", "lora_b_weights", "weight", "w")


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
