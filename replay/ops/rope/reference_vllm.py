# pyright: strict
"""vLLM's `_C` rotary embeddings (csrc/libtorch_stable/pos_encoding_kernels.cu), in place on query and key."""

from __future__ import annotations

from opreplay.replay.ops.calls import Call, but
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position


@stands_for("_C::rotary_embedding")
def rotary_embedding(c: Call) -> None:
    """Rotate query [T, heads · head] or [.., heads, head], and key; positions [T] or [B, S]."""
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
    """As rotary_embedding, each token's position moved by its offset into the cache (LoRAs of several lengths)."""
    moved = c.positions.flatten() + c.cos_sin_cache_offsets.flatten()
    rotary_embedding(but(c, positions=moved))
