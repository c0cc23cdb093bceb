# pyright: strict
"""aiter's rotary embeddings, of [S, B, H, D]."""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for
from opreplay.replay.ops.maths.rope import rotate_whole


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, style: int, front: bool, nope_first: bool) -> Tensor:
    """x [S, B, H, D] rotated by cos, sin that broadcast to [S, B, 1, R]; R pairs (front) or elements."""
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
def rope_fwd(
    output: Tensor, input: Tensor, freqs: Tensor, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool
) -> None:
    """input [S, B, H, D], angles freqs [S, 1, 1, R]; style 0 is neox, 1 GPT-J."""
    output.copy_(apply_rope(input, freqs.cos(), freqs.sin(), rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_fwd_impl")
def rope_cached_fwd(
    output: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """As rope_fwd_impl, with cosines and sines [S, 1, 1, R]."""
    output.copy_(apply_rope(input, cos, sin, rotate_style, reuse_freqs_front_part, nope_first))


def _at(cos: Tensor, positions: Tensor) -> Tensor:
    """Rows of a cache [max position, 1, 1, R] for positions [S, B] → [S, B, 1, R]."""
    return cos.reshape(cos.shape[0], -1)[positions.to(torch.int64)].unsqueeze(-2)


@stands_for("aiter::rope_cached_positions_fwd_impl", "aiter::rope_cached_positions_offsets_fwd_impl")
def rope_positions(
    output: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
    offsets: Tensor | None = None,
) -> None:
    """As rope_cached_fwd_impl, rows of the cache chosen by positions [S, B] (+ offsets)."""
    moved = positions if offsets is None else positions + offsets
    angles = _at(cos, moved), _at(sin, moved)
    output.copy_(apply_rope(input, *angles, rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_positions_2c_fwd_impl", "aiter::rope_cached_positions_offsets_2c_fwd_impl")
def rope_positions_two(
    output_x: Tensor,
    output_y: Tensor,
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
    offsets: Tensor | None = None,
) -> None:
    """As rope_cached_positions_fwd_impl for query and key at once."""
    for output, input in ((output_x, input_x), (output_y, input_y)):
        rope_positions(output, input, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first, offsets)


_ROPE = ("output", "output_x", "output_y", "input_grads", "input_grads_x", "input_grads_y")


@stands_for("aiter::rope_bwd_impl", writes=_ROPE)
def rope_bwd(
    input_grads: Tensor,
    output_grads: Tensor,
    freqs: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """Gradient of `aiter::rope_fwd_impl`: the rotation the other way."""
    angles = freqs.cos(), -freqs.sin()
    input_grads.copy_(apply_rope(output_grads, *angles, rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_bwd_impl", writes=_ROPE)
def rope_cached_bwd(
    input_grads: Tensor,
    output_grads: Tensor,
    cos: Tensor,
    sin: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """Gradient of `aiter::rope_cached_fwd_impl`."""
    input_grads.copy_(apply_rope(output_grads, cos, -sin, rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_2c_fwd_impl", writes=_ROPE)
def rope_two(
    output_x: Tensor,
    output_y: Tensor,
    input_x: Tensor,
    input_y: Tensor,
    freqs: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """`aiter::rope_fwd_impl` for query and key at once."""
    for output, input in ((output_x, input_x), (output_y, input_y)):
        output.copy_(apply_rope(input, freqs.cos(), freqs.sin(), rotate_style, reuse_freqs_front_part, nope_first))


@stands_for("aiter::rope_cached_2c_fwd_impl", writes=_ROPE)
def rope_cached_two(
    output_x: Tensor,
    output_y: Tensor,
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> None:
    """`aiter::rope_cached_fwd_impl` for query and key at once."""
    for output, input in ((output_x, input_x), (output_y, input_y)):
        output.copy_(apply_rope(input, cos, sin, rotate_style, reuse_freqs_front_part, nope_first))
