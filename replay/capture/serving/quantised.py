"""Rewrites a captured plan to the quantized weights that servers use: W8A8 and W4A16.

W8A8 means weights and activations in 8 bits, with a scale per row. W4A16 means weights in 4 bits, which are unpacked in
the matrix product. In a mixture of experts, W4A16 applies only to the routed experts. Embeddings, the head, routers and
weights absorbed by attention keep their dtype, as in public checkpoints. This module determines which products are
quantized; `fused` rewrites the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import msgspec

from opreplay.replay.capture.serving.fused import Call, Fusion, Graph, Kernel, New, Tensor, dense, rewritten
from opreplay.replay.ir.model import ReplayPlan
from opreplay.replay.ir.sizes import itemsize
from opreplay.replay.plan.passes import by_recorded_time
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

Weights = Literal["w8a8", "w4a16"]
WHOLE = (".gate.weight", "router", "lm_head", "embed", "kv_b_proj", "shared_expert_gate")
"""A parameter is not quantized if one of its names contains one of these. A head may also be the embeddings."""
GROUP = 32
"""Number of rows of a W4A16 weight that share a scale, as in Kimi-K2-Thinking."""
PACKED = 8
"""Number of 4-bit weights packed into one int32."""


def quantised(plan: ReplayPlan, weights: Weights) -> ReplayPlan:
    """Return the plan with quantized products.

    Memory peaks are computed with the sizes of the quantized parameters. Raises UsageError for a training step, and for
    a plan in which no matrix product has a parameter.
    """
    if plan.capture is None or plan.sequence is None or "backward" in plan.capture.flops:
        raise UsageError("quantised weights are supported only for inference", hint="Remove --weights.")
    parameters = {each.storage: each for each in plan.capture.storages if each.kind == "parameter"}
    names = {number: each.names[0] for number, each in parameters.items() if each.names}
    named = {number for number in names if not any(part in name for name in parameters[number].names for part in WHOLE)}
    routed = {number for number in named if ".experts." in names[number]}
    quantiser = _Quantiser(weights, routed if weights == "w4a16" and routed else named)
    plan, counts = rewritten(plan, [quantiser.matched])
    capture = plan.capture
    assert capture is not None
    if not counts:
        raise UsageError("no matrix product of this plan has weights that can be quantised", hint="Remove --weights.")
    remaining = {each.storage for each in capture.storages}
    saved = sum(
        parameters[number].size_bytes - size for number, size in quantiser.sizes.items() if number not in remaining
    )
    peaks = tuple(
        msgspec.structs.replace(
            peak,
            peak_bytes=peak.peak_bytes - saved,
            by_kind={**peak.by_kind, "parameter": peak.by_kind.get("parameter", 0) - saved},
        )
        for peak in capture.peaks
    )
    products = sum(count for name, count in counts.items() if "matmul" in name)
    capture = msgspec.structs.replace(capture, peaks=peaks, quantized={**capture.quantized, weights: products})
    return by_recorded_time(msgspec.structs.replace(plan, capture=capture))


class _Quantiser(msgspec.Struct, frozen=True):
    weights: Weights
    storages: set[int]
    """Storages of the parameters to quantize."""
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    """Storage of a parameter before quantization → bytes of the quantized parameter, including its scales."""

    def matched(self, graph: Graph, call: Call) -> Fusion | None:
        """Match a matrix product or grouped product with a parameter that is to be quantized."""
        values = call.values
        if call.name in ("aten::mm", "aten::addmm"):
            bias = values["self"] if call.name == "aten::addmm" else None
            x, weight = values["mat1" if bias is not None else "self"], values["mat2"]
            if bias is not None and (values.get("alpha", 1), values.get("beta", 1)) != (1, 1):
                return None
            kernels = self._product(x, weight, bias, call.results) if self._is_one(weight) else None
        elif call.name.startswith("npu::npu_grouped_matmul") or call.name == "aten::_grouped_mm":
            fused = call.name != "aten::_grouped_mm"
            (x,), (weight,) = (values["x"], values["weight"]) if fused else ([values["self"]], [values["mat2"]])
            groups = values if fused else {"group_list": values.get("offs"), "group_type": 0, "split_item": 2}
            kernels = self._groups(x, weight, groups, call.results) if self._is_one(weight) else None
        else:
            kernels = None
        return Fusion(kernels=kernels, calls=frozenset({call})) if kernels is not None else None

    def _is_one(self, weight: Any) -> bool:
        return isinstance(weight, Tensor) and weight.storage in self.storages

    def _packed(self, weight: Tensor) -> tuple[New, New]:
        """Return (quantized weight, scales). There is one scale per column (W8A8), or one per column and
        group of rows.
        """
        *experts, rows, columns = weight.shape
        if self.weights == "w8a8":
            meta = TensorMeta(shape=weight.shape, dtype="int8", strides=weight.meta.strides)
            scales = dense((*experts, columns), weight.meta.dtype)
        else:
            meta = dense((*experts, rows, -(-columns // PACKED)), "int32")
            scales = dense((*experts, -(-rows // GROUP), columns), weight.meta.dtype)
        self.sizes[weight.storage] = sum(prod(each.shape) * itemsize(each.dtype) for each in (meta, scales))
        return New(meta, parts=(weight,)), New(scales)

    def _product(self, x: Tensor, weight: Tensor, bias: Any, results: Sequence[Tensor]) -> list[Kernel]:
        packed, scales = self._packed(weight)
        if self.weights == "w4a16":
            values = {"x": x, "weight": packed, "antiquant_scale": scales, "bias": bias, "antiquant_group_size": GROUP}
            return [Kernel(name="npu::npu_weight_quant_batchmatmul", values=values, results=results)]
        quantising, rows, row_scales = _by_row(x)
        values = {
            "x1": rows, "x2": packed, "scale": scales, "pertoken_scale": row_scales, "bias": bias,
            "output_dtype": f"torch.{x.meta.dtype}",
        }  # fmt: skip
        return [quantising, Kernel(name="npu::npu_quant_matmul", values=values, results=results)]

    def _groups(self, x: Tensor, weight: Tensor, groups: dict[str, Any], results: Sequence[Tensor]) -> list[Kernel]:
        packed, scales = self._packed(weight)
        names = ("group_list", "split_item", "group_type", "group_list_type")
        values = {"weight": [packed], **{name: groups[name] for name in names if name in groups}}
        name = "npu::npu_grouped_matmul"
        if self.weights == "w4a16":
            return [Kernel(name=name, values={"x": [x], **values, "antiquant_scale": [scales]}, results=results)]
        quantising, rows, row_scales = _by_row(x)
        values |= {"x": [rows], "scale": [scales], "per_token_scale": [row_scales]}
        return [
            quantising,
            Kernel(name=name, values=values | {"output_dtype": f"torch.{x.meta.dtype}"}, results=results),
        ]


def _by_row(x: Tensor) -> tuple[Kernel, New, New]:
    """Return (kernel that quantizes the rows of activations, the 8-bit activations, their scales)."""
    rows, scales = New(dense(x.shape, "int8")), New(dense(x.shape[:-1], "float32"))
    return Kernel(name="npu::npu_dynamic_quant", values={"input": x}, results=[rows, scales]), rows, scales
