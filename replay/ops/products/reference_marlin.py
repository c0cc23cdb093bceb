# pyright: strict
"""Matrix products with packed weights: Marlin, GPTQ, AWQ, Machete, AllSpark (vLLM csrc/quantization), and repacking.

The activation order (g_idx, perm) is ignored, because it does not change the amount of work. Module `packed_weights`
describes the layouts.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.packed_weights import (
    Kind,
    column_linear,
    decodable_kind,
    grouped_linear_packed,
    spread,
    unpack,
)
from opreplay.replay.ops.products.reference_vllm import awq_dequantize


def _fake_product(a: Tensor, size_n: int) -> Tensor:
    return a.new_empty((*a.shape[:-1], size_n))


@stands_for("_C::gptq_marlin_gemm", "sgl_kernel::gptq_marlin_gemm", writes=(), fake=_fake_product)
@stands_for("_C::marlin_gemm", "_C::fp8_marlin_gemm", writes=(), fake=_fake_product)
def marlin_gemm(c: Call) -> Tensor:
    """Return `a` [M, K] @ the dequantised weight [K, N] + bias.

    Scales are [groups, N]. An 8-bit `a` also has one scale per row.
    """
    a = c.a
    b_zeros_or_none = getattr(c, "b_zeros_or_none", None)
    a_scales = getattr(c, "a_scales", None)
    global_scale_or_none = getattr(c, "global_scale_or_none", None)
    kind = decodable_kind(
        getattr(c, "b_type_id", None) or getattr(c, "b_q_type_id", None) or getattr(c, "b_q_type", None)
    )
    zeros = getattr(c, "b_zeros", None) if b_zeros_or_none is None else b_zeros_or_none
    factor = getattr(c, "global_scale", None) if global_scale_or_none is None else global_scale_or_none
    rows = a
    if a.dtype.itemsize == 1:
        rows = a.to(c.b_scales.dtype if c.b_scales.dtype.itemsize > 1 else torch.bfloat16)
    if a_scales is not None and a_scales.numel():
        rows = (rows.float() * a_scales.float().reshape(-1, 1)).to(rows.dtype)
    out = grouped_linear_packed(
        rows, c.b_q_weight, c.size_n, c.b_scales, zeros, kind, getattr(c, "b_bias_or_none", None), factor
    )
    return out.to(a.dtype) if a.dtype.itemsize > 1 else out.to(a.dtype if a.dtype == torch.int8 else out.dtype)


def _fake_qqq(a: Tensor, s_ch: Tensor, size_n: int) -> Tensor:
    return a.new_empty((a.shape[0], size_n), dtype=torch.float16)


@stands_for("_C::marlin_qqq_gemm", writes=(), fake=_fake_qqq)
def marlin_qqq_gemm(a: Tensor, b_q_weight: Tensor, s_tok: Tensor, s_ch: Tensor, s_group: Tensor, size_n: int) -> Tensor:
    """Return `a` int8 [M, K] @ weight int4 [K, N] · s_tok [M, 1] · s_ch [1, N] in float16.

    The weight is first scaled by s_group [groups, N].
    """
    group = s_group if s_group.numel() else torch.ones((1, size_n), device=a.device)
    product = grouped_linear_packed(a.float(), b_q_weight, size_n, group, None, Kind(0, 4, False, 8))
    return (product * s_tok.float().reshape(-1, 1) * s_ch.float().reshape(1, -1)).to(torch.float16)


@stands_for("sglang::unified_apply_gptq_marlin_gemm", "sglang::unified_apply_gptq_marlin_gemm_with_wtype")
def unified_gptq_marlin(c: Call) -> Tensor:
    """Return input [.., K] @ the dequantised weight [K, N]."""
    kind = decodable_kind(getattr(c, "wtype_id", 0))
    return grouped_linear_packed(c.input, c.weight, c.output_size_per_partition, c.weight_scale, c.weight_zp, kind)


@stands_for("sglang::apply_fp8_marlin_linear")
def fp8_marlin_linear(input: Tensor, weight: Tensor, weight_scale: Tensor, size_n: int, bias: Tensor | None) -> Tensor:
    """Return input [.., K] @ the dequantised fp8 weight [K, N] + bias."""
    return grouped_linear_packed(input, weight, size_n, weight_scale, None, Kind(4, 3, True, 0), bias)


@stands_for("sglang::apply_fp4_marlin_linear")
def fp4_marlin_linear(c: Call) -> Tensor:
    """Return input [.., K] @ a 4-bit float weight [K, N] + bias.

    The weight has one fp8 scale per group and one global scale.
    """
    kind = Kind(2, 1, True, 0)
    return grouped_linear_packed(c.input, c.weight, c.size_n, c.weight_scale, None, kind, c.bias, c.weight_global_scale)


@stands_for("_C::gptq_gemm", "sgl_kernel::gptq_gemm")
def gptq_gemm(c: Call) -> Tensor:
    """Return `a` [M, K] @ the dequantised GPTQ weight.

    The weight is int32 [K · bit / 32, N]. The zeros are int32 [groups, N · bit / 32], the scales [groups, N].
    """
    if c.bit not in (2, 4, 8):
        raise ValueError(f"GPTQ weights of {c.bit} bits are not implemented")
    size_k, size_n = c.a.shape[-1], c.b_q_weight.shape[-1]
    zeros = unpack(c.b_gptq_qzeros, c.bit).float()[:, :size_n] + (0.0 if getattr(c, "use_v2_format", False) else 1.0)

    def columns(part: slice) -> Tensor:
        numbers = unpack(c.b_q_weight[:, part].t(), c.bit).t()[:size_k].float()
        return (numbers - spread(zeros[:, part], size_k)) * spread(c.b_gptq_scales[:, part].float(), size_k)

    return column_linear(c.a, size_n, columns, None, c.a.dtype)


@stands_for("_C::gptq_shuffle", "sgl_kernel::gptq_shuffle")
def gptq_shuffle(q_weight: Tensor, q_perm: Tensor, bit: int) -> None:
    """Reorder the rows of q_weight int32 [K · bit / 32, N] by q_perm [K] (if given), in place."""
    if not q_perm.numel() or bit not in (2, 4, 8):
        return
    numbers = unpack(q_weight.t(), bit).t()
    order = q_perm.to(torch.int64).clamp(0, numbers.shape[0] - 1)
    q_weight.copy_(_pack(numbers.index_select(0, order).t(), bit).t())


def _pack(numbers: Tensor, bits: int) -> Tensor:
    """Pack numbers into int32 words; the inverse of `unpack`."""
    per_word = 32 // bits
    shifts = torch.arange(0, 32, bits, device=numbers.device, dtype=torch.int64)
    packed = cast("Tensor", numbers.to(torch.int64).unflatten(-1, (-1, per_word)))
    words = (packed << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@stands_for(
    "_C::gptq_marlin_repack",
    "_C::awq_marlin_repack",
    "sgl_kernel::gptq_marlin_repack",
    "sgl_kernel::awq_marlin_repack",
    writes=(),
)
def marlin_repack(b_q_weight: Tensor, size_k: int, size_n: int, num_bits: int) -> Tensor:
    """Return a weight's words as int32 [K / 16, N · 16 · bits / 32], in unchanged order."""
    words = size_k * size_n * num_bits // 32
    return b_q_weight.flatten()[:words].reshape(size_k // 16, -1).clone()


@stands_for("_C::machete_prepack_B")
def machete_prepack(B: Tensor) -> Tensor:
    """Return a column-major copy, as Machete stores weights. The order of the words does not change."""
    return B.t().contiguous().t()


def _fake_machete(A: Tensor, B: Tensor, out_type: torch.dtype | None) -> Tensor:
    return A.new_empty((A.shape[0], B.shape[1]), dtype=out_type or (A.dtype if A.dtype.itemsize > 1 else torch.float16))


@stands_for("_C::machete_mm", fake=_fake_machete)
def machete_mm(c: Call) -> Tensor:
    """Return A [M, K] @ the dequantised weight, which is int32 [K · bits / 32, N].

    There are scales per group [groups, N], per channel [N] and per token [M]. Zeros are added after scaling by group.
    """
    A = c.A
    dtype = c.out_type or (A.dtype if A.dtype.itemsize > 1 else torch.float16)
    size_k, size_n = A.shape[1], c.B.shape[1]
    scales = torch.ones((1, size_n), device=A.device) if c.group_scales is None else c.group_scales
    words = c.B.reshape(size_k, -1) if c.B.is_contiguous() else c.B.t().reshape(size_k, -1)
    rows = A if A.dtype.itemsize > 1 else A.to(torch.float32)
    out = grouped_linear_packed(rows, words, size_n, scales, None, decodable_kind(c.b_type)).float()
    if c.group_zeros is not None:
        out = out + column_linear(
            rows, size_n, lambda part: spread(c.group_zeros[:, part].float(), size_k), None, torch.float32
        )
    if c.channel_scales is not None:
        out = out * c.channel_scales.float().reshape(1, -1)
    if c.token_scales is not None:
        out = out * c.token_scales.float().reshape(-1, 1)
    return out.to(dtype)


@stands_for("_C::allspark_w8a16_gemm")
def allspark_w8a16_gemm(c: Call) -> Tensor:
    """Return `a` [M, K] @ ((uint8 weight [K, N] − zeros) · scales [N]); without zeros, 128 is subtracted."""
    n = c.n
    size_k = c.a.shape[-1]
    table = c.b_qweight.flatten()[: size_k * n].reshape(size_k, n)
    scale = c.b_scales.flatten()[:n].float()
    zero = c.b_qzeros.flatten()[:n].float() if c.has_zp and c.b_qzeros is not None else None

    def columns(part: slice) -> Tensor:
        numbers = table[:, part].view(torch.uint8).float() - (128.0 if zero is None else zero[part])
        return numbers * scale[part]

    return column_linear(c.a, n, columns, None, c.a.dtype)


@stands_for("sgl_kernel::awq_dequantize")
def sgl_awq_dequantize(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """Dequantise a 4-bit AWQ weight to [K, N], as `_C::awq_dequantize` does."""
    return awq_dequantize(qweight, scales, qzeros)
