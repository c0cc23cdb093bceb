# pyright: strict
"""aiter's writes to and moves between caches of keys and values."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.cache import reference_vllm as vllm_cache
from opreplay.replay.ops.declared import stands_for


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
    stored = slots >= 0
    rows, slots = vllm_cache.as_stored(value, values, scales[1])[: stored.numel()][stored], slots[stored]
    place = slots % (pages.shape[1] * x)
    if pages.dtype.itemsize == 1:
        rows, pages = rows.view(torch.uint8), pages.view(torch.uint8)
    pages.index_put_((slots // (pages.shape[1] * x), place // x, place % x), rows)


@stands_for("aiter::copy_blocks", writes=("key_caches", "value_caches"))
def copy_blocks(key_caches: Tensor, value_caches: Tensor, block_mapping: Tensor) -> None:
    """Block block_mapping[:, 0] to block block_mapping[:, 1] in caches [blocks, ..]."""
    source, target = block_mapping.to(key_caches.device, torch.int64).unbind(1)
    for cache in (key_caches, value_caches):
        cache[target] = cache[source]
