# pyright: strict
"""torch_npu's rotary embeddings."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_by_position, rotate_whole


@stands_for("npu::npu_rotary_mul")
def npu_rotary_mul(self: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Tensor:
    """Return self · r1 + rotated(self) · r2.

    r1 has one cosine and r2 one sine per element. The pairs are halves or interleaved.
    """
    return rotate_whole(self, r1, r2, neox=rotary_mode != "interleave")


@stands_for("npu::npu_apply_rotary_pos_emb")
def npu_apply_rotary_pos_emb(c: Call) -> tuple[Tensor, Tensor]:
    """Return the rotated query and key [B, S, N, D].

    There is one cosine and one sine per element. The pairs are halves or interleaved.
    """
    neox = getattr(c, "rotary_mode", "half") != "interleave"
    return rotate_whole(c.query, c.cos, c.sin, neox=neox), rotate_whole(c.key, c.cos, c.sin, neox=neox)


@stands_for("npu::npu_interleave_rope")
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Reorder interleaved pairs of x [B, N, S, D] to halves, then rotate the halves."""
    return rotate_whole(to_halves(x), cos, sin, neox=True)


def to_halves(x: Tensor) -> Tensor:
    pairs = cast("Tensor", x.unflatten(-1, (-1, 2)))
    return pairs.transpose(-1, -2).flatten(-2)


@stands_for("npu::npu_mrope")
def npu_mrope(c: Call) -> tuple[Tensor, Tensor]:
    """Return rotated (query, key), out of place. Raises ValueError for several sections (multimodal positions)."""
    if c.mrope_section and any(c.mrope_section):
        raise ValueError("npu_mrope with sections is not implemented")
    neox = c.rotary_mode != "interleave"
    flat = c.positions.flatten()
    return (
        rotate_by_position(c.query, flat, c.cos_sin_cache, head_size=c.head_size, neox=neox),
        rotate_by_position(c.key, flat, c.cos_sin_cache, head_size=c.head_size, neox=neox),
    )
