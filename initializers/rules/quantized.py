# pyright: strict
"""Initializer for quantised operands: weights, int8 tensors, scales and zero points.

Packed weights get all codes. Int8 tensors get values symmetric around 0, with scales that match. fp8 operands get
values of N(0, 1), and their scales keep the default values of `dense`.
"""

from __future__ import annotations

import math

import torch

from opreplay.initializers import fill
from opreplay.initializers.base import CustomInit, InitContext, InitializerError, InitReport

ROW_SCALES = {"fp8_rows": 1.0, "byte_rows": 1 / 255}
"""Role of an op → scale of its rows. A row ends in 8 bytes: 4 for the scale and 4 for the bias."""
ZEROS = (
    "zero_point",
    "zero_points",
    "b_zeros",
    "b_zeros_or_none",
    "b_gptq_qzeros",
    "b_qzeros",
    "_zeros",
    "azp",
    "azp_adj",
)
ORDERS = ("perm", "perm_or_none", "g_idx", "g_idx_or_none", "b_g_idx", "q_perm")
COUNTERS = ("workspace", "c_tmp")
"""Arguments that a kernel requires to be zero."""
SCALE_SIZE = 1 / 64
"""Mean scale of int8 operands. Their root mean square is about 73.

Sums of thousands of scaled products stay within fp16.
"""


class QuantizedInit(CustomInit):
    """Fills codes over the full range, scales so small that products do not overflow, and valid permutations."""

    name = "quantized"

    def initialize(self, context: InitContext) -> InitReport:
        assumed: dict[str, str] = {}
        if context.role == "affine":
            return _fake(context)
        integers = [name for name, tensor in context.tensors() if _holds_codes(name, tensor)]
        for name, tensor in context.tensors():
            if tensor.numel() and (what := _fill(context, name, tensor, integers)) is not None:
                assumed[name] = what
        if context.role in ("fp8_codes", "fp8_rows"):
            assumed["input"] = _finite_codes(context)
        if context.role in ROW_SCALES:
            assumed["input"] = f"{assumed.get('input', 'all codes')}, {_row_scales(context)}"
        return InitReport(summary=", ".join(f"{k}: {v}" for k, v in assumed.items()) or "plain values", assumed=assumed)


def _fill(context: InitContext, name: str, tensor: torch.Tensor, codes: list[str]) -> str | None:
    """Fill one argument and return a description of the values; None if there is nothing to describe.

    `codes` are the names of the arguments that hold codes.
    """
    if name in COUNTERS:
        fill.assign(tensor, torch.zeros_like(tensor))
        return None
    if not fill.is_integer(tensor.dtype):
        if not codes or not tensor.dtype.is_floating_point or "scal" not in name.lower():
            return None
        fill.uniform(tensor, context.generator, 0.5 * SCALE_SIZE, 1.5 * SCALE_SIZE)
        return f"about 1/{1 / SCALE_SIZE:.0f}"
    if name in ORDERS:
        return _order(context, name, tensor)
    if name in ZEROS and context.role == "scaled_product":
        fill.integers(tensor, context.generator, -8, 9)
        return "in [-8, 8]"
    return _codes(context, tensor) if name in (*ZEROS, *codes) else None


def _holds_codes(name: str, tensor: torch.Tensor) -> bool:
    return fill.is_integer(tensor.dtype) and tensor.numel() > 0 and name not in (*ZEROS, *ORDERS, *COUNTERS)


def _codes(context: InitContext, tensor: torch.Tensor) -> str:
    """Fill with all values of the dtype, equally likely, but without -128 in int8: 128 does not fit into int8."""
    info = torch.iinfo(tensor.dtype)
    low = -info.max if tensor.dtype is torch.int8 else info.min
    fill.integers(tensor, context.generator, low, info.max + 1)
    return "all codes" if tensor.dtype is not torch.int8 else "symmetric int8"


def _order(context: InitContext, name: str, tensor: torch.Tensor) -> str:
    """Fill with a random permutation of the columns, or with ascending group numbers if the argument holds these."""
    count = tensor.numel()
    if "g_idx" in name:
        scales = next((t for n, t in context.tensors() if "scales" in n and t.dim() > 1), None)
        groups = max(1, scales.shape[0] if scales is not None else count // 128)
        fill.assign(tensor, (torch.arange(count) * groups // count).view(tensor.shape))
        return f"{groups} groups in order"
    order = torch.randperm(count, generator=torch.Generator().manual_seed(context.seed))
    fill.assign(tensor, order.view(tensor.shape))
    return f"random order of {count}"


def _finite_codes(context: InitContext) -> str:
    """Fill with bytes whose exponent bits are not all ones, which would mean infinity or NaN. Return a description.

    Raises InitializerError if the codes are not integers.
    """
    codes, bits = context.need("input"), context.args.get("ebits")
    if not fill.is_integer(codes.dtype):
        raise InitializerError(f"{context.op}: codes of 8-bit floats must be bytes, not {codes.dtype}")
    bits = bits if isinstance(bits, int) and 0 < bits < 8 else 5 if context.args.get("forward") is False else 4
    exponent = (1 << bits) - 1 << 7 - bits
    fill.assign(codes, torch.where(codes & exponent == exponent, codes ^ 0x40, codes))
    return f"all finite codes with {bits} exponent bits"


def _row_scales(context: InitContext) -> str:
    """Write scale and bias to the end of each row; the other bytes remain codes."""
    rows = context.need("input")
    tail, scale = 8, ROW_SCALES[context.role]
    if rows.dtype is torch.uint8 and rows.shape[-1] > tail:
        bytes_ = torch.tensor([scale, 0.0], dtype=torch.float32).view(torch.uint8)
        fill.assign(rows[..., -tail:], bytes_.to(rows.device))
    return f"scale {scale:.3g} in each row"


def _fake(context: InitContext) -> InitReport:
    """Fill scales and zero points of fake quantisation, and enable it.

    Scales are about 8 / (range of codes). The codes then cover values of N(0, 1) several standard deviations wide. Zero
    points are in the middle of the range.
    """
    low, high = context.args.get("quant_min"), context.args.get("quant_max")
    low, high = (low, high) if isinstance(low, int) and isinstance(high, int) else (0, 127)
    if not -(1 << 31) <= low <= high < 1 << 32:
        raise InitializerError(f"{context.op}: there are no codes from {low} to {high}")
    for name in ("scale", "scales"):
        if (scale := context.tensor(name)) is not None:
            size = 8.0 / max(1, high - low)
            fill.uniform(scale, context.generator, 0.5 * size, 1.5 * size)
    for name in ZEROS:
        if (zero := context.tensor(name)) is not None and zero.numel():
            middle = math.floor((low + high) / 2)
            fill.assign(zero, torch.full_like(zero, middle))
    if (enabled := context.tensor("fake_quant_enabled")) is not None:
        fill.assign(enabled, torch.ones_like(enabled))
    what = f"the midpoint of [{low}, {high}]"
    return InitReport(summary=f"zero points in {what}", assumed={"scale": "8 standard deviations", "zero_point": what})


INITIALIZERS = (QuantizedInit,)
