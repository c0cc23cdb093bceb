# pyright: strict
"""vLLM's and SGLang's linear layers: router and projection GEMMs for few tokens, and 8-bit GEMMs with scales.

Kernels that only differ in how they are tuned are one function here. Weights are [N, K] unless a function says so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups, scaled_linear

GROUP = 128
"""Neighbours that share a scale where no argument says how many."""


@stands_for("_C::fp32_router_gemm", "_C::bf16_skinny_gemm", "_moe_C::dsv3_router_gemm")
def router_gemm_out(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """output [T, N] = mat_a [T, K] @ mat_b [N, K]ᵀ."""
    output.copy_(linear(mat_a, mat_b, None, output.dtype))


@stands_for("_C::dsv3_fused_a_gemm")
def fused_a_gemm_out(output: Tensor, mat_a: Tensor, mat_b: Tensor) -> None:
    """output [T, N] = mat_a [T, K] @ mat_b [K, N], which is a transposed weight."""
    output.copy_(linear(mat_a, mat_b.t(), None, output.dtype))


@stands_for("_moe_C::gpt_oss_router_gemm")
def router_gemm_bias_out(output: Tensor, input: Tensor, weights: Tensor, bias: Tensor) -> None:
    """output = input @ weightsᵀ + bias."""
    output.copy_(linear(input, weights, bias, output.dtype))


@stands_for(
    "vllm::gpt_oss_router_gemm", "vllm::unquantized_gemm", "sglang::bf16_gemm_dispatch", "sglang::cutedsl_tgv_bf16_gemm"
)
def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., K] @ weightᵀ + bias."""
    return linear(x, weight, bias)


@stands_for("sglang::cutedsl_tgv_bf16_gemm_out")
def plain_linear_out(x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None) -> None:
    """As plain_linear, written to out."""
    out.copy_(linear(x, weight, bias, out.dtype))


@stands_for("vllm::min_latency_fused_qkv_a_proj")
def qkv_a_proj(input_: Tensor, weight: Tensor) -> Tensor:
    """input_ @ weightᵀ."""
    return linear(input_, weight)


@stands_for("sglang::cutedsl_dsv3_fused_a_gemm", "sglang::jit_dsv3_fused_a_gemm")
def fused_a_gemm(mat_a: Tensor, mat_b: Tensor) -> Tensor:
    """mat_a [T, K] @ mat_b [K, N]."""
    return linear(mat_a, mat_b.t())


@stands_for("_moe_C::router_gemm_bf16_fp32")
def router_gemm_wide(input: Tensor, weight: Tensor) -> Tensor:
    """input @ weightᵀ in float32."""
    return linear(input, weight, None, torch.float32)


@stands_for(
    "vllm::w8a8_block_fp8_matmul_deepgemm",
    "vllm::rocm_aiter_hipb_mm_fp8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle",
    "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
)
def scaled_gemm(
    A: Tensor, B: Tensor, As: Tensor, Bs: Tensor, output_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """A [.., K] and B [N, K] quantised, scales whole, by row or by block."""
    return _folded(A, B, As, Bs, bias, output_dtype)


def _folded(
    a: Tensor, weight: Tensor, scale_a: Tensor | None, scale_w: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """`scaled_linear` of a [.., K], its scale folded the same way."""
    rows = as_rows(a)
    scale = scale_a
    if scale is not None and scale.dim() > 2:
        scale = as_rows(scale)
    return scaled_linear(rows, weight, scale, scale_w, bias, dtype).reshape(*a.shape[:-1], weight.shape[0])


@stands_for("vllm::w8a8_triton_block_scaled_mm_func", "vllm::padded_cutlass", "vllm::dynamic_padded_cutlass")
def block_scaled_gemm(
    qx: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, output_dtype: torch.dtype
) -> Tensor:
    """qx [M, K] with scales [M, K/128], weight [N, K] with [N/128, K/128]."""
    return _folded(qx, weight, x_scale, weight_scale, None, output_dtype)


@stands_for("vllm::fp8_gemm_nt_op")
def fp8_gemm_nt(q_input: Tensor, input_scale: Tensor, weight: Tensor, weight_scale: Tensor, output: Tensor) -> None:
    """As block_scaled_gemm, written to output."""
    output.copy_(_folded(q_input, weight, input_scale, weight_scale, None, output.dtype))


@stands_for("sglang::deep_gemm_fp8_fp8_bf16_nt")
def deep_gemm(A: Tensor, As: Tensor, B: Tensor, Bs: Tensor, C: Tensor) -> None:
    """C [M, N] = (As · A) @ (Bs · B)ᵀ with scales by block."""
    C.copy_(_folded(A, B, As, Bs, None, C.dtype))


@stands_for("sglang::flashinfer_gemm_fp8_nt_groupwise")
def fp8_nt_groupwise(
    q_input: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """As block_scaled_gemm; scales may come K-major."""
    rows, columns = q_input.shape[0], weight.shape[0]
    scale_x = x_scale.t() if x_scale.dim() == 2 and x_scale.shape[0] != rows == x_scale.shape[1] else x_scale
    blocks = -(-columns // GROUP)
    scale_w = weight_scale
    if scale_w.dim() == 2 and scale_w.shape[0] != blocks == scale_w.shape[1]:
        scale_w = scale_w.t()
    return _folded(q_input, weight, scale_x, scale_w, None, out_dtype)


@stands_for("sglang::fp8_blockwise_scaled_mm")
def fp8_blockwise_out(out: Tensor, mat_a: Tensor, mat_b: Tensor, scales_a: Tensor, scales_b: Tensor) -> None:
    """out = mat_a [M, K] @ mat_b [K, N], scales [M, K/128] and [K/128, N/128]."""
    out.copy_(_folded(mat_a, mat_b.t(), scales_a, scales_b.t(), None, out.dtype))


def _dynamic(x: Tensor, weight: Tensor, weight_scale: Tensor, group: int, bias: Tensor | None) -> Tensor:
    """x quantised to weight's dtype by groups of a row, then multiplied; in x's dtype."""
    rows = as_rows(x)
    scale = group_scale(rows, group, largest(weight.dtype))
    product = scaled_linear(quantize_groups(rows, scale, weight.dtype), weight, scale, weight_scale, bias, x.dtype)
    return product.reshape(*x.shape[:-1], weight.shape[0])


@stands_for("vllm::apply_w8a8_block_fp8_linear")
def block_fp8_linear(
    input: Tensor,
    weight: Tensor,
    block_size: list[int],
    weight_scale: Tensor,
    input_scale: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """input quantised by 1 x block_size[1] groups, times weight [N, K] with a scale a block, + bias; as input."""
    if input_scale is not None:
        return _folded(input, weight, input_scale, weight_scale, bias, input.dtype)
    return _dynamic(input, weight, weight_scale, block_size[1], bias)


@stands_for("vllm::flashinfer_fp8_blockscale_gemm", "vllm::dynamic_flashinfer_deepgemm_blockscale_gemm")
def fp8_blockscale_gemm(input: Tensor, weight: Tensor, weight_scale: Tensor, group_size: int = GROUP) -> Tensor:
    """input [M, K] quantised by groups, times weight [N, K] with a scale a block."""
    return _dynamic(input, weight, weight_scale, group_size, None)


@stands_for("vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl")
def per_tensor_linear(A: Tensor, B: Tensor, out_dtype: torch.dtype, As: Tensor, Bs: Tensor, bias: Tensor) -> Tensor:
    """A [M, K] @ B [K, N] with one scale each, + bias."""
    return scaled_linear(A, B.t(), As, Bs, bias, out_dtype)


@stands_for("vllm::rocm_per_tensor_w8a8_scaled_mm_impl")
def per_tensor_linear_old(
    qinput: Tensor, weight: Tensor, out_dtype: torch.dtype, scale_a: Tensor, scale_b: Tensor, bias: Tensor
) -> Tensor:
    """qinput [M, K] @ weight [K, N] with one scale each, + bias."""
    return scaled_linear(qinput, weight.t(), scale_a, scale_b, bias, out_dtype)


@stands_for("vllm::bmm_fp8")
def bmm_fp8(A: Tensor, B: Tensor, A_scale: Tensor, B_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A [B, M, K] @ B [B, K, N] · A_scale · B_scale."""
    return ((A.float() @ B.float()) * (A_scale.float() * B_scale.float())).to(dtype)


@stands_for("sglang::_bmm_fp8_op", "sglang::flashinfer_bmm_fp8_batched")
def bmm_fp8_out(A: Tensor, B: Tensor, out: Tensor, A_scale: Tensor, B_scale: Tensor) -> None:
    """As bmm_fp8, written to out."""
    out.copy_(bmm_fp8(A, B, A_scale, B_scale, out.dtype))


@stands_for("sglang::flashinfer_bmm_fp8")
def bmm_fp8_linear(
    q_input: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """q_input [M, K] @ weight [K, N] with one scale each."""
    return scaled_linear(q_input, weight.t(), x_scale, weight_scale, None, out_dtype)


@stands_for("_C::cutlass_scaled_mm_dq")
def scaled_mm_dq(out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> None:
    """The oldest name of cutlass_scaled_mm: a [M, K] @ b [K, N] with scales whole or by row and column."""
    scale = b_scales.t() if b_scales.dim() == 2 else b_scales
    out.copy_(scaled_linear(a, b.t(), a_scales, scale, None, out.dtype))


@stands_for("_C::weak_ref_tensor")
def weak_ref_tensor(input: Tensor) -> Tensor:
    """A tensor on the same memory; here it shares ownership as well."""
    return input.view_as(input)


@stands_for("_C::permute_cols")
def permute_cols(A: Tensor, perm: Tensor) -> Tensor:
    """A[:, perm]."""
    return A.index_select(1, perm.to(torch.int64))


def _scale_of_columns(scale: Tensor) -> Tensor:
    return scale.t() if scale.dim() == 2 else scale


@stands_for("_C::cutlass_scaled_mm")
def cutlass_scaled_mm(
    out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None
) -> None:
    """out [M, N] = (a_scales · a [M, K]) @ (b_scales · b [K, N]) + bias; scales whole, by row, or by block."""
    out.copy_(scaled_linear(a, b.t(), a_scales, _scale_of_columns(b_scales), bias, out.dtype))


@stands_for("_C::cutlass_scaled_mm_azp")
def cutlass_scaled_mm_azp(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    azp_adj: Tensor,
    azp: Tensor | None,
    bias: Tensor | None,
) -> None:
    """a_scales · b_scales · (a @ b − azp · azp_adj) + bias; azp_adj int32 [N] are b's column sums, times azp if that is
    None."""
    product = a.float() @ b.float()
    shift = azp_adj.float().reshape(1, -1)
    product -= shift if azp is None else azp.float().reshape(-1, 1) * shift
    product *= a_scales.float().reshape(-1, 1) * b_scales.float().reshape(1, -1)
    out.copy_(product if bias is None else product + bias)


@stands_for("_rocm_C::LLMM1", "_rocm_C::wvSplitK", "_rocm_C::wvSplitKrc")
def skinny_gemm(in_a: Tensor, in_b: Tensor, in_bias: Tensor | None = None) -> Tensor:
    """in_b [N, K] @ in_a [M, K]ᵀ → [N, M]; in_a is the weight, N is small."""
    return linear(in_b, in_a, in_bias)


@stands_for("_rocm_C::wvSplitKQ")
def skinny_gemm_fp8(
    in_a: Tensor, in_b: Tensor, out_c: Tensor, scale_a: Tensor, scale_b: Tensor, in_bias: Tensor | None = None
) -> None:
    """As wvSplitK for fp8 operands with one scale each."""
    out_c.copy_(scaled_linear(in_b, in_a, scale_b, scale_a, in_bias, out_c.dtype))


_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def _awq_unpack(packed: Tensor) -> Tensor:
    """int32 [R, C] with eight 4-bit numbers each, in AWQ's interleaved order → float32 [R, 8 · C]."""
    shifts = torch.tensor(_AWQ_ORDER, device=packed.device, dtype=torch.int32) * 4
    return ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2).float()


def _awq_weight(kernel: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    group = kernel.shape[0] // scales.shape[0]
    zero = _awq_unpack(zeros).repeat_interleave(group, 0)
    return (_awq_unpack(kernel) - zero) * scales.float().repeat_interleave(group, 0)


@stands_for("_C::awq_dequantize")
def awq_dequantize(_kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """4-bit weight int32 [K, N/8] with scales [K/group, N] and zeros int32 [K/group, N/8] → [K, N]."""
    return _awq_weight(_kernel, _scaling_factors, _zeros).to(_scaling_factors.dtype)


@stands_for("_C::awq_gemm")
def awq_gemm(_in_feats: Tensor, _kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """_in_feats [M, K] @ the dequantised weight [K, N]."""
    weight = _awq_weight(_kernel, _scaling_factors, _zeros).to(_in_feats.dtype)
    return linear(_in_feats, weight.t())


@stands_for(
    "vllm::rocm_aiter_gemm_a8w8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_gemm_w8a8",
    "vllm::rocm_aiter_gemm_w8a8_blockscale",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_w8a8_gemm",
)
def gemm_a8w8(
    A: Tensor, B: Tensor, As: Tensor, Bs: Tensor, output_dtype: torch.dtype, bias: Tensor | None = None
) -> Tensor:
    """A [M, K] and B [N, K] quantised, scales whole, by row or by block → [M, N]."""
    return scaled_linear(A, B, As, Bs, bias, output_dtype)
