# pyright: strict
"""SGLang's ops that write to key-value caches."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for


@stands_for("sglang::store_cache")
def store_cache(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, indices: Tensor, reserved_skip_index: int | None = None
) -> None:
    """Write the rows of k and v [T, ..] into k_cache and v_cache [slots, ..], at slots `indices` [T].

    Tokens whose slot is `reserved_skip_index` are not stored. The op also has an argument num_split, which only tunes
    the kernel.
    """
    if reserved_skip_index is not None:
        stored = indices != reserved_skip_index
        k, v, indices = k[stored], v[stored], indices[stored]
    slots = indices.to(torch.int64)
    k_cache[slots] = k.reshape(k.shape[0], *k_cache.shape[1:]).to(k_cache.dtype)
    v_cache[slots] = v.reshape(v.shape[0], *v_cache.shape[1:]).to(v_cache.dtype)
