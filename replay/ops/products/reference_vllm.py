# pyright: strict
"""vLLM's and SGLang's linear layers: router and projection GEMMs for few tokens, and 8-bit GEMMs with scales.

Kernels that differ only in tuning share one function. Weights are [N, K] unless a function says otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.products import as_rows, linear
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups, scaled_linear

GROUP = 128
"""Assumed number of consecutive elements per scale if no argument gives this number."""


@stands_for(
    "vllm::gpt_oss_router_gemm", "vllm::unquantized_gemm", "sglang::bf16_gemm_dispatch", "sglang::cutedsl_tgv_bf16_gemm"
)
def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x [.., K] @ weightᵀ + bias."""
    return linear(x, weight, bias, dtype)


@stands_for("_moe_C::router_gemm_bf16_fp32")
def router_gemm_wide(input: Tensor, weight: Tensor) -> Tensor:
    """Return input @ weightᵀ in float32."""
    return linear(input, weight, None, torch.float32)


def _folded(
    a: Tensor, weight: Tensor, scale_a: Tensor | None, scale_w: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Apply `scaled_linear` to `a` [.., K]. Leading dims of `a` and of `scale_a` are flattened, then restored."""
    rows = as_rows(a)
    scale = scale_a
    if scale is not None and scale.dim() > 2:
        scale = as_rows(scale)
    return scaled_linear(rows, weight, scale, scale_w, bias, dtype).reshape(*a.shape[:-1], weight.shape[0])


@stands_for("sglang::flashinfer_gemm_fp8_nt_groupwise")
def fp8_nt_groupwise(c: Call) -> Tensor:
    """Return q_input @ weightᵀ with one scale per group or block of `GROUP` elements. The scales may be transposed."""
    x_scale = c.x_scale
    rows, columns = c.q_input.shape[0], c.weight.shape[0]
    scale_x = x_scale.t() if x_scale.dim() == 2 and x_scale.shape[0] != rows == x_scale.shape[1] else x_scale
    blocks = -(-columns // GROUP)
    scale_w = c.weight_scale
    if scale_w.dim() == 2 and scale_w.shape[0] != blocks == scale_w.shape[1]:
        scale_w = scale_w.t()
    return _folded(c.q_input, c.weight, scale_x, scale_w, None, c.out_dtype)


def _dynamic(x: Tensor, weight: Tensor, weight_scale: Tensor, group: int, bias: Tensor | None) -> Tensor:
    """Quantise x to weight's dtype by groups of a row, then multiply. The result has x's dtype."""
    rows = as_rows(x)
    scale = group_scale(rows, group, largest(weight.dtype))
    product = scaled_linear(quantize_groups(rows, scale, weight.dtype), weight, scale, weight_scale, bias, x.dtype)
    return product.reshape(*x.shape[:-1], weight.shape[0])


@stands_for("vllm::apply_w8a8_block_fp8_linear")
def block_fp8_linear(c: Call) -> Tensor:
    """Quantise input by 1 x block_size[1] groups, multiply by weight [N, K] with block scales, add bias."""
    if c.input_scale is not None:
        return _folded(c.input, c.weight, c.input_scale, c.weight_scale, c.bias, c.input.dtype)
    return _dynamic(c.input, c.weight, c.weight_scale, c.block_size[1], c.bias)


@stands_for("vllm::flashinfer_fp8_blockscale_gemm", "vllm::dynamic_flashinfer_deepgemm_blockscale_gemm")
def fp8_blockscale_gemm(input: Tensor, weight: Tensor, weight_scale: Tensor, group_size: int = GROUP) -> Tensor:
    """Quantise input [M, K] by groups, then multiply by weight [N, K] with block scales."""
    return _dynamic(input, weight, weight_scale, group_size, None)


@stands_for("vllm::bmm_fp8")
def bmm_fp8(A: Tensor, B: Tensor, A_scale: Tensor, B_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return A [B, M, K] @ B [B, K, N] · A_scale · B_scale."""
    return ((A.float() @ B.float()) * (A_scale.float() * B_scale.float())).to(dtype)


@stands_for("_C::weak_ref_tensor")
def weak_ref_tensor(input: Tensor) -> Tensor:
    """Return a tensor on the same memory; unlike vLLM's weak reference, it shares ownership."""
    return input.view_as(input)


@stands_for("_C::permute_cols")
def permute_cols(A: Tensor, perm: Tensor) -> Tensor:
    """Return A[:, perm]."""
    return A.index_select(1, perm.to(torch.int64))


def _scale_of_columns(scale: Tensor) -> Tensor:
    return scale.t() if scale.dim() == 2 else scale


@stands_for("_C::cutlass_scaled_mm")
def cutlass_scaled_mm(c: Call) -> None:
    """Write (a_scales · a [M, K]) @ (b_scales · b [K, N]) + bias to out [M, N].

    There is one scale per tensor, per row or per block.
    """
    c.out.copy_(
        scaled_linear(c.a, c.b.t(), c.a_scales, _scale_of_columns(c.b_scales), getattr(c, "bias", None), c.out.dtype)
    )


@stands_for("_C::cutlass_scaled_mm_azp")
def cutlass_scaled_mm_azp(c: Call) -> None:
    """Write a_scales · b_scales · (a @ b − azp · azp_adj) + bias to out.

    azp is the zero point of a. azp_adj int32 [N] holds the column sums of b. If azp is None, azp_adj already includes
    the factor azp.
    """
    product = c.a.float() @ c.b.float()
    shift = c.azp_adj.float().reshape(1, -1)
    product -= shift if c.azp is None else c.azp.float().reshape(-1, 1) * shift
    product *= c.a_scales.float().reshape(-1, 1) * c.b_scales.float().reshape(1, -1)
    c.out.copy_(product if c.bias is None else product + c.bias)


_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def _awq_unpack(packed: Tensor) -> Tensor:
    """Unpack int32 [R, C], eight 4-bit numbers per word in AWQ's interleaved order, to float32 [R, 8 · C]."""
    shifts = torch.tensor(_AWQ_ORDER, device=packed.device, dtype=torch.int32) * 4
    return ((packed.unsqueeze(-1) >> shifts) & 15).flatten(-2).float()


def _awq_weight(kernel: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    group = kernel.shape[0] // scales.shape[0]
    zero = _awq_unpack(zeros).repeat_interleave(group, 0)
    return (_awq_unpack(kernel) - zero) * scales.float().repeat_interleave(group, 0)


@stands_for("_C::awq_dequantize")
def awq_dequantize(_kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """Dequantise a 4-bit weight int32 [K, N/8] with scales [K/group, N] and zeros int32 [K/group, N/8] to [K, N]."""
    return _awq_weight(_kernel, _scaling_factors, _zeros).to(_scaling_factors.dtype)


@stands_for("_C::awq_gemm")
def awq_gemm(_in_feats: Tensor, _kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """Return _in_feats [M, K] @ the dequantised weight [K, N]."""
    weight = _awq_weight(_kernel, _scaling_factors, _zeros).to(_in_feats.dtype)
    return linear(_in_feats, weight.t())


@stands_for(
    "vllm::rocm_aiter_gemm_a8w8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_gemm_w8a8",
    "vllm::rocm_aiter_gemm_w8a8_blockscale",
    "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    "vllm::rocm_aiter_w8a8_gemm",
    "vllm::w8a8_block_fp8_matmul_deepgemm",
    "vllm::rocm_aiter_hipb_mm_fp8",
    "vllm::rocm_aiter_gemm_a8w8_blockscale_bpreshuffle",
    "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm",
)
def gemm_a8w8(c: Call) -> Tensor:
    """Return A [.., K] @ B [N, K]ᵀ, both quantised with scales per tensor, row or block."""
    return _folded(c.A, c.B, c.As, c.Bs, getattr(c, "bias", None), c.output_dtype)
