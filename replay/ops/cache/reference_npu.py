# pyright: strict
"""torch_npu's writes to caches of keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.cache.reference_vllm import write_slots
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_with_scale
from opreplay.replay.ops.maths.rope import rotate_whole
from opreplay.replay.ops.rope.reference_npu import to_halves


@stands_for("npu::_npu_reshape_and_cache", "npu::npu_scatter_pa_kv_cache")
def npu_write_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor | None = None,
    slot_indices: Tensor | None = None,
) -> None:
    """key, value [T, Hkv, D] into caches [blocks, page, Hkv, D] at their slots."""
    slots = slot_mapping if slot_mapping is not None else slot_indices
    assert slots is not None
    write_slots(key.reshape(key.shape[0], *key_cache.shape[2:]).to(key_cache.dtype), key_cache, slots)
    write_slots(value.reshape(value.shape[0], *value_cache.shape[2:]).to(value_cache.dtype), value_cache, slots)


def _cached_like(
    kv: Tensor, gamma: Tensor, k_cache: Tensor, ckv_cache: Tensor, is_output_kv: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rank = gamma.shape[0]
    widths = (kv.shape[-1] - rank, rank)
    turned, latent = (kv.new_empty((*kv.shape[:-1], width) if is_output_kv else (0,)) for width in widths)
    return k_cache, ckv_cache, turned, latent


@stands_for("npu::npu_kv_rmsnorm_rope_cache", fake=_cached_like)
def npu_kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    epsilon: float,
    cache_mode: str,
    is_output_kv: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """kv [B, 1, S, rank + rope]: the normed rank part into ckv_cache, the rotated rope part into k_cache.

    Mode Norm: index int64 [B, S] are places in each batch's own cache [B, 1, places, ..]. Modes PA and PA_BNSD: index
    [B · S] are slots of paged caches [blocks, page, 1, ..], as is a flat index without a mode, which traces do not
    record. Negative ones are skipped. Unquantised caches in token order only; raises ValueError for other modes.
    """
    if cache_mode not in ("Norm", "PA", "PA_BNSD"):
        raise ValueError(f"caches of mode {cache_mode} are not stood in for: Norm, PA and PA_BNSD are")
    rank = gamma.shape[0]
    latent, _ = rms_norm_with_scale(kv[..., :rank], gamma, epsilon)
    turned = rotate_whole(to_halves(kv[..., rank:]), cos, sin, neox=True)
    if cache_mode == "Norm" and index.dim() == 2:
        places = k_cache[0].numel() // k_cache.shape[-1]
        first = places * torch.arange(index.shape[0], device=index.device).unsqueeze(1)
        index = torch.where(index < 0, index, index + first)
    slots = index.flatten()
    for rows, cache in ((turned, k_cache), (latent, ckv_cache)):
        flat = cache.view(-1, 1, cache.shape[-1])
        write_slots(rows.reshape(-1, rows.shape[-1]).to(cache.dtype), flat, slots)
    empty = kv.new_empty((0,))
    return (k_cache, ckv_cache, turned, latent) if is_output_kv else (k_cache, ckv_cache, empty, empty.clone())
