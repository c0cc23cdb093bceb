# pyright: strict
"""Products of vendor ops, written down again from their public documentation in plain torch.

Independent of the references: each formula is the textbook's, without the blocks and layouts of a kernel.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional

from tests.replay.ops.formulas.formula import (
    Values,
    covers,
    formula,
    formulas,
    numbers,
    of,
    quantised_groups,
    token_int8,
    wide,
)

INPUTS = (
    "x", "input", "input_", "hidden_states", "mat_a", "a", "A", "in_b", "arg0", "self", "mat1", "XQ", "qx", "q_input",
    "qinput",
)  # fmt: skip
WEIGHTS = ("weight", "weights", "router_weights", "w", "mat_b", "b", "B", "in_a", "arg1", "mat2", "WQ")
INPUT_SCALES = ("a_scales", "scaleA", "scales_a", "scale_a", "As", "x_scale", "A_scale", "input_scale")
WEIGHT_SCALES = ("b_scales", "scaleB", "scales_b", "scale_b", "Bs", "weight_scale", "w_scale", "B_scale")
RESULTS = ("out", "Out", "output", "out_c", "logits", "C", "D")


def in_result(values: Values, product: Tensor, dtype: torch.dtype) -> Tensor:
    """In the dtype of the tensor for the result, else in the one that is asked for, else in this one."""
    result = of(values, *RESULTS)
    asked = of(values, "dtype", "out_dtype", "output_dtype")
    return product.to((asked or dtype) if result is None else result.dtype)


@formulas("""
    sglang::cutedsl_dsv3_fused_a_gemm sglang::jit_dsv3_fused_a_gemm | f32[8,16], f32[16,24]
    _C::dsv3_fused_a_gemm sgl_kernel::dsv3_fused_a_gemm | f32[8,24], f32[8,16], f32[16,24]{1,16}
    npu::npu_bmmV2 | (f32[2,8,16], f32[2,16,24], [])
    aiter::rocb_mm | (f32[8,16], f32[16,24], 0)
""")
def matmul(values: Values) -> Tensor:
    """x [.., M, K] times a weight [.., K, N], plus a bias where one is given."""
    names = ("scale_a", "scale_b", "scale_c", "scaleA", "scaleB", "scaleOut", "activation", "y", "otype")
    covers(all(values.get(name) is None for name in names) and not values.get("use_gelu"), "the plain form")
    x, weight, bias = of(values, *INPUTS), of(values, *WEIGHTS), of(values, "bias", "in_bias")
    covers(x.dtype.itemsize > 1, "numbers of 16 bits or more")
    product = wide(x) @ wide(weight)
    return in_result(values, product if bias is None else product + bias, x.dtype)


@formulas("""
    vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl vllm::unquantized_gemm
    vllm::gpt_oss_router_gemm npu::npu_linear | f32[8,16], f32[24,16], f32[24]
    aiter::gemm_a16w16 | (f32[8,16], f32[24,16], f32[24])
    sglang::bf16_gemm_dispatch sglang::cutedsl_tgv_bf16_gemm | f32[8,16], f32[24,16], f32[24]
    vllm::min_latency_fused_qkv_a_proj _moe_C::router_gemm_bf16_fp32
    vllm::fp32_router_gemm_dispatch | f32[8,16], f32[24,16]
    _rocm_C::wvSplitK _rocm_C::LLMM1 | f32[24,16], f32[4,16]
    _rocm_C::wvSplitKrc | (f32[24,16], f32[4,16], f32[24], 1)
    aiter::wvSpltK aiter::wv_splitk_small_fp16_bf16 | (bf16[24,16], bf16[4,16], bf16[4,24], 4, 304)
    aiter::LLMM1 | (bf16[24,16], bf16[1,16], bf16[1,24], 4)
    _C::bf16_skinny_gemm _C::fp32_router_gemm _moe_C::dsv3_router_gemm
    sgl_kernel::dsv3_router_gemm sglang::flashinfer_dsv3_router_gemm | f32[8,24], f32[8,16], f32[24,16]
    sglang::dsv3_router_gemm | f32[8,16], f32[24,16], f32[8,24]
    _moe_C::gpt_oss_router_gemm | f32[8,24], f32[8,16], f32[24,16], f32[24]
    sglang::cutedsl_tgv_bf16_gemm_out | f32[8,16], f32[24,16], f32[8,24], f32[24]
    sglang::cutedsl_tgv_bf16_gemm_out | (f32[8,16], f32[24,16], f32[8,24], None)
""")
def linear(values: Values) -> Tensor:
    """As `matmul`, with a weight [.., N, K]."""
    return matmul({**values, "weight": of(values, *WEIGHTS).mT})


@formulas("""
    aiter::gemm_a16w16_asm | (f32[8,16], f32[24,16], f32[8,24], i32[1])
    aiter::batched_gemm_bf16 | (bf16[2,8,16], bf16[2,24,16], bf16[2,8,24])
    aiter::gemm_a16w16_asm | (f32[8,16], f32[24,16], f32[8,24], i32[1], f32[24])
    aiter::batched_gemm_bf16 | (bf16[2,8,16], bf16[2,24,16], bf16[2,8,24], bf16[2,1,24])
""")
def linear_returned(values: Values) -> tuple[Tensor, Tensor]:
    """Written, and returned."""
    covers("XQ" not in values or values["XQ"].dim() == 3, "batches")
    product = linear(values)
    return product, product


@formulas("""
    aiter::gemm_a16w16_ | (f32[8,16], f32[24,16], f32[24], torch.float32)
    aiter::gemm_a16w16_atomic_ | (f32[8,16], f32[24,16], torch.float32)
    aiter::gemm_a16w16_ | (f32[8,16], f32[24,16], f32[24], torch.float32, activation='silu')
    aiter::gemm_a16w16_ aiter::gemm_a16w16_atomic_ | (f32[8,16], f32[24,16])
""")
def linear_in_dtype(values: Values) -> Tensor:
    activation = values.get("activation")
    covers(activation in (None, "silu"), "silu")
    product = linear({**values, "activation": None, "dtype": values.get("dtype") or torch.bfloat16})
    return product if activation is None else functional.silu(product)


@formula("_C::permute_cols", "(bf16[8,16], i32[16])")
def permute_cols(values: Values) -> Tensor:
    return values["A"][:, values["perm"].long()]


def rescaled(x: Tensor, scale: Tensor, size: int = 128) -> Tensor:
    """Numbers [rows, columns] times the scales [.., columns / size] of their blocks."""
    scale = scale.double()
    for dim in (0, 1):
        block = 1 if scale.shape[dim] == x.shape[dim] else size
        covers(scale.shape[dim] == -(-x.shape[dim] // block), f"blocks of {size}")
        scale = scale.repeat_interleave(block, dim).narrow(dim, 0, x.shape[dim])
    return x.double() * scale


def scaled_sum(values: Values) -> Tensor:
    """x [.., M, K] times a weight [.., K, N] in float64, both in numbers of 8 bits with scales.

    A scale is for all numbers of a tensor, for each row of x and column of the weight, or for each block.
    """
    x, weight = of(values, *INPUTS).double(), of(values, *WEIGHTS).double()
    scale_x, scale_w = of(values, *INPUT_SCALES).double(), of(values, *WEIGHT_SCALES).double()
    by_row, by_column = (*x.shape[:-1], 1), (*weight.shape[:-2], 1, weight.shape[-1])
    if scale_x.numel() in (1, math.prod(by_row)) and scale_w.numel() in (1, math.prod(by_column)):
        scale_x = scale_x.reshape(() if scale_x.numel() == 1 else by_row)
        return x @ weight * scale_x * scale_w.reshape(() if scale_w.numel() == 1 else by_column)
    covers(x.dim() == scale_x.dim() == scale_w.dim() == 2, "scales by block")
    size, *_ = of(values, "block_size", otherwise=[128])
    return rescaled(x, scale_x, size) @ rescaled(weight.mT, scale_w, size).mT


@formulas("""
    _C::cutlass_scaled_mm | (f32[8,24], i8[8,16], i8[16,24]{1,16}, f32[8,1], f32[1,24], None)
    _C::cutlass_scaled_mm_dq | (bf16[8,24], i8[8,16], i8[16,24]{1,16}, f32[8,1], f32[1,24])
    sgl_kernel::int8_scaled_mm | (i8[8,16], i8[16,24]{1,16}, f32[8], f32[24], torch.bfloat16, None)
    sgl_kernel::fp8_scaled_mm | (f8e4m3[8,16], f8e4m3[16,24]{1,16}, f32[8], f32[24], torch.bfloat16, None)
    vllm::bmm_fp8 | (f8e4m3[2,8,16], f8e4m3[2,16,24], f32[1], f32[1], torch.bfloat16, 'auto')
    sglang::_bmm_fp8_op sglang::flashinfer_bmm_fp8_batched
        | (f8e4m3[2,8,16], f8e4m3[2,16,24], bf16[2,8,24], f32[1], f32[1])
    sgl_kernel::bmm_fp8 | (f8e4m3[2,8,16], f8e4m3[2,16,24], bf16[2,8,24], f32[1], f32[1], u8[1024], 0)
""")
def scaled_matmul(values: Values) -> Tensor:
    """In the dtype of the result, or bfloat16."""
    product, bias = scaled_sum(values), of(values, "bias", "in_bias")
    return in_result(values, product if bias is None else product + bias.double(), torch.bfloat16)


@formulas("""
    aiter::gemm_a8w8 | (i8[8,16], i8[24,16], f32[8,1], f32[1,24], None, torch.bfloat16)
    aiter::wvSplitKQ | (f8e4m3[24,16], f8e4m3[4,16], bf16[4,24], f32[1], f32[1], 304)
    fbgemm::f8f8bf16_rowwise | (f8e4m3[8,16], f8e4m3[24,16], f32[8], f32[24])
""")
def scaled_linear(values: Values) -> Tensor:
    """As `scaled_matmul`, with a weight [.., N, K]."""
    return scaled_matmul({**values, "weight": of(values, *WEIGHTS).mT})


@formula("fbgemm::f8f8bf16_rowwise_batched", "(f8e4m3[2,8,16], f8e4m3[2,24,16], f32[2,8], f32[2,24])")
def batched_rowwise(values: Values) -> Tensor:
    covers(values.get("output") is None, "a new result")
    return scaled_linear(values)


BY_ROW = "(f8e4m3[8,16], f8e4m3[24,16], f32[8,1], f32[24,1]"
BY_BLOCK = "(f8e4m3[8,256], f8e4m3[256,256], f32[8,2], f32[2,2]"


@formulas(f"""
    vllm::rocm_aiter_gemm_a8w8 vllm::rocm_aiter_gemm_w8a8 vllm::rocm_aiter_w8a8_gemm vllm::rocm_aiter_hipb_mm_fp8
    vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm aiter::gemm_a8w8_bpreshuffle | {BY_ROW}, None, torch.bfloat16)
    aiter::gemm_a8w8_ck aiter::_gemm_a8w8_asm | {BY_ROW}, bf16[8,24])
    vllm::rocm_aiter_gemm_a8w8_blockscale vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle
    vllm::rocm_aiter_triton_gemm_a8w8_blockscale
    aiter::gemm_a8w8_blockscale aiter::gemm_a8w8_blockscale_bpreshuffle | {BY_BLOCK}, torch.bfloat16)
    vllm::rocm_aiter_gemm_w8a8_blockscale vllm::w8a8_block_fp8_matmul_deepgemm vllm::padded_cutlass
    vllm::w8a8_triton_block_scaled_mm_func vllm::dynamic_padded_cutlass | {BY_BLOCK}, [128,128], torch.bfloat16)
    aiter::gemm_a8w8_blockscale_ck aiter::_flatmm_a8w8_blockscale_asm
    aiter::_gfx950_a8w8_blockscale_asm | {BY_BLOCK}, bf16[8,256])
    aiter::_gemm_a8w8_blockscale_bpreshuffle_asm
        | (f8e4m3[8,256], f8e4m3[256,256], bf16[8,256], f32[8,2], f32[2,2])
    sglang::deep_gemm_fp8_fp8_bf16_nt | (f8e4m3[8,256], f32[8,2], f8e4m3[256,256], f32[2,2], bf16[8,256])
    vllm::w8a8_triton_block_scaled_mm_func vllm::w8a8_block_fp8_matmul_deepgemm vllm::padded_cutlass
    vllm::dynamic_padded_cutlass
        | (f8e4m3[5,64], f8e4m3[12,64], f32[5,2], f32[1,2], [32,32], torch.float32)
    aiter::gemm_a8w8_blockscale_ck aiter::_flatmm_a8w8_blockscale_asm
    aiter::_gfx950_a8w8_blockscale_asm | {BY_ROW}, f32[8,24])
    vllm::fp8_gemm_nt_op | (f8e4m3[8,256], f32[8,2], f8e4m3[256,256], f32[2,2], bf16[8,256], False)
""")
def scaled(values: Values) -> Tensor:
    """As `scaled_linear`, where the library adds in float32 whatever is asked for."""
    x, weight = of(values, *INPUTS), of(values, *WEIGHTS)
    covers(x.dim() == 2 and x.numel() and weight.numel() and not values.get("isBpreshuffled"), "matrices in order")
    product = scaled_linear(values)
    covers(product.dtype is not torch.float64, "sums in float32")
    return product


@formulas(f"""
    aiter::gemm_a8w8_asm | (i8[8,16], i8[24,16], f32[8,1], f32[24,1], bf16[8,24], 'kernel', None)
    aiter::gemm_a8w8_bpreshuffle_ck aiter::gemm_a8w8_bpreshuffle_cktile | {BY_ROW}, bf16[8,24])
    aiter::gemm_a8w8_blockscale_bpreshuffle_ck aiter::gemm_a8w8_blockscale_bpreshuffle_cktile
    aiter::gemm_a8w8_blockscale_cktile aiter::flatmm_a8w8_blockscale_asm
    aiter::gfx950_a8w8_blockscale_asm aiter::mi350_a8w8_blockscale_asm | {BY_BLOCK}, bf16[8,256])
    aiter::gemm_a8w8_blockscale_bpreshuffle_asm
        | (f8e4m3[8,256], f8e4m3[256,256], bf16[8,256], f32[8,2], f32[2,2])
    aiter::gemm_a8w8_blockscale_bpreshuffle_asm
            | (f8e4m3[8,16], f8e4m3[24,16], f32[8,24], f32[8,1], f32[24,1], f32[24])
""")
def scaled_returned(values: Values) -> tuple[Tensor, Tensor]:
    """Written, and returned."""
    product = scaled(values)
    return product, product


@formulas("""
    aiter::hipb_mm | (f32[8,16], f32[16,24], 0, f32[24])
    aiter::hipb_mm | (f8e4m3[8,16], f8e4m3[16,24], 0, None, torch.float32, f32[8,1], f32[1,24])
""")
def hipb_mm(values: Values) -> Tensor:
    covers(values.get("scaleOut") is None and not values.get("use_gelu"), "the plain form")
    return scaled_matmul(values) if values.get("scaleA") is not None else matmul(values)


@formula("sglang::flashinfer_bmm_fp8", "(f8e4m3[8,16], f8e4m3[16,24], f32[1], f32[1], torch.bfloat16)")
def fp8_linear(values: Values) -> Tensor:
    return scaled({**values, "weight": values["weight"].mT})


@formula("aiter::batched_gemm_a8w8", "(i8[2,8,16], i8[2,24,16], f32[2,8,1], f32[2,1,24], bf16[2,8,24])")
def batched_a8w8(values: Values) -> tuple[Tensor, Tensor]:
    covers(values["x_scale"].dim() == values["w_scale"].dim() == 3, "scales of rows and columns")
    product = scaled_linear(values)
    return product, product


@formulas("""
    vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl vllm::rocm_per_tensor_w8a8_scaled_mm_impl
        | (f8e4m3[8,16], f8e4m3[16,24]{1,16}, torch.bfloat16, f32[1], f32[1], bf16[24])
    _rocm_C::wvSplitKQ | (f8e4m3[24,16], f8e4m3[4,16], None, bf16[4,24], f32[1], f32[1], 304)
""")
def scaled_with_bias(values: Values) -> Tensor:
    scales = of(values, *INPUT_SCALES), of(values, *WEIGHT_SCALES)
    covers(all(scale.numel() == 1 for scale in scales), "one scale each")
    return scaled_linear(values) if "in_a" in values else scaled_matmul(values)


@formula(
    "_C::cutlass_scaled_mm_azp",
    "(bf16[8,24], i8[8,16], i8[16,24]{1,16}, f32[8,1], f32[1,24], i32[24], i32[8], bf16[24])",
)
def scaled_mm_azp(values: Values) -> Tensor:
    covers(values["a"].dim() == 2, "matrices")
    zeros, bias = values["azp"], values["bias"]
    covers(all(part is not None for part in (zeros, bias)), "a zero for each row, and a bias")
    shift = zeros.double().reshape(-1, 1) * values["azp_adj"].double().reshape(1, -1)
    product = (values["a"].double() @ values["b"].double() - shift) * values["a_scales"] * values["b_scales"]
    return (product + bias.double()).to(values["out"].dtype)


def adapted(x: Tensor, weights: Tensor, adapters: Tensor) -> tuple[Tensor, Tensor]:
    """Each row times the matrix of its adapter; and whether it has one."""
    matrices = (weights.squeeze(1) if weights.dim() == 4 else weights).double()
    covers(x.dim() == 2 and len(adapters) >= len(x) and len(matrices) and len(x), "an adapter for each row")
    which = adapters[: len(x)]
    known = ((which >= 0) & (which < len(matrices))).unsqueeze(1)
    chosen = matrices[which.clamp(0, len(matrices) - 1).long()]
    return torch.einsum("tk,tnk->tn", x.double(), chosen), known


@formula("vllm::bgmv_shrink vllm::xpu_bgmv_shrink", "(f32[8,16], f32[3,4,16], f32[8,4], i64[8], 0.5)")
def bgmv_shrink(values: Values) -> Tensor:
    x, known = adapted(values["inputs"], values["lora_a_weights"], values["lora_indices_tensor"])
    y = values["output_tensor"]
    covers(y.shape == x.shape, "a row of results for each")
    return torch.where(known, x * values["scaling"], y.double()).to(y.dtype)


@formulas("""
    vllm::bgmv_expand vllm::xpu_bgmv_expand | (f32[8,4], f32[3,16,4], f32[8,16], i64[8], True)
    vllm::bgmv_expand_slice vllm::xpu_bgmv_expand_slice | (f32[8,4], f32[3,16,4], f32[8,32], i64[8], 16, 16, True)
""")
def bgmv_expand(values: Values) -> Tensor:
    x, known = adapted(values["inputs"], values["lora_b_weights"], values["lora_indices_tensor"])
    y, begin = values["output_tensor"].double(), values.get("slice_offset", 0)
    covers(begin + x.shape[1] <= y.shape[1] and len(y) == len(x), "columns that are there")
    covers(values.get("slice_size", x.shape[1]) == x.shape[1], "all columns of the weights")
    part = y[:, begin : begin + x.shape[1]]
    part.copy_(torch.where(known, part + x if values["add_inputs"] else x, part))
    return y.to(values["output_tensor"].dtype)


@formula("_C_ascend::bgmv_shrink npu::bgmv_shrink", "(f32[8,16], f32[3,4,16], i64[8], f32[8,4], 0.5)")
def ascend_bgmv_shrink(values: Values) -> Tensor:
    x, known = adapted(values["x"], values["weight"], values["indices"])
    y = values["y"].double()
    covers(y.shape == x.shape, "a row of results for each")
    return torch.where(known, y + values["scale"] * x, y).to(values["y"].dtype)


@formula("_C_ascend::bgmv_expand npu::bgmv_expand", "(f32[8,4], f32[3,16,4], i64[8], f32[8,32], 16, 16)")
def ascend_bgmv_expand(values: Values) -> tuple[Tensor, Tensor]:
    given = {"inputs": values["x"], "lora_b_weights": values["weight"], "lora_indices_tensor": values["indices"]}
    rest = {name: values[name] for name in ("slice_offset", "slice_size")}
    y = bgmv_expand({**given, **rest, "output_tensor": values["y"], "add_inputs": True})
    return y, y


@formula("fbgemm::bf16bf16bf16_grouped", "([bf16[8,16], bf16[4,16]], [bf16[24,16], bf16[24,16]])")
def grouped(values: Values) -> list[Tensor]:
    pairs = zip(values["X"], values["W"], strict=True)
    return [(x.double() @ weight.double().mT).bfloat16() for x, weight in pairs]


@formula("fbgemm::bf16bf16bf16_grouped_cat", "([bf16[8,16], bf16[4,16]], [bf16[24,16], bf16[24,16]])")
def grouped_cat(values: Values) -> Tensor:
    return torch.cat(grouped(values))


@formula(
    "fbgemm::f8f8bf16_rowwise_grouped",
    "([f8e4m3[8,16], f8e4m3[4,16]], [f8e4m3[24,16], f8e4m3[24,16]], [f32[8], f32[4]], [f32[24], f32[24]])",
)
def grouped_rowwise(values: Values) -> list[Tensor]:
    parts = zip(values["XQ"], values["WQ"], values["x_scale"], values["w_scale"], strict=True)
    return [scaled(dict(zip(("XQ", "WQ", "x_scale", "w_scale"), part, strict=True))) for part in parts]


@formulas("""
    fbgemm::f8f8bf16_tensorwise | (f8e4m3[8,16], f8e4m3[24,16], 0.5)
    fbgemm::f8f8bf16 fbgemm::f8f8bf16_v2 | (f8e4m3[8,16], f8e4m3[24,16], f32[1])
""")
def tensorwise(values: Values) -> Tensor:
    return (values["XQ"].double() @ values["WQ"].double().mT * values["scale"]).bfloat16()


@formula("npu::npu_quant_matmul_reduce_sum", "(i8[2,8,16], i8[2,16,24], x1_scale=f32[2,8], x2_scale=bf16[24])")
def npu_reduced(values: Values) -> Tensor:
    covers(values.get("x1_scale") is not None and values.get("x2_scale") is not None, "scales")
    product = torch.einsum("bmk,bkn->bmn", values["x1"].double(), values["x2"].double())
    return (product * values["x1_scale"].unsqueeze(-1) * values["x2_scale"].double()).sum(0).bfloat16()


@formula("npu::npu_transpose_batchmatmul", "(bf16[8,2,16], bf16[2,16,24], perm_x1=[1,0,2], perm_y=[1,0,2])")
def npu_transposed_bmm(values: Values) -> Tensor:
    covers(values.get("bias") is None and values.get("scale") is None and not values.get("perm_x2"), "the plain form")
    covers(values.get("perm_x1") == values.get("perm_y") == [1, 0, 2], "rows first")
    covers(values.get("batch_split_factor", 1) == 1, "one part")
    return torch.einsum("mbk,bkn->mbn", values["input"].double(), values["weight"].double()).to(values["input"].dtype)


@formula("aiter::deepgemm_ck", "(f8e4m3[2,8,256], f8e4m3[2,256,256], bf16[2,8,256], i32[2], f32[2,8,2], f32[2,2,2])")
def masked_groups(values: Values) -> tuple[Tensor, Tensor]:
    """The first rows of each group; others are left as they are."""
    covers(values.get("x_scale") is not None and values.get("w_scale") is not None, "scales")
    y = values["Y"].clone()
    for group, count in enumerate(numbers(values["group_layout"].flatten())):
        covers(0 <= count <= y.shape[1], "rows that are there")
        if count:
            rows = rescaled(values["XQ"][group], values["x_scale"][group].reshape(y.shape[1], -1))
            weight = rescaled(values["WQ"][group], values["w_scale"][group])
            y[group, :count] = (rows @ weight.mT)[:count].to(y.dtype)
    return y, y


@formulas("""
    sgl_kernel::fp8_blockwise_scaled_mm | (f8e4m3[8,256], f8e4m3[256,256]{1,256}, f32[8,2], f32[2,2], torch.bfloat16)
    sglang::fp8_blockwise_scaled_mm | (bf16[8,256], f8e4m3[8,256], f8e4m3[256,256]{1,256}, f32[8,2], f32[2,2])
""")
def blockwise_mm(values: Values) -> Tensor:
    covers(values["mat_a"].numel() and values["scales_a"].dim() == values["scales_b"].dim() == 2, "scales by block")
    product = rescaled(values["mat_a"], values["scales_a"]) @ rescaled(values["mat_b"], values["scales_b"])
    return product.to(values["out_dtype"] if "out_dtype" in values else values["out"].dtype)


@formula(
    "sglang::flashinfer_gemm_fp8_nt_groupwise",
    "(f8e4m3[8,256], f8e4m3[384,256], f32[8,2], f32[3,2], torch.bfloat16)",
)
def groupwise(values: Values) -> Tensor:
    covers(values["x_scale"].dim() == values["weight_scale"].dim() == 2, "scales by block")
    x, weight = rescaled(values["q_input"], values["x_scale"]), rescaled(values["weight"], values["weight_scale"])
    return (x @ weight.mT).to(values["out_dtype"])


@formulas("""
    vllm::apply_w8a8_block_fp8_linear | (bf16[8,256], f8e4m3[384,256], [128,128], f32[3,2])
    vllm::flashinfer_fp8_blockscale_gemm | (bf16[8,256], f8e4m3[384,256], f32[3,2])
    vllm::dynamic_flashinfer_deepgemm_blockscale_gemm | (bf16[8,256], f8e4m3[384,256], f32[3,2], 128, False)
""")
def blockwise_linear(values: Values) -> Tensor:
    covers(values.get("input_scale") is None and not values.get("use_deep_gemm_e8m0"), "the plain form")
    covers(values.get("block_size", [128, 128]) == [128, 128] and values.get("group_size", 128) == 128, "blocks of 128")
    x, weight = values["input"], values["weight"]
    covers(weight.dtype is torch.float8_e4m3fn, "float8 e4m3fn")
    data, scale = quantised_groups(x.flatten(0, -2), 128, weight.dtype)
    product = rescaled(data, scale) @ rescaled(weight, values["weight_scale"]).mT
    product = product if values.get("bias") is None else product + values["bias"].double()
    return product.reshape(*x.shape[:-1], len(weight)).to(x.dtype)


@formula("_C::allspark_w8a16_gemm", "(bf16[8,16], u8[16,24], bf16[24], None, 24, -1, 108, 80, 1024, False, False)")
def allspark(values: Values) -> Tensor:
    covers(not values["has_zp"] and not values["n32k16_reorder"], "weights in order, around 128")
    weight, scales = values["b_qweight"], values["b_scales"]
    covers(weight.dtype is torch.uint8 and weight.shape == (values["a"].shape[-1], values["n"]), "a weight [K, N]")
    return (values["a"].double() @ ((weight.double() - 128) * scales.double().reshape(1, -1))).to(values["a"].dtype)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each four bits of a word, from the lowest."""


def awq_numbers(words: Tensor) -> Tensor:
    """Numbers 0 to 15 of [rows, columns / 8] words."""
    columns = torch.empty((*words.shape, 8), dtype=torch.float64)
    for place, column in enumerate(AWQ_ORDER):
        columns[..., column] = (words.long() // 16**place % 16).double()
    return columns.flatten(-2)


@formulas("""
    _C::awq_dequantize | (i32[64,4], f16[2,32], i32[2,4], 0, 0, 0)
    sgl_kernel::awq_dequantize | (i32[64,4], f16[2,32], i32[2,4])
""")
def awq_weight(values: Values) -> Tensor:
    words, zeros = of(values, "_kernel", "qweight"), of(values, "_zeros", "qzeros")
    scales = of(values, "_scaling_factors", "scales")
    covers(len(scales) and len(words) % len(scales) == 0, "whole groups")
    group = len(words) // len(scales)
    shifted = awq_numbers(words) - awq_numbers(zeros).repeat_interleave(group, 0)
    return (shifted * scales.double().repeat_interleave(group, 0)).to(scales.dtype)


@formula("_C::awq_gemm", "(f16[8,64], i32[64,4], f16[2,32], i32[2,4], 8)")
def awq_gemm(values: Values) -> Tensor:
    return (values["_in_feats"].double() @ awq_weight(values).double()).to(values["_in_feats"].dtype)


@formula("fbgemm::f8f8bf16_blockwise", "(f8e4m3[128,256], f8e4m3[256,256], f32[1,2], f32[2,2])")
def f8f8bf16_blockwise(values: Values) -> Tensor:
    covers(all(values.get(f"block_{name}", 128) == 128 for name in "mnk"), "blocks of 128")
    return (rescaled(values["XQ"], values["x_scale"]) @ rescaled(values["WQ"], values["w_scale"]).mT).bfloat16()


def group_product(values: Values, rows: tuple[int, slice] | slice, group: int) -> Tensor:
    """Some rows times the matrix of a group, times their scales."""
    product = of(values, "X", "XQ")[rows].double() @ of(values, "W", "WQ")[group].double().mT
    if "XQ" in values:
        product = product * values["x_scale"][rows].double().unsqueeze(-1) * values["w_scale"][group].double()
    return product.bfloat16()


@formulas("""
    fbgemm::bf16bf16bf16_grouped_dynamic | (bf16[2,8,16], bf16[2,24,16], i64[2])
    fbgemm::f8f8bf16_rowwise_grouped_dynamic | (f8e4m3[2,8,16], f8e4m3[2,24,16], f32[2,8], f32[2,24], i64[2], True)
    fbgemm::bf16bf16bf16_grouped_dynamic | (bf16[3,4,32], bf16[3,16,32], i64[3])
""")
def grouped_dynamic(values: Values) -> Tensor:
    """Zeros behind the rows of a group."""
    covers(values.get("zeroing_output_tensor", True), "zeros behind the rows")
    x, weight = of(values, "X", "XQ"), of(values, "W", "WQ")
    result = torch.zeros((*x.shape[:2], weight.shape[1]), dtype=torch.bfloat16)
    for group, count in enumerate(numbers(values["zero_start_index_M"])):
        covers(0 <= count <= x.shape[1], "rows that are there")
        result[group, :count] = group_product(values, (group, slice(count)), group)
    return result


@formulas("""
    fbgemm::bf16bf16bf16_grouped_stacked | (bf16[12,16], bf16[2,24,16], i64[2])
    fbgemm::f8f8bf16_rowwise_grouped_stacked | (f8e4m3[12,16], f8e4m3[2,24,16], f32[12], f32[2,24], i64[2])
""")
def grouped_stacked(values: Values) -> Tensor:
    covers(values.get("out") is None, "a new result")
    x, weight = of(values, "X", "XQ"), of(values, "W", "WQ")
    counts = numbers(values["M_sizes"])
    covers(len(counts) == len(weight) and min(counts, default=-1) >= 0 and sum(counts) <= len(x), "rows that are there")
    result = torch.zeros((len(x), weight.shape[1]), dtype=torch.bfloat16)
    for group, (end, count) in enumerate(zip(itertools.accumulate(counts), counts, strict=True)):
        result[end - count : end] = group_product(values, slice(end - count, end), group)
    return result


@formula(
    "fbgemm::f8f8bf16_rowwise_grouped_cat",
    "([f8e4m3[8,16], f8e4m3[4,16]], [f8e4m3[24,16], f8e4m3[24,16]], [f32[8], f32[4]], [f32[24], f32[24]])",
)
def grouped_cat_fp8(values: Values) -> Tensor:
    return torch.cat(grouped_rowwise(values))


@formula("npu::npu_quant_matmul", "(i8[8,16], i8[16,24], f32[24], pertoken_scale=f32[8], output_dtype=torch.bfloat16)")
def npu_quant_matmul(values: Values) -> Tensor:
    covers(values["x1"].dtype is values["x2"].dtype is torch.int8, "whole numbers of 8 bits")
    covers(values["scale"].is_floating_point() and values.get("offset") is None, "scales that are numbers")
    dtype = values.get("output_dtype")
    covers(dtype in (torch.bfloat16, torch.float16, torch.float32), "numbers with a fraction")
    product, bias = values["x1"].double() @ values["x2"].double(), values.get("bias")
    whole = bias is not None and not bias.is_floating_point()
    product = (product + bias if whole else product) * values["scale"].double()
    if values.get("pertoken_scale") is not None:
        product = product * values["pertoken_scale"].double().unsqueeze(-1)
    return (product if whole or bias is None else product + bias.double()).to(dtype)


@formula("npu::npu_quant_matmul_dequant", "(f16[8,16], i8[24,16], f32[24])")
def npu_quant_matmul_dequant(values: Values) -> Tensor:
    names = ("x_scale", "x_offset", "smooth_scale")
    covers(values.get("quant_mode", "pertoken") == "pertoken", "a scale for each row")
    covers(all(values.get(name) is None for name in names), "a scale for each row")
    covers(values["weight_scale"].is_floating_point() and values["x"].dim() == 2, "scales that are numbers")
    data, scale = token_int8(values["x"])
    product = data.double() @ values["quantized_weight"].double().mT * scale * values["weight_scale"].double()
    bias = values.get("bias")
    return (product if bias is None else product + bias.double()).to(values["x"].dtype)


@formula("npu::npu_weight_quant_batchmatmul", "(bf16[8,64], i8[64,24], bf16[2,24], bf16[2,24], None, None, None, 32)")
def npu_weight_quant(values: Values) -> Tensor:
    x, weight, scale = values["x"], values["weight"], values["antiquant_scale"]
    covers(weight.dtype is torch.int8 and values.get("quant_scale") is None and scale.dim() in (1, 2), "8 bits")
    covers(scale.dim() == 1 or (scale.shape[1] == weight.shape[1] and len(weight) % len(scale) == 0), "whole groups")
    offset, bias = values.get("antiquant_offset"), values.get("bias")
    shifted = weight.double() if offset is None else weight.double() + by_input(offset, len(weight))
    product = x.double() @ (shifted * by_input(scale, len(weight))).to(x.dtype).double()
    return (product if bias is None else product + bias.double()).to(x.dtype)


def by_input(scales: Tensor, count: int) -> Tensor:
    """One row of [N] or [groups, N] for each of `count` inputs."""
    rows = scales.double().reshape(-1, scales.shape[-1])
    return rows.repeat_interleave(count // len(rows), 0)


@formula("npu::npu_convert_weight_to_int4pack", "(i32[16,64], 0)")
def npu_int4pack(values: Values) -> Tensor:
    """Eight numbers of four bits a word, the first in the lowest bits."""
    weight = values["weight"].long()
    covers(weight.dim() == 2 and weight.shape[1] % 8 == 0 and values["weight"].dtype is torch.int32, "whole words")
    words = torch.stack([weight[:, place::8] % 16 * 16**place for place in range(8)]).sum(0)
    return ((words + 2**31) % 2**32 - 2**31).to(torch.int32)


def adapters_of(lengths: Tensor, indices: Tensor, tokens: int) -> Tensor:
    """The adapter of each token, whose sequences follow each other; −1 behind the last one."""
    counts = numbers(lengths)
    covers(min(counts, default=0) >= 0 and sum(counts) <= tokens and len(indices) >= len(counts), "sequences of tokens")
    which = torch.full((tokens,), -1)
    which[: sum(counts)] = indices[: len(counts)].long().repeat_interleave(lengths.long())
    return which


SEQUENCES = "i64[2], i64[2]"


@formula("_C_ascend::sgmv_shrink npu::sgmv_shrink", f"(f32[8,16], f32[3,4,16], {SEQUENCES}, f32[8,4], 0.5)")
def ascend_sgmv_shrink(values: Values) -> Tensor:
    which = adapters_of(values["seq_len"], values["lora_indices"], len(values["x"]))
    return ascend_bgmv_shrink({**values, "indices": which})


@formula("_C_ascend::sgmv_expand npu::sgmv_expand", f"(f32[8,4], f32[3,16,4], {SEQUENCES}, f32[8,32], 16, 16)")
def ascend_sgmv_expand(values: Values) -> tuple[Tensor, Tensor]:
    which = adapters_of(values["seq_len"], values["lora_indices"], len(values["x"]))
    return ascend_bgmv_expand({**values, "indices": which})


def adapters_by_start(values: Values, tokens: int) -> Tensor:
    starts, lengths = values["b_seq_start_loc"].long(), values["seq_len_tensor"].long()
    covers(torch.equal(starts, lengths.cumsum(0) - lengths), "sequences that follow each other")
    return adapters_of(lengths, values["lora_indices_tensor"], tokens)


def shrunk(values: Values, which: Tensor, empty: Tensor) -> Tensor:
    """Each slice's product of inputs [T, H]; what tokens without an adapter have in `empty`."""
    weights = values["lora_a_weights"]
    covers(len(weights) == len(empty) and not isinstance(weights, Tensor), "a result for each slice")
    given = {"inputs": values["inputs"], "lora_indices_tensor": which, "scaling": values["scaling"]}
    slices = zip(weights, empty, strict=True)
    return torch.stack([bgmv_shrink({**given, "lora_a_weights": a, "output_tensor": y}) for a, y in slices])


def expanded(values: Values, which: Tensor) -> Tensor:
    """Products of slices [S, T, rank] beside each other, from a first column on."""
    y, start = values["output_tensor"], values.get("offset_start", 0)
    for x, weight in zip(values["inputs"], values["lora_b_weights"], strict=True):
        given = {"inputs": x, "lora_b_weights": weight, "lora_indices_tensor": which, "output_tensor": y}
        y = bgmv_expand({**given, "slice_offset": start, "add_inputs": values.get("add_inputs", False)})
        start += weight.shape[-2]
    return y


TOKENS = "i64[2], i64[2], i64[2], 2, 4, 8"


@formula("vllm::sgmv_shrink", f"(f32[8,16], [f32[3,4,16], f32[3,4,16]], f32[2,8,4], {TOKENS}, 0.5)")
def sgmv_shrink(values: Values) -> Tensor:
    return shrunk(values, adapters_by_start(values, len(values["inputs"])), values["output_tensor"])


@formula("vllm::sgmv_expand", f"(f32[2,8,4], [f32[3,16,4], f32[3,16,4]], f32[8,40], {TOKENS}, 8, True)")
def sgmv_expand(values: Values) -> Tensor:
    covers(not isinstance(values["lora_b_weights"], Tensor), "slices")
    return expanded(values, adapters_by_start(values, values["inputs"].shape[1]))


@formula("vllm::sgmv_expand_slice", f"(f32[8,4], f32[3,16,4], f32[8,32], {TOKENS}, 16, 16, True)")
def sgmv_expand_slice(values: Values) -> Tensor:
    which = adapters_by_start(values, len(values["inputs"]))
    return bgmv_expand({"add_inputs": False, **values, "lora_indices_tensor": which})


MAPPING = "i32[8], i32[8], i32[4], i32[5], i32[4]"


@formulas(f"""
    vllm::lora_shrink | (f32[8,16], [f32[3,4,16], f32[3,4,16]], f32[2,8,4], {MAPPING}, bool[1], i32[1], 0.5)
    vllm::v1_shrink | (f32[8,16], [f32[3,4,16], f32[3,4,16]], f32[2,8,4], {MAPPING}, 0.5)
""")
def lora_shrink(values: Values) -> Tensor:
    covers_adapters(values)
    return shrunk(values, values["token_lora_mapping"], torch.zeros_like(values["output_tensor"]))


@formulas(f"""
    vllm::lora_expand | (f32[2,8,4], [f32[3,16,4], f32[3,16,4]], f32[8,40], {MAPPING}, bool[1], i32[1], 8, True)
    vllm::v1_expand | (f32[2,8,4], [f32[3,16,4], f32[3,16,4]], f32[8,40], {MAPPING}, 8, True)
""")
def lora_expand(values: Values) -> Tensor:
    covers_adapters(values)
    return expanded(values, values["token_lora_mapping"])


def covers_adapters(values: Values) -> None:
    """vLLM starts no kernel where its flag says that no token has an adapter."""
    covers(bool((values["token_lora_mapping"] >= 0).any()), "tokens with an adapter")


@formulas("""
    _punica_C::dispatch_bgmv | (f32[8,24], f32[8,16], f32[3,2,24,16], i64[8], 1, 0.5)
    _punica_C::dispatch_bgmv_low_level | (f32[8,48], f32[8,16], f32[3,2,24,16], i64[8], 1, 0.5, 16, 24, 24)
""")
def punica_bgmv(values: Values) -> Tensor:
    y, weight, begin = values["y"].clone(), values["w"], values.get("y_offset", 0)
    covers(0 <= values["layer_idx"] < weight.shape[1], "a layer")
    covers((values.get("h_out", weight.shape[2]), values.get("h_in", weight.shape[3])) == weight.shape[2:], "all rows")
    part = y[:, begin : begin + weight.shape[2]]
    given = {"x": values["x"], "weight": weight[:, values["layer_idx"]], "indices": values["indicies"]}
    part.copy_(ascend_bgmv_shrink({**given, "y": part, "scale": values["scale"]}))
    return y


@formula("npu::npu_ffn", "(f32[8,16], f32[16,32], f32[32,24], 'silu', bias1=f32[32], bias2=f32[24])")
def npu_ffn(values: Values) -> Tensor:
    covers(values["activation"] in ("silu", "relu") and values["weight1"].dim() == 2, "one expert")
    others = set(values) - {"x", "weight1", "weight2", "activation", "bias1", "bias2", "inner_precise"}
    covers(all(values[name] is None for name in others), "the plain form")
    first, second = (0 if values.get(name) is None else values[name] for name in ("bias1", "bias2"))
    inner = values["x"] @ values["weight1"] + first
    inner = inner.clamp(min=0) if values["activation"] == "relu" else inner * torch.sigmoid(inner)
    return inner @ values["weight2"] + second
