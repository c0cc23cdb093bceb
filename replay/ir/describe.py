# pyright: strict
"""Short descriptions of a plan's ops, such as "bf16[512,512] · bf16[512,2048]". Independent of terminal and file
formats.
"""

from __future__ import annotations

import math
import re
import struct

from opreplay.replay.ir.model import ReplayArg, ReplayOp
from opreplay.traces.dtypes import torch_dtype_name
from opreplay.traces.literals import is_whole_numbers
from opreplay.traces.model import OpSignature, TensorMeta

SHORT_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "complex32": "c32",
    "complex64": "c64",
    "complex128": "c128",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e4m3fnuz": "f8e4m3z",
    "float8_e5m2": "f8e5m2",
    "float8_e5m2fnuz": "f8e5m2z",
    "float8_e8m0fnu": "f8e8m0",
    "float4_e2m1fn_x2": "f4e2m1x2",
}
FLOAT32_DIGITS = 9
"""Number of significant digits that is enough to tell any two float32 values apart."""
LIST_SHOWN = 3
"""Maximum number of tensors of a list that are written out."""


def describe_tensor(meta: TensorMeta) -> str:
    """Return dtype and shape, with an asterisk if the tensor is not contiguous."""
    strides, expected = meta.strides, 1
    dense = True
    for size, stride in zip(reversed(meta.shape), reversed(strides or ()), strict=strides is not None):
        dense = dense and (size <= 1 or stride == expected)
        expected *= max(1, size)
    shape = ",".join(map(str, meta.shape))
    return f"{SHORT_DTYPES.get(meta.dtype, meta.dtype)}[{shape}]{'' if dense else '*'}"


def shorter_float(text: str) -> str:
    """Shorten a number that is exactly a float32 value: "9.999999974752427e-07" → "1e-06". Other text stays
    unchanged.
    """
    if len(text) <= FLOAT32_DIGITS:
        return text
    try:
        value = float(text)
        if struct.unpack("f", struct.pack("f", value))[0] != value:
            return text
        for places in range(1, FLOAT32_DIGITS + 1):
            short = float(f"{value:.{places}g}")
            if struct.unpack("f", struct.pack("f", short))[0] == value:
                return str(short)
    except (ValueError, OverflowError):
        pass
    return text


def describe_inputs(op: ReplayOp) -> str:
    """Return the tensor arguments of an op as text, in order and without scalars.

    Absent tensors are shown only in lists. Positions matter there: `(None, i64[8])` indexes the second dimension.
    """
    return " · ".join(text for arg in op.args if (text := _describe_argument(arg)))


def describe_signature(signature: OpSignature) -> str:
    """Return the tensor arguments of a recorded call as text, like `describe_inputs`. Of a list, only the length is
    shown.
    """
    parts: list[str] = []
    strides = signature.strides or ()
    for at, (dims, spelled) in enumerate(zip(signature.dims or (), signature.types or (), strict=False)):
        dtype = torch_dtype_name(spelled) if spelled else None
        if dtype is not None and is_whole_numbers(dims):
            steps = strides[at] if at < len(strides) else ()
            known = tuple(steps) if is_whole_numbers(steps) and len(steps) == len(dims) else None
            parts.append(describe_tensor(TensorMeta(shape=tuple(dims), dtype=dtype, strides=known)))
        elif dims and not is_whole_numbers(dims):
            parts.append(f"({len(dims)} tensor{'' if len(dims) == 1 else 's'})")
    return " · ".join(parts)


def _describe_argument(arg: ReplayArg) -> str:
    present = [meta for meta in arg.tensors if meta is not None]
    if not present:
        return ""
    if arg.type != "Tensor[]":
        return describe_tensor(present[0])
    shown = ["None" if meta is None else describe_tensor(meta) for meta in arg.tensors[:LIST_SHOWN]]
    more = [f"… {len(arg.tensors)} in all"] if len(arg.tensors) > LIST_SHOWN else []
    return f"({', '.join(shown + more)})"


DASH = "–"
"""Shown for a missing value."""

_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
"""(microseconds per unit, unit of time), largest first."""


def digits(value: float, count: int = 3) -> str:
    """Format `value` with `count` significant digits: 0.0123, 1.23, 12.3, 123, 1230. An exponent is used if more than 9
    decimals would be needed.
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = count - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places -= 1
    if places > 9:
        return f"{value:.{count - 1}e}"
    return f"{rounded:.{min(max(places, 0), 9)}f}"


_LONG_FLOAT = re.compile(r"(?<![\w.])-?\d+\.\d{14,}(?:e[-+]?\d+)?(?![\w.])")


def schema_text(schema: str) -> str:
    """Shorten the defaults in a schema. Torch writes 17 digits, such as eps=9.9999999999999995e-07 for 1e-06."""
    return _LONG_FLOAT.sub(lambda found: repr(float(found[0])), schema)


SHORTEST_US = 0.001
"""Shortest time, in µs, that clocks of traces and device models resolve. Differences between times may be smaller."""
_ROUNDING_US = 1e-6


def time_text(us: float | None) -> str:
    """Format microseconds with three significant digits and a suitable unit: "0.450 µs", "12.3 µs", "1.20 ms", "3.40
    s".

    A time below a nanosecond is "<0.001 µs". A difference that is only due to rounding is "0 µs".
    """
    if us is None:
        return DASH
    if abs(us) < SHORTEST_US:
        return "0 µs" if abs(us) < _ROUNDING_US else "<0.001 µs" if us > 0 else ">-0.001 µs"
    for size, unit in _UNITS:
        # 999.6 µs would round to four digits: it is written as 1.00 ms.
        if abs(us) >= 0.9995 * size or size == 1.0:
            return f"{digits(us / size)} {unit}"
    raise AssertionError("unreachable")
