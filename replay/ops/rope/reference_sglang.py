# pyright: strict
"""SGLang's rotary embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position


@stands_for("sgl_kernel::apply_rope_pos_ids_cos_sin_cache")
def apply_rope_pos_ids_cos_sin_cache(
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
    """q, k [T, heads, head] rotated into q_rope, k_rope; with buffers [slots, Hkv, head] k and v are stored as well."""
    for source, target in ((q, q_rope), (k, k_rope)):
        target.copy_(
            rotate_by_position(source, pos_ids, cos_sin_cache, head_size=source.shape[-1], neox=not interleave)
        )
    if kv_cache_loc is not None and k_buffer is not None and v_buffer is not None and v is not None:
        slots = kv_cache_loc.to(torch.int64)
        k_buffer[slots] = k_rope.reshape(slots.numel(), *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = v.reshape(slots.numel(), *v_buffer.shape[1:]).to(v_buffer.dtype)


@stands_for("sglang::apply_rope_inplace")
def apply_rope_inplace(q: Tensor, k: Tensor, cos_sin_cache: Tensor, positions: Tensor, is_neox: bool) -> None:
    """q, k [T, heads, head] rotated in place."""
    for tensor in (q, k):
        tensor.copy_(rotate_by_position(tensor, positions, cos_sin_cache, head_size=tensor.shape[-1], neox=is_neox))
