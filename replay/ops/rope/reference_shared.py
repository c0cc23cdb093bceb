"""RoPE, norms of query and key, and latent parts put together, under the names of vLLM, SGLang and vllm-ascend."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opreplay.replay.ops.cache.reference_sglang import store_cache
from opreplay.replay.ops.cache.reference_vllm import concat_and_cache_mla, write_slots
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized
from opreplay.replay.ops.maths.rope import rotate, rotate_by_position, rotate_whole

_Three = tuple[Tensor, Tensor, Tensor]


@stands_for("_C_cache_ops::concat_mla_q")
def concat_mla_q(ql_nope: Tensor, q_pe: Tensor, q_out: Tensor) -> None:
    """q_out = ql_nope and q_pe side by side."""
    q_out.copy_(torch.cat((ql_nope, q_pe), -1))


@stands_for("sgl_kernel::concat_mla_absorb_q")
def concat_mla_absorb_q(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a and b side by side."""
    out.copy_(torch.cat((a, b), -1))


@stands_for("sgl_kernel::concat_mla_k")
def concat_mla_k(k: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
    """k [T, H, D]: k_nope in front, k_rope [T, 1, R] for every head behind it."""
    width = k_nope.shape[-1]
    k[..., :width].copy_(k_nope)
    k[..., width:].copy_(k_rope.reshape(k.shape[0], 1, -1))


@stands_for("_C_cache_ops::concat_and_cache_mla_rope_fused")
def concat_and_cache_mla_rope(
    positions: Tensor,
    q_pe: Tensor,
    k_pe: Tensor,
    kv_c: Tensor,
    cos_sin_cache: Tensor,
    is_neox: bool,
    slot_mapping: Tensor,
    kv_cache: Tensor,
    kv_cache_dtype: str,
    kv_cache_scale: Tensor,
) -> None:
    """q_pe and k_pe rotated in place, then as concat_and_cache_mla."""
    for part in (q_pe, k_pe):
        part.copy_(rotate_by_position(part, positions, cos_sin_cache, head_size=part.shape[-1], neox=is_neox))
    concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, kv_cache_scale)


@stands_for("_C_cache_ops::cp_fused_concat_and_cache_mla")
def cp_concat_and_cache_mla(
    kv_c: Tensor,
    k_pe: Tensor,
    cp_local_token_select_indices: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    scale: Tensor,
) -> None:
    """As concat_and_cache_mla for the tokens that the indices pick."""
    mine = cp_local_token_select_indices.to(torch.int64)
    concat_and_cache_mla(kv_c[mine], k_pe[mine], kv_cache, slot_mapping, kv_cache_dtype, scale)


@stands_for("sglang::rotary_embedding_with_key", "sglang::rotary_embedding_without_key")
def rotary_embedding(
    positions: Tensor, query: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool, key: Tensor | None = None
) -> None:
    """As `_C::rotary_embedding`."""
    for part in (query, key):
        if part is not None:
            part.copy_(rotate_by_position(part, positions, cos_sin_cache, head_size=head_size, neox=is_neox))


@stands_for("vllm::npu_rotary_embedding")
def npu_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    is_neox_style: bool,
    offsets: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(query, key) rotated, out of place."""
    moved = positions if offsets is None else positions + offsets
    rotated = [
        rotate_by_position(x, moved, cos_sin_cache, head_size=head_size, neox=is_neox_style) for x in (query, key)
    ]
    return rotated[0], rotated[1]


@stands_for(
    "_C_ascend::rotary_embedding",
    lacking=("offsets",),
    fake=lambda query, key: (torch.empty_like(query), torch.empty_like(key)),
    writes=("query", "key"),
)
def ascend_rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> tuple[Tensor, Tensor]:
    """query and key rotated in place, and returned."""
    rotary_embedding(positions, query, head_size, cos_sin_cache, is_neox, key)
    return query.clone(), key.clone()


@stands_for("vllm::rope_forward_triton")
def rope_forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rope_dim: int, is_neox_style: bool
) -> tuple[Tensor, Tensor]:
    """(q, k) [T, H, D] with their first rope_dim elements rotated by cos, sin [T, rope_dim / 2]."""

    def turned(x: Tensor) -> Tensor:
        width = 2 * cos.shape[-1] if rope_dim <= 0 else rope_dim
        halves = (t.reshape(t.shape[0], 1, -1)[..., : width // 2] for t in (cos, sin))
        return torch.cat((rotate(x[..., :width], *halves, neox=is_neox_style), x[..., width:]), -1)

    return turned(q), turned(k)


@stands_for(
    "vllm::rocm_aiter_rotary_emb_with_key_forward_hip",
    "vllm::rocm_aiter_rotary_emb_without_key_forward_hip",
    "vllm::rocm_aiter_rotary_emb_with_key_forward_triton",
)
def aiter_rotary(
    positions: Tensor,
    sin: Tensor,
    cos: Tensor,
    query: Tensor,
    rotate_style: int,
    is_nope_first: bool,
    key: Tensor | None = None,
    offsets: Tensor | None = None,
) -> None:
    """query (and key) [.., H, D] rotated in place by rows of cos, sin [positions, 1, 1, R/2]."""
    moved = (positions if offsets is None else positions + offsets).flatten().to(torch.int64)
    angles = [t.reshape(t.shape[0], -1)[moved].unsqueeze(1) for t in (cos, sin)]
    width = 2 * angles[0].shape[-1]
    for part in (query, key):
        if part is None:
            continue
        heads = part.reshape(moved.numel(), -1, part.shape[-1])
        start = heads.shape[-1] - width if is_nope_first else 0
        pieces = (
            heads[..., :start],
            rotate(heads[..., start : start + width], *angles, neox=rotate_style == 0),
            heads[..., start + width :],
        )
        part.copy_(torch.cat(pieces, -1).reshape(part.shape))


@stands_for("sglang::apply_rope_inplace_with_kvcache")
def rope_with_kvcache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    out_loc: Tensor,
    is_neox: bool,
) -> None:
    """q and k [T, H, D] rotated in place, k and v stored at out_loc."""
    rotary_embedding(positions, q, q.shape[-1], cos_sin_cache, is_neox, k)
    store_cache(k, v, k_cache, v_cache, out_loc)


@stands_for(
    "sglang::apply_rope_pos_ids_cos_sin_cache_without_kv_cache",
    "sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache",
    writes=("q_rope", "k_rope", "k_buffer", "v_buffer"),
)
def rope_pos_ids(
    q: Tensor,
    k: Tensor,
    q_rope: Tensor,
    k_rope: Tensor,
    cos_sin_cache: Tensor,
    pos_ids: Tensor,
    interleave: bool,
    v: Tensor | None = None,
    k_buffer: Tensor | None = None,
    v_buffer: Tensor | None = None,
    kv_cache_loc: Tensor | None = None,
) -> None:
    """q_rope, k_rope = q, k [T, H, D] rotated; with buffers the rotated key and the value are stored as well."""
    for source, target in ((q, q_rope), (k, k_rope)):
        target.copy_(
            rotate_by_position(source, pos_ids, cos_sin_cache, head_size=source.shape[-1], neox=not interleave)
        )
    if v is not None and k_buffer is not None and v_buffer is not None and kv_cache_loc is not None:
        store_cache(k_rope, v, k_buffer, v_buffer, kv_cache_loc)


def _yarn(base: float, dim: int, factor: float, low: float, high: float, device: torch.device) -> Tensor:
    """Angles a position [dim / 2]: plain RoPE, or YaRN's mix of it and its slowed form between low and high."""
    index = torch.arange(dim // 2, device=device, dtype=torch.float32)
    plain = base ** (-2.0 * index / dim)
    if factor == 1.0:
        return plain
    ramp = ((index - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


@stands_for("sgl_kernel::fused_qk_norm_rope", "sglang::fused_qk_norm_rope_out")
def fused_qk_norm_rope(
    qkv: Tensor,
    num_heads_q: int,
    num_heads_k: int,
    head_dim: int,
    eps: float,
    q_weight: Tensor,
    k_weight: Tensor,
    base: float,
    is_neox: bool,
    position_ids: Tensor,
    factor: float,
    low: float,
    high: float,
    attention_factor: float,
    rotary_dim: int = 0,
) -> None:
    """RMS norm of each query and key head, then rotation by base's angles, in place in qkv [T, heads · head_dim]."""
    width = rotary_dim or head_dim
    angle = position_ids.flatten().float().unsqueeze(1) * _yarn(base, width, factor, low, high, qkv.device)
    table = torch.cat((angle.cos(), angle.sin()), -1) * attention_factor
    row = torch.arange(table.shape[0], device=qkv.device)
    start = 0
    for heads, weight in ((num_heads_q, q_weight), (num_heads_k, k_weight)):
        part = qkv[:, start : start + heads * head_dim]
        normed = rms_norm(part.unflatten(-1, (heads, head_dim)), weight, eps).flatten(-2)
        part.copy_(rotate_by_position(normed, row, table, head_size=head_dim, neox=is_neox))
        start += heads * head_dim


@stands_for("sglang::fused_inplace_qknorm_rope")
def fused_inplace_qknorm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    is_neox: bool,
    eps: float,
    head_dim: int,
) -> None:
    """RMS norm of each head of q and k, then their rotation, in place."""
    for part, weight in ((q, q_weight), (k, k_weight)):
        width = head_dim or weight.shape[0]
        normed = rms_norm(part.reshape(*positions.shape, -1, width), weight, eps)
        part.copy_(rotate_by_position(normed, positions, cos_sin_cache, head_size=width, neox=is_neox).view(part.shape))


@stands_for("vllm::qkv_rmsnorm_rope", "vllm::qkv_rmsnorm_rope_simt")
def qkv_rmsnorm_rope(
    input: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    q_hidden_size: int,
    kv_hidden_size: int,
    head_dim: int,
    eps: float,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    cos_sin_cache: Tensor | None = None,
    positions: Tensor | None = None,
) -> _Three:
    """(q, k, v) of packed input [T, q + 2 kv]: q and k normed by heads (+ bias) and rotated as halves."""
    q, k, v = input.split((q_hidden_size, kv_hidden_size, kv_hidden_size), -1)
    rotated = []
    for part, weight, bias in ((q, q_weight, q_bias), (k, k_weight, k_bias)):
        normed = rms_norm(part.unflatten(-1, (-1, head_dim)), weight, eps)
        normed = normed if bias is None else normed + bias
        if cos_sin_cache is not None and positions is not None:
            turned = rotate_by_position(normed.flatten(-2), positions, cos_sin_cache, head_size=head_dim, neox=True)
        else:
            assert cos is not None
            assert sin is not None
            angles = (t.reshape(input.shape[0], 1, -1) for t in (cos, sin))
            turned = rotate_whole(normed, *angles, neox=True).flatten(-2)
        rotated.append(turned.to(input.dtype))
    return rotated[0], rotated[1], v.clone()


@stands_for("vllm::fused_mla_dual_rms_norm")
def mla_dual_rms_norm(
    x1: Tensor, x1_weight: Tensor, x2: Tensor, x2_weight: Tensor, x1_epsilon: float, x2_epsilon: float
) -> tuple[Tensor, Tensor]:
    """The norms of two tensors in one kernel."""
    return rms_norm(x1, x1_weight, x1_epsilon), rms_norm(x2, x2_weight, x2_epsilon)


@stands_for("vllm::fused_mla_dual_rms_norm_per_token_quant")
def mla_dual_rms_norm_quant(
    q: Tensor, q_weight: Tensor, kv: Tensor, kv_weight: Tensor, q_epsilon: float, kv_epsilon: float
) -> _Three:
    """(q's norm in fp8, its scale a row, kv's norm)."""
    normed = rms_norm(q, q_weight, q_epsilon)
    scale = row_scale(normed, torch.float8_e4m3fn)
    return to_quantized(normed, scale, torch.float8_e4m3fn), scale, rms_norm(kv, kv_weight, kv_epsilon)


@stands_for("sgl_kernel::timestep_embedding", writes=("output",), fake=lambda output: torch.empty_like(output))
def timestep_embedding(
    input: Tensor,
    output: Tensor,
    dim: int,
    flip_sin_to_cos: bool,
    downscale_freq_shift: float,
    scale: float,
    max_period: int,
) -> Tensor:
    """output [T, dim]: sines and cosines of scaled steps at dim / 2 frequencies; also returned."""
    half = dim // 2
    steps = torch.arange(half, device=input.device, dtype=torch.float32) / (half - downscale_freq_shift)
    angle = input.float().unsqueeze(1) * torch.exp(-math.log(max_period) * steps) * scale
    parts = (angle.cos(), angle.sin()) if flip_sin_to_cos else (angle.sin(), angle.cos())
    output[:, : 2 * half].copy_(torch.cat(parts, -1))
    return output.clone()


@stands_for(
    "npu::npu_scatter_pa_kv_cache_functional",
    fake=lambda key_cache, value_cache: (torch.empty_like(key_cache), torch.empty_like(value_cache)),
)
def scatter_pa_kv_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, Tensor]:
    """Copies of the caches [blocks, page, Hkv, D] with key and value [T, Hkv, D] at their slots."""
    caches = key_cache.clone(), value_cache.clone()
    for rows, cache in zip((key, value), caches, strict=True):
        write_slots(rows.reshape(rows.shape[0], *cache.shape[2:]).to(cache.dtype), cache, slot_mapping)
    return caches


@stands_for("vllm::flashinfer_rotary_embedding", "vllm::rocm_aiter_triton_rotary_embedding")
def offset_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    offsets: Tensor | None = None,
) -> None:
    """As `_C::rotary_embedding`; offsets are added to the positions."""
    moved = positions if offsets is None else positions + offsets.reshape(positions.shape)
    for tensor in (query, key):
        tensor.copy_(rotate_by_position(tensor, moved, cos_sin_cache, head_size=head_size, neox=is_neox))
