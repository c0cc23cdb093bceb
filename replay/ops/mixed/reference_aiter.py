# pyright: strict
"""aiter's elementwise ops, norms with quantisation, smooth quantisation, and moves between caches."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.cache import reference_vllm as vllm_cache
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import fused_add_rms_norm, rms_norm
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    tensor_scale,
    to_quantized,
)


def _arithmetic(plain_name: str, in_place_name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Declare an op of two tensors and the form that writes to its first one."""

    def plain(input: Tensor, other: Tensor) -> Tensor:
        return function(input, other).to(torch.promote_types(input.dtype, other.dtype))

    def in_place(input: Tensor, other: Tensor) -> Tensor:
        input.copy_(function(input, other))
        return input.clone()

    stands_for(plain_name, writes=())(plain)
    stands_for(in_place_name, writes=("input",))(in_place)


_arithmetic("aiter::add", "aiter::add_", torch.add)
_arithmetic("aiter::sub", "aiter::sub_", torch.sub)
_arithmetic("aiter::mul", "aiter::mul_", torch.mul)
_arithmetic("aiter::div", "aiter::div_", torch.div)


@stands_for("aiter::sigmoid", writes=())
def sigmoid(input: Tensor) -> Tensor:
    """Sigmoid."""
    return torch.sigmoid(input)


@stands_for("aiter::tanh", writes=())
def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return torch.tanh(input)


@stands_for("aiter::gelu_fast", writes=("out",))
def gelu_fast(out: Tensor, input: Tensor) -> None:
    """out = x/2 · (1 + tanh(0.7978845608 x (1 + 0.044715 x²)))."""
    out.copy_(F.gelu(input.float(), approximate="tanh"))


@stands_for("aiter::swiglu_and_mul", writes=("out",))
def swiglu_and_mul(out: Tensor, input: Tensor) -> None:
    """out = gate · sigmoid(1.702 gate) · (up + 1) of input's halves, both clamped to 7, as gpt-oss has it."""
    gate, up = input.float().chunk(2, -1)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    out.copy_(gate * torch.sigmoid(1.702 * gate) * (up + 1))


@stands_for("aiter::fused_add_rms_norm_cu", writes=("input", "residual_in"))
def fused_add_rms_norm_cu(input: Tensor, residual_in: Tensor, weight: Tensor, epsilon: float) -> None:
    """residual_in += input, then input = rms_norm(residual_in) · weight."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon)
    residual_in.copy_(total)
    input.copy_(normed)


@stands_for("aiter::_fused_rmsnorm", writes=())
def fused_rmsnorm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """rms_norm(x) · weight."""
    return rms_norm(x, weight, epsilon)


@stands_for("aiter::_fused_rmsnorm_add", writes=())
def fused_rmsnorm_add(x: Tensor, weight: Tensor, epsilon: float, res1: Tensor) -> tuple[Tensor, Tensor]:
    """(norm of x + res1, x + res1)."""
    return fused_add_rms_norm(x, res1, weight, epsilon)


@stands_for("aiter::_fused_qk_rmsnorm_kernel", writes=("q_out", "k_out"))
def fused_qk_rmsnorm(
    q: Tensor, q_weight: Tensor, q_eps: float, k: Tensor, k_weight: Tensor, k_eps: float, q_out: Tensor, k_out: Tensor
) -> None:
    """The norms of two tensors in one kernel."""
    q_out.copy_(rms_norm(q, q_weight, q_eps))
    k_out.copy_(rms_norm(k, k_weight, k_eps))


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float) -> Tensor:
    scale, shift = None if weight is None else weight.float(), None if bias is None else bias.float()
    return F.layer_norm(x.float(), (x.shape[-1],), scale, shift, epsilon)


@stands_for("aiter::layer_norm", writes=())
def layer_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, x_bias: Tensor | None
) -> Tensor:
    """Layer norm of input (+ x_bias) over the last dim."""
    return _layer_norm(input if x_bias is None else input + x_bias, weight, bias, epsilon).to(input.dtype)


@stands_for("aiter::layernorm2d_with_add_asm", writes=("out", "residual_out"))
def layernorm_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    x_bias: Tensor | None,
) -> None:
    """residual_out = input + residual_in (+ x_bias), out its layer norm."""
    total = input + residual_in if x_bias is None else input + x_bias + residual_in
    residual_out.copy_(total)
    out.copy_(_layer_norm(total, weight, bias, epsilon))


def _smooth(normed: Tensor, out: Tensor, xscale: Tensor, yscale: Tensor) -> None:
    """Write normed · xscale as 8 bits to out and the scale of each row to yscale."""
    smooth = normed.float() * xscale.float()
    scale = row_scale(smooth, out.dtype)
    yscale.copy_(scale.reshape(yscale.shape))
    out.copy_(to_quantized(smooth, scale, out.dtype))


@stands_for("aiter::layernorm2d_fwd_with_smoothquant", writes=("out", "yscale"))
def layernorm_smoothquant(
    out: Tensor,
    input: Tensor,
    xscale: Tensor,
    yscale: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    x_bias: Tensor | None,
) -> None:
    """Layer norm, times xscale, quantised by rows."""
    _smooth(_layer_norm(input if x_bias is None else input + x_bias, weight, bias, epsilon), out, xscale, yscale)


@stands_for(
    "aiter::layernorm2d_fwd_with_add_smoothquant",
    "aiter::layernorm2d_with_add_smoothquant_asm",
    writes=("out", "residual_out", "yscale"),
)
def layernorm_add_smoothquant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    xscale: Tensor,
    yscale: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    x_bias: Tensor | None,
) -> None:
    """As layernorm_smoothquant of the sum with the residual, which is kept."""
    total = input + residual_in if x_bias is None else input + x_bias + residual_in
    residual_out.copy_(total)
    _smooth(_layer_norm(total, weight, bias, epsilon), out, xscale, yscale)


@stands_for("aiter::rmsnorm2d_fwd_with_smoothquant", writes=("out", "yscale"))
def rmsnorm_smoothquant(
    out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor, epsilon: float
) -> None:
    """RMS norm, times xscale, quantised by rows."""
    _smooth(rms_norm(input.float(), weight, epsilon), out, xscale, yscale)


@stands_for("aiter::rmsnorm2d_fwd_with_add_smoothquant", writes=("out", "residual_out", "yscale", "out_before_quant"))
def rmsnorm_add_smoothquant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    xscale: Tensor,
    yscale: Tensor,
    weight: Tensor,
    epsilon: float,
    out_before_quant: Tensor | None,
) -> None:
    """As rmsnorm_smoothquant of the sum with the residual, which is kept."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon)
    residual_out.copy_(total)
    if out_before_quant is not None:
        out_before_quant.copy_(normed)
    _smooth(normed, out, xscale, yscale)


@stands_for("aiter::smoothquant_fwd", writes=("out", "y_scale"))
def smoothquant(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor) -> None:
    """input · x_scale, quantised by rows."""
    _smooth(input, out, x_scale, y_scale)


@stands_for("aiter::moe_smoothquant_fwd", writes=("out", "y_scale"))
def moe_smoothquant(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor) -> None:
    """out [k, T, H]: input [T, H] times the smoothing of each chosen expert x_scale [E, H], quantised by rows."""
    chosen = x_scale.float()[topk_ids.t().to(torch.int64)]
    smooth = (input.float().unsqueeze(0) * chosen).reshape(-1, input.shape[-1])
    scale = row_scale(smooth, out.dtype)
    y_scale.copy_(scale.reshape(y_scale.shape))
    out.copy_(to_quantized(smooth, scale, out.dtype).reshape(out.shape))


@stands_for("aiter::smooth_per_token_scaled_quant", writes=("out", "scales"))
def smooth_per_token_scaled_quant(
    out: Tensor, input: Tensor, scales: Tensor, smooth_scale: Tensor, smooth_scale_map: Tensor | None
) -> None:
    """input · smooth_scale (a row of it, by the map), quantised by rows; scales are never shuffled."""
    factor = smooth_scale if smooth_scale_map is None else smooth_scale[smooth_scale_map.to(torch.int64)]
    _smooth(input, out, factor, scales)


@stands_for("aiter::add_rmsnorm_quant", writes=("out", "residual_out", "scale"))
def add_rmsnorm_quant(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    scale: Tensor,
    weight: Tensor,
    epsilon: float,
    group_size: int,
    gemma_norm: bool = False,
) -> None:
    """The norm of input + residual_in, which is kept, quantised by rows or by groups; scales are never shuffled."""
    normed, total = fused_add_rms_norm(input, residual_in, weight, epsilon, gemma=gemma_norm)
    residual_out.copy_(total)
    if group_size > 0:
        groups = group_scale(normed, group_size, largest(out.dtype))
        scale.copy_(groups.reshape(scale.shape))
        out.copy_(quantize_groups(normed, groups, out.dtype))
        return
    rows = row_scale(normed, out.dtype) if scale.numel() > 1 else tensor_scale(normed, out.dtype).clamp(min=1e-12)
    scale.copy_(rows.reshape(scale.shape))
    out.copy_(to_quantized(normed, rows, out.dtype))


@stands_for("aiter::silu_and_mul_quant", writes=("out", "scale"))
def silu_and_mul_quant(out: Tensor, input: Tensor, scale: Tensor, group_size: int, limit: float) -> None:
    """silu(first half) · second half (clamped where limit > 0), quantised by groups; scales are never shuffled."""
    gate, up = input.float().chunk(2, -1)
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    value = F.silu(gate) * up
    groups = group_scale(value, group_size, largest(out.dtype))
    scale.copy_(groups.reshape(scale.shape))
    out.copy_(quantize_groups(value, groups, out.dtype))


@stands_for("aiter::dynamic_per_group_scaled_quant", writes=("out", "scales"))
def dynamic_per_group_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, group_size: int) -> None:
    """input quantised by groups of a row; scales are never shuffled."""
    groups = group_scale(input, group_size, largest(out.dtype))
    scales.flatten()[: groups.numel()].copy_(groups.flatten())
    out.copy_(quantize_groups(input, groups, out.dtype))


@stands_for("aiter::copy_blocks", writes=("key_caches", "value_caches"))
def copy_blocks(key_caches: Tensor, value_caches: Tensor, block_mapping: Tensor) -> None:
    """Block block_mapping[:, 0] to block block_mapping[:, 1] in caches [blocks, ..]."""
    source, target = block_mapping.to(key_caches.device, torch.int64).unbind(1)
    for cache in (key_caches, value_caches):
        cache[target] = cache[source]


@stands_for("aiter::swap_blocks", writes=("dst",))
def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """dst[block_mapping[:, 1]] = src[block_mapping[:, 0]]."""
    vllm_cache.swap_blocks(src, dst, block_mapping)


@stands_for("aiter::concat_and_cache_mla", writes=("kv_cache",))
def concat_and_cache_mla(
    kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor, kv_cache_dtype: str, scale: Tensor
) -> None:
    """As `_C_cache_ops::concat_and_cache_mla`."""
    vllm_cache.concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale)
