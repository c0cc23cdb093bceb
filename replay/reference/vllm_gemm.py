"""vLLM's `_C` and `_rocm_C` matrix products (csrc/quantization/w8a8/cutlass, csrc/rocm/skinny_gemms.cu, AWQ, views)."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.reference.products import linear
from opreplay.replay.reference.quantize import scaled_linear
from opreplay.replay.reference.registry import reference


@reference("_C::weak_ref_tensor(Tensor(a) input) -> Tensor(a)", since="2024-10-27")
def weak_ref_tensor(input: Tensor) -> Tensor:
    """A tensor on the same memory; here it shares ownership as well."""
    return input.view_as(input)


@reference("_C::permute_cols(Tensor A, Tensor perm) -> Tensor", since="2024-09-23")
def permute_cols(A: Tensor, perm: Tensor) -> Tensor:
    """A[:, perm]."""
    return A.index_select(1, perm.to(torch.int64))


def _scale_of_columns(scale: Tensor) -> Tensor:
    return scale.t() if scale.dim() == 2 else scale


@reference(
    "_C::cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor? bias) -> ()",
    since="2024-06-26",
)
@reference(
    "_C::cutlass_scaled_mm(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales) -> ()",
    since="2024-06-13",
)
def cutlass_scaled_mm(
    out: Tensor, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None = None
) -> None:
    """out [M, N] = (a_scales · a [M, K]) @ (b_scales · b [K, N]) + bias; scales whole, by row, or by block."""
    out.copy_(scaled_linear(a, b.t(), a_scales, _scale_of_columns(b_scales), bias, out.dtype))


@reference(
    "_C::cutlass_scaled_mm_azp(Tensor! out, Tensor a, Tensor b, Tensor a_scales, Tensor b_scales, Tensor azp_adj, "
    "Tensor? azp, Tensor? bias) -> ()",
    since="2024-08-06",
)
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


def _fake_skinny(in_a: Tensor, in_b: Tensor) -> Tensor:
    return in_b.new_empty((in_b.shape[0], in_a.shape[0]))


@reference("_rocm_C::wvSplitK(Tensor in_a, Tensor in_b, Tensor? in_bias, int CuCount) -> Tensor", since="2025-09-23")
@reference("_rocm_C::wvSplitK(Tensor in_a, Tensor in_b, int CuCount) -> Tensor", since="2025-04-21")
@reference("_rocm_C::wvSplitKrc(Tensor in_a, Tensor in_b, Tensor? in_bias, int CuCount) -> Tensor", since="2026-01-16")
@reference("_rocm_C::LLMM1(Tensor in_a, Tensor in_b, int rows_per_block) -> Tensor", since="2025-04-21")
def skinny_gemm(in_a: Tensor, in_b: Tensor, in_bias: Tensor | None = None) -> Tensor:
    """in_b [N, K] @ in_a [M, K]ᵀ → [N, M]; in_a is the weight, N is small."""
    return linear(in_b, in_a, in_bias)


@reference(
    "_rocm_C::wvSplitKQ(Tensor in_a, Tensor in_b, Tensor? in_bias, Tensor! out_c, Tensor scale_a, Tensor scale_b, "
    "int CuCount) -> ()",
    since="2025-09-23",
)
@reference(
    "_rocm_C::wvSplitKQ(Tensor in_a, Tensor in_b, Tensor! out_c, Tensor scale_a, Tensor scale_b, int CuCount) -> ()",
    since="2025-04-21",
)
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


@reference(
    "_C::awq_dequantize(Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters, int thx, "
    "int thy) -> Tensor",
    since="2024-09-11",
)
def awq_dequantize(_kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """4-bit weight int32 [K, N/8] with scales [K/group, N] and zeros int32 [K/group, N/8] → [K, N]."""
    return _awq_weight(_kernel, _scaling_factors, _zeros).to(_scaling_factors.dtype)


@reference(
    "_C::awq_gemm(Tensor _in_feats, Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters) "
    "-> Tensor",
    since="2024-09-11",
)
def awq_gemm(_in_feats: Tensor, _kernel: Tensor, _scaling_factors: Tensor, _zeros: Tensor) -> Tensor:
    """_in_feats [M, K] @ the dequantised weight [K, N]."""
    weight = _awq_weight(_kernel, _scaling_factors, _zeros).to(_in_feats.dtype)
    return linear(_in_feats, weight.t())
