# pyright: strict
"""Scaled matrix products of 8-bit and 4-bit numbers: operands are scaled, then multiplied in float32.

A scale covers the whole tensor, a row, a column or a block. Block scales are float32, `float8_e8m0fnu` (MX, one per 32
numbers) or `float8_e4m3fn` (NVFP4, one per 16 numbers). CUDA stores MX and NVFP4 scales in tiles of 128 rows and 4
blocks.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from opreplay.replay.ops.calls import Call
from opreplay.replay.ops.maths.quantize import expand_scale

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of 4-bit floats, indexed by their lower three bits (OCP microscaling formats)."""
BLOCKS = {"torch.float8_e8m0fnu": 32, "torch.float8_e4m3fn": 16}
"""Number of elements that share a scale, by the name of the scales' dtype.

The keys are names because older torch versions lack some of these dtypes.
"""
TILE_ROWS, TILE_COLUMNS = 128, 4
"""Tile size in CUDA's layout of block scales; a tile is stored as 32 x 4 x 4 numbers."""


def numbers_of(x: Tensor) -> Tensor:
    """Return a matrix as float32 [rows, K].

    4-bit numbers are packed in pairs along K, with the first number in the low bits.
    """
    if str(x.dtype) != "torch.float4_e2m1fn_x2":
        return x.float()
    pairs = x.contiguous().view(torch.uint8)
    codes = torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).int()
    magnitudes = torch.tensor(E2M1, device=x.device)[codes & 7]
    return torch.where(codes > 7, -magnitudes, magnitudes)


def block_scales(scale: Tensor, rows: int, width: int) -> Tensor:
    """Return the scale of each number as float32 [rows, width] from one scale per block.

    `scale` is either [rows, blocks], or padded and stored in CUDA's tiles. Raises ValueError if its number of elements
    fits neither form.
    """
    block = BLOCKS[str(scale.dtype)]
    blocks = -(-width // block)
    numbers = scale.float()
    if scale.shape != (rows, blocks):
        down, across = -(-rows // TILE_ROWS), -(-blocks // TILE_COLUMNS)
        if scale.numel() != down * across * TILE_ROWS * TILE_COLUMNS:
            raise ValueError(f"{scale.numel()} scales do not fit {rows} rows of {blocks} blocks")
        tiles = numbers.reshape(down, across, 32, 4, TILE_COLUMNS).permute(0, 3, 2, 1, 4)
        numbers = tiles.reshape(down * TILE_ROWS, across * TILE_COLUMNS)[:rows, :blocks]
    return numbers.repeat_interleave(block, 1)[:, :width]


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """Return the values of `x` multiplied by their scales, as float32 [rows, K]."""
    numbers = numbers_of(x)
    rows, width = numbers.shape
    if str(scale.dtype) in BLOCKS:
        return numbers * block_scales(scale, rows, width)
    if scale.numel() == 1:
        return numbers * scale.float().reshape(())
    if scale.numel() == rows:
        return numbers * scale.float().reshape(rows, 1)
    return numbers * expand_scale(scale.float(), rows, width)


def _written(product: Tensor, bias: Tensor | None, result_scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return product + bias in `dtype`. An 8-bit result is multiplied by `result_scale` before the cast."""
    if bias is not None:
        product = product + bias.float()
    if result_scale is not None and dtype.itemsize == 1:
        product = product * result_scale
    return product.to(dtype)


def scaled_mm(
    x: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Multiply x [M, K] by mat2 [K, N].

    `scale_b` is laid out like mat2 or, if it has a scale per block, like the transpose of mat2.
    """
    del use_fast_accum
    of_blocks = str(scale_b.dtype) in BLOCKS or scale_b.dim() < 2
    factors = scaled(x, scale_a), scaled(mat2.t(), scale_b if of_blocks else scale_b.t())
    # As torch: without a type the result has that of x, though for pairs of four bits that of what they are worth.
    dtype = out_dtype or (x.dtype if x.dtype.itemsize == 1 and "float8" in str(x.dtype) else torch.bfloat16)
    return _written(factors[0] @ factors[1].t(), bias, scale_result, dtype)


def scaled_mm_v2(c: Call) -> Tensor:
    """Same as `scaled_mm`; a scale of the whole tensor may be given after the block scales."""
    x: Tensor = c.self
    whole = torch.ones((), device=x.device)
    for scale in (*c.scale_a[1:], *c.scale_b[1:]):
        whole = whole * scale.float().reshape(())
    product = scaled_mm(x, c.mat2, c.scale_a[0], c.scale_b[0], out_dtype=torch.float32) * whole
    return _written(product, c.bias, None, c.out_dtype or torch.bfloat16)


def _grouped_blocks(x: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None) -> Tensor:
    """Return the products of a grouped matmul with block scales, which are padded for each group separately.

    Raises ValueError if `mat2` is not [G, K, N], or if x is not split into groups and `offs` is missing.
    """
    if mat2.dim() != 3:
        raise ValueError("block scales are implemented only for grouped matrices [G, K, N]")
    groups = mat2.shape[0]
    if x.dim() == 3:
        parts = zip(x, scale_a.reshape(groups, -1), strict=True)
    else:
        if offs is None:
            raise ValueError("grouped rows need offsets that give the end of each group")
        ends = cast("list[int]", offs.tolist())  # pyright: ignore[reportUnknownMemberType]
        rows = [end - begin for begin, end in zip((0, *ends), ends, strict=False)]
        padded = [-(-n // TILE_ROWS) * TILE_ROWS for n in rows]
        scales = torch.split(scale_a[: sum(padded)], padded)
        parts = zip(torch.split(x[: ends[-1]], rows), scales, strict=True)
    products = [
        scaled(part, scale) @ scaled(matrix.t(), of_matrix).t()
        for (part, scale), matrix, of_matrix in zip(parts, mat2, scale_b, strict=True)
    ]
    if x.dim() == 3:
        return torch.stack(products)
    product = torch.cat(products)
    return torch.nn.functional.pad(product, (0, 0, 0, x.shape[0] - product.shape[0]))


def scaled_grouped_mm_v2(c: Call) -> Tensor:
    """Same as `scaled_grouped_mm`; one scale per group may be given after the block scales."""
    offs: Tensor | None = c.offs
    product = _grouped(c.self, c.mat2, c.scale_a[0], c.scale_b[0], offs)
    for scale in (*c.scale_a[1:], *c.scale_b[1:]):
        by_group = scale.float().reshape(-1)
        if product.dim() == 3 or by_group.numel() == 1:
            product = product * by_group.view(-1, *(1,) * (product.dim() - 1))
        elif offs is not None:
            places = torch.arange(product.shape[0], device=offs.device, dtype=offs.dtype)
            product = product * by_group[torch.searchsorted(offs, places, right=True).clamp_(max=len(offs) - 1), None]
    return _written(product, c.bias, None, c.out_dtype or torch.bfloat16)


def scaled_grouped_mm(c: Call) -> Tensor:
    """Multiply the matrices of each group: x [M, K] or [G, M, K] by mat2 [G, K, N] or [K, N].

    There is one scale per row of x and per column of mat2. If x or mat2 has no group dimension, int32 `offs` [G] splits
    the dimension that the groups share.
    """
    product = _grouped(c.self, c.mat2, c.scale_a, c.scale_b, c.offs)
    return _written(product, c.bias, None, c.out_dtype or torch.bfloat16)


def _grouped(x: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor | None) -> Tensor:
    """Return the scaled products of all groups in float32."""
    if str(scale_a.dtype) in BLOCKS:
        return _grouped_blocks(x, mat2, scale_a, scale_b, offs)
    product = torch.ops.aten._grouped_mm.default(x.to(torch.bfloat16), mat2.to(torch.bfloat16), offs=offs).float()
    groups = mat2.shape[0] if mat2.dim() == 3 else x.shape[0] if x.dim() == 3 else product.shape[0]
    if product.dim() == 3:
        product = product * scale_a.view(groups, -1, 1) * scale_b.view(groups, 1, -1)
    elif offs is not None:
        rows = x.dim() == 2
        places = torch.arange(product.shape[0 if rows else 1], device=offs.device, dtype=offs.dtype)
        group = torch.searchsorted(offs, places, right=True).clamp_(max=groups - 1)
        product = product * (scale_a[:, None] if rows else scale_b[None, :])
        product = product * (scale_b[group] if rows else scale_a[group].t())
    return product
