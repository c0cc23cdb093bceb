# pyright: strict
"""aiter's elementwise ops: gated activations, quantisation, rotary embedding, cache writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from opreplay.replay.ops.cache import reference_vllm as vllm_cache
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.activations import gated, gelu_tanh
from opreplay.replay.ops.maths.quantize import (
    group_scale,
    largest,
    quantize_groups,
    row_scale,
    tensor_scale,
    to_quantized,
)
from opreplay.replay.ops.maths.rope import rotate_whole


def _declare_gated(name: str, activation: Callable[[Tensor], Tensor]) -> None:
    def write_out(out: Tensor, input: Tensor, limit: float = 0.0) -> None:
        if limit > 0:
            gate, up = input.chunk(2, dim=-1)
            out.copy_(activation(gate.clamp(max=limit)) * up.clamp(-limit, limit))
        else:
            out.copy_(gated(input, activation))

    stands_for(f"aiter::{name}")(write_out)


for _name, _activation in {"silu_and_mul": F.silu, "gelu_and_mul": F.gelu, "gelu_tanh_and_mul": gelu_tanh}.items():
    _declare_gated(_name, _activation)


@stands_for("aiter::scaled_silu_and_mul")
def scaled_silu_and_mul(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """silu_and_mul, then one fp8 scale."""
    out.copy_(to_quantized(gated(input.float(), F.silu), scale, out.dtype))


@stands_for("aiter::static_per_tensor_quant")
def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """out = input / scale."""
    out.copy_(to_quantized(input, scale, out.dtype))


@stands_for("aiter::dynamic_per_tensor_quant")
def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """One scale from the largest magnitude."""
    found = tensor_scale(input, out.dtype)
    scale.copy_(found.reshape(scale.shape))
    out.copy_(to_quantized(input, found.clamp(min=1e-12), out.dtype))


@stands_for("aiter::dynamic_per_token_scaled_quant")
def dynamic_per_token_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, scale_ub: Tensor | None) -> None:
    """A scale for each row."""
    rows = row_scale(input, out.dtype, scale_ub)
    scales.copy_(rows.reshape(scales.shape))
    out.copy_(to_quantized(input, rows, out.dtype))


@stands_for("aiter::per_token_quant_hip")
def per_token_quant(x: Tensor, scale: Tensor | None, quant_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(quantised, scale of each row [.., 1])."""
    rows = row_scale(x, quant_dtype) if scale is None else scale.clone()
    return to_quantized(x, rows, quant_dtype), rows


@stands_for("aiter::per_group_quant_hip")
def per_group_quant(
    x: Tensor, quant_dtype: torch.dtype, group_size: int, transpose_scale: bool
) -> tuple[Tensor, Tensor]:
    """(quantised, scale of each group), the scale's memory column-major when transposed."""
    groups = group_scale(x, group_size, largest(quant_dtype))
    quantized = quantize_groups(x, groups, quant_dtype)
    return quantized, groups.t().contiguous().view(groups.shape) if transpose_scale else groups


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, style: int, front: bool, nope_first: bool) -> Tensor:
    """x [S, B, H, D] rotated by cos, sin that broadcast to [S, B, 1, R]; R pairs (front) or elements."""
    neox = style == 0
    if front:
        cos, sin = (
            torch.cat((angle, angle), dim=-1) if neox else angle.repeat_interleave(2, dim=-1) for angle in (cos, sin)
        )
    rot = cos.shape[-1]
    start = x.shape[-1] - rot if nope_first else 0
    turned = rotate_whole(x[..., start : start + rot], cos, sin, neox=neox)
    return torch.cat((x[..., :start], turned, x[..., start + rot :]), dim=-1)


@stands_for("aiter::rope_fwd_impl")
def rope_fwd(
    output: Tensor, input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """input [S, B, H, D], angles freqs [S, 1, 1, R]; style 0 is neox, 1 GPT-J."""
    output.copy_(apply_rope(input, freqs.cos(), freqs.sin(), rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_fwd_impl")
def rope_cached_fwd(
    output: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """As rope_fwd_impl, with cosines and sines [S, 1, 1, R]."""
    output.copy_(apply_rope(input, cos, sin, rotate_style, reuse_freqs_front_part, nope_first))


def _at(cos: Tensor, positions: Tensor) -> Tensor:
    """Rows of a cache [max position, 1, 1, R] for positions [S, B] → [S, B, 1, R]."""
    return cos.reshape(cos.shape[0], -1)[positions.to(torch.int64)].unsqueeze(-2)


@stands_for("aiter::rope_cached_positions_fwd_impl", "aiter::rope_cached_positions_offsets_fwd_impl")
def rope_positions(
    output: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
    offsets: Tensor | None = None,
) -> None:
    """As rope_cached_fwd_impl, rows of the cache chosen by positions [S, B] (+ offsets)."""
    moved = positions if offsets is None else positions + offsets
    angles = _at(cos, moved), _at(sin, moved)
    output.copy_(apply_rope(input, *angles, rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_positions_2c_fwd_impl", "aiter::rope_cached_positions_offsets_2c_fwd_impl")
def rope_positions_two(
    output_x: Tensor,
    output_y: Tensor,
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
    offsets: Tensor | None = None,
) -> None:
    """As rope_cached_positions_fwd_impl for query and key at once."""
    for output, input in ((output_x, input_x), (output_y, input_y)):
        rope_positions(output, input, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first, offsets)


@stands_for("aiter::reshape_and_cache_flash")
def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """As `_C_cache_ops::reshape_and_cache_flash`."""
    vllm_cache.reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
    )


@stands_for("aiter::reshape_and_cache")
def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    asm_layout: bool,
) -> None:
    """As `_C_cache_ops::reshape_and_cache`; with asm_layout the value cache is [blocks, Hkv, page/x, D, x]."""
    scales = (1.0 if k_scale is None else k_scale, 1.0 if v_scale is None else v_scale)
    if not asm_layout or value_cache.dim() == 4:
        vllm_cache.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, *scales)
        return
    keys, values = (vllm_cache.fp8_view(cache, kv_cache_dtype) for cache in (key_cache, value_cache))
    split = cast("Tensor", vllm_cache.as_stored(key, keys, scales[0]).unflatten(-1, (keys.shape[2], keys.shape[4])))
    vllm_cache.write_slots(split, keys.permute(0, 3, 1, 2, 4), slot_mapping)
    # [blocks, page/x, x, Hkv, D]: a slot's place in its page is (place // x, place % x).
    pages, x = values.permute(0, 2, 4, 1, 3), values.shape[-1]
    slots = slot_mapping.flatten().to(torch.int64)
    kept = slots >= 0
    rows, slots = vllm_cache.as_stored(value, values, scales[1])[: kept.numel()][kept], slots[kept]
    place = slots % (pages.shape[1] * x)
    if pages.dtype.itemsize == 1:
        rows, pages = rows.view(torch.uint8), pages.view(torch.uint8)
    pages.index_put_((slots // (pages.shape[1] * x), place // x, place % x), rows)
