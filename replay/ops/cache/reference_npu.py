# pyright: strict
"""torch_npu's ops that write to key-value caches."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.cache.reference_vllm import write_slots
from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.norms import rms_norm_with_scale
from opreplay.replay.ops.maths.rope import rotate_whole
from opreplay.replay.ops.rope.reference_npu import to_halves


@stands_for("npu::_npu_reshape_and_cache", "npu::npu_scatter_pa_kv_cache")
def npu_write_cache(c: Call) -> None:
    """Write `key` and `value` [T, Hkv, D] into caches [blocks, page, Hkv, D] at the tokens' slots."""
    slot_mapping = getattr(c, "slot_mapping", None)
    slots = slot_mapping if slot_mapping is not None else getattr(c, "slot_indices", None)
    assert slots is not None
    write_slots(c.key.reshape(c.key.shape[0], *c.key_cache.shape[2:]).to(c.key_cache.dtype), c.key_cache, slots)
    write_slots(
        c.value.reshape(c.value.shape[0], *c.value_cache.shape[2:]).to(c.value_cache.dtype), c.value_cache, slots
    )


def _cached_like(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rank = c.gamma.shape[0]
    widths = (c.kv.shape[-1] - rank, rank)
    turned, latent = (c.kv.new_empty((*c.kv.shape[:-1], width) if c.is_output_kv else (0,)) for width in widths)
    return c.k_cache, c.ckv_cache, turned, latent


@stands_for("npu::npu_kv_rmsnorm_rope_cache", fake=_cached_like)
def npu_kv_rmsnorm_rope_cache(c: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Write the normed rank part of kv [B, 1, S, rank + rope] to ckv_cache and the rotated rope part to k_cache.

    In mode Norm, index int64 [B, S] holds positions in each sequence's own cache [B, 1, places, ..]. In modes PA and
    PA_BNSD, index [B · S] holds slots of paged caches [blocks, page, 1, ..]. Traces do not record the mode, so a flat
    index without a mode is read as slots. Negative indices are skipped. Only unquantised caches in token order are
    supported. Raises ValueError for other modes.
    """
    index, k_cache = c.index, c.k_cache
    if c.cache_mode not in ("Norm", "PA", "PA_BNSD"):
        raise ValueError(f"cache mode {c.cache_mode} is not implemented; use Norm, PA or PA_BNSD")
    rank = c.gamma.shape[0]
    latent, _ = rms_norm_with_scale(c.kv[..., :rank], c.gamma, c.epsilon)
    turned = rotate_whole(to_halves(c.kv[..., rank:]), c.cos, c.sin, neox=True)
    if c.cache_mode == "Norm" and index.dim() == 2:
        places = k_cache[0].numel() // k_cache.shape[-1]
        first = places * torch.arange(index.shape[0], device=index.device).unsqueeze(1)
        index = torch.where(index < 0, index, index + first)
    slots = index.flatten()
    for rows, cache in ((turned, k_cache), (latent, c.ckv_cache)):
        flat = cache.view(-1, 1, cache.shape[-1])
        write_slots(rows.reshape(-1, rows.shape[-1]).to(cache.dtype), flat, slots)
    empty = c.kv.new_empty((0,))
    return (k_cache, c.ckv_cache, turned, latent) if c.is_output_kv else (k_cache, c.ckv_cache, empty, empty.clone())
