# pyright: strict
"""vLLM's `_C` RMS norms (csrc/libtorch_stable/layernorm_kernels.cu and the quantising kernels next to it)."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.quantize import group_scale, largest, quantize_groups, row_scale, to_quantized
from opreplay.replay.ops.maths.rope import rotate_by_position
from opreplay.replay.ops.quantisation.reference_vllm import group_fp8_quant, per_token_quant


@stands_for("_C::rms_norm_static_fp8_quant")
def rms_norm_static_fp8_quant(result: Tensor, input: Tensor, weight: Tensor, scale: Tensor, epsilon: float) -> None:
    """Apply rms_norm, then quantise with one fp8 scale for the whole tensor."""
    result.copy_(to_quantized(rms_norm(input, weight, epsilon), scale, result.dtype))


@stands_for("_C::fused_add_rms_norm_static_fp8_quant")
def fused_add_static_fp8_quant(c: Call) -> None:
    """Add input to residual in place, and write the RMS norm of the sum. The norm is quantised with one fp8 scale."""
    normed, total = fused_add_rms_norm(c.input, c.residual, c.weight, c.epsilon)
    c.residual.copy_(total)
    c.result.copy_(to_quantized(normed, c.scale, c.result.dtype))


@stands_for("_C::rms_norm_dynamic_per_token_quant")
def rms_norm_dynamic_per_token_quant(c: Call) -> None:
    """Quantise the RMS norm of input with one scale per row.

    If there is a residual, the norm is that of input + residual, and residual is updated to this sum.
    """
    normed = _maybe_added(c.input, c.weight, c.epsilon, c.residual)
    rows = row_scale(normed, c.result.dtype, c.scale_ub)
    c.scale.copy_(rows.reshape(c.scale.shape))
    c.result.copy_(to_quantized(normed, rows, c.result.dtype))


@stands_for("_C::rms_norm_per_block_quant")
def rms_norm_per_block_quant(c: Call) -> None:
    """Quantise the RMS norm with one scale per `group_size` consecutive elements.

    If the call wants a transposed scale, the scale is [groups, rows].
    """
    normed = _maybe_added(c.input, c.weight, c.epsilon, c.residual)
    groups = group_scale(normed, c.group_size, largest(c.result.dtype))
    transposed = c.is_scale_transposed and c.scale.shape != groups.shape
    c.scale.copy_(groups.t() if transposed else groups)
    c.result.copy_(quantize_groups(normed, groups, c.result.dtype))


@stands_for("_C::fused_qk_norm_rope")
def fused_qk_norm_rope(c: Call) -> None:
    """Normalise (RMS) and then rotate each query and key head, in place in qkv [T, (Hq + Hk + Hv) · head]."""
    start = 0
    for heads, weight in ((c.num_heads_q, c.q_weight), (c.num_heads_k, c.k_weight)):
        part = c.qkv[:, start : start + heads * c.head_dim]
        by_head = cast("Tensor", part.unflatten(-1, (heads, c.head_dim)))
        normed = rms_norm(by_head, weight, c.eps).flatten(-2)
        part.copy_(rotate_by_position(normed, c.position_ids, c.cos_sin_cache, head_size=c.head_dim, neox=c.is_neox))
        start += heads * c.head_dim


@stands_for("_C::poly_norm")
def poly_norm(out: Tensor, input: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> None:
    """Write w0 · norm(x³) + w1 · norm(x²) + w2 · norm(x) + bias to `out`; `weight` [3] holds w0, w1, w2."""
    x = input.float()
    terms = (weight[i].float() * rms_norm(x**power, None, epsilon) for i, power in enumerate((3, 2, 1)))
    out.copy_(torch.stack(tuple(terms)).sum(0) + bias.float())


def _maybe_added(input: Tensor, weight: Tensor, epsilon: float, residual: Tensor | None) -> Tensor:
    if residual is None:
        return rms_norm(input, weight, epsilon)
    normed, total = fused_add_rms_norm(input, residual, weight, epsilon)
    residual.copy_(total)
    return normed


@stands_for("vllm::rocm_aiter_rmsnorm_fp8_group_quant")
def rmsnorm_fp8_group_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Return (norm in fp8, scale of each group)."""
    return group_fp8_quant(rms_norm(c.x, c.weight, c.variance_epsilon), c.group_size)


@stands_for("vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant")
def rmsnorm_with_add_fp8_group_quant(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return (norm in fp8, x + residual, scales)."""
    normed, total = fused_add_rms_norm(c.x, c.residual, c.weight, c.variance_epsilon)
    quantized, scale = group_fp8_quant(normed, c.group_size)
    return quantized, total, scale


@stands_for("vllm::rocm_aiter_rmsnorm_fused_dynamic_quant")
def rmsnorm_fused_dynamic_quant(c: Call) -> tuple[Tensor, Tensor]:
    """Return (quantised norm, scale of each row)."""
    return per_token_quant(rms_norm(c.x, c.weight, c.epsilon), c.quant_dtype)


@stands_for("vllm::rocm_aiter_rmsnorm_fused_add_dynamic_quant")
def rmsnorm_fused_add_dynamic_quant(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Return (quantised norm, x + residual, scale of each row)."""
    normed, total = fused_add_rms_norm(c.x, c.residual, c.weight, c.epsilon)
    quantized, scale = per_token_quant(normed, c.quant_dtype)
    return quantized, total, scale


@stands_for("vllm::rocm_aiter_triton_add_rmsnorm_pad")
def add_rmsnorm_pad(c: Call) -> tuple[Tensor, Tensor]:
    """Return (norm(x + residual) zero-padded to a multiple of `x_pad_to_multiple`, x + residual)."""
    normed, total = fused_add_rms_norm(c.x, c.residual, c.weight, c.variance_epsilon)
    return F.pad(normed, (0, -c.x.shape[-1] % max(c.x_pad_to_multiple, 1))), total
