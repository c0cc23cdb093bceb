# pyright: strict
"""Numbers of 8 bits: their scales, products of them, and norms and activations that give them.

Written from public documentation, independent of the references.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.replay.ops.formulas.formula import (
    FP8,
    LEAST,
    SMALLEST,
    Values,
    covers,
    eight,
    epsilon,
    formula,
    formulas,
    grouped,
    halves,
    largest,
    numbers,
    of,
    quantised_groups,
    quantised_rows,
    rms,
    token_int8,
    wide,
)


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


@formula("sgl_kernel::sgl_per_token_quant_fp8 sglang::per_token_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[8,1])")
def sgl_token_fp8(values: Values) -> tuple[Tensor, Tensor]:
    scale = largest(values["input"]) / FP8
    scaled = torch.where(scale == 0, torch.zeros_like(scale), wide(values["input"]) / scale)
    return eight(scaled), scale.to(values["output_s"].dtype)


@formula("sgl_kernel::sgl_per_tensor_quant_fp8", "(f32[8,16], f8e4m3[8,16], f32[1], True)")
def sgl_static_fp8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["is_static"], "with a scale that is given")
    return eight(wide(values["input"]) / wide(values["output_s"])), values["output_s"]


@formulas("""
    _C::per_token_group_fp8_quant | (f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0, False, False, False)
    sgl_kernel::sgl_per_token_group_quant_fp8 sgl_kernel::sgl_per_token_group_quant_8bit
        | (f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0, False)
    _C::per_token_group_quant_int8 | (f32[8,64], i8[8,64], f32[8,4], 16, 1e-10, -128.0, 127.0)
""")
def by_given_group(values: Values) -> tuple[Tensor, Tensor]:
    low, high = (of(values, *(f"{dtype}_{end}" for dtype in ("fp8", "int8"))) for end in ("min", "max"))
    covers((low, high) in ((-FP8, FP8), (-128, 127)), "all numbers of the dtype")
    covers(not values.get("scale_ue8m0"), "scales that are no powers of two")
    data, scale = quantised_groups(values["input"], values["group_size"], values["output_q"].dtype, values["eps"])
    return data, scale.to(values["output_s"].dtype)


def normed(values: Values) -> tuple[Tensor, list[Tensor]]:
    """A root-mean-square norm, and the sum that was normalised where there is a residual."""
    x, residual = of(values, "input", "x"), values.get("residual")
    total = x if residual is None else x + residual
    return rms(total, values["weight"], epsilon(values)), [] if residual is None else [total]


@formulas("""
    _C::rms_norm_static_fp8_quant | (f8e4m3[8,16], f32[8,16], f32[16], f32[1], 1e-6)
    _C::fused_add_rms_norm_static_fp8_quant | (f8e4m3[8,16], f32[8,16], f32[8,16], f32[16], f32[1], 1e-6)
""")
def norm_fp8(values: Values) -> tuple[Tensor, ...]:
    normalised, total = normed(values)
    return eight(wide(normalised) / wide(values["scale"])), *total


@formula("_C::rms_norm_dynamic_per_token_quant", "(f8e4m3[8,16], f32[8,16], f32[16], f32[8,1], 1e-6, None, None)")
def rms_norm_token_fp8(values: Values) -> tuple[Tensor, ...]:
    covers(values["scale_ub"] is None, "the plain form")
    normalised, total = normed(values)
    data, scale = quantised_rows(normalised, torch.float8_e4m3fn)
    return data, scale.to(values["scale"].dtype), *total


@formula("_C::silu_and_mul_quant", "(f8e4m3[8,16], f32[8,32], f32[1])")
def silu_and_mul_fp8(values: Values) -> Tensor:
    gate, up = (wide(half) for half in halves(values))
    return eight(gate * torch.sigmoid(gate) * up / wide(values["scale"]))


@formula("npu::npu_dynamic_quant", "f32[8,16]")
def npu_dynamic_quant(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("smooth_scales") is None and values.get("group_index") is None, "the plain form")
    scale = largest(values["input"]) / 127
    return (wide(values["input"]) / scale).round().to(torch.int8), scale.squeeze(-1).float()


@formula("vllm::muls_add", "(f32[8,16], f32[8,16], 0.75)")
def muls_add(values: Values) -> Tensor:
    return values["x"] * values["scale"] + values["y"]


@formula(
    "sgl_kernel::fast_hadamard_transform sglang::hadamard_transform torchao::hadamard_transform", "(f32[8,16], 0.25)"
)
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


@formulas("""
    aiter::per_token_quant_hip | (f32[8,16], None, torch.int8)
    vllm::rocm_aiter_per_token_quant | (f32[8,16], torch.int8)
""")
def aiter_per_token(values: Values) -> tuple[Tensor, Tensor]:
    covers(values.get("scale") is None and values.get("quant_dtype", torch.int8) is torch.int8, "whole numbers")
    return token_int8(values["x"])


@formulas("""
    aiter::smoothquant_fwd | (i8[8,16], f32[8,16], f32[16], f32[8,1])
    aiter::smooth_per_token_scaled_quant | (i8[8,16], f32[8,16], f32[8,1], f32[16])
""")
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


@formulas("""
    aiter::per_group_quant_hip | (f32[8,256], None, torch.int8, 128)
    vllm::triton_per_token_group_quant_fp8 vllm::rocm_aiter_group_fp8_quant | (f32[8,256], 128)
""")
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
    x, scales, zeros = (values[name] for name in ("self", "scales", "zero_points"))
    covers(x.dim() == 2 and values["axis"] == 1 and scales.numel() > 1, "a scale for each column")
    covers(zeros is not None, "zeros")
    covers(values["dtype"] in (torch.qint8, torch.int8), "whole numbers of 8 bits")
    scaled = wide(x) / wide(scales) if values.get("div_mode", True) else wide(x) * wide(scales)
    return (scaled + wide(zeros)).round().clamp(-128, 127).to(torch.int8)


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


def silu_gated(x: Tensor) -> Tensor:
    """The first half of each row times its sigmoid, times the second half."""
    gate, up = wide(x).chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


@formulas("""
    vllm::rocm_aiter_rmsnorm_fp8_group_quant | (f32[8,256], f32[256], 1e-6, 128)
    vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant | (f32[8,256], f32[8,256], f32[256], 1e-6, 128)
""")
def norm_by_group(values: Values) -> tuple[Tensor, ...]:
    normalised, total = normed(values)
    data, scale = quantised_groups(normalised, values["group_size"], torch.float8_e4m3fn)
    return data, *total, scale


@formulas("""
    vllm::rocm_aiter_rmsnorm_fused_dynamic_quant | (f32[8,16], f32[16], 1e-6, torch.int8)
    vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant | (f32[8,16], f32[8,16], f32[16], 1e-6, torch.int8)
""")
def norm_by_row(values: Values) -> tuple[Tensor, ...]:
    normalised, total = normed(values)
    data, scale = quantised_rows(normalised, values["quant_dtype"])
    return data, *total, scale


@formula("vllm::rocm_aiter_act_mul_and_fp8_group_quant", "(f32[8,256], 128)")
def gated_by_group(values: Values) -> tuple[Tensor, Tensor]:
    value = silu_gated(values["x"]).to(values["x"].dtype)
    return quantised_groups(value, values["group_size"], torch.float8_e4m3fn)


@formula("vllm::rocm_aiter_triton_add_rmsnorm_pad", "(f32[8,16], f32[16], 1e-6, f32[8,16], 24)")
def padded_norm(values: Values) -> tuple[Tensor, Tensor]:
    """Zeros behind each row, up to a multiple of the width."""
    covers(values["x_pad_to_multiple"] > 0, "a width")
    total = values["x"] + values["residual"]
    normalised = rms(total, values["weight"], epsilon(values))
    width = -(-total.shape[-1] // values["x_pad_to_multiple"]) * values["x_pad_to_multiple"]
    padded = normalised.new_zeros((*total.shape[:-1], width))
    padded[..., : total.shape[-1]] = normalised
    return padded, total


@formula("vllm::rocm_aiter_per_tensor_quant", "(f32[8,16], torch.float8_e4m3fn, None)")
def by_tensor(values: Values) -> tuple[Tensor, Tensor]:
    x = wide(values["x"])
    covers(values["quant_dtype"] is torch.float8_e4m3fn and x.numel(), "float8 e4m3fn")
    scale = wide(x.abs().max() / FP8 if values.get("scale") is None else values["scale"])
    covers(scale.numel() == 1 and bool(scale > 1e-12), "one scale, not nearly zero")
    return eight(x / scale), scale.reshape(1).float()


@formula("vllm::fused_mla_dual_rms_norm", "(f32[8,16], f32[16], f32[8,32], f32[32], 1e-6, 1e-5)")
def two_norms(values: Values) -> tuple[Tensor, Tensor]:
    first = rms(values["x1"], values["x1_weight"], values["x1_epsilon"])
    return first, rms(values["x2"], values["x2_weight"], values["x2_epsilon"])


@formula("vllm::fused_mla_dual_rms_norm_per_token_quant", "(f32[8,16], f32[16], f32[8,32], f32[32], 1e-6, 1e-5)")
def two_norms_by_row(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    data, scale = quantised_rows(rms(values["q"], values["q_weight"], values["q_epsilon"]), torch.float8_e4m3fn)
    return data, scale, rms(values["kv"], values["kv_weight"], values["kv_epsilon"])


GROUPED = "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0"


@formulas(f"""
    sglang::per_token_group_quant | (f32[8,64], f8e4m3[8,64], f32[8,4], 16, False, False, None, None)
    sglang::per_token_group_quant_8bit | {GROUPED}, False)
    sglang::per_token_group_quant_8bit_v2
    sgl_kernel::sgl_per_token_group_quant_8bit_v2 | {GROUPED}, False, False, None)
    sgl_kernel::sgl_per_token_group_quant_int8 | (f32[8,64], i8[8,64], f32[8,4], 16, 1e-10, -128.0, 127.0)
""")
def sgl_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("scale_ue8m0") and values.get("masked_m") is None, "the plain form")
    x, dtype, places = values["input"], values["output_q"].dtype, values["output_s"]
    limit = 127 if dtype is torch.int8 else FP8
    covers(of(values, "fp8_max", "max_8bit", otherwise=limit) == limit, "all numbers of the dtype")
    value = silu_gated(x) if values.get("fuse_silu_and_mul") else x
    data, scale = quantised_groups(value, values["group_size"], dtype, values.get("eps", 1e-10))
    covers(places.is_floating_point() and places.shape == scale.shape, "a scale for each group of a row")
    return data, scale.to(places.dtype)


@formula("aiter::dynamic_per_group_scaled_quant", "(f8e4m3[8,64], f32[8,64], f32[8,2], 32, False)")
def aiter_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("shuffle_scale", True) and values.get("num_rows") is None, "scales in order")
    data, scale = quantised_groups(values["input"], values.get("group_size", 32), values["out"].dtype)
    covers(values["scales"].numel() == scale.numel(), "a scale for each group")
    return data, scale.reshape(values["scales"].shape)


@formula("aiter::silu_and_mul_quant _C::silu_and_mul_per_block_quant", "(f8e4m3[8,128], f32[8,256], f32[8,1], 128)")
def silu_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not any(values.get(name) for name in ("limit", "shuffle_scale", "is_scale_transposed")), "the plain form")
    covers(values.get("scale_ub") is None, "scales without a bound")
    places = of(values, "scale", "scales")
    data, scale = quantised_groups(silu_gated(values["input"]), values["group_size"], values["out"].dtype)
    covers(places.numel() == scale.numel(), "a scale for each group")
    return data, scale.reshape(places.shape)


@formulas("""
    _C::persistent_masked_m_silu_mul_quant | (f32[2,8,256], i32[2], f8e4m3[2,8,128], f32[2,8,1], False)
    _C::silu_mul_fp8_quant_deep_gemm_cuda | (f32[2,8,256], i32[2], f8e4m3[2,8,128], f32[2,8,1], 128, False, 1)
""")
def masked_by_group(values: Values) -> tuple[Tensor, Tensor]:
    """The first rows of each expert only; others are left as they are."""
    covers(not values["use_ue8m0"], "scales that are no powers of two")
    data, scales = values["y_q"].clone(), values["y_s"].clone()
    covers(scales.is_floating_point(), "scales of float32")
    for expert, count in enumerate(numbers(values["counts"])):
        covers(0 <= count <= data.shape[1], "rows that are there")
        if count:
            rows = silu_gated(values["input"][expert, :count])
            data[expert, :count], scales[expert, :count] = quantised_groups(
                rows, values.get("group_size", 128), data.dtype
            )
    return data, scales


@formula(
    "_C::rms_norm_per_block_quant", "(f8e4m3[8,256], f32[8,256], f32[256], f32[8,2], 1e-6, None, None, 128, False)"
)
def block_norm(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("scale_ub") is None and not values.get("is_scale_transposed"), "the plain form")
    normalised, total = normed(values)
    return *quantised_groups(normalised, values["group_size"], values["result"].dtype), *total


@formula("_C::poly_norm", "(f32[8,16], f32[8,16], f32[3], f32[1], 1e-6)")
def poly_norm(values: Values) -> Tensor:
    """PolyNorm: a weighted sum of the norms of x³, x² and x."""
    x, ones = wide(values["input"]), torch.ones(values["input"].shape[-1])
    cubic, square, plain = (rms(x**power, ones, values["epsilon"]) for power in (3, 2, 1))
    a, b, c = wide(values["weight"])
    return (a * cubic + b * square + c * plain + wide(values["bias"])).to(values["out"].dtype)


@formula("aiter::swiglu_and_mul", "(f32[8,16], f32[8,32])")
def swiglu_of_gpt_oss(values: Values) -> Tensor:
    gate, up = (wide(half) for half in halves(values))
    gate, up = gate.minimum(torch.tensor(7.0)), up.clamp(-7, 7)
    return ((up + 1) * gate / (1 + torch.exp(-1.702 * gate))).to(values["out"].dtype)


@formula("fbgemm::quantize_fp8_per_row", "(f32[8,16], None, None)")
def fbgemm_rows(values: Values) -> list[Tensor]:
    covers(values.get("bs") is None and values.get("scale_ub") is None, "the plain form")
    covers(not values.get("stochastic_rounding"), "rounding to the nearest")
    covers(values.get("output_dtype") in (None, torch.float8_e4m3fn), "float8 e4m3fn")
    data, scale = quantised_rows(values["input"], torch.float8_e4m3fn)
    return [data, scale.squeeze(-1)]


@formula("fbgemm::quantize_fp8_per_col", "(f32[8,16], None, None)")
def fbgemm_columns(values: Values) -> list[Tensor]:
    data, scale = fbgemm_rows({**values, "input": values["input"].mT})
    return [data.mT, scale]


@formula("fbgemm::quantize_fp8_per_tensor", "(f32[8,16], None, None)")
def fbgemm_tensor(values: Values) -> list[Tensor]:
    covers(values.get("bs") is None and values.get("scale_ub") is None, "the plain form")
    covers(not values.get("stochastic_rounding") and values["input"].numel(), "rounding to the nearest")
    x = wide(values["input"])
    scale = x.abs().max() / FP8
    covers(bool(scale > 1e-12), "numbers that are not nearly zero")
    return [eight(x / scale), scale.float()]


def small_numbers(exponent_bits: int, bias: int) -> Tensor:
    """FBGEMM's numbers of 8 bits without sign [128]: all exponents are finite."""
    places = 7 - exponent_bits
    codes = torch.arange(128)
    exponents, fractions = codes >> places, (codes & (1 << places) - 1).double() / (1 << places)
    normal = (1 + fractions) * 2.0 ** (exponents - bias).double()
    return torch.where(exponents == 0, fractions * 2.0 ** (1 - bias), normal)


def nearest_codes(x: Tensor, table: Tensor) -> Tensor:
    """The code of the number next to each of x, with its sign in the highest bit."""
    covers(bool(x.isfinite().all()), "numbers that are finite")
    distances = (x.double().abs().unsqueeze(-1) - table).abs()
    pair = distances.topk(2, -1, largest=False)
    covers(not bool((pair.values[..., 0] == pair.values[..., 1]).any()), "numbers that have one nearest")
    return (pair.indices[..., 0] + 128 * torch.signbit(x)).to(torch.uint8)


@formula("fbgemm::FloatToHFP8Quantized", "(f32[8,16], 4, 15, 0.9375)")
def to_small(values: Values) -> Tensor:
    bits, bias, limit = values.get("ebits", 4), values.get("exponent_bias", 15), values.get("max_pos", 0.9375)
    table = small_numbers(bits, bias)
    covers(bits == 4 and limit <= table[0b1110111], "four bits of exponent, of which the highest number is not used")
    return nearest_codes(values["input"].clamp(-limit, limit), table)


@formula("fbgemm::HFP8QuantizedToFloat", "(u8[8,16], 4, 15)")
def from_small(values: Values) -> Tensor:
    bits = values.get("ebits", 4)
    covers(bits in (4, 5), "four or five bits of exponent")
    codes = values["input"].long()
    magnitudes = small_numbers(bits, values.get("exponent_bias", 15))[codes & 127]
    return (magnitudes * (1 - 2 * (codes >> 7))).float()


@formula("fbgemm::FloatToFP8RowwiseQuantized", "(f32[8,16], True)")
def to_small_rows(values: Values) -> Tensor:
    """Each row's codes, its scale in four bytes, and four bytes of zeros."""
    x = values["t"].float()
    covers(values.get("forward", True) and x.shape[-1] % 4 == 0 and x.numel(), "the form of forward passes")
    scale = 0.9375 / largest(x)
    codes = nearest_codes(x * scale, small_numbers(4, 15))
    scales = scale.contiguous().view(torch.uint8)
    return torch.cat([codes, scales, torch.zeros_like(scales)], -1)


@formula("fbgemm::FP8RowwiseQuantizedToFloat", "(u8[8,24], True, 0)")
def from_small_rows(values: Values) -> Tensor:
    data = values["input"]
    covers(values.get("output_dtype", 0) == 0 and values.get("forward", True) and data.shape[-1] > 8, "float32")
    scale = data[..., -8:-4].contiguous().view(torch.float32)
    covers(bool((scale.isfinite() & (scale.abs() > 1e-30)).all()), "scales that are numbers")
    return from_small({"input": data[..., :-8], "ebits": 4, "exponent_bias": 15}) / scale


@formula("npu::npu_anti_quant", "(i8[8,16], f32[16], offset=f32[16])")
def npu_anti_quant(values: Values) -> Tensor:
    covers(values.get("dst_dtype") in (None, 5, torch.float16), "float16")
    covers(values["x"].dtype is torch.int8, "whole numbers of 8 bits")
    offset = 0 if values.get("offset") is None else values["offset"].double()
    return ((values["x"].double() + offset) * values["scale"].double()).half()


@formulas("""
    npu::npu_dequant_bias | (i32[8,16], f32[16], f32[8], i32[16], output_dtype=torch.float32)
""")
@formula("npu::npu_dequant_bias", "(i32[8,16], f32[16], f32[8], f32[16])")
def npu_dequant_bias(values: Values) -> Tensor:
    x, bias = values["x"].double(), values["bias"]
    covers(x.dim() == 2, "rows")
    if bias is not None and not bias.is_floating_point():
        x, bias = x + bias, None
    x = x * values["weight_scale"].double()
    if values["activation_scale"] is not None:
        x = x * values["activation_scale"].double().reshape(-1, 1)
    return (x if bias is None else x + bias.double()).to(values.get("output_dtype") or torch.float16)


@formula("npu::npu_swiglu_quant", "(f32[8,32], quant_mode=1)")
def npu_swiglu_quant(values: Values) -> tuple[Tensor, Tensor]:
    names = ("smooth_scales", "offsets", "group_index")
    covers(values.get("quant_mode") == 1 and all(values.get(name) is None for name in names), "a scale for each row")
    covers(values.get("dst_type") in (None, torch.int8), "whole numbers of 8 bits")
    return npu_gated_rows(wide(values["x"]), bool(values.get("activate_left")))


def npu_gated_rows(x: Tensor, activate_left: bool) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, -1)
    value = silu_gated(torch.cat([first, second] if activate_left else [second, first], -1))
    data, scale = token_int8(value)
    return data, scale.squeeze(-1)


DEQUANTISED = "(i32[8,32], weight_scale=f32[32], activation_scale=f32[8], quant_mode=1)"


@formula("_C_ascend::npu_dequant_swiglu_quant", DEQUANTISED)
def ascend_dequant_swiglu_quant(values: Values) -> tuple[Tensor, Tensor]:
    return npu_dequant_swiglu_quant({"activate_left": True, **values})


@formula("npu::npu_dequant_swiglu_quant", DEQUANTISED)
def npu_dequant_swiglu_quant(values: Values) -> tuple[Tensor, Tensor]:
    names = ("bias", "quant_scale", "quant_offset", "group_index", "dst_type", "round_mode", "activate_dim")
    covers(all(values.get(name) is None for name in names), "the plain form")
    covers(values.get("quant_mode") == 1 and not values.get("swiglu_mode"), "a scale for each row")
    x = values["x"].float()
    if values.get("weight_scale") is not None:
        x = x * values["weight_scale"].float().reshape(1, -1)
    if values.get("activation_scale") is not None:
        x = x * values["activation_scale"].float().reshape(-1, 1)
    return npu_gated_rows(x, bool(values.get("activate_left")))
