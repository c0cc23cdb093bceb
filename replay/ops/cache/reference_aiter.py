# pyright: strict
"""aiter's ops that write key-value caches or move data between them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.cache.reference_vllm import as_stored, fp8_view, write_slots
from opreplay.replay.ops.cache.reference_vllm import reshape_and_cache as vllm_reshape_and_cache
from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for


@stands_for("aiter::reshape_and_cache")
def reshape_and_cache(c: Call) -> None:
    """Do the same as `_C_cache_ops::reshape_and_cache`.

    With asm_layout, the value cache is [blocks, Hkv, page/x, D, x].
    """
    scales = (1.0 if c.k_scale is None else c.k_scale, 1.0 if c.v_scale is None else c.v_scale)
    if not c.asm_layout or c.value_cache.dim() == 4:
        vllm_reshape_and_cache(with_changes(c, k_scale=scales[0], v_scale=scales[1]))
        return
    keys, values = (fp8_view(cache, c.kv_cache_dtype) for cache in (c.key_cache, c.value_cache))
    split = cast("Tensor", as_stored(c.key, keys, scales[0]).unflatten(-1, (keys.shape[2], keys.shape[4])))
    write_slots(split, keys.permute(0, 3, 1, 2, 4), c.slot_mapping)
    # [blocks, page/x, x, Hkv, D]: a slot's place in its page is (place // x, place % x).
    pages, x = values.permute(0, 2, 4, 1, 3), values.shape[-1]
    slots = c.slot_mapping.flatten().to(torch.int64)
    stored = slots >= 0
    rows, slots = as_stored(c.value, values, scales[1])[: stored.numel()][stored], slots[stored]
    place = slots % (pages.shape[1] * x)
    if pages.dtype.itemsize == 1:
        rows, pages = rows.view(torch.uint8), pages.view(torch.uint8)
    pages.index_put_((slots // (pages.shape[1] * x), place // x, place % x), rows)


@stands_for("aiter::copy_blocks", writes=("key_caches", "value_caches"))
def copy_blocks(key_caches: Tensor, value_caches: Tensor, block_mapping: Tensor) -> None:
    """In both caches [blocks, ..], copy blocks `block_mapping[:, 0]` to blocks `block_mapping[:, 1]`."""
    source, target = block_mapping.to(key_caches.device, torch.int64).unbind(1)
    for cache in (key_caches, value_caches):
        cache[target] = cache[source]
