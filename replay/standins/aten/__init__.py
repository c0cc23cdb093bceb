"""Portable equivalents of ops that exist on some devices only; used where the replay device has no kernel for them."""

from opreplay.replay.standins.aten.table import EQUIVALENTS, Equivalent, equivalent_for

__all__ = ["EQUIVALENTS", "Equivalent", "equivalent_for"]
