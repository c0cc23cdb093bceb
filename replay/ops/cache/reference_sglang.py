# pyright: strict
"""SGLang's writes to its caches of keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for


@stands_for("sglang::store_cache")
def store_cache_reserved(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, reserved_skip_index: int
) -> None:
    """As store_cache; a token whose slot is the reserved one is not stored."""
    kept = indices != reserved_skip_index
    store_cache(k[kept], v[kept], k_cache, v_cache, indices[kept])


@stands_for("sglang::store_cache", lacking=("reserved_skip_index",))
def store_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor) -> None:
    """Rows of k, v [T, ..] into k_cache, v_cache [slots, ..] at indices [T]; num_split only tunes the kernel."""
    slots = indices.to(torch.int64)
    k_cache[slots] = k.reshape(k.shape[0], *k_cache.shape[1:]).to(k_cache.dtype)
    v_cache[slots] = v.reshape(v.shape[0], *v_cache.shape[1:]).to(v_cache.dtype)


@stands_for("sglang_profiler::memory_pool__set_kv_buffer_impl")
def profiler_set_kv_buffer(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor) -> None:
    """As `sglang::store_cache`."""
    store_cache(k, v, k_cache, v_cache, indices)
