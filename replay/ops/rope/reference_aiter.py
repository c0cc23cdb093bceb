# pyright: strict
"""aiter's rotary embeddings of tensors [S, B, H, D]."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call, with_changes
from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_whole


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, style: int, front: bool, nope_first: bool) -> Tensor:
    """Rotate x [S, B, H, D] by cos and sin, broadcast to [S, B, 1, R].

    R is the number of rotated pairs if `front` is set, otherwise the number of rotated elements.
    """
    neox = style == 0
    if front:
        cos, sin = (
            torch.cat((angle, angle), dim=-1) if neox else angle.repeat_interleave(2, dim=-1) for angle in (cos, sin)
        )
    rot = cos.shape[-1]
    start = x.shape[-1] - rot if nope_first else 0
    turned = rotate_whole(x[..., start : start + rot], cos, sin, neox=neox)
    return torch.cat((x[..., :start], turned, x[..., start + rot :]), dim=-1)


@stands_for("aiter::rope_fwd_impl")
def rope_fwd(c: Call) -> None:
    """Rotate `input` [S, B, H, D] by the angles `freqs` [S, 1, 1, R]; style 0 is neox, style 1 is GPT-J."""
    c.output.copy_(
        apply_rope(c.input, c.freqs.cos(), c.freqs.sin(), c.rotate_style, c.reuse_freqs_front_part, c.nope_first)
    )


@stands_for("aiter::rope_cached_fwd_impl")
def rope_cached_fwd(c: Call) -> None:
    """Rotate input [S, B, H, D] by angles given as cosines and sines [S, 1, 1, R]."""
    c.output.copy_(apply_rope(c.input, c.cos, c.sin, c.rotate_style, c.reuse_freqs_front_part, c.nope_first))


def _at(cos: Tensor, positions: Tensor) -> Tensor:
    """Return the rows of a cache [max position, 1, 1, R] at positions [S, B] → [S, B, 1, R]."""
    return cos.reshape(cos.shape[0], -1)[positions.to(torch.int64)].unsqueeze(-2)


@stands_for("aiter::rope_cached_positions_fwd_impl", "aiter::rope_cached_positions_offsets_fwd_impl")
def rope_positions(c: Call) -> None:
    """Rotate input [S, B, H, D] by the rows of cos and sin at positions [S, B] (+ offsets)."""
    offsets = getattr(c, "offsets", None)
    moved = c.positions if offsets is None else c.positions + offsets
    angles = _at(c.cos, moved), _at(c.sin, moved)
    c.output.copy_(apply_rope(c.input, *angles, c.rotate_style, c.reuse_freqs_front_part, c.nope_first))


@stands_for("aiter::rope_cached_positions_2c_fwd_impl", "aiter::rope_cached_positions_offsets_2c_fwd_impl")
def rope_positions_two(c: Call) -> None:
    """Rotate query and key [S, B, H, D] by the rows of cos and sin at positions [S, B] (+ offsets)."""
    for output, input in ((c.output_x, c.input_x), (c.output_y, c.input_y)):
        rope_positions(with_changes(c, output=output, input=input, offsets=getattr(c, "offsets", None)))


_ROPE = ("output", "output_x", "output_y", "input_grads", "input_grads_x", "input_grads_y")


@stands_for("aiter::rope_bwd_impl", writes=_ROPE)
def rope_bwd(c: Call) -> None:
    """Write the gradient of `aiter::rope_fwd_impl`: the inverse rotation."""
    angles = c.freqs.cos(), -c.freqs.sin()
    c.input_grads.copy_(apply_rope(c.output_grads, *angles, c.rotate_style, c.reuse_freqs_front_part, c.nope_first))


@stands_for("aiter::rope_cached_bwd_impl", writes=_ROPE)
def rope_cached_bwd(c: Call) -> None:
    """Write the gradient of `aiter::rope_cached_fwd_impl`."""
    c.input_grads.copy_(
        apply_rope(c.output_grads, c.cos, -c.sin, c.rotate_style, c.reuse_freqs_front_part, c.nope_first)
    )


@stands_for("aiter::rope_2c_fwd_impl", writes=_ROPE)
def rope_two(c: Call) -> None:
    """Rotate query and key [S, B, H, D] by the angles `freqs` [S, 1, 1, R]."""
    for output, input in ((c.output_x, c.input_x), (c.output_y, c.input_y)):
        output.copy_(
            apply_rope(input, c.freqs.cos(), c.freqs.sin(), c.rotate_style, c.reuse_freqs_front_part, c.nope_first)
        )


@stands_for("aiter::rope_cached_2c_fwd_impl", writes=_ROPE)
def rope_cached_two(c: Call) -> None:
    """Rotate query and key [S, B, H, D] by angles given as cosines and sines [S, 1, 1, R]."""
    for output, input in ((c.output_x, c.input_x), (c.output_y, c.input_y)):
        output.copy_(apply_rope(input, c.cos, c.sin, c.rotate_style, c.reuse_freqs_front_part, c.nope_first))
