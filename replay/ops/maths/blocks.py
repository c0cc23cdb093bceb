# pyright: strict
"""Cutting big CPU tensors into blocks of rows, so that float32 copies of 16-bit data stay small and in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 19


def row_blocks(rows: int, width: int, like: Tensor, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Slices of `rows` rows of `width` elements; a single one on devices whose kernels need no float32 copies.

    Fake and meta tensors get a single one as well: they hold no data.
    """
    real = type(like) is torch.Tensor and like.device.type == "cpu"
    step = max(1, elements // max(width, 1)) if real else max(rows, 1)
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))
