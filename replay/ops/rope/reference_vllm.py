# pyright: strict
"""vLLM's `_C` rotary embeddings (csrc/libtorch_stable/pos_encoding_kernels.cu), in place on query and key."""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position


@stands_for("_C::rotary_embedding")
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate query [T, heads · head] or [.., heads, head], and key; positions [T] or [B, S]."""
    for tensor in (query, key):
        if tensor is not None:
            turned = rotate_by_position(
                tensor,
                positions,
                cos_sin_cache,
                head_size=head_size,
                neox=is_neox,
                offset=rope_dim_offset,
                inverse=inverse,
            )
            tensor.copy_(turned)


@stands_for("_C::batched_rotary_embedding")
def batched_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool,
    cos_sin_cache_offsets: Tensor,
) -> None:
    """As rotary_embedding, each token's position moved by its offset into the cache (LoRAs of several lengths)."""
    moved = positions.flatten() + cos_sin_cache_offsets.flatten()
    rotary_embedding(moved, query, key, head_size, cos_sin_cache, is_neox)
