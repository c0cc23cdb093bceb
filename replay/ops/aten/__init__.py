# pyright: strict
"""Portable equivalents of ops that exist on some devices only; used where the replay device has no kernel for them."""

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
