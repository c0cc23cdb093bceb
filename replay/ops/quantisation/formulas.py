# pyright: strict
"""Numbers of 8 bits: their scales, and products of them.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import FP8, Values, covers, formula, halves, rms, split, wide

LEAST = 1 / (FP8 * 512)
"""Least scale of a row in vLLM and FBGEMM."""


SMALLEST = 1e-36
"""Magnitude below which scales of float32 lose places."""


def eight(x: Tensor) -> Tensor:
    """Rounded to float8 e4m3fn, the largest number in place of larger ones."""
    return x.clamp(-FP8, FP8).to(torch.float8_e4m3fn)


def largest(x: Tensor) -> Tensor:
    """Magnitude of each row [.., 1]; none of rows so small that their scale is no normal number."""
    magnitude = wide(x).abs().amax(-1, keepdim=True)
    covers(not bool((magnitude < SMALLEST).any()), "rows that are not nearly zero")
    return magnitude


@formula("_C::static_scaled_fp8_quant aiter::static_per_tensor_quant", "(f8e4m3[8,16], f32[8,16], f32[1])")
def static_fp8(values: Values) -> Tensor:
    return eight(wide(values["input"]) / wide(values["scale"]))


@formula("_C::static_scaled_int8_quant", "(i8[8,16], f32[8,16], f32[1], None)")
def static_int8(values: Values) -> Tensor:
    covers(values["azp"] is None, "symmetric numbers")
    return (wide(values["input"]) / wide(values["scale"])).round().clamp(-128, 127).to(torch.int8)


@formula("_C::dynamic_scaled_int8_quant", "(i8[8,16], f32[8,16], f32[8,1], None)")
def dynamic_int8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["azp"] is None, "symmetric numbers")
    scale = largest(values["input"]) / 127
    return (wide(values["input"]) / scale).round().clamp(-128, 127).to(torch.int8), scale


@formula("_C::cutlass_scaled_mm", "(f32[8,24], i8[8,16], i8[16,24]{1,16}, f32[8,1], f32[1,24], None)")
def scaled_mm(values: Values) -> Tensor:
    covers(values.get("bias") is None, "no bias")
    product = values["a"].double() @ values["b"].double()
    return (product * values["a_scales"] * values["b_scales"]).to(values["out"].dtype)


@formula("sgl_kernel::int8_scaled_mm", "(i8[8,16], i8[16,24]{1,16}, f32[8], f32[24], torch.bfloat16, None)")
def int8_scaled_mm(values: Values) -> Tensor:
    covers(values.get("bias") is None, "no bias")
    product = values["mat_a"].double() @ values["mat_b"].double()
    scaled = product * values["scales_a"].reshape(-1, 1) * values["scales_b"].reshape(1, -1)
    return scaled.to(values["out_dtype"])


@formula("_C::dynamic_scaled_fp8_quant aiter::dynamic_per_tensor_quant", "(f8e4m3[8,16], f32[8,16], f32[1])")
def dynamic_fp8(values: Values) -> tuple[Tensor, Tensor]:
    x = wide(values["input"])
    scale = x.abs().max() / FP8
    return eight(x / scale), scale.reshape(values["scale"].shape).to(values["scale"].dtype)


@formula("_C::dynamic_per_token_scaled_fp8_quant", "(f8e4m3[8,16], f32[8,16], f32[8,1], None)")
def token_fp8(values: Values) -> tuple[Tensor, Tensor]:
    scale = largest(values["input"])
    if values["scale_ub"] is not None:
        scale = scale.clamp(max=values["scale_ub"].to(scale.dtype))
    scale = (scale / FP8).clamp(min=LEAST)
    return eight(wide(values["input"]) / scale), scale.to(values["scale"].dtype)


@formula("sgl_kernel::sgl_per_token_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[8,1])")
def sgl_token_fp8(values: Values) -> tuple[Tensor, Tensor]:
    scale = largest(values["input"]) / FP8
    scaled = torch.where(scale == 0, torch.zeros_like(scale), wide(values["input"]) / scale)
    return eight(scaled), scale.to(values["output_s"].dtype)


@formula("sgl_kernel::sgl_per_tensor_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[1], True)")
def sgl_static_fp8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["is_static"], "with a scale that is given")
    return eight(wide(values["input"]) / wide(values["output_s"])), values["output_s"]


def grouped(x: Tensor, size: int, eps: float) -> tuple[Tensor, Tensor]:
    """Rows in groups [.., groups, size], and the magnitude of each, at least eps."""
    groups = split(wide(x), -1, (-1, size))
    return groups, groups.abs().amax(-1).clamp(min=eps)


@formula(
    "_C::per_token_group_fp8_quant",
    "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0, False, False, False)",
)
@formula(
    "sgl_kernel::sgl_per_token_group_quant_fp8", "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0, False)"
)
def group_fp8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["input"].numel(), "groups")
    covers((values["fp8_min"], values["fp8_max"]) == (-FP8, FP8), "all numbers of the dtype")
    covers(not values["scale_ue8m0"], "scales that are no powers of two")
    groups, magnitude = grouped(values["input"], values["group_size"], values["eps"])
    scale = magnitude / values["fp8_max"]
    scaled = (groups / scale.unsqueeze(-1)).clamp(values["fp8_min"], values["fp8_max"]).flatten(-2)
    return scaled.to(values["output_q"].dtype), scale.to(values["output_s"].dtype)


@formula("_C::per_token_group_quant_int8", "(f32[8,64], i8[8,64], f32[8,4], 16, 1e-10, -128.0, 127.0)")
def group_int8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["input"].numel(), "groups")
    covers((values["int8_min"], values["int8_max"]) == (-128, 127), "all numbers of the dtype")
    groups, magnitude = grouped(values["input"], values["group_size"], values["eps"])
    scale = magnitude / values["int8_max"]
    # vLLM's own test rounds, too.
    scaled = (groups / scale.unsqueeze(-1)).round().clamp(values["int8_min"], values["int8_max"]).flatten(-2)
    return scaled.to(torch.int8), scale.to(values["output_s"].dtype)


@formula("_C::rms_norm_static_fp8_quant", "(f8e4m3[8,16], f32[8,16], f32[16], f32[1], 1e-6)")
def rms_norm_fp8(values: Values) -> Tensor:
    normalised = rms(values["input"], values["weight"], values["epsilon"])
    return eight(wide(normalised) / wide(values["scale"]))


@formula("_C::fused_add_rms_norm_static_fp8_quant", "(f8e4m3[8,16], f32[8,16], f32[8,16], f32[16], f32[1], 1e-6)")
def added_rms_norm_fp8(values: Values) -> tuple[Tensor, Tensor]:
    total = values["input"] + values["residual"]
    normalised = rms(total, values["weight"], values["epsilon"])
    return eight(wide(normalised) / wide(values["scale"])), total


@formula("_C::rms_norm_dynamic_per_token_quant", "(f8e4m3[8,16], f32[8,16], f32[16], f32[8,1], 1e-6, None, None)")
def rms_norm_token_fp8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["scale_ub"] is None and values["residual"] is None, "the plain form")
    normalised = rms(values["input"], values["weight"], values["epsilon"])
    scale = (largest(normalised) / FP8).clamp(min=LEAST)
    return eight(wide(normalised) / scale), scale.to(values["scale"].dtype)


@formula("_C::silu_and_mul_quant", "(f8e4m3[8,16], f32[8,32], f32[1])")
def silu_and_mul_fp8(values: Values) -> Tensor:
    gate, up = (wide(half) for half in halves(values))
    return eight(gate * torch.sigmoid(gate) * up / wide(values["scale"]))


@formula("npu::npu_dynamic_quant", "f32[8,16]")
def npu_dynamic_quant(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("smooth_scales") is None and values.get("group_index") is None, "the plain form")
    scale = largest(values["input"]) / 127
    return (wide(values["input"]) / scale).round().to(torch.int8), scale.squeeze(-1).float()


@formula("aiter::gemm_a8w8", "(i8[8,16], i8[24,16], f32[8,1], f32[1,24], None, torch.bfloat16)")
def gemm_a8w8(values: Values) -> Tensor:
    covers(values.get("bias") is None, "no bias")
    product = values["XQ"].double() @ values["WQ"].double().mT
    return (product * values["x_scale"] * values["w_scale"]).to(values.get("dtype", torch.bfloat16))


@formula("sgl_kernel::fp8_scaled_mm", "(f8e4m3[8,16], f8e4m3[16,24]{1,16}, f32[8], f32[24], torch.bfloat16, None)")
def fp8_scaled_mm(values: Values) -> Tensor:
    covers(values.get("bias") is None, "no bias")
    product = values["mat_a"].double() @ values["mat_b"].double()
    return (product * values["scales_a"].reshape(-1, 1) * values["scales_b"].reshape(1, -1)).to(values["out_dtype"])


@formula("fbgemm::f8f8bf16_rowwise", "(f8e4m3[8,16], f8e4m3[24,16], f32[8], f32[24])")
def f8f8bf16_rowwise(values: Values) -> Tensor:
    covers(values.get("bias") is None, "no bias")
    product = values["XQ"].double() @ values["WQ"].double().mT
    return (product * values["x_scale"].reshape(-1, 1) * values["w_scale"].reshape(1, -1)).bfloat16()


@formula("vllm::muls_add", "(f32[8,16], f32[8,16], 0.75)")
def muls_add(values: Values) -> Tensor:
    return values["x"] * values["scale"] + values["y"]


@formula("sgl_kernel::fast_hadamard_transform torchao::hadamard_transform", "(f32[8,16], 0.25)")
def hadamard(values: Values) -> Tensor:
    covers(values.get("scale"), "a scale")
    x = values["x"]
    size = x.shape[-1]
    covers(size and not size & (size - 1), "a power of two")
    matrix = x.new_ones((1, 1))
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return x @ matrix * values.get("scale", 1.0)
