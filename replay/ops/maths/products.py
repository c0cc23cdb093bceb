# pyright: strict
"""Matrix products for reference implementations, and splitting of large CPU tensors into row blocks.

The blocks keep float32 copies of 16-bit data small and in the cache. No ops are declared here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK_ELEMENTS = 1 << 19
_COPY_ELEMENTS = 1 << 25
"""Maximum number of operand elements that are converted to float32 at a time: 128 MB."""


def row_blocks(rows: int, width: int, like: Tensor, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Yield slices that divide `rows` rows of `width` elements into blocks of at most `elements` elements.

    Devices whose kernels need no float32 copies get a single slice. So do fake and meta tensors, which hold no data.
    """
    real = type(like) is torch.Tensor and like.device.type == "cpu"
    step = max(1, elements // max(width, 1)) if real else max(rows, 1)
    for start in range(0, max(rows, 1), step):
        yield slice(start, min(start + step, rows))


def as_rows(x: Tensor) -> Tensor:
    """Return `x` [.., K] reshaped to [rows, K]; sizes may be zero."""
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x [.., K] @ weight [N, K]ᵀ + bias in `dtype` (default: x's).

    On a CPU, 16-bit operands are first converted to float32, block by block. The reason is that on CPUs without
    bfloat16 instructions, torch multiplies them some 300 times slower than float32 (measured with torch 2.13 on an AVX2
    machine: 0.34 against 131 GFLOP/s).
    """
    wanted = dtype or x.dtype
    if x.device.type != "cpu" or x.dtype not in (torch.bfloat16, torch.float16):
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype)).to(wanted)
    rows = as_rows(x)
    out = rows.new_empty((rows.shape[0], weight.shape[0]), dtype=wanted)
    widest = max(rows.shape[1], weight.shape[0])
    for columns in row_blocks(weight.shape[0], weight.shape[1], x, _COPY_ELEMENTS):
        right = weight[columns].float()
        extra = None if bias is None else bias[columns].float()
        for part in row_blocks(rows.shape[0], widest, x, _COPY_ELEMENTS):
            out[part, columns] = F.linear(rows[part].float(), right, extra).to(wanted)
    return out.reshape(*x.shape[:-1], weight.shape[0])
