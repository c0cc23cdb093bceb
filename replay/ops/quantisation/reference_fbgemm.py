# pyright: strict
"""FBGEMM's 8-bit floats (fbgemm_gpu/src/quantize_ops): `HFP8` with configurable exponent, and the row-wise scaled
format.

Up to their largest number, they equal torch's float8 types with another exponent bias. e4m3 with bias b is
float8_e4m3fn of x · 2^(b − 7). e5m2 with bias b is float8_e5m2 of x · 2^(b − 15).
"""

from __future__ import annotations

import torch
from torch import Tensor

from opreplay.replay.ops.declared import stands_for

_TYPES: dict[int, tuple[torch.dtype, int]] = {4: (torch.float8_e4m3fn, 7), 5: (torch.float8_e5m2, 15)}


@stands_for("fbgemm::FloatToHFP8Quantized")
def float_to_hfp8(input: Tensor, ebits: int, exponent_bias: int, max_pos: float) -> Tensor:
    """Convert float32 to uint8 of the same shape.

    Arguments that are not recorded have FBGEMM's defaults for the forward direction.
    """
    dtype, torch_bias = _kind(ebits)
    return (input.float().clamp(-max_pos, max_pos) * 2.0 ** (exponent_bias - torch_bias)).to(dtype).view(torch.uint8)


@stands_for("fbgemm::HFP8QuantizedToFloat")
def hfp8_to_float(input: Tensor, ebits: int, exponent_bias: int) -> Tensor:
    """Convert uint8 to float32 of the same shape. All 256 codes are finite numbers, including those with the highest
    exponent.
    """
    _kind(ebits)
    # The bits of a code where float32 has its exponent and fraction: a number of bias 127.
    codes = input.view(torch.uint8)
    magnitude = ((codes & 127).to(torch.int32) << 16 + ebits).view(torch.float32) * 2.0 ** (127 - exponent_bias)
    return torch.where(codes < 128, magnitude, -magnitude)


def _kind(ebits: int) -> tuple[torch.dtype, int]:
    if ebits not in _TYPES:
        raise ValueError(f"8-bit floats with {ebits} exponent bits are not implemented; known: 4, 5")
    return _TYPES[ebits]


_FORWARD = (4, 15, 0.9375)
_BACKWARD = (5, 31, 0.875)
_SCALE_BYTES = 8


@stands_for("fbgemm::FloatToFP8RowwiseQuantized")
def float_to_fp8_rowwise(t: Tensor, forward: bool) -> Tensor:
    """Convert each row of [.., C] to uint8: the scaled numbers, the scale as float32, and 4 zero bytes.

    The result is [.., C rounded up to a multiple of 4, plus 8]. The forward direction uses e4m3, the backward direction
    e5m2.
    """
    ebits, bias, max_pos = _FORWARD if forward else _BACKWARD
    columns = -(-t.shape[-1] // 4) * 4
    out = t.new_zeros((*t.shape[:-1], columns + _SCALE_BYTES), dtype=torch.uint8)
    scale = max_pos / t.float().abs().amax(-1, keepdim=True).clamp(min=1e-20)
    out[..., : t.shape[-1]] = float_to_hfp8(t.float() * scale, ebits, bias, max_pos)
    out[..., columns : columns + 4] = scale.contiguous().view(torch.uint8)
    return out


@stands_for("fbgemm::FP8RowwiseQuantizedToFloat")
def fp8_rowwise_to_float(input: Tensor, forward: bool, output_dtype: int = 0) -> Tensor:
    """Convert uint8 [.., C + 8] back to [.., C]: float32 by default, float16 for output_dtype 1, bfloat16 for 5."""
    ebits, bias, _ = _FORWARD if forward else _BACKWARD
    columns = input.shape[-1] - _SCALE_BYTES
    scale = input[..., columns : columns + 4].contiguous().view(torch.float32)
    values = hfp8_to_float(input[..., :columns].contiguous(), ebits, bias) / scale
    return values.to(OUTPUT_DTYPES.get(output_dtype, torch.float32))


OUTPUT_DTYPES: dict[int, torch.dtype] = {0: torch.float32, 1: torch.float16, 5: torch.bfloat16}
"""FBGEMM's SparseType code → dtype of the result."""
