# pyright: strict
"""What a recording tells of layers whose weights are in no argument: a value on their ops, no sizes."""

from __future__ import annotations

import msgspec


class LayerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Of one call of an opaque layer; sizes that contradict it cannot be those that were recorded."""

    weight_bits: int | None = None
    """Of one weight, as names of the recorded kernels say."""
    most_bytes: float | None = None
    """That the recorded device can have read in the recorded time; None where device or time is not known."""
    most_flops: float | None = None
    """Products in 16 bits that it can have done in that time."""
    device: str = ""
    """Name in the data sheet, "" where the recorded device is not known."""
    time_us: float = 0.0
    """Of the kernels that may read weights."""
