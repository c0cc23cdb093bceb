# pyright: strict
"""Portable equivalents of device-specific ops, used if the replay device has no kernel for the original op."""

from opreplay.replay.ops.aten.legacy.forms import RENAMED, Legacy, legacy_form, legacy_of
from opreplay.replay.ops.aten.table import EQUIVALENTS, Equivalent, equivalent_for, equivalent_of

__all__ = [
    "EQUIVALENTS",
    "RENAMED",
    "Equivalent",
    "Legacy",
    "equivalent_for",
    "equivalent_of",
    "legacy_form",
    "legacy_of",
]
