# pyright: strict
"""From an op to the CANN kernels that it becomes: a table of rules by op name, which users can read and extend."""

from opreplay.replay.ascend.lowering.registry import Lowering, known_ops, lower, lowers, lowers_like

__all__ = ["Lowering", "known_ops", "lower", "lowers", "lowers_like"]
