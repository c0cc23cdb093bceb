# pyright: strict
"""Mathematics of packed weights: 4- and 8-bit integers and small floats, several per word.

No ops are declared here. Tiled layouts (Marlin, Machete, ExLlama) are read as plain rows. The bytes and the work are
the same, but the values are different.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from opreplay.replay.ops.maths.products import linear

COLUMN_ELEMENTS = 1 << 24
"""Maximum number of weight elements that are unpacked at a time: 64 MB of float32."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of a 4-bit float with 2 exponent bits; bit 3 is the sign."""


class Kind(NamedTuple):
    """vLLM's ScalarType (csrc/core/scalar_type.hpp): the bit format of a packed number."""

    exponent: int
    mantissa: int
    signed: bool
    bias: int
    """Offset that is subtracted from a stored integer."""

    @property
    def bits(self) -> int:
        """Return the bits per number."""
        return self.exponent + self.mantissa + self.signed


def kind_of(identifier: int) -> Kind:
    """Return the ScalarType of an id.

    The id holds the size of the exponent in bits 0-7, of the mantissa in 8-15, the sign in 16, and the bias in 17-48.
    """
    bias = (identifier >> 17) & 0xFFFFFFFF
    signed_bias = bias - (1 << 32) if bias >> 31 else bias
    return Kind(identifier & 255, (identifier >> 8) & 255, bool((identifier >> 16) & 1), signed_bias)


def decodable_kind(identifier: int | None) -> Kind | None:
    """Return the ScalarType of an id if `packed_weights` can decode it.

    Otherwise return None, which means plain integers.
    """
    kind = kind_of(identifier) if identifier else None
    return kind if kind is not None and kind.bits in (4, 8) else None


def unpack(words: Tensor, bits: int) -> Tensor:
    """Unpack words [.., n] of 8, 16 or 32 bits to unsigned int32 [.., n · word / bits], lowest bits first."""
    if bits == 8 * words.dtype.itemsize:
        return words.to(torch.int32) & ((1 << bits) - 1)
    shifts = torch.arange(0, 8 * words.dtype.itemsize, bits, device=words.device, dtype=torch.int32)
    return ((words.to(torch.int32).unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)


def decode(numbers: Tensor, kind: Kind) -> Tensor:
    """Decode unsigned numbers to their float32 values."""
    if not kind.exponent:
        values = numbers.float() - kind.bias
        return values - (numbers >= 1 << (kind.bits - 1)) * float(1 << kind.bits) if kind.signed else values
    if kind.bits == 8:
        dtype = torch.float8_e5m2 if kind.exponent == 5 else torch.float8_e4m3fn
        return numbers.to(torch.uint8).view(dtype).float()
    magnitude = torch.tensor(FP4, device=numbers.device)[(numbers & 7).to(torch.int64)]
    return torch.where(numbers & 8 != 0, -magnitude, magnitude)


def bits_of(packed: Tensor, numbers: int) -> int:
    """Return the number of bits per packed number, given how many numbers there are.

    Raises ValueError unless it is 4 or 8.
    """
    bits = packed.numel() * packed.dtype.itemsize * 8 // max(numbers, 1)
    if bits not in (4, 8):
        raise ValueError(f"{packed.numel()} words for {numbers} weights are neither 4 nor 8 bits each")
    return bits


def spread(groups: Tensor, rows: int) -> Tensor:
    """Repeat each group's value for the rows of the group: [groups, n] (or [n]) → [rows, n]."""
    table = groups.reshape(1, -1) if groups.dim() < 2 else groups
    if table.shape[0] == 1:
        return table.expand(rows, -1)
    return table.repeat_interleave(-(-rows // table.shape[0]), 0)[:rows]


def grouped_weight(
    packed: Tensor, size_k: int, size_n: int, scales: Tensor, zeros: Tensor | None, kind: Kind | None
) -> Tensor:
    """Return the float32 weight [K, N] of packed rows: (number − zero) · scale.

    Scales are [groups, N]. Zeros are packed or unpacked. If both `zeros` and `kind` are None, the zero point is the
    middle of the integer range.
    """
    bits = bits_of(packed, size_k * size_n)
    numbers = unpack(packed.reshape(size_k, -1), bits)
    zero_points = _zero_points(zeros, size_n, bits)
    if zero_points is not None:
        values = numbers.float() - spread(zero_points, size_k)
    else:
        values = decode(numbers, kind or Kind(0, bits, False, 1 << (bits - 1)))
    return values * spread(as_float(scales).reshape(-1, size_n), size_k)


def _zero_points(zeros: Tensor | None, size_n: int, bits: int) -> Tensor | None:
    """Return packed or unpacked zero points as float32 [groups, N], or None if there are none."""
    if zeros is None or not zeros.numel():
        return None
    unpacked = zeros if zeros.is_floating_point() else unpack(zeros.reshape(-1, size_n * bits // 32), bits)
    return unpacked.float().reshape(-1, size_n)


def as_float(scales: Tensor) -> Tensor:
    """Return scales as float32; byte scales are exponents (e8m0)."""
    if scales.dtype == torch.uint8:
        return torch.exp2(scales.float() - 127.0)
    return scales.float()


def column_linear(
    a: Tensor, size_n: int, weight: Callable[[slice], Tensor], bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Return `a` [.., K] @ `weight` [K, N] + `bias`. The weight is decoded in slices of columns."""
    step = max(64, COLUMN_ELEMENTS // max(a.shape[-1], 1))
    out = a.new_empty((*a.shape[:-1], size_n), dtype=dtype)
    for start in range(0, size_n, step):
        part = slice(start, min(start + step, size_n))
        out[..., part] = linear(a, weight(part).t().to(a.dtype), None if bias is None else bias[part], dtype)
    return out


def grouped_linear_packed(
    a: Tensor,
    packed: Tensor,
    size_n: int,
    scales: Tensor,
    zeros: Tensor | None,
    kind: Kind | None,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Return `a` [.., K] @ `grouped_weight` · `factor` + `bias` in the dtype of `a`."""
    size_k = a.shape[-1]
    bits = bits_of(packed, size_k * size_n)
    words = packed.reshape(size_k, -1)
    per_word = size_n // max(words.shape[1], 1)
    table = scales.reshape(-1, size_n)
    zero_points = _zero_points(zeros, size_n, bits)

    def columns(part: slice) -> Tensor:
        words_here = words[:, part.start // per_word : -(-part.stop // per_word)]
        zero = None if zero_points is None else zero_points[:, part]
        weight = grouped_weight(words_here, size_k, part.stop - part.start, table[:, part], zero, kind)
        return weight if factor is None else weight * factor.float()

    return column_linear(a, size_n, columns, bias, a.dtype)
