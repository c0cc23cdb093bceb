# pyright: strict
"""SGLang's rotary embeddings."""

from __future__ import annotations

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position


@stands_for("sglang::apply_rope_inplace")
def apply_rope_inplace(q: Tensor, k: Tensor, cos_sin_cache: Tensor, positions: Tensor, is_neox: bool) -> None:
    """Rotate q, k [T, heads, head] in place."""
    for tensor in (q, k):
        tensor.copy_(rotate_by_position(tensor, positions, cos_sin_cache, head_size=tensor.shape[-1], neox=is_neox))
