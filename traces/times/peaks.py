# pyright: strict
"""Peak rates of recorded devices from the vendors' datasheets, without sparsity, for one device as torch sees it."""

from __future__ import annotations

import re

import msgspec

from opreplay.traces.errors import UsageError

TF32 = "tf32"
"""Key in `Peak.tflops` for float32 products in the matrix units' shorter format (NVIDIA's TF32, AMD's XF32)."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The peak rates of a device."""

    device: str
    tflops: dict[str, float]
    """Rate by dtype in 10¹² operations per second, on matrix units if they support the dtype.

    "tf32" is the rate of float32 products with reduced precision allowed, "float32" the rate without.
    """
    gb_per_s: float
    """Memory bandwidth, in 10⁹ bytes per second."""
    cache_mib: int = 256
    """Size of the last-level cache in MiB; where no data sheet gives it, the size of the largest known cache."""

    def rate_of(self, dtype: str) -> float | None:
        """Return how fast products of this dtype are computed, in 10¹² operations per second; None if unknown."""
        if dtype.startswith("float8") and self.device.startswith(_EIGHT_BITS):
            return 2 * self.tflops["float16"]
        return self.tflops.get(dtype)


_EIGHT_BITS = ("GB200", "B200", "GH200", "H200", "H100", "L40", "L4", "MI355X", "MI325X", "MI300X", "MI300A")
"""Devices that multiply 8-bit floats twice as fast as 16-bit floats, according to their datasheets."""


def _half(device: str, half: float, tf32: float | None, single: float, memory: float, cache: int = 256) -> Peak:
    """Return the peak of a device with equal rates for bfloat16 and float16; `cache` is in MiB."""
    tflops = {"float16": half, "bfloat16": half, **({} if tf32 is None else {TF32: tf32}), "float32": single}
    return Peak(device=device, tflops=tflops, gb_per_s=memory, cache_mib=cache)


PEAKS: tuple[tuple[str, Peak], ...] = (
    # Datasheets of NVIDIA (GB200, B200, GH200, H200, H100, A100, L40, L40S, L4, A10, V100, T4) and AMD (MI100, MI210,
    # MI250X, MI300A, MI300X, MI325X, MI355X), as the vendors publish them; devices without a public one (H800, H20,
    # A800) have no row. Of what they quote with sparsity, half. float32 of the MI100 and MI200s is that of their matrix
    # units. Units × clock × operations a clock, and pins × their rate, give the same: tests/traces/times/test_peaks.py.
    #                                                    half    TF32  float32    memory  cache
    ("GB200", _half("GB200",                            2500.0, 1250.0,   80.0, 8000.0, 126)),
    ("GH200", _half("GH200",                             989.0,  495.0,   67.0, 4000.0, 60)),
    ("H200 NVL", _half("H200 NVL",                       835.5,  417.5,   60.0, 4800.0, 50)),
    ("H200", _half("H200 SXM",                           989.0,  495.0,   67.0, 4800.0, 50)),
    ("H100 PCIe", _half("H100 PCIe",                     756.0,  378.0,   51.0, 2000.0, 50)),
    ("H100 NVL", _half("H100 NVL",                       835.5,  417.5,   60.0, 3900.0, 50)),
    ("H100", _half("H100 SXM",                           989.0,  495.0,   67.0, 3350.0, 50)),
    ("B200", _half("B200",                              2250.0, 1125.0,   75.0, 8000.0, 126)),
    ("A100-SXM4-80GB", _half("A100 SXM 80 GB",           312.0,  156.0,   19.5, 2039.0, 40)),
    ("A100 80GB PCIe", _half("A100 PCIe 80 GB",          312.0,  156.0,   19.5, 1935.0, 40)),
    ("A100", _half("A100 40 GB",                         312.0,  156.0,   19.5, 1555.0, 40)),
    ("L40", _half("L40",                                 181.0,   None,   90.5,  864.0, 96)),
    ("L40S", _half("L40S",                               362.0,  183.0,   91.6,  864.0, 96)),
    ("L4", _half("L4",                                   121.0,   60.0,   30.3,  300.0, 48)),
    ("A10", _half("A10",                                 125.0,   62.5,   31.2,  600.0, 6)),
    ("V100-PCIE", Peak(device="V100 PCIe", tflops={"float16": 112.0, "float32": 14.0}, cache_mib=6, gb_per_s=900.0)),
    ("V100", Peak(device="V100 SXM", tflops={"float16": 125.0, "float32": 15.7}, cache_mib=6, gb_per_s=900.0)),
    ("T4", Peak(device="T4", tflops={"float16": 65.0, "float32": 8.1}, cache_mib=4, gb_per_s=320.0)),
    ("MI355X", _half("MI355X",                          2516.6,   None,  157.3, 8000.0, 256)),
    ("MI325X", _half("MI325X",                          1307.4,  653.7,  163.4, 6000.0, 256)),
    ("MI300X", _half("MI300X",                          1307.4,  653.7,  163.4, 5300.0, 256)),
    ("MI300A", _half("MI300A",                           980.6,  490.3,  122.6, 5300.0, 256)),
    ("MI100", Peak(device="MI100", tflops={"float16": 184.6, "bfloat16": 92.3, "float32": 46.1}, gb_per_s=1228.8,
                   cache_mib=8)),
    ("MI250X", _half("MI250X, one of two dies",          191.5,   None,   47.9, 1638.0, 16)),
    ("MI250", _half("MI250, one of two dies",            181.0,   None,   45.3, 1638.0, 16)),
    ("MI210", _half("MI210",                             181.0,   None,   45.3, 1638.0, 16)),
)  # fmt: skip
"""Peaks of devices, as pairs of (part of a recorded device name, peak). More specific parts come first.

A part must end where a run of letters and digits in the name ends. Thus an A10G or an RTX A1000 does not match A10 or
A100.
"""

_TF32 = re.compile(r"[tx]f32")
_MATRIX_UNITS = re.compile(r"s1688|tensorop|_mx_")
"""Parts of kernel names that indicate TF32 although the names contain neither "tf32" nor "xf32".

They are the TF32 instruction shape in CUTLASS, the matrix units in CUTLASS, and XFloat32 in Tensile.
"""
_OTHER_UNITS = re.compile(r"f16|simt")


def is_tf32(kernel: str) -> bool:
    """Check whether the name of a float32 matrix kernel indicates TF32 (or AMD's XF32)."""
    lower = kernel.lower()
    by_units = _MATRIX_UNITS.search(lower) is not None and _OTHER_UNITS.search(lower) is None
    return by_units or _TF32.search(lower) is not None


_EXACT = re.compile(r"sgemm|scudnn|simt|ffma|_sb_|_s_b_")


def is_exact_float32(kernel: str) -> bool:
    """Check whether the name of a matrix kernel indicates float32 products without TF32."""
    return not is_tf32(kernel) and _EXACT.search(kernel.lower()) is not None


def knows_roof(peak: Peak, flops: float | None, dtype: str, *, multiplies: bool) -> bool:
    """Check whether a minimum time of the work can be computed.

    If the work may multiply, its number of operations and their rate must be known.
    """
    return not multiplies or flops == 0 or (flops is not None and peak.rate_of(dtype) is not None)


def roof_us(
    peak: Peak, flops: float | None, moved: float | None, dtype: str, *, multiplies: bool = True
) -> tuple[float, str] | None:
    """Return (minimum time in µs for these operations and bytes, what determines it: "memory" or the dtype).

    Return None if neither operations nor bytes are known, or if the work `multiplies` and its operations or their rate
    are unknown. `dtype` is a key of `Peak.tflops`: "tf32" for float32 products with reduced precision allowed.
    """
    if not knows_roof(peak, flops, dtype, multiplies=multiplies):
        return None
    rate = peak.rate_of(dtype)
    times = [] if flops is None or rate is None else [(flops / rate / 1e6, dtype)]
    times += [] if moved is None else [(moved / peak.gb_per_s / 1e3, "memory")]
    return max(times, default=None)


def peak_of(names: tuple[str, ...]) -> Peak | None:
    """Return the peak of the recorded device; None if it is unknown or several kinds of devices were recorded."""
    matches = [next((peak for word, peak in PEAKS if _is_named(word, name)), None) for name in names]
    return matches[0] if matches and all(match == matches[0] for match in matches) else None


def peak_named(name: str) -> Peak:
    """Return the peak of the named device. Raises UsageError for an unknown device."""
    peak = peak_of((name,))
    if peak is None:
        known = ", ".join(word for word, _ in PEAKS)
        raise UsageError(f"the peak of {name!r} is unknown", hint=f"Known devices: {known}.")
    return peak


def _is_named(word: str, name: str) -> bool:
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", name, re.IGNORECASE) is not None
