"""RoPE, query and key norms, and concatenation of latent parts: ops of vLLM, SGLang and vllm-ascend."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from opreplay.replay.ops.cache.reference_sglang import store_cache
from opreplay.replay.ops.cache.reference_vllm import concat_and_cache_mla, write_slots
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm
from opreplay.replay.ops.maths.quantize import row_scale, to_quantized
from opreplay.replay.ops.maths.rope import rotate, rotate_by_position, rotate_whole


@stands_for("_C::rotary_embedding")
def rotary_embedding(c: Call) -> None:
    """Rotate query and key in place.

    They are [T, heads · head] or [.., heads, head], and positions are [T] or [B, S].
    """
    for tensor in (c.query, getattr(c, "key", None)):
        if tensor is not None:
            turned = rotate_by_position(
                tensor,
                c.positions,
                c.cos_sin_cache,
                head_size=c.head_size,
                neox=c.is_neox,
                offset=getattr(c, "rope_dim_offset", 0),
                inverse=getattr(c, "inverse", False),
            )
            tensor.copy_(turned)


@stands_for("_C::batched_rotary_embedding")
def batched_rotary_embedding(c: Call) -> None:
    """Do the same as rotary_embedding, but add each token's cache offset to its position.

    The offsets belong to LoRAs of several lengths.
    """
    moved = c.positions.flatten() + c.cos_sin_cache_offsets.flatten()
    rotary_embedding(with_changes(c, positions=moved))


_Three = tuple[Tensor, Tensor, Tensor]


@stands_for("_C_cache_ops::concat_mla_q")
def concat_mla_q(ql_nope: Tensor, q_pe: Tensor, q_out: Tensor) -> None:
    """Write the concatenation of `ql_nope` and `q_pe` to `q_out`."""
    q_out.copy_(torch.cat((ql_nope, q_pe), -1))


@stands_for("sgl_kernel::concat_mla_absorb_q")
def concat_mla_absorb_q(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the concatenation of `a` and `b` to `out`."""
    out.copy_(torch.cat((a, b), -1))


@stands_for("sgl_kernel::concat_mla_k")
def concat_mla_k(k: Tensor, k_nope: Tensor, k_rope: Tensor) -> None:
    """Write k_nope and k_rope, concatenated, to k [T, H, D]. All heads share k_rope [T, 1, R]."""
    width = k_nope.shape[-1]
    k[..., :width].copy_(k_nope)
    k[..., width:].copy_(k_rope.reshape(k.shape[0], 1, -1))


@stands_for("_C_cache_ops::concat_and_cache_mla_rope_fused")
def concat_and_cache_mla_rope(c: Call) -> None:
    """Rotate q_pe and k_pe in place, then apply concat_and_cache_mla."""
    for part in (c.q_pe, c.k_pe):
        part.copy_(rotate_by_position(part, c.positions, c.cos_sin_cache, head_size=part.shape[-1], neox=c.is_neox))
    concat_and_cache_mla(c.kv_c, c.k_pe, c.kv_cache, c.slot_mapping, c.kv_cache_dtype, c.kv_cache_scale)


@stands_for("_C_cache_ops::cp_fused_concat_and_cache_mla")
def cp_concat_and_cache_mla(c: Call) -> None:
    """Same as concat_and_cache_mla, for the tokens selected by the indices."""
    mine = c.cp_local_token_select_indices.to(torch.int64)
    concat_and_cache_mla(c.kv_c[mine], c.k_pe[mine], c.kv_cache, c.slot_mapping, c.kv_cache_dtype, c.scale)


@stands_for("vllm::npu_rotary_embedding")
def npu_rotary_embedding(c: Call) -> tuple[Tensor, Tensor]:
    """Return rotated (query, key), out of place."""
    moved = c.positions if c.offsets is None else c.positions + c.offsets
    rotated = [
        rotate_by_position(x, moved, c.cos_sin_cache, head_size=c.head_size, neox=c.is_neox_style)
        for x in (c.query, c.key)
    ]
    return rotated[0], rotated[1]


@stands_for(
    "_C_ascend::rotary_embedding",
    lacking=("offsets",),
    fake=lambda query, key: (torch.empty_like(query), torch.empty_like(key)),
    writes=("query", "key"),
)
def ascend_rotary_embedding(c: Call) -> tuple[Tensor, Tensor]:
    """Rotate query and key in place, and return them."""
    rotary_embedding(c)
    return c.query.clone(), c.key.clone()


@stands_for("vllm::rope_forward_triton")
def rope_forward(c: Call) -> tuple[Tensor, Tensor]:
    """Return (q, k) [T, H, D] with their first rope_dim elements rotated by cos, sin [T, rope_dim / 2]."""

    def turned(x: Tensor) -> Tensor:
        width = 2 * c.cos.shape[-1] if c.rope_dim <= 0 else c.rope_dim
        halves = (t.reshape(t.shape[0], 1, -1)[..., : width // 2] for t in (c.cos, c.sin))
        return torch.cat((rotate(x[..., :width], *halves, neox=c.is_neox_style), x[..., width:]), -1)

    return turned(c.q), turned(c.k)


@stands_for(
    "vllm::rocm_aiter_rotary_emb_with_key_forward_hip",
    "vllm::rocm_aiter_rotary_emb_without_key_forward_hip",
    "vllm::rocm_aiter_rotary_emb_with_key_forward_triton",
)
def aiter_rotary(c: Call) -> None:
    """Rotate query (and key) [.., H, D] in place, by rows of tables cos and sin [positions, 1, 1, R/2]."""
    offsets = getattr(c, "offsets", None)
    moved = (c.positions if offsets is None else c.positions + offsets).flatten().to(torch.int64)
    angles = [t.reshape(t.shape[0], -1)[moved].unsqueeze(1) for t in (c.cos, c.sin)]
    width = 2 * angles[0].shape[-1]
    for part in (c.query, getattr(c, "key", None)):
        if part is None:
            continue
        heads = part.reshape(moved.numel(), -1, part.shape[-1])
        start = heads.shape[-1] - width if c.is_nope_first else 0
        pieces = (
            heads[..., :start],
            rotate(heads[..., start : start + width], *angles, neox=c.rotate_style == 0),
            heads[..., start + width :],
        )
        part.copy_(torch.cat(pieces, -1).reshape(part.shape))


@stands_for("sglang::apply_rope_inplace_with_kvcache")
def rope_with_kvcache(c: Call) -> None:
    """Rotate q and k [T, H, D] in place; store k and v at out_loc."""
    rotary_embedding(with_changes(c, query=c.q, head_size=c.q.shape[-1], key=c.k))
    store_cache(c.k, c.v, c.k_cache, c.v_cache, c.out_loc)


@stands_for(
    "sglang::apply_rope_pos_ids_cos_sin_cache_without_kv_cache",
    "sglang::apply_rope_pos_ids_cos_sin_cache_with_kv_cache",
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
    writes=("q_rope", "k_rope", "k_buffer", "v_buffer"),
)
def rope_pos_ids(c: Call) -> None:
    """Write the rotated q, k [T, H, D] to q_rope, k_rope.

    Buffers, if given, also receive the rotated key and the value.
    """
    v = getattr(c, "v", None)
    k_buffer = getattr(c, "k_buffer", None)
    v_buffer = getattr(c, "v_buffer", None)
    kv_cache_loc = getattr(c, "kv_cache_loc", None)
    for source, target in ((c.q, c.q_rope), (c.k, c.k_rope)):
        target.copy_(
            rotate_by_position(source, c.pos_ids, c.cos_sin_cache, head_size=source.shape[-1], neox=not c.interleave)
        )
    if v is not None and k_buffer is not None and v_buffer is not None and kv_cache_loc is not None:
        store_cache(c.k_rope, v, k_buffer, v_buffer, kv_cache_loc)


def _yarn(base: float, dim: int, factor: float, low: float, high: float, device: torch.device) -> Tensor:
    """Return the rotation angle per position, [dim / 2].

    For factor 1 these are the angles of plain RoPE. Otherwise they follow YaRN: between the indices low and high, they
    change gradually from the plain angles to angles / factor.
    """
    index = torch.arange(dim // 2, device=device, dtype=torch.float32)
    plain = base ** (-2.0 * index / dim)
    if factor == 1.0:
        return plain
    ramp = ((index - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


@stands_for("sgl_kernel::fused_qk_norm_rope", "sglang::fused_qk_norm_rope_out")
def fused_qk_norm_rope(c: Call) -> None:
    """Normalise (RMS) and then rotate each query and key head, in place in qkv [T, heads · head_dim].

    The base of the rotation is `base`.
    """
    head_dim = c.head_dim
    width = getattr(c, "rotary_dim", 0) or head_dim
    angle = c.position_ids.flatten().float().unsqueeze(1) * _yarn(c.base, width, c.factor, c.low, c.high, c.qkv.device)
    table = torch.cat((angle.cos(), angle.sin()), -1) * c.attention_factor
    row = torch.arange(table.shape[0], device=c.qkv.device)
    start = 0
    for heads, weight in ((c.num_heads_q, c.q_weight), (c.num_heads_k, c.k_weight)):
        part = c.qkv[:, start : start + heads * head_dim]
        normed = rms_norm(part.unflatten(-1, (heads, head_dim)), weight, c.eps).flatten(-2)
        part.copy_(rotate_by_position(normed, row, table, head_size=head_dim, neox=c.is_neox))
        start += heads * head_dim


@stands_for("sglang::fused_inplace_qknorm_rope")
def fused_inplace_qknorm_rope(c: Call) -> None:
    """Normalise (RMS) and then rotate each head of q and k, in place."""
    for part, weight in ((c.q, c.q_weight), (c.k, c.k_weight)):
        width = c.head_dim or weight.shape[0]
        normed = rms_norm(part.reshape(*c.positions.shape, -1, width), weight, c.eps)
        part.copy_(
            rotate_by_position(normed, c.positions, c.cos_sin_cache, head_size=width, neox=c.is_neox).view(part.shape)
        )


@stands_for("vllm::qkv_rmsnorm_rope", "vllm::qkv_rmsnorm_rope_simt")
def qkv_rmsnorm_rope(c: Call) -> _Three:
    """Return (q, k, v) of packed input [T, q + 2 kv]. q and k are normalised by head (+ bias) and rotated as halves."""
    cos = getattr(c, "cos", None)
    sin = getattr(c, "sin", None)
    cos_sin_cache = getattr(c, "cos_sin_cache", None)
    positions = getattr(c, "positions", None)
    q, k, v = c.input.split((c.q_hidden_size, c.kv_hidden_size, c.kv_hidden_size), -1)
    rotated = []
    for part, weight, bias in ((q, c.q_weight, c.q_bias), (k, c.k_weight, c.k_bias)):
        normed = rms_norm(part.unflatten(-1, (-1, c.head_dim)), weight, c.eps)
        normed = normed if bias is None else normed + bias
        if cos_sin_cache is not None and positions is not None:
            turned = rotate_by_position(normed.flatten(-2), positions, cos_sin_cache, head_size=c.head_dim, neox=True)
        else:
            assert cos is not None
            assert sin is not None
            angles = (t.reshape(c.input.shape[0], 1, -1) for t in (cos, sin))
            turned = rotate_whole(normed, *angles, neox=True).flatten(-2)
        rotated.append(turned.to(c.input.dtype))
    return rotated[0], rotated[1], v.clone()


@stands_for("vllm::fused_mla_dual_rms_norm")
def mla_dual_rms_norm(c: Call) -> tuple[Tensor, Tensor]:
    """Return the RMS norms of two tensors, which the real op computes in one kernel."""
    return rms_norm(c.x1, c.x1_weight, c.x1_epsilon), rms_norm(c.x2, c.x2_weight, c.x2_epsilon)


@stands_for("vllm::fused_mla_dual_rms_norm_per_token_quant")
def mla_dual_rms_norm_quant(c: Call) -> _Three:
    """Return (q's norm in fp8, its scale per row, kv's norm)."""
    normed = rms_norm(c.q, c.q_weight, c.q_epsilon)
    scale = row_scale(normed, torch.float8_e4m3fn)
    return to_quantized(normed, scale, torch.float8_e4m3fn), scale, rms_norm(c.kv, c.kv_weight, c.kv_epsilon)


@stands_for("sgl_kernel::timestep_embedding", writes=("output",), fake=lambda output: torch.empty_like(output))
def timestep_embedding(c: Call) -> Tensor:
    """Write sines and cosines of the scaled timesteps to output [T, dim], and return them.

    There are dim / 2 frequencies.
    """
    half = c.dim // 2
    steps = torch.arange(half, device=c.input.device, dtype=torch.float32) / (half - c.downscale_freq_shift)
    angle = c.input.float().unsqueeze(1) * torch.exp(-math.log(c.max_period) * steps) * c.scale
    parts = (angle.cos(), angle.sin()) if c.flip_sin_to_cos else (angle.sin(), angle.cos())
    c.output[:, : 2 * half].copy_(torch.cat(parts, -1))
    return c.output.clone()


@stands_for(
    "npu::npu_scatter_pa_kv_cache_functional",
    fake=lambda key_cache, value_cache: (torch.empty_like(key_cache), torch.empty_like(value_cache)),
)
def scatter_pa_kv_cache(c: Call) -> tuple[Tensor, Tensor]:
    """Return copies of the caches [blocks, page, Hkv, D] with key and value [T, Hkv, D] written at their slots."""
    caches = c.key_cache.clone(), c.value_cache.clone()
    for rows, cache in zip((c.key, c.value), caches, strict=True):
        write_slots(rows.reshape(rows.shape[0], *cache.shape[2:]).to(cache.dtype), cache, c.slot_mapping)
    return caches


@stands_for("vllm::flashinfer_rotary_embedding", "vllm::rocm_aiter_triton_rotary_embedding")
def offset_rotary_embedding(c: Call) -> None:
    """Rotate query and key in place, at positions + offsets."""
    offsets = getattr(c, "offsets", None)
    moved = c.positions if offsets is None else c.positions + offsets.reshape(c.positions.shape)
    for tensor in (c.query, c.key):
        tensor.copy_(rotate_by_position(tensor, moved, c.cos_sin_cache, head_size=c.head_size, neox=c.is_neox))
