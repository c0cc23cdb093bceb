# pyright: strict
"""Numbers of 8 bits: their scales, and products of them.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import FP8, Values, covers, formula, halves, of, rms, split, wide

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


@formula("aiter::dynamic_per_token_scaled_quant", "(i8[8,16], f32[8,16], f32[8,1])")
def aiter_token_int8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("scale_ub") is None and values["out"].dtype is torch.int8, "whole numbers")
    quantised, scale = token_int8(values["input"])
    return quantised, scale.reshape(values["scales"].shape)


def token_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of 8 bits, and the scale of each row [.., 1]."""
    covers(x.numel(), "rows")
    scale = largest(x) / 127
    return (wide(x) / scale).round().clamp(-128, 127).to(torch.int8), scale.float()


@formula("aiter::per_token_quant_hip", "(f32[8,16], None, torch.int8)")
def aiter_per_token(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("scale") is None and values.get("quant_dtype", torch.int8) is torch.int8, "whole numbers")
    return token_int8(values["x"])


@formula("vllm::rocm_aiter_per_token_quant", "(f32[8,16], torch.int8)")
def rocm_per_token(values: Values) -> tuple[Tensor, Tensor]:
    return aiter_per_token(values)


@formula("aiter::smoothquant_fwd", "(i8[8,16], f32[8,16], f32[16], f32[8,1])")
@formula("aiter::smooth_per_token_scaled_quant", "(i8[8,16], f32[8,16], f32[8,1], f32[16])")
def smoothed_int8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("smooth_scale_map") is None and values["out"].dtype is torch.int8, "whole numbers")
    factor, places = of(values, "x_scale", "smooth_scale"), of(values, "y_scale", "scales")
    quantised, scale = token_int8(wide(values["input"]) * wide(factor))
    return quantised, scale.reshape(places.shape)


@formula("aiter::moe_smoothquant_fwd", "(i8[2,8,16], f32[8,16], f32[4,16], i32[8,2], f32[2,8,1])")
def moe_smoothed_int8(values: Values) -> tuple[Tensor, Tensor]:
    x, factors, chosen = wide(values["input"]), wide(values["x_scale"]), values["topk_ids"].long()
    covers(len(chosen) == len(x) and values["out"].dtype is torch.int8, "a choice for each token")
    rows = torch.stack(
        [x[t] * factors[expert] for k in range(chosen.shape[1]) for t, expert in enumerate(chosen[:, k])]
    )
    quantised, scale = token_int8(rows)
    return quantised.reshape(values["out"].shape), scale.reshape(values["y_scale"].shape)


@formula("aiter::per_group_quant_hip", "(f32[8,256], None, torch.int8, 128)")
@formula("vllm::triton_per_token_group_quant_fp8 vllm::rocm_aiter_group_fp8_quant", "(f32[8,256], 128)")
def by_group(values: Values) -> tuple[Tensor, Tensor]:
    dtype = values.get("quant_dtype", torch.float8_e4m3fn)
    covers(
        values.get("scale") is None and not values.get("transpose_scale") and values["x"].dim() == 2, "the plain form"
    )
    groups, magnitude = grouped(values["x"], values.get("group_size", 128), 0.0)
    covers(groups.numel() and bool((magnitude > SMALLEST * 1e10).all()), "groups that are not nearly zero")
    scale = magnitude / (127 if dtype is torch.int8 else FP8)
    scaled = groups / scale.unsqueeze(-1)
    data = scaled.round().to(torch.int8) if dtype is torch.int8 else eight(scaled)
    covers(dtype in (torch.int8, torch.float8_e4m3fn), "these dtypes")
    return data.flatten(-2), scale.float()


@formula(
    "sgl_kernel::sgl_per_token_group_quant_8bit",
    "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0, False)",
)
def sgl_group_fp8(values: Values) -> tuple[Tensor, Tensor]:
    return group_fp8(values)


@formula("sglang::per_token_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[8,1])")
def sglang_token_fp8(values: Values) -> tuple[Tensor, Tensor]:
    return sgl_token_fp8(values)


@formula("sglang::per_tensor_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[1], True)")
def sglang_static_fp8(values: Values) -> tuple[Tensor, Tensor]:
    return sgl_static_fp8({"is_static": False, **values})


@formula("sglang::per_tensor_absmax_fp8", "f32[8,16], f32[1]")
def sglang_largest(values: Values) -> Tensor:
    covers(values["input"].numel(), "numbers")
    return (wide(values["input"]).abs().max() / FP8).reshape(values["output_s"].shape)


@formula("vllm::quantize", "f32[8,16], f32[1], f32[1], f32[1]")
def vllm_quantize(values: Values) -> Tensor:
    x, scale, offset = (wide(values[name]) for name in ("in_tensor", "input_scale", "input_offset"))
    return (x / scale + offset).round().clamp(-128, 127).to(torch.int8)


@formula("npu::npu_quantize", "(f32[8,16], f32[16], f32[16], torch.qint8, 1, True)")
def npu_quantize(values: Values) -> Tensor:
    covers(
        values["self"].dim() == 2 and values["axis"] == 1 and values["scales"].numel() > 1, "a scale for each column"
    )
    covers(
        values["dtype"] in (torch.qint8, torch.int8) and values["zero_points"] is not None, "whole numbers of 8 bits"
    )
    x, scales = wide(values["self"]), wide(values["scales"])
    scaled = x / scales if values.get("div_mode", True) else x * scales
    return (scaled + wide(values["zero_points"])).round().clamp(-128, 127).to(torch.int8)


@formula("sglang::hadamard_transform", "(f32[8,16], 0.25)")
def sglang_hadamard(values: Values) -> Tensor:
    return hadamard(values)


@formula("_C::hadacore_transform", "(f32[8,16], False)")
def hadacore(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values["inplace"] and values["x"].shape[-1], "a new result")
    return hadamard({"x": values["x"], "scale": values["x"].shape[-1] ** -0.5}), values["x"]


@formula(
    "sglang::_run_activation_inplace sglang::_run_activation_with_rounding_inplace", "('silu', f32[8,32], f32[8,16])"
)
def sglang_gated(values: Values) -> Tensor:
    covers(values["op_name"] in ("silu", ""), "silu")
    gate, up = (wide(half) for half in halves(values))
    return (gate / (1 + torch.exp(-gate)) * up).to(values["out"].dtype)


@formula("sglang::_run_unary_activation_inplace", "('relu2', f32[8,16], f32[8,16])")
def sglang_squared(values: Values) -> Tensor:
    covers(values["op_name"] == "relu2", "this one")
    return (wide(values["input"]).clamp(min=0) ** 2).to(values["out"].dtype)
