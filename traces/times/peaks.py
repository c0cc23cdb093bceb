# pyright: strict
"""Peak rates of recorded devices, from the vendors' datasheets: without sparsity, of one device as torch sees it."""

from __future__ import annotations

import msgspec


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What a device can do at most."""

    device: str
    tflops: dict[str, float]
    """10¹² operations a second of matrix units by dtype; "float32" is TF32 where the device has it."""
    gb_per_s: float
    """Of its memory, 10⁹ bytes a second."""


def _half(device: str, half: float, single: float, memory: float) -> Peak:
    return Peak(device=device, tflops={"float16": half, "bfloat16": half, "float32": single}, gb_per_s=memory)


PEAKS: tuple[tuple[str, Peak], ...] = (
    # Datasheets of NVIDIA (H100, H200, A100, L40S, L4, A10, V100, T4, B200) and AMD (MI210, MI250X, MI300X, MI325X).
    ("H200", _half("H200 SXM", 989.0, 495.0, 4800.0)),
    ("H100 PCIe", _half("H100 PCIe", 756.0, 378.0, 2000.0)),
    ("H100", _half("H100 SXM", 989.0, 495.0, 3350.0)),
    ("B200", _half("B200", 2250.0, 1100.0, 8000.0)),
    ("A100-SXM4-80GB", _half("A100 SXM 80 GB", 312.0, 156.0, 2039.0)),
    ("A100 80GB PCIe", _half("A100 PCIe 80 GB", 312.0, 156.0, 1935.0)),
    ("A100", _half("A100 40 GB", 312.0, 156.0, 1555.0)),
    ("L40S", _half("L40S", 362.0, 183.0, 864.0)),
    ("NVIDIA L4", _half("L4", 121.0, 60.0, 300.0)),
    ("A10", _half("A10", 125.0, 62.5, 600.0)),
    ("V100", Peak(device="V100 SXM", tflops={"float16": 125.0, "float32": 15.7}, gb_per_s=900.0)),
    ("T4", Peak(device="T4", tflops={"float16": 65.0, "float32": 8.1}, gb_per_s=320.0)),
    ("MI325X", _half("MI325X", 1307.4, 653.7, 6000.0)),
    ("MI300X", _half("MI300X", 1307.4, 653.7, 5300.0)),
    ("MI250X", _half("MI250X, one of two dies", 191.5, 47.9, 1638.0)),
    ("MI250", _half("MI250, one of two dies", 181.0, 45.3, 1638.0)),
    ("MI210", _half("MI210", 181.0, 45.3, 1638.0)),
)  # fmt: skip
"""(part of a recorded name, peak), the longer name of a family first."""


def peak_of(names: tuple[str, ...]) -> Peak | None:
    """The peak of the recorded device, None where it is not known or several kinds were recorded."""
    found = [next((peak for part, peak in PEAKS if part.lower() in name.lower()), None) for name in names]
    return found[0] if found and all(one == found[0] for one in found) else None
