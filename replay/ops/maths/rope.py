# pyright: strict
"""Mathematics of rotary position embedding; no ops are declared here."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, neox: bool) -> Tensor:
    """Rotate pairs of elements of x [.., rot]; the result has x's dtype.

    The angles are given as cos and sin [.., rot/2], which are broadcast. With neox, element i is paired with i + rot/2.
    Without it, 2i is paired with 2i + 1 (GPT-J).
    """
    if neox:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def rotate_by_position(
    x: Tensor,
    positions: Tensor,
    cos_sin_cache: Tensor,
    *,
    head_size: int,
    neox: bool,
    offset: int = 0,
    inverse: bool = False,
) -> Tensor:
    """Rotate the elements [offset, offset + rot) of each head of x, which is [T, heads·head] or [.., heads, head].

    positions int [T] or [B, S] select rows of cos_sin_cache [max position, rot]. Each row holds rot/2 cosines, then
    rot/2 sines. `inverse` rotates in the opposite direction. The result has x's shape and is contiguous.
    """
    rot = cos_sin_cache.shape[-1]
    heads = x.reshape(positions.numel(), -1, head_size)
    cos, sin = cos_sin_cache.index_select(0, positions.flatten()).unsqueeze(1).chunk(2, dim=-1)
    if inverse:
        sin = -sin
    turned = rotate(heads[..., offset : offset + rot], cos, sin, neox=neox)
    parts = (heads[..., :offset], turned, heads[..., offset + rot :])
    return torch.cat(parts, dim=-1).reshape(x.shape)


def rotate_whole(x: Tensor, cos: Tensor, sin: Tensor, *, neox: bool) -> Tensor:
    """Same as `rotate`, with one cos and sin per element of x [.., rot] instead of per pair."""
    if neox:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return (x * cos + turned * sin).to(x.dtype)
