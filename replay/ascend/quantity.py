"""Numbers with a unit, a source and a confidence, and how device files spell them; knows no particular device."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

Trust = Literal["datasheet", "measured", "fitted", "assumed"]
"""Where a number stands: from a vendor's configuration or datasheet; measured directly and quoted; fitted to kernel
measurements by this project's calibration; assumed, by analogy or judgement."""


class Quantity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number of a device or model file."""

    value: float
    unit: str
    source: str
    confidence: Trust

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError("value must be a finite number")
        if not self.unit or not self.source:
            raise ValueError("unit and source must not be empty")
