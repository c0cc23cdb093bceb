# pyright: strict
"""torch_npu's rotary embeddings."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position, rotate_whole


@stands_for("npu::npu_rotary_mul")
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """self · r1 + turned(self) · r2, with cosines r1 and sines r2 of every element; half or interleaved pairs."""
    return rotate_whole(self, r1, r2, neox=rotary_mode != "interleave")


@stands_for("npu::npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """As npu_rotary_mul for query and key [B, S, N, D]."""
    neox = rotary_mode != "interleave"
    return rotate_whole(query, cos, sin, neox=neox), rotate_whole(key, cos, sin, neox=neox)


@stands_for("npu::npu_interleave_rope")
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved pairs of x [B, N, S, D] brought into halves, then rotated as halves."""
    return rotate_whole(to_halves(x), cos, sin, neox=True)


def to_halves(x: Tensor) -> Tensor:
    pairs = cast("Tensor", x.unflatten(-1, (-1, 2)))
    return pairs.transpose(-1, -2).flatten(-2)


@stands_for("npu::npu_mrope")
def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    mrope_section: list[int] | None,
    rotary_mode: str | None,
) -> tuple[Tensor, Tensor]:
    """As vLLM's rotary embedding, out of place. Raises ValueError for several sections (multimodal positions)."""
    if mrope_section and any(mrope_section):
        raise ValueError("npu_mrope with sections is not implemented")
    neox = rotary_mode != "interleave"
    flat = positions.flatten()
    return (
        rotate_by_position(query, flat, cos_sin_cache, head_size=head_size, neox=neox),
        rotate_by_position(key, flat, cos_sin_cache, head_size=head_size, neox=neox),
    )
