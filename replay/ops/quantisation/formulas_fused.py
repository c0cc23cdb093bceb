# pyright: strict
"""Norms and activations that quantise what they give, and vendors' 8-bit numbers back and forth.

As in `formulas` beside it: from public documentation, independent of the stand-ins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.maths.formula import FP8, Values, covers, epsilon, formula, halves, numbers, of, rms, wide
from opreplay.replay.ops.quantisation.formulas import LEAST, eight, grouped, largest, token_int8


def silu_gated(x: Tensor) -> Tensor:
    """The first half of each row times its sigmoid, times the second half."""
    gate, up = wide(x).chunk(2, -1)
    return gate / (1 + torch.exp(-gate)) * up


def by_groups(x: Tensor, size: int, dtype: torch.dtype, eps: float = 1e-10) -> tuple[Tensor, Tensor]:
    """Numbers of 8 bits in the shape of x [.., columns], and scales [.., columns / size]."""
    covers(dtype in (torch.int8, torch.float8_e4m3fn), "these dtypes")
    covers(x.numel() and size > 0 and x.shape[-1] % size == 0, "whole groups")
    groups, magnitude = grouped(x, size, eps)
    scale = magnitude / (127 if dtype is torch.int8 else FP8)
    scaled = groups / scale.unsqueeze(-1)
    data = scaled.round().to(torch.int8) if dtype is torch.int8 else eight(scaled)
    return data.flatten(-2), scale


def by_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of 8 bits, and the scale of each row [.., 1]."""
    covers(dtype in (torch.int8, torch.float8_e4m3fn) and x.numel(), "rows in these dtypes")
    if dtype is torch.int8:
        return token_int8(x)
    scale = (largest(x) / FP8).clamp(min=LEAST)
    return eight(wide(x) / scale), scale.float()


@formula("vllm::rocm_aiter_rmsnorm_fp8_group_quant", "(f32[8,256], f32[256], 1e-6, 128)")
def norm_by_group(values: Values) -> tuple[Tensor, Tensor]:
    return by_groups(rms(values["x"], values["weight"], epsilon(values)), values["group_size"], torch.float8_e4m3fn)


@formula("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", "(f32[8,256], f32[8,256], f32[256], 1e-6, 128)")
def added_norm_by_group(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    total = values["x"] + values["residual"]
    data, scale = norm_by_group({**values, "x": total})
    return data, total, scale


@formula("vllm::rocm_aiter_rmsnorm_fused_dynamic_quant", "(f32[8,16], f32[16], 1e-6, torch.int8)")
def norm_by_row(values: Values) -> tuple[Tensor, Tensor]:
    return by_rows(rms(values["x"], values["weight"], epsilon(values)), values["quant_dtype"])


@formula("vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant", "(f32[8,16], f32[8,16], f32[16], 1e-6, torch.int8)")
def added_norm_by_row(values: Values) -> tuple[Tensor, Tensor, Tensor]:
    total = values["x"] + values["residual"]
    data, scale = norm_by_row({**values, "x": total})
    return data, total, scale


@formula("vllm::rocm_aiter_act_mul_and_fp8_group_quant", "(f32[8,256], 128)")
def gated_by_group(values: Values) -> tuple[Tensor, Tensor]:
    value = silu_gated(values["x"]).to(values["x"].dtype)
    return by_groups(value, values["group_size"], torch.float8_e4m3fn)


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
    data, scale = by_rows(rms(values["q"], values["q_weight"], values["q_epsilon"]), torch.float8_e4m3fn)
    return data, scale, rms(values["kv"], values["kv_weight"], values["kv_epsilon"])


GROUPED = "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, 1e-10, -448.0, 448.0{})"


@formula("sglang::per_token_group_quant", "(f32[8,64], f8e4m3[8,64], f32[8,4], 16, False, False, None, None)")
@formula("sglang::per_token_group_quant_8bit", GROUPED.format(", False"))
@formula(
    "sglang::per_token_group_quant_8bit_v2 sgl_kernel::sgl_per_token_group_quant_8bit_v2",
    GROUPED.format(", False, False, None"),
)
@formula("sgl_kernel::sgl_per_token_group_quant_int8", "(f32[8,64], i8[8,64], f32[8,4], 16, 1e-10, -128.0, 127.0)")
def sgl_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("scale_ue8m0") and values.get("masked_m") is None, "the plain form")
    x, dtype, places = values["input"], values["output_q"].dtype, values["output_s"]
    limit = 127 if dtype is torch.int8 else FP8
    covers(of(values, "fp8_max", "max_8bit", otherwise=limit) == limit, "all numbers of the dtype")
    value = silu_gated(x) if values.get("fuse_silu_and_mul") else x
    data, scale = by_groups(value, values["group_size"], dtype, values.get("eps", 1e-10))
    covers(places.is_floating_point() and places.shape == scale.shape, "a scale for each group of a row")
    return data, scale.to(places.dtype)


@formula("aiter::dynamic_per_group_scaled_quant", "(f8e4m3[8,64], f32[8,64], f32[8,2], 32, False)")
def aiter_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not values.get("shuffle_scale", True) and values.get("num_rows") is None, "scales in order")
    data, scale = by_groups(values["input"], values.get("group_size", 32), values["out"].dtype)
    covers(values["scales"].numel() == scale.numel(), "a scale for each group")
    return data, scale.reshape(values["scales"].shape)


@formula("aiter::silu_and_mul_quant", "(f8e4m3[8,128], f32[8,256], f32[8,1], 128)")
@formula("_C::silu_and_mul_per_block_quant", "(f8e4m3[8,128], f32[8,256], f32[8,1], 128)")
def silu_by_group(values: Values) -> tuple[Tensor, Tensor]:
    covers(not any(values.get(name) for name in ("limit", "shuffle_scale", "is_scale_transposed")), "the plain form")
    covers(values.get("scale_ub") is None, "scales without a bound")
    places = of(values, "scale", "scales")
    data, scale = by_groups(silu_gated(values["input"]), values["group_size"], values["out"].dtype)
    covers(places.numel() == scale.numel(), "a scale for each group")
    return data, scale.reshape(places.shape)


@formula("_C::persistent_masked_m_silu_mul_quant", "(f32[2,8,256], i32[2], f8e4m3[2,8,128], f32[2,8,1], False)")
@formula("_C::silu_mul_fp8_quant_deep_gemm_cuda", "(f32[2,8,256], i32[2], f8e4m3[2,8,128], f32[2,8,1], 128, False, 1)")
def masked_by_group(values: Values) -> tuple[Tensor, Tensor]:
    """The first rows of each expert only; others are left as they are."""
    covers(not values["use_ue8m0"], "scales that are no powers of two")
    data, scales = values["y_q"].clone(), values["y_s"].clone()
    covers(scales.is_floating_point(), "scales of float32")
    for expert, count in enumerate(numbers(values["counts"])):
        covers(0 <= count <= data.shape[1], "rows that are there")
        if count:
            rows = silu_gated(values["input"][expert, :count])
            data[expert, :count], scales[expert, :count] = by_groups(rows, values.get("group_size", 128), data.dtype)
    return data, scales


@formula(
    "_C::rms_norm_per_block_quant", "(f8e4m3[8,256], f32[8,256], f32[256], f32[8,2], 1e-6, None, None, 128, False)"
)
def block_norm(values: Values) -> tuple[Tensor, ...]:
    covers(values.get("scale_ub") is None and not values.get("is_scale_transposed"), "the plain form")
    residual = values.get("residual")
    total = values["input"] if residual is None else values["input"] + residual
    normalised = rms(total, values["weight"], values["epsilon"])
    data, scale = by_groups(normalised, values["group_size"], values["result"].dtype)
    return (data, scale) if residual is None else (data, scale, total)


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
    data, scale = by_rows(values["input"], torch.float8_e4m3fn)
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
