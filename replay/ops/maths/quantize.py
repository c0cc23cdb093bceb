"""Mathematics of fp8 and int8 quantisation and of scaled matmuls; no ops are declared here."""

from __future__ import annotations

import torch
from torch import Tensor

FP8_BY_KIND: dict[str, torch.dtype] = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_inc": torch.float8_e4m3fn,
}
"""vLLM's kv_cache_dtype → element dtype of a cache that is stored as uint8."""


def largest(dtype: torch.dtype) -> float:
    """Return the number to which quantisation maps the largest input.

    It is 127 for int8, 224 for e4m3fnuz, and otherwise the dtype's maximum. 224 is vLLM's choice; the ROCm maximum of
    240 costs accuracy (csrc/quantization/utils.cuh).
    """
    if dtype == torch.float8_e4m3fnuz:
        return 224.0
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def to_quantized(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x / scale (broadcast), saturated; int8 rounds half to even."""
    scaled = x.float() / scale
    if dtype == torch.int8:
        return scaled.round_().clamp_(-128, 127).to(dtype)
    limit = largest(dtype)
    return scaled.clamp_(-limit, limit).to(dtype)


def tensor_scale(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the float32 scale of a whole tensor, 0-dim."""
    return x.abs().amax().float() / largest(dtype)


def row_scale(x: Tensor, dtype: torch.dtype, upper_bound: Tensor | None = None) -> Tensor:
    """Return the float32 scale of each row [.., 1].

    For fp8 it is at least 1 / (512 · largest), as in vLLM's kernels.
    """
    peak = x.abs().amax(-1, keepdim=True).float()
    if upper_bound is not None:
        peak = torch.minimum(peak, upper_bound.float())
    floor = 1e-12 if dtype == torch.int8 else 1.0 / (largest(dtype) * 512.0)
    return (peak / largest(dtype)).clamp_(min=floor)


def group_scale(x: Tensor, group: int, limit: float, *, eps: float = 1e-10, power_of_two: bool = False) -> Tensor:
    """Return the float32 scales [.., d / group] of x [.., d], one for each `group` consecutive elements of the last
    dim.
    """
    peak = x.float().unflatten(-1, (-1, group)).abs().amax(-1).clamp_(min=eps)
    scale = peak / limit
    return torch.exp2(torch.ceil(torch.log2(scale))) if power_of_two else scale


def quantize_groups(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Quantise x [.., d] with one scale per group: `scale` [.., groups]."""
    group = x.shape[-1] // scale.shape[-1]
    return to_quantized(x.unflatten(-1, (-1, group)), scale.unsqueeze(-1), dtype).flatten(-2)


def expand_scale(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Return a scale in a shape that broadcasts over [rows, columns].

    A single element covers the whole matrix. [rows] and [rows, 1] have a scale per row, [1, columns] a scale per
    column. [r, c] has a scale per block of ceil(rows/r) x ceil(columns/c). Raises ValueError for any other shape.
    """
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    if scale.dim() == 1 and scale.shape[0] == rows:
        return scale.unsqueeze(1)
    if scale.dim() != 2:
        raise ValueError(f"a scale of shape {tuple(scale.shape)} does not fit a [{rows}, {columns}] matrix")
    if scale.shape[0] in (1, rows) and scale.shape[1] in (1, columns):
        return scale
    by_row = scale if scale.shape[0] in (1, rows) else _repeat(scale, 0, rows)
    return by_row if scale.shape[1] in (1, columns) else _repeat(by_row, 1, columns)


def _repeat(scale: Tensor, dim: int, size: int) -> Tensor:
    block = -(-size // scale.shape[dim])
    # The libraries cut blocks of a power of two; the last one may be short.
    block = 1 << (block - 1).bit_length()
    return scale.repeat_interleave(block, dim).narrow(dim, 0, size)


def dequantize(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return a quantised matrix [rows, columns] times its scale, in `dtype`."""
    if scale is None:
        return x.to(dtype)
    return (x.float() * expand_scale(scale.float(), x.shape[-2], x.shape[-1])).to(dtype)


def _along_k(x: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return (x · scale, None) if the scale varies along K, otherwise (x, scale by row). All of them are float32."""
    if scale is None:
        return x.float(), None
    rows = expand_scale(scale.float(), *x.shape)
    return (x.float() * rows, None) if rows.shape[1] > 1 else (x.float(), rows)


def scaled_linear(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None,
    scale_weight: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return (a · scale_a) @ (weight · scale_weight)ᵀ + bias in `dtype`.

    a [M, K] and weight [N, K] are quantised. Scales have the shapes that `expand_scale` accepts. The weight's scale can
    also be [1, N], with an element per output column. Sums are float32. Scales that do not vary along K are applied to
    the product.
    """
    if scale_weight is not None and scale_weight.shape == (1, weight.shape[0]):
        scale_weight = scale_weight.mT
    lhs, rows_a = _along_k(a, scale_a)
    rhs, rows_w = _along_k(weight, scale_weight)
    product = lhs @ rhs.t()
    if rows_a is not None:
        product *= rows_a
    if rows_w is not None:
        product *= rows_w.t()
    if bias is not None:
        product += bias
    return product.to(dtype)


def fp8_view(cache: Tensor, kind: str) -> Tensor:
    """Return a KV cache in its element dtype.

    A cache recorded as uint8 holds fp8 of `kind`, or e4m3 if `kind` is "" or "auto".
    """
    if cache.dtype != torch.uint8:
        return cache
    return cache.view(FP8_BY_KIND.get(kind, torch.float8_e4m3fn))
